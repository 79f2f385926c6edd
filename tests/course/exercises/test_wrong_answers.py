"""Answers by people who saw the exercise notebooks and nothing else: wrong ones are caught, right ones accepted.

The name of another mistake than the stored one would be a wrong diagnosis; none at all is allowed, except where the
answer was written for a mistake that we name.
"""

import pytest
from exercise_cells import ROOT, SOURCES, function_in
from mutants.exercises import ANSWERS

from minispec_course.check.check import RIGHT, WRONG, judge
from minispec_course.exercises.exercise import everything, find


def test_every_exercise_has_stored_answers():
    missing = everything().keys() - {answer.exercise for answer in ANSWERS}
    lessons = [file.read_text(encoding="utf-8") for file in (ROOT / "minispec_course/lessons").glob("*.py")]
    assert all(any(f'@yours("{id}")' in text for text in lessons) for id in missing)  # people write these in a lesson
    assert sum(not answer.right for answer in ANSWERS) > 1800 and sum(answer.right for answer in ANSWERS) > 340


@pytest.mark.nightly
@pytest.mark.parametrize("number", SOURCES)
def test_wrong_ones_are_caught_and_right_ones_accepted(number: str, record_property):
    stored = [answer for answer in ANSWERS if answer.exercise.split(".")[0] == number]
    odd, named = [], 0
    for answer in stored:
        judgement = judge(find(answer.exercise), function_in(answer.source, answer.exercise))
        allowed = [answer.mutant] if answer.named and answer.mutant else [None, answer.mutant]
        if judgement.outcome != (RIGHT if answer.right else WRONG) or judgement.mutant not in allowed:
            odd.append(f"{answer.exercise} ({answer.what}): {judgement.outcome}, {judgement.mutant}")
        named += judgement.mutant is not None
    wrong = sum(not answer.right for answer in stored)
    record_property("stored", f"{len(stored) - wrong} right, {wrong} wrong, {named} of them named")
    print(f"set {number}: {len(stored) - wrong} right ones, {wrong} wrong ones, {named} of them with a name")
    assert not odd, "\n".join(odd)
