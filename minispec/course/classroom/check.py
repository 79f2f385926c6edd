"""Checks that diagnose: run an answer on cases that tell right from wrong, and name the mistake it makes.

`judge` decides, `check` tells the learner. There are three outcomes:

    not attempted   the stub still raises NotImplementedError: said, not raised (raised under MINISPEC_STRICT=1)
    wrong           raised, with a diagnosis and the smallest case that fails
    right           said

All texts are plain and the same on every run, so that nbval can compare them.
"""

from __future__ import annotations

import io
import linecache
import os
import random
from collections.abc import Callable
from contextlib import contextmanager, redirect_stdout, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from textwrap import indent, wrap
from time import monotonic
from typing import Any

import numpy as np
import torch

from . import progress
from .diagnosis import Trouble, agree, diagnose, expected_of, length_of, outcome, unused_arguments
from .exercise import Complaint, Exercise, find
from .fresh import PUBLIC, Trial, smaller_trials, trials
from .fresh import properties as fresh_properties
from .guard import TimeUp, time_limit
from .show import differences, kind, paste, same
from .variants import varied

RIGHT, WRONG, NOT_ATTEMPTED = "right", "wrong", "not attempted"


class Wrong(AssertionError):
    """An answer that was tried and is wrong. Notebooks show its message, and no traceback."""

    def _render_traceback_(self) -> list[str]:
        return str(self).splitlines()


class NotAttempted(Wrong):
    """An answer that nobody has given yet, where one has to be."""


@dataclass(frozen=True)
class Judgement:
    outcome: str  # RIGHT, WRONG or NOT_ATTEMPTED
    text: str
    mutant: str | None = None  # the known wrong answer that this one behaves like
    case: int | None = None  # the first that failed
    properties: dict[str, dict] = field(default_factory=dict)  # name → {"passed": bool, "points": what it is worth}


def check(id: str, answer: Callable, **parameters) -> None:
    """Judge an answer and tell its author: prints when it is right or not there yet, raises when it is wrong.

    parameters: those of a variant, as the notebook of a class gives them."""
    judgement = judge(varied(id, parameters) if parameters else find(id), answer)
    progress.attempted(id, judgement.outcome)
    if judgement.outcome == WRONG:
        raise Wrong(judgement.text)
    if judgement.outcome == NOT_ATTEMPTED and os.environ.get("MINISPEC_STRICT", "0") not in ("", "0"):
        raise NotAttempted(judgement.text)
    print(judgement.text)


def hint(id: str) -> None:
    """Print the hints seen so far and the next one."""
    hints = find(id).hints
    seen = progress.hinted(id, len(hints))
    for number, text in enumerate(hints[:seen], start=1):
        print(f"{id}, hint {number} of {len(hints)}: {text}")


def draw(id: str, answer: Callable):
    """Show what an answer does, right or wrong: a figure to look at, or a printed text."""
    exercise = find(id)
    if exercise.picture is None:
        raise ValueError(f"id={id!r} has no picture: only check and hint know it")
    drawn = run(lambda: exercise.picture(answer), answer, exercise.seconds)
    if isinstance(drawn, Trouble):
        print(f"{id}: nothing to show yet" if drawn.is_stub else f"{id}: nothing to show. {drawn.text}")
    elif isinstance(drawn, str):
        print(drawn)
    else:
        return drawn


def reference(id: str) -> Callable:
    """Our own answer, for the exercises that build on this one."""
    return find(id).reference


# ---- the verdict ----------------------------------------------------------------------------------------------------


def judge(exercise: Exercise, answer: Callable, secret: str | bytes | None = None) -> Judgement:
    """Run the examples, then fresh cases. Where some fail, look for what they have in common.

    secret: the teacher's, which fresh cases follow from; without one they are those of every notebook's check."""
    secret = secret.hex() if isinstance(secret, bytes) else secret or PUBLIC
    if not callable(answer):
        text = f"check needs your function itself, not what it returns: {kind(answer)} came instead."
        return Judgement(WRONG, report(exercise, text))
    end = monotonic() + exercise.seconds
    drawn = trials(exercise, secret)
    expected = expected_of(exercise, drawn, secret)
    watched, got = Watched(answer), []
    for trial in drawn:
        got.append(observe(exercise, watched, trial.case, end))
        if isinstance(got[-1], Trouble):
            if got[-1].is_stub and len(got) == 1:
                return Judgement(NOT_ATTEMPTED, f'{exercise.id}: not attempted yet. Stuck? hint("{exercise.id}")')
            if got[-1].sort == "TimeUp":
                got += [got[-1]] * (len(drawn) - len(got))  # there is no time for the others
                break
    passed = [agree(e, g) for e, g in zip(expected, got, strict=True)]
    properties = credit(exercise, drawn, passed)
    if (trouble := watched.trouble() or unsteady(exercise, answer, drawn, got, end)) is not None:
        failed = {name: {**part, "passed": False} for name, part in properties.items()}
        return Judgement(WRONG, report(exercise, trouble.text), properties=failed)
    if not all(passed):
        return explained(exercise, answer, secret, expected, got, properties, end)
    if exercise.trial:
        attempt = exercise.trial()  # what it needs, a model say, is made ready in our time and not in the learner's
        tried = run(lambda: attempt(answer), answer, exercise.seconds)
        if isinstance(tried, Trouble):
            return Judgement(WRONG, report(exercise, tried.text), properties=properties)
    cases = "1 case" if len(exercise.cases) == 1 else f"{len(exercise.cases)} cases"
    text = f"{exercise.id}: right, in {cases}. Compare with {exercise.code}."
    return Judgement(RIGHT, text, properties=properties)


