"""Fresh cases of set 01."""

from __future__ import annotations

from .e01 import intensity
from .fresh import Draw, fresh


def model(draw: Draw) -> dict:
    return dict(weights=draw.whole(101, 4000) * draw.choice([1, 1, 10**6]), bits=draw.choice([4, 8, 16]))


def load(draw: Draw) -> dict:
    return dict(batch=draw.whole(1, 2 + 4 * draw.size), tokens=draw.whole(1, 2 + 2 * draw.size))


@fresh("01.intensity", "FLOPs and weights")
def _(draw):
    cache = dict(context=0, kv_bytes=draw.whole(1, 99)) if draw.chance(0.5) else dict(context=9, kv_bytes=0)
    return {**model(draw), **load(draw), **cache}


@fresh("01.intensity", "the caches")
def _(draw):
    case = {**model(draw), **load(draw)}
    context = draw.whole(1, 50 * draw.size)
    return {**case, "context": context, "kv_bytes": draw.whole(1, 9) * case["weights"] / (4 * context)}


def machine(draw: Draw) -> dict:
    return dict(bandwidth=draw.whole(5, 60), peak=draw.whole(5, 900))


def work(draw: Draw) -> dict:
    return {**dict(bytes_read=draw.whole(50, 900), flops=draw.whole(50, 9000)), **machine(draw)}


def reading_over_computing(case: dict) -> float:
    return case["bytes_read"] / case["bandwidth"] / (case["flops"] / case["peak"])


@fresh("01.roofline", "limited by memory")
def _(draw):
    return draw.until(lambda: work(draw), lambda case: reading_over_computing(case) > 1.05)


@fresh("01.roofline", "limited by arithmetic")
def _(draw):
    return draw.until(lambda: work(draw), lambda case: reading_over_computing(case) < 0.95)


@fresh("01.roofline", "bytes and FLOPs the other way round")
def _(draw):
    """More bytes than FLOPs and yet limited by arithmetic, or fewer and yet by memory."""

    def crossed(case):
        ratio = reading_over_computing(case)
        return (ratio > 1.05 and case["bytes_read"] < case["flops"]) or (
            ratio < 0.95 and case["bytes_read"] > case["flops"]
        )

    return draw.until(lambda: work(draw), crossed)


@fresh("01.roofline", "close to the ridge", weight=0.5, count=8)
def _(draw):
    """Which of the two it is depends on the digits after the point."""
    return draw.until(lambda: work(draw), lambda case: 0.001 < abs(reading_over_computing(case) - 1) < 0.05)


def tokens_until_ridge(case: dict) -> float:
    parts = {name: case[name] for name in ("weights", "bits", "batch", "context", "kv_bytes")}
    return case["peak"] / case["bandwidth"] / intensity(tokens=1, **parts)


def ridge_case(draw: Draw, low: float, high: float, cached: bool) -> dict:
    """A case whose M* lies in this range, and is no whole number: there rounding would decide."""

    def make():
        weights = draw.whole(101, 4000)
        context = draw.whole(1, 200) if cached else 0
        kv_bytes = draw.whole(1, 9) * weights / (4 * context) if cached else draw.whole(0, 50)
        sizes = dict(weights=weights, bits=draw.choice([4, 8, 16]), batch=draw.whole(1, 1 + 2 * draw.size))
        return {**sizes, "context": context, "kv_bytes": kv_bytes, **machine(draw)}

    def fits(case):
        m = tokens_until_ridge(case)
        return low < m < high and 0.02 < m % 1 < 0.98

    return draw.until(make, fits)


@fresh("01.ridge", "weights alone")
def _(draw):
    return ridge_case(draw, 2, 60, cached=False)


@fresh("01.ridge", "with caches")
def _(draw):
    return ridge_case(draw, 2, 60, cached=True)


@fresh("01.ridge", "nothing is free")
def _(draw):
    return ridge_case(draw, 0, 2, cached=draw.chance(0.5))
