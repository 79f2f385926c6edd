"""Fresh cases: repeatable, shrunk before they are shown, worth points; and a table of the examples is never enough."""

import random
from copy import deepcopy
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
import torch
from exercise_notebooks import SOURCES

from minispec_course.check.diagnosis import agree, expected_of, outcome
from minispec_course.exercises import exercise as exercises
from minispec_course.exercises import facts as written
from minispec_course.exercises import fresh as drawing
from minispec_course.exercises.exercise import Exercise, everything, probs
from minispec_course.exercises.fresh import Draw, properties, trials
from minispec_course.exercises.show import beside, largest_difference, paste, same

checking = import_module("minispec_course.check.check")
judge, earned = checking.judge, checking.earned
SECRET = b"a teacher's secret"


@pytest.fixture
def doubling(monkeypatch) -> Exercise:
    """Twice a tensor, whatever its length; with a property for long ones and one for zeros."""
    monkeypatch.setattr(exercises, "REGISTRY", dict(exercises.REGISTRY))
    monkeypatch.setattr(drawing, "PROPERTIES", dict(drawing.PROPERTIES))
    facts = written.Facts("99.twice", "Twice", "E", 5, 3, "minispec.verify", "", ["one", "two", "three"])
    monkeypatch.setitem(written.everything(), "99.twice", facts)
    made = exercises.exercise(
        "99.twice", seconds=5, reference=lambda x: 2 * x, cases=[dict(x=probs(0.5)), dict(x=probs(0.25, 0.75))]
    )

    drawing.fresh(
        "99.twice", "any length", lambda draw: dict(x=draw.decimals(draw.whole(1, 2 + 2 * draw.size))), weight=2
    )
    drawing.fresh("99.twice", "zeros", lambda draw: dict(x=torch.zeros(draw.whole(1, 4)).double()))

    @made.mutant
    def nothing(x):
        """You return it unchanged."""
        return x.clone()

    return made


# ---- the draw -------------------------------------------------------------------------------------------------------


def test_a_seed_gives_the_same_cases_and_another_seed_others(doubling):
    first, again = ([trial.case for trial in trials(doubling, "a")] for _ in range(2) if doubling.seen.clear() is None)
    assert same(first, again)
    assert not same(first, [trial.case for trial in trials(doubling, "b")])


@pytest.mark.parametrize("size", [1, 5])
def test_distributions_are_distributions(size):
    draw = Draw("x", size)
    for _ in range(50):
        p = draw.probs()
        assert p.sum() == pytest.approx(1) and bool((p >= 0).all()) and 2 <= len(p) <= 2 + size
        assert bool((draw.probs(positive=True) > 0).all())
        assert len(set(draw.probs(4, distinct=True).tolist())) == 4
    assert any(bool((draw.probs() == 0).any()) for _ in range(20))


@pytest.mark.slow
@pytest.mark.parametrize("number", SOURCES)
def test_fresh_cases_of_a_set(number: str):
    """They are valid, the reference is right whatever the secret, wrong solutions and a table of examples are not."""
    for id, exercise in everything().items():
        if id.split(".")[0] == number:
            names = set(properties(id))
            assert names, f"{id} has no fresh cases"
            cases = trials(exercise, SECRET.hex())
            assert {trial.property for trial in cases} == {None, *names}, id
            assert all(trial.case.keys() == exercise.cases[0].keys() for trial in cases), id
            judgement = judge(exercise, exercise.reference, SECRET)
            assert judgement.outcome == "right" and earned(exercise, judgement) == exercise.points, id
            expected = expected_of(exercise, cases, SECRET.hex())
            drawn = [(e, trial.case) for e, trial in zip(expected, cases, strict=True) if trial.property]
            for name, mutant in exercise.mutants.items():
                same_everywhere = all(agree(e, outcome(exercise, mutant.function, case)) for e, case in drawn)
                assert not same_everywhere, f"no fresh case of {id} shows {name}"
            refuses_a_table_of_the_examples(exercise)


