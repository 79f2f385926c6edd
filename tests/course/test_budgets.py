"""Lesson 15's three choices: only the one that does not look at what it decides about is exact."""

from __future__ import annotations

import pytest
from mutants.patching import rewrite

from minispec_course.labs import budgets


def peak(q, d) -> float:
    return float(q.max())


def check_choices() -> None:
    assert budgets.bias(peak, lambda drafts: 2) < 1e-12
    assert budgets.bias(lambda q, d: float(q[d]), lambda drafts: 2) > 0.05
    assert budgets.bias(peak, lambda drafts: 2 if budgets.best_two(drafts) > 1.4 else 0) > 0.05
    for n in (0, 1, 3, 4):  # any size, as long as it is fixed
        assert budgets.bias(peak, lambda drafts, n=n: n) < 1e-12


@pytest.mark.slow
def test_choices():
    check_choices()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("AFTER[context[0]] if context", "AFTER[0] if context"),  # the second slot no longer depends on the first token
        ("budget(drafts), Cal", "2, Cal"),
    ],
)
def test_a_toy_that_cannot_tell_them_apart(old, new, monkeypatch):
    rewrite(monkeypatch, budgets, "first_tokens", old, new)
    with pytest.raises(AssertionError):
        check_choices()
