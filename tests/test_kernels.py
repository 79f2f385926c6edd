"""The product of panels and the fused pass equal torch's, and are taken only where they may be."""

import random
import sys
from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F
from tiny_models import random_model

from minispec import linear
from minispec.cpu import fused, machine, panels, trials
from minispec.model import Linear
from minispec.serving.paged import PagedKVCache

pytestmark = pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")


@pytest.fixture
def numba(monkeypatch):
    monkeypatch.setenv("MINISPEC_LINEAR", "numba")


@pytest.fixture
def taken(monkeypatch):
    """Every product that `multiply` is asked for: [(x shape, weight shape), …]."""
    calls, multiply = [], linear.multiply

    def noted(x, packed, threads):
        calls.append((tuple(x.shape), (packed.N, packed.K)))
        return multiply(x, packed, threads)

    monkeypatch.setattr(linear, "multiply", noted)
    return calls


def normal(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def assert_close(y, x, weight, bias=None):
    """Within 1e-5 of the exact product, relative to the size of its terms (a sum may cancel)."""
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    size = x.double().norm(dim=-1, keepdim=True) * weight.double().norm(dim=-1)
    assert y.shape == exact.shape
    assert bool(((y.double() - exact).abs() <= 1e-5 * (size + exact.abs())).all())


# ---------------------------------------------------------------- the product


def test_the_product_is_torch_s_and_has_the_same_bits_whatever_the_threads_and_the_other_tokens():
    for N, K in [(1, 1), (4, 1), (5, 3), (16, 2), (17, 16), (33, 17), (64, 64), (101, 129), (192, 576)]:
        x, weight = normal(8, K, seed=1), normal(N, K, seed=2)
        packed = panels.Panels(weight)
        one_by_one = torch.cat([panels.multiply(token[None], packed, 1) for token in x])
        assert_close(one_by_one, x, weight)
        for tokens in range(1, 9):
            for threads in (1, 2, 3):
                found = panels.multiply(x[:tokens], packed, threads)
                assert torch.equal(found, one_by_one[:tokens]), (N, K, tokens, threads)


def test_linear_keeps_leading_dimensions_adds_the_bias_and_notices_a_changed_weight(numba, taken):
    weight, bias = normal(23, 40, seed=1), normal(23, seed=2)
    for shape in [(40,), (1, 5, 40), (2, 2, 2, 40)]:
        x = normal(*shape)
        assert_close(linear.linear(x, weight, bias), x, weight, bias)
        weight.mul_(2)
        assert_close(linear.linear(x, weight), x, weight)
        weight.data = weight.data / 4
    assert len(taken) == 6 and panels.panels_of(weight) is panels.panels_of(weight)


# ---------------------------------------------------------------- when it is not taken


def test_what_does_not_fit_is_torch_s(numba, taken):
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


def test_gradients_are_torch_s(numba, taken):
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


def test_without_numba_torch_does_the_work(monkeypatch, numba, fresh):
    monkeypatch.setitem(sys.modules, "numba", None)  # importing it fails
    x, weight = normal(5, 20), normal(9, 20)
    assert machine.compiled() is None
    assert torch.equal(linear.linear(x, weight), F.linear(x, weight))
    model = random_model(dtype=torch.float32, head_dim=16)
    with torch.inference_mode():
        assert fused.fused(model.transformer, model.transformer.new_cache(1, 8), torch.zeros(1, 1)) is None


# ---------------------------------------------------------------- the fused pass


@pytest.fixture
def passes(monkeypatch):
    """How many tokens every group of a fused pass had."""
    counts, group = [], fused.Plan.group

    def noted(self, x, *rest):
        counts.append(len(x))
        return group(self, x, *rest)

    monkeypatch.setattr(fused.Plan, "group", noted)
    return counts


KINDS = {
    "plain": {},
    "biases": dict(qkv_bias=True, out_bias=True, mlp_bias=True),
    "qk_norm": dict(qk_norm=True),
    "odd sizes": dict(hidden_size=35, intermediate_size=49, num_heads=3, num_kv_heads=1, head_dim=48),
}


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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("B, T, past", [(1, 1, 0), (1, 5, 6), (1, 19, 2), (8, 1, 2), (3, 5, 4)])
@pytest.mark.parametrize("masked", [False, True])
def test_a_fused_pass_equals_the_layers_one_by_one(monkeypatch, passes, kind, B, T, past, masked):
    model = random_model(dtype=torch.float32, **dict(head_dim=16) | KINDS[kind])
    generator = torch.Generator().manual_seed(B + T)
    ids = torch.randint(model.config.vocab_size, (B, past + T), generator=generator)
    options = dict(hidden_layers=(0, 1, 2))
    if masked:  # any mask, and positions of its own
        options["mask"] = random_mask(T, random.Random(T))
        options["positions"] = torch.randint(20, (B, T), generator=generator)
    (reference, slow), (result, fast) = both(monkeypatch, model, ids[:, :past], ids[:, past:], **options)
    assert passes == {19: [8, 8, 3], 15: [8, 7]}.get(B * T, [B * T])  # a group may end inside a sequence
    torch.testing.assert_close(result.logits, reference.logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(result.hidden, reference.hidden, rtol=1e-4, atol=1e-4)
    assert torch.equal(fast.lengths, slow.lengths)
    torch.testing.assert_close((fast.keys, fast.values), (slow.keys, slow.values), rtol=1e-4, atol=1e-4)


def random_mask(n, rng):
    """In which a token attends to itself, and to some before it."""
    generator = torch.Generator().manual_seed(rng.randrange(999))
    return (torch.rand(n, n, generator=generator) < 0.5).tril() | torch.eye(n, dtype=torch.bool)


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


def test_a_fused_pass_follows_block_tables(passes):
    for block_size in (4, 5, 16):
        for kind in KINDS.values():
            model = random_model(dtype=torch.float32, **dict(head_dim=16) | kind)
            (right, slow), (states, fast) = ragged(model, block_size, random.Random(block_size))
            torch.testing.assert_close(states, right, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close((fast.keys, fast.values), (slow.keys, slow.values), rtol=1e-4, atol=1e-4)
    assert max(passes) == 8 and min(passes) < 8


def test_a_request_s_states_do_not_depend_on_its_batch(numba, passes):
    """The same bits alone and beside others, whatever the others bring: what servers call batch invariance."""
    model, rng = random_model(dtype=torch.float32, head_dim=16), random.Random(0)
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


def test_a_changed_model_is_noticed(monkeypatch, numba, passes):
    model, ids = random_model(dtype=torch.float32, head_dim=16), torch.arange(4)[None]
    layer = model.transformer.layers[1]

    def check(fused_passes):
        passes.clear()
        (reference, _), (result, _) = both(monkeypatch, model, ids[:, :0], ids)
        torch.testing.assert_close(result.logits, reference.logits, rtol=1e-4, atol=1e-4)
        assert len(passes) == fused_passes

    check(1)
    with torch.no_grad():
        layer.mlp.up_proj.weight.mul_(1.5)  # in place
        layer.input_layernorm.weight.add_(0.5)
    check(1)
    layer.self_attn.o_proj.weight = torch.nn.Parameter(normal(32, 64))  # another tensor
    check(1)
    layer.mlp.gate_proj = Linear(32, 48)  # another module
    check(1)
    layer.mlp.down_proj = torch.nn.Linear(48, 32)  # a module that is not the model's own
    check(0)
    layer.mlp.down_proj = Linear(48, 32)
    check(1)
    seen = []
    hook = layer.mlp.register_forward_hook(lambda *_: seen.append(1))
    check(0)
    assert len(seen) == 2  # by torch, and by what would have been fused
    hook.remove()
    check(1)


def test_what_cannot_be_fused_is_not(numba, passes):
    model, ids = random_model(dtype=torch.float32, head_dim=16), torch.arange(4)[None]
    model.transformer(ids, model.transformer.new_cache(1, 8))  # somebody may ask for gradients
    with torch.inference_mode():
        model.transformer(ids)  # no cache
        model.transformer(torch.arange(33)[None], model.transformer.new_cache(1, 40))  # a prompt
        model.transformer(torch.arange(34).view(2, 17), model.transformer.new_cache(2, 20))
        double = random_model()
        double.transformer(ids, double.transformer.new_cache(1, 8))
    assert not passes
