"""Derivations for a mock interview, a step at a time: each step asks for a number, and theory.py computes it.

The parameters are random, so that the numbers cannot be known by heart. A wrong step is corrected before the next one,
which continues from the right number.

    derivations_for("L6")          # of a staff interview: fewer steps, and only the right formula gives the numbers
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from minispec.theory import H200, acceptance, best_k, expected_tokens, free_tokens, speedup

from .expressions import evaluate
from .question import LEVELS, Number

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
                f"the probability that {'both' if k == 2 else f'all {k}'} draft tokens are accepted", f"{alpha}**{k}"
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
            _step(
                "the count of values that one layer keeps for a token",
                f"kv_bytes_per_token(1, {kv_heads}, {head_dim}, 1)",
            ),
            _step("the size of the cache per token, in KiB", f"{token} / 1024", "KiB"),
            _step(
                f"the size of the cache of all {batch} requests, in GiB",
                f"kv_bytes({batch}, {length}, {token}) / 2**30",
                "GiB",
            ),
            _step(
                f"the factor by which it would grow if all {heads} heads kept keys and values",
                f"kv_bytes_per_token({layers}, {heads}, {head_dim}) / {token}",
                "×",
            ),
            _step("the size of the weights, in GB", f"pass_bytes({billions}e9) / 1e9", "GB"),
            _step(
                f"the number of cached tokens that fit beside the weights in {memory} GB",
                f"({memory}e9 - pass_bytes({billions}e9)) / {token}",
            ),
        ),
    )


# ---- staff level: the idea is named, the formula is not -------------------------------------------------------------


def wrong_replacement(dice: random.Random) -> Derivation:
    p, q = _distributions(dice)
    table = "; ".join(f"p({t}) = {x:g}, q({t}) = {y:g}" for t, x, y in zip(TOKENS, p, q, strict=True))
    left = f"total_variation({p}, {q})"
    biased = ", ".join(f"{min(x, y)} + {left} * {x}" for x, y in zip(p, q, strict=True))
    return Derivation(
        "the wrong replacement",
        "residual-not-p",
        f"A vocabulary of three tokens. {table}. After a rejection somebody samples the replacement from p. Which "
        "distribution do the emitted tokens follow, and how far is it from p?",
        "A token is emitted in two ways, drafted and accepted or as a replacement, and only the second one is wrong "
        "here.",
        (
            _step("the probability that the right rule emits a as a replacement", f"{p[0]} - {q[0]}"),
            _step("the total variation between what that sampler emits and p", f"total_variation([{biased}], {p})"),
        ),
    )


def mixed_traffic(dice: random.Random) -> Derivation:
    """Half of the cycles are easy, half are hard: the mean of E[N] is not E[N] of the mean."""
    low, high = dice.choice([0.2, 0.3, 0.4]), dice.choice([0.85, 0.9, 0.95])
    k, c = dice.choice([4, 5, 6]), dice.choice([0.05, 0.1])
    tokens = f"(expected_tokens({low}, {k}) + expected_tokens({high}, {k})) / 2"
    return Derivation(
        "mixed traffic",
        "expected-tokens",
        f"Half of the cycles are easy: each of k = {k} draft tokens is accepted with probability {high}, "
        f"independently. In the other half it is {low}. Drafting a token takes c = {c} of a forward pass of the "
        "target, verifying takes one. What is the speed-up over all of it, and what would a dashboard show as "
        "accepted over drafted?",
        "All cycles take the same time, so the speed-up follows from the mean number of tokens per cycle, and that "
        "mean is taken over the two kinds of cycles, not over their acceptance.",
        (
            _step("the expected number of tokens per cycle over all traffic", tokens),
            _step("the speed-up over plain decoding", f"cycle_speedup({tokens}, {k}, {c})", "×"),
            _step("accepted over drafted, in %", f"100 * ({tokens} - 1) / {k}", "%"),
        ),
    )


def room_for_a_drafter(dice: random.Random) -> Derivation:
    layers, kv_heads = dice.choice([32, 40, 48]), dice.choice([4, 8])
    billions, small, draft_layers, memory = dice.choice([8, 14, 20]), dice.choice([1, 2]), dice.choice([16, 24]), 80
    token, drafted = f"kv_bytes_per_token({layers}, {kv_heads}, 128)", f"kv_bytes_per_token({draft_layers}, 8, 64)"
    before = f"({memory}e9 - pass_bytes({billions}e9)) / {token}"
    after = f"({memory}e9 - pass_bytes({billions}e9) - pass_bytes({small}e9)) / ({token} + {drafted})"
    return Derivation(
        "room for a drafter",
        "draft-cache-memory",
        f"A target with {billions} B parameters, {layers} layers and {kv_heads} KV heads of 128 runs on a card with "
        f"{memory} GB. A draft model with {small} B parameters, {draft_layers} layers and 8 KV heads of 64 is to run "
        "beside it. Everything is in bf16, and activations are ignored. What share of the cached tokens does it cost?",
        "What the two sets of parameters leave is divided by what a token keeps, and with a draft model a token "
        "keeps keys and values in both.",
        (
            _step("the number of cached tokens that fit without the draft model", before),
            _step(
                "the share of these tokens that no longer fits with it, in %", f"100 * (1 - {after} / ({before}))", "%"
            ),
        ),
    )


def best_length(dice: random.Random) -> Derivation:
    while True:  # the best k stands out from its neighbours
        alpha, c = dice.choice([0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9]), dice.choice([0.02, 0.03, 0.05, 0.1, 0.15, 0.2])
        k = best_k(alpha, c)
        if 3 <= k <= 9 and all(speedup(alpha, k, c) > 1.002 * speedup(alpha, n, c) for n in (k - 1, k + 1)):
            break
    return Derivation(
        "the best k",
        "choose-k",
        f"A draft token is accepted with probability α = {alpha}, independently. Drafting it takes c = {c} of a "
        "forward pass of the target, and verifying a draft takes one, whatever its length. Which k is best, and what "
        "does a draft twice as long cost?",
        "One more draft token is worth it as long as what it adds in tokens, per unit of time, is more than the "
        "speed-up that there is without it.",
        (
            _step("the best k", f"best_k({alpha}, {c})"),
            _step("the speed-up at the best k", f"best_speedup({alpha}, {c})", "×"),
            _step("the speed-up at twice the best k", f"speedup({alpha}, {2 * k}, {c})", "×"),
        ),
    )


def where_it_stops(dice: random.Random) -> Derivation:
    alpha, k, c = dice.choice([0.6, 0.7, 0.75, 0.8]), dice.choice([2, 3, 4, 5]), dice.choice([0.03, 0.05, 0.08])
    gone = f"(expected_tokens({alpha}, {k}) - {k} * {c})"
    most = (expected_tokens(alpha, k) - k * c) * free_tokens(H200) / (k + 1)
    batch = 8 * max(1, round(0.75 * most / 8))
    return Derivation(
        "where speculation stops paying",
        "batch-effect",
        "A dense model of 8 B parameters in bf16 runs on an H200 with a measured 4.2 TB/s and 790 TFLOP/s. Contexts "
        f"are short, α = {alpha}, k = {k} and c = {c}. By the roofline, from which batch size on does speculation no "
        "longer pay?",
        "The gain is gone where verifying costs as much more than a plain step as a cycle emits more than one token, "
        "less what drafting takes. While the plain step reads memory and the verification computes, that cost is a "
        "ratio of tokens to the ridge point.",
        (
            _step("the batch size at which the gain is gone", f"{gone} * free_tokens(H200) / {k + 1}"),
            _step(
                f"the speed-up at batch {batch}",
                f"speedup({alpha}, {k}, {c}, v=verify_cost(H200, 8e9, k={k}, batch={batch}))",
                "×",
            ),
        ),
    )


def tree_against_chain(dice: random.Random) -> Derivation:
    first, second = dice.choice([0.5, 0.55, 0.6, 0.65]), dice.choice([0.15, 0.2, 0.25, 0.3])
    depth = dice.choice([2, 3, 4])
    nodes, level = 2 ** (depth + 1) - 2, round(first + second, 2)
    return Derivation(
        "a tree against a chain",
        "tree-or-chain",
        f"Every node of a draft tree has two children, of which the target accepts the first with probability {first} "
        f"and the second with probability {second}, down to depth {depth}. A chain has the first child of each level "
        "only. How many tokens does a cycle of each emit, and how much may verifying the tree cost?",
        "At most one child is accepted, so the chances of the two add up on every level, and below an accepted node "
        "the tree looks the same again.",
        (
            _step("the expected number of tokens per cycle of the tree", f"expected_tokens({level}, {depth})"),
            _step(
                "the expected number of tokens per cycle of a chain with as many draft tokens as the tree has nodes",
                f"expected_tokens({first}, {nodes})",
            ),
            _step(
                f"the verify cost v of the tree up to which it beats a chain of depth {depth} with v = 1, drafting "
                "being free",
                f"expected_tokens({level}, {depth}) / expected_tokens({first}, {depth})",
            ),
        ),
    )


def block_against_token(dice: random.Random) -> Derivation:
    """Two tokens, two positions: only "b, then a" is kept more often by the block rule."""
    while True:  # the two rules are well apart
        p_a, q_a = 0.05 * dice.randrange(10, 19), 0.05 * dice.randrange(3, 10)
        ratio_a, ratio_b = p_a / q_a, (1 - p_a) / (1 - q_a)
        beta, gained = q_a + 1 - p_a, q_a * (1 - q_a) * (min(1, ratio_a * ratio_b) - ratio_b)
        if p_a - q_a >= 0.2 and gained >= 0.07 * (beta + beta**2):
            break
    p, q = [round(p_a, 2), round(1 - p_a, 2)], [round(q_a, 2), round(1 - q_a, 2)]
    one, r_b = f"acceptance({p}, {q})", f"({p[1]} / {q[1]})"
    kept = "1" if ratio_a * ratio_b >= 1 else f"{r_b} * ({p[0]} / {q[0]})"
    both = f"{q[0]}**2 + {q[0]} * {q[1]} * {r_b} + {q[1]} * {q[0]} * {kept} + ({q[1]} * {r_b})**2"
    return Derivation(
        "block verification",
        "block-verification",
        f"Two tokens: p(a) = {p[0]:g}, q(a) = {q[0]:g}, the rest is b, and it is so at every position. Two draft "
        "tokens are sampled from q and verified once token by token and once as a block. How many draft tokens does "
        "each rule accept on average?",
        "A block is kept by the product of its ratios p/q, cut at one after every token, so a token that is too "
        "unlikely can be made up for by the next one.",
        (
            _step("the expected number of accepted draft tokens, token by token", f"{one} + {one}**2"),
            _step("the expected number of accepted draft tokens as a block", f"{one} + {both}"),
        ),
    )


def truncated_drafter(dice: random.Random) -> Derivation:
    """The drafter is the target itself, with top-k on top: what is cut off is what is lost."""
    while True:
        cuts = [0, *sorted(dice.sample(range(1, 20), 3)), 20]
        p = sorted((round(0.05 * (b - a), 2) for a, b in pairwise(cuts)), reverse=True)
        if len(set(p)) == 4 and 0.55 <= p[0] + p[1] <= 0.85:
            break
    k, mass = dice.choice([3, 4, 5]), f"({p[0]} + {p[1]})"
    q = f"[{p[0]} / {mass}, {p[1]} / {mass}, 0, 0]"
    table = ", ".join(f"{x:g}" for x in p)
    return Derivation(
        "a truncated drafter",
        "sampling-parameters",
        f"A draft model agrees with its target exactly: both give four tokens the probabilities {table} at every "
        f"position. The drafter samples with top-k of 2, the target without truncation, and a draft has {k} tokens. "
        "What does the truncation cost, and what goes wrong if q from before it is reported?",
        "Acceptance is the overlap of p with the distribution that was really sampled from, which gives the two "
        "likeliest tokens more than p does and the others nothing.",
        (
            _step("the expected number of tokens per cycle", f"expected_tokens(acceptance({p}, {q}), {k})"),
            _step(
                "the probability that the first token of a cycle is the likeliest one if q from before the "
                "truncation is reported",
                f"{p[0]} / {mass}",
            ),
        ),
    )


DERIVATIONS: tuple[Callable[[random.Random], Derivation], ...] = (losslessness, cycle_length, kv_size)
STAFF: tuple[Callable[[random.Random], Derivation], ...] = (
    wrong_replacement,
    mixed_traffic,
    room_for_a_drafter,
    best_length,
    where_it_stops,
    tree_against_chain,
    block_against_token,
    truncated_drafter,
)


def derivations_for(level: str) -> tuple[Callable[[random.Random], Derivation], ...]:
    """Those that an interview of this level chooses from."""
    return STAFF if level == LEVELS[-1] else DERIVATIONS
