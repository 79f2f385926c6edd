"""From logits to a probability law, and from a law to a token.

`Sampling.probs` is the *only* place where logits become probabilities. Speculative decoding is exact with respect to
the law that tokens are really drawn from, so target and draft must both go through here, truncation included.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

NOT_FINITE = "logits contain NaN or ∞: the weights are damaged, or a half-precision model overflowed"


@dataclass(frozen=True)
class Sampling:
    """How to turn logits into a law: divide by temperature, then keep top_k, then top_p, then min_p.

    The order, the ties (equal logits at the top-k border all stay) and the edges (the best token always stays) are
    those of transformers. `temperature=0` is greedy: all mass on the argmax.
    """

    temperature: float = 0.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    min_p: float = 0.0  # 0: off

    def __post_init__(self):
        if not (isinstance(self.temperature, (int, float)) and 0 <= self.temperature < math.inf):
            raise ValueError(f"temperature={self.temperature!r}: give a finite number ≥ 0 (0 is greedy)")
        if not (isinstance(self.top_k, int) and self.top_k >= 0):
            raise ValueError(f"top_k={self.top_k!r}: give a whole number ≥ 0 (0 keeps every token)")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p!r}: give a number in (0, 1] (1 keeps every token)")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p={self.min_p!r}: give a number in [0, 1] (0 keeps every token)")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def probs(self, logits: Tensor) -> Tensor:
        """The law tokens are drawn from, [..., V], in float32 or better."""
        if not math.isfinite(logits.amax(-1).double().sum()):  # −inf forbids a token, but not all of a row
            raise ValueError(NOT_FINITE)
        return self.law(logits)

    def law(self, logits: Tensor) -> Tensor:
        """`probs` of logits that need no checking. It looks at no number: on a GPU, to look is to wait."""
        if self.greedy:
            best = logits.argmax(-1, keepdim=True)
            return torch.zeros_like(logits, dtype=_precise(logits)).scatter_(-1, best, 1.0)
        scores = logits.to(_precise(logits)) / self.temperature
        if self.top_k:
            kth_best = scores.topk(min(self.top_k, scores.shape[-1])).values[..., -1:]
            scores = scores.masked_fill(scores < kth_best, -math.inf)
        if self.top_p < 1:
            ascending, order = scores.sort(dim=-1)
            tail = ascending.softmax(-1).cumsum(-1) <= 1 - self.top_p  # mass of a token and of all below it
            tail = F.pad(tail[..., :-1], (0, 1))  # the best token always stays
            scores = scores.masked_fill(tail.scatter(-1, order, tail), -math.inf)
        if self.min_p:
            p = scores.softmax(-1)
            scores = scores.masked_fill(p < self.min_p * p.amax(-1, keepdim=True), -math.inf)
        return scores.softmax(-1)


def _precise(logits: Tensor) -> torch.dtype:
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


def likeliest(logits: Tensor) -> list[list[int]]:
    """The best token at every place of logits [B, T, V]: what greedy laws come to, for one look at the device."""
    best = torch.where(logits.amax(-1).isfinite(), logits.argmax(-1), -1).tolist()
    if any(-1 in row for row in best):
        raise ValueError(NOT_FINITE)
    return best


def draw(probs: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """One token per row from the laws probs [B, V]: [B]."""
    return torch.multinomial(probs, 1, generator=generator).squeeze(-1)


def generator_for(device, seed: int | None) -> torch.Generator:
    """The one source of randomness of a run. No seed: a fresh one."""
    generator = torch.Generator(device=device)
    generator.manual_seed(seed) if seed is not None else generator.seed()
    return generator
