"""Fresh cases of set 15, mixtures of experts: c15.py imports them."""

from __future__ import annotations

from .fresh import Draw, fresh

# ---- 15.experts -----------------------------------------------------------------------------------------------------


def routing(draw: Draw, experts: int, per_token: int, tokens: int, alike: bool = False) -> dict:
    """Router logits without ties; `alike`: all tokens have the same favourites, in various orders."""
    favourites = draw.sample(range(experts), per_token)
    logits = []
    for _ in range(tokens):
        scores = [x / 4 for x in draw.sample(range(-2 * experts, 2 * experts), experts)]
        if alike:
            scores = [z + experts * (e in favourites) for e, z in enumerate(scores)]
        logits.append(scores)
    return dict(logits=logits, per_token=per_token, always=draw.whole(1, 8) / 2, expert=draw.whole(1, 8) / 4)


@fresh("15.experts", "one token", weight=0.5)
def _(draw):
    experts = draw.whole(2, 2 + draw.size)
    return routing(draw, experts, draw.whole(1, experts), 1)


@fresh("15.experts", "several tokens", weight=2)
def _(draw):
    experts = draw.whole(3, 3 + 2 * draw.size)
    return routing(draw, experts, draw.whole(1, max(1, experts // 2)), draw.whole(2, 2 + draw.size))


@fresh("15.experts", "tokens that agree")
def _(draw):
    experts = draw.whole(3, 3 + draw.size)
    return routing(draw, experts, draw.whole(1, experts - 1), draw.whole(2, 2 + draw.size), alike=True)


@fresh("15.experts", "more tokens than experts", weight=0.5)
def _(draw):
    experts = draw.whole(2, 2 + draw.size)
    return routing(draw, experts, draw.whole(1, experts), experts + draw.whole(1, 3))


@fresh("15.experts", "logits far apart", weight=0.5)
def _(draw):
    """Softmax in float32 would make most of them zero, and then equal."""
    experts = draw.whole(4, 4 + draw.size)
    case = routing(draw, experts, draw.whole(2, experts - 1), draw.whole(2, 2 + draw.size))
    return case | dict(logits=[[400 * z for z in scores] for scores in case["logits"]])
