"""A lesson is opened, run, saved and opened again: no error, its pictures are there, and git has seen nothing."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import nbformat
import pytest

from minispec_course.check import copies

ROOT = Path(__file__).resolve().parents[2]
NAME = "notebooks/03_paged_blocks.ipynb"
ASK = """import os
os.environ["MINISPEC_LAB"] = "1"  # `minispec lab` sets it for all kernels
from minispec_course import viz
guess = viz.predict("How many?", "blocks")
guess"""
WIDGET = "viz.memory_map()"
NAMES = "nodes => nodes.map(node => node.getAttribute('aria-label'))"
PICTURE = ".jp-OutputArea-output img[src^='data:image/png']"


@pytest.fixture
def clone(home, monkeypatch) -> Path:
    """A repository with a short version of a stored lesson, and its copies."""
    clone = home / "root/clone"
    lesson = nbformat.read(ROOT / NAME, as_version=4)
    ask, reveal = (nbformat.v4.new_code_cell(source) for source in (ASK, "guess.reveal(1230)"))
    lesson.cells = [lesson.cells[0], ask, reveal, *(cell for cell in lesson.cells if cell.source == WIDGET)]
    assert len(lesson.cells) == 4
    lesson.cells[-1].execution_count = None  # `run_all` waits for it
    (clone / NAME).parent.mkdir(parents=True)
    nbformat.write(lesson, clone / NAME)
    (clone / ".gitignore").write_text((ROOT / ".gitignore").read_text())
    git(clone, "init", "-q")
    git(clone, "add", ".")
    git(clone, "-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", "course")
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(home / "data"))  # the server's: signatures are kept there
    assert copies.lay_out(clone) == []
    return clone


def git(clone: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=clone, check=True, capture_output=True, text=True).stdout


@pytest.mark.browser
def test_the_second_visit_looks_like_the_first(lab, clone):
    page, copy = lab.page, clone / "mine" / NAME
    lab.open(f"clone/mine/{NAME}")
    page.locator(PICTURE).wait_for()  # before anything has run
    cells = lab.run_all(timeout=120)
    assert not [output for cell in cells for output in cell["outputs"] if output["output_type"] == "error"]
    _guess, panel = lab.widgets(cells)

    # The prediction: the answer waits, a comma is understood, Enter commits, the keyboard goes on to the next cell.
    answer = page.locator(".minispec-answer .answer")
    answer.wait_for()
    assert "1,230" not in answer.inner_text()
    field = page.get_by_label("How many?")
    assert field.input_value() == ""
    field.press_sequentially("1,5")
    field.press("Enter")
    page.locator(".minispec-answer .answer", has_text="the answer: 1,230 blocks").wait_for()
    assert field.input_value() == "1.5" and "your guess: 1.5 blocks" in answer.inner_text()
    assert page.evaluate("document.activeElement.closest('.jp-CodeCell') !== null")
    page.keyboard.press("Escape")

    # The panel: every control has a name, and it keeps its height while it is moved.
    handle = panel.locator(".noUi-handle").first
    assert all(panel.locator(".noUi-handle, .widget-play button").evaluate_all(NAMES))
    assert panel.locator(".modebar").count() == 0
    heights = [panel.bounding_box()["height"]]
    for key in ("ArrowRight", "ArrowRight", "Home", "PageUp", "PageUp", "PageUp", "PageUp", "End"):
        handle.press(key)
        lab.settle(panel)
        heights.append(panel.bounding_box()["height"])
    assert len(set(heights)) == 1, heights

    page.evaluate("window.jupyterapp.commands.execute('docmanager:save')")
    page.wait_for_function("!window.jupyterapp.shell.currentWidget.context.model.dirty")
    saved = json.loads(copy.read_text(encoding="utf-8"))
    assert "widget-view" not in json.dumps(saved) and "widgets" not in saved["metadata"]
    assert "1,230" not in json.dumps(saved["cells"][2]["outputs"])  # a saved notebook does not answer unasked
    page.evaluate("window.jupyterapp.serviceManager.sessions.shutdownAll()")

    lab.open(f"clone/mine/{NAME}")
    page.locator(PICTURE).wait_for()
    assert page.locator(PICTURE).evaluate("image => image.naturalWidth") > 900
    shown = page.locator(".jp-Notebook").inner_text()
    assert "Error displaying widget" not in shown and "model not found" not in shown
    assert git(clone, "status", "--porcelain") == ""
    assert lab.strangers == [] and lab.errors == [] and lab.failures == []
