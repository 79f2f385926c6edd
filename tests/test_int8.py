"""int8 weights on a CPU: the product, the pass, the model that `load` gives, and the draft that is made of them."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F
from tiny_models import random_model
from torch import nn

import minispec as ms
from minispec.cpu import machine, panels, trials
from minispec.cpu.int8 import Int8Linear
from minispec.load import folder
from minispec.load import quantize as q
from minispec.load.folder import save_folder
from minispec.measure import weight_bytes

pytestmark = pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")

KINDS = {
    "tied": dict(tie_embeddings=True),
    "biases": dict(qkv_bias=True, out_bias=True, mlp_bias=True),
    "odd sizes": dict(hidden_size=35, intermediate_size=49, num_heads=3, num_kv_heads=1, head_dim=48, qk_norm=True),
}


@pytest.fixture(autouse=True)
def numba(monkeypatch):
    monkeypatch.setenv("MINISPEC_LINEAR", "numba")


def int8_layer(linear):
    return Int8Linear(*q.quantize(linear.weight.detach()), linear.bias)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rows_of_all_sizes(N, K):
    """A weight whose rows differ in size by factors, so that one row's scale is wrong for another."""
    return normal(N, K, seed=2) * normal(N, 1, seed=3).exp()


def rounded(weight):
    """W̃ as load/quantize.py defines it."""
    return q.dequantize(*q.quantize(weight))


def model_of(kind):
    """A float32 model, and the same one in int8."""
    whole, small = (random_model(dtype=torch.float32, **dict(head_dim=16) | KINDS[kind]) for _ in range(2))
    q.to_int8(small.transformer)
    return whole, small


def logits_of(model, ids, wish, counts=None):
    """All logits, `counts` tokens a pass, by the products that are wished for."""
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setenv("MINISPEC_LINEAR", wish)
        cache = model.transformer.new_cache(1, ids.shape[1])
        parts = ids.split(counts or ids.shape[1], 1)
        return torch.cat([model.transformer(part, cache).logits for part in parts], 1)


# ---------------------------------------------------------------- the product and the pass


def check_product() -> None:
    """Over panels of bytes it is F.linear's with the rounded weight, and as exact as float32: also for a token with one
    number a thousand times as large as the others, for tiny and for huge ones. The same bits whatever the threads and
    the other tokens are."""
    for N, K in [(1, 1), (5, 3), (17, 16), (33, 17), (101, 129), (48, 576)]:
        weight, x = rows_of_all_sizes(N, K), normal(8, K, seed=1)
        x[1, K // 2], x[2], x[3], x[6] = 1000.0, 1e-20 * x[2], 0.0, 1e20 * x[6]
        integers, scale = q.quantize(weight)
        packed = panels.Panels(integers, scale[:, 0])
        one_by_one = torch.cat([panels.multiply(token[None], packed, 1) for token in x])
        size = x.norm(dim=-1, keepdim=True) * weight.norm(dim=-1)
        exact = F.linear(x.double(), rounded(weight).double())
        assert bool(((one_by_one - exact).abs() <= 1e-6 * size.double()).all()), (N, K)
        for tokens in range(1, 9):
            for threads in (1, 2, 3):
                found = panels.multiply(x[:tokens], packed, threads)
                assert torch.equal(found, one_by_one[:tokens]), (N, K, tokens, threads)


def check_pass() -> None:
    """Over int8 weights it equals the layers one by one, and no token's logits depend on its company or on threads."""
    ids = torch.randint(64, (1, 19), generator=torch.Generator().manual_seed(3))
    for kind in KINDS:
        _, small = model_of(kind)
        one_by_one = logits_of(small, ids, "numba", 1)
        torch.testing.assert_close(one_by_one, logits_of(small, ids, "torch", 1), rtol=1e-4, atol=1e-4)
        for threads in (1, 2, 3):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(trials, "threads_for", lambda size, n=threads: n)
                for counts in ([5, 1, 8, 5], [19]):
                    assert torch.equal(logits_of(small, ids, "numba", counts), one_by_one), (kind, threads)


@pytest.mark.parametrize("check", [check_product, check_pass])
def test_product_and_pass(check):
    check()


LIFE = """
import os, sys, torch
import minispec
assert "numba" not in sys.modules
from minispec.cpu import machine
from minispec.cpu.panels import Panels, multiply
x, w = torch.randn(5, 40), torch.randn(300, 40)
y, panels = torch.nn.functional.linear(x, w), Panels(w)
assert torch.allclose(multiply(x, panels, 2), y, atol=1e-4)
assert "numba" in sys.modules
if hasattr(os, "fork"):
    if (child := os.fork()) == 0:
        os._exit(0 if torch.allclose(multiply(x, panels, 2), y, atol=1e-4) else 1)
    assert os.waitpid(child, 0)[1] == 0, "a forked process cannot use the product"
assert machine.was_compiled(), "what was compiled is not kept"
import test_int8
assert not machine.has_dot_product()
test_int8.check_product(), test_int8.check_pass()
"""


@pytest.mark.nightly
def test_the_life_of_a_process_without_a_dot_product_of_bytes(tmp_path):
    """A process that compiles, of a processor for which this is the only way. The checks above went the other one."""
    environment = os.environ | {"MINISPEC_INT8": "widen", "MINISPEC_HOME": str(tmp_path), "OMP_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", LIFE], env=environment, check=True)


