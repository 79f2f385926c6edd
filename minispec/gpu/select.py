"""Which nodes and which tokens are the likeliest: what growing a tree asks at every depth, by a few small kernels.

Nodes are a few hundred scores. torch answers with two sorts, each of which is half a dozen launches. Here one kernel
counts for every score how many are ahead of it, and another writes down those with fewer than `count` ahead, in order.

Tokens are thousands of logits. torch's topk gives a row to one multiprocessor. Here a row is cut into pages, and a
second kernel takes the best of the pages' best.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..drafters import growth
from .attention import jit, tl, triton, unavailable

MOST_SCORES = 2048


@jit
def _rank(scores, ranks, n, MINE: tl.constexpr, OTHERS: tl.constexpr):
    """How many of a tree's scores are ahead of each of MINE of them."""
    tree = tl.program_id(0).to(tl.int64)
    i, j = tl.program_id(1) * MINE + tl.arange(0, MINE), tl.arange(0, OTHERS)
    mine = tl.load(scores + tree * n + i, mask=i < n, other=float("-inf"))
    other = tl.load(scores + tree * n + j, mask=j < n, other=float("-inf"))
    mine = tl.where(mine == mine, mine, float("-inf"))  # NaN would be behind nobody
    other = tl.where(other == other, other, float("-inf"))
    equal = (other[None, :] == mine[:, None]) & (j[None, :] < i[:, None])  # of equals the first are taken
    ahead = tl.sum(((other[None, :] > mine[:, None]) | equal).to(tl.int32), 1)
    tl.store(ranks + tree * n + i, ahead, mask=i < n)


@jit
def _gather(ranks, out, n, count, N: tl.constexpr):
    """Where ranks are below `count`, in ascending order."""
    tree, i = tl.program_id(0).to(tl.int64), tl.arange(0, N)
    kept = (tl.load(ranks + tree * n + i, mask=i < n, other=count) < count) & (i < n)
    place = tl.cumsum(kept.to(tl.int32), 0) - 1
    tl.store(out + tree * count + place, i.to(tl.int64), mask=kept)


def select(scores: Tensor, count: int) -> Tensor:
    """growth.likeliest for scores [B, N]: where the `count` highest are, in ascending order, [B, count]."""
    B, n = scores.shape
    if n > MOST_SCORES or unavailable(scores.device) is not None or scores.dtype != torch.float32:
        return growth.likeliest(scores, count)
    count, size, scores = min(count, n), max(16, triton.next_power_of_2(n)), scores.contiguous()
    ranks = torch.empty(B, n, dtype=torch.int32, device=scores.device)
    out = torch.empty(B, count, dtype=torch.long, device=scores.device)
    with torch.cuda.device_of(scores):
        _rank[(B, -(-n // 16))](scores, ranks, n, MINE=16, OTHERS=size, num_warps=4)
        _gather[(B,)](ranks, out, n, count, N=size, num_warps=4)
    return out


@jit
def _best_on_page(logits, values, places, tops, sums, V, PAGE: tl.constexpr, COUNT: tl.constexpr):
    """The COUNT highest of one page of a row of logits, best first, and what the page adds to Σ exp."""
    row, page, pages = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    i = tl.arange(0, PAGE)
    x = tl.load(logits + row * V + page * PAGE + i, mask=page * PAGE + i < V, other=float("-inf")).to(tl.float32)
    top = tl.max(x, 0)
    tl.store(tops + row * pages + page, top)
    tl.store(sums + row * pages + page, tl.sum(tl.exp(x - top), 0))
    first = (row * pages + page) * COUNT
    for n in tl.static_range(COUNT):
        place = tl.argmax(x, 0, tie_break_left=True)
        tl.store(values + first + n, tl.max(x, 0))
        tl.store(places + first + n, page * PAGE + place)
        x = tl.where(i == place, float("-inf"), x)


@jit
def _best_of_pages(values, places, tops, sums, ids, tokens, log_q, pages, COUNT: tl.constexpr, PAGES: tl.constexpr,
                   ALL: tl.constexpr):  # fmt: skip
    """The COUNT highest of a row, from those of its pages: which tokens they are, and their log-probabilities."""
    row, page, i = tl.program_id(0).to(tl.int64), tl.arange(0, PAGES), tl.arange(0, ALL)
    top = tl.load(tops + row * pages + page, mask=page < pages, other=float("-inf"))
    part = tl.load(sums + row * pages + page, mask=page < pages, other=0.0)
    highest = tl.max(top, 0)
    log_sum = highest + tl.log(tl.sum(part * tl.exp(top - highest), 0))
    there = i < pages * COUNT
    x = tl.load(values + row * pages * COUNT + i, mask=there, other=float("-inf"))
    for n in tl.static_range(COUNT):
        at = tl.argmax(x, 0, tie_break_left=True)
        place = tl.load(places + row * pages * COUNT + at)
        tl.store(tokens + row * COUNT + n, tl.load(ids + place))
        tl.store(log_q + row * COUNT + n, tl.max(x, 0) - log_sum)
        x = tl.where(i == at, float("-inf"), x)


def likeliest_tokens(logits: Tensor, ids: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` likeliest of the tokens ids [v] by logits [..., v], and their log-probabilities: [..., count] each,
    best first."""
    *shape, v = logits.shape
    if count > 16 or logits.dtype == torch.float64 or unavailable(logits.device) is not None:
        return growth.likeliest_tokens(logits, ids, count)
    logits, page = logits.reshape(-1, v), 512
    rows, pages = len(logits), -(-v // page)
    values, log_q = (logits.new_empty(rows, n, dtype=torch.float32) for n in (pages * count, count))
    tops, sums = logits.new_empty(2, rows, pages, dtype=torch.float32)
    places = torch.empty(rows, pages * count, dtype=torch.int32, device=logits.device)
    tokens = torch.empty(rows, count, dtype=torch.long, device=logits.device)
    with torch.cuda.device_of(logits):
        _best_on_page[(rows, pages)](logits, values, places, tops, sums, v, PAGE=page, COUNT=count, num_warps=4)
        _best_of_pages[(rows,)](
            values, places, tops, sums, ids, tokens, log_q, pages, COUNT=count, PAGES=triton.next_power_of_2(pages),
            ALL=triton.next_power_of_2(pages * count), num_warps=1,
        )  # fmt: skip
    return tokens.view(*shape, count), log_q.view(*shape, count)
