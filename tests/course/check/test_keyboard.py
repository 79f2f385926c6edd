"""At the keyboard: what a check says after a cell that failed, before one was run, and how hints are shown.

A kernel runs the cells, so these are the facts of IPython and not of a stand-in; one kernel serves all tests.
"""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import start_new_kernel

from minispec_course.check import after, hints, progress
from minispec_course.exercises.exercise import everything, find

IMPORTS = "import torch\nfrom minispec_course.check import check, draw, hint, progress_table"
RIGHT = "def accept(p, q, token):\n    return min(1.0, float(p[token] / q[token]))"
CHECK = 'check("06.accept", accept)'
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def kernel():
    environment = {**os.environ, "MINISPEC_PROGRESS": "off", "PYTHONPATH": str(ROOT)}
    manager, client = start_new_kernel(kernel_name="python3", env=environment, cwd=str(ROOT))
    run(client, IMPORTS)
    yield client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def run(client, source: str) -> str:
    """Run a cell: all that it shows, as text; of a widget, its kind."""
    shown = []

    def note(message):
        content = message["content"]
        if message["msg_type"] == "stream":
            shown.append(content["text"])
        elif message["msg_type"] in ("display_data", "execute_result"):
            shown.append(content["data"]["text/plain"])
        elif message["msg_type"] == "error":
            shown.append("\n".join(content["traceback"]))

    client.execute_interactive(source, output_hook=note, timeout=120)
    return "\n".join(shown)


@pytest.fixture(autouse=True)
def forget(request):
    if "kernel" in request.fixturenames:
        run(request.getfixturevalue("kernel"), "globals().pop('accept', None)\n%reset_selective -f ^accept$")


def test_a_check_before_the_cell_has_run_says_what_to_do(kernel):
    said = run(kernel, CHECK)
    assert said.startswith("06.accept: there is no accept yet. Run the cell above") and "Traceback" not in said
    assert "there is no accept yet" in run(kernel, 'draw("06.residual", accept)')
    assert "Traceback" in run(kernel, "nobody_has_defined_this")  # any other NameError is shown as always
    run(kernel, "def accept(p, q, token)\n    return 2")
    assert "there is no accept yet. Its cell ended with SyntaxError" in run(kernel, CHECK)


def test_a_syntax_error_is_remembered_when_the_old_answer_is_checked(kernel):
    assert "Note:" not in run(kernel, RIGHT) + run(kernel, CHECK)
    run(kernel, "def accept(p, q, token)\n    return 2")
    run(kernel, "1 + 1")  # other cells change nothing
    said = run(kernel, CHECK)
    assert said.startswith("06.accept: right") and "Note: this is about your earlier accept" in said
    assert "SyntaxError" in said
    run(kernel, RIGHT)
    assert "Note:" not in run(kernel, CHECK)


def test_an_error_after_the_definition_is_none_of_its_own(kernel):
    run(kernel, f"{RIGHT}\n1 / 0")
    assert "Note:" not in run(kernel, CHECK)
    run(kernel, f"1 / 0\n{RIGHT}")
    assert "ZeroDivisionError" in run(kernel, CHECK)
    run(kernel, RIGHT)


def test_a_hint_is_a_button_in_a_notebook(kernel):
    said = run(kernel, 'hint("06.accept")')
    assert "Button" in said and "Hint 1 of 3" in said and find("06.accept").hints[0] not in said


# ---- hints ----------------------------------------------------------------------------------------------------------


def test_every_press_shows_one_hint_more_and_is_noted(monkeypatch, tmp_path):
    monkeypatch.setenv("MINISPEC_PROGRESS", str(tmp_path / "progress.json"))
    box = hints.button(find("06.accept"))
    press, text = box.children
    assert press.description == "Hint 1 of 3" and text.value == "" and progress.read() == {}
    assert press.layout.align_self == "flex-start"  # or the box stretches it over the whole cell
    for count in (1, 2, 3):
        press.click()
        assert text.value.count("<p ") == count == progress.read()["06.accept"]["hints"]
    assert press.disabled
    again = hints.button(find("06.accept"))  # in the notebook that is opened tomorrow
    again.children[0].click()
    assert again.children[1].value.count("<p ") == 1 and progress.read()["06.accept"]["hints"] == 3


def test_hints_keep_their_words_whole(capsys, monkeypatch):
    monkeypatch.setenv("MINISPEC_PROGRESS", "off")
    for id, exercise in everything().items():
        monkeypatch.setattr(progress, "_hints_of_this_process", {id: 2})
        hints.hint(id)
        said = capsys.readouterr().out
        assert said.split() == " ".join(hints.worded(exercise, n) for n in (1, 2, 3)).split()
        for n, hint in enumerate(exercise.hints, start=1):
            shown = hints.paragraph(n, hint)
            assert "word-break:normal" in shown and shown.count("<code>") == hint.count("`") // 2


# ---- a right answer -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_right_answer_is_told_what_it_shows_and_what_to_try():
    assert after.AFTER.keys() == everything().keys()
    for id, exercise in everything().items():
        said = after.praise(exercise)
        words = " ".join(said.split())
        assert said.startswith(f"{id}: right") and all(part in words for part in after.AFTER[id])
        assert exercise.code in words and "progress_table()" in words and max(map(len, said.splitlines())) <= 100


@pytest.mark.slow
def test_what_is_mentioned_is_imported():
    for file in sorted((ROOT / "exercises").glob("*.ipynb")):
        cells = [cell.source for cell in nbformat.read(file, as_version=4).cells if cell.cell_type == "code"]
        assert "progress_table" in cells[0] and "hint" in cells[0], file.name
