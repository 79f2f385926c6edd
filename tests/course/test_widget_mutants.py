"""The tests of pictures, copies and predictions, tested: each mistake here would break the second visit unseen."""

from __future__ import annotations

import sys

import test_copies
import test_pictures
import test_viz_panel
from mutants.patching import DEATHS, rewrite
from pytest import FixtureRequest, MonkeyPatch, mark, raises
from test_copies import illustrated, root  # noqa: F401
from test_pictures import wanted  # noqa: F401
from test_viz_panel import notebook  # noqa: F401

from minispec_course.build import pictures
from minispec_course.check import copies
from minispec_course.viz.panel import Panel

predictions = sys.modules["minispec_course.viz.predict"]


@mark.parametrize(
    ("owner", "name", "old", "new", "check", "fixture"),
    [
        (
            pictures,
            "as_output",
            '"alt": drawn["words"]',
            '"alt": ""',
            test_pictures.test_a_picture_takes_the_place_of_the_widget,
            "wanted",
        ),
        (
            pictures,
            "store_pictures",
            "if mark in known",
            "if known",
            test_pictures.test_the_same_picture_is_drawn_once,
            "wanted",
        ),
        (
            pictures,
            "store_pictures",
            "places.get((cell.id, cell.source, number))",
            "next(iter(places.values()), None)",
            test_pictures.test_without_a_browser_the_stored_picture_stays,
            "wanted",
        ),
        (
            copies,
            "_is_ours",
            "in marks",
            "or True",
            test_copies.test_what_is_yours_stays_and_the_new_one_is_laid_beside,
            "root",
        ),
        (
            copies,
            "_without_view",
            "kind not in (WIDGET, PICTURE)",
            "kind not in (PICTURE,)",
            test_copies.test_a_widget_without_a_picture_leaves_its_sentence_or_nothing,
            "illustrated",
        ),
        (
            predictions.Prediction,
            "reveal",
            "self.closed or not",
            "not",
            test_viz_panel.test_in_the_lab_the_answer_waits_for_the_guess,
            "notebook",
        ),
        (
            predictions.Prediction,
            "reveal",
            "not os.environ.get(LAB) or ",
            "",
            test_viz_panel.test_no_run_without_a_reader_ever_waits,
            "notebook",
        ),
    ],
)
def test_mutant_is_caught(owner, name, old, new, check, fixture, request: FixtureRequest, capsys):
    given = {fixture: request.getfixturevalue(fixture)}
    with MonkeyPatch.context() as patch:
        if "capsys" in check.__code__.co_varnames:
            given["capsys"] = capsys
        if "monkeypatch" in check.__code__.co_varnames:
            given["monkeypatch"] = patch
        if "decide" in check.__code__.co_varnames:
            given["decide"] = lambda guess: guess.commit(5)
        rewrite(patch, owner, name, old, new)
        with raises(DEATHS):
            check(**given)


def test_a_panel_that_stays_busy_is_noticed():
    with MonkeyPatch.context() as patch:
        rewrite(patch, Panel, "redraw", "self.view.busy = False", "pass")
        with raises(DEATHS):
            test_viz_panel.test_a_panel_is_busy_while_it_draws_and_not_after_an_error()
