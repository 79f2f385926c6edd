"""Every committed notebook is current, was run, and keeps what it showed. `make test` then runs each of them once.

nbval, or the browser in its place, compares nothing where nothing is kept. So what they rely on is asserted here.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minispec_course.build import builder
from minispec_course.build.spoilers import is_spoiler, uncovered

ROOT = Path(__file__).resolve().parents[3]
LESSONS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def code_cells(file: Path) -> list[dict]:
    """The code cells of a notebook, with what they showed when it was built."""
    return [uncovered(cell) for cell in stored_cells(file)]


def stored_cells(file: Path) -> list[dict]:
    return [cell for cell in json.loads(file.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


@pytest.mark.slow
def test_every_notebook_is_what_its_source_gives():
    assert builder.check() == [], "run: minispec build NAME"


def test_the_first_lesson_is_there():
    assert ROOT / "notebooks/00_start_here.ipynb" in LESSONS


def test_every_cell_was_run_and_none_failed():
    for file in LESSONS:
        cells = code_cells(file)
        assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1)), file
        assert not [out for cell in cells for out in cell["outputs"] if out["output_type"] == "error"], file


def test_no_stored_notebook_answers_before_it_asks():
    covered = 0
    for file in LESSONS:
        for cell in filter(is_spoiler, stored_cells(file)):
            assert not cell["outputs"] and cell["execution_count"] is None, file
            assert uncovered(cell)["outputs"], f"{file}: a cell that shows nothing needs no cover"
            covered += 1
    assert covered > 33  # as many answers were once on view


def test_jupyter_opens_it_without_a_question():
    for file in LESSONS:
        metadata = json.loads(file.read_text(encoding="utf-8"))["metadata"]
        assert metadata["kernelspec"]["name"] == "python3", file
        assert "widgets" not in metadata, file


def test_nbval_has_something_to_compare():
    def is_checked(cell: dict) -> bool:
        marks = cell["metadata"].get("tags", []) + cell["source"][:1]  # nbval's other way is a comment on top
        return bool(cell["outputs"]) and not any("ignore-output" in m or "NBVAL" in m or "skip" in m for m in marks)

    for file in LESSONS:
        assert sum(map(is_checked, code_cells(file))) >= 6, file
