"""Hand a set out. What a copy withholds: the solutions, and the cases that follow from the grader's secret."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode

from minispec.load.write import write_whole

from ..build import builder

STRICT = '### BEGIN HIDDEN TESTS\nimport os\n\nos.environ["MINISPEC_STRICT"] = "1"\n### END HIDDEN TESTS\n'
LATER = "# This one is checked after you have handed it in."


def student_copies(names: Sequence[str], to: Path, checks: bool = True) -> list[Path]:
    """Write these sets with stubs instead of solutions: to/NAME.ipynb. Returns the notebooks."""
    written = []
    for job in exercise_jobs(names):
        place, notebook = to / f"{job.name}.ipynb", builder.compose(job)
        if place.exists():
            raise ValueError(f"{place} exists already: give another folder, or move it away")
        if not checks:
            withhold_checks(notebook)
        written.append(write_whole(place, nbformat.writes(notebook) + "\n"))
    return written


def exercise_jobs(names: Sequence[str]) -> list[builder.Job]:
    jobs = [job for job in builder.jobs(names) if job.kind == "exercise"]
    if not names or {job.name for job in jobs} != {job.name for job in builder.jobs(names)}:
        raise ValueError(f"names={' '.join(names) or '(none)'}: give sets of exercises, such as 03 05")
    return jobs


def withhold_checks(notebook: NotebookNode) -> None:
    """Take checks, hints and pictures out: an exam on paper, so to speak."""
    kept = []
    for cell in notebook.cells:
        own = cell.metadata.get("minispec", {})
        if own.get("role") == "check":
            cell.source = LATER
            cell.metadata["minispec"] = {"exercise": own["exercise"], "role": "check"}
        if own.get("role") != "hint" and not (cell.cell_type == "code" and cell.source.startswith("draw(")):
            kept.append(cell)
    notebook.cells = kept


def nbgrader_sources(names: Sequence[str], to: Path) -> list[Path]:
    """Notebooks for nbgrader generate_assignment: to/source/NAME/NAME.ipynb, with the solutions between its marks.

    A check that passes what was not attempted is for students. The hidden line makes it strict when nbgrader grades.
    """
    written = []
    for job in exercise_jobs(names):
        notebook = builder.compose(job)
        raw = jupytext.reads(job.source.read_text(encoding="utf-8"), fmt="py:percent")
        marked = [cell for cell in raw.cells if "exercise" in cell.metadata and "### BEGIN SOLUTION" in cell.source]
        solved = {cell.metadata["exercise"]: cell.source for cell in marked}
        for cell in notebook.cells:
            own = cell.metadata.get("minispec", {})
            if own.get("role") == "answer":
                cell.source = solved[own["exercise"]]
            elif own.get("role") == "check":
                cell.source = STRICT + cell.source
        place = to / "source" / job.name / f"{job.name}.ipynb"
        written.append(write_whole(place, nbformat.writes(notebook) + "\n"))
    return written
