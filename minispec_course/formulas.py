"""The formulas of the course: those of minispec/theory.py, and more that only lessons, questions and sheets use.

Units and symbols are those of theory.py, and the number under each formula is a doctest here, too.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from minispec.require import require, require_counts, require_not_negative, require_positive, require_probabilities
from minispec.theory import *  # noqa: F403
from minispec.theory import expected_tokens

# ---- 02 The KV cache ----


class Work(NamedTuple):
    linear: int  # tokens that go through the linear layers
    pairs: int  # (query, key) pairs that attention scores, per head and layer


def decode_work(prompt: int, new: int, cached: bool) -> Work:
    """Work to generate `new` tokens after a prompt: with a cache that of one pass over all tokens but the last, without
    one a pass over n tokens, n(n + 1)/2 pairs, for every token after n others.

    >>> decode_work(100, 100, cached=True), decode_work(100, 100, cached=False).linear
    (Work(linear=199, pairs=19900), 14950)
    """
    require_counts(prompt=prompt, new=new)
    passes = [prompt + new - 1] if cached else range(prompt, prompt + new)
    return Work(sum(passes), sum(n * (n + 1) // 2 for n in passes))


# ---- 06 Rejection sampling ----


def _distributions(p: Sequence[float], q: Sequence[float]) -> None:
    for name, probs in (("p", p), ("q", q)):
        fits = all(x >= 0 for x in probs) and abs(sum(probs) - 1) <= 1e-4
        require(fits, "probabilities ≥ 0 that sum to 1", **{name: probs})
    if len(p) != len(q):
        raise ValueError(f"p has {len(p)} tokens and q has {len(q)}: give two distributions over the same vocabulary")


def total_variation(p: Sequence[float], q: Sequence[float]) -> float:
    """TV(p, q) = ½ Σ|p − q|: the most that the two distributions differ on any set of tokens.

    >>> total_variation([0.5, 0.25, 0.25], [0.25, 0.5, 0.25])
    0.25
    """
    _distributions(p, q)
    return sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2


def acceptance(p: Sequence[float], q: Sequence[float]) -> float:
    """β = Σ min(p, q) = 1 − TV(p, q): the probability that a token sampled from q is accepted. One-hot q on d: p(d).

    >>> acceptance([0.5, 0.25, 0.25], [0.25, 0.5, 0.25])
    0.75
    """
    _distributions(p, q)
    return sum(min(a, b) for a, b in zip(p, q, strict=True))


# ---- 07 How fast ----


def token_ceiling(alpha: float) -> float:
    """1 / (1 − α): tokens per cycle as k grows without end, so no speed-up of a chain exceeds it (with v ≥ 1).

    >>> round(token_ceiling(0.6), 2), round(token_ceiling(0.2), 2)
    (2.5, 1.25)
    """
    require_probabilities(alpha=alpha)
    return math.inf if alpha == 1 else 1 / (1 - alpha)


def accepted_fraction(alpha: float, k: int) -> float:
    """Accepted / drafted = (E[N] − 1) / k. Lower than α, since tokens after a rejection count without being tested.

    >>> round(accepted_fraction(0.8, 4), 2)
    0.59
    """
    require_counts(k=k)
    return (expected_tokens(alpha, k) - 1) / k


def target_work(alpha: float, k: int) -> float:
    """Positions that the target computes per token kept: (k + 1) / E[N], where plain decoding computes 1.

    >>> round(target_work(0.7, 4), 1), round(target_work(0.4, 4), 1)
    (1.8, 3.0)
    """
    return (k + 1) / expected_tokens(alpha, k)


# ---- 08 Drafters ----


def draft_cost(draft_bytes: float, target_bytes: float) -> float:
    """c of a memory-bound draft: its bytes per token / the target's. INT8 of bf16: 0.5; INT4: 0.25. Sped up S-fold by a
    smaller drafter of its own: c / S.

    >>> round(draft_cost(49_152 * 576, 134_515_008), 2)  # SmolLM2's LM head alone, before the draft's first layer
    0.21
    """
    require_positive(draft_bytes=draft_bytes, target_bytes=target_bytes)
    return draft_bytes / target_bytes


# ---- 12 Fewer bytes ----


def quantized_bytes(weights: float, bits: int = 8, group: int = 64, bytes_per_scale: float = 2) -> float:
    """Bytes of quantised weights and their scales: N · (bits/8 + bytes_per_scale/group).

    >>> quantized_bytes(7e9, bits=4, group=64) / 1e9
    3.71875
    """
    require_positive(weights=weights)
    require_counts(bits=bits, group=group)
    require_not_negative(bytes_per_scale=bytes_per_scale)
    return weights * (bits / 8 + bytes_per_scale / group)


def fewer_bytes_speedup(fraction: float, factor: float) -> float:
    """Speed-up of a memory-bound pass when a fraction f of its bytes shrinks r-fold: 1 / (1 − f + f/r).

    >>> round(fewer_bytes_speedup(0.8, 4), 2)  # INT4 weights, but a cache as large as a quarter of them stays
    2.5
    """
    require_probabilities(fraction=fraction)
    require_positive(factor=factor)
    return 1 / (1 - fraction + fraction / factor)


# ---- 15b Mixtures of experts: a pass reads the experts that its tokens touch, so verifying is not free ----


def experts_touched(experts: int, per_token: int, tokens: int) -> float:
    """E · (1 − (1 − k/E)^M): experts that M tokens touch, if each chooses k of E uniformly and alone: 1 − k/E is the
    chance that one token passes an expert over. Real routers prefer some experts, which makes the number smaller.

    >>> round(experts_touched(8, 2, 1)), round(experts_touched(8, 2, 5), 1), round(experts_touched(128, 8, 5), 1)
    (2, 6.1, 35.3)
    """
    require_counts(experts=experts, per_token=per_token, tokens=tokens)
    require(per_token <= experts, f"at most all {experts} experts", per_token=per_token)
    return experts * (1 - (1 - per_token / experts) ** tokens)


# ---- 16 Beyond one GPU, appendix: scaling laws ----


def pipeline_bubble(stages: int, microbatches: int) -> float:
    """Share of the time that a stage is idle: (stages − 1) / (microbatches + stages − 1).

    >>> pipeline_bubble(4, 1), round(pipeline_bubble(4, 12), 2)
    (0.75, 0.2)
    """
    require_counts(stages=stages, microbatches=microbatches)
    return (stages - 1) / (microbatches + stages - 1)


def training_flops(parameters: float, tokens: float) -> float:
    """C = 6·N·D: forward 2, backward 4 FLOPs per parameter and token.

    >>> training_flops(175e9, 300e9)  # GPT-3
    3.15e+23
    """
    require_positive(parameters=parameters, tokens=tokens)
    return 6 * parameters * tokens


def compute_optimal(flops: float, tokens_per_parameter: float = 20) -> tuple[float, float]:
    """N = √(C / (6·20)) parameters and D = 20·N tokens: the best use of C FLOPs of training.

    >>> [f"{x:.2g}" for x in compute_optimal(training_flops(175e9, 300e9))]  # GPT-3's: 51 B on 1.0 T
    ['5.1e+10', '1e+12']
    """
    require_positive(flops=flops, tokens_per_parameter=tokens_per_parameter)
    parameters = math.sqrt(flops / (6 * tokens_per_parameter))
    return parameters, tokens_per_parameter * parameters
