"""Lessons opened in JupyterLab and run from top to bottom in a real browser; every widget in them moved once.

Three lessons in make test, all of them in make nightly. With MINISPEC_SCREENSHOTS=FOLDER the pictures go there; those
of the widgets, light and dark, at 900 and 1,600 pixels, to its folder "widgets". How long each widget took to follow is
printed (pytest -s) and kept as a property of the test. It is not judged: a busy machine is no bug.
"""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from browsers import DRIVEN, OWN, violations

from minispec_course.build.spoilers import uncovered

ROOT = Path(__file__).resolve().parents[2]
EVERY = sorted(file.name for file in (ROOT / "notebooks").glob("*.ipynb"))
LESSONS = [pytest.param(name, marks=[] if name in DRIVEN else pytest.mark.nightly) for name in EVERY]
SHOW = {"00_start_here.ipynb": "## Predict"}  # what is worth a picture; otherwise the top


def printed(cell: dict) -> str | None:
    """What a cell printed; None where it is not the same on every run."""
    if "nbval-ignore-output" in cell["metadata"].get("tags", []):
        return None
    return "".join("".join(output["text"]) for output in cell["outputs"] if output.get("name") == "stdout")


@pytest.mark.browser
@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_runs_in_the_browser(lab, axe, name, tmp_path, record_property):
    lab.open(name)
    cells = lab.run_all()
    pictures = Path(os.environ.get("MINISPEC_SCREENSHOTS", tmp_path))
    lesson = name.split("_", 1)[1].removesuffix(".ipynb")
    lab.show(SHOW.get(name, "# "))
    lab.page.screenshot(path=pictures / f"{lesson}.png")
    assert (pictures / f"{lesson}.png").stat().st_size > 10_000
    assert not [output for cell in cells for output in cell["outputs"] if output["output_type"] == "error"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    committed = nbformat.read(ROOT / "notebooks" / name, as_version=4).cells  # nbval compares the other lessons
    assert list(map(printed, cells)) == [printed(uncovered(cell)) for cell in committed if cell.cell_type == "code"]

    widgets, still = lab.widgets(cells), []
    for number, widget in enumerate(widgets, start=1):
        milliseconds = lab.move(widget)
        lab.settle(widget)
        if milliseconds is None:
            still.append(f"widget {number}: {widget.inner_text()[:100]!r}")
        else:
            record_property(f"widget {number}, ms", round(milliseconds))
            print(f"{name}, widget {number}: {milliseconds:.0f} ms")
    heard = []
    for theme in ("Light", "Dark"):
        lab.theme(theme)
        heard += [f"{theme}: {what}" for what in (violations(lab.page, axe, OWN) if axe else ())]
        for width in (900, 1600) if "MINISPEC_SCREENSHOTS" in os.environ else ():
            lab.page.set_viewport_size({"width": width, "height": 860})
            lab.page.wait_for_timeout(1500)
            for number, widget in enumerate(widgets, start=1):
                widget.screenshot(path=pictures / "widgets" / f"{name[:2]}-{number}-{theme.lower()}-{width}.png")
    assert not still, "moving the first control changes nothing"
    record_property("axe-core", heard)
    if "MINISPEC_SCREENSHOTS" in os.environ:
        assert heard == [], "axe-core finds something serious in a widget"

    assert lab.page.locator(".jp-Dialog, .Toastify__toast").count() == 0  # nothing stands in the learner's way
    assert lab.strangers == [], "a lesson asks nobody but its own server"
    assert lab.failures == []
    assert lab.errors == []


@pytest.mark.browser
def test_a_widget_that_stands_still_is_noticed(lab, home):
    """The test above can fail: a picture that is drawn again without a change is no change."""
    panels = """
import plotly.graph_objects as go
from minispec_course.viz.panel import Panel, slider, choice, switch
figure = lambda height: go.Figure(go.Bar(y=[height, 1]), layout={"title": "bars"})
"""
    draws = {
        "Panel(lambda k: figure(k), {'k': slider('k', 2, 1, 9)})": True,
        "Panel(lambda k: figure(2), {'k': slider('k', 2, 1, 9)})": False,
        "Panel(lambda k: f'<b>{k}</b>', {'k': choice('k', [1, 2])})": True,
        "Panel(lambda k: '<b>2</b>', {'k': choice('k', [1, 2])})": False,
        "Panel(lambda k: ('<b>2</b>', str(k)), {'k': switch('k')})": True,
    }
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in (panels, *draws)])
    notebook.metadata.kernelspec = {"display_name": "Python 3", "language": "python", "name": "python3"}
    nbformat.write(notebook, home / "root" / "panels.ipynb")
    lab.open("panels.ipynb")
    widgets = lab.widgets(lab.run_all())
    assert [lab.move(widget, patience=4) is not None for widget in widgets] == list(draws.values())
