"""The mixtures of lesson 15: the control of its count, and the roofline on which its speed-up rises and falls."""

from __future__ import annotations

import pytest
from mutants.patching import rewrite

import minispec as ms
from minispec import theory
from minispec_course.labs import experts as experts_lab

MIXTRAL = dict(experts=8, per_token=2, always=1.47e9, expert=5.6e9)


def check_control(mixture: ms.Model) -> None:
    """Random positions instead of neighbours: all positions together touch the same, however they are chosen."""
    ids = [1, 2, 3, 4, 1, 2, 3, 4]
    assert experts_lab.touched_apart(mixture, ids, 1) == 2
    assert experts_lab.touched_apart(mixture, ids, 8, sets=2) == experts_lab.touched_by(mixture, ids, 8)
    runs = [token for token in range(1, 9) for _ in range(4)]  # four times the same token: neighbours agree
    assert experts_lab.touched_by(mixture, runs, 4) < experts_lab.touched_apart(mixture, runs, 4)


@pytest.mark.slow
def test_the_control_breaks_neighbourhood(tiny, monkeypatch):
    mixture = experts_lab.upcycle(tiny, experts=8, per_token=2)
    check_control(mixture)
    rewrite(monkeypatch, experts_lab, "touched_apart", "rng.sample(chosen, tokens)", "chosen[:tokens]")
    with pytest.raises(AssertionError):
        check_control(mixture)


def check_best_length() -> None:
    alone, few, full = (experts_lab.best_length(0.7, 0.25e9, batch, **MIXTRAL) for batch in (1, 32, 2048))
    assert alone[2] < few[2] > full[2], "the gain rises with the batch and falls again"
    assert few[1] == pytest.approx(1, abs=0.01) and full == (0, 1, 1), "no draft pays in a full batch"
    _, v, _ = experts_lab.best_length(0.9, 0.25e9, longest=1, **MIXTRAL)  # two tokens touch 3.5 experts, one touches 2
    assert v == pytest.approx((1.47 + 3.5 * 5.6) / (1.47 + 2 * 5.6))
    c = experts_lab.draft_cost(0.25e9, 32, **MIXTRAL)
    assert c == pytest.approx(0.25 / (1.47 + 8 * 5.6), abs=1e-5), "all experts are read, the draft model is small"
    assert few[0] == theory.best_k(0.7, c, few[1]) > 8 and few[2] == pytest.approx(
        theory.speedup(0.7, few[0], c), abs=0.01
    )
    dense = MIXTRAL | dict(experts=1, per_token=1)
    larger = 0.25e9 * experts_lab.draft_cost(0.25e9, 32, **dense) / c
    assert experts_lab.best_length(0.7, larger, 32, **MIXTRAL)[2] == pytest.approx(
        theory.best_speedup(0.7, experts_lab.draft_cost(0.25e9, **dense)), abs=0.01
    ), "with the c of the dense model the mixture gains what that gains"


def test_the_gain_rises_and_falls():
    check_best_length()


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("pass_seconds", "2 * tokens * (", "0 * ("),
        ("pass_seconds", "2 * read, ", "2 * (always + experts * expert), "),
        ("draft_cost", "draft / 2, draft / 2", "draft, draft"),
        ("best_length", "range(longest + 1)", "range(1, longest + 1)"),
        ("best_length", "range(longest + 1)", "range(min(longest, 8) + 1)"),
    ],
)
def test_without_a_term_of_the_roofline_or_a_length_it_is_noticed(name, old, new, monkeypatch):
    rewrite(monkeypatch, experts_lab, name, old, new)
    with pytest.raises(AssertionError):
        check_best_length()