def explained(exercise, answer, secret, expected, got, properties, end) -> Judgement:
    """The judgement of a wrong answer: the first example that fails or else the smallest fresh case, and why."""
    drawn = trials(exercise, secret)
    number = next(i for i in range(len(got)) if not agree(expected[i], got[i]))
    case, wanted, came = drawn[number].case, expected[number], got[number]
    if drawn[number].property is not None:
        case, wanted, came = shrunk(exercise, answer, secret, expected, got, end)
    if isinstance(came, Trouble):
        return Judgement(WRONG, report(exercise, came.text, case), case=number, properties=properties)
    mutant = diagnose(exercise, drawn, secret, expected, got)
    if mutant:
        text = exercise.mutants[mutant].diagnosis
    elif type(wanted) is not type(came) and kind(wanted) != kind(came):
        text = f"Your function returns {kind(came)} where {kind(wanted)} is wanted."
    elif unused := unused_arguments(answer, exercise.reference):
        text = f"Your function never uses {' and '.join(f'`{name}`' for name in unused)}, but the result depends on it."
    elif kind(wanted) != kind(came) and not isinstance(came, (list, tuple)):
        text = f"Your function returns {kind(came)} where {kind(wanted)} is wanted."
    else:
        text = "Not the right answer, and none of the usual mistakes."
    return Judgement(WRONG, report(exercise, text, case, differences(wanted, came)), mutant, number, properties)


def shrunk(exercise, answer, secret, expected, got, end) -> tuple[dict, Any, Any]:
    """The shortest case that fails, of those that were tried and of small ones of the same property."""
    drawn = trials(exercise, secret)
    failed = [i for i in range(len(got)) if not agree(expected[i], got[i])]
    first = min(failed, key=lambda i: length_of(drawn[i].case))
    best = drawn[first].case, expected[first], got[first]
    if getattr(got[first], "sort", "") == "TimeUp":
        return best
    for trial in smaller_trials(exercise, drawn[first].property, secret):
        if length_of(trial.case) < length_of(best[0]):
            wanted = outcome(exercise, exercise.reference, trial.case)
            came = observe(exercise, answer, trial.case, end)
            if not agree(wanted, came):
                best = trial.case, wanted, came
    return best


def credit(exercise: Exercise, drawn: list[Trial], passed: list[bool]) -> dict[str, dict]:
    """Each property: whether all of its cases are right, and the points that are for it."""
    parts = fresh_properties(exercise.id)
    total = sum(part.weight for part in parts.values())
    right = {name: all(p for t, p in zip(drawn, passed, strict=True) if t.property == name) for name in parts}
    share = {name: exercise.points * part.weight / total for name, part in parts.items()}
    return {name: {"passed": right[name], "points": round(share[name], 2)} for name in parts}


def earned(exercise: Exercise, judgement: Judgement, partial: bool = True) -> float:
    """Points: all for a right answer; for a wrong one those of the properties it has, but never all of them."""
    if judgement.outcome == RIGHT:
        return exercise.points
    if judgement.outcome == NOT_ATTEMPTED or not partial or not judgement.properties:
        return 0
    shares = [part["points"] for part in judgement.properties.values()]
    have = sum(part["points"] for part in judgement.properties.values() if part["passed"])
    return round(min(have, exercise.points - min(shares)), 2)


# ---- one case -------------------------------------------------------------------------------------------------------


