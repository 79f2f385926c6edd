"""Hybrid models: the gated delta rule against transformers, and its states under everything that decodes."""

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
import torch
from mutants import assert_noticed
from mutants import recurrent_mutants as mutants
from sequence_distribution import joint_distribution
from tiny_models import blurred, random_model

import minispec as ms
from minispec import exact, recurrent
from minispec.load.folder import save_folder
from minispec.recurrent import DeltaRule, States
from minispec.sampling import Sampling
from minispec.serving import engine as engine_module
from minispec.tree import Draft
from minispec.verify import chain

DELTA = DeltaRule(layers=(0, 1, 3), key_heads=2, value_heads=4, key_dim=8, value_dim=6)
PROMPTS = [[1, 2, 3, 4, 5], [7, 8], [9, 3, 5, 1] * 12, [6]]  # one of them longer than the passes that keep all states
N = 16
SIZES = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=6)
SIZES |= dict(hidden_size=32, intermediate_size=48, vocab_size=64, num_attention_heads=4, num_key_value_heads=2)
SIZES |= dict(head_dim=16, max_position_embeddings=256, rms_norm_eps=1e-5)


@cache
def hybrid(**options) -> ms.Model:
    return random_model(**dict(num_layers=4, delta=DELTA) | options)


@cache
def right() -> list[list[int]]:
    """What plain decoding without any cache gives: every token from a pass over all before it."""
    outputs = []
    for prompt in PROMPTS:
        tokens = list(prompt)
        for _ in range(N):
            tokens.append(int(hybrid().transformer(torch.tensor([tokens])).logits[0, -1].argmax()))
        outputs.append(tokens[len(prompt) :])
    return outputs


@cache
def near() -> ms.drafters.Model:
    """A hybrid draft model, which is rewound, too: the target's weights, blurred."""
    return ms.drafters.Model(blurred(num_layers=4, delta=DELTA))


class Often(ms.drafters.Drafter):
    """Drafts k tokens of the right output, of which each in turn is another one: every length is accepted."""

    def __init__(self):
        self.texts, self.asked = [prompt + text for prompt, text in zip(PROMPTS, right(), strict=True)], 0

    def propose(self, sequences, k):
        drafts = []
        for sequence in sequences:
            texts = [text for text in self.texts if text[: len(sequence.tokens)] == sequence.tokens]
            assert texts, "the output is not plain decoding's"
            text = texts[0]
            draft = text[len(sequence.tokens) :][:k]
            if (wrong := self.asked % (k + 1)) < len(draft):
                draft[wrong] = (draft[wrong] + 1) % 64
            self.asked += 1
            drafts.append(Draft(draft))
        return drafts


# ---- against transformers, and against the formula -------------------------------------------------------------------


@pytest.mark.slow
@torch.inference_mode()
def test_a_model_of_transformers_and_the_way_back(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    theirs = transformers.Qwen3_5ForCausalLM(transformers.Qwen3_5TextConfig(num_hidden_layers=5, **SIZES)).eval()
    for weight in theirs.parameters():
        weight += 0.1 * torch.randn_like(weight)
    ours, tokens = ms.load(theirs), torch.randint(64, (2, 70))
    expected = theirs(tokens).logits
    for n in (1, 20, 70):  # token by token, and in chunks
        assert torch.allclose(ours.transformer(tokens[:, :n]).logits, expected[:, :n], atol=2e-5)
    save_folder(ours, tmp_path, bits=None)
    assert torch.allclose(ms.load(tmp_path).transformer(tokens).logits, expected, atol=2e-5)
    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert type(back) is type(theirs) and torch.allclose(back(tokens).logits, expected, atol=2e-5)

    sees = dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=32)
    config = transformers.Qwen3_5Config(text_config=dict(num_hidden_layers=4) | SIZES, vision_config=sees)
    whole = transformers.Qwen3_5ForConditionalGeneration(config).eval()  # as Qwen3.5 is published: its text part loads
    whole.save_pretrained(tmp_path / "whole")
    found = ms.load(tmp_path / "whole", dtype=torch.float32).transformer(tokens).logits
    assert torch.allclose(found, whole(tokens).logits, atol=2e-5)


