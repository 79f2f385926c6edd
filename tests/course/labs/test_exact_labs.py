"""The labs of lessons 14 and 15b that count or follow every branch: rounding, bugs, mixtures, frontier."""

from dataclasses import replace
from itertools import product
from math import prod
from random import Random

import pytest
import torch

import minispec as ms
from minispec import theory
from minispec_course.exercises.set_15_the_frontier.cases import slots
from minispec_course.labs import frontier, numerics

EXACT = 1e-12
MIXTRAL = dict(experts=8, per_token=2, always=1.47e9, expert=5.6e9)


def test_a_mixture_gains_in_the_middle():
    alone, few, full = (frontier.best_length(0.7, 0.25e9, batch, **MIXTRAL) for batch in (1, 32, 2048))
    assert alone[2] < few[2] > full[2], "the gain rises with the batch and falls again"
    assert few[1] == pytest.approx(1, abs=0.01) and full == (0, 1, 1), "no draft pays in a full batch"
    _, v, _ = frontier.best_length(0.9, 0.25e9, longest=1, **MIXTRAL)  # two tokens touch 3.5 experts, one touches 2
    assert v == pytest.approx((1.47 + 3.5 * 5.6) / (1.47 + 2 * 5.6))
    c = frontier.draft_cost(0.25e9, 32, **MIXTRAL)
    assert c == pytest.approx(0.25 / (1.47 + 8 * 5.6), abs=1e-5), "all experts are read, the draft model is small"
    assert few[0] == theory.best_k(0.7, c, few[1]) > 8 and few[2] == pytest.approx(
        theory.speedup(0.7, few[0], c), abs=0.01
    )
    dense = MIXTRAL | dict(experts=1, per_token=1)
    larger = 0.25e9 * frontier.draft_cost(0.25e9, 32, **dense) / c
    assert frontier.best_length(0.7, larger, 32, **MIXTRAL)[2] == pytest.approx(
        theory.best_speedup(0.7, frontier.draft_cost(0.25e9, **dense)), abs=0.01
    ), "with the c of the dense model the mixture gains what that gains"


def peak(q, d) -> float:
    return float(q.max())


@pytest.mark.slow
def test_which_choice_of_a_budget_is_exact():
    assert frontier.bias(lambda q, d: float(q[d]), lambda drafts: 2, slots) > 0.05
    assert frontier.bias(peak, lambda drafts: 2 if frontier.best_two(drafts) > 1.4 else 0, slots) > 0.05
    for n in range(5):  # any size, as long as it is fixed
        assert frontier.bias(peak, lambda drafts, n=n: n, slots) < EXACT


def test_no_other_division_of_a_budget_has_more_survivors():
    random = Random(0)
    for _ in range(60):
        rows = [[random.choice([0.1, 0.5, 0.9, 1.0]) for _ in range(random.randint(0, 3))] for _ in range(3)]
        worth = [[prod(row[: i + 1]) for i in range(len(row))] for row in rows]
        for budget in range(8):
            divisions = (n for n in product(*(range(len(row) + 1) for row in rows)) if sum(n) <= budget)
            best = max(sum(sum(w[:m]) for w, m in zip(worth, n, strict=True)) for n in divisions)
            assert sum(sum(w[:m]) for w, m in zip(worth, slots(rows, budget), strict=True)) >= best - EXACT


def test_a_sequence_is_computed_alone_and_a_difference_is_found(tiny_text, make_model, tokenizer, monkeypatch):
    assert numerics.block_difference(tiny_text, "Once upon a time there was a small fox.") < EXACT
    one, other = (numerics.decode_logits(tiny_text, [1, 2, 3], [others]) for others in ([9, 8, 7, 6], [11, 12, 13]))
    whole = tiny_text.transformer(torch.tensor([[1, 2, 3]])).logits[0].double()
    assert torch.equal(one, other) and torch.allclose(one, whole, atol=1e-10)
    draft = make_model(vocab_size=tokenizer.get_vocab_size(), seed=3, num_layers=1)
    assert numerics.first_divergence(tiny_text, draft, ["Once upon"]) is None
    right = ms.generate(tiny_text, "Once upon", max_new_tokens=30)
    wrong = [*right.tokens[:2], (right.tokens[2] + 1) % tokenizer.get_vocab_size(), *right.tokens[3:]]
    monkeypatch.setattr(numerics, "speculate", lambda *_, **__: replace(right, tokens=wrong))
    found = numerics.first_divergence(tiny_text, draft, ["Once upon"])
    assert (found.position, found.speculative) == (2, wrong)
    best, less = found.logits(tiny_text)
    assert best > less  # plain decoding takes the larger one
