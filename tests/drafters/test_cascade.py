"""The cascade: a drafter for the drafter. What it drafts follows the middle model's law, what comes out the target's.

A stale cache would bend neither law (q is what was drawn from,
whatever that was), so the laws that middle model and inner drafter claim are compared with those of fresh passes.
"""

from collections import Counter

import pytest
import torch

import minispec as ms

D = ms.drafters
PROMPTS = [[3, 1, 4, 1, 5], [9], [2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3], [27, 18]]


def watch(drafter: D.Model, model: ms.Model) -> Counter:
    """Compare every law that `drafter` claims with a fresh pass of `model` over the same text."""
    seen, propose = Counter(), drafter.propose

    def watched(contexts, k):
        drafts = propose(contexts, k)
        for context, draft in zip(contexts, drafts, strict=True):
            sampling, start = drafter.sampling or context.sampling, len(context.tokens)
            logits = model.transformer(torch.tensor([[*context.tokens, *draft.tokens]])).logits[0, start - 1 : -1]
            assert draft.parents is None and draft.probs.shape == logits.shape
            assert (draft.probs - sampling.probs(logits)).abs().max() <= 1e-10
            assert len(draft.tokens) == k
            seen["laws"] += k
        return drafts

    drafter.propose = watched
    return seen


@pytest.fixture(scope="module")
def models(make_model) -> list[ms.Model]:
    """Target, and its first two layers and its first one as models of their own."""
    return [make_model(num_layers=n) for n in (3, 1, 2)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["model", "cascade"])
def test_q_is_the_law_of_the_middle_model_at_every_drafted_token(models, kind):
    target, first, middle = models
    for sampling in (None, ms.Sampling(temperature=1.5, top_p=0.9)):
        inner = D.Model(first) if kind == "model" else D.Cascade(D.NGram(), first, 2)
        drafter = D.Cascade(inner, middle, 3, sampling)
        seen = watch(drafter, middle)
        outs = ms.speculate(target, PROMPTS, drafter, 5, 20, temperature=0.8, top_k=20, seed=4)
        assert seen["laws"] > 100
        accepted = {cycle.accepted for out in outs for cycle in out.trace.cycles}
        assert 0 in accepted and len(accepted) > 1  # rejections to recover from, and drafts that passed


@pytest.mark.slow
def test_q_of_the_inner_model_is_true_after_every_correction_and_rejection(models):
    """The target refuses a part of what the middle model let pass: both caches must notice, and keep the rest."""
    target, first, middle = models
    inner = D.Model(first)
    seen = watch(inner, first)
    ms.speculate(target, PROMPTS, D.Cascade(inner, middle, 3), 6, 24, temperature=1.0, seed=1)
    assert seen["laws"] > 100
    assert inner.memory.cache is None and not inner.memory.lengths  # every row was forgotten
