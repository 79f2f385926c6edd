"""Stored outputs are those of a CPU, and nbval passes beside a GPU too: what it compares must not depend on the device.

Followed statement by statement: names that come from `ms.device()`, `course_pair` or a measurement, and names computed
from those, may be used only in cells whose output is not compared.
"""

import ast
from pathlib import Path

import jupytext

LESSONS = sorted((Path(__file__).resolve().parents[2] / "minispec_course/lessons").glob("[!_]*.py"))
SOURCES = {"course_pair", "device", "measure_here", "where"}  # `ms.device` is an attribute of that name
IGNORED = "nbval-ignore-output"


def used(node: ast.AST) -> set[str]:
    """Names and attributes that a statement takes from before it; `device="cpu"` is a keyword and neither."""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    loops = [n.target for n in ast.walk(node) if isinstance(n, (ast.For, ast.comprehension))]
    names -= set().union(*map(assigned, loops))  # a loop's own variables come from what it runs over
    return names | {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute) and n.attr in SOURCES - {"where"}}


def assigned(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def compared_cells_that_depend_on_the_device(source: str) -> list[str]:
    tainted, found = set(SOURCES), []
    for cell in jupytext.reads(source, fmt="py:percent").cells:
        if cell.cell_type != "code":
            continue
        checked = IGNORED not in cell.metadata.get("tags", [])
        for statement in ast.parse(cell.source).body:
            if isinstance(statement, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)):
                continue  # nothing runs yet
            depends = bool(used(statement) & tainted)
            if depends and checked:
                found.append(ast.unparse(statement))
            tainted = tainted | assigned(statement) if depends else tainted - assigned(statement) | SOURCES
    return found


def test_nbval_compares_nothing_that_depends_on_the_device():
    for file in LESSONS:
        found = compared_cells_that_depend_on_the_device(file.read_text(encoding="utf-8"))
        assert not found, f'{file}: tag these cells "{IGNORED}", or compute them with device="cpu"'
