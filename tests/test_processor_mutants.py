"""Every mutant of what depends on the prefix is caught by the checks that are said to catch it."""

import pytest
from mutants.patching import assert_caught
from mutants.processor_mutants import MUTANTS
from processor_checks import CHECKS


@pytest.mark.nightly
@pytest.mark.parametrize("name", MUTANTS)
def test_the_mutant_is_caught(name):
    assert_caught(name, MUTANTS[name], CHECKS)
