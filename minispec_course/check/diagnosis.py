"""What an answer that failed does wrong: the known mistake that it makes, or nothing, where none explains it.

A diagnosis that is wrong is worse than none. So a known wrong answer (a mutant) is named only if it does the same as
the learner's in at least `SHARE` of the cases in which either of the two is wrong, fresh ones included, and in as many
of those in which the learner's is. No other may fit better.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from ..exercises.exercise import Complaint, Exercise
from ..exercises.fresh import Trial
from ..exercises.show import paste, same

SHARE = 2 / 3


@dataclass(frozen=True)
class Trouble:
    """Why there is nothing to compare: the answer raised, looped, or changed what it was given."""

    text: str
    is_stub: bool = False
    sort: str = ""  # what two answers have in common that fail alike: the name of the error, or the complaint


def agree(a: Any, b: Any, least: float = 0.0) -> bool:
    """Whether two answers did the same with a case, up to rounding or up to `least`."""
    if isinstance(a, Trouble) or isinstance(b, Trouble):
        return isinstance(a, Trouble) and isinstance(b, Trouble) and bool(a.sort) and a.sort == b.sort
    return same(a, b, least)


def expected_of(exercise: Exercise, trials: Sequence[Trial], secret: str) -> list:
    """What the reference does with each case, once for all answers."""
    key = "expected", secret
    if key not in exercise.seen:
        exercise.seen[key] = [exercise.observe(exercise.reference, **deepcopy(trial.case)) for trial in trials]
    return exercise.seen[key]


def behaviour(exercise: Exercise, name: str, trials: Sequence[Trial], secret: str, i: int) -> Any:
    """What a mutant does with case i. It always does the same, so it is made to do it once."""
    known = exercise.seen.setdefault((name, secret), {})
    if i not in known:
        known[i] = outcome(exercise, exercise.mutants[name].function, trials[i].case)
    return known[i]


def outcome(exercise: Exercise, function: Callable, case: dict) -> Any:
    """What a function of ours does with a case: no limits, no watching."""
    try:
        return exercise.observe(function, **deepcopy(case))
    except Complaint as complaint:
        return Trouble(str(complaint), sort=str(complaint))
    except Exception as error:
        return Trouble(str(error), sort=type(error).__name__)


def diagnose(exercise: Exercise, trials: Sequence[Trial], secret: str, expected: Sequence, got: Sequence) -> str | None:
    """The mutant that an answer behaves like."""
    failed = [i for i in range(len(got)) if not agree(expected[i], got[i])]
    passed = [i for i in range(len(got)) if i not in set(failed)]
    best, most = None, 0.0
    for name in exercise.mutants:
        misses = 0
        for i in failed:
            misses += not agree(behaviour(exercise, name, trials, secret, i), got[i])
            if misses > (1 - SHARE) * len(failed):
                break  # most mutants are ruled out by the first few cases
        else:
            others = sum(not agree(behaviour(exercise, name, trials, secret, i), expected[i]) for i in passed)
            share = (len(failed) - misses) / (len(failed) + others)
            if share >= SHARE and share > most:
                best, most = name, share
    return best


def length_of(case: dict) -> int:
    """How much there is to read in a case."""
    return sum(len(paste(value)) for value in case.values())


def borrowed(exercise: Exercise, answer: Callable) -> str | None:
    """What an answer calls, though it is the very thing that the exercise asks for. The grader does not have it."""
    code, known = getattr(answer, "__code__", None), getattr(answer, "__globals__", {})
    for name in code.co_names if code else ():
        found = known.get(name)
        place = f"{getattr(found, '__module__', '')}.{getattr(found, '__qualname__', '')}"
        if found is exercise.reference or place == exercise.code:
            return name
    return None