def test_chunks_give_what_the_formula_gives():
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, 3, 150, size, dtype=torch.float64) for size in (8, 8, 6))
    gates, k = torch.randn(2, 3, 150, dtype=torch.float64), torch.nn.functional.normalize(k, dim=-1)
    given = q, k, v, -gates.square(), gates.sigmoid(), torch.randn(2, 3, 8, 6, dtype=torch.float64)
    (o, states), (same, last) = recurrent.delta_rule(*given), recurrent.delta_rule_in_chunks(*given)
    assert torch.allclose(o, same, atol=1e-12) and torch.allclose(states[:, -1:], last, atol=1e-12)


# ---- greedy equality in float64 --------------------------------------------------------------------------------------


def check_batch():
    assert [out.tokens for out in ms.generate(hybrid(), PROMPTS, max_new_tokens=N)] == right()


def check_speculate(drafter=None, k=4):
    outs = ms.speculate(hybrid(), PROMPTS, drafter or Often(), k, N)
    assert [out.tokens for out in outs] == right()
    return {cycle.accepted for out in outs for cycle in out.trace.cycles}


def check_engine(drafter=None, **options):
    engine = ms.Engine(hybrid(), drafter or Often(), k=4, **dict(num_blocks=40, block_size=4) | options)
    for _ in range(2):  # the second time where others have left their states
        outs = engine.generate(PROMPTS, max_new_tokens=N, progress=False)
        assert [out.tokens for out in outs] == right()
        engine.check_integrity()
    assert len(engine.runner.cache.recurrent.kept) <= len(PROMPTS) * len(DELTA.layers)
    return engine.metrics()


@pytest.mark.slow
def test_generate_and_speculate():
    check_batch()
    assert check_speculate() == {0, 1, 2, 3, 4}
    D = ms.drafters
    cascade = D.Cascade(D.NGram(), near().draft)
    for drafter in (near(), D.NGram(), D.EarlyExit(hybrid(), 3), D.Ahead(near(), 2), cascade):
        check_speculate(drafter, k=3)


@pytest.mark.slow
def test_a_hybrid_draft_model_drafts_no_further_than_its_states_reach():
    dense = random_model()
    ends = ms.Model("ends", dense.transformer, None, ms.generate(dense, [1, 2], 5).tokens[-1:])
    out = ms.speculate(ends, [1, 2], ms.drafters.Model(hybrid()), 40, 60)
    assert out.tokens == ms.generate(ends, [1, 2], 60).tokens
    assert len(out.trace.cycles[0].drafted) == recurrent.DEEPEST


@pytest.mark.slow
def test_engine_in_chunks_batches_and_with_preemptions():
    assert check_engine()["blocks"]["prefix_hits"] == 0  # a prefix has no state at its end
    check_engine(max_chunk=7)
    check_engine(max_num_batched_tokens=44, max_num_seqs=2)
    check_engine(near(), max_chunk=40)
    assert check_engine(num_blocks=18)["totals"]["preemptions"] > 0


@pytest.mark.slow
def test_aborted_requests_leave_nothing_behind():
    engine = ms.Engine(hybrid(), Often(), num_blocks=40, block_size=4, k=4)
    for gone in range(4):
        ids = [engine.add(prompt, max_new_tokens=N) for prompt in PROMPTS]
        for _ in range(2 + gone):
            engine.step()
        engine.abort(ids[gone])
        outs = engine.run()
        assert all(outs[id].tokens == text for i, (id, text) in enumerate(zip(ids, right(), strict=True)) if i != gone)


