"""Mixtures of experts: against transformers, against their own definition, and under everything that decodes."""

import json
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from all_drafters import ALL
from tiny_models import random_model

import minispec as ms
from minispec import experts, theory
from minispec.cpu.fused import fused
from minispec.experts import Experts
from minispec.load.folder import save_folder
from minispec.load.hf_config import from_hf
from minispec.load.quantize import to_int8
from minispec.model import rope_at

NO_ENDS = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)
BASE = NO_ENDS | dict(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2)
BASE |= dict(vocab_size=61, intermediate_size=24, max_position_embeddings=64)
HALF_DENSE = dict(num_experts=4, num_experts_per_tok=1, moe_intermediate_size=12, head_dim=16, decoder_sparse_step=2)
SHARED = dict(num_experts=3, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=20)
FAMILIES = {
    "mixtral": dict(num_local_experts=5, num_experts_per_tok=2),
    "qwen3_moe": dict(num_experts=7, num_experts_per_tok=3, moe_intermediate_size=16, head_dim=8, norm_topk_prob=True),
    "qwen3_moe, half dense": HALF_DENSE | dict(norm_topk_prob=False),
    "olmoe": dict(num_experts=6, num_experts_per_tok=2, norm_topk_prob=False),
    "qwen2_moe": SHARED | dict(norm_topk_prob=False),
}
SHAPE = Experts(count=6, per_token=2, size=16)


@pytest.fixture(scope="module")
def sparse() -> ms.Model:
    return random_model(experts=SHAPE)


# ---- against transformers -------------------------------------------------------------------------------------------


def in_double(hf, config, patch) -> None:
    """transformers rounds to float32 in its norms and routers, whatever the model's dtype is. Here it does not. (Both
    round the angles of RoPE, so here both use ours; test_model.py compares those.)"""
    rope = [part[:, 0] for part in rope_at(config, torch.arange(19)[None], torch.float64)]
    hf.model.rotary_emb.forward = lambda x, position_ids: rope
    patch.setattr(torch.Tensor, "float", torch.Tensor.double)
    patch.setattr(F, "softmax", lambda x, dim=None, dtype=None: x.softmax(dim))
    for part in hf.modules():
        if "RMSNorm" in type(part).__name__:
            part.forward = lambda x, part=part: F.rms_norm(x, part.weight.shape, part.weight, part.variance_epsilon)


@pytest.fixture(params=FAMILIES)
def family(request, tmp_path):
    """The same random weights in transformers and in minispec, by way of a folder on disk."""
    from transformers import AutoConfig, AutoModelForCausalLM

    keys = BASE | FAMILIES[request.param]
    config = AutoConfig.for_model(request.param.partition(",")[0], **keys, attn_implementation="eager")
    hf = AutoModelForCausalLM.from_config(config, experts_implementation="eager").eval()
    generator = torch.Generator().manual_seed(len(request.param))
    for key, parameter in hf.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        scale = 0.2 if parameter.ndim == 1 else 1.5 / parameter.shape[-1] ** 0.5
        parameter.data.copy_(scale * noise + ("norm" in key))
    hf.save_pretrained(tmp_path)
    return SimpleNamespace(hf=hf.double(), folder=tmp_path, ours=ms.load(tmp_path, device="cpu", dtype=torch.float64))


@pytest.mark.slow
@torch.no_grad()
def test_logits_equal_transformers(family, monkeypatch):
    tokens = torch.randint(0, 61, (2, 19), generator=torch.Generator().manual_seed(0))
    ours = family.ours.transformer(tokens).logits
    cache = family.ours.transformer.new_cache(2, 24)
    steps = [family.ours.transformer(part, cache).logits for part in tokens.split(4, dim=1)]
    with monkeypatch.context() as patch:
        in_double(family.hf, family.ours.config, patch)
        expected = family.hf(tokens, use_cache=False).logits
    assert expected.std() > 0.5
    assert float((ours - expected).abs().max()) <= 1e-9
    assert float((torch.cat(steps, 1) - expected).abs().max()) <= 1e-9


