"""The formulas against brute force, and against the code they describe."""

import doctest
import inspect
import itertools
import math
import re
from fractions import Fraction

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from minispec import theory
from minispec.cache import KVCache
from minispec.model import Config, Transformer
from minispec_course import formulas

FORMULAS = [f for name, f in inspect.getmembers(formulas, inspect.isfunction) if not name.startswith("_")]
FORMULAS = [f for f in FORMULAS if f.__module__ in (theory.__name__, formulas.__name__)]

alphas = st.floats(0, 1)
lengths = st.integers(1, 12)
costs = st.floats(0, 1)
verifies = st.floats(1, 4)


def distributions(size):
    return st.lists(st.integers(0, 20), min_size=size, max_size=size).filter(any).map(lambda w: [x / sum(w) for x in w])


pairs_of_distributions = st.integers(1, 6).flatmap(lambda size: st.tuples(distributions(size), distributions(size)))


# ---- the numbers in the docstrings ----


def test_every_formula_has_a_worked_number_and_it_is_right():
    assert doctest.testmod(theory).failed == doctest.testmod(formulas).failed == 0
    without = [f.__name__ for f in FORMULAS if ">>>" not in (f.__doc__ or "")]
    assert not without


# ---- roofline ----


@given(st.floats(1e9, 1e13), st.floats(1e9, 1e15), st.sampled_from([1, 2, 4]), st.integers(1, 64))
def test_a_pass_is_free_exactly_up_to_the_balance(bandwidth, flops, size, batch):
    hardware = theory.Hardware("any", bandwidth, flops)
    free = theory.free_tokens(hardware, batch, size)
    assume(1 < free < 1e6)
    first, last = 1, math.floor(free)

    def seconds(tokens):
        return theory.pass_time(hardware, 1e9, batch, tokens, bytes_per_weight=size)

    assert seconds(last) == pytest.approx(seconds(first))
    assert seconds(2 * last + 1) > seconds(first)
    # Beyond it, twice the tokens take twice the time.
    assert seconds(4 * last + 4) == pytest.approx(2 * seconds(2 * last + 2))


def test_gemms_and_attention_are_bounded_each_on_its_own():
    """In exact fractions: 8 B parameters in bf16 on an H200, 640 tokens. The GEMMs are compute-bound and take
    640 · 16 GFLOP / 790 TFLOP/s, reading 128 · 4,000 cached tokens takes 67.1 GB / 4.2 TB/s, and the two add up."""
    shape = dict(context=4000, kv_bytes=131_072, attention_width=32 * 32 * 128)
    gemms, cache = Fraction(640 * 16 * 10**9, 790 * 10**12), Fraction(128 * 4000 * 131_072, 42 * 10**11)
    assert theory.pass_time(theory.H200, 8e9, 128, 5, **shape) == pytest.approx(float(gemms + cache))
    plain = Fraction(16 * 10**9, 42 * 10**11) + cache
    v = theory.verify_cost(theory.H200, 8e9, 4, 128, **shape)
    assert v == pytest.approx(float((gemms + cache) / plain)) and round(v, 2) == 1.46
    # Enough tokens of one sequence make attention compute-bound too: 4 FLOPs per token, cached token and width.
    computed = Fraction(500 * (16 * 10**9 + 4 * 4000 * 131_072), 790 * 10**12)
    assert theory.pass_time(theory.H200, 8e9, 1, 500, **shape) == pytest.approx(float(computed))


def test_parameter_count_is_the_models():
    for kv_heads, tied in ((1, False), (2, True)):
        config = Config(100, 24, 40, 3, 6, kv_heads, 4, 64, tie_embeddings=tied)
        with torch.device("meta"):
            real = sum(p.numel() for p in Transformer(config).parameters())
        assert theory.parameter_count(100, 24, 40, 3, 6, kv_heads, 4, tied=tied) == real


# ---- the cache, blocks, batches ----


