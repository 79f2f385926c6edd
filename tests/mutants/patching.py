"""What the mutants of the loop, the pool and the scheduler share: they are installed by monkeypatching."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from pytest import MonkeyPatch

# Of a check, or of a guard in the code itself: an empty free list, a table that is not there, a pass without slots.
DEATHS = (AssertionError, ValueError, KeyError, IndexError, RuntimeError)


@dataclass(frozen=True)
class Mutant:
    install: Callable[[MonkeyPatch], None]
    caught_by: tuple[str, ...]  # names of checks


def rewrite(patch: MonkeyPatch, owner: object, name: str, old: str, new: str) -> None:
    """One function or method of `owner` with one piece of its source changed."""
    function = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(function))
    if source.count(old) != 1:  # no AssertionError: that is how a mutant should die
        raise LookupError(f"{owner.__name__}.{name} no longer says {old!r}: change this mutant too")
    namespace: dict = {}
    code = "from __future__ import annotations\n" + source.replace(old, new)
    exec(code, vars(sys.modules[function.__module__]), namespace)
    patch.setattr(owner, name, namespace[name])


def broken(module: ModuleType, old: str, new: str, folder: Path) -> ModuleType:
    """A whole module with one piece of its source changed: kernels are read from their file, so they need one."""
    source = Path(module.__file__).read_text(encoding="utf-8")
    if source.count(old) != 1:
        raise LookupError(f"{module.__name__} no longer says {old!r}: change this mutant too")
    file = folder / "mutant.py"
    file.write_text(source.replace(old, new), encoding="utf-8")
    mutant = module_from_spec(spec := spec_from_file_location(f"{module.__package__}.mutant", file))
    spec.loader.exec_module(mutant)
    return mutant


def assert_caught(name: str, mutant: Mutant, checks: Mapping[str, Callable[[], None]], deaths=DEATHS) -> None:
    """Each check that is said to catch it does."""
    for check in mutant.caught_by:
        with MonkeyPatch.context() as patch:
            mutant.install(patch)
            with pytest.raises(deaths):
                checks[check]()
                pytest.fail(f"{check} does not notice {name}", pytrace=False)
