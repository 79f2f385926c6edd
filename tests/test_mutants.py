"""The checks of verification tested: every wrong variant of verify.py is caught, by the checks that the real code
passes."""

from functools import partial

import pytest
from distribution_checks import CHECKS
from mutants.verify_mutants import MUTANTS

# The same checks on less material: a mutant should not need 500 examples to be noticed.
LESS = {check: {"rows": 60} for check in ("batch", "tree_batch")}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_wrong_verifiers(name):
    for check in MUTANTS[name].caught_by:
        with pytest.raises(AssertionError):
            partial(CHECKS[check], **LESS.get(check, {}))(MUTANTS[name].scheme)
            pytest.fail(f"{check} does not notice {name}", pytrace=False)