def test_kv_bytes_are_the_caches():
    cache = KVCache(Config(10, 24, 40, 3, 6, 2, 4, 64), 5, 64, dtype=torch.bfloat16)
    per_token = theory.kv_bytes_per_token(3, 2, 4)
    assert per_token == cache.bytes_per_token
    assert theory.kv_bytes(5, 64, per_token) == cache.keys.nbytes + cache.values.nbytes


@given(st.integers(1, 20), st.integers(1, 20))
def test_decode_work_by_walking_the_loop(prompt, new):
    for cached in (True, False):
        linear = pairs = held = 0
        for generated in range(new):
            seen = prompt + generated
            first = held if cached else 0  # tokens before it come from the cache
            linear += seen - first
            pairs += sum(position + 1 for position in range(first, seen))
            held = seen
        assert formulas.decode_work(prompt, new, cached) == (linear, pairs)


@given(st.integers(1, 64), st.integers(1, 500))
def test_block_waste_averages_the_wasted_slots(block, start):
    empty = sum(math.ceil(n / block) * block - n for n in range(start, start + block)) / block
    assert theory.block_waste(start, block) == pytest.approx(empty / (start + empty))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8))
def test_static_batch_idle_by_counting(rows):
    steps = max(rows)
    idle = sum(step >= row for row in rows for step in range(steps))
    assert theory.static_batch_idle(rows) == pytest.approx(idle / (len(rows) * steps))


# ---- acceptance ----


@given(pairs_of_distributions)
def test_acceptance_is_one_minus_total_variation(pair):
    p, q = pair
    beta = sum(b * min(1, a / b) for a, b in zip(p, q, strict=True) if b)  # sample from q, accept with min(1, p/q)
    assert (formulas.acceptance(p, q), 1 - formulas.total_variation(p, q)) == pytest.approx((beta, beta))
    subsets = itertools.product([0, 1], repeat=len(p))
    worst = max(sum(s * (a - b) for s, a, b in zip(chosen, p, q, strict=True)) for chosen in subsets)
    assert formulas.total_variation(p, q) == pytest.approx(worst)


# ---- expected tokens ----


@pytest.mark.parametrize("alpha", [Fraction(0), Fraction(2, 5), Fraction(7, 10), Fraction(1)])
@pytest.mark.parametrize("k", range(6))
def test_expected_tokens_by_enumerating_all_outcomes(alpha, k):
    expected = wasted = Fraction(0)
    for accepts in itertools.product([True, False], repeat=k):
        probability = math.prod((alpha if ok else 1 - alpha for ok in accepts), start=Fraction(1))
        accepted = next((i for i, ok in enumerate(accepts) if not ok), k)
        expected += probability * (accepted + 1)
        wasted += probability * (k - accepted)
    assert theory.expected_tokens(alpha, k) == expected  # exactly: rational arithmetic
    assert formulas.target_work(alpha, k) == (k + 1) / expected
    if k:
        assert formulas.accepted_fraction(alpha, k) == (k - wasted) / k


@given(st.lists(alphas, max_size=6))
def test_expected_tokens_by_position_by_enumerating_all_outcomes(betas):
    expected = 0.0
    for accepted in range(len(betas) + 1):
        stop = 1 - betas[accepted] if accepted < len(betas) else 1.0
        expected += math.prod(betas[:accepted]) * stop * (accepted + 1)
    assert theory.expected_tokens_by_position(betas) == pytest.approx(expected)


# ---- speed-up ----


@given(alphas, lengths, costs, costs, verifies, verifies)
def test_speedup_falls_with_cost_and_stays_under_the_ceiling(alpha, k, c, dc, v, dv):
    s = theory.speedup(alpha, k, c, v)
    assert theory.speedup(alpha, k, c + dc, v) <= s
    assert theory.speedup(alpha, k, c, v + dv) < s
    assert 0 < s <= formulas.token_ceiling(alpha) * (1 + 1e-12)


