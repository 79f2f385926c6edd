"""What the mutants of the loop, the pool, the scheduler and the engine share: they are installed by monkeypatching."""

from __future__ import annotations

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
    passes: tuple[str, ...] = ()  # checks that cannot see it: what makes the mistake hard to notice


def rewrite(patch: MonkeyPatch, owner: object, name: str, old: str, new: str) -> None:
    """One function or method of `owner` with one piece of its source changed."""
    function = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{owner.__name__}.{name} no longer says {old!r}: change this mutant too"
    namespace: dict = {}
    code = "from __future__ import annotations\n" + source.replace(old, new)
    exec(code, vars(sys.modules[function.__module__]), namespace)
    patch.setattr(owner, name, namespace[name])


def assert_caught(name: str, mutant: Mutant, checks: Mapping[str, Callable[[], None]], deaths=DEATHS) -> None:
    """Each check that is said to catch it does."""
    for check in mutant.caught_by:
        with MonkeyPatch.context() as patch:
            mutant.install(patch)
            with pytest.raises(deaths):
                checks[check]()
                pytest.fail(f"{check} does not notice {name}", pytrace=False)


def assert_unseen(mutant: Mutant, checks: Mapping[str, Callable[[], None]]) -> None:
    """Each check that is said to miss it does."""
    for check in mutant.passes:
        with MonkeyPatch.context() as patch:
            mutant.install(patch)
            checks[check]()
