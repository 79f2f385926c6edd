"""Which scores of a few hundred are the highest: what growing a tree asks at every depth, as one small kernel.

torch answers with two sorts, each of which is half a dozen launches. Here a program holds all scores of one tree and
counts for each how many are ahead of it. Those with fewer than `count` ahead stay, in the order in which they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..drafters.growth import likeliest
from .attention import INTERPRETED, jit, tl, triton, unavailable

MOST_SCORES = 2048


@jit
def _select(scores, out, n, count, N: tl.constexpr, TILE: tl.constexpr):
    tree = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, N)
    mine = tl.load(scores + tree * n + i, mask=i < n, other=float("-inf"))
    mine = tl.where(mine == mine, mine, float("-inf"))  # NaN would be behind nobody
    ahead = tl.zeros([N], tl.int32)
    for start in tl.range(0, n, TILE):
        j = start + tl.arange(0, TILE)
        other = tl.load(scores + tree * n + j, mask=j < n, other=float("-inf"))
        other = tl.where(other == other, other, float("-inf"))
        equal = (other[None, :] == mine[:, None]) & (j[None, :] < i[:, None])  # of equals the first are taken
        ahead += tl.sum(((other[None, :] > mine[:, None]) | equal).to(tl.int32), 1)
    kept = (ahead < count) & (i < n)
    place = tl.cumsum(kept.to(tl.int32), 0) - 1
    tl.store(out + tree * count + place, i.to(tl.int64), mask=kept)


def select(scores: Tensor, count: int) -> Tensor:
    """growth.likeliest for scores [B, N]: where the `count` highest are, in ascending order, [B, count]."""
    B, n = scores.shape
    if n > MOST_SCORES or unavailable(scores.device) is not None or scores.dtype != torch.float32:
        return likeliest(scores, count)
    count = min(count, n)
    out = torch.empty(B, count, dtype=torch.long, device=scores.device)
    size = max(16, triton.next_power_of_2(n))
    _select[(B,)](scores.contiguous(), out, n, count, N=size, TILE=min(64, size), num_warps=4 if size <= 256 else 8)
    return out


def best_of_many(scores: Tensor, count: int, page: int = 512) -> tuple[Tensor, Tensor]:
    """scores.topk(count) along a long last dimension [..., V], first on each page of it: one page keeps one
    multiprocessor busy, and all of it would, too."""
    V = scores.shape[-1]
    if V % page or 4 * page >= V or count > page // 4 or INTERPRETED:
        return scores.topk(count)
    best, where = scores.unflatten(-1, (-1, page)).topk(count)  # [..., pages, count]
    where = where + torch.arange(0, V, page, device=scores.device)[:, None]
    best, at = best.flatten(-2).topk(count)
    return best, where.flatten(-2).gather(-1, at)
