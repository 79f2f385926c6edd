"""A small model drafts, alone or in a cascade: the q that it reports, its cache, and what a device may run alone."""

from collections import Counter

import pytest
import torch
from by_hand import sequence
from fakes import scripted, whole_text

import minispec as ms
from minispec.drafters import Draft

D = ms.drafters
PROMPTS = [[3, 1, 4, 1, 5], [9], [2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3], [27, 18]]


# ---------------------------------------------------------------- q


def watch(drafter: D.Model, model: ms.Model) -> Counter:
    """Compare every q that `drafter` reports with a fresh pass of `model` over the same tokens.

    A stale cache would not bias the output (q is what was sampled from, whatever that was), so nothing else shows it.
    """
    seen, propose = Counter(), drafter.propose

    def watched(sequences, k):
        drafts = propose(sequences, k)
        for one, draft in zip(sequences, drafts, strict=True):
            sampling, start = drafter.sampling or one.sampling, len(one.tokens)
            logits = model.transformer(torch.tensor([[*one.tokens, *draft.tokens]])).logits[0, start - 1 : -1]
            assert draft.parents is None and draft.probs.shape == logits.shape and len(draft.tokens) == k
            assert (draft.probs - sampling.probs(logits)).abs().max() <= 1e-10
            assert all(draft.probs[i, token] > 0 for i, token in enumerate(draft.tokens))
            seen["distributions"] += k
        return drafts

    drafter.propose = watched
    return seen


@pytest.fixture(scope="module")
def models(make_model) -> list[ms.Model]:
    """Target, its first layer and its first two as models of their own."""
    return [make_model(num_layers=n) for n in (3, 1, 2)]


@pytest.mark.slow
@pytest.mark.parametrize("own", [None, ms.Sampling(temperature=1.5, top_p=0.9)], ids=["the target's", "its own"])
@pytest.mark.parametrize("kind", ["model", "cascade", "cascade of a cascade"])
def test_q_is_the_distribution_each_token_was_sampled_from(models, kind, own):
    target, first, middle = models
    if kind == "model":
        drafter = D.Model(middle, own)
    else:
        drafter = D.Cascade(D.Model(first) if kind == "cascade" else D.Cascade(D.NGram(), first, 2), middle, 3, own)
    seen = watch(drafter, middle)
    outs = ms.speculate(target, PROMPTS, drafter, 5, 20, temperature=0.8, top_k=20, seed=4)
    assert seen["distributions"] > 100
    accepted = {cycle.accepted for out in outs for cycle in out.trace.cycles}
    assert 0 in accepted and len(accepted) > 1  # rejections to recover from, and drafts that were accepted


@pytest.mark.slow
def test_q_of_a_cascades_inner_model_is_true_after_every_correction_and_rejection(models):
    """The target rejects a part of what the middle model accepted: both caches must notice, and keep the rest."""
    target, first, middle = models
    inner = D.Model(first)
    seen = watch(inner, first)
    ms.speculate(target, PROMPTS, D.Cascade(inner, middle, 3), 6, 24, temperature=1.0, seed=1)
    assert seen["distributions"] > 100
    assert inner.memory.cache is None and not inner.memory.lengths  # every sequence was forgotten


def test_a_greedy_draft_is_not_sampled_at_all(tiny_draft):
    for sampling, own in ((ms.Sampling(), None), (ms.Sampling(temperature=1.0), ms.Sampling())):
        row = sequence([3, 1, 4], sampling=sampling)
        before = row.coins.state
        (draft,) = D.Model(tiny_draft, own).propose([row], 5)
        assert draft.probs is None and draft.tokens == ms.generate(tiny_draft, [3, 1, 4], 5).tokens
        assert row.coins.state == before


# ---------------------------------------------------------------- its cache


def test_cycles_without_a_draft_process_nothing_twice():
    """With k="auto" some cycles are not drafted for. The next draft processes what came since."""
    draft = scripted(whole_text)
    drafter, text = D.Model(draft), [3, 15]
    (proposed,) = drafter.propose([sequence(text)], 3)
    text += [*proposed.tokens[:2], 9]
    drafter.settle(0, [0, 1], 9)
    for token in (4, 2):
        text.append(token)
        drafter.settle(0, [], token)
    drafter.propose([sequence(text)], 1)
    assert draft.transformer.readings[-1].held == [4]  # the prompt and two drafts
    assert draft.transformer.readings[-1].tokens == [[9, 4, 2]]


@pytest.mark.parametrize("inner", [None, D.NGram, D.Model])
@pytest.mark.parametrize("good", [0, 1])
def test_a_draft_that_failed_leaves_nothing_behind(tiny_draft, inner, good):
    """After an error in mid-draft the next draft is what a new drafter makes: tokens that were guessed before the error
    count for nothing."""

    def make() -> D.Model:
        if inner is None:
            return D.Model(tiny_draft)
        return D.Cascade(inner(*[tiny_draft] * (inner is D.Model)), tiny_draft, inner_k=2)

    drafter, text = make(), [3, 1, 4, 3, 1, 4, 3]
    right, calls = drafter.memory.forward, iter(range(100))

    def forward(*args):
        if next(calls) == good:
            raise MemoryError
        return right(*args)

    drafter.memory.forward = forward
    with pytest.raises(MemoryError):
        drafter.propose([sequence(text)], 6)
    assert drafter.propose([sequence(text)], 6) == make().propose([sequence(text)], 6)


def test_a_sequence_past_the_drafts_context_does_not_stop_the_others(make_model, tiny):
    """Only the long sequence gets no draft, and decoding goes on without it."""
    short, prompts = make_model(num_layers=1, max_length=16), [list(range(12)), [3, 1]]
    plain = [out.tokens for out in ms.generate(tiny, prompts, 10)]
    for drafter in (D.Model(short), D.Cascade(D.NGram(), short)):
        outs = ms.speculate(tiny, prompts, drafter, 3, 10)
        assert [out.tokens for out in outs] == plain
        assert not any(cycle.drafted for cycle in outs[0].trace.cycles if cycle.committed > 13)
        assert all(len(cycle.drafted) == 3 for cycle in outs[1].trace.cycles[:3])
        assert drafter.memory.cache is None and not drafter.committed


# ---------------------------------------------------------------- what a device may run alone


def test_chain_model_is_the_model_that_drafts_a_plain_chain(tiny, tiny_draft):
    assert D.Model(tiny_draft).chain_model is tiny_draft
    quantized = D.Quantized(tiny)
    assert quantized.chain_model is quantized.draft is not tiny
    assert D.Cascade(D.NGram(), tiny_draft).chain_model is None
    early = D.EarlyExit(tiny, 1)  # the exit is a part of its draft
    assert early.chain_model is early.draft is not tiny

    class Own(D.Model):
        def propose(self, contexts, k):
            return [Draft([]) for _ in contexts]

    assert Own(tiny_draft).chain_model is None


@pytest.mark.slow
def test_a_reduced_draft_vocabulary_is_lossless_too(make_model, tiny):
    """A draft that scores 16 of 64 tokens: q is 0 elsewhere, which the residual makes up for."""
    small = make_model(num_layers=1, head_vocab=16)
    out = ms.speculate(tiny, [3, 1, 4], D.Model(small), 4, 40)
    assert out.tokens == ms.generate(tiny, [3, 1, 4], 40).tokens
    sampled = ms.speculate(tiny, [3, 1, 4], D.Model(small), 4, 60, temperature=1.0, seed=0)
    assert max(token for cycle in sampled.trace.cycles for token in cycle.drafted) < 16 <= max(sampled.tokens)
