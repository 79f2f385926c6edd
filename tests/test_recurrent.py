"""Hybrid models: the gated delta rule against transformers, and its states under everything that decodes.

A recurrent state that is not rewound, or not to the right checkpoint, changes the output of greedy decoding; mutants
at the end show that these tests would notice.
"""

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
import torch
from mutants.patching import assert_caught, rewritten
from sequence_distribution import joint_distribution
from tiny_models import random_model

import minispec as ms
from minispec import exact, recurrent
from minispec.recurrent import DeltaRule, GatedDeltaNet, States
from minispec.sampling import Sampling
from minispec.tree import Draft
from minispec.verify import chain

DELTA = DeltaRule(layers=(0, 1, 3), key_heads=2, value_heads=4, key_dim=8, value_dim=6)
PROMPTS = [[1, 2, 3, 4, 5], [7, 8], [9, 3, 5, 1] * 12, [6]]  # one of them longer than the passes that keep all states
N = 16


def hybrid(**options) -> ms.Model:
    return random_model(**dict(num_layers=4, delta=DELTA) | options)


@cache
def the_model_once() -> ms.Model:
    return hybrid()


@pytest.fixture(scope="module", name="model")
def the_model():
    return the_model_once()


@pytest.fixture(scope="module", name="plain")
def without_a_cache(model):
    return right(model)


@cache
def right(model) -> list[list[int]]:
    """What plain decoding without any cache gives: every token from a pass over all before it."""
    outputs = []
    for prompt in PROMPTS:
        tokens = list(prompt)
        for _ in range(N):
            tokens.append(int(model.transformer(torch.tensor([tokens])).logits[0, -1].argmax()))
        outputs.append(tokens[len(prompt) :])
    return outputs


def near(model, noise=0.02, **options):
    """A draft model that agrees with it now and then: its own weights, blurred."""
    draft, generator = hybrid(dtype=model.dtype, **options), torch.Generator().manual_seed(3)
    for weight in draft.transformer.parameters():
        weight.data += noise * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
    return ms.drafters.Model(draft)


class Often(ms.drafters.Drafter):
    """Drafts k tokens of the right output, of which number `wrong` is another one: every length is accepted."""

    def __init__(self, texts):
        self.texts, self.asked = texts, 0

    def propose(self, sequences, k):
        drafts = []
        for sequence in sequences:
            text = next(t for t in self.texts if t[: len(sequence.tokens)] == sequence.tokens)
            draft = text[len(sequence.tokens) :][:k]
            if (wrong := self.asked % (k + 1)) < len(draft):
                draft[wrong] = (draft[wrong] + 1) % 64
            self.asked += 1
            drafts.append(Draft(draft))
        return drafts


def often(plain):
    return Often([prompt + text for prompt, text in zip(PROMPTS, plain, strict=True)])


# ---- the layer ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 2e-6), (torch.float32, 2e-6)])
@pytest.mark.parametrize("T", [1, 20, 100])
def test_the_layer_is_that_of_transformers(dtype, atol, T):
    """Qwen3.5's layer with the same weights; theirs computes the rule in float32 whatever the weights are."""
    theirs = pytest.importorskip("transformers.models.qwen3_5.modeling_qwen3_5")
    config = theirs.Qwen3_5TextConfig(
        hidden_size=32,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=6,
        rms_norm_eps=1e-5,
        num_hidden_layers=1,
    )
    torch.manual_seed(0)
    reference, ours = theirs.Qwen3_5GatedDeltaNet(config, 0).to(dtype), GatedDeltaNet(32, DELTA, 1e-5).to(dtype)
    ours.load_state_dict(reference.state_dict())
    x = torch.randn(2, T, 32, dtype=dtype)
    recall = States(DELTA).recall
    with torch.no_grad():
        o = ours(x, None, lambda *given: recall([0, 1], [0, 0], [T, T], 0, *given))
        assert torch.allclose(o, reference(x), atol=atol)


def test_chunks_give_what_the_formula_gives():
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, 3, 150, size, dtype=torch.float64) for size in (8, 8, 6))
    k = torch.nn.functional.normalize(k, dim=-1)
    gates = torch.randn(2, 3, 150, dtype=torch.float64)
    given = q, k, v, -gates.square(), gates.sigmoid(), torch.randn(2, 3, 8, 6, dtype=torch.float64)
    o, states = recurrent.delta_rule(*given)
    o_too, last = recurrent.delta_rule_in_chunks(*given)
    assert torch.allclose(o, o_too, atol=1e-12)
    assert torch.allclose(states[:, -1:], last, atol=1e-12)


