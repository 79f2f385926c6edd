"""The course hangs together: no dead link, no function, paper or question that is not there, no answer uncovered.

Links are read in the sources and resolved from where the built notebook lies, since that is where a learner clicks.
"""

import ast
import re
from functools import cache
from pathlib import Path

import jupytext
import pytest

from minispec_course import interview
from minispec_course.build.spoilers import SPOILER, is_spoiler

ROOT = Path(__file__).resolve().parents[2]
LESSONS = sorted((ROOT / "minispec_course/lessons").glob("[!_]*.py"))
EXERCISES = sorted((ROOT / "minispec_course/exercises").glob("set_*/page.py"))
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]
LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
QUIET = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign, ast.AugAssign)


# ---------------------------------------------------------------- reading


@cache
def prose(file: Path) -> str:
    """What a page says: the Markdown cells of a source, or a Markdown file."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        return text
    cells = jupytext.reads(text, fmt="py:percent").cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def links(text: str) -> list[tuple[str, str]]:
    """(words, address) of every link, outside of code blocks and formulas."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\$\$.*?\$\$|(?<![\\\w])\$[^$\n]+\$", "", text, flags=re.DOTALL)
    return LINK.findall(text)


def home(file: Path) -> Path:
    """The folder that a page's links start from."""
    if file.name == "page.py":
        return ROOT / "exercises"
    return ROOT / "notebooks" if file.parent.name == "lessons" else file.parent


def anchors(text: str) -> set[str]:
    """The names that GitHub and JupyterLab give the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(file: Path, root: Path = ROOT) -> list[str]:
    """Links of a page that lead nowhere, or out of the repository."""
    dead = []
    for words, address in links(prose(file)):
        if re.match(r"https?://|mailto:", address):
            continue
        path, _, anchor = address.partition("#")
        there = home(file) / path if path else file
        known = there.exists() and there.resolve().is_relative_to(root)
        if known and anchor and there.suffix in (".md", ".py"):
            known = anchor in anchors(prose(there))
        if not known:
            dead.append(f"[{words}]({address})")
    return dead


@cache
def defined(file: Path) -> set[str]:
    """Every function, class, method and constant of a module, bare and with its class; and the module's own name."""
    names = {file.stem}
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        for target in node.targets if isinstance(node, ast.Assign) else []:
            names |= {name.id for name in ast.walk(target) if isinstance(name, ast.Name)}
        for inner in node.body if isinstance(node, ast.ClassDef) else []:
            if isinstance(inner, ast.FunctionDef):
                names |= {inner.name, f"{node.name}.{inner.name}"}
            elif isinstance(inner, ast.AnnAssign):
                names |= {inner.target.id, f"{node.name}.{inner.target.id}"}
    return names


def unknown_names(file: Path) -> list[str]:
    """Links like [`name`](../minispec/file.py) whose file defines no such thing. `module.name` and `Class.name` do."""
    unknown = []
    for words, address in links(prose(file)):
        named, there = re.fullmatch(r"`([\w.]+)(?:\(.*\))?`", words), home(file) / address
        if named and there.suffix == ".py" and there.exists():
            parts = named[1].removeprefix("minispec.").split(".")
            endings = {".".join(parts[i:]) for i in range(len(parts))}
            owner = parts[-2] if len(parts) > 1 and parts[-2][0].isupper() else None  # a class: then it must be its own
            wanted = {f"{owner}.{parts[-1]}"} if owner else endings
            if not wanted & defined(there):
                unknown.append(f"{named[1]} in {address}")
    return unknown


# ---------------------------------------------------------------- links


@pytest.mark.slow
def test_every_link_leads_somewhere():
    for file in [*LESSONS, *EXERCISES, *PAGES]:
        assert dead_links(file) == [], file


@pytest.mark.slow
def test_every_function_that_a_link_names_is_there():
    for file in [*LESSONS, *EXERCISES, *PAGES]:
        assert unknown_names(file) == [], file


# ---------------------------------------------------------------- papers, predictions, questions


def test_every_paper_that_the_prose_cites_is_in_the_references():
    known = prose(ROOT / "docs/references.md")
    for file in [*LESSONS, *EXERCISES, *PAGES]:
        cited = set(re.findall(r"arXiv:(\d{4}\.\d{5})", prose(file)))
        assert {paper for paper in cited if f"abs/{paper}" not in known} == set(), file


def answers(cells: list) -> list[tuple[str, str]]:
    """(name of a prediction, cell) for every cell that runs or reveals what was to be predicted.

    These are the code cells after `name = viz.predict(…)`, up to `name.reveal(…)`, which show anything at all.
    """
    found, waiting = [], {}
    for cell in cells:
        if cell.cell_type != "code":
            continue
        asked = re.findall(r"^(\w+) = viz\.predict\(", cell.source, flags=re.MULTILINE)
        shows = not all(isinstance(statement, QUIET) for statement in ast.parse(cell.source).body)
        for name in list(waiting) if shows and not asked else []:
            waiting[name].append(cell)
        for name in re.findall(r"(\w+)\.reveal\(", cell.source):
            found += [(name, one) for one in waiting.pop(name, [cell])]
        waiting |= {name: [] for name in asked}
    return found


@pytest.mark.slow
def test_cells_that_answer_a_prediction_are_covered():
    for file in LESSONS:
        cells = jupytext.reads(file.read_text(encoding="utf-8"), fmt="py:percent").cells
        assert answers(cells), file
        for name, cell in answers(cells):
            assert is_spoiler(cell), f'{file}, {name}: tags=["{SPOILER}"] is missing at\n{cell.source}'


def test_every_question_a_lesson_names_is_in_the_bank():
    for file in LESSONS:
        quoted = set(re.findall(r"`([a-z0-9]+(?:-[a-z0-9]+)+)`", prose(file).rpartition("\n## Next\n")[2]))
        assert quoted - interview.load().keys() == set(), file
