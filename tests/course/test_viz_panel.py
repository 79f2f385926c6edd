"""Panels follow their controls; predictions keep the first guess, and the answer is shown with or without one."""

from __future__ import annotations

import math

import ipywidgets
import plotly.graph_objects as go
import pytest

from minispec.course.viz.panel import Panel, choice, player, slider, switch
from minispec.course.viz.predict import Prediction, predict

# ---------------------------------------------------------------- panels


def shown_figure(panel: Panel) -> dict:
    """What the browser gets to draw."""
    [output] = panel._plot.outputs
    return output["data"]["application/vnd.plotly.v1+json"]


def test_a_figure_follows_its_controls():
    panel = Panel(
        lambda k, T: go.Figure(go.Bar(y=[k, T])), {"k": slider("k", 2, 1, 9), "T": slider("T", 0.5, 0, 1, 0.1)}
    )
    assert panel.values == {"k": 2, "T": 0.5} and shown_figure(panel)["data"][0]["y"] == [2, 0.5]
    panel.controls["k"].value = 7
    panel.controls["T"].value = 0.8
    assert shown_figure(panel)["data"][0]["y"] == [7, 0.8] == list(panel.picture.data[0].y)


def test_html_and_words_follow_too():
    panel = Panel(lambda on: (f"<b>{on}</b>", f"it is < {on}"), {"on": switch("on")})
    assert panel.picture == panel._html.value == "<b>False</b>" and panel.words == "it is < False"
    panel.controls["on"].value = True
    assert panel._html.value == "<b>True</b>"
    assert "it is &lt; True" in panel._caption.value and 'role="status"' in panel._caption.value


def test_a_picture_without_words_has_no_caption():
    panel = Panel(lambda k: f"<i>{k}</i>", {"k": slider("k", 1, 1, 2)})
    assert panel.words == "" == panel._caption.value


def test_one_change_draws_once():
    drawn = []
    panel = Panel(lambda k: drawn.append(k) or str(k), {"k": slider("k", 1, 1, 5)})
    panel.controls["k"].value = 4
    assert drawn == [1, 4]


def test_the_browser_can_find_panels_and_their_controls():
    k, on = slider("k", 1, 1, 5), switch("on")
    panel = Panel(lambda k, on: f"{k}{on}", {"k": k, "on": on})
    assert "minispec-panel" in panel._dom_classes
    row, picture, caption = panel.children
    assert list(row.children) == [k, on] and picture is panel._html and caption is panel._caption


def test_what_a_learner_may_get_wrong_shows_as_an_error():
    with pytest.raises(TypeError, match="unexpected keyword"):
        Panel(lambda k: str(k), {"gamma": slider("γ", 1, 1, 5)})


@pytest.mark.parametrize(
    ("made", "kind"),
    [(slider("k", 2, 0, 8), int), (slider("k", 2, 0, 8, 2), int), (slider("x", 0.2, 0.0, 1.0, 0.05), float)],
)
def test_a_slider_has_the_numbers_it_was_given(made, kind):
    assert isinstance(made.value, kind)
    made.value = made.max
    assert made.value == made.max and made.min == 0 and made.step in (1, 2, 0.05)


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
    play, place = player("step", 5)
    drawn = []
    panel = Panel(lambda step: drawn.append(step) or str(step), {"step": place, "play": play})
    assert panel.values == {"step": 0} and list(panel.children[0].children) == [place, play]
    play.value = 3
    assert place.value == 3 and panel.picture == "3" and drawn == [0, 3]
    place.value = 5
    assert play.value == 5 == play.max == place.max


# ---------------------------------------------------------------- predictions


def test_the_first_guess_counts(capsys):
    guess = predict("How long?", "ms")
    guess.commit(5)
    guess.commit(9)
    assert guess.guess == 5 and guess._field.disabled and guess._button.disabled
    guess.reveal(10)
    assert capsys.readouterr().out.splitlines()[:2] == ["your guess: 5 ms", "the answer: 10 ms"]


def test_the_button_commits_what_is_in_the_field():
    guess = predict("How many?")
    guess._field.value = 7.5
    guess._button.click()
    assert guess.guess == 7.5 and "7.5" in guess._said.value
    assert "minispec-predict" in guess._dom_classes


def test_the_answer_comes_without_a_guess_too(capsys):
    predict("How many?").reveal(0.25)
    out = capsys.readouterr().out
    assert "none" in out and "the answer: 0.25" in out


def test_questions_are_text():
    guess = Prediction("is p < q & r?")
    assert "p &lt; q &amp; r" in guess.children[0].value
    guess = Prediction("units too", unit="<b>")
    guess.commit(1)
    assert "<b>" not in guess._said.value


@pytest.mark.parametrize("guess", [math.nan, math.inf, -math.inf, "5", None, True])
def test_no_guess_but_a_number(guess):
    prediction = predict("How many?")
    with pytest.raises(ValueError, match="guess"):
        prediction.commit(guess)
    assert prediction.guess is None


@pytest.mark.parametrize(
    ("guess", "answer", "said"),
    [
        (100, 95, "within 10 %"),
        (0, 0, "within 10 %"),
        (-10, -10.5, "within 10 %"),
        (10, 5, "too high by a factor of 2"),
        (5, 10, "too low by a factor of 2"),
        (1, 1840, "too low by a factor of 1,840"),
        (3, -3, "sign"),
        (0, 5, "too low"),
        (5, 0, "too high"),
    ],
)
def test_the_verdict(guess, answer, said, capsys):
    prediction = predict("?")
    prediction.commit(guess)
    prediction.reveal(answer)
    assert said in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize(
    ("number", "written"),
    [(0.05, "0.05"), (2.7731, "2.77"), (1840, "1,840"), (123456, "123,000"), (0, "0"), (-0.5, "-0.5"),
     (1e-7, "0.0000001"), (9.999, "10"), (5, "5"), (1e15, "1,000,000,000,000,000")],
)  # fmt: skip
def test_numbers_have_three_figures(number, written, capsys):
    predict("?").reveal(number)
    assert capsys.readouterr().out.splitlines()[-1] == f"the answer: {written}"


def test_a_panel_is_a_widget_and_so_is_a_prediction():
    assert isinstance(Panel(lambda: "x", {}), ipywidgets.Widget) and isinstance(predict("?"), ipywidgets.Widget)
