"""Fresh cases of set 07."""

from __future__ import annotations

from minispec import theory

from .fresh import Draw, fresh


def share(draw: Draw) -> float:
    return draw.choice([draw.whole(1, 19) / 20, draw.whole(1, 19) / 20, draw.whole(1, 19) / 20, 0.995, 0.9995, 0.003])


@fresh("07.expected_tokens", "0 < α < 1", weight=2)
def _(draw):
    return dict(alpha=share(draw), k=draw.whole(0, 2 + 2 * draw.size))


@fresh("07.expected_tokens", "α = 0", weight=0.5, count=5)
def _(draw):
    return dict(alpha=0.0, k=draw.whole(0, 3 + 2 * draw.size))


@fresh("07.expected_tokens", "α = 1", count=6)
def _(draw):
    return dict(alpha=1.0, k=draw.whole(1, 3 + 2 * draw.size))


@fresh("07.position_acceptance", "any betas", weight=2)
def _(draw):
    return dict(betas=[share(draw) for _ in range(draw.whole(1, 2 + draw.size))])


@fresh("07.position_acceptance", "zeros and ones among them")
def _(draw):
    return dict(betas=[draw.choice([0.0, 1.0, share(draw)]) for _ in range(draw.whole(1, 3 + draw.size))])


def costs(draw: Draw) -> dict:
    return dict(c=draw.whole(0, 12) / 20, v=draw.whole(10, 60) / 20)


@fresh("07.speedup", "0 < α < 1", weight=2)
def _(draw):
    return dict(alpha=share(draw), k=draw.whole(1, 2 + 2 * draw.size), **costs(draw))


@fresh("07.speedup", "α = 0 and α = 1", weight=0.5, count=6)
def _(draw):
    return dict(alpha=draw.choice([0.0, 1.0]), k=draw.whole(1, 8), **costs(draw))


def gains(case: dict) -> list[float]:
    later = [theory.speedup(case["alpha"], k, case["c"], case["v"][k]) for k in range(1, len(case["v"]))]
    return [1.0, *later]


def clear(case: dict) -> bool:
    """No two draft lengths are almost equally good: there rounding would decide."""
    best, *rest = sorted(gains(case), reverse=True)
    return not rest or best - rest[0] > 1e-6


def steps(draw: Draw, longest: int) -> list[float]:
    """What verification costs: it grows, often in steps, and sometimes falls a little."""
    v = [1.0]
    for _ in range(longest):
        v.append(max(0.5, round(v[-1] + draw.choice([0, 0, 0, 0.05, 0.1, 0.5, 1.0, -0.1]), 2)))
    return v


def length_case(draw: Draw, fits) -> dict:
    def make():
        v = steps(draw, draw.whole(1, 3 + 2 * draw.size))
        return dict(alpha=share(draw), c=draw.whole(0, 12) / 20, v=v)

    return draw.until(make, lambda case: clear(case) and fits(gains(case).index(max(gains(case))), len(case["v"]) - 1))


@fresh("07.best_k", "a best length in between", weight=2)
def _(draw):
    return length_case(draw, lambda best, longest: 0 < best < longest or longest == 1)


@fresh("07.best_k", "nothing gains")
def _(draw):
    return length_case(draw, lambda best, longest: best == 0)


@fresh("07.best_k", "the longest is the best", weight=0.5)
def _(draw):
    return length_case(draw, lambda best, longest: best == longest)


@fresh("07.best_k", "almost equally good", weight=0.5, count=8)
def _(draw):
    """The best is ahead by less than one percent: no reason to round."""

    def make():
        return dict(alpha=share(draw), c=draw.whole(0, 12) / 20, v=steps(draw, draw.whole(2, 4 + draw.size)))

    def close(case):
        best, second, *_ = sorted(gains(case), reverse=True)
        return 1e-5 < best - second < 0.005

    return draw.until(make, close)


@fresh("07.best_k", "equally good", weight=0.5, count=6)
def _(draw):
    """Drafts that are never accepted and cost nothing are as good as none."""
    return dict(alpha=0.0, c=0.0, v=[1.0] * draw.whole(2, 6))


def cost_case(draw: Draw, fits) -> dict:
    def make():
        return dict(k=draw.whole(1, 2 + draw.size), c=draw.whole(0, 20) / 20, v=draw.whole(20, 60) / 20)

    return draw.until(make, lambda case: fits(case["k"] * case["c"] + case["v"], case["k"]))


@fresh("07.when_it_pays", "an α between 0 and 1", weight=2)
def _(draw):
    return cost_case(draw, lambda cost, k: 1.01 < cost < k + 0.99)


@fresh("07.when_it_pays", "it never pays")
def _(draw):
    return cost_case(draw, lambda cost, k: cost > k + 1.01)


@fresh("07.when_it_pays", "only just, at α = 1", weight=0.5, count=5)
def _(draw):
    """The cycle costs exactly k + 1. In quarters, so that sums are exact."""
    k, c = draw.whole(1, 4), draw.choice([0.25, 0.5, 0.75, 1.0])
    return dict(k=k, c=c, v=k + 1 - k * c)


@fresh("07.when_it_pays", "drafting is free", weight=0.5, count=6)
def _(draw):
    return dict(k=draw.whole(1, 8), c=0.0, v=draw.choice([1.0, draw.whole(21, 39) / 20]))
