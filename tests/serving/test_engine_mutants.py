"""The suite tested: every wrong engine in tests/mutants is caught, by the very checks that the real one passes."""

from __future__ import annotations

import pytest
from engine_checks import CHECKS
from mutants.engine_mutants import MUTANTS
from mutants.patching import assert_caught, assert_unseen


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name):
    assert_caught(name, MUTANTS[name], CHECKS)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MUTANTS if MUTANTS[name].passes])
def test_mutant_is_invisible_elsewhere(name):
    """Why one check is not enough: a lost path shows in trees alone, a shared generator in no law."""
    assert_unseen(MUTANTS[name], CHECKS)
