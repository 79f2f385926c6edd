"""The widgets of a lesson, without running the lesson: only what a widget's cell needs is executed, in this process.

A cell that ends in a call such as `viz.roofline(here)` may be a widget. What it needs are the statements before it that
define the names it uses, and the names these use, and so on. A lesson's measurements for its tables are not among them.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path

import nbformat

from ..build.builder import ROOT
from ..stored import PLOTLY
from ..viz.panel import Panel
from .reference import HIDDEN
from .sources import files


def widget_cells(lesson: str) -> dict[str, list[ast.stmt]]:
    """Id of a cell that may end in a widget → the statements to run, of which the last is that expression."""
    notebook = nbformat.read(ROOT / f"notebooks/{lesson}.ipynb", as_version=4)
    before: list[ast.stmt] = []
    found = {}
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        body = ast.parse(cell.source).body
        if body and shows_widget(body[-1]) and not is_stored_whole(cell):
            found[cell.id] = slice_for(body[-1], before + body[:-1])
        before += body
    return found


def shows_widget(node: ast.stmt) -> bool:
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and ast.unparse(call.func).startswith("viz.")


def is_stored_whole(cell: nbformat.NotebookNode) -> bool:
    """Whether the notebook keeps all there is: a diagram, or a figure's data. Nothing has to run for these."""
    kept = {kind for output in cell.outputs for kind in output.get("data", {})}
    return bool(kept & {PLOTLY, "image/svg+xml"})


def slice_for(last: ast.stmt, before: list[ast.stmt]) -> list[ast.stmt]:
    """The statements among `before` that `last` depends on, in order, then `last`."""
    needed, kept = used(last), [last]
    for node in reversed(before):
        if made(node) & needed:
            kept.insert(0, node)
            needed |= used(node)
    return kept


def used(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def made(node: ast.stmt) -> set[str]:
    """The names that a statement defines, or changes as in `table[key] = …` and `runs.append(…)`."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    for one in ast.walk(node):
        if isinstance(one, ast.Subscript | ast.Attribute) and isinstance(one.ctx, ast.Store):
            names |= {inner.id for inner in ast.walk(one.value) if isinstance(inner, ast.Name)}
    call = node.value if isinstance(node, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name):
        names |= {call.func.value.id} if call.func.attr in ("append", "extend", "update", "add") else set()
    return names


def code_of(statements: list[ast.stmt]) -> str:
    return "\n".join(map(ast.unparse, statements))


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    here = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(here)


def run(statements: list[ast.stmt], known: dict | None = None) -> object:
    """The value of the last expression. `known`: names and values, kept from one cell of a lesson to the next."""
    names = {"__name__": "__lesson__"} if known is None else known
    done = names.setdefault("__done__", set())
    with inside(ROOT / "notebooks"), contextlib.redirect_stdout(io.StringIO()):
        for node in statements[:-1]:
            if (text := ast.unparse(node)) not in done:  # the slices of a lesson's cells overlap
                exec(compile(ast.Module([node], []), "<lesson>", "exec"), names)
                done.add(text)
        return eval(compile(ast.Expression(statements[-1].value), "<lesson>", "eval"), names)


def name_of(statements: list[ast.stmt]) -> str:
    """The function of viz that makes the widget."""
    return ast.unparse(statements[-1].value.func).removeprefix("viz.")


def panel(lesson: str, cell: str, known: dict | None = None) -> Panel | None:
    """The panel that a cell shows, if what it shows is one. `known`: as in `run`."""
    value = run(widget_cells(lesson)[cell], known)
    return value if isinstance(value, Panel) else None


def fingerprint(lesson: str, *more: object) -> str:
    """Changes when a widget's code or any file of the package changes, but for the site's own."""
    digest = hashlib.sha256(json.dumps(more).encode())
    for file in files():
        if not file.startswith(HIDDEN):
            digest.update((ROOT / file).read_bytes())
    for statements in widget_cells(lesson).values():
        digest.update(code_of(statements).encode())
    return digest.hexdigest()[:16]
