"""The suite tested: every wrong variant in tests/mutants is caught, by the very checks that the real code passes."""

from __future__ import annotations

from functools import partial

import pytest
from distribution_checks import CHECKS, Scheme
from mutants.verify_mutants import MUTANTS

QUICK = {check: {"pairs": 60} for check in ("residual", "position", "siblings", "cascade")} | {
    check: {"rows": 60} for check in ("batch", "tree_batch")
}


def quick(check: str):
    """The same check on less material: a mutant should not need 500 examples to be noticed."""
    return partial(CHECKS[check], **QUICK.get(check, {}))


@pytest.mark.slow
@pytest.mark.parametrize("check", [name for name in CHECKS if name != "samples"])
def test_the_correct_scheme_passes(check):
    quick(check)(Scheme())


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name):
    mutant = MUTANTS[name]
    for check in mutant.caught_by:
        with pytest.raises(AssertionError):
            quick(check)(mutant.scheme)
            pytest.fail(f"{check} does not notice {name}", pytrace=False)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MUTANTS if MUTANTS[name].passes])
def test_mutant_is_invisible_elsewhere(name):
    """Why one check is not enough: a missing bonus bends no law, a reused random number bends only the joint one."""
    for check in MUTANTS[name].passes:
        quick(check)(MUTANTS[name].scheme)


@pytest.mark.slow
def test_a_biased_sampler_is_caught_by_its_samples():
    with pytest.raises(AssertionError, match="impossible"):  # runs that a residual cannot end
        CHECKS["samples"](MUTANTS["resample_from_p"].scheme, draws=500)
    with pytest.raises(AssertionError, match="χ²"):
        CHECKS["samples"](MUTANTS["one_random_number"].scheme, draws=4_000, kinds=("chain",))