@given(lengths, costs, verifies)
def test_break_even_is_where_the_speedup_is_one(k, c, v):
    alpha = theory.break_even(k, c, v)
    if alpha == math.inf:
        assert theory.speedup(1.0, k, c, v) < 1
    else:
        assert theory.speedup(alpha, k, c, v) == pytest.approx(1)
        assert theory.speedup(min(1.0, alpha + 0.01), k, c, v) >= 1


def test_best_k_by_position_stops_before_the_hopeless_position():
    assert theory.best_k([0.9, 0.9, 0.0, 0.9], 0.1) == 2
    assert theory.best_k([], 0.1) == 0 and theory.best_speedup([], 0.1) == 1


@given(alphas, st.floats(0.001, 1), st.floats(1, 2), st.floats(0, 0.5))
def test_best_k_beats_every_other(alpha, c, v, slope):
    for verify, v_at in ((v, lambda k: v), (lambda k: v + slope * k, lambda k: v + slope * k)):
        at = [1.0] + [theory.speedup(alpha, k, c, v_at(k)) for k in range(1, 33)]
        best, gain = (f(alpha, c, verify, longest=32) for f in (theory.best_k, theory.best_speedup))
        assert (at[best], gain) == pytest.approx((max(at), max(at)))


# ---- several GPUs ----


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_all_reduce_bytes_by_running_a_ring(ranks):
    """Reduce-scatter, then all-gather; every rank passes one chunk to its right in every step."""
    chunk = 5
    data = [[float(rank + 1)] * ranks for rank in range(ranks)]  # one number stands for a chunk of five values
    sent = 0
    for gather in (False, True):
        for step in range(ranks - 1):
            at = [(rank + gather - step) % ranks for rank in range(ranks)]  # which chunk each rank passes on
            moving = [data[rank][at[rank]] for rank in range(ranks)]
            for rank in range(ranks):
                right = (rank + 1) % ranks
                data[right][at[rank]] = moving[rank] + (0 if gather else data[right][at[rank]])
            sent += chunk
    assert data == [[ranks * (ranks + 1) / 2] * ranks] * ranks  # everyone holds the sum
    assert theory.all_reduce_bytes(chunk * ranks, ranks, 1) == pytest.approx(sent)


@given(st.integers(1, 8), st.integers(1, 12))
def test_pipeline_bubble_by_drawing_the_timeline(stages, microbatches):
    busy = {(stage, stage + batch) for stage in range(stages) for batch in range(microbatches)}
    span = 1 + max(step for _, step in busy)
    assert formulas.pipeline_bubble(stages, microbatches) == pytest.approx(1 - len(busy) / (stages * span))


# ---- bad arguments ----


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: theory.expected_tokens(math.nan, 4), "alpha=nan"),
        (lambda: theory.expected_tokens("0.7", 4), "alpha='0.7'"),
        (lambda: theory.expected_tokens(0.7, 2.5), "k=2.5"),
        (lambda: theory.expected_tokens_by_position([0.5, -0.1]), "betas=-0.1"),
        (lambda: theory.speedup(0.7, 4, -0.1), "c=-0.1"),
        (lambda: theory.speedup(0.7, 4, 0.1, v=0), "v=0"),
        (lambda: theory.best_k(0.7, 0.1, longest=0), "longest=0"),
        (lambda: formulas.acceptance([0.5, 0.4], [0.5, 0.5]), "p="),
        (lambda: formulas.acceptance([0.5, 0.5], [1.0]), "vocabulary"),
        (lambda: theory.kv_bytes_per_token(True, 1, 128), "layers=True"),
        (lambda: theory.static_batch_idle([]), "lengths=[]"),
        (lambda: theory.Hardware("none", 0, 1), "bandwidth=0"),
        (lambda: formulas.compute_optimal(-1), "flops=-1"),
    ],
)
def test_a_bad_argument_is_named(call, named):
    with pytest.raises(ValueError, match=re.escape(named)):
        call()
