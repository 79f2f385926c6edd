"""Trees that grow while they are drafted: expand the likeliest nodes of every depth, keep the likeliest of all.

`grow` is the reference, one tree in plain Python; `grow_batch` does the same for many trees on tensors.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from ..tree import Draft, Tree

Scored = tuple[int, float]  # a token and its log-probability under the draft
Expand = Callable[[int, Tensor | None, Tensor | None], tuple[Tensor, Tensor]]  # see `grow_tensors`


# If nobody says how many nodes a tree has. On a GPU a pass over 16 tokens costs what a pass over one does, and one over
# 32 took 1.03 times as long. On two Neoverse-N1 cores SmolLM2 took 1.1, 1.2, 1.4, 1.5 and 2 times as long for 3, 4, 5,
# 6 and 8 tokens: there few nodes, and none that is reached with a probability below LEAST, emit the most per second.
NODES = {"cuda": 15, "cpu": 5}
EAGLE_NODES = {"cuda": 31, "cpu": 5}  # its drafts cost the most to make
LEAST = 0.15


def tree_size(nodes: int | None, device, known: dict[str, int] = NODES) -> int:
    return known[torch.device(device).type] if nodes is None else nodes


def grow(
    root_children: Sequence[Scored], expand: Callable[[Tree, list[int]], Sequence], depth: int, width: int, budget: int
) -> Tree:
    """A dynamic tree: at every depth expand the `width` likeliest nodes, in the end keep the `budget` likeliest of all.

    `expand(tree, nodes)` scores the children of all chosen nodes of one depth at once (one pass of the draft). A node's
    score is the summed log-probability of its path from the root. A child's is never higher than its parent's, so what
    is kept is a tree again.
    """
    tree, scores, start = Tree([], []), [], 0  # start: the first node of the newest depth
    expanded = [(-1, root_children)]
    for level in range(depth):
        if level > 0:
            newest = sorted(range(start, len(scores)), key=lambda node: -scores[node])
            chosen, start = sorted(newest[:width]), len(scores)
            expanded = zip(chosen, expand(tree, chosen), strict=True) if chosen else ()
        for parent, scored in expanded:
            for token, log_prob in scored:
                tree.tokens.append(int(token))
                tree.parents.append(parent)
                scores.append(log_prob + (scores[parent] if parent >= 0 else 0.0))
    kept = sorted(sorted(range(len(scores)), key=lambda node: -scores[node])[:budget])  # ascending: parents first
    number = {-1: -1} | {old: new for new, old in enumerate(kept)}
    return Tree([tree.tokens[old] for old in kept], [number[tree.parents[old]] for old in kept])


def likeliest(scores: Tensor, count: int, budgets: Tensor | Sequence[int] | None = None) -> Tensor:
    """Where the `count` highest of scores [B, N] are, in ascending order. Of equal scores the first are taken: a parent
    comes before its child and scores no less, so the likeliest nodes of a tree are a tree. With budgets [B] only so
    many of each row, and none that scores −∞, since it is not there at all: N, at the end, stands for the others."""
    N, ranked = scores.shape[1], scores.sort(dim=1, descending=True, stable=True)
    nodes = ranked.indices[:, :count]  # [B, n], best first
    if budgets is not None:
        rank = torch.arange(nodes.shape[1], device=nodes.device)
        out = rank >= torch.as_tensor(budgets, device=nodes.device)[:, None]
        nodes = nodes.masked_fill(out | (ranked.values[:, :count] == -torch.inf), N)
    return nodes.sort(1).values


def likeliest_tokens(logits: Tensor, ids: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` likeliest of the tokens ids [v] by logits [..., v], and their log-probabilities: [..., count] each,
    best first."""
    log_q, best = logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32)).topk(count)
    return ids[best], log_q


def level(below: Tensor, log_q: Tensor, score: Tensor, number: Tensor, grown: int, width: int, most: int):
    """The children of w nodes [B, w] with these scores and numbers, m each: tokens, scores and parents [B, n] of all
    that can be among the `most` of the whole tree; and of the `width` likeliest, which are to be expanded next, tokens,
    scores, numbers, and which of the w is the parent [B, width]. `grown` nodes have numbers already."""
    scores = score[..., None] + log_q
    kept = likeliest(scores.flatten(1), most)  # [B, n]: in the end no depth can have more
    child_of = kept // scores.shape[2]  # [B, n]
    tokens, score = below.expand_as(scores).flatten(1).gather(1, kept), scores.flatten(1).gather(1, kept)
    chosen = likeliest(score, width)
    next_ones = (tokens.gather(1, chosen), score.gather(1, chosen), grown + chosen, child_of.gather(1, chosen))
    return (tokens, score, number.gather(1, child_of)), next_ones


