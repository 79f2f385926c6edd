"""Trees that grow while they are drafted: expand the likeliest nodes of every depth, keep the likeliest of all.

`grow` is the reference, one tree in plain Python; `grow_batch` does the same for many trees on tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..tree import Tree

Scored = tuple[int, float]  # a token and its log-probability under the draft
Expand = Callable[[int, Tensor | None, Tensor | None], tuple[Tensor, Tensor]]  # see `grow_tensors`


def grow(
    root_children: Sequence[Scored],
    expand: Callable[[Tree, list[int]], Sequence[Sequence[Scored]]],
    depth: int,
    width: int,
    budget: int,
) -> tuple[Tree, list[int]]:
    """A dynamic tree: at every depth expand the `width` likeliest nodes, in the end keep the `budget` likeliest of all.

    `expand(tree, nodes)` scores the children of all chosen nodes of one depth at once (one pass of the draft). A node's
    score is the summed log-probability of its path from the root. A child's is never higher than its parent's, so what
    is kept is a tree again. Returns it with `grown`: grown[i] is the number that node i had while growing.
    """
    if min(depth, width, budget) < 1:
        raise ValueError(f"depth={depth}, width={width}, budget={budget}: each is a whole number ≥ 1")
    tree, scores = Tree([], []), []

    def add(parent: int, scored: Sequence[Scored]) -> None:
        for token, log_prob in scored:
            if not log_prob <= 0:
                raise ValueError(f"log-probability {log_prob} of token {token}: give the logarithm of a probability")
            tree.tokens.append(int(token))
            tree.parents.append(parent)
            scores.append(log_prob + (scores[parent] if parent >= 0 else 0.0))

    start = 0  # the first node of the newest depth
    add(-1, root_children)
    for _ in range(depth - 1):
        newest = sorted(range(start, len(scores)), key=lambda node: -scores[node])
        chosen, start = sorted(newest[:width]), len(scores)
        if not chosen:
            break  # nothing was proposed at the last depth
        for node, scored in zip(chosen, expand(tree, chosen), strict=True):
            add(node, scored)
    return prune(tree, scores, budget)


def prune(tree: Tree, scores: Sequence[float], budget: int) -> tuple[Tree, list[int]]:
    """The `budget` nodes with the highest scores, and which they were. No child may score higher than its parent."""
    kept = sorted(sorted(range(len(scores)), key=lambda node: -scores[node])[:budget])  # ascending: parents first
    number = {-1: -1} | {old: new for new, old in enumerate(kept)}
    return Tree([tree.tokens[old] for old in kept], [number[tree.parents[old]] for old in kept]), kept


def likeliest(scores: Tensor, count: int) -> Tensor:
    """Where the `count` highest of scores [B, N] are, in ascending order. Of equal scores the first are taken.

    A parent comes before its child and scores no less. So the likeliest nodes of a tree are a tree.
    """
    return scores.sort(dim=1, descending=True, stable=True).indices[:, :count].sort(1).values


def within(scores: Tensor, kept: Tensor, budgets: Tensor | Sequence[int]) -> Tensor:
    """Of the nodes `kept` [B, n], in ascending order, the budgets[b] with the highest of scores [B, N], and N in the
    place of all others, at the end. A node that scores −∞ is not there at all."""
    score, node = scores.gather(1, kept), torch.arange(kept.shape[1], device=kept.device)
    theirs, own = score[:, None], score[..., None]
    ahead = ((theirs > own) | ((theirs == own) & (node < node[:, None]))).sum(-1)  # [B, n]: how many come before each
    out = (ahead >= torch.as_tensor(budgets, device=kept.device)[:, None]) | (score == -torch.inf)
    return kept.masked_fill(out, scores.shape[1]).sort(1).values


def grow_batch(expand: Expand, depth: int, width: int, budgets: Sequence[int]) -> list[Tree]:
    """`grow` for B trees at once, on tensors: tree b keeps its budgets[b] likeliest nodes."""
    if max(budgets) < 1:
        return [Tree([], []) for _ in budgets]
    return trees(*grow_tensors(expand, depth, width, max(budgets), budgets))


def trees(tokens: Tensor, parents: Tensor) -> list[Tree]:
    """What `grow_tensors` gives, [B, n] each, as lists. A row ends where its tokens are −1."""
    grown = []
    for row, above in zip(tokens.tolist(), parents.tolist(), strict=True):
        end = row.index(-1) if row[-1] < 0 else len(row)
        grown.append(Tree(row[:end], above[:end]))
    return grown


def grow_tensors(
    expand: Expand, depth: int, width: int, most: int, budgets: Tensor | Sequence[int] | None = None,
    depths: Tensor | None = None, select=None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Tokens and parents [B, n] of the `most` likeliest nodes of each tree.

    With `budgets` [B] a tree has so many at most, and with `depths` [B] none deeper than that; its row then ends with
    tokens −1.

    `expand(depth, tokens, parents)` gives the children of w nodes of every tree: tokens and log-probabilities [B, w, m]
    (or [B, 1, m] where all w have the same children). `tokens` [B, w] are those of the nodes, and `parents` [B, w] says
    of which node of the call before each is a child. The first call, with None for both, asks for the root's children.
    No number is looked at on the way, so a device may record it all. It may have a faster `select` than `likeliest`.
    """
    select = select or likeliest
    levels, grown = [], 0  # a level is the nodes of one depth: tokens, scores and parents, [B, n] each
    tokens = parents = None
    for level in range(depth):
        below, log_q = expand(level, tokens, parents)  # [B, w, m]
        if level == 0:  # the root is certain: its score is log 1
            score, number = torch.zeros_like(log_q[..., 0]), torch.full_like(below[..., 0], -1)  # [B, 1]
        scores = score[..., None] + log_q
        if depths is not None:
            scores = scores.masked_fill(level >= depths[:, None, None], -torch.inf)
        kept = select(scores.flatten(1), most)  # [B, n]: in the end no depth can have more
        child_of = kept // scores.shape[2]  # [B, n]: which of the w nodes is the parent
        tokens, score = below.expand_as(scores).flatten(1).gather(1, kept), scores.flatten(1).gather(1, kept)
        levels.append((tokens, score, number.gather(1, child_of)))
        chosen = select(score, width)  # [B, w]: the nodes to expand next
        tokens, score, parents = (x.gather(1, chosen) for x in (tokens, score, child_of))
        number, grown = grown + chosen, grown + kept.shape[1]
    tokens, scores, parents = (torch.cat(parts, 1) for parts in zip(*levels, strict=True))  # [B, N]
    kept = select(scores, most)  # [B, n]
    if budgets is not None:
        kept = within(scores, kept, budgets)
    tokens, parents = (F.pad(x, (0, 1), value=-1).gather(1, kept) for x in (tokens, parents))
    return tokens, torch.where(parents < 0, -1, torch.searchsorted(kept, parents))  # a kept node's parent is kept, too
