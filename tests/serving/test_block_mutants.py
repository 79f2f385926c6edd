"""The suite tested: every wrong pool and scheduler in tests/mutants is caught, by checks that the real ones pass."""

from __future__ import annotations

import pytest
from block_checks import CHECKS
from mutants.block_mutants import MUTANTS
from mutants.patching import assert_caught, assert_unseen


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name):
    assert_caught(name, MUTANTS[name], CHECKS)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MUTANTS if MUTANTS[name].passes])
def test_mutant_is_invisible_elsewhere(name):
    """Why one check is not enough: a wrong order of eviction breaks no invariant, a lost copy only shows in forks."""
    assert_unseen(MUTANTS[name], CHECKS)
