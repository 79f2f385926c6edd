"""The model drafter: its cache under any order of events, the laws it reports, and transformers' assisted decoding."""

from __future__ import annotations

import pytest
import torch
from fakes import continuation, scripted, whole_text
from hypothesis import given, settings
from hypothesis import strategies as st

import minispec as ms
from minispec.drafters import Context, Draft


def context(row: int, tokens: list[int], sampling: ms.Sampling | None = None, seed: int = 0) -> Context:
    return Context(row, list(tokens), sampling or ms.Sampling(), torch.Generator().manual_seed(seed))


# ---------------------------------------------------------------- against transformers


@pytest.fixture(scope="module")
def hf_pair(tmp_path_factory):
    """A target, and the same with noise on every weight as a draft, in transformers and in minispec, float64."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = dict(vocab_size=61, hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2)
    keys = sizes | dict(max_position_embeddings=256, rms_norm_eps=1e-5, tie_word_embeddings=False)
    keys |= dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)
    theirs, ours, generator = [], [], torch.Generator().manual_seed(4)
    for role in ("target", "draft"):
        hf = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", num_hidden_layers=2, **keys)).eval()
        for name, parameter in hf.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            scale = 0.2 if parameter.ndim == 1 else 0.4 if "embed" in name else 1.5 / parameter.shape[1] ** 0.5
            if role == "target":
                parameter.data.copy_(scale * noise + ("norm" in name))
            else:
                parameter.data.copy_(dict(theirs[0].named_parameters())[name] + 0.06 * scale * noise)
        folder = tmp_path_factory.mktemp("hf") / role
        hf.save_pretrained(folder)
        theirs.append(hf.double())
        ours.append(ms.load(folder, device="cpu", dtype=torch.float64))
    return theirs, ours


@pytest.mark.slow
def test_greedy_equals_transformers_assisted_generation(hf_pair):
    (target, assistant), (ours, draft) = hf_pair
    for prompt in ([7], [3, 1, 4, 1, 5, 9, 2, 6], [11] * 20):
        ids = torch.tensor([prompt])
        options = dict(attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False)
        expected = target.generate(ids, assistant_model=assistant, **options)[0, len(prompt) :].tolist()
        assert expected == target.generate(ids, **options)[0, len(prompt) :].tolist()  # theirs is lossless here, too
        for k in (1, 4, "auto"):
            out = ms.speculate(ours, prompt, ms.drafters.Model(draft), k, 40)
            assert out.tokens == expected and len(expected) == 40
            assert 0.05 < out.trace.acceptance_rate < 1  # neither a stranger nor a twin


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


@pytest.mark.slow
@settings(max_examples=60)
@given(data=st.data())
def test_any_order_of_events(data):
    """Rows join, sit out, lose tokens, are not drafted for, and leave: every draft is still that of the whole text."""
    draft = scripted(whole_text, max_length=200)
    drafter, texts, fresh = ms.drafters.Model(draft), {}, iter(range(1000))
    for _ in range(data.draw(st.integers(2, 8))):
        for _ in range(data.draw(st.integers(0 if texts else 1, 2))):
            texts[next(fresh)] = data.draw(st.lists(st.integers(0, 15), min_size=1, max_size=9))
        chosen = data.draw(st.permutations(sorted(texts)))[: data.draw(st.integers(1, len(texts)))]
        k = data.draw(st.integers(1, 4))
        seen = len(draft.transformer.readings)
        drafts = drafter.propose([context(row, texts[row]) for row in chosen], k)
        assert [d.tokens for d in drafts] == [continuation(texts[row], k) for row in chosen]
        for reading in draft.transformer.readings[seen + 1 :]:  # after what was unread, one token at a time
            assert all(len(tokens) <= 1 for tokens in reading.tokens)
        for row, proposed in zip(chosen, drafts, strict=True):
            a = data.draw(st.integers(0, k))
            correction = (proposed.tokens[a] + 1) % 16 if a < k else data.draw(st.integers(0, 15))
            texts[row] += [*proposed.tokens[:a], correction]
            drafter.settle(row, range(a), correction)
        for row in [row for row in texts if row not in chosen]:  # plain decoding for the others
            if data.draw(st.booleans()):
                texts[row].append(data.draw(st.integers(0, 15)))
                drafter.settle(row, [], texts[row][-1])
        if len(texts) > 1 and data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(sorted(texts)))
            del texts[gone]
            drafter.forget(gone)
    for row in texts:
        drafter.forget(row)
    held = drafter.memory
    assert held.cache is None and not (held.order or held.lengths or drafter.committed)


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


def test_dead_rows_are_cleared_out():
    """When most rows are finished the living move together, so that passes do not stay as wide as they began."""
    drafter = ms.drafters.Model(scripted(whole_text))
    rows = [context(i, [1 + i, 2]) for i in range(8)]
    drafter.propose(rows, 2)
    assert drafter.memory.cache.batch == 8
    for row in rows:
        row.tokens.append(9)
        drafter.settle(row.id, [], 9)
    for row in range(5):
        drafter.forget(row)
    drafter.propose(rows[5:], 2)
    assert drafter.memory.cache.batch == 3


def test_a_draft_shorter_than_its_target(make_model, tiny):
    """Past its own length it proposes nothing, and decoding goes on without it."""
    short = make_model(num_layers=1, max_length=16)
    out = ms.speculate(tiny, [3, 1, 4], ms.drafters.Model(short), 4, 40)
    assert out.tokens == ms.generate(tiny, [3, 1, 4], 40).tokens
    drafted = [len(cycle.drafted) for cycle in out.trace.cycles]
    assert drafted[0] == 4 and drafted[-1] == 0
    assert all(cycle.committed + len(cycle.drafted) <= 16 for cycle in out.trace.cycles if cycle.drafted)


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


@pytest.mark.parametrize("fast", [False, True])
def test_rewound_to_nothing_it_starts_afresh_and_holds_no_slots(tiny_draft, fast):
    """As for a preempted request: until it comes back, nothing of it is kept."""
    drafter, text = ms.drafters.Model(tiny_draft, fast=fast), [3, 1, 4]
    (before,) = drafter.propose([context(0, text)], 3)
    drafter.rewind(0, 0)
    assert not drafter.memory.lengths and not drafter.committed
    drafter.settle(0, [0], 9)  # of the cycle that was broken off: nothing to keep
    assert drafter.propose([context(0, text)], 3) == [before]


@pytest.mark.slow
def test_a_reduced_draft_vocabulary_is_lossless_too(make_model, tiny):
    """A draft that scores 16 of 64 tokens: q is 0 elsewhere, which the residual makes up for."""
    small = make_model(num_layers=1, head_vocab=16)
    out = ms.speculate(tiny, [3, 1, 4], ms.drafters.Model(small), 4, 40)
    assert out.tokens == ms.generate(tiny, [3, 1, 4], 40).tokens
    sampled = ms.speculate(tiny, [3, 1, 4], ms.drafters.Model(small), 4, 60, temperature=1.0, seed=0)
    assert max(token for cycle in sampled.trace.cycles for token in cycle.drafted) < 16 <= max(sampled.tokens)
