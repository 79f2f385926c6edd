"""Fresh cases of set 12."""

from __future__ import annotations

import torch
from torch import Tensor

from .e12 import symmetric
from .fresh import Draw, fresh


def no_halves(weight: Tensor, bits: int, group: int) -> bool:
    """Nothing lies just between two integers, where one may round either way."""
    _, scale, _ = symmetric(weight, bits, group)
    blocks = weight.view(len(weight), -1, group) / scale[..., None]
    return bool(((blocks % 1 - 0.5).abs() > 1e-3).all())


def weights_case(draw: Draw, bits: int, *, outlier: bool = False, empty: bool = False) -> dict:
    rows, group, groups = draw.whole(1, 1 + draw.size), draw.whole(1, 2 + draw.size), draw.whole(1, 1 + draw.size // 2)

    def make():
        found = [draw.randint(-200, 200) / 100 for _ in range(rows * group * groups)]
        weight = torch.tensor(found, dtype=torch.float64).view(rows, group * groups)
        if outlier:
            weight[draw.randrange(rows), draw.randrange(group * groups)] = draw.choice([-9.0, 9.0])
        if empty:
            at = draw.randrange(groups)
            weight[draw.randrange(rows), at * group : (at + 1) * group] = 0
        return weight

    weight = draw.until(make, lambda found: no_halves(found, bits, group))
    return dict(weight=weight, bits=bits, group=group)


@fresh("12.symmetric", "8 bits")
def _(draw):
    return weights_case(draw, 8)


@fresh("12.symmetric", "fewer bits")
def _(draw):
    return weights_case(draw, draw.whole(2, 7))


@fresh("12.symmetric", "an outlier, of either sign")
def _(draw):
    return weights_case(draw, draw.whole(3, 8), outlier=True)


@fresh("12.symmetric", "a group of zeros", weight=0.5)
def _(draw):
    return weights_case(draw, draw.whole(3, 8), empty=True)


def scores_case(draw: Draw, count: int, tile: int, *, most: float = 4.0, shift: float = 0.0) -> dict:
    scores = draw.decimals(count, most=most) + shift
    values = torch.tensor([[float(draw.randint(-9, 9)) for _ in range(draw.dim)] for _ in range(count)]).double()
    return dict(scores=scores, values=values, tile=tile)


def dims(draw: Draw) -> Draw:
    draw.dim = draw.whole(1, 1 + draw.size)
    return draw


@fresh("12.online_softmax", "several tiles", weight=2)
def _(draw):
    tile = draw.whole(1, 1 + draw.size)
    return scores_case(dims(draw), draw.whole(tile + 1, 4 + 3 * draw.size), tile)


@fresh("12.online_softmax", "one tile", weight=0.5, count=6)
def _(draw):
    count = draw.whole(1, 2 + draw.size)
    return scores_case(dims(draw), count, count + draw.whole(0, 2))


@fresh("12.online_softmax", "very large and very small scores")
def _(draw):
    return scores_case(
        dims(draw), draw.whole(2, 6), draw.whole(1, 3), shift=draw.choice([-2000.0, -900.0, 900.0, 3000.0])
    )


@fresh("12.online_softmax", "scores far apart")
def _(draw):
    return scores_case(dims(draw), draw.whole(3, 8), draw.whole(1, 3), most=900.0)


@fresh("12.online_softmax", "many tiles in little memory", weight=0.5, count=1)
def _(draw):
    draw.dim = 1
    return scores_case(draw, 54, 3)


def gain_case(draw: Draw, fits) -> dict:
    def make():
        weights, context = draw.whole(1, 40) * 1000, draw.choice([0, draw.whole(1, 400)])
        sizes = dict(weights=weights, bits=draw.choice([3, 4, 8]), group=draw.choice([16, 32, 64, 100]))
        load = dict(batch=draw.whole(1, 2 + 6 * draw.size), context=context, kv_bytes=draw.whole(1, 60))
        return {**sizes, **load, "bandwidth": float(draw.whole(1, 20)), "peak": float(draw.whole(10, 900))}

    def regime(case):
        caches = case["batch"] * case["context"] * case["kv_bytes"]
        computing = 2 * case["weights"] * case["batch"] / case["peak"]
        before = (2 * case["weights"] + caches) / case["bandwidth"]
        after = (case["weights"] * (case["bits"] / 8 + 2 / case["group"]) + caches) / case["bandwidth"]
        return computing < after, computing < before, caches > 0

    return draw.until(make, lambda case: fits(*regime(case)))


@fresh("12.bytes_read", "reading takes the time, no caches")
def _(draw):
    return gain_case(draw, lambda after, before, cached: after and not cached)


@fresh("12.bytes_read", "caches are read too")
def _(draw):
    return gain_case(draw, lambda after, before, cached: after and cached)


@fresh("12.bytes_read", "arithmetic takes over")
def _(draw):
    return gain_case(draw, lambda after, before, cached: before and not after)


@fresh("12.bytes_read", "arithmetic all the time", weight=0.5, count=6)
def _(draw):
    return gain_case(draw, lambda after, before, cached: not before)
