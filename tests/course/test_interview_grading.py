"""Grading three answers: boxes for every point, levels as the drill counts them, and what differs from our grading."""

from __future__ import annotations

import pytest

from minispec.course import interview
from minispec.course.interview.grading import OURS, Grading
from minispec.course.interview.question import LEVELS

QUESTION = interview.load()["walk-me-through"]


@pytest.fixture
def grades() -> Grading:
    return Grading(QUESTION)


def test_every_point_and_every_sinking_tell_can_be_ticked(grades):
    wanted = [point for level in LEVELS for point in QUESTION.level(level)] + list(QUESTION.sinks)
    for name in OURS["walk-me-through"]:
        assert [box.description for box in grades.boxes[name]] == wanted


def test_ticks_are_worth_what_the_drill_says(grades):
    low, middle = len(QUESTION.L4), len(QUESTION.L5)
    assert grades.said("Ben").level == "below L4"
    grades.tick("Ben", range(low))
    assert grades.said("Ben").level == "L4" and grades.said("Ada").level == "below L4"
    grades.tick("Ben", range(low + middle))
    assert grades.said("Ben").level == "L5" == grades.our_grading("Ben").level
    grades.tick("Ben", [-1])  # a tell that sinks
    assert grades.said("Ben").level == "L4"
    with pytest.raises(ValueError, match="Dora.*Ada, Ben, Cleo"):
        grades.tick("Dora", [0])


def test_our_grades_are_three_levels(grades):
    assert [grades.our_grading(name).level for name in ("Ada", "Ben", "Cleo")] == list(LEVELS)


def test_a_tell_that_sinks_costs_a_level(grades):
    assert grades.level_with("Ben", QUESTION.sinks[0]) == "L4" and grades.level_with("Cleo", QUESTION.sinks[-1]) == "L5"


def test_the_comparison_shows_where_we_differ(grades, capsys):
    grades.compare()
    assert capsys.readouterr().out.count("not graded") == 3
    missing, too_many = QUESTION.L4[0], QUESTION.L6[0]
    all_of_ada = range(1, len(QUESTION.L4))
    grades.tick("Ada", [*all_of_ada, len(QUESTION.L4) + len(QUESTION.L5)])
    grades.compare()
    said = capsys.readouterr().out
    assert f"we also heard: {missing}" in said and f"we did not hear: {too_many}" in said
    assert said.count("not graded") == 2 and said.count("we also heard") == said.count("we did not hear") == 1
