"""The course in JupyterLab, in a real browser: lessons run from top to bottom, a lesson visited twice, a drill.

In one file, so that one server and one browser serve all of it. Three lessons in make test, all in make nightly.
How long each widget took to follow is printed (pytest -s) and not judged: a busy machine is no bug.
"""

import json
import subprocess
from pathlib import Path

import nbformat
import pytest
from browsers import DRIVEN

from minispec_course.build.spoilers import uncovered
from minispec_course.check import copies, exam
from minispec_course.interview import load
from minispec_course.interview.session import Talk

pytestmark = pytest.mark.browser
ROOT = Path(__file__).resolve().parents[2]

# ---------------------------------------------------------------- lessons

EVERY = sorted(file.name for file in (ROOT / "notebooks").glob("*.ipynb"))
LESSONS = [pytest.param(name, marks=[] if name in DRIVEN else pytest.mark.nightly) for name in EVERY]


def printed(cell: dict) -> str | None:
    """What a cell printed; None where it is not the same on every run."""
    if "nbval-ignore-output" in cell["metadata"].get("tags", []):
        return None
    return "".join("".join(output["text"]) for output in cell["outputs"] if output.get("name") == "stdout")


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
    assert lab.wrong == []  # a lesson asks nobody but its own server


# ---------------------------------------------------------------- opened, run, saved and opened again

NAME = "notebooks/03_paged_blocks.ipynb"
SETUP = """import os
os.environ["MINISPEC_LAB"] = "1"  # `minispec lab` sets it for all kernels
from minispec_course import viz
from minispec_course.check import yours"""
ASK = """guess = viz.predict("How many?", "blocks")
guess"""
MEASURE = "print('1,230 blocks are', 'measured')"
REVEAL = "guess.reveal(1230)"
YOURS = """@yours("00.matches")
def matches(draft, checked):
    return 0"""
WIDGET = "viz.memory_map()"
NAMES = "nodes => nodes.map(node => node.getAttribute('aria-label'))"
PICTURE = ".jp-OutputArea-output img[src^='data:image/png']"
DIRTY = "window.jupyterapp.shell.currentWidget.context.model.dirty"
FROZEN = "Run this cell to move it."


@pytest.fixture
def clone(home, monkeypatch) -> Path:
    """A repository with a short version of a stored lesson, and its copies."""
    clone = home / "root/clone"
    lesson = nbformat.read(ROOT / NAME, as_version=4)
    setup, *rest = map(nbformat.v4.new_code_cell, (SETUP, ASK, MEASURE, REVEAL, YOURS))
    rest[1].metadata.tags = rest[2].metadata.tags = ["spoiler"]
    lesson.cells = [lesson.cells[0], setup, *rest, *(cell for cell in lesson.cells if cell.source == WIDGET)]
    assert len(lesson.cells) == 7
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


def save(page, copy: Path) -> dict:
    page.evaluate("window.jupyterapp.commands.execute('docmanager:save')")
    page.wait_for_function(f"!{DIRTY}")
    saved = json.loads(copy.read_text(encoding="utf-8"))
    assert "widget-view" not in json.dumps(saved) and "widgets" not in saved["metadata"]
    return saved


