"""Sampling and verdicts on the device, for many requests at once: each has its own temperature, cuts and coins.

What host and device have to agree on is one line for each row, `RowSamplings`: how it samples, and the state of its
random numbers (sampling.Coins), which are a hash and so the same bits here. Drafts take the first of them, one for each
sampled node, then the verdict takes one for each distribution, as in verify.judge.

A row that is greedy among others that sample has all its mass on the best token. So `judge` has two ways: all greedy,
where the best tokens say everything; and the batched verifiers of verify.py.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import NamedTuple

import torch
from torch import Tensor

from ..sampling import GOLDEN, Coins, Sampling, precise, truncate, uniform
from ..tree import ancestors
from ..verify import at, chain_batch, tree_batch
from .vocab import pick, softmax


class Steps(NamedTuple):
    """Which ways to sample there are in a batch: each combination is captured for itself."""

    greedy: bool  # some rows are
    top_k: bool
    top_p: bool
    min_p: bool

    @classmethod
    def of(cls, samplings: Rows[Sampling]) -> Steps | None:
        """None: nobody samples."""
        sampled = [sampling.steps for sampling in samplings if not sampling.greedy]
        return cls(len(sampled) < len(samplings), *map(any, zip(*sampled, strict=True))) if sampled else None


class RowSamplings:
    """How each of so many rows samples, on the device."""

    def __init__(self, rows: int, vocab_size: int, device: torch.device):
        self.vocab_size = vocab_size
        self.lines = torch.zeros(rows, 5, dtype=torch.float64, pin_memory=device.type == "cuda")
        self.sheet = torch.zeros(rows, 5, dtype=torch.float64, device=device)  # temperature, top_k, top_p, min_p, coins
        self.coins = self.sheet.view(torch.int64)[:, 4]  # [rows], the same memory
        self.written, self.written_coins = self.lines.numpy(), self.lines.view(torch.int64).numpy()[:, 4]

    def write(self, samplings: Rows[Sampling], coins: Rows[Coins | None]) -> None:
        """The host's part, for the first rows. It has seen to it that the last lines are gone."""
        n = len(samplings)
        self.written[:n, :4] = [[s.temperature, s.top_k or self.vocab_size, s.top_p, s.min_p] for s in samplings]
        self.written_coins[:n] = [own.state if own else 0 for own in coins]
        self.sheet[:n].copy_(self.lines[:n], non_blocking=True)

    def sampled(self, B: int) -> Tensor:
        """Which of the first B rows are not greedy."""
        return self.sheet[:B, 0] > 0

    def uniforms(self, B: int, first: Tensor | int, count: int) -> Tensor:
        """The next `count` random numbers of B rows, after the `first` ones [B]: [B, count]."""
        n = torch.arange(1, count + 1, device=self.coins.device)
        return uniform(self.coins[:B, None] + (n + (first[:, None] if isinstance(first, Tensor) else first)) * GOLDEN)

    def probs(self, logits: Tensor, best: Tensor, steps: Steps) -> Tensor:
        """What B rows sample from, [B, T, V], where `best` [B, T] are the best tokens (−1: NaN)."""
        numbers = self.sheet[: len(logits), :4, None, None].unbind(1)  # [B, 1, 1] each
        temperature, top_k, top_p, min_p = numbers
        temperature = torch.where(temperature > 0, temperature, 1.0)
        if any(steps[1:]):
            scores = logits.to(precise(logits))
            cuts = top_k.long().clamp(min=1), top_p, min_p  # 0 in rows of padding
            cuts = (cut if used else None for cut, used in zip(cuts, steps[1:], strict=True))
            p = truncate(scores / temperature.to(scores.dtype), *cuts)
        else:
            p = softmax(logits, temperature.flatten())
        if steps.greedy:
            certain = torch.arange(p.shape[-1], device=p.device) == best[..., None]
            p = torch.where(self.sampled(len(p))[:, None, None], p, certain.to(p.dtype))
        return p


class Drafts(NamedTuple):
    """What was drafted for B rows."""

    tokens: Tensor  # [B, n], −1 where there is no node
    parents: Tensor  # [B, n]
    q: Tensor | None = None  # [B, n, V], what chains were sampled from (None: they were not)
    sampled: Tensor | None = None  # [B], whose were; the others' q has all its mass on the best token


class Verdicts(NamedTuple):
    path: Tensor  # [B, k], the accepted nodes; unused places hold their own number
    run: Tensor  # [B, k + 1], their tokens and the one after them
    new: Tensor  # [B], how many these are
    taken: Tensor  # [B], how many random numbers draft and verdict took
    report: Tensor  # [B, 3n + 1], for the host: which nodes are accepted, p, q, and the last token (−1: NaN)


def judge(
    logits: Tensor, best: Tensor, drafts: Drafts, k: int, chains: bool, samplings: RowSamplings, steps: Steps, rule: str
) -> Verdicts:
    """What the drafts of B rows came to, by the target's logits [B, n + 1, V] and best tokens [B, n + 1]; no path is
    longer than k."""
    B, n = drafts.tokens.shape
    there = drafts.tokens >= 0
    tokens, parents = drafts.tokens.clamp(min=0), torch.where(there, drafts.parents, -1)
    lengths, node = there.sum(1), torch.arange(max(n, k + 1), device=best.device)
    first = torch.zeros_like(lengths) if drafts.q is None else lengths * drafts.sampled
    p = samplings.probs(logits, best, steps)  # [B, n + 1, V]
    u = samplings.uniforms(B, first, n + 1)
    if chains:
        count, token = chain_batch(p, drafts.q, tokens, lengths, u, rule=rule, pick=pick)
        accepted, place = node[:n] < count[:, None], node[:n].expand(B, n)
    else:
        above = ancestors(parents, k)
        accepted, token = tree_batch(p, tokens, parents, above, lengths, u, pick=pick)
        count, place = accepted.sum(1), above.sum(-1) - 1
    token = token.clamp(max=p.shape[-1] - 1)  # NaN picks a token that does not exist
    # Where each accepted node goes: to its depth on the path. The others go to a column that nobody reads.
    place = torch.where(accepted, place, k)  # [B, n]
    path = node[: k + 1].repeat(B, 1).scatter_(1, place, node[:n].expand(B, n))[:, :k]
    run = torch.zeros(B, k + 1, dtype=torch.long, device=best.device).scatter_(1, place, tokens)
    run.scatter_(1, count[:, None], token[:, None])
    given = p.flatten(1).gather(1, (parents + 1) * p.shape[-1] + tokens)  # each where it was guessed
    drawn = torch.ones_like(given) if drafts.q is None else at(drafts.q, tokens)
    last = token.masked_fill((best < 0).any(1), -1)[:, None]
    report = torch.cat([part.double() for part in (accepted, given, drawn, last)], 1)
    return Verdicts(path, run, count + 1, first + lengths + 1, report)
