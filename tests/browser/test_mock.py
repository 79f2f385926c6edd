"""The mock interview in a real notebook, by keyboard alone: nothing starts by itself, Enter submits, focus follows."""

from __future__ import annotations

import nbformat
import pytest

from minispec_course.interview import load

FOCUSED = "() => document.activeElement.ariaLabel || document.activeElement.textContent"
SAYS = "before => document.querySelector('.minispec-mock .says')?.textContent !== before"


def tab_to(page, name: str, key: str = "Tab") -> None:
    """Walk there, as somebody without a mouse does."""
    for _ in range(60):
        if page.evaluate(FOCUSED) == name:
            return
        page.keyboard.press(key)
    raise AssertionError(f"{name!r} is not reached with {key}; the focus is on {page.evaluate(FOCUSED)!r}")


@pytest.mark.browser
def test_an_interview_is_held_by_keyboard(lab, home, tmp_path):
    setup = f"import os\nos.environ['MINISPEC_PROGRESS'] = {str(tmp_path / 'progress.json')!r}\nfrom minispec_course import interview"
    setup += f"\nfrom minispec_course.interview import debrief\ndebrief.FOLDER = debrief.Path({str(tmp_path)!r})"
    cells = [setup, "interview.mock(level='L5', format='concept', seed=3)"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    notebook.metadata.kernelspec = {"display_name": "Python 3", "language": "python", "name": "python3"}
    nbformat.write(notebook, home / "root" / "mock.ipynb")
    lab.open("mock.ipynb")
    ran = lab.run_all()
    assert not [output for cell in ran for output in cell["outputs"] if output["output_type"] == "error"]

    page, desk = lab.page, lab.page.locator(".minispec-mock")
    desk.get_by_role("button", name="start", exact=True).wait_for()
    assert desk.get_by_role("timer").count() == 0  # running the notebook has started nothing
    desk.get_by_label("level").focus()  # the only time that this test points at something
    tab_to(page, "start")
    page.keyboard.press("Enter")
    desk.get_by_role("button", name="begin").wait_for()
    assert "stopped" in desk.get_by_role("timer").inner_text()
    page.keyboard.press("Enter")  # focus is on begin
    desk.locator("textarea").wait_for()
    assert "stopped" not in desk.get_by_role("timer").inner_text()

    [question] = [q for q in load().values() if q.question == desk.locator(".says").inner_text()]
    said, typed = [], ". ".join(question.L4) + ".\ndd x, because of the bytes."
    while desk.get_by_role("checkbox").count() == 0:
        said.append(desk.locator(".says").inner_text())
        first, second = typed.split("\n")
        page.keyboard.type(first)  # focus is in the field, and letters are no commands
        page.keyboard.press("Shift+Enter")
        page.keyboard.type(second)
        page.keyboard.press("Enter")
        page.wait_for_function(SAYS, arg=said[-1])
        typed = "I would measure it\nand then decide."
    assert {push_back.says for push_back in question.push_backs[:2]} < set(said)
    assert "stopped" in desk.get_by_role("timer").inner_text()

    points, own = desk.locator(".point"), desk.locator(".own")
    assert own.get_by_text("dd x, because of the bytes.", exact=True).is_visible()  # to the last letter
    assert desk.locator(".suggested").count() >= len(question.L4)
    page.keyboard.press("Space")  # focus is on the first box; its words are those of the answer
    assert points.first.get_by_role("checkbox").is_checked()
    assert points.first.locator(".words").input_value() == f"{question.L4[0]}."
    bare = points.locator("xpath=self::*[@class='point']").first  # neither suggested nor perhaps
    text = bare.locator("label").inner_text()
    while not bare.get_by_role("checkbox").evaluate("box => box === document.activeElement"):
        page.keyboard.press("Tab")
    page.keyboard.press("Space")
    assert page.evaluate(FOCUSED) == f"your words for: {text}"  # a tick asks for its phrase
    phrase = f"as I said, {text}"
    page.keyboard.type(phrase)
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.type") == "checkbox"  # and on to the next

    colours = []
    for theme in ("Light", "Dark"):
        lab.theme(theme)
        colours.append(desk.locator(".says").evaluate("node => getComputedStyle(node).color"))
        page.screenshot(path=tmp_path / f"mock-{theme}.png")
    assert colours[0] != colours[1]
    tab_to(page, "grade")
    before = desk.locator(".says").inner_text()
    page.keyboard.press("Enter")
    refused = desk.locator(".point .note")  # these words were never typed: said here, and not first in the debrief
    refused.wait_for()
    assert refused.count() == 1 and "do not find these words" in refused.inner_text()
    assert page.evaluate(FOCUSED) == f"your words for: {text}" and points.first.get_by_role("checkbox").is_checked()
    tab_to(page, "grade")
    page.keyboard.press("Enter")
    page.wait_for_function(SAYS, arg=before)
    tab_to(page, "end")
    page.keyboard.press("Enter")
    report = desk.locator(".report")
    report.locator("table").first.wait_for()
    list_below = "xpath=following-sibling::ul[1]"
    under = {
        title: report.locator("h3, h4", has_text=title).first.locator(list_below).inner_text()
        for title in ("Strengths", "Not found in your answers")
    }
    assert question.L4[0] in under["Strengths"] and phrase in under["Not found in your answers"]  # quoted, never said
    assert "|---" not in desk.inner_text() and "mock-1.md" in desk.inner_text()
    page.screenshot(path=tmp_path / "mock-debrief.png")
    tab_to(page, "another interview")
    page.keyboard.press("Enter")
    desk.get_by_role("button", name="start", exact=True).wait_for()
    assert page.locator(".jp-CodeCell").count() == len(cells) and lab.errors == [] and lab.strangers == []
