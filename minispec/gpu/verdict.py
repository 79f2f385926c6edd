"""Sampling and verdicts on the device, for many requests at once: each has its own temperature, cuts and coins.

What host and device have to agree on is one line for each row, `RowSamplings`: how it samples, and the state of its
random numbers (sampling.Coins), which are a hash and so the same bits here. Drafts take the first of them, one for each
sampled node, then the verdict takes one for each distribution, as in verify.judge.

A row that is greedy among others that sample has all its mass on the best token. Where all are greedy nothing of this
runs: the best tokens say everything (trees.walk). So it is under rule="coupled", with the target's own choices in their
place (`own_choices`): its noise belongs to positions, and the line has the number of the next one.

`judge` is the batched verifiers of verify.py; in torch they are dozens of launches over a few numbers. By kernels they
are three: which nodes are accepted; how much mass the draft left uncovered on each page of the vocabulary; and the
token at which the running total of that passes a random number (vocab.py).
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import NamedTuple

import torch
from torch import Tensor

from ..sampling import GOLDEN, Sampling, coupled, noisy, precise, signed, truncate
from ..sequence import Sequence
from ..tree import ancestors
from ..verify import at, chain_batch, tree_batch
from .attention import constants, constexpr, jit, tl, triton, unavailable
from .vocab import WIDE, pick, softmax, uniforms

COLUMNS = 6  # numbers of a row


class Steps(NamedTuple):
    """Which ways to sample there are in a batch: each combination is captured for itself, hence there are few."""

    mixed: bool  # some rows may be greedy
    cuts: bool  # top_k, top_p or min_p
    coupled: bool = False  # by noise

    @classmethod
    def of(cls, samplings: Rows[Sampling], coupled: bool = False) -> Steps | None:
        """None: nobody samples."""
        sampled = [sampling.steps for sampling in samplings if not sampling.greedy]
        return cls(len(samplings) > 1, any(map(any, sampled)), coupled) if sampled else None


class RowSamplings:
    """How each of so many rows samples, on the device."""

    def __init__(self, rows: int, vocab_size: int, device: torch.device):
        self.vocab_size = vocab_size
        # temperature, top_k, top_p, min_p; and in the same memory, as whole numbers, coins and noise
        self.lines = torch.zeros(rows, COLUMNS, dtype=torch.float64, pin_memory=device.type == "cuda")
        self.sheet = torch.zeros(rows, COLUMNS, dtype=torch.float64, device=device)
        self.coins, self.noise = self.sheet.view(torch.int64)[:, 4:].unbind(1)  # [rows] each
        self.written, self.written_states = self.lines.numpy(), self.lines.view(torch.int64).numpy()[:, 4:]

    def write(self, samplings: Rows[Sampling], sequences: Rows[Sequence | None]) -> None:
        """The host's part, for the first rows; None: nobody's. It has seen to it that the last lines are gone."""
        n = len(samplings)
        self.written[:n, :4] = [[s.temperature, s.top_k or self.vocab_size, s.top_p, s.min_p] for s in samplings]
        self.written_states[:n] = [(0, 0) if c is None else states_of(c) for c in sequences]
        self.sheet[:n].copy_(self.lines[:n], non_blocking=True)

    def count(self, B: int, new: Tensor | int, numbers: Tensor | int) -> None:
        """B rows have so many tokens more, for which they have taken so many random numbers."""
        sampled = self.sampled(B)
        self.coins[:B] += sampled * numbers * GOLDEN
        self.noise[:B] += sampled * new * GOLDEN

    def follow(self, others: RowSamplings, who: Tensor, mine: Tensor) -> None:
        """The rows that are `mine` [rows] go on with the numbers of these others' rows `who` [rows]."""
        for own, other in ((self.coins, others.coins), (self.noise, others.noise)):
            own.copy_(torch.where(mine, other[who], own))

    def sampled(self, B: int) -> Tensor:
        """Which of the first B rows are not greedy."""
        return self.sheet[:B, 0] > 0

    def uniforms(self, B: int, count: int, first: Tensor | None = None) -> Tensor:
        """The next `count` random numbers of B rows, after the `first` ones [B]: [B, count]."""
        states = self.coins[:B] if first is None else self.coins[:B] + first * GOLDEN
        return uniforms(states, count)

    def probs(self, logits: Tensor, best: Tensor, steps: Steps) -> Tensor:
        """What B rows sample from, [B, T, V], where `best` [B, T] are the best tokens (−1: NaN)."""
        numbers = self.sheet[: len(logits), :4, None, None].unbind(1)  # [B, 1, 1] each
        temperature, top_k, top_p, min_p = numbers
        temperature = torch.where(temperature > 0, temperature, 1.0)
        if steps.cuts:
            scores = logits.to(precise(logits))
            cuts = top_k.long().clamp(min=1), top_p, min_p  # 0 in rows of padding
            p = truncate(scores / temperature.to(scores.dtype), *cuts)
        else:
            p = softmax(logits, temperature.flatten())
        if steps.mixed:
            certain = torch.arange(p.shape[-1], device=p.device) == best[..., None]
            p = torch.where(self.sampled(len(p))[:, None, None], p, certain.to(p.dtype))
        return p

    def own_choices(self, logits: Tensor, best: Tensor, ahead: Tensor | int, steps: Steps) -> Tensor:
        """What coupled rows emit by logits [B, T, V], so many positions `ahead` [B, T] of the next one: [B, T]. Greedy
        rows, and those with NaN, keep their `best` [B, T]."""
        p = self.probs(logits, best, steps)
        steps_on = signed(ahead * GOLDEN) if isinstance(ahead, int) else ahead * GOLDEN
        chosen = coupled(p, self.noise[: len(p), None] + steps_on)
        return torch.where(self.sampled(len(p))[:, None] & (best >= 0), chosen, best)

    def with_noise(self, logits: Tensor, ids: Tensor, ahead: Tensor) -> Tensor:
        """A head's logits [B, w, v] of the tokens `ids` [v], so many positions `ahead` [w] of the next one, with T · g:
        trained.with_noise on the device."""
        temperature, noise = self.sheet[: len(logits), 0, None, None], self.noise[: len(logits), None]
        return noisy(logits, temperature, noise + ahead * GOLDEN, ids)


