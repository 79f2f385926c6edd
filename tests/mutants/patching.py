"""What mutants share: the source of one function with a piece changed, installed by monkeypatching."""

import inspect
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest
from pytest import MonkeyPatch

# Of a check, or of a guard in the code itself: an empty free list, a table that is not there, a pass without slots.
DEATHS = (AssertionError, ValueError, KeyError, IndexError, RuntimeError)


@dataclass(frozen=True)
class Mutant:
    install: Callable[[MonkeyPatch], None]
    caught_by: tuple[str, ...]  # names of checks


def variant(function: Callable, old: str, new: str) -> Callable:
    """The function with one piece of its source changed."""
    source = textwrap.dedent(inspect.getsource(function))
    if source.count(old) != 1:  # no AssertionError: that is how a mutant should die
        raise LookupError(f"{function.__qualname__} no longer says {old!r}: change this mutant too")
    namespace: dict = {}
    code = "from __future__ import annotations\n" + source.replace(old, new)
    exec(code, vars(sys.modules[function.__module__]), namespace)
    return namespace[function.__name__]


def rewrite(patch: MonkeyPatch, owner: object, name: str, old: str, new: str) -> None:
    patch.setattr(owner, name, variant(getattr(owner, name), old, new))


def rewritten(owner: object, name: str, old: str, new: str, *caught_by: str) -> Mutant:
    return Mutant(lambda patch: rewrite(patch, owner, name, old, new), caught_by)


def assert_caught(name: str, mutant: Mutant, checks: Mapping[str, Callable[[], None]], deaths=DEATHS) -> None:
    """Each check that is said to catch it does."""
    for check in mutant.caught_by:
        with MonkeyPatch.context() as patch:
            mutant.install(patch)
            with pytest.raises(deaths):
                checks[check]()
                pytest.fail(f"{check} does not notice {name}", pytrace=False)