def test_a_layer():
    """x W̃ᵀ + b for any number of tokens and any leading dimensions; its weight is W̃, and gradients are torch's."""
    linear = nn.Linear(40, 23)
    with torch.no_grad():
        linear.weight.copy_(rows_of_all_sizes(23, 40))
        small, weight = int8_layer(linear), rounded(linear.weight)
        assert torch.equal(small.weight, weight)
        assert torch.equal(small.state_dict()["weight"], weight) and small.state_dict().keys() == {"weight", "bias"}
        for shape in ((40,), (2, 4, 40), (1, 9, 40), (50, 40), (0, 40)):
            x = normal(*shape)
            torch.testing.assert_close(small(x), F.linear(x, weight, linear.bias), rtol=1e-5, atol=1e-4)
    x = normal(3, 40).requires_grad_()
    small(x).sum().backward()
    torch.testing.assert_close(x.grad, weight.sum(0).expand(3, 40))


def test_a_model():
    """Every matrix of the layers and of the LM head is rounded; embedding, norms and biases are as they were."""
    for kind in KINDS:
        whole, small = model_of(kind)
        before, after = whole.transformer.state_dict(), small.transformer.state_dict()
        linears = {f"{name}.weight" for name, m in whole.transformer.named_modules() if isinstance(m, nn.Linear)}
        assert before.keys() == after.keys() and len(linears) == 7 * whole.config.num_layers + 1
        for name, value in before.items():
            assert torch.equal(after[name], rounded(value) if name in linears else value), name


def test_changed_weights_are_noticed():
    """And a pass may mix layers in int8 with layers in float32."""
    ids, (whole, small) = torch.arange(4)[None], model_of("biases")
    whole.transformer.layers[0].mlp = small.transformer.layers[0].mlp
    layer, before = whole.transformer.layers[0].mlp, logits_of(whole, ids, "numba")
    steps = [
        lambda: layer.up_proj.scale.mul_(2),
        lambda: layer.down_proj.integers.neg_(),
        lambda: setattr(layer.gate_proj, "scale", layer.gate_proj.scale * 3),
        lambda: setattr(layer, "up_proj", int8_layer(nn.Linear(32, 48))),
    ]
    for step in steps:
        with torch.no_grad():
            step()
        now = logits_of(whole, ids, "numba")
        assert not torch.allclose(now, before, rtol=1e-3)
        torch.testing.assert_close(now, logits_of(whole, ids, "torch"), rtol=1e-4, atol=1e-4)
        before = now


# ---------------------------------------------------------------- loading and drafting


@pytest.fixture
def stored(make_model, tmp_path):
    """The folder of a tiny tied model in float32."""
    save_folder(make_model(dtype=torch.float32, head_dim=16, tie_embeddings=True), tmp_path, bits=None)
    return tmp_path


def test_an_int8_model_is_another_model_and_generates_as_any(stored):
    whole, small = ms.load(stored, device="cpu"), ms.load(stored, device="cpu", weights="int8")
    assert whole.weights is None and small.weights == "int8" and "another model" in repr(small)
    assert weight_bytes(small) < 0.3 * weight_bytes(whole)
    prompt = [3, 1, 4, 1, 5]
    plain = ms.generate(small, prompt, 24).tokens
    for drafter in (ms.drafters.NGram(), ms.drafters.EarlyExit(small), ms.drafters.Quantized(small)):
        assert ms.speculate(small, prompt, drafter, 3, 24).tokens == plain
    assert ms.Engine(small).generate([prompt], max_new_tokens=24)[0].tokens == plain
    save_folder(small, stored / "again", bits=None)  # the rounded model
    again = ms.load(stored / "again", device="cpu")
    for name, value in small.transformer.state_dict().items():
        assert torch.equal(again.transformer.state_dict()[name], value)


def test_what_cannot_be_had_is_refused(monkeypatch, stored):
    monkeypatch.setattr(folder, "usable_device", lambda device: torch.device(device or "cpu"))  # as if there were one
    int8 = dict(weights="int8")
    for options in (dict(weights="int4"), int8 | dict(dtype=torch.float64), int8 | dict(device="cuda")):
        with pytest.raises(ValueError, match="weights="):
            ms.load(stored, **options)
    monkeypatch.setattr(machine, "compiled", lambda: None)
    with pytest.raises(ValueError, match="numba"):
        ms.load(stored, device="cpu", weights="int8")


def test_the_draft_of_a_large_target_reads_bytes(make_model, monkeypatch):
    """Only where there is a product for it; the numbers are the same either way."""
    target = make_model(dtype=torch.float32, head_dim=16)
    expanded = ms.drafters.Quantized(target).draft
    assert expanded.weights is None  # a small model: nothing is gained
    monkeypatch.setattr(machine, "REPAYS_LOADING", 1)
    draft = ms.drafters.Quantized(target).draft
    assert draft.weights == "int8" and ms.drafters.Quantized(target, bits=4).draft.weights is None
    for name, value in draft.transformer.state_dict().items():
        torch.testing.assert_close(expanded.transformer.state_dict()[name], value, rtol=1e-6, atol=0)
