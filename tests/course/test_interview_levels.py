"""Which level an answer reaches: monotone, closed without its must-have points, and not to be had by depth alone."""

from __future__ import annotations

import sys
from itertools import product

import pytest
from mutants.patching import rewrite

from minispec_course.interview import load
from minispec_course.interview.debrief import Graded
from minispec_course.interview.drill import Said, Talk
from minispec_course.interview.question import LEVELS, Question, reached
from minispec_course.interview.rounds import grading

BANK = load()


def test_levels_are_monotone():
    """Every way to tick a question's points: a higher level is never easier, and saying more never lowers the level."""
    for shape in product((3, 4), repeat=3):
        check_levels_are_monotone(shape)


def check_levels_are_monotone(shape=(3, 4, 4)):
    points = dict(zip(LEVELS, shape, strict=True))
    level = {
        counts: reached(dict(zip(LEVELS, counts, strict=True)), points)
        for counts in product(*(range(n + 1) for n in shape))
    }
    n4, n5, n6 = shape
    assert level[0, 0, 0] == 0 and level[n4, 0, 0] == 1 and level[n4, n5, n6] == 3
    assert level[0, n5, 0] == 2 and level[n4, n5, 0] == 2  # only the L5 points: never L6
    assert level[0, 0, n6] == 2 == level[n4, 0, n6]  # all L6 points: always L5, and without L5 points never L6
    for counts, found in level.items():
        for i, n in enumerate(shape):
            more = tuple(count + (i == j) for j, count in enumerate(counts))
            assert counts[i] == n or level[more] >= found  # one more point
        assert found < 3 or (2 * sum(counts) >= sum(shape) and 3 * counts[2] >= 2 * n6 and 3 * counts[1] >= 2 * n5)
    need = [min(sum(counts) for counts, found in level.items() if found >= wanted) for wanted in (1, 2, 3)]
    assert need == sorted(need) and need[2] > need[1]


def ticking(question: Question, *wanted: str, but: str = "") -> int:
    """The level of an answer that makes all points of these levels, or these points, and not `but`."""
    boxes = enumerate(Talk(question).rubric)
    ticked = {i for i, box in boxes if {box.group, box.text} & set(wanted) and box.text != but}
    return Said(Talk(question), frozenset(ticked)).reached


def check_a_must_have_closes_its_level():
    for question in BANK.values():
        must = question.must_haves
        assert ticking(question, *LEVELS) == 3 and ticking(question, "L4") == 1, question.id
        assert ticking(question, "L5") == 2 == ticking(question, "L4", "L5"), question.id  # never L6
        assert ticking(question, "L6", *must) == 2, question.id  # with the must-have points: always L5
        for level, point in question.points:
            below = LEVELS.index(level)
            assert ticking(question, *LEVELS, but=point) == (below if point in must else 3), (question.id, point)


def test_a_must_have_closes_its_level():
    check_a_must_have_closes_its_level()
    assert sum(bool(question.must) for question in BANK.values()) >= 20
    assert BANK["walk-me-through"].must_haves == set(BANK["walk-me-through"].L5[1:3])  # the rule, and exactness


@pytest.mark.parametrize(
    ("old", "new", "check"),
    [
        ('said.get("L5", 0) < needed(points.get("L5", 0)) or ', "", check_levels_are_monotone),
        ("if name >= level", "if name == level", check_levels_are_monotone),
        ("level in lacking or ", "", check_a_must_have_closes_its_level),
    ],
)
def test_wrong_rules_are_found(old, new, check, monkeypatch):
    check()
    rewrite(monkeypatch, sys.modules[__name__], "reached", old, new)
    monkeypatch.setattr(sys.modules[Said.__module__], "reached", reached)
    with pytest.raises(AssertionError):
        check()


def test_a_must_have_closes_its_level_in_the_mock_too():
    question = BANK["walk-me-through"]
    turn = grading(question, [], [])
    every = {i: "the words that earn it" for i, box in enumerate(turn.boxes) if box.group in LEVELS}
    [one, other] = (i for i, box in enumerate(turn.boxes) if box.must)
    assert Graded(turn, every, {}, {}).level() == 3
    for must in (one, other):
        shown, claimed = {i: words for i, words in every.items() if i != must}, {must: every[must]}
        assert Graded(turn, shown, claimed, {}).level() == 1  # claimed is not shown
        assert Graded(turn, shown, claimed, {}).level(with_claims=True) == 3
