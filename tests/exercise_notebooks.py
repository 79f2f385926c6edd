"""Sets as a class gets them, with what lessons ask for: their cells, their answers, and the functions in these."""

from __future__ import annotations  # cells that run here inherit it: a stub may name what its set does not import

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from nbformat import NotebookNode

from minispec_course.build import builder
from minispec_course.exercises.exercise import find

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "minispec_course/exercises").glob("set_*/page.py"))
SOURCES = {builder.name_of(page).split("_")[0]: page for page in PAGES}


def composed(number: str, kind: str = "exercise") -> NotebookNode:
    """A set as a class gets it, its "solution", or a "lesson"."""
    [job] = [job for job in builder.jobs([number]) if job.kind == kind]
    return builder.compose(job, whole=True)


def cells_of(nb: dict, role: str) -> dict[str, NotebookNode]:
    """id of the exercise → its cell in this role."""
    own = [cell["metadata"].get("minispec", {}) for cell in nb["cells"]]
    return {o["exercise"]: cell for o, cell in zip(own, nb["cells"], strict=True) if o.get("role") == role}


@cache
def answers(number: str, kind: str = "solution") -> dict[str, str]:
    """id → the answer cell's code: our answers, or the stubs of a set of the kind "exercise"."""
    return {id: cell.source for id, cell in cells_of(composed(number, kind), "answer").items()}


def filled(number: str, sources: Mapping[str, str]) -> NotebookNode:
    """An exercise notebook with these answers in it."""
    nb = composed(number)
    for id, cell in cells_of(nb, "answer").items():
        cell.source = sources.get(id, cell.source)
    return nb


@cache
def surroundings(number: str) -> dict:
    """What the plain code cells of a set define: imports, and our versions of earlier answers."""
    names: dict = {}
    for cell in composed(number).cells:
        if cell.cell_type == "code" and "minispec" not in cell.metadata and not cell.source.startswith("draw("):
            exec(cell.source, names)
    return names


def function_in(source: str, id: str):
    """The function that an answer defines, of the name that the exercise gives it."""
    number = id.split(".")[0]
    names = dict(surroundings(number))
    if find(id).joins:  # it may call the answers before it, as in a notebook that is solved so far
        for other, solution in answers(number).items():
            if other != id:
                exec(solution, names)
    stub, given = (ast.parse(text).body for text in (answers(number, "exercise")[id], source))
    name, *other = ([node.name for node in body if isinstance(node, ast.FunctionDef)][-1:] for body in (stub, given))
    names.pop(*name, None)
    exec(source, names)
    return names.get(*name) or names[other[0][0]]  # an answer that was given under an older name
