"""The formulas of the course, in plain Python, in the order the lessons meet them.

Units: seconds, bytes, FLOP (one multiplication or addition), tokens. Symbols: B sequences of a batch, M tokens
per sequence in one pass, N weights, k draft tokens per cycle, α the chance that a draft token is accepted, c = t_draft
/ t_target the cost of drafting one token, v = t_verify(k + 1) / t_target(1) the cost of verifying them (the textbook's
v = 1; `measure` tells the truth).

The number under each formula is a doctest: it is recomputed whenever the tests run.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from numbers import Real
from operator import mul

from .require import require, require_counts, require_not_negative, require_positive, require_probabilities, whole

# ---- 01 Why decoding is slow: a forward pass reads all weights, however many tokens it processes ----


@dataclass(frozen=True)
class Hardware:
    """What a roofline needs to know of a machine: bytes/s from memory and FLOP/s in its matrix units."""

    name: str
    bandwidth: float
    flops: float

    def __post_init__(self):
        require_positive(bandwidth=self.bandwidth, flops=self.flops)


H200 = Hardware("H200, bf16, measured", 4.2e12, 790e12)
H200_SHEET = Hardware("H200, bf16, data sheet", 4.8e12, 989e12)
H100 = Hardware("H100 SXM, bf16, data sheet", 3.35e12, 989e12)
A100 = Hardware("A100 80 GB SXM, bf16, data sheet", 2.039e12, 312e12)
RTX_4090 = Hardware("RTX 4090, bf16, data sheet", 1.008e12, 165e12)  # accumulated in float32, without sparsity
T4 = Hardware("T4, float16, data sheet", 0.32e12, 65e12)
NEOVERSE_N1 = Hardware("one Neoverse-N1 core, float32, measured", 17e9, 48e9)


def parameter_count(
    vocab: int, hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, head_dim: int, tied=False
) -> int:
    """Parameters of a Llama: the tables (one if tied) + layers · (q, o + k, v + SwiGLU's three + two norms) + a norm.

    >>> parameter_count(32_000, 4096, 11_008, 32, 32, 32, 128)  # LLaMA-2-7B
    6738415616
    """
    require_counts(vocab=vocab, hidden=hidden, intermediate=intermediate, layers=layers)
    require_counts(heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    attention = 2 * hidden * heads * head_dim + 2 * hidden * kv_heads * head_dim
    layer = attention + 3 * hidden * intermediate + 2 * hidden
    return (1 if tied else 2) * vocab * hidden + layers * layer + hidden


def pass_flops(weights: float, batch: int = 1, tokens: int = 1, context: int = 0, attention_width: int = 0) -> float:
    """FLOPs of a forward pass: B·M·(2·N + 4·context·attention_width), attention_width = layers · heads · head_dim.

    Each weight multiplies and adds once per token; each cached position is scored once and summed once.

    >>> pass_flops(8e9, tokens=5)
    80000000000.0
    """
    require_positive(weights=weights)
    require_counts(batch=batch, tokens=tokens)
    require_not_negative(context=context, attention_width=attention_width)
    return batch * tokens * (2 * weights + 4 * context * attention_width)


def pass_bytes(
    weights: float, bytes_per_weight: float = 2, batch: int = 1, context: int = 0, kv_bytes: float = 0
) -> float:
    """Bytes a forward pass reads: N · bytes_per_weight + B · context · kv_bytes (of the cache, per token; see below).

    M is not in it: the weights of a dense model serve all tokens, and a sequence's cache all of its new tokens.

    >>> pass_bytes(8e9, batch=32, context=2000, kv_bytes=131_072)  # the cache adds half as much again
    24388608000.0
    """
    require_positive(weights=weights, bytes_per_weight=bytes_per_weight)
    require_counts(batch=batch)
    require_not_negative(context=context, kv_bytes=kv_bytes)
    return weights * bytes_per_weight + batch * context * kv_bytes


def arithmetic_intensity(batch: int = 1, tokens: int = 1, bytes_per_weight: float = 2) -> float:
    """FLOP per byte of weights read: 2·B·M / bytes_per_weight, which is B·M in bf16.

    >>> arithmetic_intensity(tokens=5)
    5.0
    """
    require_counts(batch=batch, tokens=tokens)
    require_positive(bytes_per_weight=bytes_per_weight)
    return 2 * batch * tokens / bytes_per_weight


def balance_point(hardware: Hardware) -> float:
    """The ridge point, FLOP per byte at which reading and computing take equally long: peak FLOP/s / bandwidth.

    >>> round(balance_point(H200))
    188
    """
    return hardware.flops / hardware.bandwidth


def free_tokens(hardware: Hardware, batch: int = 1, bytes_per_weight: float = 2) -> float:
    """Tokens per sequence until a pass stops being memory-bound: the M whose intensity reaches the ridge point.

    >>> round(free_tokens(NEOVERSE_N1, bytes_per_weight=4), 1)
    5.6
    """
    return balance_point(hardware) / arithmetic_intensity(batch, 1, bytes_per_weight)


def roofline_time(bytes_read: float, flops: float, hardware: Hardware) -> float:
    """Seconds, at best: max(bytes / bandwidth, FLOPs / peak). A lower bound, since real passes add overhead.

    >>> round(roofline_time(16e9, 16e9, H200) * 1e3, 2)  # 8 B parameters in bf16, one token, ms
    3.81
    """
    require_not_negative(bytes_read=bytes_read, flops=flops)
    return max(bytes_read / hardware.bandwidth, flops / hardware.flops)


def pass_time(
    hardware: Hardware,
    weights: float,
    batch: int = 1,
    tokens: int = 1,
    context: int = 0,
    bytes_per_weight: float = 2,
    kv_bytes: float = 0,
    attention_width: int = 0,
) -> float:
    """Seconds of one forward pass at best: roofline_time of the products with the weights + roofline_time of attention.

    They are kernels one after the other, so compute-bound products do not overlap with the reading of the cache.

    >>> pass_time(H200, 8e9, tokens=5) == pass_time(H200, 8e9)  # verifying four draft tokens is free
    True
    """
    require_not_negative(context=context, kv_bytes=kv_bytes, attention_width=attention_width)
    products = roofline_time(pass_bytes(weights, bytes_per_weight, batch), pass_flops(weights, batch, tokens), hardware)
    read, computed = batch * context * kv_bytes, 4 * batch * tokens * context * attention_width
    return products + roofline_time(read, computed, hardware)


# ---- 02 The KV cache ----


def kv_bytes_per_token(layers: int, kv_heads: int, head_dim: int, bytes_per_value: float = 2) -> float:
    """Bytes of one token in the cache: 2 (key and value) · layers · kv_heads · head_dim · bytes. GQA shrinks kv_heads.

    >>> kv_bytes_per_token(32, 32, 128) / 1024, kv_bytes_per_token(80, 8, 128) / 1024  # LLaMA-2-7B, -70B, KiB
    (512.0, 320.0)
    """
    require_counts(layers=layers, kv_heads=kv_heads, head_dim=head_dim)
    require_positive(bytes_per_value=bytes_per_value)
    return 2 * layers * kv_heads * head_dim * bytes_per_value


def kv_bytes(batch: int, length: int, per_token: float) -> float:
    """Bytes of a whole cache: B · L · bytes per token.

    >>> kv_bytes(16, 4096, kv_bytes_per_token(32, 32, 128)) / 2**30  # LLaMA-2-7B, GiB: more than its weights
    32.0
    """
    require_counts(batch=batch, length=length)
    require_positive(per_token=per_token)
    return batch * length * per_token


# ---- 03 Paged blocks ----


def block_waste(length: float, block: int = 16) -> float:
    """Fraction of a sequence's blocks left empty, on average over lengths around L: e / (L + e), e = (block − 1)/2.

    >>> block_waste(180)  # at most 4 % only from here on
    0.04
    """
    require_positive(length=length)
    require_counts(block=block)
    empty = (block - 1) / 2
    return empty / (length + empty)


# ---- 04 Continuous batching ----


def static_batch_idle(lengths: Sequence[int]) -> float:
    """Share of slots idle while a static batch waits for its longest sequence: 1 − mean(L) / max(L).

    >>> static_batch_idle([100, 20, 40, 40])
    0.5
    """
    require(bool(lengths), "the length of at least one sequence", lengths=lengths)
    for length in lengths:
        require_counts(lengths=length)
    return 1 - sum(lengths) / len(lengths) / max(lengths)


# ---- 07 How fast ----


def expected_tokens(alpha: float, k: int) -> float:
    """E[N] = (1 − α^{k+1}) / (1 − α) = 1 + α + … + α^k tokens per cycle: the accepted ones, plus one.

    >>> round(expected_tokens(0.7, 4), 2), round(expected_tokens(0.4, 4), 2)
    (2.77, 1.65)
    """
    require_probabilities(alpha=alpha)
    require(whole(k, 0), "a whole number ≥ 0", k=k)
    return sum(alpha**i for i in range(k + 1))  # the sum, unlike the quotient, also holds at α = 1


def expected_tokens_by_position(betas: Sequence[float]) -> float:
    """E[N] = 1 + Σ_i Π_{j≤i} β_j, where β_j = P(accept j | all before it accepted).

    Averaging β over contexts first and multiplying afterwards is something else: good contexts stay good.

    >>> round(expected_tokens_by_position([0.9, 0.7, 0.5]), 3)
    2.845
    """
    for beta in betas:
        require_probabilities(betas=beta)
    return 1.0 + sum(accumulate(betas, mul))


def cycle_speedup(tokens: float, k: int, c: float, v: float = 1.0) -> float:
    """Plain time of what a cycle emits over the cycle's time: E[N] / (k·c + v), however E[N] was found.

    >>> round(cycle_speedup(2.77, 4, 0.1), 2)
    1.98
    """
    require_positive(tokens=tokens, v=v)
    require_counts(k=k)
    require_not_negative(c=c)
    return tokens / (k * c + v)


def speedup(alpha: float, k: int, c: float, v: float = 1.0) -> float:
    """S = E[N] / (k·c + v) with E[N] = (1 − α^{k+1}) / (1 − α).

    >>> round(speedup(0.7, 4, 0.1), 2), round(speedup(0.7, 4, 0.1, v=2.5), 2)
    (1.98, 0.96)
    """
    return cycle_speedup(expected_tokens(alpha, k), k, c, v)


def best_k(alpha: float | Sequence[float], c: float, v: float | Callable[[int], float] = 1.0, longest: int = 64) -> int:
    """The draft length 1 … longest with the greatest speed-up, or 0 where none beats plain decoding.

    α may be one number or one β per position; v may be one number or a function of k, as measured.

    >>> best_k(0.8, 0.1), best_k(0.8, 0.02), best_k(0.05, 0.1)
    (6, 11, 0)
    """
    return _best(alpha, c, v, longest)[1]


def best_speedup(
    alpha: float | Sequence[float], c: float, v: float | Callable[[int], float] = 1.0, longest: int = 64
) -> float:
    """The speed-up at `best_k`; 1 where that is 0.

    >>> round(best_speedup(0.8, 0.1), 1), round(best_speedup(0.8, 0.02), 1)
    (2.5, 3.8)
    """
    return _best(alpha, c, v, longest)[0]


def _best(alpha, c, v, longest) -> tuple[float, int]:
    require_counts(longest=longest)
    betas = [alpha] * longest if isinstance(alpha, Real) else list(alpha)[:longest]
    for beta in betas:
        require_probabilities(betas=beta)
    tokens = list(accumulate(accumulate(betas, mul), initial=1.0))  # [k]: expected_tokens_by_position(betas[:k])
    gains = [(cycle_speedup(tokens[k], k, c, v(k) if callable(v) else v), k) for k in range(1, len(tokens))]
    return max([(1.0, 0), *gains], key=lambda pair: pair[0])  # of equals the first, the shorter


def break_even(k: int, c: float, v: float = 1.0) -> float:
    """The α at which the speed-up is 1: E[N] = k·c + v. Infinite if not even α = 1 pays. At k = 1, v = 1: α = c.

    >>> round(break_even(1, 0.1), 3), round(break_even(4, 0.1, v=2.9), 2)
    (0.1, 0.79)
    """
    cost = 1 / cycle_speedup(1.0, k, c, v)  # k·c + v
    if cost > k + 1:
        return math.inf
    low, high = 0.0, 1.0
    for _ in range(60):  # E[N] grows with α: halve the interval until a float cannot tell
        middle = (low + high) / 2
        low, high = (low, middle) if expected_tokens(middle, k) >= cost else (middle, high)
    return high


# ---- 11 Speculation in a server ----


def verify_cost(hardware: Hardware, weights: float, k: int, batch: int = 1, **shape) -> float:
    """v = pass_time(k + 1 tokens per sequence) / pass_time(1): 1 while B·(k + 1) < ridge point, k + 1 for B beyond it.

    `shape` goes to `pass_time`. A long context adds the same time to both passes, because a cache is read once for all
    k + 1 tokens, so v falls again.

    >>> [round(verify_cost(H200, 8e9, k=4, batch=b), 2) for b in (1, 32, 64, 128, 256)]
    [1.0, 1.0, 1.7, 3.4, 5.0]
    """
    require_counts(k=k)
    return pass_time(hardware, weights, batch, k + 1, **shape) / pass_time(hardware, weights, batch, 1, **shape)


# ---- 16 Beyond one GPU, appendix: scaling laws ----


def all_reduce_bytes(values: float, ranks: int, bytes_per_value: float = 2) -> float:
    """Bytes each rank sends in a ring all-reduce: 2(t − 1)/t · values · bytes. Tensor parallelism does two per layer.

    >>> 2 * 80 * all_reduce_bytes(8192, 8) / 1e6  # LLaMA-2-70B on 8 GPUs, one token, MB
    4.58752
    """
    require_positive(values=values, bytes_per_value=bytes_per_value)
    require_counts(ranks=ranks)
    return 2 * (ranks - 1) / ranks * values * bytes_per_value
