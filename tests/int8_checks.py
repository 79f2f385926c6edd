"""What int8 weights must be, as checks that the real code passes and its mutants do not (mutants/int8_mutants.py)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pytest import MonkeyPatch
from tiny_models import random_model
from torch import nn

from minispec.cpu import panels, trials
from minispec.load import quantize as q

SHAPES = [(1, 1), (4, 1), (5, 3), (16, 2), (17, 16), (33, 17), (64, 64), (101, 129), (192, 576), (576, 1536)]
KINDS = {
    "plain": {},
    "tied": dict(tie_embeddings=True),
    "biases": dict(qkv_bias=True, out_bias=True, mlp_bias=True),
    "odd sizes": dict(hidden_size=35, intermediate_size=49, num_heads=3, num_kv_heads=1, head_dim=48, qk_norm=True),
}


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rows_of_all_sizes(N, K, seed=2):
    """A weight whose rows differ in size by factors, so that one row's scale is wrong for another."""
    return normal(N, K, seed=seed) * normal(N, 1, seed=seed + 1).exp()


def rounded(weight):
    """W̃ as files/quantize.py defines it."""
    return q.dequantize(*q.quantize(weight))


def assert_product(y, x, weight):
    """Within 1e-5 of the exact product, relative to the size of its terms (a sum may cancel)."""
    exact = F.linear(x.double(), weight.double())
    size = x.double().norm(dim=-1, keepdim=True) * weight.double().norm(dim=-1)
    assert y.shape == exact.shape
    assert bool(((y.double() - exact).abs() <= 1e-5 * (size + exact.abs())).all())


def model_of(kind):
    """A float32 model, and the same one in int8."""
    make = lambda: random_model(dtype=torch.float32, **dict(head_dim=16) | KINDS[kind])  # noqa: E731
    small = make()
    q.to_int8(small.transformer)
    return make(), small


def logits_of(model, ids, wish, counts=None):
    """All logits, `counts` tokens a pass, by the products that are wished for."""
    found, at = [], 0
    with MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setenv("MINISPEC_LINEAR", wish)
        cache = model.transformer.new_cache(1, ids.shape[1])
        for count in counts or [ids.shape[1]]:
            found.append(model.transformer(ids[:, at : at + count], cache).logits)
            at += count
    return torch.cat(found, 1)


# ---------------------------------------------------------------- the checks


def product() -> None:
    """The product over panels of bytes is F.linear's with the rounded weight, for all shapes and numbers of tokens."""
    for N, K in SHAPES:
        weight = rows_of_all_sizes(N, K)
        integers, scale = q.quantize(weight)
        packed = panels.pack(integers, scale[:, 0])
        for tokens in range(1, 9):
            x = normal(tokens, K, seed=1)
            assert_product(panels.multiply(x, packed, 1), x, rounded(weight))


def precision() -> None:
    """As good as float32: tokens with one number a thousand times as large as the others, tiny tokens, and zeros."""
    weight = rows_of_all_sizes(48, 576)
    integers, scale = q.quantize(weight)
    x = normal(8, 576, seed=1)
    x[1, 5], x[2], x[3], x[4, ::2] = 1000.0, 1e-20 * x[2], 0.0, 0.0
    x[5], x[6] = 1.0, 1e20 * x[6]
    x[7] = -x[7].abs().max()
    exact, size = F.linear(x.double(), rounded(weight).double()), x.norm(dim=-1, keepdim=True) * weight.norm(dim=-1)
    y = panels.multiply(x, panels.pack(integers, scale[:, 0]), 1)
    assert bool(((y - exact).abs() <= 1e-6 * size.double()).all())


def same_bits() -> None:
    """Whatever the number of threads, and whatever other tokens there are."""
    for N, K in SHAPES:
        integers, scale = q.quantize(rows_of_all_sizes(N, K))
        x, packed = normal(8, K, seed=1), panels.pack(integers, scale[:, 0])
        one_by_one = torch.cat([panels.multiply(token[None], packed, 1) for token in x])
        for tokens in range(1, 9):
            for threads in (1, 2, 3):
                assert torch.equal(panels.multiply(x[:tokens], packed, threads), one_by_one[:tokens])


