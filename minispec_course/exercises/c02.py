"""Fresh cases of set 02."""

from __future__ import annotations

import torch

from .fresh import Draw, fresh


def cache_size(draw: Draw, kv_heads: int, group: int) -> dict:
    sizes = dict(layers=draw.whole(2, 90), heads=kv_heads * group, kv_heads=kv_heads, head_dim=8 * draw.whole(4, 20))
    return {
        **sizes,
        "bits": draw.choice([8, 16, 32]),
        "batch": draw.whole(1, 1 + 8 * draw.size),
        "length": draw.whole(300, 9000),
    }


@fresh("02.kv_bytes", "as many key/value heads as query heads")
def _(draw):
    return cache_size(draw, draw.whole(1, 48), 1)


@fresh("02.kv_bytes", "grouped-query attention")
def _(draw):
    return cache_size(draw, draw.whole(1, 12), draw.whole(2, 8))


def attention_case(
    draw: Draw, kv_heads: int, group: int, *, spare: int = 0, most: float = 2.0, length: int = 0
) -> dict:
    head_dim, length = draw.whole(2, 3 + draw.size), length or draw.whole(1, 1 + draw.size)
    keys, values = (draw.decimals(kv_heads, length + spare, head_dim, most=most) for _ in range(2))
    return dict(q=draw.decimals(kv_heads * group, head_dim, most=most), keys=keys, values=values, length=length)


@fresh("02.cached_attention", "heads of their own")
def _(draw):
    return attention_case(draw, draw.whole(1, 4), 1)


@fresh("02.cached_attention", "shared key/value heads")
def _(draw):
    return attention_case(draw, draw.whole(1, 3), draw.whole(2, 4))


@fresh("02.cached_attention", "stale slots")
def _(draw):
    case = attention_case(draw, draw.whole(1, 2), draw.whole(1, 3), spare=draw.whole(1, 4))
    for name in ("keys", "values"):
        case[name][:, case["length"] :] *= draw.choice([0, 1, 30])
    return case


@fresh("02.cached_attention", "large scores", weight=0.5)
def _(draw):
    return attention_case(draw, draw.whole(1, 2), draw.whole(1, 2), most=90.0, length=draw.whole(2, 5))


@fresh("02.cached_attention", "float32", weight=0.5, count=5)
def _(draw):
    case = attention_case(draw, draw.whole(1, 2), draw.whole(1, 2), most=1.0, spare=1)
    return {name: x.float() if isinstance(x, torch.Tensor) else x for name, x in case.items()}


@fresh("02.ragged", "one sequence")
def _(draw):
    return dict(lengths=torch.tensor([draw.whole(0, 1 + draw.size)]), count=draw.whole(1, 2 + draw.size))


@fresh("02.ragged", "sequences of different lengths")
def _(draw):
    lengths = draw.until(
        lambda: [draw.whole(0, 2 + draw.size) for _ in range(draw.whole(2, 4))], lambda found: len(set(found)) > 1
    )
    return dict(lengths=torch.tensor(lengths), count=draw.whole(1, 1 + draw.size))


@fresh("02.ragged", "sequences of one length", weight=0.5, count=5)
def _(draw):
    lengths = [draw.choice([0, draw.whole(1, 4)])] * draw.whole(2, 4)
    return dict(lengths=torch.tensor(lengths), count=draw.whole(1, 1 + draw.size))
