"""The CPU's kernels, in float32 and with int8 weights: the product of panels and the fused pass equal torch's, have the
same bits whatever else is in the pass, and are taken only where they may be."""

import os
import random
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F
from tiny_models import random_model
from torch import nn

import minispec as ms
from minispec import linear
from minispec.cpu import choice, fused, machine, panels, trials
from minispec.cpu.int8 import Int8Linear
from minispec.load import folder
from minispec.load import quantize as q
from minispec.load.folder import save_folder
from minispec.measure import weight_bytes
from minispec.model import Linear
from minispec.serving.paged import PagedKVCache

pytestmark = pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")
SHAPE = dict(dtype=torch.float32, head_dim=16)
KINDS = {
    "plain": {},
    "biases": dict(qkv_bias=True, out_bias=True, mlp_bias=True),
    "qk_norm, tied": dict(qk_norm=True, tie_embeddings=True),
    "odd sizes": dict(hidden_size=35, intermediate_size=49, num_heads=3, num_kv_heads=1, head_dim=48),
}


@pytest.fixture(autouse=True)
def numba(monkeypatch):
    monkeypatch.setenv("MINISPEC_LINEAR", "numba")


@pytest.fixture
def taken(monkeypatch):
    """Every product that `multiply` is asked for: [(x shape, weight shape), …]."""
    calls, multiply = [], choice.multiply

    def noted(x, packed, threads):
        calls.append((tuple(x.shape), (packed.N, packed.K)))
        return multiply(x, packed, threads)

    monkeypatch.setattr(choice, "multiply", noted)
    return calls


@pytest.fixture
def passes(monkeypatch):
    """How many tokens every group of a fused pass had."""
    counts, group = [], fused.Plan.group

    def noted(self, x, *rest):
        counts.append(len(x))
        return group(self, x, *rest)

    monkeypatch.setattr(fused.Plan, "group", noted)
    return counts


