"""MTP: the module's formula by hand, its chain, its storage and its training; exactness comes with all_drafters."""

import pytest
import torch
from all_drafters import random_mtp
from by_hand import Attention, of_module, rms, sequence
from test_eagle import TEXT

import minispec as ms
from minispec.drafters import MTP, MTPHead


@pytest.fixture(scope="module")
def target(make_model) -> ms.Model:
    return make_model(num_layers=3)


def by_hand(target, head: MTPHead, text: list[int], drafted: list[int]) -> torch.Tensor:
    """Logits after the text and after each drafted token, [len(drafted) + 1, V]."""
    c, layer, last, logits = head.config, head.layer, target.config.num_layers, []
    attend, norm = Attention(c, of_module(layer.self_attn)), lambda x, module: rms(x, module.weight, c.norm_eps)
    stream = target.transformer(torch.tensor([text[:-1]]), hidden_layers=(last,)).hidden[last][0]  # [T − 1, d]
    f = None
    for position, token in enumerate([*text[1:], *drafted]):
        known = position < len(text) - 1  # else the module's own output stands in
        h = norm(stream[position], target.transformer.norm) if known else f
        e = norm(target.transformer.embed_tokens.weight[token], head.enorm)
        x = head.eh_proj.weight @ torch.cat([e, norm(h, head.hnorm)])
        x = x + attend(norm(x, layer.input_layernorm))
        f = x + layer.mlp(norm(x, layer.post_attention_layernorm))
        logits.append(target.transformer.lm_head.weight @ norm(f, head.norm))
    return torch.stack(logits[len(text) - 2 :])


def test_a_chain_is_the_formula(target):
    """A sampled chain's q at every step, and a greedy chain."""
    head, own = random_mtp(target, noise=2.0), ms.Sampling(temperature=1.3)
    (draft,) = MTP(target, head, sampling=own).propose([sequence(TEXT, target, head.hidden_layers)], 4)
    q = own.probs(by_hand(target, head, TEXT, draft.tokens[:-1]))
    assert torch.allclose(draft.probs, q, rtol=0, atol=1e-12)
    (draft,) = MTP(target, head).propose([sequence(TEXT, target, head.hidden_layers)], 5)
    assert draft.parents is None and draft.probs is None and len(set(draft.tokens)) > 1
    assert draft.tokens == by_hand(target, head, TEXT, draft.tokens[:-1]).argmax(-1).tolist()


def test_a_target_with_experts_has_a_dense_module(make_model):
    from minispec.experts import Experts

    sparse = make_model(num_layers=2, experts=Experts(4, 2, 16))
    head = random_mtp(sparse)
    assert head.config.experts is None and head.config.intermediate_size == sparse.config.intermediate_size
    plain = ms.generate(sparse, TEXT[:4], 12)
    assert ms.speculate(sparse, TEXT[:4], MTP(sparse, head), 3, 12).tokens == plain.tokens


def test_a_captured_target_and_an_engine_take_it(make_model):
    """As on a GPU: its module has no captured form, so the target's passes are captured and the drafts are torch's."""
    target = make_model(num_layers=2)
    plain, options = ms.generate(target, TEXT[:5], 14), dict(tree=True, width=2, nodes=6)
    target.accelerate()
    assert ms.speculate(target, TEXT[:5], MTP(target, random_mtp(target), **options), 3, 14).tokens == plain.tokens
    engine = ms.Engine(target, MTP(target, random_mtp(target), **options), num_blocks=32, block_size=4, k=3, fast=True)
    outs = engine.generate([TEXT[:5], TEXT[:3]], ms.SamplingParams(max_new_tokens=14), progress=False)
    assert outs[0].tokens == plain.tokens
