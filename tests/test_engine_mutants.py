"""The suite tested: every wrong engine in tests/mutants is caught, by the very checks that the real one passes."""

from __future__ import annotations

from inspect import getdoc

import pytest
from engine_checks import CHECKS
from mutants.engine_mutants import MUTANTS

# Of a check, or of a guard in the code itself: a table that is not there, a pass without slots.
DEATHS = (AssertionError, ValueError, KeyError, IndexError, RuntimeError)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name):
    for check in MUTANTS[name].caught_by:
        with pytest.MonkeyPatch.context() as patch:
            MUTANTS[name].install(patch)
            with pytest.raises(DEATHS):
                CHECKS[check]()
                pytest.fail(f"{check} does not notice {name}", pytrace=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MUTANTS if MUTANTS[name].passes])
def test_mutant_is_invisible_elsewhere(name):
    """Why one check is not enough: a lost path shows in trees alone, a shared generator in no law."""
    for check in MUTANTS[name].passes:
        with pytest.MonkeyPatch.context() as patch:
            MUTANTS[name].install(patch)
            CHECKS[check]()


def test_every_mutant_says_what_is_wrong_with_it():
    assert len(MUTANTS) >= 14
    for mutant in MUTANTS.values():
        assert getdoc(mutant.install)
