"""Token trees of B sequences that grow on the device, depth by depth, for a drafter whose every depth is a pass.

    trees = growing(…)
    tokens, parents, sees = trees.add(logits, fresh)    the root's children, of which `width` are expanded next
    tokens, parents, sees = trees.add(logits)           the children of those that were, after a pass over them …
    trees.prune()                                       the `most` likeliest nodes of all

`parents` says which row of the last pass each of the tokens follows, and `sees` to which entries of this draft it
attends: those that its parent attends to, and itself. `Growing` is plain torch, dozens of launches at every depth.
`GrowingByKernels` does the same by two, and by one in the end.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..drafters import growth
from .attention import jit, tl, triton
from .entry import at_places
from .select import MOST_SCORES, best_of_each_page, select, top_of_pages

FEW_NODES = 256


class Growing:
    """The twin: what `growth.level` and `growth.pruned` say."""

    def __init__(self, ids: Tensor, width: int, most: int):
        self.ids, self.width, self.most = ids, width, most  # ids [v]: which tokens the logits are those of
        self.nodes = []  # of every depth: tokens, scores and parents, [B, n] each
        self.grown = 0  # how many they are

    def add(self, logits: Tensor, fresh: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """From logits [B, w, v] after the w nodes that were expanded last to the next ones: tokens [B, width], which
        of the w each follows [B, width], and what they attend to [B, width, E].

        With `fresh` [B] there is only the root: the last of the first fresh[b] rows, at least the first one."""
        tokens, log_q = growth.likeliest_tokens(logits, self.ids, self.width)  # [B, w, m]
        row = 0
        if fresh is not None:  # the root is certain: its score is log 1
            row = (fresh - 1).clamp(min=0)[:, None]  # [B, 1]
            tokens, log_q = at_places(tokens, row), at_places(log_q, row)
            self.score, self.number = torch.zeros_like(log_q[..., 0]), torch.full_like(tokens[..., 0], -1)
            self.sees = torch.zeros(len(logits), 1, 0, dtype=torch.bool, device=logits.device)
        new, (tokens, self.score, self.number, child_of) = growth.level(
            tokens, log_q, self.score, self.number, self.grown, self.width, self.most
        )
        self.nodes.append(new)
        self.grown += new[0].shape[1]
        (B, w), itself = tokens.shape, torch.eye(tokens.shape[1], dtype=torch.bool, device=logits.device)
        self.sees = torch.cat([at_places(self.sees, child_of), itself.expand(B, w, w)], 2)
        return tokens, row + child_of, self.sees

    def prune(self, budgets: Tensor | None = None, depths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """growth.pruned: tokens and parents [B, n]."""
        return growth.pruned(self.nodes, self.most, budgets, depths)


@jit(do_not_specialize=["rows", "w", "grown", "entries", "total"])
def _grow(
    values,
    places,
    tops,
    sums,
    ids,
    fresh,
    score,
    number,
    sees,
    tokens,
    scores,
    parents,
    log_q,
    next_tokens,
    next_score,
    next_number,
    follows,
    next_sees,
    rows,
    w,
    pages,
    v,
    total,
    grown,
    entries,
    width,
    ROOT: tl.constexpr,
    COUNT: tl.constexpr,
    ROWS: tl.constexpr,
    PAGES: tl.constexpr,
    ALL: tl.constexpr,
    CHILDREN: tl.constexpr,
    ENTRIES: tl.constexpr,
):
    """One tree: COUNT children of each of w nodes, from the likeliest tokens of every page of their logits."""
    tree, r = tl.program_id(0).to(tl.int64), tl.arange(0, ROWS)
    root = tree * 0
    if ROOT:
        root = tl.maximum(tl.load(fresh + tree), 1) - 1
    first, scratch, expanded = tree * total + grown, tree * w * COUNT, tree * w
    top_of_pages(
        values,
        places,
        tops,
        sums,
        ids,
        tokens + first,
        log_q + scratch,
        tree * rows + root + r,
        r < w,
        r * COUNT,
        pages,
        v,
        COUNT,
        PAGES,
        ALL,
    )
    tl.debug_barrier()

    # Scores: a child's is that of its node and its own. All children are noted.
    i, j = tl.arange(0, CHILDREN), tl.arange(0, CHILDREN)
    there, node, children = i < w * COUNT, i // COUNT, w * COUNT
    mine = tl.load(log_q + scratch + i, mask=there, other=0.0)
    other = tl.load(log_q + scratch + j, mask=j < children, other=0.0)
    above = tl.full([CHILDREN], -1, tl.int64)
    if not ROOT:
        mine += tl.load(score + expanded + node, mask=there, other=0.0)
        other += tl.load(score + expanded + j // COUNT, mask=j < children, other=0.0)
        above = tl.load(number + expanded + node, mask=there, other=-1)
    tl.store(scores + first + i, mine, mask=there)
    tl.store(parents + first + i, above, mask=there)

    # The `width` with the fewest ahead of them are expanded next.
    mine = tl.where(there & (mine == mine), mine, float("-inf"))  # NaN would be behind nobody
    other = tl.where((j < children) & (other == other), other, float("-inf"))
    equal = (other[None, :] == mine[:, None]) & (j[None, :] < i[:, None])
    ahead = tl.sum(((other[None, :] > mine[:, None]) | equal).to(tl.int32), 1)
    kept = (ahead < width) & there
    place = tree * width + tl.cumsum(kept.to(tl.int32), 0) - 1
    tl.store(next_tokens + place, tl.load(tokens + first + i, mask=there, other=0), mask=kept)
    tl.store(next_score + place, mine, mask=kept)
    tl.store(next_number + place, (grown + i).to(tl.int64), mask=kept)
    tl.store(follows + place, root + node, mask=kept)
    tl.debug_barrier()

    # Each attends to what its parent attends to, and to itself.
    r, entry = tl.arange(0, ROWS), tl.arange(0, ENTRIES)
    real, old = (r < width)[:, None], (entry < entries)[None, :]
    parent = tl.load(follows + tree * width + r, mask=r < width, other=0) - root
    seen = tl.load(sees + (expanded + parent)[:, None] * entries + entry[None, :], mask=real & old, other=0)
    seen = tl.where(old, seen, (entry[None, :] - entries == r[:, None]).to(seen.dtype))
    at = (tree * width + r)[:, None] * (entries + width) + entry[None, :]
    tl.store(next_sees + at, seen, mask=real & (entry < entries + width)[None, :])


@jit
def _counting(scores, node, within):
    """Scores of nodes; −∞ for those that do not count, and for NaN, which would be behind nobody."""
    score = tl.load(scores + node, mask=node < within, other=float("-inf"))
    return tl.where(score == score, score, float("-inf"))


@jit
def _prune(
    tokens,
    scores,
    parents,
    budgets,
    depths,
    ends,
    numbers,
    out_tokens,
    out_parents,
    n,
    most,
    trees,
    levels,
    budget_stride,
    depth_stride,
    HAS_BUDGETS: tl.constexpr,
    HAS_DEPTHS: tl.constexpr,
    TREES: tl.constexpr,
    N: tl.constexpr,
    CHUNK: tl.constexpr,
    MOST: tl.constexpr,
):
    """One tree of n nodes: those with fewer than `most` ahead of them, in order."""
    tree, i, count = tl.program_id(0).to(tl.int64), tl.arange(0, N), tl.minimum(most, n)
    first, within, own = tree * n, n, n
    if HAS_DEPTHS:  # all are taken so deep, as if none went deeper, and then each is cut to its own depth
        every = tl.arange(0, TREES)
        deepest = tl.max(tl.load(depths + every * depth_stride, mask=every < trees, other=0), 0)
        within = tl.load(ends + tl.minimum(deepest, levels)).to(tl.int32)
        own = tl.load(ends + tl.minimum(tl.load(depths + tree * depth_stride), levels)).to(tl.int32)
    mine = _counting(scores + first, i, within)
    ahead = tl.zeros([N], tl.int32)
    for start in tl.range(0, n, CHUNK):
        j = start + tl.arange(0, CHUNK)
        other = _counting(scores + first, j, within)
        equal = (other[None, :] == mine[:, None]) & (j[None, :] < i[:, None])  # of equals the first are taken
        ahead += tl.sum(((other[None, :] > mine[:, None]) | equal).to(tl.int32), 1)
    kept = (i < own) & (i < n) & (ahead < most)
    if HAS_BUDGETS:
        kept = kept & (ahead < tl.load(budgets + tree * budget_stride)) & (mine > float("-inf"))
    place = tl.cumsum(kept.to(tl.int32), 0) - 1
    tl.store(numbers + first + i, place, mask=i < n)
    tl.debug_barrier()
    parent = tl.load(parents + first + i, mask=kept, other=-1)  # a kept node's parent is kept, too
    parent = tl.load(numbers + first + parent, mask=parent >= 0, other=-1).to(tl.int64)
    tl.store(out_tokens + tree * count + place, tl.load(tokens + first + i, mask=kept, other=0), mask=kept)
    tl.store(out_parents + tree * count + place, parent, mask=kept)
    rest = tl.arange(0, MOST)
    unused = (rest >= tl.sum(kept.to(tl.int32), 0)) & (rest < count)
    tl.store(out_tokens + tree * count + rest, tl.full([MOST], -1, tl.int64), mask=unused)
    tl.store(out_parents + tree * count + rest, tl.full([MOST], -1, tl.int64), mask=unused)


def prune(
    tokens: Tensor,
    scores: Tensor,
    parents: Tensor,
    ends: tuple[int, ...],
    most: int,
    budgets: Tensor | None = None,
    depths: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """growth.pruned, of all nodes [B, n], of which those of every depth end at `ends`."""
    (B, n), count = tokens.shape, min(most, tokens.shape[1])
    out = tokens.new_empty(B, count), tokens.new_empty(B, count)
    size = max(16, triton.next_power_of_2(n))
    limits = budgets, depths, None if depths is None else growth.numbers(ends, tokens.device)
    with torch.cuda.device_of(tokens):
        _prune[(B,)](
            tokens,
            scores,
            parents,
            *(tokens if limit is None else limit for limit in limits),
            tokens.new_empty(B, n, dtype=torch.int32),
            *out,
            n,
            most,
            B,
            len(ends) - 1,
            *(0 if limit is None else limit.stride(0) for limit in limits[:2]),
            HAS_BUDGETS=budgets is not None,
            HAS_DEPTHS=depths is not None,
            TREES=triton.next_power_of_2(B),
            N=size,
            CHUNK=max(16, min(size, 8192 // size)),
            MOST=triton.next_power_of_2(count),
            num_warps=4,
        )
    return out


def pruned(nodes, most: int, budgets: Tensor | None = None, depths: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """growth.pruned, by one kernel if the nodes are few: one program compares all of them with each other."""
    ends = growth.level_ends(nodes)
    if ends[-1] > FEW_NODES or nodes[0][1].dtype != torch.float32:
        return growth.pruned(nodes, most, budgets, depths, select)
    return prune(*(torch.cat(parts, 1) for parts in zip(*nodes, strict=True)), ends, most, budgets, depths)


class GrowingByKernels(Growing):
    """The same by kernels. All nodes of a depth are noted, also those that can no longer be among the `most`, which
    changes nothing."""

    def __init__(self, ids: Tensor, width: int, most: int, depth: int):
        super().__init__(ids, width, most)
        self.ends = tuple(width + max(0, n - 1) * width**2 if n else 0 for n in range(depth + 1))  # as level_ends

    @staticmethod
    def takes(dtype: torch.dtype, width: int, depth: int) -> bool:
        return dtype != torch.float64 and width <= 16 and width + (depth - 1) * width**2 <= MOST_SCORES

    def add(self, logits: Tensor, fresh: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        (B, rows, v), width, total, device = logits.shape, self.width, self.ends[-1], logits.device
        w = rows if fresh is None else 1
        new = lambda *shape, dtype=torch.long: torch.empty(*shape, dtype=dtype, device=device)  # noqa: E731
        if fresh is not None:
            self.tokens, self.scores, self.parents = new(B, total), new(B, total, dtype=torch.float32), new(B, total)
            self.score = self.number = self.sees = self.scores  # the root's are known: they are not read
            self.entries = 0
        together, entries = triton.next_power_of_2(max(w, width)), self.entries + width
        parts, pages, every = best_of_each_page(logits, width, together)
        chosen = new(B, width), new(B, width, dtype=torch.float32), new(B, width), new(B, width)
        sees = new(B, width, entries, dtype=torch.bool)
        with torch.cuda.device_of(logits):
            _grow[(B,)](
                *parts,
                self.ids,
                self.ids if fresh is None else fresh,
                self.score,
                self.number,
                self.sees.view(torch.uint8),
                self.tokens,
                self.scores,
                self.parents,
                new(B, w * width, dtype=torch.float32),
                *chosen,
                sees.view(torch.uint8),
                rows,
                w,
                pages,
                v,
                total,
                self.grown,
                self.entries,
                width,
                ROOT=fresh is not None,
                COUNT=width,
                ROWS=together,
                PAGES=triton.next_power_of_2(pages),
                ALL=every,
                CHILDREN=max(16, triton.next_power_of_2(w * width)),
                ENTRIES=triton.next_power_of_2(entries),
                num_warps=4,
            )
        tokens, self.score, self.number, follows = chosen
        self.sees, self.entries, self.grown = sees, entries, self.grown + w * width
        return tokens, follows, sees

    def prune(self, budgets: Tensor | None = None, depths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return prune(self.tokens, self.scores, self.parents, self.ends, self.most, budgets, depths)


def growing(kernels, head, width: int, most: int, depth: int) -> Growing:
    """Trees of the `most` likeliest nodes, `depth` deep at the most, of the tokens that a head can propose: by kernels,
    if there are `kernels` and they can hold them."""
    if kernels and GrowingByKernels.takes(head.dtype, width, depth):
        return GrowingByKernels(head.head_ids, width, most, depth)
    return Growing(head.head_ids, width, most)
