"""The tables of lesson 14: which bugs a test of single tokens sees, and what the guides' pseudocode gets wrong."""

from __future__ import annotations

import pytest

from minispec_course.labs import exactness

EXACT = 1e-12


@pytest.mark.slow
def test_four_bugs_leave_the_first_token_exact_and_one_of_them_every_distribution():
    errors = exactness.verifier_errors()
    assert len(errors) == 19
    right = {name: found for name, found in errors.items() if name.startswith("right")}
    assert len(right) == 2 and all(one < EXACT and two < EXACT for one, two, _ in right.values())
    unseen = {name for name, (one, _, _) in errors.items() if name.startswith("wrong") and one < EXACT}
    assert len(unseen) == 4
    assert [name for name in unseen if errors[name][1] < EXACT] == ["wrong: no bonus"]
    assert errors["wrong: no bonus"][2] < errors["right: the real verifier"][2]
    assert max(errors, key=lambda name: errors[name][2]) == "wrong: accept always"


@pytest.mark.slow
def test_the_guides_pseudocode_fails_where_the_lesson_says_so():
    errors = exactness.pseudocode_errors()
    holds = {says for says, off in errors.items() if off < EXACT}
    assert holds == {"our verifier, one token", "our verifier, two tokens", "prompt never advanced, one token"}
    assert all(off > 0.05 for says, off in errors.items() if says not in holds)


@pytest.mark.slow
def test_the_tables_have_a_line_for_each():
    assert len(exactness.verifier_table().splitlines()) == 1 + len(exactness.verifier_errors())
    assert exactness.pseudocode_table().count("exact") == 3
