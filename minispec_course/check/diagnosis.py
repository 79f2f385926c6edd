"""What an answer that failed does wrong: the known mistake that it makes, or nothing, where none explains it.

A diagnosis that is wrong is worse than none. So a known wrong answer (a mutant) is named only if it does the same as
the learner's in at least `SHARE` of the cases in which either of the two is wrong, fresh ones included, and in as many
of those in which the learner's is. No other may fit better.
"""

from __future__ import annotations

import ast
import dis
import inspect
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from textwrap import dedent
from types import CodeType, ModuleType
from typing import Any

from ..exercises.exercise import Complaint, Exercise
from ..exercises.fresh import Trial
from ..exercises.show import paste, same

SHARE = 2 / 3
OURS = ("minispec", "minispec_course")


@dataclass(frozen=True)
class Trouble:
    """Why there is nothing to compare: the answer raised, looped, or changed what it was given."""

    text: str
    is_stub: bool = False
    sort: str = ""  # what two answers have in common that fail alike: the name of the error, or the complaint


def agree(a: Any, b: Any) -> bool:
    """Whether two answers did the same with a case."""
    if isinstance(a, Trouble) or isinstance(b, Trouble):
        return isinstance(a, Trouble) and isinstance(b, Trouble) and bool(a.sort) and a.sort == b.sort
    return same(a, b)


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


# ---- what can be read off an answer without running it --------------------------------------------------------------


def unused_arguments(answer: Callable, reference: Callable) -> list[str]:
    """Arguments that an answer never looks at, though ours does."""
    ours, theirs = (getattr(function, "__code__", None) for function in (reference, answer))
    if not ours or not theirs or ours.co_argcount != theirs.co_argcount:
        return []
    names = ours.co_varnames[: ours.co_argcount], theirs.co_varnames[: theirs.co_argcount]
    return [b for a, b in zip(*names, strict=True) if a in mentioned(ours) and b not in mentioned(theirs)]


def mentioned(code) -> set[str]:
    """The local names that a function's code reads, in the functions inside it too."""
    loads = [i.argval for i in dis.get_instructions(code) if "STORE" not in i.opname]
    read = {str(name) for value in loads for name in (value if isinstance(value, tuple) else (value,))}
    return read.union(*(mentioned(inner) for inner in code.co_consts if hasattr(inner, "co_code")))


def source_of(answer: Callable) -> str:
    """The source of an answer; "" where there is none. One in another process brings its own."""
    given = getattr(answer, "source", None)
    if isinstance(given, str):
        return given
    try:
        return dedent(inspect.getsource(answer))
    except (OSError, TypeError):
        return ""


def left_in(answer: Callable) -> bool:
    """Whether the stub's `raise NotImplementedError` still stands in the function, beside code of its author's own."""
    try:
        functions = [node for node in ast.parse(source_of(answer)).body if isinstance(node, ast.FunctionDef)]
    except (SyntaxError, ValueError, RecursionError):
        return False
    if not functions:
        return False
    body = [node for node in functions[-1].body if not says_nothing(node)]
    raised = [isinstance(node, ast.Raise) and "NotImplementedError" in ast.unparse(node) for node in body]
    return any(raised) and not all(raised)


def says_nothing(node: ast.stmt) -> bool:
    """A docstring, an ellipsis, or pass."""
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


def borrowed(exercise: Exercise, answer: Callable) -> str | None:
    """What an answer calls, though it is the very thing that the exercise asks for. The grader does not have it."""
    code, known = getattr(answer, "__code__", None), getattr(answer, "__globals__", {})
    if code is None or answer is exercise.reference:
        return None if code is None else answer.__name__
    names = {name for part in parts_of(code) for name in part.co_names}
    for name in sorted(names & known.keys()):
        found = known[name]
        place = f"{getattr(found, '__module__', '')}.{getattr(found, '__qualname__', '')}"
        if found is exercise.reference or place == exercise.code:
            return name
    modules = {name: known[name].__name__ for name in names if isinstance(known.get(name), ModuleType)}
    ours = [name for name in names if modules.get(name, name).split(".")[0] in OURS]
    asked_for = exercise.code.rpartition(".")[2]
    if ours and asked_for in names and asked_for not in known:  # verify.residual, or imported inside of the function
        return asked_for
    constants = {value for part in parts_of(code) for value in part.co_consts if isinstance(value, str)}
    return f'reference("{exercise.id}")' if "reference" in names and exercise.id in constants else None


def parts_of(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from parts_of(constant)
