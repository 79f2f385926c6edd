"""Derivations for a mock interview, a step at a time: each step asks for a number, and theory.py computes it.

The parameters are random, so that the numbers cannot be known by heart. A wrong step is corrected before the next one,
which continues from the right number.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from ...theory import acceptance
from .expressions import evaluate
from .question import Number

TOKENS = "abc"


@dataclass(frozen=True)
class Derivation:
    name: str
    id: str  # the question of the bank that it works out
    given: str
    begin: str  # the first step, in words: what to compare an opening with
    steps: tuple[Number, ...]


def _step(name: str, expression: str, unit: str = "") -> Number:
    return Number(name, expression, evaluate(expression), unit=unit, tolerance=0.0)


def _distributions(dice: random.Random) -> tuple[list[float], list[float]]:
    """Two distributions over three tokens, in steps of 0.05: p(a) well above q(a), p(b) well below q(b), and the wrong
    rule of the last step a good tenth off."""
    while True:
        p, q = ([round(0.05 * n, 2) for n in _composition(dice)] for _ in range(2))
        beta = acceptance(p, q)
        naive = min(p[0], q[0]) + (1 - beta) * p[0]
        if p[0] - q[0] >= 0.1 and q[1] - p[1] >= 0.1 and abs(naive / p[0] - 1) > 0.12:
            return p, q


def _composition(dice: random.Random, parts: int = 20) -> tuple[int, int, int]:
    a, b = sorted(dice.sample(range(1, parts), 2))
    return a, b - a, parts - b


def losslessness(dice: random.Random) -> Derivation:
    p, q = _distributions(dice)
    (pa, pb, _), (qa, qb, _) = p, q
    table = "; ".join(f"p({t}) = {x:g}, q({t}) = {y:g}" for t, x, y in zip(TOKENS, p, q, strict=True))
    left = f"total_variation({p}, {q})"
    return Derivation(
        "losslessness",
        "prove-lossless",
        f"A vocabulary of three tokens. {table}. Show that the first token of a cycle with one draft token is a with "
        "probability p(a).",
        "There are two ways to emit a: it is drafted and accepted, with probability min(p(a), q(a)), or the draft "
        "token is rejected and a is sampled from the residual.",
        (
            _step("the probability that b is accepted once it has been drafted", f"{pb} / {qb}"),
            _step("the probability that a draft token is accepted, whichever it is", f"acceptance({p}, {q})"),
            _step("the probability that the draft token is rejected", left),
            _step("the probability of a under the residual", f"({pa} - {qa}) / {left}"),
            _step(
                "the probability that a is emitted, drafted or as the replacement",
                f"{qa} + {left} * (({pa} - {qa}) / {left})",
            ),
            _step("the probability of a if the replacement came from p instead", f"{qa} + {left} * {pa}"),
        ),
    )


def cycle_length(dice: random.Random) -> Derivation:
    alpha, k, c = dice.choice([0.5, 0.6, 0.7, 0.8]), dice.choice([2, 3, 4, 5]), dice.choice([0.05, 0.1, 0.2])
    tokens = f"expected_tokens({alpha}, {k})"
    return Derivation(
        "E[N]",
        "expected-tokens",
        f"Each of k = {k} draft tokens per cycle is accepted with probability α = {alpha}, independently. Drafting a "
        f"token takes c = {c} of a forward pass of the target, verifying takes one. How many tokens does a cycle emit, "
        "and what is the speed-up?",
        "A cycle emits the accepted draft tokens plus one. It emits more than i tokens exactly if the first i draft "
        "tokens are accepted, with probability α^i, and the sum of these over i = 0 … k is E[N].",
        (
            _step("the probability that a cycle emits just one token", f"1 - {alpha}"),
            _step(
                f"the probability that {'both' if k == 2 else f'all {k}'} draft tokens are accepted",
                f"{alpha}**{k}",
            ),
            _step("the expected number of tokens per cycle, E[N]", tokens),
            _step("the number of tokens per cycle that no k exceeds", f"token_ceiling({alpha})"),
            _step("the speed-up over plain decoding", f"speedup({alpha}, {k}, {c})", "×"),
            _step("the positions the target computes for each token kept", f"target_work({alpha}, {k})"),
        ),
    )


def kv_size(dice: random.Random) -> Derivation:
    layers, kv_heads, head_dim = dice.choice([32, 40, 48, 80]), dice.choice([4, 8]), dice.choice([64, 128])
    heads = kv_heads * dice.choice([4, 8])
    batch, length = dice.choice([8, 16, 32]), dice.choice([2048, 4096, 8192])
    billions, memory = dice.choice([8, 14, 20]), 80
    token = f"kv_bytes_per_token({layers}, {kv_heads}, {head_dim})"
    return Derivation(
        "KV size",
        "kv-size",
        f"A model with {billions} B parameters, {layers} layers, {heads} query heads and {kv_heads} KV heads of "
        f"{head_dim}, all in bf16. {batch} requests of {length:,} tokens on a card with {memory} GB. How large is "
        "the cache, and what fits?",
        "A token keeps a key and a value in every layer for every KV head: 2 · layers · KV heads · head size values of "
        "two bytes. All else is that number times tokens.",
        (
            _step("the count of values that one layer keeps for a token",
                  f"kv_bytes_per_token(1, {kv_heads}, {head_dim}, 1)"),
            _step("the size of the cache per token, in KiB", f"{token} / 1024", "KiB"),
            _step(f"the size of the cache of all {batch} requests, in GiB",
                  f"kv_bytes({batch}, {length}, {token}) / 2**30", "GiB"),
            _step(f"the factor by which it would grow if all {heads} heads kept keys and values",
                  f"kv_bytes_per_token({layers}, {heads}, {head_dim}) / {token}", "×"),
            _step("the size of the weights, in GB", f"pass_bytes({billions}e9) / 1e9", "GB"),
            _step(f"the number of cached tokens that fit beside the weights in {memory} GB",
                  f"({memory}e9 - pass_bytes({billions}e9)) / {token}"),
        ),
    )  # fmt: skip


DERIVATIONS: tuple[Callable[[random.Random], Derivation], ...] = (losslessness, cycle_length, kv_size)
