"""Hand a set out. (To take it in again: collect.py.)

    minispec release 03 05 --out handout/                    one copy of each, for everybody
    minispec release 02 07 --out handout/ --seed 7           with a twist that the published solutions do not know
    minispec release 02 07 --out handout/ --seed 7 --students names.txt      a twist for each, in a folder for each
    minispec release 06 --out course/ --nbgrader             sources for nbgrader's own pipeline

What a copy withholds: the solutions, the seed, and the cases that the grader draws from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode

from minispec.load.write import write_whole

from ..build import builder
from . import variants

STRICT = '### BEGIN HIDDEN TESTS\nimport os\n\nos.environ["MINISPEC_STRICT"] = "1"\n### END HIDDEN TESTS\n'
LATER = "# This one is checked after you have handed it in."
NO_NAME = "/\\:\0"


# ---- out ------------------------------------------------------------------------------------------------------------


def release(
    names: Sequence[str], to: Path, seed: int | None = None, students: Sequence[str] | None = None, checks: bool = True
) -> list[Path]:
    """Write student copies of these sets; with students, a folder for each. Returns the notebooks."""
    if students is not None and seed is None:
        raise ValueError("students are given but no seed: the copies would all be the same; give --seed too")
    jobs = exercise_jobs(names)
    written = []
    for student in students or [None]:
        if student is not None and (not student.strip() or student.startswith(".") or set(student) & set(NO_NAME)):
            raise ValueError(f"students={student!r} cannot be the name of a folder")
        for job in jobs:
            place = (to / student if student else to) / f"{job.name}.ipynb"
            if place.exists():
                raise ValueError(f"{place} exists already: give another folder, or move it away")
            notebook = builder.compose(job)
            if seed is not None:
                twist(notebook, seed, student)
            if not checks:
                withhold(notebook)
            save(notebook, place)
            written.append(place)
    return written


def read_students(file: Path) -> list[str]:
    """The names of a class, one per line; empty lines do not count."""
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"students={str(file)!r} is not UTF-8 text: save it as UTF-8, a name per line") from None
    if not (names := [line.strip() for line in lines if line.strip()]):
        raise ValueError(f"students={str(file)!r} names no student: give a file with a name per line")
    return names


def exercise_jobs(names: Sequence[str]) -> list[builder.Job]:
    jobs = [job for job in builder.jobs(names) if job.kind == "exercise"]
    if not names or {job.name for job in jobs} != {job.name for job in builder.jobs(names)}:
        raise ValueError(f"names={' '.join(names) or '(none)'}: give sets of exercises, such as 03 05")
    return jobs


def twist(notebook: NotebookNode, seed: int, student: str | None) -> None:
    """Turn the exercises that have variants into those of this seed."""
    texts = {cell.id: cell for cell in notebook.cells}
    before: NotebookNode | None = None
    for cell in texts.values():
        own = cell.metadata.get("minispec", {})
        if cell.cell_type == "markdown":
            before = cell
        elif own.get("exercise") in variants.VARIANTS:
            values = variants.parameters(own["exercise"], seed, student)
            if own["role"] == "answer":  # the text is the markdown cell in front of it
                before.source += f"\n\n{variants.words(own['exercise'], values)}"
            elif own["role"] == "check":
                given = ", ".join(f"{name}={value!r}" for name, value in values.items())
                cell.source = cell.source.rstrip().removesuffix(")") + f", {given})"


def withhold(notebook: NotebookNode) -> None:
    """Take the checks and hints out: an exam on paper, so to speak."""
    for cell in notebook.cells:
        own = cell.metadata.get("minispec", {})
        if own.get("role") == "check":
            cell.source = LATER
            cell.metadata["minispec"] = {"exercise": own["exercise"], "role": "check"}
    notebook.cells = [c for c in notebook.cells if c.metadata.get("minispec", {}).get("role") != "hint"]
    notebook.cells = [c for c in notebook.cells if c.cell_type != "code" or not c.source.startswith("draw(")]


def nbgrader_sources(names: Sequence[str], to: Path) -> list[Path]:
    """Notebooks for nbgrader generate_assignment: to/source/NAME/NAME.ipynb, with the solutions between its marks.

    A check that passes what was not attempted is for students. The hidden line makes it strict when nbgrader grades.
    """
    written = []
    for job in exercise_jobs(names):
        notebook = builder.compose(job)
        raw = jupytext.reads(job.source.read_text(encoding="utf-8"), fmt="py:percent")
        solved = {
            cell.metadata["exercise"]: cell.source
            for cell in raw.cells
            if "exercise" in cell.metadata and "### BEGIN SOLUTION" in cell.source
        }
        for cell in notebook.cells:
            own = cell.metadata.get("minispec", {})
            if own.get("role") == "answer":
                cell.source = solved[own["exercise"]]
            elif own.get("role") == "check":
                cell.source = STRICT + cell.source
        place = to / "source" / job.name / f"{job.name}.ipynb"
        save(notebook, place)
        written.append(place)
    return written


def save(notebook: NotebookNode, place: Path) -> None:
    write_whole(place, nbformat.writes(notebook) + "\n")
