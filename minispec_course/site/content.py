"""Pages that are made and not written: the question bank, the reference, the glossary, the map of the course."""

from __future__ import annotations

import ast
import re
from functools import cache
from html import escape
from itertools import groupby, pairwise
from pathlib import Path

from .. import interview
from ..build.builder import ROOT
from ..interview.question import LEVELS, Question
from .sources import files, find, lessons, link

# ---- the question bank: the question first, the answer covered, so that one can try before one looks -----------------


def question_pages(most: int | None = None) -> dict[str, str]:
    """Name of a page → its Markdown. `most`: only the first so many topics."""
    bank = sorted(interview.load().values(), key=lambda question: question.file)
    made = {}
    rows = []
    topics = [(file, list(members)) for file, members in groupby(bank, key=lambda question: question.file)]
    for file, questions in topics[:most]:
        name = file.rsplit("/", 1)[-1].removesuffix(".yaml")
        title = name.partition("_")[2].replace("_", " ")
        made[name] = f"# Interview: {title}\n\n" + "\n".join(map(page_of, questions))
        rows.append(f"| [{title}]({name}.md) | {len(questions)} | {questions[0].question} |")
    printed = "" if most else '<a href="../_static/cards.html">The same as cards to print</a>, eight on a sheet.'
    made["index"] = f"""# Interview questions

{len(bank)} questions with follow-ups. Say your answer aloud, then open it and compare it with what an interviewer ticks
at each level. Every number is computed by the formulas of the package. `minispec drill` asks them in the terminal and
brings back sooner what went badly. {printed}

{index("| topic | questions | the first of them |", rows, made)}"""
    return made


def index(head: str, rows: list[str], made: dict[str, str]) -> str:
    """A table, and the pages as a hidden table of contents."""
    return "\n".join([head, re.sub(r"[^|]+", "---", head), *rows, "", "```{toctree}", ":hidden:", *made, "```"])


def page_of(question: Question) -> str:
    """One question: what is asked, and, covered, the spoken answer, the points by level, and how it goes on."""
    parts = [f"({question.id})=", f"## {plain(question.question)}", "", f"*{question.kind}, `{question.id}`*", ""]
    if question.case:
        parts += [f"{question.case.minutes} minutes. Given:", "", *bullets(question.case.requirements), ""]
    answer = [f"> {plain(question.spoken)}", ""]
    if question.case:
        answer += ["**On the whiteboard**", "", *bullets(question.case.whiteboard), ""]
        answer += ["**The interviewer changes half-way**", ""]
        answer += [f"- *{plain(one.says)}.* {plain(one.reply)}".rstrip() for one in question.case.changes] + [""]
    for level in LEVELS:
        answer += [f"**{level}**", "", *bullets(question.level(level)), ""]
    answer += ["**Raises the impression**", "", *bullets(question.raises), ""]
    answer += ["**Sinks it**", "", *bullets(question.sinks), ""]
    if question.push_backs:
        answer += ["**When the interviewer pushes back**", ""]
        answer += [f"- *{plain(one.says)}* {plain(one.reply)}" for one in question.push_backs] + [""]
    if question.follow_ups:
        answer += ["**Follow-ups**", ""]
        answer += [f"- *{plain(one.question)}* {plain(one.short)}" for one in question.follow_ups] + [""]
    place = find("minispec/__init__.py", question.function.removeprefix("minispec."))
    code = f"[`{question.function}`]({link(place)})" if place else f"`{question.function}`"
    answer += [f"In the code: {code}. The lesson: {lesson(question.lesson)}."]
    return "\n".join([*parts, ":::{dropdown-answer} the answer", *answer, ":::", ""])


def lesson(number: str) -> str:
    name = next(name for name in lessons() if name.split("_")[0] == number)
    return f"[{name.replace('_', ' ')}](../notebooks/{name}.ipynb)"


def bullets(points: tuple[str, ...]) -> list[str]:
    return [f"- {plain(point)}" for point in points]


def plain(text: str) -> str:
    """Text in which no character is Markdown's, but for `code`: formulas with *, _ and | stay as they are."""
    parts = " ".join(text.split()).split("`")
    return "`".join(part if n % 2 else re.sub(r"([\\*_\[\]<>$|{}#~])", r"\\\1", part) for n, part in enumerate(parts))


# ---- the reference: what docstrings say, with links to their lines ---------------------------------------------------

HIDDEN = tuple(f"minispec_course/{room}/" for room in ("site", "check", "interview", "exercises", "build"))