@pytest.mark.slow
def test_a_pass_that_fails_is_repeated_from_the_same_state():
    calls = Counter()

    def sometimes(*_):
        calls["passes"] += 1
        if calls["passes"] in (3, 8):  # of both requests; the layers before have kept their states by then
            raise RuntimeError("once in a while")

    hook = hybrid().transformer.layers[3].mlp.register_forward_hook(sometimes)
    try:
        engine = ms.Engine(hybrid(), Often(), num_blocks=64, block_size=4, k=4)
        with pytest.warns(UserWarning, match="succeeded, far more slowly"):
            outs = engine.generate(PROMPTS[:2], max_new_tokens=N, progress=False)
    finally:
        hook.remove()
    assert [out.tokens for out in outs] == right()[:2]


# ---- sampled ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_sampled_speculation_is_exact_by_enumeration():
    """All that can happen in cycles over one cache, rewound after each: the outputs have the target's distribution."""
    target, prompt, n = hybrid(vocab_size=2, num_layers=2, delta=replace(DELTA, layers=(0,))), (0, 1, 1), 3
    draft, transformer = torch.tensor([[0.6, 0.4], [0.2, 0.8]], dtype=torch.float64), target.transformer

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


def test_what_cannot_be_is_refused_in_words():
    model, tokens, trees = hybrid(), torch.tensor([[1, 2, 3] * 15]), ms.drafters.Lookahead()
    kept, engine = model.transformer.new_cache(1, 64), ms.Engine(model, near())
    model.transformer(tokens, kept)
    windows = [state.window for states in kept.states.kept.values() for state in states.values()]
    assert all(window.untyped_storage().nbytes() == window.nbytes for window in windows)  # not a view of the prompt's
    kept.rewind(20)  # into a prompt that was one long pass
    for call, words in (
        (lambda: ms.speculate(model, [1], trees), "recurrent layers, whose state follows one chain"),
        (lambda: ms.Engine(model, trees), "recurrent layers, whose state follows one chain"),
        (lambda: model.transformer(tokens, mask=torch.eye(45, dtype=torch.bool)), "recurrent layers"),
        (lambda: ms.speculate(model, [1], near(), 33), f"k=33.*{recurrent.DEEPEST}"),
        (lambda: engine.add([1], k=33), f"k=33.*{recurrent.DEEPEST}"),
        (lambda: ms.Engine(model, fast=True), "recurrent layers.*leave `fast` out"),
        (lambda: model.transformer(tokens[:, :3], kept), "length=20: the states kept are those after .45. tokens"),
    ):
        with pytest.raises(ValueError, match=words):
            call()


# ---- mutants ---------------------------------------------------------------------------------------------------------


GUARDS = (AssertionError, ValueError)  # of the check, or of the code itself


@pytest.mark.slow
@pytest.mark.parametrize(
    "method, wrong, checks",
    [
        ("checkpoint", mutants.newest, [check_speculate, check_engine]),
        ("checkpoint", mutants.not_blank, [check_engine]),
        ("recall", mutants.memory_of_the_whole_draft, [check_speculate, check_engine]),
        ("recall", mutants.memory_a_token_late, [check_speculate, check_engine]),
        ("recall", mutants.window_of_the_whole_draft, [check_speculate, check_engine]),
        ("recall", mutants.window_a_token_late, [check_batch, check_speculate, check_engine]),
        ("recall", mutants.padding_advances_the_memory, [check_batch]),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_wrong_states_are_noticed(method, wrong, checks, monkeypatch):
    monkeypatch.setattr(States, method, wrong)
    for check in checks:
        assert_noticed(check, errors=GUARDS)


@pytest.mark.slow
def test_mutants_without_their_mistake_are_right(monkeypatch):
    monkeypatch.setattr(States, "recall", mutants.changed(lambda kept, n, blank: kept[n]))
    check_batch()
    check_speculate()


@pytest.mark.slow
def test_a_prefix_reused_without_its_state_is_noticed(monkeypatch):
    pool = engine_module.BlockPool
    monkeypatch.setattr(engine_module, "BlockPool", lambda blocks, size, caching: pool(blocks, size, True))
    assert_noticed(check_engine, errors=GUARDS)
