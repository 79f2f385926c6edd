"""MTP: the module's formula by hand, its chain, its storage and its training; exactness comes with all_drafters."""

from __future__ import annotations

import pytest
import torch
from all_drafters import random_mtp
from by_hand import Attention, of_module, rms
from mutants.patching import rewrite
from pytest import MonkeyPatch

import minispec as ms
from minispec.drafters import MTP, Context, MTPHead
from recipes import corpus as writing
from recipes import mtp as training
from recipes.eagle import calibrate
from recipes.lessons import split_rows

TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 35, 8, 9, 7]


@pytest.fixture(scope="module")
def target(make_model) -> ms.Model:
    return make_model(num_layers=3)


def context(target, tokens, row=0, sampling=None, seed=0) -> Context:
    last, hidden = target.config.num_layers, {}
    if len(tokens) > 1:
        hidden = {last: target.transformer(torch.tensor([tokens[:-1]]), hidden_layers=(last,)).hidden[last][0]}
    return Context(row, list(tokens), sampling or ms.Sampling(), torch.Generator().manual_seed(seed), hidden)


def by_hand(target, head: MTPHead, text: list[int], drafted: list[int]) -> torch.Tensor:
    """Logits after the text and after each drafted token, [len(drafted) + 1, V]."""
    c, layer, last, handed, logits = head.config, head.layer, target.config.num_layers, [], []
    attend, norm = Attention(c, of_module(layer.self_attn)), lambda x, module: rms(x, module.weight, c.norm_eps)
    stream = target.transformer(torch.tensor([text[:-1]]), hidden_layers=(last,)).hidden[last][0]  # [T − 1, d]
    for position, token in enumerate([*text[1:], *drafted]):
        known = position < len(text) - 1  # else the module's own output stands in
        h = norm(stream[position], target.transformer.norm) if known else handed[-1]
        e = norm(target.transformer.embed_tokens.weight[token], head.enorm)
        x = head.eh_proj.weight @ torch.cat([e, norm(h, head.hnorm)])
        x = x + attend(norm(x, layer.input_layernorm))
        f = x + layer.mlp(norm(x, layer.post_attention_layernorm))
        handed.append(norm(f, head.norm) if head.norm_output else f)
        logits.append(target.transformer.lm_head.weight @ norm(f, head.norm))
    return torch.stack(logits[len(text) - 2 :])


# ---------------------------------------------------------------- what it proposes


def check_chain(target, norm_output: bool) -> None:
    """A sampled chain: its q is the formula's, at every step."""
    head, own = random_mtp(target, norm_output=norm_output), ms.Sampling(temperature=1.3)
    (draft,) = MTP(target, head, sampling=own).propose([context(target, TEXT)], 4)
    q = own.probs(by_hand(target, head, TEXT, draft.tokens[:-1]))
    assert torch.allclose(draft.probs, q, rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm_output", [False, True])
def test_a_chain_is_the_formula(target, norm_output):
    check_chain(target, norm_output)
    head = random_mtp(target, norm_output=norm_output, noise=2.0)
    (draft,) = MTP(target, head).propose([context(target, TEXT)], 5)
    assert draft.parents is None and draft.probs is None and len(set(draft.tokens)) > 1
    assert draft.tokens == by_hand(target, head, TEXT, draft.tokens[:-1]).argmax(-1).tolist()


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("enter", "self.hnorm(h)", "h"),  # the halves then have other sizes
        (
            "enter",
            "self.enorm(self.embed(tokens).to(self.dtype)), self.hnorm(h)",
            "self.hnorm(h), self.enorm(self.embed(tokens).to(self.dtype))",
        ),
        ("forward", "return self.norm(x) if self.norm_output else x", "return self.norm(x)"),  # Qwen3-Next's chain
        ("logits", "feature if self.norm_output else self.norm(feature)", "feature"),
        ("fuse", "self.target_norm(h)", "h"),
    ],
)
def test_the_formula_notices_a_broken_module(target, name, old, new):
    with MonkeyPatch.context() as patch:
        rewrite(patch, MTPHead, name, old, new)
        with pytest.raises(AssertionError):
            check_chain(target, norm_output=False)