def modules() -> list[str]:
    """The files that the reference shows: all but the course's own machinery, and empty ones."""
    return [
        file for file in files() if not file.startswith(HIDDEN) and not file.endswith(("__init__.py", "__main__.py"))
    ]


def reference_pages(most: int | None = None) -> dict[str, str]:
    """Name of a page → its Markdown: one page per folder of the package, the root's modules on pages of their own."""
    groups: dict[str, list[str]] = {}
    for file in modules():
        package, *folders, _ = Path(file).parts
        name = "-".join(folders if package == "minispec" else [package, *folders]) or "core"
        groups.setdefault(name, []).append(file)
    groups = dict(list(groups.items())[:most])
    made = {}
    for name, members in groups.items():
        title = "The core" if name == "core" else f"`{name.replace('-', '/')}/`"
        made[name] = f"# {title}\n\n" + "\n\n".join(map(module_text, members))
    rows = [
        f"| [{name.replace('-', '/')}]({name}.md) | "
        + ", ".join(f"[{Path(file).stem}]({link((file, 1))})" for file in members)
        + " |"
        for name, members in groups.items()
    ]
    made["index"] = f"""# The package

What each module says about itself, made from the docstrings. A name leads to its line in the source.

{index("| part | modules |", rows, made)}"""
    return made


def module_text(file: str) -> str:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    dotted = file.removesuffix(".py").replace("/", ".")
    parts = [f"## [`{dotted}`]({link((file, 1))})", docstring(tree)]
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            parts.append(entry(file, node))
            for inner in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_") and ast.get_docstring(inner):
                    parts.append(entry(file, inner, f"{node.name}."))
    return "\n\n".join(filter(None, parts))


def entry(file: str, node: ast.FunctionDef | ast.ClassDef, inside: str = "") -> str:
    """A function or a class: its signature, where it is, what it says."""
    if isinstance(node, ast.FunctionDef):
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        shown = f"{inside}{node.name}({ast.unparse(node.args)}){returns}"
    else:
        bases = ", ".join(map(ast.unparse, node.bases))
        shown = f"class {node.name}" + (f"({bases})" if bases else "")
    title = f"### [`{inside}{node.name}`]({link((file, node.lineno))})"
    return "\n\n".join(filter(None, [title, f"```python\n{shown}\n```", docstring(node)]))


def docstring(node: ast.AST) -> str:
    """A docstring as Markdown: what is indented stays as it is typed, in the rest only `code` is marked up."""
    said = ast.get_docstring(node) or ""
    made = []
    for paragraph in said.split("\n\n"):
        if paragraph.startswith("    "):
            made.append(f"```text\n{paragraph}\n```")
        elif paragraph.lstrip().startswith(("- ", "* ")):
            made.append("\n".join("- " + plain(line) for line in paragraph.lstrip("-* ").split("\n- ")))
        else:
            made.append(stressed(plain(paragraph)))
    return "\n\n".join(filter(None, made))


def stressed(text: str) -> str:
    """*words* and **words** of a docstring are meant as such; every other star is a star."""
    text = re.sub(r"\\\*\\\*([A-Za-z][^*\\]*)\\\*\\\*", r"**\1**", text)
    return re.sub(r"(?<![\w*])\\\*([A-Za-z][^*\\]*[\w.])\\\*(?![\w*])", r"*\1*", text)


# ---- the glossary's words, explained where a page uses them for the first time ---------------------------------------

ROW = re.compile(r"^\| \*\*(.+?)\*\* \| (.+?) \|", re.MULTILINE)
EVERYDAY = set("token target draft greedy pass accepted decode verify temperature trace block".split())


def slug(word: str) -> str:
    return "term-" + re.sub(r"\W+", "-", word.lower()).strip("-")


@cache
def glossary() -> dict[str, tuple[str, str]]:
    """Word, in lower case → (where the glossary explains it, what it means, without markup)."""
    found = {}
    for words, meaning in ROW.findall((ROOT / "docs/glossary.md").read_text(encoding="utf-8")):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", meaning).replace("\\|", "|")
        plain = re.sub(r"[*`]", "", plain)
        for word in words.split(", "):
            name = re.sub(r"^the ", "", word.strip())
            if len(name) > 3 and name.lower() not in EVERYDAY:
                found[name.lower()] = (slug(words), plain)
    return found


@cache
def pattern() -> re.Pattern:
    words = sorted(glossary(), key=len, reverse=True)
    return re.compile(r"(?<![\w-])(" + "|".join(map(re.escape, words)) + r")(s?)(?![\w-])", re.IGNORECASE)


