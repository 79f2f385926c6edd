"""Fresh cases of set 16."""

from __future__ import annotations

from .e16 import COLUMN_ROW, kv_per_rank
from .fresh import Draw, fresh


def mlp(draw: Draw, ranks: int, tokens: int) -> dict:
    """Every rank has something of its own to say: no two parts are equal, and none is zero."""
    d, f = ranks * draw.whole(1, 2), ranks * draw.whole(2, 3)

    def make():
        shapes = dict(x=(tokens, d), up=(d, f), down=(f, d), bias=(d,))
        return {**{name: draw.decimals(*shape, most=0.9) for name, shape in shapes.items()}, "ranks": ranks}

    def all_different(case):
        found = COLUMN_ROW.observe(COLUMN_ROW.reference, **case)
        return found["ranks with a part of their own"] == ranks

    return draw.until(make, all_different)


@fresh("16.column_row", "two ranks")
def _(draw):
    return mlp(draw, 2, draw.whole(1, 3))


@fresh("16.column_row", "more ranks")
def _(draw):
    return mlp(draw, draw.whole(3, 4), draw.whole(1, 3))


@fresh("16.column_row", "one rank", weight=0.5, count=5)
def _(draw):
    return mlp(draw, 1, draw.whole(1, 3))


def ranks_case(draw: Draw, kv_heads: int, ranks: int, fits) -> dict:
    def make():
        sizes = dict(layers=draw.whole(1, 8), heads=kv_heads * ranks * draw.whole(1, 2), kv_heads=kv_heads)
        more = dict(head_dim=draw.choice([4, 8, 16]), bits=draw.choice([4, 8, 16, 32]))
        memory = dict(weight_bytes=draw.whole(500, 9000), ranks=ranks, memory=draw.whole(500, 9000))
        return {**sizes, **more, **memory}

    def settled(case):
        per_token, _ = kv_per_rank(**case)
        room = (case["memory"] - case["weight_bytes"] / ranks) / per_token
        return fits(room) and 0.01 < room % 1 < 0.99

    return draw.until(make, settled)


@fresh("16.kv_per_rank", "heads enough for all ranks")
def _(draw):
    ranks = draw.choice([1, 2, 3, 4])
    return ranks_case(draw, ranks * draw.whole(1, 4), ranks, lambda room: room > 1)


@fresh("16.kv_per_rank", "more ranks than heads")
def _(draw):
    kv_heads = draw.choice([1, 2, 3])
    return ranks_case(draw, kv_heads, kv_heads * draw.whole(2, 4), lambda room: room > 1)


@fresh("16.kv_per_rank", "hardly any room", weight=0.5)
def _(draw):
    ranks = draw.choice([1, 2, 4])
    return ranks_case(draw, 4, ranks, lambda room: room < 1)