def states_of(sequence: Sequence) -> tuple[int, int]:
    """Where its random numbers and its noise are."""
    noise = 0 if sequence.noise is None else signed(sequence.noise + len(sequence.tokens) * GOLDEN)
    return sequence.coins.state if sequence.coins else 0, noise


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
    p = samplings.probs(logits, best, steps)  # [B, n + 1, V]
    if unavailable(p.device) is None and p.dtype == torch.float32 and rule == "token":
        return judge_by_kernels(p, best, drafts, k, chains, samplings)
    B, n = drafts.tokens.shape
    there = drafts.tokens >= 0
    tokens, parents = drafts.tokens.clamp(min=0), torch.where(there, drafts.parents, -1)
    lengths, node = there.sum(1), torch.arange(max(n, k + 1), device=best.device)
    first = torch.zeros_like(lengths) if drafts.q is None else lengths * drafts.sampled
    u = samplings.uniforms(B, n + 1, first)
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


# ---- the kernels ----


@jit
def _accept(drafts, target, u, outs, n, k, V, CHAINS: constexpr, DEPTH: constexpr, N: constexpr, COLUMNS: constexpr):
    """One draft: which of its nodes pass, and the way down from the root along those that do."""
    tokens, parents, q, sampled = drafts
    p, best, temperature = target
    path, run, end, count, report = outs
    row, i, slots = tl.program_id(0).to(tl.int64), tl.arange(0, N), n + 1
    token = tl.load(tokens + row * n + i, mask=i < n, other=-1)
    real = token >= 0
    token = tl.maximum(token, 0)
    parent = tl.where(real, tl.load(parents + row * n + i, mask=i < n, other=-1), -1)
    greedy = tl.load(temperature + row * COLUMNS) == 0
    given = tl.load(p + (row * slots + parent + 1) * V + token, mask=real, other=0.0).to(tl.float32)
    hit = token == tl.load(best + row * slots + parent + 1, mask=i < n, other=-1)
    given = tl.where(greedy, hit.to(tl.float32), given)
    drawn = tl.full([N], 1.0, tl.float32)
    if q is not None:
        use = real & (tl.load(sampled + row) > 0)
        drawn = tl.load(q + (row * n + i) * V + token, mask=use, other=1.0).to(tl.float32)
    coin = tl.load(u + row * slots + i, mask=i < n, other=1.0)
    if CHAINS:
        passed = (coin < tl.where(given < drawn, given / drawn, 1.0)) & real
        chances = given
    else:  # rejected siblings take their tokens' mass away
        j = i[None, :]
        elder = (parent[:, None] == parent[None, :]) & (j < i[:, None]) & real[None, :]
        chances = given
        again = tl.sum((elder & (token[:, None] == token[None, :])).to(tl.int32), 1) > 0
        given = tl.where(again | (real == 0), 0.0, given)
        left = 1 - tl.sum(tl.where(elder, given[None, :], 0.0), 1)
        passed = (coin * left < given) & real
        passed = passed & (tl.sum((elder & passed[None, :]).to(tl.int32), 1) == 0)  # the eldest that would pass
    accepted, last, found = tl.zeros([N], tl.int32), -1, 0
    for depth in tl.static_range(DEPTH):
        node = tl.min(tl.where(passed & (parent == last), i, N), 0)
        here = (node < N) & (found == depth)
        tl.store(path + row * DEPTH + depth, tl.where(here, node, depth).to(tl.int64))
        tl.store(run + row * (DEPTH + 1) + depth, tl.sum(tl.where((i == node) & here, token, 0), 0))
        accepted += ((i == node) & here).to(tl.int32)
        last = tl.where(here, node, last)
        found += here.to(tl.int32)
    tl.store(run + row * (DEPTH + 1) + DEPTH, row * 0)
    tl.store(end + row, last.to(tl.int64))
    tl.store(count + row, found.to(tl.int64))
    line = report + row * (3 * n + 1) + i
    tl.store(line, accepted.to(tl.float64), mask=i < n)
    tl.store(line + n, chances.to(tl.float64), mask=i < n)
    tl.store(line + 2 * n, drawn.to(tl.float64), mask=i < n)