def test_the_second_visit_finds_what_the_first_left(lab, clone):
    """Not changed by opening; covered until there is a guess; saved, restarted, reopened: what the learner saw last."""
    page, copy = lab.page, clone / "mine" / NAME
    untouched = copy.read_bytes()
    lab.open(f"clone/mine/{NAME}")
    page.locator(PICTURE).wait_for()  # before anything has run
    page.wait_for_timeout(1000)
    assert not page.evaluate(DIRTY)
    save(page, copy)
    assert copy.read_bytes() == untouched  # so the next version of the lesson takes its place
    cells = lab.run_all(timeout=120)
    assert not [output for cell in cells for output in cell["outputs"] if output["output_type"] == "error"]
    _guess, panel = lab.widgets(cells)

    # The prediction: what answers waits, a comma is understood, Enter commits, the keyboard goes on to the next cell.
    answers = page.locator(".minispec-answer:visible")
    answers.nth(1).wait_for()
    assert "1,230 blocks are measured" not in page.locator(".jp-Notebook").inner_text()
    assert "1,230" not in json.dumps([cell["outputs"] for cell in save(page, copy)["cells"][3:5]])
    field = page.get_by_label("How many?")
    assert field.input_value() == ""
    field.press_sequentially("1,5")
    field.press("Enter")
    page.get_by_text("the answer: 1,230 blocks").wait_for()
    page.get_by_text("1,230 blocks are measured").wait_for()
    assert field.input_value() == "1.5" and "your guess: 1.5 blocks" in answers.inner_text()
    assert page.evaluate("document.activeElement.closest('.jp-CodeCell') !== null")
    page.keyboard.press("Escape")

    # The panel: every control has a name, and it keeps its height while it is moved.
    handle = panel.locator(".noUi-handle").first
    assert all(panel.locator(".noUi-handle, .widget-play button").evaluate_all(NAMES))
    assert panel.locator(".modebar").count() == 0
    heights = [panel.bounding_box()["height"]]
    for key in ("ArrowRight", "ArrowRight", "Home", "PageUp", "PageUp", "PageUp", "PageUp", "End", "ArrowLeft"):
        handle.press(key)
        lab.settle(panel)
        heights.append(panel.bounding_box()["height"])
    assert len(set(heights)) == 1, heights

    saved, last = save(page, copy), panel.locator(".widget-readout").first.inner_text()
    said = [json.dumps(cell.get("outputs")) for cell in saved["cells"]]
    assert "Your guess is 1.5 blocks" in said[2] and "1,230 blocks are measured" in said[3]
    assert "the answer: 1,230 blocks" in said[4] and "The lesson goes on with ours" in said[5]
    assert f"step: {last}" in said[6] and "<svg" in said[6] and FROZEN in said[6]
    page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    page.wait_for_selector(".minispec-panel > [inert]")  # a control would move, and not its picture
    assert save(page, copy) == saved
    page.evaluate("window.jupyterapp.serviceManager.sessions.shutdownAll()")

    lab.open(f"clone/mine/{NAME}")
    page.get_by_text(FROZEN).wait_for()
    assert page.locator(".jp-OutputArea-output svg").count() == 1 and not page.evaluate(DIRTY)
    shown = page.locator(".jp-Notebook").inner_text()
    assert "Error displaying widget" not in shown and "model not found" not in shown and " object at 0x" not in shown
    lab.run_all(timeout=120)
    page.locator(".minispec-panel").wait_for()
    page.get_by_text("your guess: 1.5 blocks").wait_for()  # a new kernel knows it, and covers nothing
    assert page.locator(".minispec-answer").count() == 0
    assert git(clone, "status", "--porcelain") == ""
    assert [what for what in lab.wrong if "debugger" not in what] == []  # JupyterLab's own, which a restart interrupts


# ---------------------------------------------------------------- a drill, by keyboard alone, and an exam

FOCUSED = "() => document.activeElement.matches('.minispec-drill textarea')"


def reply(page, *lines: str) -> None:
    """Type into the field, which has the keyboard by itself, and press Enter."""
    page.wait_for_function(FOCUSED)
    for i, line in enumerate(lines):
        if i:
            page.keyboard.press("Shift+Enter")
        page.keyboard.type(line)
    page.keyboard.press("Enter")


@pytest.mark.nightly
def test_a_drill_is_held_by_keyboard(lab, home, tmp_path):
    """Nothing starts by itself, Enter submits, focus follows; up to the rubric and the card that is kept."""
    setup = f"import os\nos.environ['MINISPEC_PROGRESS'] = {str(tmp_path / 'progress.json')!r}"
    setup += "\nfrom minispec_course import interview"
    cells = [setup, "interview.drill(topics=['kv-cache'], minutes=4, seed=3)"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    notebook.metadata.kernelspec = {"display_name": "Python 3", "language": "python", "name": "python3"}
    nbformat.write(notebook, home / "root" / "interview.ipynb")
    lab.open("interview.ipynb")
    ran = lab.run_all()
    assert not [output for cell in ran for output in cell["outputs"] if output["output_type"] == "error"]

    page, drill = lab.page, lab.page.locator(".minispec-drill")
    clock = page.get_by_role("timer")
    clock.wait_for()
    assert "stopped" in clock.inner_text()
    drill.locator("textarea").focus()
    reply(page, "")
    asked = drill.locator(".drill-ask").inner_text()
    [question] = [q for q in load().values() if q.question == asked]
    for asked in Talk(question).asks:
        drill.locator(".drill-ask", has_text=asked).last.wait_for()
        reply(page, "I would measure dd x", "and then decide.")  # in a notebook's command mode dd deletes a cell
    drill.get_by_text(question.spoken[:40]).wait_for()
    own = drill.locator(".drill-own", has_text="I would measure dd x\nand then decide.")
    assert own.count() == len(Talk(question).asks)
    for point in (*question.L6, *question.raises, *question.sinks):
        assert drill.get_by_text(point).is_visible()
    reply(page, "1-3")
    drill.get_by_text("It comes back in").wait_for()
    assert list(json.loads((tmp_path / "drill.json").read_text())["cards"]) == [question.id]
    assert page.locator(".jp-CodeCell").count() == len(cells)  # the notebook did not take the keys for its own
    assert lab.wrong == []


@pytest.mark.nightly
def test_the_clock_of_an_exam_stays_in_sight(lab, home):
    exam.start(45, 3, out=home / "root/exam.ipynb")
    lab.open("exam.ipynb")
    lab.run_all()
    clock = lab.page.get_by_role("timer")
    assert "left" in clock.inner_text()
    lab.page.locator(".jp-Cell").last.scroll_into_view_if_needed()
    box, view = clock.bounding_box(), lab.page.viewport_size
    assert 0 < box["x"] < box["x"] + box["width"] < view["width"] and 0 < box["y"] + box["height"] < view["height"]