def test_a_config_is_read(family, tmp_path):
    assert from_hf(json.loads((family.folder / "config.json").read_text())) == family.ours.config
    with pytest.raises(ValueError, match="not written"):
        save_folder(family.ours, tmp_path / "again")


def test_what_would_be_computed_wrongly_is_refused():
    keys = BASE | FAMILIES["olmoe"] | dict(model_type="olmoe", clip_qkv=8.0)
    with pytest.raises(ValueError, match="clip_qkv"):
        from_hf(keys)


# ---- against the definition -----------------------------------------------------------------------------------------


def parts(n: int, seed: int = 0):
    """x [n, d], gates and choices of a random mixture, and its experts."""
    mlps = random_model(experts=SHAPE, seed=seed).transformer.layers[0].mlp
    x = torch.randn(n, 32, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    gates, chosen = experts.route(mlps.gate(x), SHAPE.per_token, SHAPE.renormalise)
    return x, gates, chosen, mlps.experts


def definition(x, gates, chosen, mlps):
    return torch.stack(
        [
            sum(g * mlps[e](row) for g, e in zip(gs, es.tolist(), strict=True))
            for row, gs, es in zip(x, gates, chosen, strict=True)
        ]
    )


def test_the_product_is_the_definition():
    for n, seed in ((1, 0), (5, 1), (40, 2)):
        x, gates, chosen, mlps = parts(n, seed)
        expected = definition(x, gates, chosen, mlps)
        assert torch.allclose(experts.grouped(x, gates, chosen, mlps), expected, atol=1e-12)
        assert torch.allclose(gates.sum(-1), torch.ones(n).double())


# ---- experts touched ------------------------------------------------------------------------------------------------


def test_the_formula_is_the_mean_of_uniform_choices():
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(4000, 5, 16, generator=generator)
    chosen = scores.topk(3, -1).indices.flatten(1)  # [4000, 15]: five tokens each choose three of sixteen
    touched = [len(set(row)) for row in chosen.tolist()]
    assert sum(touched) / 4000 == pytest.approx(theory.experts_touched(16, 3, 5), rel=0.01)
    with pytest.raises(ValueError, match="per_token=9"):
        theory.experts_touched(8, 9, 1)


# ---- what decodes with it -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_greedy_outputs_equal_plain_decoding(sparse):
    draft = random_model(experts=SHAPE, num_layers=1)
    plain = ms.generate(sparse, [1, 2, 3, 4], max_new_tokens=16).tokens
    for name in ("model", "ngram", "early exit", "quantized, 8 bits", "lookahead", "medusa", "eagle, tree", "dflash"):
        out = ms.speculate(sparse, [1, 2, 3, 4], ALL[name](sparse, draft), k=3, max_new_tokens=16)
        assert out.tokens == plain, name


def test_the_engine_serves_it(sparse):
    prompts, params = [[1, 2, 3], [9, 8], [4, 4, 4, 4, 4]], ms.SamplingParams(max_new_tokens=12)
    drafter = ms.drafters.Model(random_model(experts=SHAPE, num_layers=1))
    outputs = ms.Engine(sparse, drafter, num_blocks=32, k=3).generate(prompts, params, progress=False)
    assert [out.tokens for out in outputs] == [ms.generate(sparse, ids, max_new_tokens=12).tokens for ids in prompts]


def test_compiled_passes_leave_it_to_the_reference(monkeypatch):
    from minispec.gpu.weights import require_ordinary

    model = random_model(experts=SHAPE, head_dim=16, dtype=torch.float32)
    monkeypatch.setenv("MINISPEC_LINEAR", "numba")
    with torch.inference_mode(False), torch.no_grad():
        cache = model.transformer.new_cache(1, 64)
        assert all(fused(model.transformer, cache, torch.zeros(1, n, dtype=torch.long)) is None for n in (3, 40))
    assert not model.transformer.ordinary
    with pytest.raises(ValueError, match="mixture of experts"):
        require_ordinary(model.transformer, "fast=True: this")
    with pytest.raises(ValueError, match="mixture of experts"):
        to_int8(model.transformer)
