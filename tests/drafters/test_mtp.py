"""MTP: the module's formula by hand, its chain, its storage and its training; exactness comes with all_drafters."""

from __future__ import annotations

import json
import re

import pytest
import torch
from all_drafters import random_mtp
from mutants.patching import rewrite
from pytest import MonkeyPatch

import minispec as ms
from minispec.cpu import fused
from minispec.drafters import MTP, Context, Draft, MTPHead
from minispec.model import rope_at, rotate
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
    """Logits after the text and after each drafted token, [len(drafted) + 1, V], entry by entry and without a cache."""
    c, keys, values, handed, logits = head.config, [], [], [], []
    last, layer = target.config.num_layers, head.layer
    stream = target.transformer(torch.tensor([text[:-1]]), hidden_layers=(last,)).hidden[last][0]  # [T − 1, d]
    rms = lambda x, norm: norm.weight * x / (x.square().mean() + c.norm_eps).sqrt()  # noqa: E731
    for position, token in enumerate([*text[1:], *drafted]):
        known = position < len(text) - 1  # else the module's own output stands in
        h = rms(stream[position], target.transformer.norm) if known else handed[-1]
        e = rms(target.transformer.embed_tokens.weight[token], head.enorm)
        x = head.eh_proj.weight @ torch.cat([e, rms(h, head.hnorm)])
        normed = rms(x, layer.input_layernorm)
        rope = rope_at(c, torch.tensor([[position]]), torch.float64)
        q, k, v = (getattr(layer.self_attn, f"{n}_proj").weight @ normed for n in "qkv")
        q, k = (rotate(y.view(1, -1, 1, c.head_dim), *rope)[0, :, 0] for y in (q, k))  # [H, D], [Hkv, D]
        keys.append(k)
        values.append(v.view(-1, c.head_dim))
        out = []
        for head_number in range(c.num_heads):
            own = head_number // (c.num_heads // c.num_kv_heads)
            weights = torch.stack([q[head_number] @ k[own] / c.head_dim**0.5 for k in keys]).softmax(0)
            out.append(sum(w * v[own] for w, v in zip(weights, values, strict=True)))
        x = x + layer.self_attn.o_proj.weight @ torch.cat(out)
        f = x + layer.mlp(rms(x, layer.post_attention_layernorm))
        handed.append(rms(f, head.norm) if head.norm_output else f)
        logits.append(target.transformer.lm_head.weight @ rms(f, head.norm))
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
        ("forward", "self.hnorm(h)", "h"),  # the halves then have other sizes
        (
            "forward",
            "self.enorm(self.embed(tokens).to(self.dtype)), self.hnorm(h)",
            "self.hnorm(h), self.enorm(self.embed(tokens).to(self.dtype))",
        ),
        ("forward", "return self.norm(f) if self.norm_output else f", "return self.norm(f)"),  # Qwen3-Next's chain
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


def test_the_compiled_pass_drafts_the_same(make_model, monkeypatch):
    pytest.importorskip("numba")
    target = make_model(num_layers=2, head_dim=16, dtype=torch.float32)
    head, drafts, groups, group = random_mtp(target), [], [], fused.Plan.group
    monkeypatch.setattr(fused.Plan, "group", lambda self, x, *rest: (groups.append(len(x)), group(self, x, *rest)))
    for wish in ("torch", "numba"):
        monkeypatch.setenv("MINISPEC_LINEAR", wish)
        drafter = MTP(target, head)
        drafts.append([d.tokens for d in drafter.propose([context(target, TEXT[:6]), context(target, TEXT, 1)], 4)])
        assert bool(groups) == (wish == "numba")
    assert drafts[0] == drafts[1]


def test_a_prompt_of_one_token_has_no_state_yet(target):
    assert MTP(target, random_mtp(target)).propose([context(target, [7])], 3) == [Draft([])]


def test_a_target_with_experts_has_a_dense_module(make_model):
    from minispec.experts import Experts

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


def test_a_stored_module_is_the_same_within_8_bits(target, tmp_path):
    head = random_mtp(target, mlp=20, norm_output=True)
    head.accuracy = [0.5, 0.25]
    head.save(target, tmp_path)
    stored = MTPHead.load(target, tmp_path)
    assert stored.accuracy == [0.5, 0.25] and stored.norm_output and stored.shape == head.shape
    assert stored.state_dict().keys() == head.state_dict().keys() and "head" not in stored.state_dict()
    for name, weight in head.state_dict().items():
        step = weight.abs().amax(-1, keepdim=True) / 127 if weight.ndim == 2 else 1e-6
        assert ((stored.state_dict()[name] - weight).abs() <= step / 2 + 1e-6).all()
    assert len(MTP(target, tmp_path).propose([context(target, TEXT)], 3)[0].tokens) == 3


def test_bad_arguments_are_named(target, make_model, tmp_path):
    for mlp in (0, 2.5):
        with pytest.raises(ValueError, match=f"mlp={mlp}"):
            MTPHead(target, mlp=mlp)
    with pytest.raises(ValueError, match="no mtp heads ship"):
        MTP(target)
    with pytest.raises(ValueError, match=re.escape("no config.json")):
        MTP(target, tmp_path)
    with pytest.raises(ValueError, match="make them for this target"):
        MTP(make_model(hidden_size=16), random_mtp(target))


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


@pytest.mark.slow
def test_the_command_line(tiny_folder, tmp_path, capsys):
    from minispec.cli import main

    target = ms.load(tiny_folder, device="cpu", dtype=torch.float32)
    prompts = [[5 + i, 6] for i in range(9)]
    writing.write(target, prompts, tmp_path / "text", rows=16, max_new_tokens=12, temperatures=[1.0], batch=16)
    assert (
        main(
            [
                "train",
                "mtp",
                "--model",
                str(tiny_folder),
                "--device",
                "cpu",
                "--corpus",
                str(tmp_path / "text"),
                "--out",
                str(tmp_path / "run"),
                "--steps",
                "3",
                "--batch-tokens",
                "300",
                "--norm-output",
                "--keep",
                "--unroll",
                "1",
            ]
        )
        == 0
    )
    settings = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert settings["kind"] == "mtp" and len(settings["accuracy"]) == 3 and settings["norm_output"]
    assert "MB" in capsys.readouterr().out and (tmp_path / "run" / "curve.json").is_file()
    out = ms.speculate(
        target, [5, 6, 7], ms.drafters.by_name("mtp", target, heads=str(tmp_path / "run" / "model")), 4, 20
    )
    assert out.tokens == ms.generate(target, [5, 6, 7], 20).tokens
