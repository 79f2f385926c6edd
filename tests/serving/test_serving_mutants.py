"""The suite tested: every wrong pool, scheduler and engine in tests/mutants is caught, by checks that ours pass."""

from __future__ import annotations

import block_checks
import engine_checks
import pytest
from mutants import block_mutants, engine_mutants
from mutants.patching import assert_caught


@pytest.mark.slow
@pytest.mark.parametrize("name", block_mutants.MUTANTS)
def test_wrong_blocks(name):
    assert_caught(name, block_mutants.MUTANTS[name], block_checks.CHECKS)


@pytest.mark.slow
@pytest.mark.parametrize("name", engine_mutants.MUTANTS)
def test_wrong_engines(name):
    assert_caught(name, engine_mutants.MUTANTS[name], engine_checks.CHECKS)
