"""Distributions against transformers' processors, samples against their own distribution, and random numbers."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

import minispec as ms
from minispec.params import SamplingParams
from minispec.sampling import Coins, best_tokens, pick, uniforms

# Quarter steps make ties frequent, also at the borders of top-k and top-p; −inf is a token that is forbidden already.
LOGIT = st.one_of(st.floats(-30, 30, width=32), st.integers(-12, 12).map(lambda n: n / 4), st.just(-math.inf))
ROWS = st.integers(2, 40).flatmap(
    lambda vocab: st.lists(
        st.lists(LOGIT, min_size=vocab, max_size=vocab).filter(lambda row: max(row) > -math.inf), min_size=1, max_size=3
    )
)


def by_transformers(logits: torch.Tensor, s: ms.Sampling) -> torch.Tensor:
    from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    chain = [TemperatureLogitsWarper(s.temperature)] if s.temperature != 1 else []
    chain += [TopKLogitsWarper(s.top_k)] if s.top_k else []
    chain += [TopPLogitsWarper(s.top_p)] if s.top_p < 1 else []
    chain += [MinPLogitsWarper(s.min_p)] if s.min_p else []
    for warper in chain:
        logits = warper(None, logits)
    return logits.softmax(-1)


@pytest.mark.slow
@settings(max_examples=200)
@given(
    rows=ROWS,
    temperature=st.one_of(st.just(1.0), st.floats(0.05, 5)),
    top_k=st.integers(0, 50),
    top_p=st.one_of(st.just(1.0), st.sampled_from([0.25, 0.5, 0.9]), st.floats(0.001, 0.999)),
    min_p=st.one_of(st.just(0.0), st.floats(0.001, 1)),
)
def test_distributions_equal_those_of_transformers(rows, temperature, top_k, top_p, min_p):
    logits = torch.tensor(rows, dtype=torch.float32)
    sampling = ms.Sampling(temperature, top_k, top_p, min_p)
    probs, expected = sampling.probs(logits), by_transformers(logits, sampling)
    assert (probs - expected).abs().max() <= 1e-6
    assert ((probs > 0) == (expected > 0)).all()  # the same tokens stay
    assert (probs.sum(-1) - 1).abs().max() <= 1e-5
    best = logits.gather(-1, probs.argmax(-1, keepdim=True))[:, 0]
    assert (logits.amax(-1) - best <= 1e-4).all()  # the best token stays (or its equal, where rounding made them equal)


@pytest.mark.parametrize("top_p, kept", [(0.25, 1), (0.5, 2), (0.51, 3), (0.75, 3), (1e-9, 1)])
def test_top_p_at_its_border(top_p, kept):
    """Mass that ends exactly at the border is cut, and however small top_p is, the best token stays."""
    logits = torch.zeros(1, 4)  # 1/4 each: every partial sum is exact
    probs = ms.Sampling(temperature=1.0, top_p=top_p).probs(logits)
    assert int((probs > 0).sum()) == kept
    assert torch.equal(probs, by_transformers(logits, ms.Sampling(temperature=1.0, top_p=top_p)))


@pytest.mark.parametrize(
    "sampling", [ms.Sampling(1.0), ms.Sampling(0.6, top_k=7), ms.Sampling(1.3, top_p=0.8, min_p=0.05)]
)
def test_samples_follow_their_distribution(sampling):
    """χ² on 20,000 samples, fails at p < 1e-4. Moving 3 % of the mass from one token to another is seen with power
    > 99.9 % (noncentrality n δ² (1/p + 1/p′) ≥ 72 with 11 degrees of freedom): the last lines do just that."""
    logits = torch.randn(1, 12, generator=torch.Generator().manual_seed(1)) * 1.5
    probs = sampling.probs(logits)[0]
    sampled = pick(probs.expand(20_000, -1), uniforms([Coins(seed) for seed in range(20_000)], 1)[:, 0])
    counts = torch.bincount(sampled, minlength=12)
    alive = probs > 0
    assert counts[~alive].sum() == 0
    expected = probs[alive].double() / probs[alive].double().sum() * 20_000
    assert chisquare(counts[alive], expected).pvalue > 1e-4
    counts[alive.nonzero()[:2, 0]] += torch.tensor([-600, 600])
    assert chisquare(counts[alive], expected).pvalue < 1e-4


def test_a_seed_repeats_its_numbers():
    draw = lambda seed, index=0: uniforms([SamplingParams(seed=seed).coins(index)], 50)  # noqa: E731
    assert torch.equal(draw(3), draw(3)) and not torch.equal(draw(3), draw(4))
    every = [draw(seed, index) for seed in (3, 4) for index in range(4)]  # two batches share no sequence's numbers
    assert all(not torch.equal(a, b) for i, a in enumerate(every) for b in every[:i])
    assert torch.equal(draw(3, index=2), draw(3, index=2))
    assert not torch.equal(draw(None), draw(None))
    state = torch.get_rng_state()
    draw(5)
    assert torch.equal(torch.get_rng_state(), state)  # the global generator is not touched


def test_random_numbers_do_not_depend_on_the_batch_or_on_how_many_are_taken_at_once():
    """Captured launches rely on it: they take the numbers of several tokens at once."""
    one, two = (SamplingParams(seed=seed).coins() for seed in (1, 2))
    together = uniforms([one, two], [9, 4])
    assert together.shape == (2, 9) and not together[1, 4:].any()
    again = SamplingParams(seed=1).coins()
    alone = torch.cat([uniforms([again], count) for count in (1, 1, 5, 2)], 1)
    assert torch.equal(alone[0], together[0])


def test_a_temperature_close_to_zero_is_greedy_not_an_error():
    logits = torch.tensor([[1.0, 3.0, 2.0, -5.0]])
    for temperature in (1e-5, 1e-30, 1e-39, 1e-300):
        assert torch.equal(ms.Sampling(temperature).probs(logits), ms.Sampling().probs(logits))


# ---------------------------------------------------------------- SamplingParams


def test_params_and_keywords_say_the_same(tiny):
    params = SamplingParams(temperature=0.8, top_k=9, seed=4, max_new_tokens=12)
    by_params = ms.generate(tiny, [1, 2], params=params)
    by_words = ms.generate(tiny, [1, 2], 12, temperature=0.8, top_k=9, seed=4)
    assert by_params.tokens == by_words.tokens
    assert ms.generate(tiny, [1, 2], 5, params=params).tokens == by_params.tokens[:5]  # a keyword replaces one field
    with pytest.raises(TypeError, match="temprature"):
        ms.generate(tiny, [1, 2], temprature=1.0)
    with pytest.raises(ValueError, match=r"SamplingParams\(\.\.\.\)"):
        ms.generate(tiny, [1, 2], params=dict(temperature=1.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_best_tokens_are_the_first_of_equals_and_minus_one_for_nan(dtype):
    logits = torch.tensor([[1, 3, 3, 0], [0, math.nan, 9, 1], [math.inf, 0, 0, 0], [-math.inf] * 4], dtype=dtype)
    assert best_tokens(logits[None]).tolist() == [[1, -1, -1, -1]]
    assert best_tokens(logits[:1, None, ::2]).tolist() == [[1]]  # not contiguous


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_or_infinite_logits_are_refused(temperature, bad):
    logits = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
    logits[1, 3] = bad
    with pytest.raises(ValueError, match="NaN"):
        ms.Sampling(temperature).probs(logits)
    with pytest.raises(ValueError, match="NaN"):  # a row that allows no token at all has no distribution
        ms.Sampling(temperature).probs(torch.full((1, 8), -math.inf))
