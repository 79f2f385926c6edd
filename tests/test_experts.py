"""Mixtures of experts: against their definition, and under everything that decodes. (test_model.py compares models of
five kinds with transformers.)"""

import pytest
import torch
from all_drafters import ALL
from tiny_models import random_model

import minispec as ms
from minispec import experts
from minispec.cpu.fused import fused
from minispec.experts import Experts
from minispec.load.folder import save_folder
from minispec.load.hf_config import from_hf
from minispec.load.quantize import to_int8
from minispec.recurrent import DeltaRule
from minispec_course import formulas

SHAPE = Experts(count=6, per_token=2, size=16)


@pytest.fixture(scope="module")
def sparse() -> ms.Model:
    return random_model(experts=SHAPE)


def test_what_would_be_computed_wrongly_is_refused():
    heads = dict(num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2)
    keys = dict(hidden_size=32, intermediate_size=24, vocab_size=61, max_position_embeddings=64) | heads
    with pytest.raises(ValueError, match="clip_qkv"):
        from_hf(keys | dict(model_type="olmoe", num_experts=6, num_experts_per_tok=2, clip_qkv=8.0))


def test_folders_of_experts_are_read_and_not_written(sparse, tmp_path):
    with pytest.raises(ValueError, match="not written"):
        save_folder(sparse, tmp_path / "again")


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
    assert sum(touched) / 4000 == pytest.approx(formulas.experts_touched(16, 3, 5), rel=0.01)
    with pytest.raises(ValueError, match="per_token=9"):
        formulas.experts_touched(8, 9, 1)


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


def test_a_gpu_that_cannot_capture_a_model_says_so_once(sparse, monkeypatch):
    """`ms.load` and an engine would run it eagerly in silence."""
    dense, hybrid = random_model(), random_model(num_layers=4, delta=DeltaRule((0, 1), 2, 4, 8, 6))
    monkeypatch.setattr(ms.Model, "device", torch.device("cuda"))
    monkeypatch.setattr("minispec.require.TOLD", set())
    with pytest.warns(UserWarning, match="without CUDA graphs") as told:
        captured = [model.may_capture() for model in (dense, sparse, sparse, hybrid)]
    assert captured == [True, False, False, False]
    assert [("mixture" in str(w.message), "recurrent" in str(w.message)) for w in told] == [
        (True, False),
        (False, True),
    ]
