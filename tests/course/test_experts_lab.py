"""The mixtures of lesson 15: the control of its count, and the roofline on which its speed-up rises and falls."""

from __future__ import annotations

import pytest
from mutants.patching import rewrite

import minispec as ms
from minispec.course import experts_lab

MIXTRAL = dict(experts=8, per_token=2, always=1.6e9, expert=5.6e9)


def check_control(mixture: ms.Model) -> None:
    """Random positions instead of neighbours: all positions together touch the same, however they are chosen."""
    ids = [1, 2, 3, 4, 1, 2, 3, 4]
    assert experts_lab.touched_apart(mixture, ids, 1) == 2
    assert experts_lab.touched_apart(mixture, ids, 8, sets=2) == experts_lab.touched_by(mixture, ids, 8)
    runs = [token for token in range(1, 9) for _ in range(4)]  # four times the same token: neighbours agree
    assert experts_lab.touched_by(mixture, runs, 4) < experts_lab.touched_apart(mixture, runs, 4)


def test_the_control_breaks_neighbourhood(tiny, monkeypatch):
    mixture = experts_lab.upcycle(tiny, experts=8, per_token=2)
    check_control(mixture)
    rewrite(monkeypatch, experts_lab, "touched_apart", "rng.sample(chosen, tokens)", "chosen[:tokens]")
    with pytest.raises(AssertionError):
        check_control(mixture)


def check_best_length() -> None:
    alone, few, full = (experts_lab.best_length(0.7, 0.25e9, batch, **MIXTRAL) for batch in (1, 32, 2048))
    assert alone[2] < few[2] > full[2] and full[2] < 1, "the gain rises with the batch and falls again"
    assert few[1] == pytest.approx(1, abs=0.01) and full[0] == 1 and full[1] == pytest.approx(2)
    _, v, _ = experts_lab.best_length(0.7, 0.25e9, longest=1, **MIXTRAL)  # two tokens touch 3.5 experts, one touches 2
    assert v == pytest.approx((1.6 + 3.5 * 5.6) / (1.6 + 2 * 5.6))


def test_the_gain_rises_and_falls():
    check_best_length()


@pytest.mark.parametrize(
    ("old", "new"), [("2 * tokens * (", "0 * ("), ("2 * read, ", "2 * (always + experts * expert), ")]
)
def test_without_a_term_of_the_roofline_it_is_noticed(old, new, monkeypatch):
    rewrite(monkeypatch, experts_lab, "pass_seconds", old, new)
    with pytest.raises(AssertionError):
        check_best_length()
