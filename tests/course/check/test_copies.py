"""The folder mine/: what is yours stays, what is not is renewed, and nothing that is saved shows an error later.

Predictions and covered answers are saved and reopened in a real JupyterLab, in tests/browser/test_lab.py.
"""

from __future__ import annotations

import errno
from pathlib import Path

import ipywidgets
import nbformat
import pytest
from ipykernel.ipkernel import IPythonKernel

from minispec_course.check import copies, terminal
from minispec_course.stored import LAB, WIDGET
from minispec_course.viz.panel import Panel, slider

LESSON, SET = "notebooks/00_start.ipynb", "exercises/06_sets.ipynb"


def notebook(*cells: tuple[str, str]) -> str:
    made = []
    for number, (kind, source) in enumerate(cells):
        made.append(nbformat.v4.new_markdown_cell(source) if kind == "text" else nbformat.v4.new_code_cell(source))
        made[-1].id = f"cell-{number}"
    return nbformat.writes(nbformat.v4.new_notebook(cells=made)) + "\n"


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    """A clone with a lesson and a set of exercises, and its copies."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr(copies, "NotebookNotary", lambda: None)  # signing is tested in the browser
    links = "[doc](../docs/a.md) [set](../exercises/06_sets.ipynb) [next](01_next.ipynb) ![p](../docs/p.png)"
    for name, text in ((LESSON, notebook(("text", links), ("code", "viz.roofline()"))), (SET, notebook(("code", "1")))):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert copies.lay_out(tmp_path) == []
    return tmp_path


def mine(root: Path, name: str) -> Path:
    return root / "mine" / name


def files(root: Path) -> list[str]:
    return sorted(file.relative_to(root / "mine").as_posix() for file in (root / "mine").rglob("*.ipynb"))


def change(file: Path, text: str = "mine") -> str:
    file.write_text(notebook(("code", text)), encoding="utf-8")
    return file.read_text(encoding="utf-8")


def test_a_function_of_a_lesson_is_saved_and_reopened_as_it_was_left(root):
    """Written and ticked; wrong; not written. A new version of the lesson comes beside it, and changes nothing."""
    cells = [
        nbformat.v4.new_code_cell(f'@yours("05.loop")\ndef loop(target):\n    {body}') for body in ("1", "2", "...")
    ]
    for cell, said in zip(cells, ("✓ 05.loop", "05.loop: wrong", "05.loop: not written yet"), strict=True):
        cell.outputs, cell.execution_count = [nbformat.v4.new_output("stream", name="stdout", text=said)], 3
    model = {"type": "notebook", "content": nbformat.v4.new_notebook(cells=cells)}
    copies.keep_pictures(model)  # as JupyterLab saves
    nbformat.write(model["content"], mine(root, LESSON))
    change(root / LESSON, "a new version")
    assert len(copies.lay_out(root)) == 1
    reopened = nbformat.read(mine(root, LESSON), as_version=4)
    assert reopened.cells == cells


def test_an_untouched_copy_follows_the_course_and_its_links_lead_where_they_did(root):
    source = nbformat.read(mine(root, LESSON), 4).cells[0].source
    outward = "[doc](../../docs/a.md)", "![p](../../docs/p.png)"
    assert source == f"{outward[0]} [set](../exercises/06_sets.ipynb) [next](01_next.ipynb) {outward[1]}"
    new = change(root / LESSON, "new")
    assert copies.lay_out(root) == [] and mine(root, LESSON).read_text(encoding="utf-8") == new
    mine(root, LESSON).unlink()  # a copy that is gone is made again
    (root / "mine" / copies.MADE).write_text("half a f")
    assert copies.lay_out(root) == [] and files(root) == [SET, LESSON]


def test_what_is_yours_stays_and_the_new_one_is_laid_beside(root):
    yours = change(mine(root, SET))
    assert copies.lay_out(root) == [] and files(root) == [SET, LESSON]  # the course has not changed
    new = change(root / SET, "new")
    [said] = copies.lay_out(root)
    beside = SET.replace(".ipynb", ".new.ipynb")
    assert beside in said and mine(root, SET).read_text(encoding="utf-8") == yours
    assert mine(root, beside).read_text(encoding="utf-8") == new
    assert copies.lay_out(root) == []  # said once
    mine(root, beside).unlink()
    assert copies.lay_out(root) == [] and not mine(root, beside).exists()  # read and thrown away
    newer = change(root / SET, "newer")
    assert len(copies.lay_out(root)) == 1 and mine(root, beside).read_text(encoding="utf-8") == newer
    kept = change(mine(root, beside), "yours too")
    change(root / SET, "newest")
    assert len(copies.lay_out(root)) == 1
    aside = SET.replace(".ipynb", ".new.attempt-1.ipynb")
    assert mine(root, aside).read_text(encoding="utf-8") == kept


def test_commands_find_the_notebook_that_its_reader_writes_in(root):
    assert terminal.locate("06", root) == mine(root, SET)
    change(root / "mine/exercises/06_sets.attempt-1.ipynb")
    change(root / "mine/exercises/06_sets.new.ipynb")
    assert terminal.locate("06", root) == mine(root, SET)
    for file in (root / "mine/exercises").iterdir():
        file.unlink()
    assert terminal.locate("06", root) == root / SET


def test_reset_renews_the_copy_and_keeps_the_attempt(root, monkeypatch):
    source = root / "minispec_course/exercises/set_06_sets/page.py"
    source.parent.mkdir(parents=True)
    source.write_text("# %% [markdown]\n# # Sets\n# [doc](../docs/a.md)\n", encoding="utf-8")
    yours, stored = change(mine(root, SET)), (root / SET).read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr(Path, "write_bytes", full)
        copies.reset("06", root)
    assert files(root) == [SET, LESSON] and mine(root, SET).read_text(encoding="utf-8") == yours
    job, kept = copies.reset("06", root)
    assert job.target == mine(root, SET) and kept.read_text(encoding="utf-8") == yours
    assert "../../docs/a.md" in job.target.read_text(encoding="utf-8") and (root / SET).read_bytes() == stored
    assert copies.reset("06", root)[1] is None


# ---------------------------------------------------------------- what is saved


def saved(widget, words: str) -> list[dict]:
    """What a notebook keeps of a widget that is on the screen when it is saved."""
    data = {WIDGET: {"model_id": widget.model_id}, "text/plain": words}
    printed = {"output_type": "stream", "name": "stdout", "text": "hello"}
    view = {"output_type": "display_data", "metadata": {}, "data": data}
    content = {"cells": [{"outputs": [printed, view]}, {"cell_type": "markdown"}], "metadata": {"widgets": {}}}
    copies.keep_pictures({"type": "notebook", "content": content}, path="anywhere.ipynb", contents_manager=None)
    assert content["metadata"] == {} and content["cells"][0]["outputs"][0] == printed
    return content["cells"][0]["outputs"][1:]


def test_a_saved_panel_is_the_picture_that_the_learner_left(monkeypatch, tmp_path):
    monkeypatch.setenv("MINISPEC_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.setenv(LAB, "1")
    panel = Panel(lambda k: (f"<svg>{k}</svg>", f"k is {k}"), {"k": slider("draft tokens", 1, 0, 9)})
    panel.controls["k"].value = 7
    [picture] = saved(panel, "k is 1")
    assert "<svg>7</svg>" in picture["data"]["text/html"]
    assert picture["data"]["text/plain"].startswith("k is 7\ndraft tokens: 7\n")


def test_a_widget_that_is_not_ours_leaves_a_sentence_or_nothing():
    widget = ipywidgets.IntSlider()
    assert saved(widget, "IntSlider(value=0)") == saved(widget, "<a.B object at 0x1>") == saved(widget, "") == []
    [said] = saved(widget, "k is 2")
    assert said["data"] == {"text/plain": "k is 2"}


def test_to_open_a_copy_does_not_change_it_and_its_old_pictures_say_so():
    """JupyterLab writes the kernel's language_info into what it opens; the first output of a run takes a picture's
    place, and its note's."""
    kept = {"drawn_from": "0123"}
    stored = nbformat.reads(notebook(("code", "viz.roofline()")), 4)
    stored.metadata.language_info = {"name": "python"}
    picture = nbformat.v4.new_output("display_data", {"image/png": "AAAA"}, metadata={"minispec": kept})
    stored.cells[0].outputs = [picture]
    copy = nbformat.reads(copies.copied(nbformat.writes(stored)), 4)
    assert copy.metadata.language_info == IPythonKernel.language_info
    assert copy.cells[0].outputs[0] == picture and "Run this cell" in copy.cells[0].outputs[1].data["text/markdown"]