def grow_batch(expand: Expand, depth: int, width: int, budgets: Sequence[int], least: float = 0.0) -> list[Draft]:
    """`grow` for B trees at once, on tensors: tree b keeps its budgets[b] likeliest nodes, and of these the ones that
    are reached with a probability of `least` or more."""
    if max(budgets) < 1:
        return [Draft([]) for _ in budgets]
    tokens, parents = grow_tensors(expand, depth, width, max(budgets), budgets, least=least, early=True)  # [B, n]
    ends = (tokens >= 0).sum(1).tolist()
    each = zip(tokens.tolist(), parents.tolist(), ends, strict=True)
    return [Draft(row[:end], None, above[:end]) if end else Draft([]) for row, above, end in each]


def promising(nodes: list, newest: Tensor, most: int, least: float) -> Tensor:
    """Where the nodes are that may have a child worth keeping, of those with the scores `newest` [B, w]: [B, n], for n
    as many as any tree has. A child scores no more than its parent, and of equals the earlier one is kept."""
    scores = torch.cat([score for _, score, _ in nodes], 1)  # [B, N]
    worst_kept = scores.topk(most, 1).values[:, -1:] if scores.shape[1] >= most else -torch.inf
    able = (newest > worst_kept) & (newest >= (math.log(least) if least > 0 else -torch.inf))  # [B, w]
    return likeliest(newest.masked_fill(~able, -torch.inf), int(able.sum(1).max()))


def level_ends(nodes: Sequence[tuple[Tensor, ...]]) -> tuple[int, ...]:
    """Where the nodes of the first 0, 1, 2, … depths end."""
    return tuple(accumulate((new[0].shape[1] for new in nodes), initial=0))


@lru_cache
def numbers(values: tuple[int, ...], device: torch.device) -> Tensor:
    """On the device once and for all: a captured launch cannot fetch them from the host."""
    return torch.tensor(values, device=device)


def grow_tensors(
    expand: Expand,
    depth: int,
    width: int,
    most: int,
    budgets: Tensor | Sequence[int] | None = None,
    depths: Tensor | None = None,
    grow_level=level,
    prune=None,
    least: float = 0.0,
    early: bool = False,
) -> tuple[Tensor, Tensor]:
    """Tokens and parents [B, n] of the `most` likeliest nodes of each tree. With `budgets` [B] a tree has so many at
    most, and with `depths` [B] none deeper than that; its row then ends with tokens −1.

    `expand(depth, tokens, parents)` gives the children of w nodes of every tree: tokens and log-probabilities [B, w, m]
    (or [B, 1, m] where all w have the same children). `tokens` [B, w] are those of the nodes, and `parents` [B, w] says
    of which node of the call before each is a child. The first call, with None for both, asks for the root's children.
    The host synchronises nowhere on the way, so a device may capture it all, with a faster `level` and `pruned`. With
    `early`, on a CPU, a node is expanded only if a child of it might be kept.
    """
    nodes, grown = [], 0  # of every depth: tokens, scores and parents, [B, n] each; and how many they are
    tokens = child_of = None
    for depth_so_far in range(depth):
        below, log_q = expand(depth_so_far, tokens, child_of)  # [B, w, m]
        if depth_so_far == 0:  # the root is certain: its score is log 1
            score, number = torch.zeros_like(log_q[..., 0]), torch.full_like(below[..., 0], -1)  # [B, 1]
        new, (tokens, score, number, child_of) = grow_level(below, log_q, score, number, grown, width, most)
        if least > 0:
            new = new[0], new[1].masked_fill(new[1] < math.log(least), -torch.inf), new[2]
        nodes.append(new)
        grown += new[0].shape[1]
        if early and new[1].device.type == "cpu":
            chosen = promising(nodes, score, most, least)
            if not chosen.numel():
                break
            tokens, score, number, child_of = (x.gather(1, chosen) for x in (tokens, score, number, child_of))
    return (prune or pruned)(nodes, most, budgets, depths)


def pruned(
    nodes: Sequence[tuple[Tensor, Tensor, Tensor]],
    most: int,
    budgets: Tensor | Sequence[int] | None = None,
    depths: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """What `grow_tensors` gives, of the nodes that were grown at every depth: tokens, scores, parents, [B, n] each."""
    tokens, scores, parents = (torch.cat(parts, 1) for parts in zip(*nodes, strict=True))  # [B, N]
    if depths is not None:  # all trees are taken so deep, as if none went deeper, …
        ends = numbers(level_ends(nodes), scores.device)[depths.clamp(max=len(nodes))][:, None]  # [B, 1]
        number = torch.arange(scores.shape[1], device=scores.device)
        scores = scores.masked_fill(number >= ends.amax(), -torch.inf)
    kept = likeliest(scores, most, budgets)  # [B, n]
    if depths is not None:  # … and then each is cut to its own depth, as by tree.cut
        kept = kept.masked_fill(kept >= ends, scores.shape[1])
    tokens, parents = (F.pad(x, (0, 1), value=-1).gather(1, kept) for x in (tokens, parents))
    return tokens, torch.where(parents < 0, -1, torch.searchsorted(kept, parents))  # a kept node's parent is kept, too
