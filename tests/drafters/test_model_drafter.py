"""The model drafter: its cache under any order of events, the laws it reports, and transformers' assisted decoding."""

from __future__ import annotations

import pytest
import torch
from fakes import scripted, whole_text

import minispec as ms
from minispec.drafters import Context, Draft


def context(row: int, tokens: list[int], sampling: ms.Sampling | None = None, seed: int = 0) -> Context:
    return Context(row, list(tokens), sampling or ms.Sampling(), torch.Generator().manual_seed(seed))


# ---------------------------------------------------------------- the laws it reports


@pytest.mark.parametrize("own", [None, ms.Sampling(temperature=1.7, top_k=9), ms.Sampling(temperature=0.4, top_p=0.8)])
def test_q_is_the_law_each_token_was_drawn_from(tiny_draft, own):
    prompts, sampling = [[3, 1, 4], [1, 5, 9, 2, 6, 5]], ms.Sampling(temperature=0.9, top_p=0.95)
    rows = [context(i, prompt, sampling, seed=i) for i, prompt in enumerate(prompts)]
    for prompt, draft in zip(prompts, ms.drafters.Model(tiny_draft, own).propose(rows, 4), strict=True):
        assert draft.parents is None and len(draft.tokens) == 4
        logits = tiny_draft.transformer(torch.tensor([[*prompt, *draft.tokens]])).logits[0, len(prompt) - 1 : -1]
        assert torch.allclose(draft.probs, (own or sampling).probs(logits), rtol=0, atol=1e-12)
        assert all(draft.probs[i, token] > 0 for i, token in enumerate(draft.tokens))


def test_a_greedy_draft_is_not_drawn_at_all(tiny_draft):
    for sampling, own in ((ms.Sampling(), None), (ms.Sampling(temperature=1.0), ms.Sampling())):
        row = context(0, [3, 1, 4], sampling)
        before = row.generator.get_state()
        (draft,) = ms.drafters.Model(tiny_draft, own).propose([row], 5)
        assert draft.probs is None and draft.tokens == ms.generate(tiny_draft, [3, 1, 4], 5).tokens
        assert torch.equal(row.generator.get_state(), before)


# ---------------------------------------------------------------- its cache


def test_cycles_without_a_draft_cost_no_rereading():
    """With k="auto" some cycles are not drafted for. The next draft reads what came since, and nothing twice."""
    draft = scripted(whole_text)
    drafter, text = ms.drafters.Model(draft), [3, 15]
    (proposed,) = drafter.propose([context(0, text)], 3)
    text += [*proposed.tokens[:2], 9]
    drafter.settle(0, [0, 1], 9)
    for token in (4, 2):
        text.append(token)
        drafter.settle(0, [], token)
    drafter.propose([context(0, text)], 1)
    assert draft.transformer.readings[-1].held == [4]  # the prompt and two drafts
    assert draft.transformer.readings[-1].tokens == [[9, 4, 2]]


@pytest.mark.parametrize("kind", ["model", "cascade"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_sequence_past_the_drafts_context_does_not_stop_the_others(make_model, kind, temperature):
    """Only the long sequence gets no draft. The short one gets the draft that it would get alone, cycle after cycle."""
    short, sampling = make_model(num_layers=1, max_length=16), ms.Sampling(temperature)
    make = lambda: ms.drafters.Model(short) if kind == "model" else ms.drafters.Cascade(ms.drafters.NGram(), short)  # noqa: E731
    drafter, fresh = make(), lambda seed: torch.Generator().manual_seed(seed)
    long, text = list(range(10)), [3, 1]
    for cycle in range(4):
        rows = [Context(0, long, sampling, fresh(0)), Context(1, text, sampling, fresh(cycle))]
        first, second = drafter.propose(rows, 3)
        (alone,) = make().propose([Context(1, text, sampling, fresh(cycle))], 3)
        assert len(second.tokens) == 3 and second.tokens == alone.tokens
        if temperature:
            assert torch.allclose(second.probs, alone.probs, rtol=0, atol=1e-12)
        assert len(first.tokens) == (3 if cycle < 1 else 0)  # 10 + 3 ≤ 16, then 14 + 3 > 16
        for row, tokens, draft in ((0, long, first), (1, text, second)):
            accepted = min(len(draft.tokens), 1)
            tokens += [*draft.tokens[:accepted], 7] if row else [5, 5, 5, 5]
            drafter.settle(row, range(accepted) if row else (), tokens[-1])
    for row in (0, 1):
        drafter.forget(row)
    assert drafter.memory.cache is None and not drafter.committed


# ---------------------------------------------------------------- what a device may run alone


def test_chain_model_is_the_model_that_drafts_a_plain_chain(tiny, tiny_draft):
    D = ms.drafters
    assert D.Model(tiny_draft).chain_model is tiny_draft
    quantized = D.Quantized(tiny)
    assert quantized.chain_model is quantized.draft is not tiny
    assert D.Cascade(D.NGram(), tiny_draft).chain_model is None
    early = D.EarlyExit(tiny, 1)  # the exit is a part of its draft
    assert early.chain_model is early.draft is not tiny
    assert D.NGram().chain_model is D.Lookahead(tiny).chain_model is None

    class Own(D.Model):
        def propose(self, contexts, k):
            return [Draft([]) for _ in contexts]

    assert Own(tiny_draft).chain_model is None


@pytest.mark.slow
def test_a_reduced_draft_vocabulary_is_lossless_too(make_model, tiny):
    """A draft that scores 16 of 64 tokens: q is 0 elsewhere, which the residual makes up for."""
    small = make_model(num_layers=1, head_vocab=16)
    out = ms.speculate(tiny, [3, 1, 4], ms.drafters.Model(small), 4, 40)
    assert out.tokens == ms.generate(tiny, [3, 1, 4], 40).tokens
    sampled = ms.speculate(tiny, [3, 1, 4], ms.drafters.Model(small), 4, 60, temperature=1.0, seed=0)
    assert max(token for cycle in sampled.trace.cycles for token in cycle.drafted) < 16 <= max(sampled.tokens)
