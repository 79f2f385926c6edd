"""From logits to a probability distribution, and from a distribution to a token.

`Sampling.probs` is the *only* place where logits become probabilities. Speculative decoding is exact with respect to
the distribution that tokens are really sampled from, so target and draft must both go through here, truncation
included.

Random numbers come from one place, too: every sequence has a generator of its own on the CPU, seeded once. The same
seed gives the same numbers on every device, whoever asks for them: `generate`, `speculate` or an engine.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .require import real, require, whole

if TYPE_CHECKING:
    pass

NOT_FINITE = "logits contain NaN or ∞: the weights are damaged, or a half-precision model overflowed"
COLDEST = 1e-30  # dividing by less would overflow float32; the best token has all the mass long before


@dataclass(frozen=True)
class Sampling:
    """How to turn logits into a distribution: divide by temperature, then keep top_k, then top_p, then min_p.

    Order, ties (equal logits at the top-k border all stay) and edges (the best token always stays) are those of
    transformers. `temperature=0` is greedy: all mass on the argmax.
    """

    temperature: float = 0.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    min_p: float = 0.0  # 0: off

    def __post_init__(self):
        require(real(self.temperature, 0), "a finite number ≥ 0 (0 is greedy)", temperature=self.temperature)
        require(whole(self.top_k, 0), "a whole number ≥ 0 (0 keeps every token)", top_k=self.top_k)
        require(real(self.top_p, 0, 1) and self.top_p > 0, "a number in (0, 1] (1 keeps every token)", top_p=self.top_p)
        require(real(self.min_p, 0, 1), "a number in [0, 1] (0 keeps every token)", min_p=self.min_p)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def probs(self, logits: Tensor) -> Tensor:
        """The distribution tokens are sampled from, [..., V], in float32 or better."""
        if not bool(finite(logits)):
            raise ValueError(NOT_FINITE)
        return self.unchecked_probs(logits)

    def unchecked_probs(self, logits: Tensor) -> Tensor:
        """`probs` without a look at any number: on a GPU, to look is to wait."""
        if self.greedy:
            best = logits.argmax(-1, keepdim=True)
            return torch.zeros_like(logits, dtype=precise(logits)).scatter_(-1, best, 1.0)
        scores = logits.to(precise(logits)) / max(self.temperature, COLDEST)
        return truncate(scores, *(number if used else None for number, used in zip(self.cuts, self.steps, strict=True)))

    @property
    def cuts(self) -> tuple[int, float, float]:
        return self.top_k, self.top_p, self.min_p

    @property
    def steps(self) -> tuple[bool, bool, bool]:
        """Which of top_k, top_p and min_p are used."""
        return self.top_k > 0, self.top_p < 1, self.min_p > 0


def truncate(scores: Tensor, top_k=None, top_p=None, min_p=None) -> Tensor:
    """softmax(scores) [..., V] of what top_k, top_p and min_p leave. None: not used. On a device they may be tensors
    that hold one number, or one for each distribution [..., 1]: what was captured then serves any number."""
    if top_k is not None:
        if isinstance(top_k, Tensor):
            place = (top_k.clamp(max=scores.shape[-1]) - 1).expand(*scores.shape[:-1], 1)
            kth_best = scores.sort(-1, descending=True).values.gather(-1, place)
        else:
            kth_best = scores.topk(min(top_k, scores.shape[-1])).values[..., -1:]
        scores = scores.masked_fill(scores < kth_best, -math.inf)
    if top_p is not None:
        ascending, order = scores.sort(dim=-1)
        tail = ascending.softmax(-1).cumsum(-1) <= 1 - top_p  # mass of a token and of all below it
        tail = F.pad(tail[..., :-1], (0, 1))  # the best token always stays
        scores = scores.masked_fill(tail.scatter(-1, order, tail), -math.inf)
    if min_p is not None:
        p = scores.softmax(-1)
        scores = scores.masked_fill(p < min_p * p.amax(-1, keepdim=True), -math.inf)
    return scores.softmax(-1)


def precise(numbers: Tensor) -> torch.dtype:
    """Theirs, or float32 where that is less."""
    return torch.promote_types(numbers.dtype, torch.float32)


def finite(logits: Tensor) -> Tensor:
    """Whether there is no NaN or ∞ in [..., V]: −∞ forbids a token, but not all tokens of a position."""
    return logits.amax(-1).isfinite().all()


def best_tokens(logits: Tensor) -> Tensor:
    """The best token at every position of logits [..., V], or −1 where they contain NaN or ∞."""
    best = largest(logits)
    finite = logits.gather(-1, best[..., None])[..., 0].abs() < math.inf  # isfinite and where are twice as many steps
    return best.masked_fill(~finite, -1)


def largest(logits: Tensor) -> Tensor:
    """argmax of [..., V], a NaN being larger than anything. On a CPU numpy's, which takes a tenth of torch's time."""
    if logits.device.type == "cpu" and logits.dtype in (torch.float32, torch.float64):
        return torch.from_numpy(np.asarray(logits.detach().numpy().argmax(-1)))
    return logits.argmax(-1)


def distributions(logits: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """Logits [B, ..., V] to distributions, each sequence by its own Sampling."""
    if all(sampling == samplings[0] for sampling in samplings):
        return samplings[0].probs(logits)
    p = torch.empty_like(logits, dtype=precise(logits))
    for sampling in dict.fromkeys(samplings):  # not one by one: `probs` looks at the numbers, and a GPU would wait
        rows = [row for row, other in enumerate(samplings) if other == sampling]
        p[rows] = sampling.probs(logits[rows])
    return p


def uniforms(generators: Sequence[torch.Generator], counts: int | Sequence[int], device="cpu") -> Tensor:
    """Random numbers in [0, 1) for every sequence, [B, longest], each from its own generator. A sequence takes its own
    count and no more (zeros follow): which numbers it gets next must not depend on how many another one needed."""
    counts = [counts] * len(generators) if isinstance(counts, int) else counts
    each = zip(counts, generators, strict=True)
    u = pad_sequence([torch.rand(n, generator=own, dtype=torch.float64) for n, own in each], batch_first=True)
    return u.to(device)


def pick(probs: Tensor, u) -> int | Tensor:
    """The token at which the running total of a distribution passes u: one number samples one token. For distributions
    [..., V] and numbers [...]; a float picks from one distribution."""
    total = probs.double().cumsum(-1)
    total = total / total[..., -1:]  # ends at exactly 1 > u, so a token of probability 0 is never picked
    if isinstance(u, Tensor):
        return torch.searchsorted(total, u[..., None].contiguous(), right=True).squeeze(-1)
    return bisect_right(total.cpu().numpy(), u)


def pad(rows: list[list[int]], device) -> tuple[Tensor, Tensor]:
    """Ragged rows as one tensor [B, T], padded at the end, and their lengths [B]."""
    longest = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (longest - len(row)) for row in rows], dtype=torch.long, device=device)
    return tokens, torch.tensor([len(row) for row in rows], device=device)


def emitting_positions(path: Sequence[int]) -> list[int]:
    """Where in a pass over [last token, draft …] the tokens of a cycle were emitted from: after the last token the
    first of them, and after each accepted node i, in slot i + 1, the next."""
    return [0, *(node + 1 for node in path)]
