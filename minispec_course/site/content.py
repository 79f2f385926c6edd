"""Pages that are made and not written: the question bank, and the glossary's words wherever a page uses them."""

import re
from functools import cache
from itertools import groupby

from .. import interview
from ..build.builder import ROOT
from ..interview.question import LEVELS, Question
from .sources import find, lessons, link

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
    place = find(question.function)
    code = f"[`{question.function}`]({link(place)})" if place else f"`{question.function}`"
    answer += [f"In the code: {code}. The lesson: {lesson(question.lesson)}."]
    return "\n".join(
        [*parts, '<details class="ms-answer"><summary>the answer</summary>', "", *answer, "", "</details>", ""]
    )


def lesson(number: str) -> str:
    name = next(name for name in lessons() if name.split("_")[0] == number)
    return f"[{name.replace('_', ' ')}](../notebooks/{name}.ipynb)"


def bullets(points: tuple[str, ...]) -> list[str]:
    return [f"- {plain(point)}" for point in points]


def plain(text: str) -> str:
    """Text in which no character is Markdown's, but for `code`: formulas with *, _ and | stay as they are."""
    parts = " ".join(text.split()).split("`")
    return "`".join(part if n % 2 else re.sub(r"([\\*_\[\]<>$|{}#~])", r"\\\1", part) for n, part in enumerate(parts))


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
