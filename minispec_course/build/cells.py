"""The cells of an exercise: from one source, the notebook to fill in and the notebook of solutions.

In the page.py of a set three cells belong to an exercise, each marked exercise="06.residual" in its header:

    # %% [markdown] exercise="06.residual"      the text; a line with level, minutes and points is put under its heading
    # %% exercise="06.residual"                 the answer, with a region from ### BEGIN SOLUTION to ### END SOLUTION
    # %% exercise="06.residual"                 the check: check("06.residual", residual)

The learner gets `raise NotImplementedError` instead of the region, under what the BEGIN line says after a colon. A cell
that offers hints is put between answer and check. The marks become nbgrader's metadata (schema 3) and our own.

In a lesson, a cell with such a region defines a function under @yours("05.loop"). The learner gets `...` instead of the
region, and below it a folded cell with the hints of that exercise and the region as our answer. The set has only the
text of such an exercise: its notebook leaves it out, and classes and exams get its cells made from the lesson's.

Where the task is to repair a program, the region holds both: the repaired lines, then a line ### AS REPORTED, then the
broken ones. The learner gets the broken ones below the `raise`, which is deleted when the work begins.
"""

import re
from itertools import pairwise
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode

from ..exercises.facts import LEVELS, Facts, find

REGION = re.compile(
    r"^(?P<indent>[ ]*)### BEGIN SOLUTION(?::[ ]*(?P<words>.*))?\n(?P<lines>(?:.*\n)*?)[ ]*### END SOLUTION$",
    re.MULTILINE,
)
MARKER = re.compile(r"### (BEGIN|END) SOLUTION|### AS REPORTED")
REPORTED = re.compile(r"^[ ]*### AS REPORTED\n", re.MULTILINE)


YOURS = re.compile(r'^@yours\("([^"]+)"\)\n', re.MULTILINE)


