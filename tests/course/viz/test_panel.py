"""Panels follow their controls; predictions keep the first guess, and the answer is shown with or without one."""

import json
import math
import sys
from types import SimpleNamespace

import ipywidgets
import pytest

from minispec_course.viz.dashboard import TILES, dashboard
from minispec_course.viz.panel import Panel, choice, player, slider, switch
from minispec_course.viz.predict import predict, read_number

predictions = sys.modules[predict.__module__]  # viz.predict is the function

# ---------------------------------------------------------------- panels


def test_picture_and_words_follow_the_controls():
    controls = {"k": slider("k", 2, 1, 9), "on": switch("on")}
    panel = Panel(lambda k, on: (f"<b>{k} {on}</b>", f"k < {k}"), controls)
    assert panel.values == {"k": 2, "on": False} and panel.picture == "<b>2 False</b>" and panel.words == "k < 2"
    panel.controls["k"].value = 7
    panel.controls["on"].value = True
    assert panel.picture == panel.view.html == "<b>7 True</b>" and panel.view.words == "k < 7"


def test_a_panel_is_busy_while_it_draws_and_not_after_an_error():
    seen = []

    def draw(k: int) -> str:
        seen.append(panel.view.busy if panel else True)
        return str(1 // k)

    panel = None
    panel = Panel(draw, {"k": slider("k", 1, 0, 5)})
    with pytest.raises(ZeroDivisionError):
        panel.controls["k"].value = 0
    assert seen == [True, True] and not panel.view.busy and panel.picture == "1"


def test_a_click_into_the_picture_sets_a_control():
    panel = Panel(lambda k, which: f"{k}{which}", {"k": slider("k", 1, 1, 5), "which": choice("which", ["a", "b"])})

    def click(name: str, value: object) -> str:
        panel.view.chosen = {"name": name, "value": value}
        return panel.picture

    assert click("k", 4) == "4a" and click("which", "b") == "4b"
    assert click("which", "c") == click("draw", 3) == click("k", "many") == "4b"  # no choice of this panel


def test_a_menu_shows_keys_and_gives_values():
    menu = choice("gpu", {"H200": 4.2e12, "laptop": 5e10})
    assert menu.value == 4.2e12
    menu.label = "laptop"
    assert menu.value == 5e10
    assert choice("k", [1, 2, 3]).value == 1 and choice("k", (1, 2, 3), 3).value == 3
    assert choice("v", {"none": None, "one": 1}).value is None
    with pytest.raises(ValueError, match="options"):
        choice("k", [])


def test_a_play_button_moves_its_slider_and_is_not_drawn_itself():
    controls = player("step", 5)
    drawn, play, place = [], controls["play"], controls["step"]
    panel = Panel(lambda step: drawn.append(step) or str(step), controls)
    assert panel.values == {"step": 0} and list(panel.children[0].children) == [place, play]
    play.value = 3
    assert place.value == 3 and panel.picture == "3" and drawn == [0, 3]
    place.value = 5
    assert play.value == 5 == play.max == place.max


# ---------------------------------------------------------------- predictions


def sends(widget: ipywidgets.Widget, **message) -> None:
    """What the browser would send."""
    widget.told = {**message, "number": len(widget.told)}


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    """As in a kernel: guesses are kept, and what is displayed."""
    shown, shell = [], SimpleNamespace(events=SimpleNamespace(register=lambda *_: None))
    monkeypatch.setenv("MINISPEC_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.setattr(predictions, "get_ipython", lambda: shell)
    monkeypatch.setattr(predictions, "display", shown.append)
    monkeypatch.delenv(predictions.LAB, raising=False)
    return shown


def test_the_first_guess_counts(capsys):
    guess = predict("How long?", "ms")
    assert guess.shown == "" and not guess.closed  # an empty field
    for wrong in (math.nan, math.inf, -math.inf, "5", None, True):
        with pytest.raises(ValueError):
            guess.commit(wrong)
    guess.commit(5)
    guess.commit(9)
    guess.skip()
    assert guess.guess == 5 and guess.closed and guess.shown == "5"
    guess.reveal(10)
    assert capsys.readouterr().out.splitlines()[:2] == ["your guess: 5 ms", "the answer: 10 ms"]


def test_the_browser_commits_what_is_in_the_field():
    guess = predict("How many?")
    sends(guess, commit="many")
    assert guess.guess is None and not guess.closed
    sends(guess, commit=" 7,5 ")
    assert guess.guess == 7.5 and guess.closed


READ = {"3": 3, "1.5": 1.5, "1,5": 1.5, "0,125": 0.125, "1,50": 1.5, "12,3456": 12.3456, "−2": -2, "1,234,567": 1234567}
READ |= {"1.234.567": 1234567, "1 500": 1500, "1,234.5": 1234.5, "1.234,5": 1234.5, "1e6": 1e6, "+4": 4, "40 %": 40}
READ |= {"12 ms": 12, ".5": 0.5, "1.500": 1.5, "-0,5": -0.5}


def test_numbers_are_read_as_people_write_them():
    assert {text: read_number(text, "ms") for text in READ} == READ
    for text in ("", "  ", "1,500", "-2,000", "abc", "1..2", "1,2,3", "nan", "inf", "1e999", "0x10", "3 4"):
        with pytest.raises(ValueError):  # no number, or one of two: it is asked again
            read_number(text)


def test_running_the_cell_again_keeps_the_guess(notebook):
    predict("How many?", "ms").commit(5)
    again, other = predict("How many?", "ms"), predict("How many?", "s")
    assert again.guess == 5 and again.closed and again.shown == "5" and other.guess is None


@pytest.mark.parametrize("decide", [lambda guess: sends(guess, commit="5"), lambda guess: sends(guess, skip=True)])
def test_in_the_lab_the_answer_waits_for_the_guess(notebook, monkeypatch, capsys, decide):
    monkeypatch.setenv(predictions.LAB, "1")
    guess = predict("How many?")
    guess.reveal(1230)
    [answer] = notebook
    assert answer.covered and "1,230" not in answer.text + repr(answer) + capsys.readouterr().out
    decide(guess)
    assert not answer.covered and answer.text == guess.verdict(1230) and "1,230" in answer.text
    guess.reveal(1230)  # decided: printed like anywhere else
    assert len(notebook) == 1 and "1,230" in capsys.readouterr().out


def test_a_choice_that_moves_other_controls_draws_one_picture():
    drawn = []
    controls = {"a": slider("a", 1, 0, 9), "b": slider("b", 1, 0, 9)}
    panel = Panel(lambda a, b: drawn.append((a, b)) or f"{a}, {b}", controls)
    panel.lead("a", lambda a: setattr(controls["b"], "value", 2 * a))
    controls["a"].value = 4
    assert drawn == [(1, 1), (4, 8)] and panel.picture == "4, 8" and panel.view.drawn == 2
    controls["b"].value = 3  # by itself it is a control like any other
    assert drawn[2:] == [(4, 3)]


# ---------------------------------------------------------------- the dashboard


def test_the_dashboard_compares_with_earlier_lessons_of_this_machine(tmp_path, monkeypatch):
    kept = tmp_path / "deep/dashboard.json"
    monkeypatch.setenv("MINISPEC_PROGRESS", str(kept.with_name("progress.json")))
    monkeypatch.setitem(dashboard.__globals__, "another_program", lambda: "This machine is not quiet.")
    dashboard("02", ms_per_token=1)
    assert not kept.exists()  # a time beside a busy program is not this machine's
    monkeypatch.setitem(dashboard.__globals__, "another_program", lambda: None)
    dashboard("02", ms_per_token=9)
    dashboard("00", ms_per_token=12.34, busy=0.01)
    assert dashboard("01", ms_per_token=8).change("ms_per_token")[:2] == ("12.3", "8")  # before: lesson 00
    tiles = dashboard("05", tokens_per_second=200)
    assert [tiles.change(name)[:2] for name in TILES] == [("", "9"), ("", "200"), ("", "1 %"), ("", "–")]
    dashboard("03", users=31, users_note="simulated")
    assert dashboard("05", users=8).change("users")[:2] == ("", "8")  # which is not compared with a simulation
    with pytest.raises(TypeError, match="user_note"):
        dashboard("05", users=8, user_note="measured")
    [machine] = known = json.loads(kept.read_text())
    for damaged in ("", "{", "[1]", json.dumps({machine: 3}), json.dumps({machine: {"00": {"busy": "all"}, "01": 2}})):
        kept.write_text(damaged)
        assert dashboard("05", users=4).change("busy")[1] == "–", damaged
    kept.write_text(json.dumps({"another machine": known[machine]}))
    assert dashboard("05", busy=1).change("busy")[:2] == ("", "100 %")


def test_the_dashboard_keeps_nothing_where_no_progress_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("MINISPEC_PROGRESS", "off")
    assert dashboard("05", users=3).change("users")[1] == "3" and list(tmp_path.iterdir()) == []
