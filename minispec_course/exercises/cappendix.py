"""Fresh cases of the appendix."""

from __future__ import annotations

from .fresh import fresh


@fresh("appendix.compute_optimal", "20 tokens per parameter")
def _(draw):
    return dict(flops=float(draw.whole(10, 9000)) * 10 ** draw.whole(0, 4 * draw.size), tokens_per_parameter=20.0)


@fresh("appendix.compute_optimal", "another ratio", weight=2)
def _(draw):
    ratio = draw.choice([1.0, 0.5, 5.0, 8.0, 37.0, 100.0, 1875.0])
    return dict(flops=float(draw.whole(10, 9000)) * 10 ** draw.whole(0, 4 * draw.size), tokens_per_parameter=ratio)