def observe(exercise: Exercise, answer: Callable, case: dict[str, Any], end: float, seed: int = 0) -> Any:
    """What an answer does with a case, or a Trouble."""
    given = deepcopy(case)
    seen = run(lambda: exercise.observe(answer, **given), answer, end - monotonic(), exercise.seconds, seed)
    changed = getattr(answer, "changed", ())  # of an answer in another process: what it did to its copies
    for name in case:  # whatever else went wrong may well come from this
        if not same(case[name], given[name]) or any(given[name] is argument for argument in changed):
            text = f"Your function changes its argument {name}, which belongs to the caller. "
            return Trouble(text + "Work on a copy, or write the result into something new.", sort=f"changes {name}")
    return seen


def unsteady(exercise, answer, drawn, got, end) -> Trouble | None:
    """Ask some cases a second time, with other random numbers in every library: the result should be the same."""
    for i in sorted({0, len(exercise.cases) - 1, len(drawn) - 1}):
        if isinstance(got[i], Trouble) or not same(got[i], deepcopy(got[i])):  # an object that equals nothing
            continue
        again = observe(exercise, answer, drawn[i].case, end, seed=1)
        if getattr(again, "sort", "") == "TimeUp":
            return None  # a slow machine, which says nothing about the answer
        if not agree(got[i], again):
            text = "Your function gives another result when it is called again with the same arguments. Either it uses "
            text += "random numbers of its own, or it keeps something between calls: a global, or a default argument."
            return Trouble(text)
    return None


class Watched:
    """An answer whose results are looked at again later: a result that a later call changes was never safe to keep."""

    def __init__(self, answer: Callable):
        self.answer, self.kept = answer, []

    def __getattr__(self, name: str):
        return getattr(self.answer, name)

    def __call__(self, *args, **named):
        result = self.answer(*args, **named)
        if len(self.kept) < 8 and not any(result is arg for arg in args):
            with suppress(Exception):
                copy = deepcopy(result)
                self.kept += [(result, copy)] * same(result, copy)  # an object that equals nothing says nothing
        return result

    def trouble(self) -> Trouble | None:
        if all(same(result, copy) for result, copy in self.kept):
            return None
        return Trouble(
            "A later call of your function changes what an earlier one returned. Make a new result each time."
        )


def run(program: Callable, answer: Callable, seconds: float, allowed: float | None = None, seed: int = 0) -> Any:
    """Run code that calls an answer: within its time, quietly, with the same random numbers on every run."""
    printed = io.StringIO()
    try:
        with time_limit(max(seconds, 0.001)), redirect_stdout(printed), repeatable(seed):
            return program()
    except TimeUp:
        text = f"Your function was stopped after {allowed or seconds:g} seconds. Is there a loop that never ends?"
        return Trouble(text, sort="TimeUp")
    except NotImplementedError as error:
        return Trouble(f"Part of your function still raises NotImplementedError{where(error, answer)}.", is_stub=True)
    except Complaint as complaint:
        return Trouble(sentence(str(complaint)), sort=str(complaint))
    except (Exception, SystemExit) as error:
        said = " ".join(str(error).split())[:300]
        text = f"Your function raised {type(error).__name__}{': ' * bool(said)}{said}{where(error, answer)}."
        return Trouble(text, sort=type(error).__name__)


def sentence(text: str) -> str:
    """With a capital letter, unless it begins with a name of the code: all_reduce, rewind(5), q."""
    first = text.split(" ")[0]
    return text if (len(first) == 1 and first != "a") or not first.isalpha() else text[:1].upper() + text[1:]


def where(error: BaseException, answer: Callable) -> str:
    """The last line of the learner's own code that an error came through."""
    if hasattr(error, "where"):  # it happened in another process, which told us
        return error.where
    file, line, frame = getattr(getattr(answer, "__code__", None), "co_filename", None), None, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == file:
            line = frame.tb_lineno
        frame = frame.tb_next
    if line is None:
        return ""
    source = linecache.getline(file, line).strip()
    return f", in line {line} of its cell" + f": {source}" * bool(source)


@contextmanager
def repeatable(seed: int = 0):
    """An answer that draws random numbers of its own gets the same ones every time, and nobody else notices."""
    state, numpy_state, torch_state = random.getstate(), np.random.get_state(), torch.random.get_rng_state()
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would also look for GPUs, which takes longer
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)
        torch.random.set_rng_state(torch_state)


def report(exercise: Exercise, diagnosis: str, case: dict | None = None, found: list[str] | None = None) -> str:
    """The message of a wrong answer."""
    parts = [f"{exercise.id}: wrong", "\n".join(wrap(diagnosis, 100, break_long_words=False))]
    if case is not None:
        lines = [f"{name} = {paste(value)}" for name, value in case.items()] + (found or [])
        parts.append("The smallest case that shows it:\n" + indent("\n".join(lines), "    "))
    return "\n\n".join([*parts, f'Stuck? hint("{exercise.id}")'])
