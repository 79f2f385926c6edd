"""The skinny product equals torch's, and is taken only where it may be."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F
from tiny_models import random_model

from minispec import kernels
from minispec.model import Linear

needs_numba = pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")


@pytest.fixture
def numba(monkeypatch):
    monkeypatch.setenv("MINISPEC_LINEAR", "numba")


@pytest.fixture
def taken(monkeypatch):
    """Every product that `skinny` is asked for: [(x shape, weight shape), …]."""
    calls, skinny = [], kernels.skinny

    def noted(x, weight):
        calls.append((tuple(x.shape), tuple(weight.shape)))
        return skinny(x, weight)

    monkeypatch.setattr(kernels, "skinny", noted)
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


@needs_numba
@pytest.mark.parametrize("tokens", range(1, 9))
@pytest.mark.parametrize("N, K", [(4, 1), (5, 3), (6, 7), (7, 16), (33, 17), (64, 64), (101, 129), (192, 576)])
def test_skinny_equals_torch(N, K, tokens):
    x, weight = normal(tokens, K, seed=1), normal(N, K, seed=2)
    assert_close(kernels.skinny(x, weight), x, weight)


@needs_numba
def test_any_number_of_threads_gives_the_same_bits(numba):
    x, weight, threads = normal(5, 576), normal(999, 576, seed=1), torch.get_num_threads()
    alone = kernels.skinny(x, weight)
    try:
        torch.set_num_threads(2)
        together = kernels.skinny(x, weight)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(alone, together)


@needs_numba
@pytest.mark.parametrize("shape", [(2, 40), (1, 5, 40), (2, 4, 40), (8, 1, 40), (2, 2, 2, 40)])
@pytest.mark.parametrize("biased", [False, True])
def test_linear_keeps_leading_dimensions_and_adds_the_bias(numba, taken, shape, biased):
    x, weight, bias = normal(*shape), normal(23, 40, seed=1), normal(23, seed=2) if biased else None
    assert_close(kernels.linear(x, weight, bias), x, weight, bias)
    assert len(taken) == 1


@needs_numba
def test_x_need_not_be_contiguous(numba, taken):
    weight = normal(12, 30, seed=1)
    for x in (normal(30, 5).T, normal(5, 60)[:, ::2], normal(4, 2, 30).transpose(0, 1), normal(30).expand(3, 30)):
        assert not x.is_contiguous()
        assert_close(kernels.linear(x, weight), x, weight)
    assert len(taken) == 4


# ---------------------------------------------------------------- when it is not taken


@needs_numba
@pytest.mark.parametrize(
    "x, weight",
    [
        (normal(1, 20), normal(9, 20)),  # one token: torch reads every weight once already
        (normal(9, 20), normal(9, 20)),  # many tokens: a job for a matrix library
        (normal(0, 20), normal(9, 20)),
        (normal(5, 20), normal(1, 20)),  # fewer rows than a block
        (normal(5, 20, dtype=torch.float64), normal(9, 20, dtype=torch.float64)),
        (normal(5, 20, dtype=torch.bfloat16), normal(9, 20, dtype=torch.bfloat16)),
        (normal(5, 20), normal(20, 9).T),
        (torch.empty(5, 20, device="meta"), torch.empty(9, 20, device="meta")),
    ],
    ids=["one", "nine", "none", "N=1", "float64", "bfloat16", "transposed", "device"],
)
def test_what_does_not_fit_is_torch_s(numba, taken, x, weight):
    y = kernels.linear(x, weight)
    assert not taken
    assert y.device.type == "meta" or torch.equal(y, F.linear(x, weight))


@needs_numba
def test_gradients_are_torch_s(numba, taken):
    layer, x = Linear(20, 9), normal(5, 20)
    layer(x).sum().backward()
    assert layer.weight.grad is not None and not taken
    kernels.linear(x.requires_grad_(), layer.weight.detach()).sum().backward()
    assert x.grad is not None and not taken
    with torch.no_grad():
        layer(x)
    with torch.inference_mode():
        layer(x)
    assert len(taken) == 2


@pytest.fixture
def fresh():
    """As if nothing had been loaded or chosen yet."""

    def forget():
        kernels._compile.cache_clear()
        kernels._chosen.clear()

    forget()
    yield
    forget()


def test_without_numba_torch_does_the_work(monkeypatch, numba, fresh):
    monkeypatch.setitem(sys.modules, "numba", None)  # importing it fails
    x, weight = normal(5, 20), normal(9, 20)
    assert kernels.compiled() is None
    assert torch.equal(kernels.linear(x, weight), F.linear(x, weight))


def test_a_wish_is_obeyed_or_refused(monkeypatch, taken):
    x, weight = normal(5, 20), normal(9, 20)
    monkeypatch.setenv("MINISPEC_LINEAR", "torch")
    assert torch.equal(kernels.linear(x, weight), F.linear(x, weight)) and not taken
    monkeypatch.setenv("MINISPEC_LINEAR", "mkl")
    with pytest.raises(ValueError, match="MINISPEC_LINEAR='mkl'"):
        kernels.linear(x, weight)


def test_small_models_never_load_numba(monkeypatch, fresh):
    monkeypatch.delenv("MINISPEC_LINEAR", raising=False)
    monkeypatch.setattr(kernels, "choose", lambda *key: "numba")
    loaded = []
    monkeypatch.setattr(kernels, "compiled", lambda: loaded.append(1))  # and nothing comes of it
    for shape in ((288, 288), (768, 288), (2048, 288), (8192, 576)):
        assert kernels.product_for(shape, 5) == "torch"
    assert not loaded
    kernels.product_for((49152, 576), 5)
    assert loaded


@needs_numba
def test_once_loaded_the_smaller_matrices_follow(monkeypatch, fresh):
    monkeypatch.delenv("MINISPEC_LINEAR", raising=False)
    monkeypatch.setattr(kernels, "choose", lambda *key: "numba")
    assert kernels.product_for((192, 576), 5) == "torch"
    assert kernels.product_for((49152, 576), 5) == "numba"
    assert kernels.product_for((192, 576), 5) == "numba"
    assert kernels.product_for((64, 64), 5) == "torch"  # the call would be most of the work


# ---------------------------------------------------------------- the choice


class Clock:
    """A clock on which torch's product and ours take given times, and which counts how often it is read."""

    def __init__(self, monkeypatch, **seconds: list[float]):
        self.now, self.reads = 0.0, 0
        for owner, name, times in ((kernels.F, "linear", seconds["torch"]), (kernels, "skinny", seconds["numba"])):
            monkeypatch.setattr(owner, name, self.taking(times))

    def taking(self, times):
        times = iter(times)

        def product(x, weight):
            self.now += next(times)

        return product

    def __call__(self) -> float:
        self.reads += 1
        return self.now


