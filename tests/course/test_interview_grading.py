"""Grading three answers: boxes for every point, levels as the drill counts them, and what differs from our grading."""

from __future__ import annotations

import re

import pytest

from minispec_course import interview
from minispec_course.interview import summary
from minispec_course.interview.grading import OURS, Grading, bars
from minispec_course.interview.question import LEVELS, reached

QUESTION = interview.load()["walk-me-through"]


@pytest.fixture
def grades() -> Grading:
    return Grading(QUESTION)


def test_every_point_and_every_sinking_tell_can_be_ticked(grades):
    must = QUESTION.must_haves
    wanted = [f"{point} (must-have)" if point in must else point for _, point in QUESTION.points] + list(QUESTION.sinks)
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


def test_without_the_rule_or_exactness_an_answer_is_l4(grades):
    everything = range(len(QUESTION.points))
    for missing in (len(QUESTION.L4) + 1, len(QUESTION.L4) + 2):
        grades.tick("Cleo", everything)
        grades.boxes["Cleo"][missing].value = False
        assert grades.said("Cleo").level == "L4"


def test_the_bars_are_those_that_count():
    """What is printed for each level is just enough, and one point less is not."""
    numbers = [re.findall(r"\d+(?= (?:of|in all))", line) for line in bars(QUESTION).split("\n")]
    [low], [middle], [high, own, all_of_them] = ([int(n) for n in line] for line in numbers)
    points = {level: len(QUESTION.level(level)) for level in LEVELS}
    nothing = dict.fromkeys(LEVELS, 0)
    for level, bar, count in (("L4", low, 1), ("L5", middle, 2)):
        assert reached({**nothing, level: bar}, points) == count
        assert reached({**nothing, level: bar - 1}, points) < count
    enough = {"L4": all_of_them - high - own, "L5": own, "L6": high}
    assert reached(enough, points) == 3
    for level in ("L5", "L6"):
        assert reached({**points, level: enough[level] - 1}, points) < 3
    assert [line[:2] for line in bars(QUESTION).split("\n") if "must-have" in line] == ["L5"]


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


def test_a_card_holds_all_of_a_question():
    text = summary.card(QUESTION)
    folded = text.index("<details>")
    assert text.index(QUESTION.question) < folded < text.index(QUESTION.spoken)
    assert all(text.count(point) == 1 for _, point in QUESTION.points)
    assert text.count("must-have") == len(QUESTION.must) and all(p.reply in text for p in QUESTION.push_backs)


def test_the_table_of_topics_asks_every_question_once():
    bank = interview.load()
    cells = summary.topics_table(bank)
    assert all(cells.count(f"{question.question} `{question.id}`") == 1 for question in bank.values())
    assert all(line.count("|") == 4 for line in cells.split("\n"))  # a bar in a question would make another column
