"""Fresh cases of set 06."""

from __future__ import annotations

import torch

from .fresh import Draw, fresh


def two(draw: Draw, n: int | None = None) -> tuple:
    p = draw.probs(n)
    return p, draw.probs(len(p))


def drafted(draw: Draw, fits) -> dict:
    """p, q and a token that q can have given, with p(d) and q(d) as wanted."""

    def make():
        p, q = two(draw)
        return dict(p=p, q=q, token=draw.choice(q.nonzero().flatten().tolist()))

    return draw.until(make, lambda case: fits(float(case["p"][case["token"]]), float(case["q"][case["token"]])))


@fresh("06.accept", "proposed too often")
def _(draw):
    return drafted(draw, lambda p, q: 0 < p < q)


@fresh("06.accept", "always accepted")
def _(draw):
    if draw.chance(0.3):
        p = draw.probs()
        return dict(p=p, q=p.clone(), token=draw.choice(p.nonzero().flatten().tolist()))
    return drafted(draw, lambda p, q: p > q)


@fresh("06.accept", "impossible for the target", weight=0.5, count=6)
def _(draw):
    return drafted(draw, lambda p, q: p == 0)


@fresh("06.accept", "float32", weight=0.5, count=6)
def _(draw):
    case = drafted(draw, lambda p, q: 0 < p < q)
    return dict(p=case["p"].float(), q=case["q"].float(), token=case["token"])


@fresh("06.accept", "improbable tokens", weight=0.5, count=6)
def _(draw):
    """Both probabilities are tiny, and their ratio is not: nothing may be added to them, and nothing rounded."""
    larger = draw.chance(0.5)
    case = drafted(draw, lambda p, q: 0 < p != q and (p > q) == larger)
    tiny = 10.0 ** -draw.whole(3, 4)
    for name in ("p", "q"):
        probs = case[name] * tiny
        others = [token for token in range(len(probs)) if token != case["token"]]
        probs[others[0]] += 1 - probs.sum()
        case[name] = probs
    return case


def differ(p, q) -> bool:
    return bool((p != q).any())


@fresh("06.residual", "p and q in general")
def _(draw):
    p, q = draw.until(lambda: two(draw), lambda both: differ(*both))
    return dict(p=p, q=q)


@fresh("06.residual", "p and q are equal")
def _(draw):
    p = draw.probs()
    return dict(p=p, q=p.clone())


@fresh("06.residual", "equal for some tokens")
def _(draw):
    """Two tokens exchange some probability; all others have the same under p and q."""
    p = draw.probs(draw.whole(3, 3 + draw.size), positive=True)
    a, b = draw.sample(range(len(p)), 2)
    q = p.clone()
    moved = draw.whole(1, round(100 * float(p[a]))) / 100
    q[a], q[b] = round(float(p[a]) - moved, 2), round(float(p[b]) + moved, 2)
    return dict(p=p, q=q)


@fresh("06.residual", "almost equal", weight=0.5, count=6)
def _(draw):
    """However little they differ, the residual is where p is larger, and only there."""
    p = draw.probs(draw.whole(2, 3 + draw.size), positive=True)
    a, b = draw.sample(range(len(p)), 2)
    q, moved = p.clone(), draw.whole(1, 9) * 10.0 ** -draw.whole(3, 4)
    q[a], q[b] = q[a] - moved, q[b] + moved
    return dict(p=p, q=q)


@fresh("06.residual", "nothing in common", weight=0.5, count=6)
def _(draw):
    n, cut = draw.whole(2, 4 + draw.size), 1
    cut = draw.whole(1, n - 1)
    p, q = (torch.zeros(n).double() for _ in range(2))
    p[:cut], q[cut:] = draw.probs(cut, positive=True), draw.probs(n - cut, positive=True)
    return dict(p=p, q=q) if draw.chance(0.5) else dict(p=p.flip(0), q=q.flip(0))


def cycle(draw: Draw, k: int, n: int) -> dict:
    return dict(p=draw.rows(k + 1, n), q=draw.rows(k, n))


@fresh("06.sampler", "one draft token", count=5)
def _(draw):
    return cycle(draw, 1, draw.whole(2, 2 + draw.size // 2))


@fresh("06.sampler", "several draft tokens", count=5)
def _(draw):
    return cycle(draw, 2 if draw.size < 5 else 3, 2 if draw.size in (1, 5) else 3)


@fresh("06.sampler", "the bonus", count=5)
def _(draw):
    """No draft, or one that is always accepted."""
    k, n = draw.whole(0, 2), draw.whole(2, 3)
    p = draw.rows(k + 1, n)
    return dict(p=p, q=p[:k].clone())


@fresh("06.one_hot", "any token")
def _(draw):
    p = draw.probs()
    return dict(p=p, token=draw.randrange(len(p)))


@fresh("06.one_hot", "certain or impossible", weight=0.5, count=6)
def _(draw):
    p = torch.zeros(draw.whole(2, 5)).double()
    at = draw.randrange(len(p))
    p[at] = 1.0
    return dict(p=p, token=draw.choice([at, draw.randrange(len(p))]))


def nucleus_case(draw: Draw, fits) -> dict:
    """No two tokens are equally likely, and no sum of the likeliest equals top_p: there rounding would decide."""

    def make():
        probs = draw.probs(draw.whole(2, 3 + draw.size), positive=True, distinct=True)
        return dict(probs=probs, top_p=draw.whole(1, 99) / 100 + 0.005)

    def kept(case):
        ordered = case["probs"].sort(descending=True).values.cumsum(0)
        return int((ordered < case["top_p"]).sum()) + 1, len(case["probs"]), float(ordered[-1])

    def settled(case):
        count, n, _ = kept(case)
        mass = round(100 * float(case["probs"].sort(descending=True).values[:count].sum()))
        return mass != 64 and fits(count, n)  # 1/64 has a digit too many to be compared

    return draw.until(make, settled)


@fresh("06.top_p", "some are cut off", weight=2)
def _(draw):
    return nucleus_case(draw, lambda kept, n: 1 <= kept < n)


@fresh("06.top_p", "several are kept")
def _(draw):
    return nucleus_case(draw, lambda kept, n: kept >= 2)


@fresh("06.top_p", "the mass is exactly top_p", weight=0.5)
def _(draw):
    """In parts of 16 or 32, whose sums are exact: the set ends with the token that reaches top_p."""
    total, n = draw.choice([16, 32]), draw.whole(2, 4)
    parts = draw.until(lambda: draw.parts(n, total, least=1), lambda found: len(set(found)) == n)
    kept = sum(sorted(parts, reverse=True)[: draw.whole(1, n - 1)])
    return dict(probs=torch.tensor(parts, dtype=torch.float64) / total, top_p=kept / total)


@fresh("06.top_p", "one token, or all", weight=0.5)
def _(draw):
    return nucleus_case(draw, lambda kept, n: kept in (1, n))