def normal(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def rows_of_all_sizes(N, K):
    """A weight whose rows differ in size by factors, so that one row's scale is wrong for another."""
    return normal(N, K, seed=2) * normal(N, 1, seed=3).exp()


def rounded(weight):
    """W̃ as load/quantize.py defines it."""
    return q.dequantize(*q.quantize(weight))


def assert_close(y, x, weight, bias=None, tolerance=1e-5):
    """To the exact product, relative to the size of its terms (a sum may cancel)."""
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    size = x.double().norm(dim=-1, keepdim=True) * weight.double().norm(dim=-1)
    assert y.shape == exact.shape
    assert bool(((y.double() - exact).abs() <= tolerance * (size + exact.abs())).all())


def assert_same_pass(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------- the product


def check_product(int8: bool) -> None:
    """As exact as float32, with int8 weights for the rounded weight: also for a token with one number a thousand times
    as large as the others, for tiny and for huge ones. The same bits whatever the threads and the other tokens are."""
    for N, K in [(1, 1), (4, 1), (5, 3), (16, 2), (17, 16), (33, 17), (64, 64), (101, 129), (48, 576)]:
        weight, x = rows_of_all_sizes(N, K), normal(8, K, seed=1)
        x[1, K // 2], x[2], x[3], x[6] = 1000.0, 1e-20 * x[2], 0.0, 1e20 * x[6]
        integers, scale = q.quantize(weight)
        packed = panels.Panels(integers, scale[:, 0]) if int8 else panels.Panels(weight)
        one_by_one = torch.cat([panels.multiply(token[None], packed, 1) for token in x])
        assert_close(one_by_one, x, rounded(weight) if int8 else weight, tolerance=1e-6)
        for tokens in range(1, 9):
            for threads in (1, 2, 3):
                found = panels.multiply(x[:tokens], packed, threads)
                assert torch.equal(found, one_by_one[:tokens]), (N, K, tokens, threads)


@pytest.mark.parametrize("int8", [False, True], ids=["float32", "int8"])
def test_the_product_is_exact_and_has_the_same_bits_in_any_company(int8):
    check_product(int8)


def test_linear_keeps_leading_dimensions_adds_the_bias_and_notices_a_changed_weight(taken):
    weight, bias = normal(23, 40, seed=1), normal(23, seed=2)
    for shape in [(40,), (1, 5, 40), (2, 2, 2, 40)]:
        x = normal(*shape)
        assert_close(linear.linear(x, weight, bias), x, weight, bias)
        weight.mul_(2)
        assert_close(linear.linear(x, weight), x, weight)
        weight.data = weight.data / 4
    assert len(taken) == 6 and panels.panels_of(weight) is panels.panels_of(weight)


def int8_layer(layer: nn.Linear) -> Int8Linear:
    return Int8Linear(*q.quantize(layer.weight.detach()), layer.bias)


def test_an_int8_layer():
    """x W̃ᵀ + b for any number of tokens and any leading dimensions; its weight is W̃, and gradients are torch's."""
    layer = nn.Linear(40, 23)
    with torch.no_grad():
        layer.weight.copy_(rows_of_all_sizes(23, 40))
        small, weight = int8_layer(layer), rounded(layer.weight)
        assert torch.equal(small.weight, weight)
        assert torch.equal(small.state_dict()["weight"], weight) and small.state_dict().keys() == {"weight", "bias"}
        for shape in ((40,), (2, 4, 40), (1, 9, 40), (50, 40), (0, 40)):
            x = normal(*shape)
            torch.testing.assert_close(small(x), F.linear(x, weight, layer.bias), rtol=1e-5, atol=1e-4)
    x = normal(3, 40).requires_grad_()
    small(x).sum().backward()
    torch.testing.assert_close(x.grad, weight.sum(0).expand(3, 40))


# ---------------------------------------------------------------- when it is not taken


def test_what_does_not_fit_is_torch_s(taken):
    for x in (normal(9, 20), normal(0, 20), normal(5, 20).double()):  # many tokens are a job for a matrix library
        weight = normal(9, 20).to(x.dtype)
        assert torch.equal(linear.linear(x, weight), F.linear(x, weight))
    linear.linear(torch.empty(5, 20, device="meta"), torch.empty(9, 20, device="meta"))
    assert not taken


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_without_instructions_for_it_bfloat16_is_float32_rounded_once(monkeypatch, tokens=33):
    x, weight, bias = torch.randn(2, tokens, 48), torch.randn(40, 48), torch.randn(40)
    x, weight, bias = (part.bfloat16() for part in (x, weight, bias))
    exact = F.linear(x.double(), weight.double(), bias.double())
    monkeypatch.setattr(linear, "has_bfloat16", lambda: False)
    y = linear.linear(x, weight, bias)
    assert y.dtype == torch.bfloat16 and y.shape == (2, tokens, 40)
    assert ((y.double() - exact).abs() <= exact.abs() * 2**-8 + 1e-5).all()  # half a unit of eight bits, no more
    monkeypatch.setattr(linear, "has_bfloat16", lambda: True)
    assert torch.equal(linear.linear(x, weight, bias), F.linear(x, weight, bias))


def test_a_torch_without_mkldnn_has_no_bfloat16(monkeypatch):
    """As on a Mac: there the question itself does not exist."""
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    monkeypatch.setattr(torch.ops, "mkldnn", None)
    assert not linear.has_bfloat16()


def test_gradients_are_torch_s(taken):
    layer, x = Linear(20, 9), normal(5, 20)
    layer(x).sum().backward()
    assert layer.weight.grad is not None and not taken
    linear.linear(x.requires_grad_(), layer.weight.detach()).sum().backward()
    assert x.grad is not None and not taken
    with torch.no_grad():
        layer(x)
    with torch.inference_mode():
        layer(x)
    assert len(taken) == 2


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """As if nothing had been loaded or measured yet."""
    monkeypatch.setenv("MINISPEC_HOME", str(tmp_path / "home"))
    remembered = (machine._compiled, trials.trials)
    for cached in remembered:
        cached.cache_clear()
    yield
    for cached in remembered:
        cached.cache_clear()


def test_without_numba_torch_does_the_work(monkeypatch, fresh):
    monkeypatch.setitem(sys.modules, "numba", None)  # importing it fails
    x, weight = normal(5, 20), normal(9, 20)
    assert machine.compiled() is None
    assert torch.equal(linear.linear(x, weight), F.linear(x, weight))
    model = random_model(**SHAPE)
    with torch.inference_mode():
        assert fused.fused(model.transformer, model.transformer.new_cache(1, 8), torch.zeros(1, 1)) is None


# ---------------------------------------------------------------- the fused pass


def model_of(kind: str, int8: bool = False) -> ms.Model:
    model = random_model(**SHAPE | KINDS[kind])
    if int8:
        q.to_int8(model.transformer)
    return model


def logits_of(model, ids, wish, counts=None):
    """All logits, `counts` tokens a pass, by the products that are wished for."""
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setenv("MINISPEC_LINEAR", wish)
        cache = model.transformer.new_cache(1, ids.shape[1])
        parts = ids.split(counts or ids.shape[1], 1)
        return torch.cat([model.transformer(part, cache).logits for part in parts], 1)


def check_pass(int8: bool) -> None:
    """It equals the layers one by one, and no token's logits depend on its company or on threads."""
    ids = torch.randint(64, (1, 19), generator=torch.Generator().manual_seed(3))
    for kind in KINDS:
        model = model_of(kind, int8)
        one_by_one = logits_of(model, ids, "numba", 1)
        assert_same_pass(one_by_one, logits_of(model, ids, "torch", 1))
        for threads in (1, 2, 3):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(trials, "threads_for", lambda size, n=threads: n)
                for counts in ([5, 1, 8, 5], [19]):
                    assert torch.equal(logits_of(model, ids, "numba", counts), one_by_one), (kind, threads)


@pytest.mark.slow
@pytest.mark.parametrize("int8", [False, True], ids=["float32", "int8"])
def test_a_fused_pass_has_the_same_bits_in_any_company(int8):
    check_pass(int8)


def both(monkeypatch, model, cached, tokens, **options):
    """The same pass by torch and fused, after the same cached tokens: [(Pass, cache), (Pass, cache)]."""
    results = []
    with torch.inference_mode():
        for wish in ("torch", "numba"):
            cache = model.transformer.new_cache(len(tokens), cached.shape[1] + tokens.shape[1] + 3)
            monkeypatch.setenv("MINISPEC_LINEAR", "torch")
            if cached.shape[1]:
                counts = torch.arange(len(cached)) % cached.shape[1] + 1 if len(cached) > 1 else None
                model.transformer(cached, cache, counts=counts)
            monkeypatch.setenv("MINISPEC_LINEAR", wish)
            results.append((model.transformer(tokens, cache, **options), cache))
    return results


def random_mask(n, rng):
    """In which a token attends to itself, and to some before it."""
    generator = torch.Generator().manual_seed(rng.randrange(999))
    return (torch.rand(n, n, generator=generator) < 0.5).tril() | torch.eye(n, dtype=torch.bool)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("B, T, past", [(1, 1, 0), (1, 5, 6), (1, 19, 2), (8, 1, 2), (3, 5, 4)])
@pytest.mark.parametrize("masked", [False, True])
def test_a_fused_pass_equals_the_layers_one_by_one(monkeypatch, passes, kind, B, T, past, masked):
    model = model_of(kind)
    generator = torch.Generator().manual_seed(B + T)
    ids = torch.randint(model.config.vocab_size, (B, past + T), generator=generator)
    options = dict(hidden_layers=(0, 1, 2))
    if masked:  # any mask, and positions of its own
        options["mask"] = random_mask(T, random.Random(T))
        options["positions"] = torch.randint(20, (B, T), generator=generator)
    (reference, slow), (result, fast) = both(monkeypatch, model, ids[:, :past], ids[:, past:], **options)
    assert passes == {19: [8, 8, 3], 15: [8, 7]}.get(B * T, [B * T])  # a group may end inside a sequence
    assert_same_pass((result.logits, result.hidden), (reference.logits, reference.hidden))
    assert_same_pass((fast.keys, fast.values), (slow.keys, slow.values))
    assert torch.equal(fast.lengths, slow.lengths)


def ragged(model, block_size, rng, wishes=("torch", "numba"), rounds=4):
    """Rounds of passes over the same ragged batches, some of them trees, once for each wish: [(states, cache), …]."""
    rows, plans = 4, []
    order = rng.sample(range(40), 40)  # which block is whose has nothing to do with where it lies
    tables = [order[row::rows] for row in range(rows)]
    for _ in range(rounds):
        counts = [rng.choice((1, 1, 2, 5, 9)) for _ in range(rows)]
        masks = [random_mask(n, rng) if rng.random() < 0.5 else None for n in counts]
        ids = torch.tensor([[rng.randrange(64) for _ in range(sum(counts))]])
        plans.append((ids, counts, masks, [rng.randint(1, n) for n in counts]))  # and how many of them are kept
    results = []
    for wish in wishes:
        pool, lengths, states = PagedKVCache(model.config, 40, block_size), [0] * rows, []
        with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
            patch.setenv("MINISPEC_LINEAR", wish)
            for ids, counts, masks, kept in plans:
                states.append(model.transformer.body(ids, pool.open(tables, lengths, counts, masks))[0])
                lengths = [length + n for length, n in zip(lengths, kept, strict=True)]
        results.append((states, pool))
    return results


@pytest.mark.slow
def test_a_fused_pass_follows_block_tables(passes):
    for block_size in (4, 5, 16):
        for kind in KINDS:
            (right, slow), (states, fast) = ragged(model_of(kind), block_size, random.Random(block_size))
            assert_same_pass(states, right)
            assert_same_pass((fast.keys, fast.values), (slow.keys, slow.values))
    assert max(passes) == 8 and min(passes) < 8


def test_a_request_s_states_do_not_depend_on_its_batch(passes):
    """The same bits alone and beside others, whatever the others bring: what servers call batch invariance."""
    model, rng = random_model(**SHAPE), random.Random(0)
    counts, tables = [3, 1, 6, 2, 9], [[5, 9], [3, 1], [8, 2, 11], [0, 4], [6, 7, 10]]
    rows = [[rng.randrange(64) for _ in range(n)] for n in counts]
    with torch.inference_mode():
        pool = PagedKVCache(model.config, 12, 4)
        flat = torch.tensor([[token for row in rows for token in row]])
        together = model.transformer.body(flat, pool.open(tables, [0] * 5, counts))[0][0].split(counts)
        for row, table, states in zip(rows, tables, together, strict=True):
            pool = PagedKVCache(model.config, 12, 4)
            alone = model.transformer.body(torch.tensor([row]), pool.open([table], [0], [len(row)]))[0][0]
            assert torch.equal(alone, states)
    assert passes[:3] == [8, 8, 5]


@torch.no_grad()
def test_a_changed_model_is_noticed(monkeypatch, passes):
    """Whatever was changed, in float32 or in int8, the next pass has the new weights; it is fused if it can be."""
    model, ids, seen = random_model(**SHAPE), torch.arange(4)[None], []
    layer, small = model.transformer.layers[1], model_of("plain", int8=True).transformer.layers[0].mlp

    def logits(fused_passes):
        passes.clear()
        (reference, _), (result, _) = both(monkeypatch, model, ids[:, :0], ids)
        assert_same_pass(result.logits, reference.logits)
        assert len(passes) == fused_passes
        return result.logits

    before = logits(fused_passes=1)
    for change, fused_passes in (
        (lambda: layer.mlp.up_proj.weight.mul_(1.5), 1),  # in place
        (lambda: layer.input_layernorm.weight.add_(0.5), 1),
        (lambda: setattr(layer.self_attn.o_proj, "weight", nn.Parameter(normal(32, 64))), 1),  # another tensor
        (lambda: setattr(layer.mlp, "gate_proj", Linear(32, 48)), 1),  # another module
        (lambda: setattr(layer.mlp, "down_proj", nn.Linear(48, 32)), 0),  # a module that is not the model's own
        (lambda: setattr(layer.mlp, "down_proj", Linear(48, 32)), 1),
        (lambda: setattr(layer, "mlp", small), 1),  # int8 beside float32
        (lambda: small.up_proj.scale.mul_(2), 1),
        (lambda: small.down_proj.integers.neg_(), 1),
        (lambda: setattr(small.gate_proj, "scale", small.gate_proj.scale * 3), 1),
        (lambda: setattr(small, "up_proj", int8_layer(nn.Linear(32, 48))), 1),
    ):
        change()
        now = logits(fused_passes)
        assert not torch.allclose(now, before, rtol=1e-3)
        before = now
    hook = small.register_forward_hook(lambda *_: seen.append(1))
    logits(fused_passes=0)
    assert len(seen) == 2  # by torch, and by what would have been fused
    hook.remove()
    logits(fused_passes=1)


def test_what_cannot_be_fused_is_not(passes):
    model, ids = random_model(**SHAPE), torch.arange(4)[None]
    model.transformer(ids, model.transformer.new_cache(1, 8))  # somebody may ask for gradients
    with torch.inference_mode():
        model.transformer(ids)  # no cache
        model.transformer(torch.arange(33)[None], model.transformer.new_cache(1, 40))  # a prompt
        model.transformer(torch.arange(34).view(2, 17), model.transformer.new_cache(2, 20))
        double = random_model()
        double.transformer(ids, double.transformer.new_cache(1, 8))
    assert not passes


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
import test_cpu
assert not machine.has_dot_product()
test_cpu.check_product(int8=True), test_cpu.check_pass(int8=True)
"""


@pytest.mark.nightly
def test_the_life_of_a_process_without_a_dot_product_of_bytes(tmp_path):
    """A process that compiles, of a processor for which this is the only way. The checks above went the other one."""
    environment = os.environ | {"MINISPEC_INT8": "widen", "MINISPEC_HOME": str(tmp_path), "OMP_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", LIFE], env=environment, check=True)


# ---------------------------------------------------------------- models in int8: loading and drafting


def test_int8_rounds_every_matrix_and_nothing_else():
    """Embedding, norms and biases are as they were."""
    for kind in KINDS:
        whole, small = model_of(kind), model_of(kind, int8=True)
        before, after = whole.transformer.state_dict(), small.transformer.state_dict()
        linears = {f"{name}.weight" for name, m in whole.transformer.named_modules() if isinstance(m, nn.Linear)}
        assert before.keys() == after.keys() and len(linears) == 7 * whole.config.num_layers + 1
        for name, value in before.items():
            assert torch.equal(after[name], rounded(value) if name in linears else value), name


@pytest.fixture
def stored(make_model, tmp_path):
    """The folder of a tiny tied model in float32."""
    save_folder(make_model(**SHAPE, tie_embeddings=True), tmp_path, bits=None)
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


def test_int8_that_cannot_be_had_is_refused(monkeypatch, stored):
    monkeypatch.setattr(folder, "usable_device", lambda device: torch.device(device or "cpu"))  # as if there were one
    int8 = dict(weights="int8")
    for options in (dict(weights="int4"), int8 | dict(dtype=torch.float64), int8 | dict(device="cuda")):
        with pytest.raises(ValueError, match="weights="):
            ms.load(stored, **options)
    monkeypatch.setattr(machine, "compiled", lambda: None)
    with pytest.raises(ValueError, match="numba"):
        ms.load(stored, device="cpu", weights="int8")


def test_the_quantized_draft_of_a_large_target_reads_bytes(make_model, monkeypatch):
    """Only where there is a product for it; the numbers are the same either way."""
    target = make_model(**SHAPE)
    expanded = ms.drafters.Quantized(target).draft
    assert expanded.weights is None  # a small model: nothing is gained
    monkeypatch.setattr(machine, "REPAYS_LOADING", 1)
    draft = ms.drafters.Quantized(target).draft
    assert draft.weights == "int8" and ms.drafters.Quantized(target, bits=4).draft.weights is None
    for name, value in draft.transformer.state_dict().items():
        torch.testing.assert_close(expanded.transformer.state_dict()[name], value, rtol=1e-6, atol=0)