# ---- greedy equality ------------------------------------------------------------------------------------------------


def test_generate_a_batch(model, plain):
    assert [out.tokens for out in ms.generate(model, PROMPTS, max_new_tokens=N)] == plain


@pytest.mark.parametrize("k", [1, 4])
def test_speculate(model, plain, k):
    for drafter in (often(plain), near(model), ms.drafters.NGram(), ms.drafters.EarlyExit(model, 3)):
        outs = ms.speculate(model, PROMPTS, drafter=drafter, k=k, max_new_tokens=N)
        assert [out.tokens for out in outs] == plain, drafter
    accepted = Counter(c.accepted for out in ms.speculate(model, PROMPTS, often(plain), k, N) for c in out.trace.cycles)
    assert accepted.keys() == set(range(k + 1))


ENGINES = {
    "roomy": dict(num_blocks=64, block_size=16),
    "chunks of prompts": dict(num_blocks=64, block_size=4, max_chunk=7),
    "long chunks": dict(num_blocks=64, block_size=4, max_num_batched_tokens=44),
    "preemption": dict(num_blocks=22, block_size=4),
    "one at a time": dict(num_blocks=64, block_size=8, max_num_seqs=1),
}


@pytest.mark.parametrize("name", ENGINES)
def test_engine(model, plain, name):
    for drafter in (often(plain), near(model) if name == "chunks of prompts" else None):
        engine = ms.Engine(model, drafter, k=4, **ENGINES[name])
        for _ in range(2):  # the second time in blocks, and under names, that were used before
            outs = engine.generate(PROMPTS, max_new_tokens=N, progress=False)
            assert [out.tokens for out in outs] == plain
            engine.check_integrity()
        if name == "preemption" and drafter:
            assert engine.metrics()["totals"]["preemptions"] > 0
        assert engine.metrics()["blocks"]["prefix_hits"] == 0  # a prefix has no state at its end


def test_aborted_requests_leave_nothing_behind(model, plain):
    engine = ms.Engine(model, often(plain), num_blocks=40, block_size=4, k=4)
    for round in range(4):
        ids = [engine.add(prompt, max_new_tokens=N) for prompt in PROMPTS]
        for _ in range(2 + round):
            engine.step()
        engine.abort(ids[round])
        outs = engine.run()
        assert [outs[id].tokens for i, id in enumerate(ids) if i != round] == plain[:round] + plain[round + 1 :]
    assert len(engine.runner.cache.recurrent.kept) <= len(PROMPTS) * len(DELTA.layers)


def test_a_pass_that_fails_is_repeated_from_the_same_state(model, plain):
    engine = ms.Engine(model, often(plain), num_blocks=64, block_size=4, k=4)
    calls, head = Counter(), engine.target.transformer.layers[3].mlp

    def sometimes(*_):
        calls["passes"] += 1
        if calls["passes"] % 3 == 0:
            raise RuntimeError("once in a while")

    hook = head.register_forward_hook(sometimes)
    try:
        with pytest.warns(UserWarning, match="succeeded, far more slowly"):
            outs = engine.generate([PROMPTS[0], PROMPTS[1]], max_new_tokens=N, progress=False)
    finally:
        hook.remove()
    assert any(out.error is None for out in outs)
    assert all(out.tokens == text for out, text in zip(outs, plain, strict=False) if out.error is None)


# ---- sampled --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_sampled_speculation_is_exact_by_enumeration():
    """All that can happen in cycles over one cache, rewound after each: the outputs have the target's distribution."""
    target, prompt, n = hybrid(vocab_size=2, num_layers=2, delta=replace(DELTA, layers=(0,))), (0, 1, 1), 3
    draft = torch.tensor([[0.6, 0.4], [0.2, 0.8]], dtype=torch.float64)
    transformer = target.transformer

    def program(random):
        cache, tokens = transformer.new_cache(1, 32), prompt
        transformer(torch.tensor([tokens[:-1]]), cache)
        while len(tokens) < len(prompt) + n:
            drafted, q = exact.propose_chain(lambda context: draft[context[-1]], tokens, 2, random)
            p = transformer(torch.tensor([[tokens[-1], *drafted]]), cache).logits[0].softmax(-1)  # [3, V]
            tokens += chain(p, q, drafted, [random() for _ in p]).run(drafted)
            cache.rewind(len(tokens) - 1)
        return tokens[len(prompt) :][:n]

    with torch.inference_mode():
        expected = joint_distribution(target, prompt, n, Sampling(temperature=1.0))
        assert exact.total_variation(exact.exact_distribution(program), expected) < 1e-12


