"""Checks that diagnose: run an answer on cases chosen to tell right from wrong, and name the mistake it makes.

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
from contextlib import contextmanager, redirect_stdout
from copy import deepcopy
from dataclasses import dataclass
from textwrap import indent, wrap
from time import monotonic
from typing import Any

import torch

from . import progress
from .exercise import Complaint, Exercise, find
from .guard import TimeUp, time_limit
from .show import differences, kind, same, show
from .variants import varied

RIGHT, WRONG, NOT_ATTEMPTED = "right", "wrong", "not attempted"


class Wrong(AssertionError):
    """An answer that was tried and is wrong. Notebooks show its message, and no traceback."""

    def _render_traceback_(self) -> list[str]:
        return str(self).splitlines()


class NotAttempted(Wrong):
    """An answer that nobody has given yet, where one has to be."""


@dataclass(frozen=True)
class Trouble:
    """Why there is nothing to compare: the answer raised, looped, or changed what it was given."""

    text: str
    is_stub: bool = False


@dataclass(frozen=True)
class Judgement:
    outcome: str  # RIGHT, WRONG or NOT_ATTEMPTED
    text: str
    mutant: str | None = None  # the known wrong answer that this one behaves like
    case: int | None = None  # the first that failed


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


def judge(exercise: Exercise, answer: Callable) -> Judgement:
    """Run the cases, smallest first. At the first that fails, look for a mutant that makes the same mistakes."""
    if not callable(answer):
        text = f"check needs your function itself, not what it returns: {kind(answer)} came instead."
        return Judgement(WRONG, report(exercise, text))
    end = monotonic() + exercise.seconds
    for number, case in enumerate(exercise.cases):
        got = observe(exercise, answer, case, end)
        expected = exercise.observe(exercise.reference, **deepcopy(case))
        if isinstance(got, Trouble):
            if got.is_stub and number == 0:
                text = f'{exercise.id}: not attempted yet. Stuck? hint("{exercise.id}")'
                return Judgement(NOT_ATTEMPTED, text)
            return Judgement(WRONG, report(exercise, got.text, case), case=number)
        if not same(expected, got):
            mutant = diagnose(exercise, answer, end)
            if mutant:
                text = exercise.mutants[mutant].diagnosis
            elif kind(expected) != kind(got):
                text = f"Your function returns {kind(got)} where {kind(expected)} is wanted."
            else:
                text = "Not the right answer, and none of the usual mistakes."
            return Judgement(WRONG, report(exercise, text, case, differences(expected, got)), mutant, number)
    if exercise.trial:
        attempt = exercise.trial()  # what it needs, a model say, is made ready in our time and not in the learner's
        tried = run(lambda: attempt(answer), answer, exercise.seconds)
        if isinstance(tried, Trouble):
            return Judgement(WRONG, report(exercise, tried.text))
    cases = "1 case" if len(exercise.cases) == 1 else f"{len(exercise.cases)} cases"
    return Judgement(RIGHT, f"{exercise.id}: right, in {cases}. Compare with {exercise.code}.")


def diagnose(exercise: Exercise, answer: Callable, end: float) -> str | None:
    """The mutant that explains every wrong result of an answer; of several, the one that agrees with it most often."""
    expected = [exercise.observe(exercise.reference, **deepcopy(case)) for case in exercise.cases]
    got = [observe(exercise, answer, case, end) for case in exercise.cases]
    failed = [i for i in range(len(got)) if not isinstance(got[i], Trouble) and not same(expected[i], got[i])]
    best, most = None, 0
    for name in exercise.mutants:
        agrees = [same(known, seen) for known, seen in zip(behaviour(exercise, name), got, strict=True)]
        if all(agrees[i] for i in failed) and sum(agrees) > most:
            best, most = name, sum(agrees)
    return best


def behaviour(exercise: Exercise, name: str) -> list:
    """What a mutant does with each case. It always does the same, so it is made to do it once."""
    if name not in exercise.seen:
        function = exercise.mutants[name].function
        exercise.seen[name] = [exercise.observe(function, **deepcopy(case)) for case in exercise.cases]
    return exercise.seen[name]


def observe(exercise: Exercise, answer: Callable, case: dict[str, Any], end: float) -> Any:
    """What an answer does with a case, or a Trouble."""
    given = deepcopy(case)
    seen = run(lambda: exercise.observe(answer, **given), answer, end - monotonic(), exercise.seconds)
    changed = getattr(answer, "changed", ())  # of an answer in another process: what it did to its copies
    for name in case:  # whatever else went wrong may well come from this
        if not same(case[name], given[name]) or any(given[name] is argument for argument in changed):
            return Trouble(
                f"Your function changes its argument {name}, which belongs to the caller. Work on a copy, or write the "
                "result into something new."
            )
    return seen


def run(program: Callable, answer: Callable, seconds: float, allowed: float | None = None) -> Any:
    """Run code that calls an answer: within its time, quietly, with the same random numbers on every run."""
    printed = io.StringIO()
    try:
        with time_limit(max(seconds, 0.001)), redirect_stdout(printed), repeatable():
            return program()
    except TimeUp:
        return Trouble(
            f"Your function was stopped after {allowed or seconds:g} seconds. Is there a loop that never ends?"
        )
    except NotImplementedError as error:
        return Trouble(f"Part of your function still raises NotImplementedError{where(error, answer)}.", is_stub=True)
    except Complaint as complaint:
        return Trouble(str(complaint)[:1].upper() + str(complaint)[1:])
    except (Exception, SystemExit) as error:
        said = " ".join(str(error).split())[:300]
        return Trouble(f"Your function raised {type(error).__name__}{': ' * bool(said)}{said}{where(error, answer)}.")


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
def repeatable():
    """An answer that draws random numbers of its own gets the same ones every time, and nobody else notices."""
    state = random.getstate()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        random.seed(0)
        try:
            yield
        finally:
            random.setstate(state)


def report(exercise: Exercise, diagnosis: str, case: dict | None = None, found: list[str] | None = None) -> str:
    """The message of a wrong answer."""
    parts = [f"{exercise.id}: wrong", "\n".join(wrap(diagnosis, 100, break_long_words=False))]
    if case is not None:
        lines = [f"{name} = {show(value)}" for name, value in case.items()] + (found or [])
        parts.append("The smallest case that shows it:\n" + indent("\n".join(lines), "    "))
    return "\n\n".join([*parts, f'Stuck? hint("{exercise.id}")'])
