"""The cells of sets as a class gets them, with what lessons ask for, and the functions that answers in them define."""

from __future__ import annotations  # cells that run here inherit it: a stub may name what its set does not import

import ast
from functools import cache
from pathlib import Path

import nbformat

from minispec_course.build import builder
from minispec_course.exercises.exercise import find

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted((ROOT / "minispec_course/exercises").glob("set_*/page.py"))
SOURCES = {builder.name_of(page).split("_")[0]: page for page in PAGES}


def notebook(folder: str, number: str) -> nbformat.NotebookNode:
    [job] = [job for job in builder.jobs([builder.name_of(SOURCES[number])]) if f"{job.kind}s" == folder]
    return builder.compose(job, whole=True)


def cells_of(nb: nbformat.NotebookNode, role: str) -> dict[str, nbformat.NotebookNode]:
    """id of the exercise → its cell in this role."""
    own = [cell.metadata.get("minispec", {}) for cell in nb.cells]
    return {o["exercise"]: cell for o, cell in zip(own, nb.cells, strict=True) if o.get("role") == role}


@cache
def answers(folder: str, number: str) -> dict[str, str]:
    """id → the answer cell's code: stubs in exercises/, our answers in solutions/."""
    return {id: cell.source for id, cell in cells_of(notebook(folder, number), "answer").items()}


@cache
def surroundings(number: str) -> dict:
    """What the plain code cells of a set define: imports, and our versions of earlier answers."""
    names: dict = {}
    for cell in notebook("exercises", number).cells:
        if cell.cell_type == "code" and "minispec" not in cell.metadata and not cell.source.startswith("draw("):
            exec(cell.source, names)
    return names


def function_in(source: str, id: str):
    """The function that an answer defines, of the name that the exercise gives it."""
    number = id.split(".")[0]
    names = dict(surroundings(number))
    if find(id).joins:  # it may call the answers before it, as in a notebook that is solved so far
        for other, solution in answers("solutions", number).items():
            if other != id:
                exec(solution, names)
    stub, given = (ast.parse(text).body for text in (answers("exercises", number)[id], source))
    name, *other = ([node.name for node in body if isinstance(node, ast.FunctionDef)][-1:] for body in (stub, given))
    names.pop(*name, None)
    exec(source, names)
    return names.get(*name) or names[other[0][0]]  # an answer that was given under an older name