def with_places(page: str) -> str:
    """The glossary's page with an anchor in front of each word."""
    return ROW.sub(lambda row: row[0].replace("| **", f'| <span id="{slug(row[1])}"></span>**', 1), page)


# ---- the map: which lesson needs which, from the arrows of the syllabus ----------------------------------------------

WIDE, HIGH, GAP, DOWN = 148, 44, 26, 30  # a box; between boxes of a row; between rows
MERMAID = re.compile(r"```mermaid\n(.*?)```", re.DOTALL)


def arrows() -> tuple[dict[str, str], list[tuple[str, str, bool]]]:
    """Lesson → what it is called; (before, after, whether the arrow is dotted)."""
    drawn = MERMAID.search((ROOT / "docs/syllabus.md").read_text(encoding="utf-8"))[1]
    names, edges = {}, []
    for line in drawn.splitlines():
        names |= {number: name for number, name in re.findall(r"\bL(\d\d|appendix)\[([^\]]+)\]", line)}
        chain = re.findall(r"\bL(\d\d|appendix)", line)
        edges += [(before, after, "-.->" in line) for before, after in pairwise(chain)]
    return names, edges


def depths(names: dict[str, str], edges: list[tuple[str, str, bool]]) -> dict[str, int]:
    """A lesson stands one level below the last lesson that it needs."""
    place = dict.fromkeys(names, 0)
    for _ in names:
        for before, after, _dotted in edges:
            place[after] = max(place[after], place[before] + 1)
    return place


def direct(edges: list[tuple[str, str, bool]]) -> list[tuple[str, str, bool]]:
    """Without the arrows that a longer way replaces: they would run through the boxes between."""
    after: dict[str, set[str]] = {}
    for start, end, _ in edges:
        after.setdefault(start, set()).add(end)

    def reaches(start: str, end: str) -> bool:
        return start == end or any(reaches(step, end) for step in after.get(start, ()))

    return [edge for edge in edges if not any(reaches(step, edge[1]) for step in after[edge[0]] - {edge[1]})]


def drawing(addresses: dict[str, str]) -> str:
    """The map as SVG. `addresses`: lesson → where its box leads."""
    names, edges = arrows()
    depth, edges = depths(names, edges), direct(edges)
    members: dict[int, list[str]] = {}
    for lesson in sorted(names):
        members.setdefault(depth[lesson], []).append(lesson)
    widest = max(map(len, members.values()))
    width = widest * (WIDE + GAP) + 8
    height = len(members) * (HIGH + DOWN)
    corner = {}
    for at, row in members.items():
        left = (width - len(row) * (WIDE + GAP) + GAP) / 2
        for place, lesson in enumerate(row):
            corner[lesson] = (left + place * (WIDE + GAP), at * (HIGH + DOWN) + 4)
    lines = []
    for before, after, dotted in edges:
        (x, y), (u, v) = corner[before], corner[after]
        x, u, y = x + WIDE / 2, u + WIDE / 2, y + HIGH
        bend = DOWN * 0.8
        dash = ' stroke-dasharray="3 4"' if dotted else ""
        lines.append(f'<path d="M{x:g} {y:g}C{x:g} {y + bend:g} {u:g} {v - bend:g} {u:g} {v:g}"{dash}/>')
    boxes = []
    for lesson, (x, y) in corner.items():
        words = wrap(names[lesson])
        first = y + HIGH / 2 + 5 - 9 * (len(words) - 1)
        text = "".join(
            f'<tspan x="{x + WIDE / 2:g}" y="{first + 18 * n:g}">{escape(line)}</tspan>' for n, line in enumerate(words)
        )
        boxes.append(
            f'<a href="{addresses[lesson]}"><rect x="{x:g}" y="{y:g}" width="{WIDE}" height="{HIGH}" rx="8"/>'
            f"<text>{text}</text></a>"
        )
    return (
        f'<div class="ms-map" tabindex="0" role="region" aria-label="map of the course"><svg viewBox="0 0 {width} '
        f'{height:g}" width="{width}" height="{height:g}"><title>The lessons, and which of them each one needs</title>'
        f'<g class="ms-arrows" fill="none">{"".join(lines)}</g>{"".join(boxes)}</svg></div>'
    )


def wrap(name: str, width: int = 19) -> list[str]:
    lines = [""]
    for word in name.split():
        lines += [""] if len(lines[-1]) + len(word) + 1 > width and lines[-1] else []
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
