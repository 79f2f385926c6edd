"""A set of exercises as a page: all of its texts, hints and answers folded, and cases to work out by hand.

Where an exercise asks for a number, a few numbers or a word, and its cases are made of such, the page has a field. It
asks for one of the exercise's own cases, knows from the reference what is right, and from the known wrong solutions
which mistake a wrong number comes from.
"""

import copy
import json
import math
import re
from html import escape

import nbformat
from nbformat import NotebookNode

from ..build import cells
from ..build.builder import PYTHON, ROOT
from ..exercises.exercise import find
from ..exercises.fresh import trials

CASES = 12  # of an exercise, at most
LONGEST = 110  # characters of a case
LAB = re.compile(r"^(from minispec_course\.check import|.*= reference\().*\n?", re.MULTILINE)


def read(name: str) -> NotebookNode:
    """A set with what lessons ask for. Nothing on a page checks a function, so the cells that would are left out."""
    notebook, _ = cells.read_set(ROOT / f"minispec_course/exercises/set_{name}/page.py")
    shown = []
    for cell in notebook.cells:
        id, source = cell.metadata.pop("exercise", None), cell.source
        if cell.cell_type == "markdown":
            cell.source = cells.with_facts(source, find(id)) if id else source
        elif cells.MARKER.search(source):
            cell.source = cells.stub(source, id)
            cell.outputs = (
                [nbformat.v4.new_output("display_data", {"text/html": field})] if (field := by_hand(id)) else []
            )
        elif re.search(r"\b(check|progress_table)\(", source) or not (source := LAB.sub("", source).strip()):
            continue
        else:
            cell.source = source
        shown.append(cell)
        if cells.REGION.search(source):
            shown.append(nbformat.v4.new_markdown_cell(cells.stuck(find(id), cells.solution(source))))
    notebook.cells, notebook.metadata = shown, nbformat.from_dict(PYTHON)
    for number, cell in enumerate(shown):
        cell.id = f"cell-{number}"  # the same in every build
    return notebook


def by_hand(id: str) -> str:
    """A field for the answer to one case after the other; "" where they are not for pencil and paper."""
    exercise, asked = find(id), []
    mistakes = [*exercise.mutants.values()]
    for case in (trial.case for trial in trials(exercise)):
        ask = ", ".join(f"{name} = {written(value)}" for name, value in case.items() if plain(value))
        right = answer(exercise.reference, case) if ask.count(" = ") == len(case) and len(ask) <= LONGEST else None
        if right is None or any(one["ask"] == ask for one in asked) or len(asked) == CASES:
            continue
        wrong = [(answer(mistake.function, case), i) for i, mistake in enumerate(mistakes)]
        asked.append({"ask": ask, "right": right, "wrong": [one for one in wrong if one[0] not in (None, right)]})
    if len(asked) < 3:
        return ""
    facts = {"cases": asked, "mistakes": [mistake.diagnosis for mistake in mistakes]}
    text = json.dumps(facts, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
    words = "number" if len(asked[0]["right"]) == 1 else "numbers, with commas and blanks between them"
    return (
        f'<form class="ms-hand" aria-label="By hand: {escape(exercise.title)}"><script type="application/json">{text}'
        '</script><p><strong>By hand.</strong> <span class="ms-ask"></span></p><div><label>returns <input type="text" '
        f'size="14" autocomplete="off" spellcheck="false" placeholder="{words}"></label> <button type="submit">check'
        '</button> <button type="button">another case</button></div><p role="status" aria-live="polite"></p></form>'
    )


def plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(isinstance(one, int | float | str) and plain(one) for one in value)
    return isinstance(value, int | str) or (isinstance(value, float) and math.isfinite(value))


def written(value: object) -> str:
    return f"{value:_}" if type(value) is int else repr(value)


def answer(function, case: dict) -> list | None:
    """What a function makes of a case, as a list of what one would type; None if one would not."""
    try:
        found = function(*copy.deepcopy([*case.values()]))
    except Exception:  # a wrong solution may stumble
        return None
    found = [*found] if isinstance(found, list | tuple) else [found]
    typed = all(plain(one) and not isinstance(one, list | tuple | bool) for one in found) and 0 < len(found) <= 8
    return [float(f"{one:.6g}") if isinstance(one, float) else one for one in found] if typed else None
