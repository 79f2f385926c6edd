"""From logits to a probability distribution, and from a distribution to a token.

`Sampling.probs` is the *only* place where logits become probabilities. Speculative decoding is exact with respect to
the distribution that tokens are really sampled from, so target and draft must both go through here, truncation
included.

Random numbers come from one place, too: the n-th number of a sequence is a hash of its seed and n (`Coins`). There is
nothing to be stored or sent but one whole number, and the same seed gives the same bits on every device, whoever asks
for them: `generate`, `speculate` or an engine.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .require import real, require, whole

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


# ---- random numbers ------------------------------------------------------------------------------------------------
#
# A counter that is hashed (splitmix64: Steele, Lea and Flood, 2014): the state of a sequence grows by GOLDEN with every
# number, and the number is what `mixed` makes of it. All of it is whole numbers modulo 2⁶⁴, which wrap around alike in
# torch on a CPU, on a GPU, and in a kernel.

GOLDEN = -7046029254386353131  # 2⁶⁴ / the golden ratio, odd: a state comes back after 2⁶⁴ numbers
MIXERS = -4658895280553007687, -7723592293110705685


def shifted(x: Tensor, bits: int) -> Tensor:
    """x >> bits of a number without a sign; torch's own fills up with the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mixed(x: Tensor) -> Tensor:
    """64 bits, each of which depends on all bits of x [...]. No two x give the same."""
    for bits, mixer in zip((30, 27), MIXERS, strict=True):
        x = (x ^ shifted(x, bits)) * mixer
    return x ^ shifted(x, 31)


def uniform(states: Tensor) -> Tensor:
    """Numbers in [0, 1), the best 53 bits of each hash: float64 holds them exactly."""
    return shifted(mixed(states), 11).double() * 2**-53


def signed(number: int) -> int:
    """Modulo 2⁶⁴, as an int64 has it."""
    return (number + 2**63) % 2**64 - 2**63


class Coins:
    """A sequence's random numbers: number n = 1, 2, … is uniform(state + n · GOLDEN)."""

    def __init__(self, seed: int):
        self.state = int(mixed(torch.tensor(signed(seed))))  # seeds that follow each other begin far apart

    def skip(self, count: int) -> None:
        """So many numbers have been used."""
        self.state = signed(self.state + count * GOLDEN)


def uniforms(coins: Sequence[Coins], counts: int | Sequence[int], device="cpu") -> Tensor:
    """Random numbers in [0, 1) for every sequence, [B, longest], each from its own coins. A sequence takes its own
    count and no more (zeros follow): which numbers it gets next must not depend on how many another one needed."""
    counts = [counts] * len(coins) if isinstance(counts, int) else list(counts)
    n = torch.arange(1, 1 + max(counts, default=0))
    u = uniform(torch.tensor([own.state for own in coins])[:, None] + n * GOLDEN)  # [B, longest]
    for own, count in zip(coins, counts, strict=True):
        own.skip(count)
    return torch.where(n <= torch.tensor(counts)[:, None], u, 0.0).to(device)


# ---- noise that belongs to a position --------------------------------------------------------------------------------


def noise_of(sequences: Sequence, ahead: int | Tensor = 0, device="cpu") -> Tensor:
    """The numbers of the noise that belongs to the next tokens of these sequences [B], or to those that many `ahead`,
    [n] or [B, n]: start + position · GOLDEN."""
    start = torch.tensor([signed(sequence.noise + len(sequence.tokens) * GOLDEN) for sequence in sequences])
    start, ahead = (x.to(device, non_blocking=True) for x in (start, torch.as_tensor(ahead)))
    return (start[:, None] if ahead.ndim else start) + ahead * GOLDEN


def gumbel(noise: Tensor, tokens: Tensor) -> Tensor:
    """Gumbel noise g = −log(−log u) of token ids [V] at positions whose numbers are noise [...]: [..., V]. A hash of
    seed, position and token, so it is the same whoever asks, as often as they like."""
    u = uniform(mixed(noise)[..., None] + tokens * GOLDEN).clamp(min=2**-54)  # g = −∞ would forbid a token
    return -(-u.log()).log()


def noisy(logits: Tensor, temperature: Tensor, noise: Tensor, tokens: Tensor) -> Tensor:
    """logits + T · g of tokens [v], whose best one is what `coupled` would choose of softmax(logits / T)."""
    return logits + (temperature * gumbel(noise, tokens)).to(precise(logits))


def coupled(p: Tensor, noise: Tensor, tokens: Tensor | None = None) -> Tensor:
    """argmax(log p + g) [...] of distributions p [..., V] over the ids `tokens` (None: 0 … V − 1), a sample of p that
    is a function of the noise [...]. Under the same noise similar distributions mostly give the same token (Daliri et
    al., 2024, arXiv:2408.07978)."""
    tokens = torch.arange(p.shape[-1], device=p.device) if tokens is None else tokens
    return largest(p.double().log() + gumbel(noise, tokens))


# ---- from a distribution to a token --------------------------------------------------------------------------------


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