# ---- refused --------------------------------------------------------------------------------------------------------


def test_what_cannot_be_is_refused_in_words(model):
    trees = ms.drafters.Lookahead()
    for call in (lambda: ms.speculate(model, [1], trees), lambda: ms.Engine(model, trees)):
        with pytest.raises(ValueError, match="recurrent layers, whose state follows one chain"):
            call()
    tokens, mask = torch.tensor([[1, 2, 3]]), torch.eye(3, dtype=torch.bool)
    with pytest.raises(ValueError, match="recurrent layers"):
        model.transformer(tokens, model.transformer.new_cache(1, 8), mask=mask)
    engine = ms.Engine(model, near(model))
    for call in (lambda k: ms.speculate(model, [1], near(model), k), lambda k: engine.add([1], k=k)):
        with pytest.raises(ValueError, match=f"k=33.*{recurrent.DEEPEST}"):
            call(33)
    with pytest.raises(ValueError, match="recurrent layers.*leave `fast` out"):
        ms.Engine(model, fast=True)
    kept = model.transformer.new_cache(1, 64)
    model.transformer(tokens.repeat(1, 15), kept)
    kept.rewind(20)  # into a prompt that was one long pass
    with pytest.raises(ValueError, match="length=20: the states kept are those after .45. tokens"):
        model.transformer(tokens, kept)


# ---- mutants --------------------------------------------------------------------------------------------------------


def check_batch():
    assert [out.tokens for out in ms.generate(the_model_once(), PROMPTS, max_new_tokens=N)] == right(the_model_once())


def check_speculate():
    model = the_model_once()
    outs = ms.speculate(model, PROMPTS, often(right(model)), 4, N)
    assert [out.tokens for out in outs] == right(model)


def check_engine():
    model = the_model_once()
    engine = ms.Engine(model, often(right(model)), k=4, num_blocks=40, block_size=4)
    for _ in range(2):  # the second time where others have left their states
        outs = engine.generate(PROMPTS, max_new_tokens=N, progress=False)
        assert [out.tokens for out in outs] == right(model)


CHECKS = {"batch": check_batch, "speculate": check_speculate, "engine": check_engine}
ALL = "speculate", "engine"
MUTANTS = {
    "the newest state, which has seen rejected tokens": rewritten(
        States, "checkpoint", "kept[length] if length", "kept[max(kept)] if length", *ALL
    ),
    "the state is that after the whole draft": rewritten(
        States, "recall", "states[row, min(n, states.shape[1]) - 1]", "states[row, -1]", *ALL
    ),
    "the window of the convolution is not rewound": rewritten(
        States, "recall", "seen[row, n : n + self.shape.conv_size - 1]", "seen[row, 1 - self.shape.conv_size :]", *ALL
    ),
    "the window lags by a token": rewritten(States, "recall", "seen[row, n :", "seen[row, n - 1 :", *ALL, "batch"),
    "checkpoints off by one": rewritten(
        States, "recall", "min(n, states.shape[1]) - 1", "max(min(n, states.shape[1]) - 2, 0)", *ALL
    ),
    "a new request finds the last one's state": rewritten(
        States, "checkpoint", "if length else blank", "if length else kept[max(kept)] if kept else blank", "engine"
    ),
    "padding advances the state": rewritten(
        States, "recall", "gate.masked_fill(padding[..., None], 0)", "gate", "batch"
    ),
    "a prefix is reused without its state": rewritten(
        ms.Engine,
        "__init__",
        "enable_prefix_caching and target.config.delta is None",
        "enable_prefix_caching",
        "engine",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_wrong_states(name):
    assert_caught(name, MUTANTS[name], CHECKS)
