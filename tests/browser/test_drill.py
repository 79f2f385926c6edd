"""The drill in a real notebook: a question answered with the keyboard, up to the rubric and its grade."""

from __future__ import annotations

import json

import nbformat
import pytest

from minispec_course.interview import load
from minispec_course.interview.session import Talk

FOCUSED = "wanted => document.activeElement.matches(`.minispec-drill ${wanted}`)"


@pytest.mark.browser
def test_a_question_is_answered_by_keyboard(lab, home, tmp_path):
    setup = f"import os\nos.environ['MINISPEC_PROGRESS'] = {str(tmp_path / 'progress.json')!r}"
    setup += "\nfrom minispec_course import interview"
    cells = [setup, "interview.drill(topics=['kv-cache'], minutes=4, seed=3)"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    notebook.metadata.kernelspec = {"display_name": "Python 3", "language": "python", "name": "python3"}
    nbformat.write(notebook, home / "root" / "drill.ipynb")
    lab.open("drill.ipynb")
    ran = lab.run_all()
    assert not [output for cell in ran for output in cell["outputs"] if output["output_type"] == "error"]

    page = lab.page
    page.get_by_role("button", name="begin", exact=True).first.press("Enter")
    drill = page.locator(".minispec-drill")
    asked = drill.locator(".drill-ask").inner_text()
    [question] = [q for q in load().values() if q.question == asked]
    asks = Talk(question).asks
    for i, asked in enumerate(asks):
        drill.locator(".drill-ask", has_text=asked).wait_for()
        page.wait_for_function(FOCUSED, arg="textarea")  # nobody has to point at the field
        page.keyboard.type("a b dd")  # in a notebook's command mode these would be commands
        page.keyboard.press("Shift+Enter")
        page.keyboard.type("x")
        page.keyboard.press("Tab") if i else None  # the button does it, too
        page.keyboard.press("Enter")

    drill.get_by_text(f"In short: {question.spoken[:40]}").wait_for()
    assert drill.get_by_text("You wrote: a b dd\nx").count() == len(asks)  # to the last letter
    page.wait_for_function(FOCUSED, arg="input[type=checkbox]")
    assert page.locator(".jp-CodeCell").count() == len(cells)  # the notebook did not take the keys for its own
    boxes = drill.get_by_role("checkbox")
    assert boxes.count() == len(Talk(question).rubric)
    for place in range(len(question.L4)):
        boxes.nth(place).press("Space")
    for point in (*question.L6, *question.raises, *question.sinks):
        assert drill.get_by_text(point).is_visible()
    clipped = "nodes => nodes.filter(node => node.scrollWidth > node.clientWidth + 1).length"
    assert drill.locator(".widget-checkbox label").evaluate_all(clipped) == 0  # long lines wrap

    drill.get_by_role("button", name="grade").press("Space")
    drill.get_by_text("L4. It comes back in").wait_for()
    assert list(json.loads((tmp_path / "drill.json").read_text())["cards"]) == [question.id]
    assert lab.strangers == [] and lab.errors == [] and lab.failures == []