@jit
def _uncovered(drafts, p, end, row, page, n, V, PAGE: constexpr):
    """One page of what the target gives after the last accepted node, and of what the draft left of that: [p − q]₊, or
    where it was not sampled all but the tokens that were guessed there."""
    tokens, parents, q, sampled = drafts
    i = page * PAGE + tl.arange(0, PAGE)
    last = tl.load(end + row)
    whole = tl.load(p + (row * (n + 1) + last + 1) * V + i, mask=i < V, other=0.0).to(tl.float32)
    rest, drawn = whole, 0
    if q is not None:
        drawn = tl.load(sampled + row).to(tl.int32)
    for node in range(n):
        token = tl.load(tokens + row * n + node)
        refused = (token >= 0) & (tl.load(parents + row * n + node) == last)
        rest = tl.where(refused & (drawn == 0) & (i == token), 0.0, rest)
        if q is not None:
            covered = tl.load(q + (row * n + node) * V + i, mask=(i < V) & refused & (drawn > 0), other=0.0)
            rest = tl.maximum(rest - covered.to(tl.float32), 0.0)
    return whole, rest


@jit
def _page_rest(drafts, p, end, totals, n, V, PAGE: constexpr):
    row, page, pages = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    whole, rest = _uncovered(drafts, p, end, row, page, n, V, PAGE)
    tl.store(totals + (row * 2) * pages + page, tl.sum(rest.to(tl.float64), 0))
    tl.store(totals + (row * 2 + 1) * pages + page, tl.sum(whole.to(tl.float64), 0))


