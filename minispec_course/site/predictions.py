"""Predictions on a page: a field for the guess; the answer below opens once the guess is committed, or skipped."""

from __future__ import annotations

import ast
import re
from html import escape

import nbformat
from nbformat import NotebookNode


def place(notebook: NotebookNode, lesson: str) -> None:
    """Give every cell that asks a form, and mark the cells that answer it."""
    asked: dict[str, str] = {}  # variable → the form's id
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        for name, question, unit in questions(cell.source):
            asked[name] = f"{lesson.split('_')[0]}-{name}"
            cell.outputs = [*cell.outputs, form(asked[name], question, unit)]
        for name in re.findall(r"(\w+)\.reveal\(", cell.source):
            if name in asked:
                cell.outputs = [*cell.outputs, mark(asked[name])]


def questions(source: str) -> list[tuple[str, str, str]]:
    """(variable, question, unit) for every `name = viz.predict(…)`; a question that is computed is shown as typed."""
    found = []
    known: dict[str, str] = {}
    for node in ast.parse(source).body:
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        name, value = node.targets[0].id, node.value
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            known[name] = value.value
        if isinstance(value, ast.Call) and ast.unparse(value.func) == "viz.predict":
            texts = [text_of(argument, known) for argument in value.args]
            found.append((name, texts[0], texts[1] if len(texts) > 1 else ""))
    return found


def text_of(node: ast.expr, known: dict[str, str]) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Name):
        return known.get(node.id, node.id)
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "the model" for part in node.values]
        return re.sub(r"\s+", " ", "".join(map(str, parts)))
    return ast.unparse(node)


def form(key: str, question: str, unit: str) -> NotebookNode:
    """The form works with the script; without it the answers below can be opened as well."""
    html = (
        f'<form class="ms-predict" data-key="{escape(key)}" data-unit="{escape(unit)}"><p id="q-{escape(key)}">'
        f"<strong>{escape(question)}</strong></p><div><label>my guess <input type='text' inputmode='decimal' size='9' "
        f'autocomplete="off" aria-describedby="q-{escape(key)}"></label> <span>{escape(unit)}</span> '
        '<button type="submit">commit</button> <button type="button" class="ms-skip">skip</button></div>'
        '<p role="status" aria-live="polite"></p></form>'
    )
    return nbformat.v4.new_output("display_data", {"text/html": html})


def mark(key: str) -> NotebookNode:
    html = f'<p class="ms-verdict" data-key="{escape(key)}" role="status" aria-live="polite"></p>'
    return nbformat.v4.new_output("display_data", {"text/html": html})
