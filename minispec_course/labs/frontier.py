"""Lesson 15b's experiments: one budget for two sequences, a mixture of experts on the roofline."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul

import torch
from torch import Tensor

from minispec import exact, theory, verify
from minispec.theory import H200, Hardware, roofline_time
from minispec_course import formulas

# ---- one budget -----------------------------------------------------------------------------------------------------

TARGETS = torch.tensor([[0.4, 0.6], [0.7, 0.3]], dtype=torch.float64)  # p of the two sequences, whatever came before
DRAFTS = torch.tensor([[0.8, 0.2], [0.45, 0.55]], dtype=torch.float64)  # q of the first draft token
AFTER = torch.tensor([[0.95, 0.05], [0.5, 0.5]], dtype=torch.float64)  # and of the second, after token 0 or token 1


Worth = Callable[[Tensor, int], float]  # (q, draft token) → the confidence of its slot


def first_tokens(confidence: Worth, budget: Callable[[list], int], slots: Callable) -> dict:
    """The exact joint distribution of the first token of both sequences. Each drafts two tokens, budget(confidences of
    all) says how many are verified, and slots(confidences, budget) how many of each."""

    def step(random) -> tuple[int, ...]:
        drafts, worth = [], []
        for start in DRAFTS:
            tokens, q = exact.propose_chain(
                lambda context, start=start: AFTER[context[0]] if context else start, (), 2, random
            )
            worth.append([confidence(*pair) for pair in zip(q, tokens, strict=True)])
            drafts.append((tokens, q))
        first: tuple[int, ...] = ()
        for p, (tokens, q), n in zip(TARGETS, drafts, slots(worth, budget(worth)), strict=True):
            numbers = [random() for _ in range(n + 1)]
            verdict = verify.chain(p.expand(n + 1, -1), q[:n] if n else None, tokens[:n], numbers)
            first += verdict.run(tokens)[:1]
        return first

    return exact.exact_distribution(step)


def bias(confidence: Worth, budget: Callable[[list], int], slots: Callable) -> float:
    """How far that is from plain decoding, in total variation. 0 to the last digits: exact."""
    plain = {(a, b): float(TARGETS[0, a] * TARGETS[1, b]) for a in (0, 1) for b in (0, 1)}
    return exact.total_variation(first_tokens(confidence, budget, slots), plain)


def best_two(worth: Sequence[Sequence[float]]) -> float:
    """What the best two draft tokens of all are worth together: their probabilities to survive, added up."""
    return sum(sorted(probability for row in worth for probability in accumulate(row, mul))[-2:])


# ---- a mixture of experts -------------------------------------------------------------------------------------------


def pass_seconds(
    tokens: int, experts: int, per_token: int, always: float, expert: float, hardware: Hardware = H200
) -> float:
    """A pass in bfloat16 on a roofline: it reads the weights that its tokens touch, and computes with those of each
    token. Short contexts: the KV cache is left out. A dense model is a mixture with one expert."""
    read = always + formulas.experts_touched(experts, per_token, tokens) * expert
    return roofline_time(2 * read, 2 * tokens * (always + per_token * expert), hardware)


def draft_cost(draft: float, batch: int = 1, hardware: Hardware = H200, **shape) -> float:
    """c: a pass of a dense draft model of so many parameters, over a plain pass of the target, for the same batch."""
    return pass_seconds(batch, 1, 1, draft / 2, draft / 2, hardware) / pass_seconds(batch, **shape, hardware=hardware)


def best_length(
    alpha: float, draft: float, batch: int = 1, longest: int = 64, hardware: Hardware = H200, **shape
) -> tuple[int, float, float]:
    """The best k for a batch, with a dense draft model of so many parameters: k, v there, and the speedup. k = 0: no
    draft is worth its time."""
    plain, c = pass_seconds(batch, **shape, hardware=hardware), draft_cost(draft, batch, hardware, **shape)

    def v(k: int) -> float:
        return pass_seconds(batch * (k + 1), **shape, hardware=hardware) / plain

    k = theory.best_k(alpha, c, v, longest)
    return k, v(k), theory.best_speedup(alpha, c, v, longest)
