"""The suite tested: every wrong server in tests/mutants is caught, by the very checks that the real one passes."""

from __future__ import annotations

import pytest
import server_checks
from mutants.patching import DEATHS, assert_caught
from mutants.server_mutants import MUTANTS
from server_checks import CHECKS

pytestmark = [  # a broken server leaves threads and sockets as it likes
    pytest.mark.nightly,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name, monkeypatch):
    for check in MUTANTS[name].caught_by:
        CHECKS[check]()  # as it is, it passes
    monkeypatch.setattr(server_checks, "PATIENCE", 5)
    assert_caught(name, MUTANTS[name], CHECKS, (*DEATHS, OSError))
