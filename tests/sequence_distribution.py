"""The joint distribution of whole outputs: computed exactly for a tiny model, and a test whether samples follow it.

A marginal can look right while the joint distribution is wrong (a token sampled with the wrong cache, a random number
used twice), so sampled runs are judged by all their tokens together.

Power. `chi_square` of N = 9,000 outputs fails below p = 1e-4. If the sampler's distribution is δ away in total
variation, the statistic's noncentrality is N · Σ (shift)² / p ≥ 4 N δ² (Cauchy–Schwarz): 4 tokens over a vocabulary of
5 (625 outputs; those that are expected five times have bins of their own) show δ = 0.06 in 99 of 100 runs, and
δ = 0.044 at a low temperature, where there are 21 outputs. test_speculate.py computes this for those it uses.
"""

import gc
from collections import Counter
from collections.abc import Sequence
from contextlib import contextmanager
from itertools import product
from unittest.mock import patch

import torch
from scipy import stats

import minispec as ms
from minispec.sampling import Coins

DRAWS, P_VALUE, LEAST_EXPECTED = 9_000, 1e-4, 5.0

Distribution = dict[tuple[int, ...], float]


@contextmanager
def no_garbage_collection():
    """Thousands of rows are many live lists, which the collector would search again and again: twice the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def many_rows(seed: int = 0):
    """For a batch of thousands, whose rows get other seeds with another `seed` here."""
    own = lambda self, index=0: Coins(seed << 32 | index)  # noqa: E731
    with no_garbage_collection(), patch.object(ms.SamplingParams, "coins", own):
        yield


@torch.inference_mode()
def joint_distribution(model: ms.Model, prompt: Sequence[int], n: int, sampling: ms.Sampling) -> Distribution:
    """P(next n tokens) of all V^n continuations that can happen; shorter where an end token ends one."""
    V, start = model.config.vocab_size, len(prompt)
    beginnings = list(product(range(V), repeat=n - 1))  # no pass runs on the n-th token
    texts = torch.tensor([[*prompt, *beginning] for beginning in beginnings], device=model.device)
    logits = model.transformer(texts).logits[:, start - 1 :]  # [V^(n−1), n, V]
    probs = sampling.probs(logits.double()).cpu()
    found: Distribution = Counter()
    for beginning, p in zip(beginnings, probs.tolist(), strict=True):
        reach = 1.0
        for i, token in enumerate(beginning):
            reach *= p[i][token]
        if reach > 0:
            for last in range(V):
                if p[-1][last] > 0:
                    found[_until_the_end(model, (*beginning, last))] += reach * p[-1][last]
    return dict(found)


def _until_the_end(model: ms.Model, tokens: tuple[int, ...]) -> tuple[int, ...]:
    return next((tokens[: i + 1] for i, token in enumerate(tokens) if token in model.end_tokens), tokens)


def merged_bins(expected: Distribution, draws: int) -> tuple[list[tuple[int, ...]], float]:
    """Outputs that are expected at least five times, and the probability of all the others, which share one bin."""
    ranked = sorted(expected, key=expected.get, reverse=True)
    own = [output for output in ranked if expected[output] * draws >= LEAST_EXPECTED]
    rest = sum(expected[output] for output in ranked[len(own) :])
    while own and 0 < rest * draws < LEAST_EXPECTED:  # too rare even together
        rest += expected[own.pop()]
    return own, rest


def chi_square(outputs: Sequence[Sequence[int]], distribution: Distribution) -> float:
    """The p-value of "these outputs are sampled from this distribution", 0 if one of them cannot happen at all."""
    counts = Counter(map(tuple, outputs))
    if counts.keys() - distribution.keys():
        return 0.0
    own, rest = merged_bins(distribution, len(outputs))
    observed = [counts[output] for output in own]
    expected = [distribution[output] * len(outputs) for output in own]
    if rest:
        observed.append(len(outputs) - sum(observed))
        expected.append(rest * len(outputs))
    if len(expected) < 2:
        return 1.0
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    return float(stats.chi2.sf(statistic, len(expected) - 1))


def power(expected: Distribution, total_variation: float, draws: int = DRAWS) -> float:
    """How likely `chi_square` falls below P_VALUE when the samples' distribution is this far away, at the least."""
    own, rest = merged_bins(expected, draws)
    freedom = len(own) + bool(rest) - 1
    return float(stats.ncx2.sf(stats.chi2.isf(P_VALUE, freedom), freedom, 4 * draws * total_variation**2))


def assert_follows(outputs: Sequence[Sequence[int]], expected: Distribution, what: str = "the sampler") -> None:
    """The outputs are sampled from this distribution, as far as a χ² test can tell."""
    if impossible := set(map(tuple, outputs)) - expected.keys():
        raise AssertionError(f"{what} emitted {min(impossible)}, which is impossible under the target")
    p_value = chi_square(outputs, expected)
    assert p_value >= P_VALUE, f"{what} does not follow the target's distribution: χ² p-value {p_value:.1e}"