@jit
def _end(drafts, target, u, path_ends, totals, outs, n, V, pages, size):
    """The token after the accepted path, picked as in vocab._pick; and the end of the report."""
    tokens, _, q, sampled = drafts
    end, count = path_ends
    p, best, temperature = target
    run, taken, report = outs
    row, at, i, slots = tl.program_id(0).to(tl.int64), tl.arange(0, size.PAGES), tl.arange(0, size.PAGE), n + 1
    length, broken, first = 0, 0, 0
    for node in range(n):
        length += (tl.load(tokens + row * n + node) >= 0).to(tl.int32)
    for slot in range(slots):
        broken += (tl.load(best + row * slots + slot) < 0).to(tl.int32)
    if q is not None:
        first = tl.where(tl.load(sampled + row) > 0, length, 0)
    left = tl.load(totals + row * 2 * pages + at, mask=at < pages, other=0.0)
    nothing = tl.sum(left, 0) <= 0  # only by rounding: then from all that the target gives
    sums = tl.where(nothing, tl.load(totals + (row * 2 + 1) * pages + at, mask=at < pages, other=0.0), left)
    goal = tl.load(u + row * slots + length) * tl.sum(sums, 0)
    passed = (tl.cumsum(sums, 0) <= goal) & (at < pages)
    page = tl.minimum(tl.sum(passed.to(tl.int32), 0), tl.max(tl.where(sums > 0, at, 0), 0))
    before = tl.sum(tl.where(at < page, sums, 0.0), 0)
    whole, rest = _uncovered(drafts, p, end, row, page, n, V, size.PAGE)
    x = tl.where(nothing, whole, rest).to(tl.float64)
    place = tl.sum((tl.cumsum(x, 0) <= goal - before).to(tl.int32), 0)
    token = (page * size.PAGE + tl.minimum(place, tl.max(tl.where(x > 0, i, 0), 0))).to(tl.int64)
    certain = tl.maximum(tl.load(best + row * slots + tl.load(end + row) + 1), 0)
    token = tl.where(tl.load(temperature + row * size.COLUMNS) == 0, certain, tl.minimum(token, V - 1))
    found = tl.load(count + row)
    tl.store(run + row * (size.DEPTH + 1) + found, token)
    tl.store(count + row, found + 1)
    tl.store(taken + row, (first + length + 1).to(tl.int64))
    tl.store(report + row * (3 * n + 1) + 3 * n, tl.where(broken > 0, -1, token).to(tl.float64))


def judge_by_kernels(
    p: Tensor, best: Tensor, drafts: Drafts, k: int, chains: bool, samplings: RowSamplings
) -> Verdicts:
    (B, slots, V), n, pages = p.shape, drafts.tokens.shape[1], -(-p.shape[-1] // WIDE)
    new = lambda *shape, dtype=torch.long: torch.empty(*shape, dtype=dtype, device=p.device)  # noqa: E731
    path, run, end, count, taken = new(B, k), new(B, k + 1), new(B), new(B), new(B)
    report, totals = new(B, 3 * n + 1, dtype=torch.float64), new(B, 2, pages, dtype=torch.float64)
    q, sampled, first = None, None, None
    if drafts.q is not None:
        q, sampled = drafts.q.contiguous(), drafts.sampled.view(torch.uint8)
        first = (drafts.tokens >= 0).sum(1) * sampled
    given = drafts.tokens.contiguous(), drafts.parents.contiguous(), q, sampled
    p, target = p.contiguous(), (p.contiguous(), best.contiguous(), samplings.sheet)
    u = samplings.uniforms(B, slots, first)
    with torch.cuda.device_of(p):
        outs = path, run, end, count, report
        sizes = dict(CHAINS=chains, DEPTH=k, N=max(16, triton.next_power_of_2(n)), COLUMNS=COLUMNS)
        _accept[(B,)](given, target, u, outs, n, k, V, **sizes, num_warps=1)
        _page_rest[(B, pages)](given, p, end, totals, n, V, PAGE=WIDE, num_warps=4)
        size = constants(DEPTH=k, PAGE=WIDE, PAGES=triton.next_power_of_2(pages), COLUMNS=COLUMNS)
        _end[(B,)](given, target, u, (end, count), totals, (run, taken, report), n, V, pages, size, num_warps=4)
    return Verdicts(path, run, count, taken, report)
