"""What can be read off an answer without running it: a stub's line that was left in, and help that is not allowed."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from textwrap import dedent
from types import CodeType, ModuleType

from ..exercises.exercise import Exercise


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
    ours = [name for name in names if name.split(".")[0] == "minispec" or is_ours(known.get(name))]
    asked_for = exercise.code.rpartition(".")[2]
    if ours and asked_for in names and asked_for not in known:  # verify.residual, or imported inside of the function
        return asked_for
    constants = {value for part in parts_of(code) for value in part.co_consts if isinstance(value, str)}
    return f'reference("{exercise.id}")' if "reference" in names and exercise.id in constants else None


def is_ours(found) -> bool:
    return isinstance(found, ModuleType) and found.__name__.split(".")[0] == "minispec"


def parts_of(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from parts_of(constant)