N_TRIES = kernels.TRIES


@pytest.mark.parametrize(
    "torch_s, numba_s, winner",
    [
        ([2.0] * N_TRIES, [1.0] * N_TRIES, "numba"),
        ([1.0] * N_TRIES, [2.0] * N_TRIES, "torch"),
        ([2.0] * N_TRIES, [9.0] * (N_TRIES - 1) + [1.0], "numba"),  # a disturbed try does not count: the best does
        ([9.0] + [1.0] * (N_TRIES - 1), [2.0] * N_TRIES, "torch"),  # nor does the first, which warms up
        ([1.0] * N_TRIES, [1.0] * N_TRIES, "torch"),
    ],
)
def test_the_clock_chooses_once(monkeypatch, fresh, torch_s, numba_s, winner):
    clock = Clock(monkeypatch, torch=torch_s, numba=numba_s)
    assert kernels.choose(600, 500, 5, 1, clock) == winner
    assert clock.reads == 4 * N_TRIES
    assert kernels.choose(600, 500, 5, 1, clock) == winner and clock.reads == 4 * N_TRIES  # remembered


def test_each_shape_token_count_and_thread_count_is_tried_by_itself(monkeypatch, fresh):
    for key in ((600, 500, 5, 1), (601, 500, 5, 1), (600, 501, 5, 1), (600, 500, 4, 1), (600, 500, 5, 2)):
        clock = Clock(monkeypatch, torch=[1.0] * N_TRIES, numba=[2.0] * N_TRIES)
        kernels.choose(*key, clock)
        assert clock.reads == 4 * N_TRIES


