"""The suite tested: every wrong variant in tests/mutants is caught, by the very checks that the real code passes."""

from functools import partial

import distribution_checks
import loop_checks
import pytest
from mutants import block_mutants, loop_mutants, verify_mutants
from mutants.patching import assert_caught
from serving import block_checks

# The same checks on less material: a mutant should not need 500 examples to be noticed, and 2,500 texts show a total
# variation of 0.11 in 99 of 100 runs.
LESS = {check: {"rows": 60} for check in ("batch", "tree_batch")}
VERIFY = {name: partial(check, **LESS.get(name, {})) for name, check in distribution_checks.CHECKS.items()}
LESS_LOOP = {name: {"draws": 2500} for name in loop_checks.SAMPLED} | {"greedy": {"ks": (3,), "count": 12}}
LOOP = {name: partial(check, **LESS_LOOP.get(name, {})) for name, check in loop_checks.CHECKS.items()}
DEATHS = (AssertionError, ValueError)  # of a check, or of the cache's own guard when a rewind goes nowhere


@pytest.mark.slow
@pytest.mark.parametrize("check", loop_checks.SAMPLED)  # test_verify.py and test_speculate.py run the others
def test_the_correct_loop_passes(check):
    LOOP[check]()


@pytest.mark.slow
@pytest.mark.parametrize("name", verify_mutants.MUTANTS)
def test_wrong_verifiers(name):
    mutant = verify_mutants.MUTANTS[name]
    for check in mutant.caught_by:
        with pytest.raises(AssertionError):
            VERIFY[check](mutant.scheme)
            pytest.fail(f"{check} does not notice {name}", pytrace=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", loop_mutants.MUTANTS)
def test_wrong_loops(name):
    assert_caught(name, loop_mutants.MUTANTS[name], LOOP, DEATHS)


@pytest.mark.slow
@pytest.mark.parametrize("name", block_mutants.MUTANTS)
def test_wrong_blocks_and_schedulers(name):
    assert_caught(name, block_mutants.MUTANTS[name], block_checks.CHECKS)
