"""Lesson 15's experiment on one budget: what two sequences emit when a choice decides which draft tokens are verified.

The distributions are exact, so a choice that looks at a token it decides about shows as a bias and not as noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from minispec import exact, verify
from minispec.serving.budget import allocate, survival
from minispec.tree import Draft

TARGETS = torch.tensor([[0.4, 0.6], [0.7, 0.3]], dtype=torch.float64)  # p of the two sequences, whatever came before
DRAFTS = torch.tensor([[0.8, 0.2], [0.45, 0.55]], dtype=torch.float64)  # q of the first draft token
AFTER = torch.tensor([[0.95, 0.05], [0.5, 0.5]], dtype=torch.float64)  # and of the second, after token 0 or token 1


def first_tokens(confidence: Callable[[Tensor, int], float], budget: Callable[[Sequence], int]) -> dict:
    """The exact joint distribution of the first token of both sequences. Each drafts two tokens; confidence(q, d) says
    what a draft token is worth, and budget(worth of all) how many are verified."""

    def step(random) -> tuple[int, ...]:
        drafts, worth = [], []
        for start in DRAFTS:
            tokens, q = exact.propose_chain(
                lambda context, start=start: AFTER[context[0]] if context else start, (), 2, random
            )
            worth.append([confidence(*pair) for pair in zip(q, tokens, strict=True)])
            drafts.append(Draft(list(tokens), q))
        first: tuple[int, ...] = ()
        for p, draft in zip(TARGETS, allocate(drafts, worth, budget(worth)), strict=True):
            n = len(draft.tokens)
            numbers = [random() for _ in range(n + 1)]
            verdict = verify.chain(p.expand(n + 1, -1), draft.probs if n else None, draft.tokens, numbers)
            first += verdict.run(draft.tokens)[:1]
        return first

    return exact.exact_distribution(step)


def bias(confidence: Callable[[Tensor, int], float], budget: Callable[[Sequence], int]) -> float:
    """How far that is from plain decoding, in total variation. 0 to the last digits: exact."""
    plain = {(a, b): float(TARGETS[0, a] * TARGETS[1, b]) for a in (0, 1) for b in (0, 1)}
    return exact.total_variation(first_tokens(confidence, budget), plain)


def best_two(worth: Sequence[Sequence[float]]) -> float:
    """What the best two draft tokens of all are worth together: their probabilities to survive, added up."""
    return sum(sorted(probability for row in worth for probability in survival(row))[-2:])
