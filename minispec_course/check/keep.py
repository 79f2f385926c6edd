"""Right answers are kept beside the progress, as programs that stand alone: `mine` gives them to later lessons."""

import dis
import inspect
import linecache
from collections.abc import Callable
from textwrap import dedent
from types import CodeType, FunctionType, ModuleType

from . import progress


def kept(id: str, function: FunctionType) -> str:
    """Keep the program of a right function. Returns what to add where that cannot be done."""
    try:
        collect(function, parts := {})
        parts["as"] = f"{id.partition('.')[2]} = {function.__name__}"  # the exercise's name, whatever the learner's is
        source = "\n\n\n".join(["from __future__ import annotations", *parts.values()]) + "\n"
        load(id, source)
    except Exception as error:
        return f" in this notebook, and later lessons on ours: {error}"
    progress.keep(id, source=source)
    return ""


def load(id: str, source: str) -> Callable:
    """The function of a kept program."""
    file, names = f"<yours {id}>", {}
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file  # for tracebacks
    exec(compile(source, file, "exec"), names)
    return names[id.partition(".")[2]]


def collect(function: FunctionType, parts: dict[str, str], name: str | None = None) -> None:
    """Name → the text that defines it: for a function, and for all that it uses from its notebook."""
    lines = dedent(inspect.getsource(function)).splitlines(keepends=True)
    start = next((i for i, line in enumerate(lines) if line.startswith("def ")), 0)  # after its decorators; or a lambda
    parts[name or function.__name__] = "".join(lines[start:]).rstrip()
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
            collect(value, parts, name)
        else:
            raise LookupError(f"it uses {name}, which is not kept")
