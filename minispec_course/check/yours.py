"""Functions of a lesson that the learner writes, and that the cells after them use.

`@yours("05.greedy_verify")` above such a function checks it like the exercise with this id. The lesson goes on with the
learner's function if it is right, else with ours. A right one is kept beside the progress, as a program that stands
alone, and `mine("05.greedy_verify")` gives it to later lessons.
"""

import dis
import inspect
import linecache
from collections.abc import Callable
from textwrap import dedent
from types import CodeType, FunctionType, ModuleType

from . import progress
from .check import NOT_ATTEMPTED, RIGHT, reference, tried


def yours(id: str) -> Callable[[Callable], Callable]:
    """Decorate a function that the learner writes: it stays theirs if it is right, else ours takes its place."""

    def decide(function: Callable) -> Callable:
        function.__globals__[function.__name__] = function  # it may call itself
        outcome, text = (NOT_ATTEMPTED, "") if is_empty(function) else tried(id, function)
        if outcome == RIGHT:
            function.exercise, text = id, text.replace(" progress_table() shows where you stand.", "")
            print(f"✓ {text}\n  From here on the course runs on yours{kept(id, function)}.")
            return function
        used = mine(id)
        whose = "ours" if used is reference(id) else "the right one that you wrote before"
        if outcome == NOT_ATTEMPTED:
            print(f"{id}: not written yet, so the lesson goes on with {whose}.")
        else:
            text = text.replace(f'hint("{id}")', "Hints and our answer are in the folded cell below.")
            print(f"{text}\n\nThe lesson goes on with {whose}.")
        return used

    return decide


def mine(id: str) -> Callable:
    """The learner's function, if it was right once; else ours."""
    function = reference(id)
    if source := progress.read().get(id, {}).get("source"):
        try:
            function = load(id, source)
        except Exception as error:
            print(f"{id}: what was kept of yours does not run ({type(error).__name__}: {error}), so ours is used.")
    function.exercise = id
    return function


def is_empty(function: Callable) -> bool:
    """Whether a body is only a docstring and `...` or `pass`."""
    code = [(i.opname, i.argval) for i in dis.get_instructions(function)]
    return code == [(i.opname, i.argval) for i in dis.get_instructions(lambda: None)]


def kept(id: str, function: FunctionType) -> str:
    """Keep the program of a right function. Returns what to add where that cannot be done."""
    try:
        collect(function, parts := {})
        parts["as"] = f"{id.partition('.')[2]} = {function.__name__}"  # the exercise's name, whatever the learner's is
        source = "\n\n\n".join(["from __future__ import annotations", *parts.values()]) + "\n"
        load(id, source)
    except Exception as error:
        return f" in this notebook, and later lessons on ours: {error}"
    progress.keep_source(id, source)
    return ""


def load(id: str, source: str) -> Callable:
    """The function of a kept program."""
    file, names = f"<yours {id}>", {}
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file  # for tracebacks
    exec(compile(source, file, "exec"), names)
    return names[id.partition(".")[2]]


def collect(function: FunctionType, parts: dict[str, str]) -> None:
    """Name → the text that defines it: for a function, and for all that it uses from its notebook."""
    lines = dedent(inspect.getsource(function)).splitlines(keepends=True)
    start = next(i for i, line in enumerate(lines) if line.startswith("def "))  # after its decorators
    parts[function.__name__] = "".join(lines[start:]).rstrip()
    codes = [function.__code__]
    codes += [part for part in function.__code__.co_consts if isinstance(part, CodeType)]  # functions inside it
    for name in sorted({i.argval for c in codes for i in dis.get_instructions(c) if i.opname == "LOAD_GLOBAL"}):
        if name in parts or name not in function.__globals__:
            continue
        value = function.__globals__[name]
        if id := getattr(value, "exercise", None):
            parts[name] = f'from minispec_course.check import mine\n\n{name} = mine("{id}")'
        elif isinstance(value, ModuleType):
            parts[name] = f"import {value.__name__} as {name}"
        elif isinstance(value, (bool, int, float, str, tuple)):
            parts[name] = f"{name} = {value!r}"
        elif getattr(value, "__module__", function.__module__) != function.__module__:
            parts[name] = f"from {value.__module__} import {value.__name__} as {name}"
        elif isinstance(value, FunctionType):
            collect(value, parts)
        else:
            raise LookupError(f"it uses {name}, which is not kept")