def test_tries_read_different_weights_of_the_right_shape(monkeypatch, fresh):
    seen = []
    for owner, name in ((kernels.F, "linear"), (kernels, "skinny")):
        monkeypatch.setattr(owner, name, lambda x, weight: seen.append((x.shape, weight.shape, weight.data_ptr())))
    for N, K in ((192, 576), (1536, 576), (49152, 576), (4096, 14336)):
        seen.clear()
        kernels.choose(N, K, 5, 1)
        [(x_shape, shape)] = {(x, weight) for x, weight, _ in seen}
        assert x_shape == (5, K) and shape[1] == K and kernels.ROWS <= shape[0] <= N
        assert len({address for *_, address in seen}) >= kernels.TRIES


# ---------------------------------------------------------------- threads and processes


@needs_numba
def test_first_use_by_many_threads_at_once(numba, fresh, monkeypatch):
    compilations, compile_it = [], kernels._compile.__wrapped__
    monkeypatch.setattr(kernels, "_compile", kernels.lru_cache(1)(lambda: compilations.append(1) or compile_it()))
    weight, together = normal(64, 96, seed=9), threading.Barrier(8)

    def work(seed):
        x = normal(2 + seed % 7, 96, seed=seed)
        together.wait()
        for _ in range(20):
            assert_close(kernels.linear(x, weight), x, weight)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert len(compilations) == 1


LIFE = """
import os, sys, torch
import minispec
assert "numba" not in sys.modules
torch.set_num_threads(1)
from minispec.kernels import linear
x, w = torch.randn(5, 40), torch.randn(30, 40)
y = linear(x, w)
assert "numba" in sys.modules
assert torch.get_num_threads() == 1, "loading numba changed torch's threads"
assert torch.allclose(y, torch.nn.functional.linear(x, w), atol=1e-4)
if hasattr(os, "fork"):
    if (child := os.fork()) == 0:
        os._exit(0 if torch.equal(linear(x, w), torch.nn.functional.linear(x, w)) else 1)
    assert os.waitpid(child, 0)[1] == 0, "a forked process cannot use the product"
"""


@needs_numba
@pytest.mark.slow  # a process of its own
def test_the_life_of_a_process():
    environment = os.environ | {"MINISPEC_LINEAR": "numba", "OMP_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", LIFE], env=environment, check=True)


@needs_numba
def test_nowhere_to_keep_the_compiled_product(monkeypatch, fresh):
    import numba

    asked = []

    def njit(*signature, cache, **options):
        asked.append(cache)
        if cache:
            raise RuntimeError("cannot cache function: no locator available")  # what numba says in that case
        return lambda function: function

    monkeypatch.setattr(numba, "njit", njit)
    assert kernels.compiled() is not None
    assert asked == [True, False]


# ---------------------------------------------------------------- in the model


@needs_numba
@pytest.mark.parametrize("bias", [False, True])
def test_a_model_computes_the_same_with_either_product(monkeypatch, taken, bias):
    model = random_model(dtype=torch.float32, qkv_bias=bias, out_bias=bias, mlp_bias=bias)
    exact = random_model(qkv_bias=bias, out_bias=bias, mlp_bias=bias)
    tokens = torch.arange(5)[None]
    logits = {}
    with torch.inference_mode():
        for wish in ("torch", "numba"):
            monkeypatch.setenv("MINISPEC_LINEAR", wish)
            logits[wish] = model.transformer(tokens).logits
        assert len(taken) == 7 * 2 + 1
        exact_logits = exact.transformer(tokens).logits  # float64 stays torch's
    assert len(taken) == 7 * 2 + 1
    torch.testing.assert_close(logits["numba"], logits["torch"], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logits["numba"].double(), exact_logits, rtol=1e-4, atol=1e-4)
