"""The model drafter: its cache under any order of events, the laws it reports, and transformers' assisted decoding."""

import pytest
import torch
from fakes import scripted, whole_text

import minispec as ms
from minispec.drafters import Draft
from minispec.sequence import Sequence


def context(row: int, tokens: list[int], sampling: ms.Sampling | None = None, seed: int = 0) -> Sequence:
    return Sequence(row, list(tokens), sampling or ms.Sampling(), torch.Generator().manual_seed(seed))


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


@pytest.mark.parametrize("inner", [None, ms.drafters.NGram, ms.drafters.Model])
@pytest.mark.parametrize("good", [0, 1])
def test_a_draft_that_failed_leaves_nothing_behind(tiny_draft, inner, good):
    """After an error in mid-draft the next draft is what a new drafter makes: tokens that were guessed before the error
    count for nothing."""

    def make() -> ms.drafters.Model:
        if inner is None:
            return ms.drafters.Model(tiny_draft)
        return ms.drafters.Cascade(inner(*[tiny_draft] * (inner is ms.drafters.Model)), tiny_draft, inner_k=2)

    drafter, text = make(), [3, 1, 4, 3, 1, 4, 3]
    right, calls = drafter.memory.forward, iter(range(100))

    def forward(*args):
        if next(calls) == good:
            raise MemoryError
        return right(*args)

    drafter.memory.forward = forward
    with pytest.raises(MemoryError):
        drafter.propose([context(0, text)], 6)
    assert drafter.propose([context(0, text)], 6) == make().propose([context(0, text)], 6)


def test_a_sequence_past_the_drafts_context_does_not_stop_the_others(make_model, tiny):
    """Only the long sequence gets no draft, and decoding goes on without it."""
    short, prompts = make_model(num_layers=1, max_length=16), [list(range(12)), [3, 1]]
    plain = [out.tokens for out in ms.generate(tiny, prompts, 10)]
    for drafter in (ms.drafters.Model(short), ms.drafters.Cascade(ms.drafters.NGram(), short)):
        outs = ms.speculate(tiny, prompts, drafter, 3, 10)
        assert [out.tokens for out in outs] == plain
        assert not any(cycle.drafted for cycle in outs[0].trace.cycles if cycle.committed > 13)
        assert all(len(cycle.drafted) == 3 for cycle in outs[1].trace.cycles[:3])
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
