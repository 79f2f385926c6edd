"""Lessons opened in JupyterLab and run from top to bottom in a real browser; every widget in them moved once.

Three lessons in make test, all of them in make nightly. How long each widget took to follow is printed (pytest -s) and
not judged: a busy machine is no bug.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from browsers import DRIVEN

from minispec_course.build.spoilers import uncovered

ROOT = Path(__file__).resolve().parents[2]
EVERY = sorted(file.name for file in (ROOT / "notebooks").glob("*.ipynb"))
LESSONS = [pytest.param(name, marks=[] if name in DRIVEN else pytest.mark.nightly) for name in EVERY]


def printed(cell: dict) -> str | None:
    """What a cell printed; None where it is not the same on every run."""
    if "nbval-ignore-output" in cell["metadata"].get("tags", []):
        return None
    return "".join("".join(output["text"]) for output in cell["outputs"] if output.get("name") == "stdout")


@pytest.mark.browser
@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_runs_in_the_browser(lab, name):
    lab.open(name)
    cells = lab.run_all()
    assert not [output for cell in cells for output in cell["outputs"] if output["output_type"] == "error"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    committed = nbformat.read(ROOT / "notebooks" / name, as_version=4).cells  # nbval compares the other lessons
    assert list(map(printed, cells)) == [printed(uncovered(cell)) for cell in committed if cell.cell_type == "code"]

    drawn, still = lab.widgets(cells), []
    for number, widget in enumerate(drawn, start=1):
        milliseconds = lab.move(widget)
        lab.settle(widget)
        if milliseconds is None:
            still.append(f"widget {number}: {widget.inner_text()[:100]!r}")
        else:
            print(f"{name}, widget {number}: {milliseconds:.0f} ms")
    assert not still, "moving the first control changes nothing"
    assert lab.page.locator(".jp-Dialog, .Toastify__toast").count() == 0  # nothing stands in the learner's way
    assert lab.strangers == [], "a lesson asks nobody but its own server"
    assert lab.failures == []
    assert lab.errors == []
