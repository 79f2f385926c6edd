"""The mock interview in a real notebook, by keyboard alone: nothing starts by itself, Enter submits, focus follows."""

from __future__ import annotations

import nbformat
import pytest

from minispec_course.interview import load
from minispec_course.interview.mock_interview import Interview

FOCUSED = "wanted => document.activeElement.matches(`.minispec-drill ${wanted}`)"


@pytest.mark.browser
def test_an_interview_is_held_by_keyboard(lab, home, tmp_path):
    setup = f"import os\nos.environ['MINISPEC_PROGRESS'] = {str(tmp_path / 'progress.json')!r}"
    setup += "\nfrom minispec_course import interview"
    mock = f"interview.mock(level='L5', format='concept', seed=3, out={str(tmp_path / 'mock-1.md')!r})"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in (setup, mock)])
    notebook.metadata.kernelspec = {"display_name": "Python 3", "language": "python", "name": "python3"}
    nbformat.write(notebook, home / "root" / "mock.ipynb")
    lab.open("mock.ipynb")
    ran = lab.run_all()
    assert not [output for cell in ran for output in cell["outputs"] if output["output_type"] == "error"]

    page, desk = lab.page, lab.page.locator(".minispec-drill")
    begin = page.get_by_role("button", name="begin", exact=True)
    begin.wait_for()
    assert page.get_by_role("timer").count() == 0  # running the notebook has started nothing
    begin.press("Enter")
    talk = Interview(load(), "L5", "concept", 3).items[0]
    clock = desk.get_by_role("timer")
    for asked in talk.asks:
        desk.locator(".drill-ask", has_text=asked).wait_for()
        page.wait_for_function(FOCUSED, arg="textarea")
        page.keyboard.type("I would measure dd x")  # in a notebook's command mode these would be commands
        page.keyboard.press("Shift+Enter")
        page.keyboard.type("and then decide.")
        assert "stopped" not in clock.inner_text()
        page.keyboard.press("Enter")
    page.wait_for_function(FOCUSED, arg="input[type=checkbox]")
    desk.get_by_text("stopped").wait_for()  # the clock waits for the ticks
    assert desk.locator(".drill-own", has_text="I would measure dd x").count() == len(talk.asks)
    page.keyboard.press("Space")  # the focus is on the first box
    boxes = desk.get_by_role("checkbox")
    assert boxes.first.is_checked() and boxes.count() == len(talk.rubric)
    desk.get_by_role("button", name="grade").press("Enter")
    desk.get_by_text("It comes back in").wait_for()
    desk.get_by_role("button", name="next").press("Enter")
    page.wait_for_function(FOCUSED, arg="textarea")
    desk.get_by_role("button", name="end").press("Enter")
    desk.locator(".drill-report h1").wait_for()
    assert "mock-1.md" in desk.inner_text() and talk.question.L4[0] in (tmp_path / "mock-1.md").read_text("utf-8")
    assert page.locator(".jp-CodeCell").count() == 2 and lab.errors == [] and lab.strangers == []