def key_of(args) -> str:
    """The arguments that a table could be looked up by: all data, and what tiles, models and devices hold."""
    held = ("scores", "cache", "_text")
    parts = [next((getattr(arg, name) for name in held if hasattr(arg, name)), arg) for arg in args]
    return repr([paste(part) for part in parts if not callable(part)])


def refuses_a_table_of_the_examples(exercise: Exercise) -> None:
    """Right wherever the arguments are those of an example or of a check with the public seed, and nowhere else."""
    known, exercise = set(), replace(exercise, trial=None)

    def noting(*args):
        known.add(key_of(args))
        return exercise.reference(*args)

    for trial in trials(exercise):
        exercise.observe(noting, **deepcopy(trial.case))

    def table(*args):
        return exercise.reference(*args) if key_of(args) in known else None

    assert judge(exercise, table).outcome == "right", exercise.id
    judgement = judge(exercise, table, SECRET)
    assert judgement.outcome == "wrong" and earned(exercise, judgement) < exercise.points, exercise.id


# ---- what a check makes of them -------------------------------------------------------------------------------------


def test_a_mistake_that_no_example_shows_is_found_and_shown_small(doubling):
    judgement = judge(doubling, lambda x: 2 * x if len(x) < 4 else 3 * x)
    assert judgement.outcome == "wrong" and judgement.case >= len(doubling.cases)
    shown = next(line for line in judgement.text.splitlines() if line.strip().startswith("x = "))
    value = eval(shown.partition("=")[2])
    assert len(value) == 4  # the shortest that fails, and code that makes it


def test_points_are_divided_over_properties(doubling):
    judgement = judge(doubling, lambda x: x.clone())
    assert judgement.properties == {
        "any length": {"passed": False, "points": 2.0},
        "zeros": {"passed": True, "points": 1.0},
    }
    assert earned(doubling, judgement) == 1.0
    assert earned(doubling, judge(doubling, lambda x: 2 * x)) == 3


def test_a_wrong_answer_never_gets_all_points(doubling):
    judgement = judge(doubling, lambda x: 2 * x if not same(x, probs(0.5)) else x)
    assert judgement.outcome == "wrong" and all(part["passed"] for part in judgement.properties.values())
    assert earned(doubling, judgement) == 2.0


def keeps(x, kept=[]):  # noqa: B006
    kept.append(1)
    return 2 * x if len(kept) < 8 else 2 * x + len(kept)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda x: 2 * x + 1e-3 * np.random.rand(), "a different result when called again"),
        (lambda x: 2 * x + 1e-3 * random.random(), "a different result when called again"),
        (lambda x: 2 * x + 1e-3 * torch.rand(1).double(), "a different result when called again"),
        (lambda x: 2 * x + 1e-3 * np.random.default_rng().random(), "a different result when called again"),
        (lambda x: 2 * x + 1e-3 * random.SystemRandom().random(), "a different result when called again"),
        (keeps, "a different result when called again"),
        (lambda x: x.mul_(2), "changes its argument x"),
        (lambda x: (2 * x).bool(), "of True and False"),
    ],
)
def test_misbehaviour_is_named(doubling, answer, words):
    judgement = judge(doubling, answer)
    assert judgement.outcome == "wrong" and words in " ".join(judgement.text.split())


# ---- words ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        probs(0.1, 0.25),
        torch.tensor([[1, 2], [3, 4]]),
        torch.tensor([0.1, 1 / 3]),
        torch.zeros(0, 2).double(),
        torch.tensor([True, False]),
        [1, (2,), "a", None],
        torch.tensor([float("inf"), 1.0]).double(),
    ],
)
def test_a_pasted_value_is_that_value(value):
    again = eval(paste(value))
    assert same(again, value) and getattr(again, "dtype", None) == getattr(value, "dtype", None)


def test_two_values_that_differ_are_shown_to_differ():
    assert beside(0.1, 0.1 + 2e-6) == ("0.1", "0.100002")
    expected, got = torch.zeros(6, 16), torch.zeros(6, 16)
    got[2, 5] = 1
    assert "1 of 96" in largest_difference(expected, got)[0] and "[2, 5]" in largest_difference(expected, got)[0]