def layer() -> None:
    """A layer computes x W̃ᵀ + b for any number of tokens and any leading dimensions, and its weight is W̃."""
    linear = nn.Linear(40, 23)
    with torch.no_grad():
        linear.weight.copy_(rows_of_all_sizes(23, 40))
        small, weight = q.int8_layer(linear), rounded(linear.weight)
        assert torch.equal(small.weight, weight)
        assert torch.equal(small.state_dict()["weight"], weight) and small.state_dict().keys() == {"weight", "bias"}
        for shape in ((40,), (1, 40), (2, 4, 40), (1, 9, 40), (3, 7, 40), (50, 40), (0, 40)):
            x = normal(*shape)
            torch.testing.assert_close(small(x), F.linear(x, weight, linear.bias), rtol=1e-5, atol=1e-4)
    x = normal(3, 40).requires_grad_()
    small(x).sum().backward()
    torch.testing.assert_close(x.grad, weight.sum(0).expand(3, 40))


def model() -> None:
    """Every matrix of the layers and of the LM head is rounded; embedding, norms and biases are as they were."""
    for kind in KINDS:
        whole, small = model_of(kind)
        before, after = whole.transformer.state_dict(), small.transformer.state_dict()
        linears = {f"{name}.weight" for name, m in whole.transformer.named_modules() if isinstance(m, nn.Linear)}
        assert before.keys() == after.keys() and len(linears) == 7 * whole.config.num_layers + 1
        for name, value in before.items():
            assert torch.equal(after[name], rounded(value) if name in linears else value), name
        kept = [*small.transformer.parameters(), *small.transformer.buffers()]
        matrices = [tensor for tensor in kept if tensor.ndim == 2]
        assert len(matrices) == 1 and matrices[0] is small.transformer.embed_tokens.weight  # no float matrix but that


def fused_pass() -> None:
    """The pass over int8 weights equals the layers one by one, on rounded and expanded weights."""
    ids = torch.randint(64, (1, 19), generator=torch.Generator().manual_seed(3))
    for kind in KINDS:
        _, small = model_of(kind)
        for counts in ([1] * 4 + [5, 8, 2], [19]):
            result, reference = logits_of(small, ids, "numba", counts), logits_of(small, ids, "torch", counts)
            torch.testing.assert_close(result, reference, rtol=1e-4, atol=1e-4)


def company() -> None:
    """A token's logits do not depend on the tokens beside it, nor on threads: verification is exact."""
    ids = torch.randint(64, (1, 14), generator=torch.Generator().manual_seed(1))
    _, small = model_of("plain")
    one_by_one = logits_of(small, ids, "numba", [1] * 14)
    for threads in (1, 2, 3):
        with MonkeyPatch.context() as patch:
            patch.setattr(trials, "threads_for", lambda size, n=threads: n)
            for counts in ([5, 1, 8], [14]):
                assert torch.equal(logits_of(small, ids, "numba", counts), one_by_one)


def mixed() -> None:
    """Some layers in int8 and some in float32, in one pass."""
    ids = torch.arange(6)[None]
    whole, _ = model_of("biases")
    mlp, attention = whole.transformer.layers[0].mlp, whole.transformer.layers[1].self_attn
    mlp.up_proj, attention.k_proj = q.int8_layer(mlp.up_proj), q.int8_layer(attention.k_proj)
    torch.testing.assert_close(logits_of(whole, ids, "numba"), logits_of(whole, ids, "torch"), rtol=1e-4, atol=1e-4)


def change() -> None:
    """Weights or scales that have changed since the last pass are noticed; in another dtype they are torch's."""
    ids = torch.arange(4)[None]
    _, small = model_of("plain")
    layer = small.transformer.layers[1].mlp
    steps = [
        lambda: layer.up_proj.scale.mul_(2),
        lambda: layer.down_proj.integers.neg_(),
        lambda: setattr(layer.gate_proj, "scale", layer.gate_proj.scale * 3),
        lambda: setattr(layer, "up_proj", q.int8_layer(nn.Linear(32, 48, bias=False))),
        lambda: layer.gate_proj.double(),  # its scales: then they are no float32 numbers
    ]
    before = logits_of(small, ids, "numba")
    for step in steps:
        with torch.no_grad():
            step()
        now = logits_of(small, ids, "numba")
        assert not torch.allclose(now, before, rtol=1e-3) or step is steps[-1]
        torch.testing.assert_close(now, logits_of(small, ids, "torch"), rtol=1e-4, atol=1e-4)
        before = now


ALL = (product, precision, same_bits, layer, model, fused_pass, company, mixed, change)
CHECKS = {check.__name__: check for check in ALL}
