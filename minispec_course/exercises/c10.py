"""Fresh cases of set 10."""

from __future__ import annotations

import torch

from .fresh import Draw, fresh


def entries_case(draw: Draw, count: int, eps: float) -> dict:
    d, loudness = draw.whole(2, 2 + draw.size), torch.tensor([1.0, 4.0, 30.0]).double()[:, None, None]
    streams = draw.until(lambda: draw.decimals(3, count, d), lambda x: bool((x != 0).any(-1).all())) * loudness
    text = [draw.randrange(50) for _ in range(count + 1)]
    return dict(streams=streams, text=text, fc=draw.decimals(d, 3 * d), eps=eps)


@fresh("10.features", "several positions", weight=2)
def _(draw):
    return entries_case(draw, draw.whole(2, 2 + draw.size), 0.0)


@fresh("10.features", "one position", weight=0.5, count=6)
def _(draw):
    return entries_case(draw, 1, 0.0)


@fresh("10.features", "an ε that matters")
def _(draw):
    return entries_case(draw, draw.whole(1, 4), draw.choice([0.1, 0.5, 3.0]))


def anchors_case(draw: Draw, count: int) -> dict:
    length = draw.whole(max(1, count - 1), 3 + draw.size + count)
    return dict(anchors=draw.sample(range(length + 1), count), length=length, block=draw.whole(2, 3 + draw.size // 2))


@fresh("10.block_mask", "one block")
def _(draw):
    return anchors_case(draw, 1)


@fresh("10.block_mask", "several blocks", weight=2)
def _(draw):
    return anchors_case(draw, draw.whole(2, 3))


@fresh("10.block_mask", "the same anchor twice", weight=0.5, count=5)
def _(draw):
    case = anchors_case(draw, draw.whole(1, 2))
    return {**case, "anchors": [*case["anchors"], case["anchors"][0]]}


@fresh("10.block_mask", "an anchor at the beginning or at the end", weight=0.5, count=6)
def _(draw):
    case = anchors_case(draw, draw.whole(1, 2))
    edge = draw.choice([0, case["length"]])
    return {**case, "anchors": [edge, *(a for a in case["anchors"][1:] if a != edge)]}


def is_clear(joint: list[float], count: int) -> bool:
    """Whether the `count` largest are well above the others."""
    joint = sorted(joint, reverse=True)
    return count >= len(joint) or joint[count - 1] - joint[count] > 1e-6


def no_ties(first: list[float], after: list[list[float]], depth: int, width: int, budget: int) -> bool:
    """Whether every choice on the way is clear: which children, which nodes to expand, which to keep."""
    newest, everything, clear = [((), 1.0)], [], True
    for _ in range(depth):
        clear = clear and is_clear([p for _, p in newest], width)
        chosen, newest = sorted(newest, key=lambda node: -node[1])[:width], []
        for path, above in chosen:
            law = after[path[-1]] if path else first
            clear = clear and is_clear(law, width)
            best = sorted(range(len(law)), key=lambda x: -law[x])[:width]
            newest += [((*path, x), above * law[x]) for x in best]
        everything += [p for _, p in newest]
    return clear and budget <= len(everything) and is_clear(everything, budget)


def growing_case(draw: Draw, depth: int, width: int, tokens: int) -> dict:
    def make():
        first, *after = ([x / 100 for x in draw.parts(tokens, 100, least=4)] for _ in range(tokens + 1))
        return dict(first=first, after=after, depth=depth, width=width, budget=draw.whole(1, 4 + 2 * draw.size))

    case = draw.until(make, lambda case: no_ties(**case))
    return {**case, **{name: torch.tensor(case[name], dtype=torch.float64) for name in ("first", "after")}}


@fresh("10.dynamic_tree", "width two", weight=2)
def _(draw):
    return growing_case(draw, draw.whole(2, 3), 2, draw.whole(2, 3))


@fresh("10.dynamic_tree", "other widths")
def _(draw):
    return growing_case(draw, draw.whole(2, 3), draw.choice([1, 3]), 3)


@fresh("10.dynamic_tree", "one pass", weight=0.5, count=6)
def _(draw):
    return growing_case(draw, 1, draw.whole(1, 3), draw.whole(3, 4))


@fresh("10.dynamic_tree", "deep", weight=0.5, count=6)
def _(draw):
    return growing_case(draw, 4, 2, 2)