def test_a_tree_begins_with_the_chain(target):
    """Wide enough trees hold the greedy chain: it is the likeliest child of every likeliest node."""
    head = random_mtp(target)
    (chain,), (tree,) = (
        MTP(target, head, **options).propose([context(target, TEXT)], 3)
        for options in ({}, dict(tree=True, width=8, nodes=100))
    )
    at, found = -1, []
    for token in chain.tokens:
        at = next(i for i, t in enumerate(tree.tokens) if t == token and tree.parents[i] == at)
        found.append(token)
    assert found == chain.tokens and MTP(target, head).extra_slots == 0


def test_a_target_with_experts_has_a_dense_module(make_model):
    from minispec.moe.experts import Experts

    sparse = make_model(num_layers=2, experts=Experts(4, 2, 16))
    head = random_mtp(sparse)
    assert head.config.experts is None and head.config.intermediate_size == sparse.config.intermediate_size
    plain = ms.generate(sparse, TEXT[:4], 12)
    assert ms.speculate(sparse, TEXT[:4], MTP(sparse, head), 3, 12).tokens == plain.tokens


@pytest.mark.parametrize("tree", [False, True])
def test_a_recorded_backend_and_an_engine_take_it(make_model, tree):
    """As on a GPU: its module has no recorded form, so the target's passes are recorded and the drafts are torch's."""
    target = make_model(num_layers=2)
    plain, options = ms.generate(target, TEXT[:5], 14), dict(tree=True, width=2, nodes=6) if tree else {}
    target.accelerate()
    assert ms.speculate(target, TEXT[:5], MTP(target, random_mtp(target), **options), 3, 14).tokens == plain.tokens
    engine = ms.Engine(target, MTP(target, random_mtp(target), **options), num_blocks=32, block_size=4, k=3, fast=True)
    outs = engine.generate([TEXT[:5], TEXT[:3]], ms.SamplingParams(max_new_tokens=14), progress=False)
    assert outs[0].tokens == plain.tokens


# ---------------------------------------------------------------- on disk


# ---------------------------------------------------------------- training


@pytest.fixture(scope="module")
def lesson(make_model, tmp_path_factory):
    """A target of few tokens, and what it wrote."""
    target = make_model(dtype=torch.float32, end_tokens=[0], max_length=256, vocab_size=32)
    prompts, folder = [[1 + i, 2 + i, 3] for i in range(20)], tmp_path_factory.mktemp("text")
    return target, writing.write(target, prompts, folder, rows=48, max_new_tokens=24, temperatures=[0.5], batch=48)


@pytest.mark.slow
def test_a_module_learns_and_training_goes_on(lesson, tmp_path):
    target, corpus = lesson
    options = dict(lr=1e-2, batch_tokens=512, log_every=10)
    head, curve = training.train_head(target, corpus, steps=30, folder=tmp_path / "run", unroll=2, **options)
    held_out = split_rows(corpus)[1]
    before, after = (calibrate(target, h, held_out, 2) for h in (training.new_head(target), head))
    assert curve[-1]["loss"] < 0.9 * curve[0]["loss"] and after[0] > before[0]
    head.save(target, tmp_path / "stored")
    start = tmp_path / "stored"
    still, _ = training.train_head(
        target, corpus, steps=2, folder=tmp_path / "still", start=start, **options | {"lr": 1e-9}
    )
    for name, weight in MTPHead.load(target, start).state_dict().items():
        assert torch.allclose(still.state_dict()[name], weight, rtol=0, atol=1e-7)
    with pytest.raises(ValueError, match="mlp=7"):
        training.train_head(target, corpus, steps=2, folder=tmp_path / "no", start=start, mlp=7, **options)
    with pytest.raises(ValueError, match="unroll=0"):
        training.train_head(target, corpus, steps=2, folder=tmp_path / "no", unroll=0, **options)
    assert not (tmp_path / "no").exists()