def in_lessons(folder: Path) -> dict[str, tuple[str, str, str]]:
    """Exercise → the lesson that asks for it, the source of its cell there, and the section above that cell."""
    found = {}
    for file in sorted(folder.glob("[!_]*.py")):
        cells = re.split(r"^# %%.*\n", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
        for above, cell in pairwise(cells):
            if (asked := YOURS.search(cell)) and REGION.search(cell):
                section = re.sub(r"^# ?", "", above, flags=re.MULTILINE).strip()
                found[asked[1]] = (
                    file.stem,
                    cell.strip(),
                    re.split(r"^#+ .*\n", section, flags=re.MULTILINE)[-1].strip(),
                )
    return found


def read_set(file: Path, whole: bool = True) -> tuple[NotebookNode, list[str]]:
    """The source of a set, and which of its exercises lessons ask for. A whole one has these too, with an answer and a
    check made from the lesson's cell, and its words where the set has none; else a line says where they are."""
    notebook = jupytext.reads(file.read_text(encoding="utf-8"), fmt="py:percent")
    asked, cells, known = in_lessons(file.parents[2] / "lessons"), [], {}
    marks = {cell.metadata.get("exercise") for cell in notebook.cells}
    own = [id for id in asked if file.parent.name.startswith(f"set_{id.split('.')[0]}_")]
    for id in (id for id in own if id not in marks):
        text = f"## {find(id).title}\n\n{asked[id][2]}"
        notebook.cells.append(nbformat.v4.new_markdown_cell(text, metadata={"exercise": id}))
    for cell in notebook.cells:
        if (id := cell.metadata.get("exercise")) not in asked:
            cells.append(cell)
        elif cell.cell_type == "markdown":
            before, _, source = YOURS.split(asked[id][1])
            name = re.search(r"^def (\w+)", source, re.MULTILINE)[1]
            uses = [other for other in known if re.search(rf"(?<![.\w]){other}\(", source)]
            given = "\n".join([before, *(f'{other} = reference("{known[other]}")  # ours' for other in uses)]).strip()
            given = f"from minispec_course.check import mine, reference\n\n{given}" if given else ""
            codes = {given: None, source: id, f'check("{id}", {name})': id} if whole else {}
            cells += [cell] * whole
            cells += [nbformat.v4.new_code_cell(text, metadata={"exercise": of}) for text, of in codes.items() if text]
            known[name] = id
    if known and not whole:
        if not any("exercise" in cell.metadata for cell in cells):  # then a signpost is all that is left
            cells = [nbformat.v4.new_markdown_cell(cells[0].source.partition("\n")[0])]
        cells.insert(1, nbformat.v4.new_markdown_cell(elsewhere({id: asked[id][0] for id in known.values()})))
    notebook.cells = cells
    return notebook, list(known.values())


def elsewhere(lessons: dict[str, str]) -> str:
    """Which exercises of a set are written in lessons, and how to meet them again."""
    lines = [
        f"> `{id}` · {find(id).title} · written in [lesson {lesson.split('_')[0]}](../notebooks/{lesson}.ipynb)"
        for id, lesson in lessons.items()
    ]
    again = f"`minispec exam {sum(find(id).minutes for id in lessons)} --topics {' '.join(lessons)}`"
    return "\n>\n".join([*lines, f"> Once more on an empty page, with a clock: {again}."])


def own_metadata(cell: NotebookNode) -> dict:
    """What minispec noted about a cell or a notebook; of a notebook that somebody edited, only what makes sense."""
    own = cell.metadata.get("minispec")
    return own if isinstance(own, dict) else {}


def dress(notebook: NotebookNode, solved: bool) -> None:
    """Turn the marked cells of a source into those of an exercise, or of its solution."""
    cells = []
    for cell in notebook.cells:
        cell.metadata.pop("lines_to_next_cell", None)  # jupytext's note to itself, for a way back that there is not
        id = cell.metadata.pop("exercise", None)
        if id is None:
            _refuse_leftovers(cell)
            cells.append(cell)
            continue
        exercise = find(id)
        if cell.cell_type == "markdown":
            cell.source = with_facts(cell.source, exercise)
            cells.append(cell)
        elif MARKER.search(cell.source):
            cell.source = solution(cell.source) if solved else stub(cell.source, id)
            _refuse_leftovers(cell)
            cell.metadata = answer_metadata(exercise)
            cells += [cell, hint_cell(exercise)]
        else:
            _refuse_leftovers(cell)
            if f'check("{id}"' not in cell.source:
                raise ValueError(f'a cell of {id} holds neither a solution region nor check("{id}", …):\n{cell.source}')
            own = {"exercise": id, "role": "check", **facts(exercise)}
            marks = {"nbgrader": nbgrader(exercise, "check"), "minispec": own}
            cell.metadata = nbformat.from_dict({**marks, "editable": False, "deletable": False})
            cells.append(cell)
    notebook.cells = cells


def fold(notebook: NotebookNode) -> None:
    """Make the functions of a lesson the learner's to write, each with a folded cell for those who are stuck."""
    cells = []
    for cell in notebook.cells:
        cells.append(cell)
        if (found := YOURS.search(cell.source)) and REGION.search(cell.source):
            exercise = find(found[1])
            cells.append(nbformat.v4.new_markdown_cell(stuck(exercise, solution(cell.source))))
            cell.metadata = answer_metadata(exercise)  # a class may hand in the lesson
            cell.source = REGION.sub(r"\g<indent># \g<words>\n\g<indent>...", cell.source)
        _refuse_leftovers(cell)
    notebook.cells = cells


def stuck(exercise: Facts, answer: str) -> str:
    folded = [(f"Hint {i}", hint) for i, hint in enumerate(exercise.hints, start=1)]
    folded.append(("Our answer", f"```python\n{answer}\n```"))
    inside = (f"<details><summary>{title}</summary>\n\n{text}\n\n</details>" for title, text in folded)
    return "\n\n".join(["<details><summary>Stuck? Three hints, and our answer</summary>", *inside, "</details>"])


def stub(source: str, id: str) -> str:
    """An answer cell as the learner gets it."""

    def replaced(region: re.Match) -> str:
        indent, words = region["indent"], region["words"] or "your code here"
        refusal = f'{indent}# {words}\n{indent}raise NotImplementedError("{id}")'
        _, broken = both_programs(region)
        return f"{refusal}\n{broken.rstrip()}" if broken else refusal

    return REGION.sub(replaced, source)


def solution(source: str) -> str:
    """An answer cell with the answer, without the markers."""
    return REGION.sub(lambda region: both_programs(region)[0].rstrip("\n"), source)


def both_programs(region: re.Match) -> tuple[str, str]:
    """The lines of an answer, and those of the broken program that the learner gets instead: usually none."""
    answer, *broken = REPORTED.split(region["lines"], maxsplit=1)
    return answer, "".join(broken)


def with_facts(source: str, exercise: Facts) -> str:
    """The text of an exercise, with a line of facts under its heading."""
    heading, _, rest = source.partition("\n")
    points = f"{exercise.points} point{'s' * (exercise.points > 1)}"
    return f"{heading}\n\n*{LEVELS[exercise.level]} · {exercise.minutes} minutes · {points}*\n{rest}".rstrip()


def hint_cell(exercise: Facts) -> NotebookNode:
    """Not compared by nbval: what a hint says depends on how many were seen."""
    words = "# Stuck? Run this cell: a button shows one hint at a time."
    cell = nbformat.v4.new_code_cell(f'{words}\nhint("{exercise.id}")')
    own = {"exercise": exercise.id, "role": "hint"}
    cell.metadata = nbformat.from_dict({"tags": ["nbval-ignore-output"], "minispec": own})
    return cell


def facts(exercise: Facts) -> dict:
    shown = {"title": exercise.title, "level": exercise.level, "minutes": exercise.minutes}
    return {**shown, "hints": list(exercise.hints), "links": {"code": exercise.code}}


def answer_metadata(exercise: Facts) -> NotebookNode:
    own = {"exercise": exercise.id, "role": "answer"}
    return nbformat.from_dict({"nbgrader": nbgrader(exercise, "answer"), "minispec": own})


def nbgrader(exercise: Facts, role: str) -> dict:
    """nbgrader's own keys, schema 3, and no others: it refuses those it does not know."""
    is_check = role == "check"
    flags = {"grade": is_check, "solution": not is_check, "locked": is_check, "task": False}
    name = {"grade_id": cell_id(exercise.id, role), "schema_version": 3}
    return {**name, **flags, **({"points": exercise.points} if is_check else {})}


def cell_id(id: str, role: str) -> str:
    """The same in exercises and solutions, whatever the cell says."""
    return f"{id.replace('.', '-')}-{role}"


def _refuse_leftovers(cell: NotebookNode) -> None:
    """A region without its end, or in a cell that belongs to no exercise, would be published."""
    if MARKER.search(cell.source):
        raise ValueError(f"### BEGIN SOLUTION and END SOLUTION do not pair up in a cell of an exercise:\n{cell.source}")
