"""Fresh cases of set 13."""

from __future__ import annotations

import torch

from .e13 import COMPUTE, LATENCY, MEMORY, Device, place
from .fresh import Draw, fresh

# ---- 13.pass_bytes --------------------------------------------------------------------------------------------------


def model(draw: Draw, *, tokens: int = 1, cached: bool = True, shared: bool = False) -> dict:
    """A Llama and a pass of it. shared: several query heads have one key/value head."""
    kv_heads = draw.whole(1, 1 + draw.size)
    heads = kv_heads * (draw.whole(2, 4) if shared else 1)
    widths = dict(hidden=draw.whole(2, 8 * draw.size), intermediate=draw.whole(2, 20 * draw.size))
    attention = dict(heads=heads, kv_heads=kv_heads, head_dim=draw.whole(1, 4 * draw.size))
    context = draw.whole(1, 40 * draw.size) if cached else 0
    return dict(
        layers=draw.whole(1, 1 + draw.size),
        **widths,
        **attention,
        vocab=draw.whole(5, 100 * draw.size),
        tokens=tokens,
        context=context,
        size=draw.choice([0.5, 1, 2, 4]),
    )


@fresh("13.pass_bytes", "no cache yet")
def _(draw):
    return model(draw, cached=False)


@fresh("13.pass_bytes", "a cache")
def _(draw):
    return model(draw)


@fresh("13.pass_bytes", "fewer key/value heads")
def _(draw):
    return model(draw, shared=True, cached=draw.chance(0.7))


@fresh("13.pass_bytes", "several new tokens")
def _(draw):
    return model(draw, tokens=draw.whole(2, 3 + 3 * draw.size), cached=draw.chance(0.7), shared=draw.chance(0.5))


# ---- 13.roofline ----------------------------------------------------------------------------------------------------


def kernel(draw: Draw, bound: str) -> dict:
    """A kernel that is bound by this, and clearly so. It computes something: FLOPs per second may be divided by."""

    def make():
        machine = dict(bandwidth=float(draw.whole(2, 20)), peak=float(draw.whole(20, 400)))
        read, flops = draw.whole(1, 200 * draw.size), draw.whole(1, 4000 * draw.size)
        best = max(read / machine["bandwidth"], flops / machine["peak"])
        slower = draw.whole(22, 160) if bound == LATENCY else draw.whole(10, 19)  # tenths of the least time
        return dict(read=read, flops=flops, seconds=round(best * slower / 10, 3), **machine)

    def clear(case):
        reading, computing = case["read"] / case["bandwidth"], case["flops"] / case["peak"]
        if case["seconds"] == 0 or abs(reading - computing) < 1e-3 * reading:
            return False
        _, found, share = place(**case)
        return found == bound and abs(share - 0.5) > 1e-3

    return draw.until(make, clear)


@fresh("13.roofline", "bound by memory")
def _(draw):
    return kernel(draw, MEMORY)


@fresh("13.roofline", "bound by arithmetic")
def _(draw):
    return kernel(draw, COMPUTE)


@fresh("13.roofline", "bound by latency")
def _(draw):
    return kernel(draw, LATENCY)


@fresh("13.roofline", "exactly equal", weight=0.5, count=6)
def _(draw):
    """Reading and computing take equally long, or the share is exactly a half: in numbers that nothing rounds."""
    bandwidth, ratio, time = 2 ** draw.whole(1, 4), 2 ** draw.whole(1, 5), 2 ** draw.whole(0, 4)
    read, half = bandwidth * time, draw.chance(0.5)
    flops = read * ratio * (draw.choice([0.5, 2, 1]) if half else 1)
    best = max(time, flops / (bandwidth * ratio))
    seconds = 2 * best if half else best * draw.choice([1, 1.25, 1.5])
    return dict(
        read=read, flops=flops, seconds=float(seconds), bandwidth=float(bandwidth), peak=float(bandwidth * ratio)
    )


# ---- 13.merge_splits ------------------------------------------------------------------------------------------------


def splits(draw: Draw, count: int, *, most: float = 3.0, shift: float = 0.0) -> dict:
    """States of the online softmax: the highest score of a split contributes e^0, so ℓ is at least 1."""
    m = draw.decimals(count, most=most) + shift
    ell = torch.tensor([draw.whole(10, 40) / 10 for _ in range(count)]).double()
    return dict(m=m, ell=ell, o=draw.decimals(count, draw.whole(1, 1 + draw.size), most=9.0))


@fresh("13.merge_splits", "unequal maxima", weight=2)
def _(draw):
    def unequal(case):
        return len(case["m"].unique()) > 1

    return draw.until(lambda: splits(draw, draw.whole(2, 2 + draw.size)), unequal)


@fresh("13.merge_splits", "one split, or equal maxima", weight=0.5, count=6)
def _(draw):
    case = splits(draw, draw.choice([1, draw.whole(2, 2 + draw.size)]))
    return {**case, "m": torch.full_like(case["m"], float(case["m"][0]))}


@fresh("13.merge_splits", "very large and very small scores")
def _(draw):
    most, shift = draw.choice([(3.0, -2000.0), (3.0, -900.0), (3.0, 900.0), (3.0, 3000.0), (900.0, 0.0)])
    return splits(draw, draw.whole(2, 2 + draw.size), most=most, shift=shift)


@fresh("13.merge_splits", "every score far below zero", weight=0.5, count=4)
def _(draw):
    """A low maximum does not make a split empty."""
    return splits(draw, draw.whole(1, 2 + draw.size), shift=-(10.0 ** draw.whole(5, 8)))


@fresh("13.merge_splits", "splits without slots")
def _(draw):
    count = draw.whole(2, 3 + draw.size)
    case = splits(draw, count, shift=draw.choice([0.0, 0.0, -900.0]))
    for i in draw.sample(range(count), draw.whole(1, count - 1)):
        case["m"][i], case["ell"][i] = -1e30, 0.0
        case["o"][i] = draw.choice([torch.nan, torch.nan, torch.inf, 7.0])  # whatever was in memory
    return case


# ---- 13.captured ----------------------------------------------------------------------------------------------------


def capture(draw: Draw, length: int, replays: int) -> dict:
    return dict(text=[draw.randrange(Device.VOCABULARY) for _ in range(length)], replays=replays)


@fresh("13.captured", "several replays", weight=2)
def _(draw):
    return capture(draw, draw.whole(2, 2 + 3 * draw.size), draw.whole(2, 2 + 2 * draw.size))


@fresh("13.captured", "a single replay", count=6)
def _(draw):
    return capture(draw, draw.whole(1, 2 + 3 * draw.size), 1)


@fresh("13.captured", "a sequence of one token", weight=0.5, count=6)
def _(draw):
    return capture(draw, 1, draw.whole(2, 4 + 2 * draw.size))


@fresh("13.captured", "many replays", weight=0.5, count=4)
def _(draw):
    length = draw.whole(1, 20)
    return capture(draw, length, draw.whole(20, Device.ROOM - 1 - length))
