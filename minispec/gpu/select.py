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
def top_of_pages(
    values,
    places,
    tops,
    sums,
    ids,
    tokens,
    log_q,
    row,
    there,
    at,
    pages,
    v,
    COUNT: tl.constexpr,
    PAGES: tl.constexpr,
    ALL: tl.constexpr,
):
    """The COUNT highest of some rows [ROWS], those that are there, from the highest of their pages: which tokens they
    are, and their log-probabilities, to `at` [ROWS] and after it. NaN may choose any token, but a token it is."""
    page, i = tl.arange(0, PAGES), tl.arange(0, ALL)
    used = there[:, None] & (page < pages)[None, :]
    top = tl.load(tops + row[:, None] * pages + page[None, :], mask=used, other=float("-inf"))  # [ROWS, PAGES]
    part = tl.load(sums + row[:, None] * pages + page[None, :], mask=used, other=0.0)
    highest = tl.max(top, 1)
    log_sum = highest + tl.log(tl.sum(part * tl.exp(top - highest[:, None]), 1))
    every, first = pages * COUNT, row * pages * COUNT
    candidate = there[:, None] & (i < every)[None, :]
    x = tl.load(values + first[:, None] + i[None, :], mask=candidate, other=float("-inf"))  # [ROWS, ALL]
    for n in tl.static_range(COUNT):
        best = tl.argmax(x, 1, tie_break_left=True)
        place = tl.load(places + first + tl.minimum(best, every - 1), mask=there, other=0)
        tl.store(tokens + at + n, tl.load(ids + tl.minimum(place, v - 1), mask=there, other=0), mask=there)
        tl.store(log_q + at + n, tl.max(x, 1) - log_sum, mask=there)
        x = tl.where(i[None, :] == best[:, None], float("-inf"), x)


@jit
def _best_of_pages(
    values,
    places,
    tops,
    sums,
    ids,
    tokens,
    log_q,
    pages,
    v,
    COUNT: tl.constexpr,
    PAGES: tl.constexpr,
    ALL: tl.constexpr,
):
    """One row."""
    row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    top_of_pages(
        values, places, tops, sums, ids, tokens, log_q, row, row >= 0, row * COUNT, pages, v, COUNT, PAGES, ALL
    )


MOST_CANDIDATES = 8192  # that one program holds


def best_of_each_page(logits: Tensor, count: int, together: int = 1) -> tuple[tuple[Tensor, ...], int, int]:
    """Of every page of logits [..., v]: the `count` highest, where they are, the highest, and Σ exp relative to it; how
    many pages a row has, and how many candidates, rounded up. A program is to hold those of `together` rows."""
    v, page = logits.shape[-1], 512
    candidates = lambda: triton.next_power_of_2(-(-v // page) * count)  # noqa: E731
    while together * candidates() > MOST_CANDIDATES and page < 8192:
        page *= 2
    logits = logits.reshape(-1, v).contiguous()
    rows, pages = len(logits), -(-v // page)
    values = logits.new_empty(rows, pages * count, dtype=torch.float32)
    places = torch.empty(rows, pages * count, dtype=torch.int32, device=logits.device)
    tops, sums = logits.new_empty(2, rows, pages, dtype=torch.float32)
    with torch.cuda.device_of(logits):
        _best_on_page[(rows, pages)](logits, values, places, tops, sums, v, PAGE=page, COUNT=count, num_warps=4)
    return (values, places, tops, sums), pages, candidates()


def likeliest_tokens(logits: Tensor, ids: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` likeliest of the tokens ids [v] by logits [..., v], and their log-probabilities: [..., count] each,
    best first."""
    *shape, v = logits.shape
    if count > 16 or logits.dtype == torch.float64 or unavailable(logits.device) is not None:
        return growth.likeliest_tokens(logits, ids, count)
    parts, pages, candidates = best_of_each_page(logits, count)
    log_q = torch.empty(*shape, count, dtype=torch.float32, device=logits.device)
    tokens = torch.empty(*shape, count, dtype=torch.long, device=logits.device)
    with torch.cuda.device_of(logits):
        _best_of_pages[(log_q.numel() // count,)](
            *parts,
            ids,
            tokens,
            log_q,
            pages,
            v,
            COUNT=count,
            PAGES=triton.next_power_of_2(pages),
            ALL=candidates,
            num_warps=1,
        )
    return tokens, log_q
