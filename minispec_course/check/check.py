"""Checks that diagnose: run an answer on cases that tell right from wrong, and name the mistake it makes.

`judge` decides, `check` tells the learner. There are three outcomes:

    not attempted   the stub still raises NotImplementedError: said, not raised (raised under MINISPEC_STRICT=1)
    wrong           raised, with a diagnosis and the smallest case that fails
    right           said

All texts are plain and the same on every run, so that nbval can compare them.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from textwrap import indent, wrap
from typing import Any

from torch import Tensor

from ..exercises.exercise import Exercise, find
from ..exercises.fresh import PUBLIC, Trial, smaller_trials, trials
from ..exercises.fresh import properties as fresh_properties
from ..exercises.show import as_tensor, differences, kind, paste
from . import progress
from .after import praise
from .attempt import Watched, observe, run, unsteady
from .diagnosis import Trouble, agree, borrowed, diagnose, expected_of, length_of, outcome
from .keep import kept
from .progress import NOT_ATTEMPTED, RIGHT, WRONG

ROUGH = 0.03  # what is off by less, and everywhere, lacks digits
MOST_PRINTED = 20  # lines of what an answer printed, in a message


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


def check(id: str, answer: Callable) -> None:
    """Judge an answer and tell its author: prints when it is right or not there yet, raises when it is wrong."""
    outcome, text = tried(id, answer)
    if outcome == WRONG:
        raise Wrong(text)
    if outcome == RIGHT:
        kept(id, answer)
    if outcome == NOT_ATTEMPTED and os.environ.get("MINISPEC_STRICT", "0") not in ("", "0"):
        raise NotAttempted(text)
    print(text)


def tried(id: str, answer: Callable) -> tuple[str, str]:
    """The outcome of an attempt, which is noted as progress, and the words for its author."""
    exercise = find(id)
    judgement = judge(exercise, answer)
    progress.attempted(id, judgement.outcome)
    text = judgement.text
    if name := borrowed(exercise, answer):  # here it works, in the grader there is no such function
        note = f"Note: your function calls {name}, which is what you are asked to write."
        text += f"\n\n{wrapped(note + ' `minispec grade` gives no points.')}"
    return judgement.outcome, text


def draw(id: str, answer: Callable):
    """Show what an answer does, right or wrong: a figure to look at, or a printed text."""
    exercise = find(id)
    if exercise.picture is None:
        raise ValueError(f"id={id!r} has no picture: only check and hint know it")
    watched = Watched(answer)
    drawn = run(lambda: exercise.picture(watched), watched, exercise.seconds)
    if said := what_it_printed(watched.printed[-1], "while it was drawn"):
        print(said)
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
    drawn = trials(exercise, secret)
    expected = expected_of(exercise, drawn, secret)
    watched, got = Watched(answer), []
    end = watched.spent() + exercise.seconds
    for trial in drawn:
        got.append(observe(exercise, watched, trial.case, end))
        if isinstance(got[-1], Trouble):
            if got[-1].is_stub and len(got) == 1:
                text = f"{exercise.id}: not attempted yet, it ends with NotImplementedError."
                return Judgement(NOT_ATTEMPTED, f'{text} Stuck? hint("{exercise.id}")')
            if got[-1].sort == "TimeUp":
                got += [got[-1]] * (len(drawn) - len(got))  # there is no time for the others
                break
    passed = [agree(e, g) for e, g in zip(expected, got, strict=True)]
    properties = credit(exercise, drawn, passed)
    if (trouble := unsteady(exercise, watched, drawn, got, end)) is not None:
        failed = {name: {**part, "passed": False} for name, part in properties.items()}
        return Judgement(WRONG, report(exercise, trouble.text), properties=failed)
    if not all(passed):
        return explained(exercise, watched, secret, expected, got, properties, end)
    if exercise.trial:
        attempt = exercise.trial()  # what it needs, a model say, is made ready in our time and not in the learner's
        tried = run(lambda: attempt(watched), watched, exercise.seconds)
        if isinstance(tried, Trouble):
            return Judgement(WRONG, report(exercise, tried.text), properties=properties)
    said = what_it_printed(watched.printed[0], "in the first example")
    return Judgement(RIGHT, "\n\n".join([praise(exercise), *[said] * bool(said)]), properties=properties)


def explained(exercise, answer, secret, expected, got, properties, end) -> Judgement:
    """The judgement of a wrong answer: the first example that fails or else the smallest fresh case, and why."""
    drawn = trials(exercise, secret)
    number = next(i for i in range(len(got)) if not agree(expected[i], got[i]))
    case, wanted, came, printed = drawn[number].case, expected[number], got[number], answer.printed[number]
    if drawn[number].property is not None:
        case, wanted, came, printed = shrunk(exercise, answer, secret, expected, got, end)
    said = what_it_printed(printed, "there")
    if isinstance(came, Trouble):
        return Judgement(WRONG, report(exercise, came.text, case, [], said), case=number, properties=properties)
    mutant = diagnose(exercise, drawn, secret, expected, got)
    came = as_tensor(came) if isinstance(wanted, Tensor) else came
    if mutant:
        text = exercise.mutants[mutant].diagnosis
    elif not answer.precise or all(agree(e, g, least=ROUGH) for e, g in zip(expected, got, strict=True)):
        text = "Your numbers have two or three correct digits at best. Somewhere your function computes in too low "
        text += "a precision (float16, bfloat16), or it rounds. Use float32 or float64."
    elif kind(wanted) != kind(came) and (type(wanted) is not type(came) or not isinstance(came, (list, tuple))):
        text = f"Your function returns {kind(came)} where {kind(wanted)} is expected."
    else:
        text = "Not the right answer, and none of the usual mistakes."
    return Judgement(WRONG, report(exercise, text, case, differences(wanted, came), said), mutant, number, properties)


def shrunk(exercise, answer: Watched, secret, expected, got, end) -> tuple[dict, Any, Any, str]:
    """The shortest case that fails, of those that were tried and of small ones of the same property; what was wanted,
    what came, and what the answer printed."""
    drawn = trials(exercise, secret)
    failed = [i for i in range(len(got)) if not agree(expected[i], got[i])]
    failed = [i for i in failed if i < len(answer.printed)] or failed[:1]  # where the time was up, others never ran
    first = min(failed, key=lambda i: length_of(drawn[i].case))
    best = drawn[first].case, expected[first], got[first], answer.printed[first]
    if getattr(got[first], "sort", "") == "TimeUp":
        return best
    for trial in smaller_trials(exercise, drawn[first].property, secret):
        if length_of(trial.case) < length_of(best[0]):
            wanted = outcome(exercise, exercise.reference, trial.case)
            came = observe(exercise, answer, trial.case, end)
            if not agree(wanted, came):
                best = trial.case, wanted, came, answer.printed[-1]
    return best


def credit(exercise: Exercise, drawn: list[Trial], passed: list[bool]) -> dict[str, dict]:
    """Each property: whether all of its cases are right, and the points that are for it."""
    parts = fresh_properties(exercise.id)
    total = sum(part.weight for part in parts.values())
    right = {name: all(p for t, p in zip(drawn, passed, strict=True) if t.property == name) for name in parts}
    share = {name: exercise.points * part.weight / total for name, part in parts.items()}
    return {name: {"passed": right[name], "points": round(share[name], 2)} for name in parts}


def earned(exercise: Exercise, judgement: Judgement) -> float:
    """Points: all for a right answer; for a wrong one those of the properties it has, but never all of them."""
    if judgement.outcome == RIGHT:
        return exercise.points
    if judgement.outcome == NOT_ATTEMPTED or not judgement.properties:
        return 0
    shares = [part["points"] for part in judgement.properties.values()]
    have = sum(part["points"] for part in judgement.properties.values() if part["passed"])
    return round(min(have, exercise.points - min(shares)), 2)


def report(exercise: Exercise, diagnosis: str, case: dict | None = None, found: Sequence[str] = (), said="") -> str:
    """The message of a wrong answer; `said`: what it printed, in words."""
    parts = [f"{exercise.id}: wrong", wrapped(diagnosis)]
    if case is not None:
        meant = {name: f"  # {words}" for name, words in exercise.legend.items()}
        lines = [f"{name} = {paste(value)}{meant.get(name, '')}" for name, value in case.items()] + [*found]
        parts.append("The smallest case that shows it:\n" + indent("\n".join(lines), "    "))
    parts += [said] * bool(said)
    return "\n\n".join([*parts, f'Stuck? hint("{exercise.id}")'])


def wrapped(text: str) -> str:
    return "\n".join(wrap(text, 100, break_long_words=False, break_on_hyphens=False))


def what_it_printed(text: str, when: str) -> str:
    """What an answer printed, for its author to see; "" if nothing."""
    lines = text.rstrip("\n").splitlines()
    if not lines:
        return ""
    more = [f"… and {len(lines) - MOST_PRINTED} more lines"] * (len(lines) > MOST_PRINTED)
    return f"Your function printed {when}:\n" + indent("\n".join([*lines[:MOST_PRINTED], *more]), "    ")
