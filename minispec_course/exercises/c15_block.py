"""Fresh cases of set 15, first part."""

from __future__ import annotations

from itertools import accumulate
from math import log

from minispec.serving.budget import best_lengths

from .e15_block import slots
from .fresh import Draw, fresh


def cycle(draw: Draw, k: int, n: int, **how) -> dict:
    return dict(p=draw.rows(k + 1, n, **how), q=draw.rows(k, n, positive=True))


@fresh("15.block", "one draft token", count=4)
def _(draw):
    return cycle(draw, 1, draw.whole(2, 3))


@fresh("15.block", "two draft tokens", weight=2, count=5)
def _(draw):
    return cycle(draw, 2, 2 + (draw.size > 3), positive=True)


@fresh("15.block", "three draft tokens", count=4)
def _(draw):
    return cycle(draw, 3, 2)


@fresh("15.block", "p and q are equal at some positions", weight=0.5, count=2)
def _(draw):
    """There w stays what it was, and R + 1 − w may be 0."""
    case = cycle(draw, 2, 2, positive=True)
    equal = draw.choice([[1], [0, 1]])
    case["p"][equal] = case["q"][equal]
    return case


def vocabularies(draw: Draw, *, subset: bool = False) -> dict:
    """Two vocabularies with some pieces in common, of which the draft model can say one at least. Pieces that differ in
    a space or a capital letter only are different ones."""
    pieces = draw.sample(["a", "b", " a", "A", "un", "do", "the", " the", "The", "ing", "Ing", " b"], 4 + draw.size)
    own = draw.sample(pieces, draw.whole(2, min(5, len(pieces))))
    theirs = draw.sample(pieces, draw.whole(2, len(pieces)))
    if subset:
        theirs = draw.sample(pieces, len(pieces))
    if not set(own) & set(theirs):
        theirs[0] = own[0]
    return dict(probs=draw.probs(len(own), positive=True), own=own, theirs=theirs)


@fresh("15.shared", "some tokens are shared", weight=2, count=8)
def _(draw):
    return draw.until(lambda: vocabularies(draw), lambda case: not set(case["own"]) <= set(case["theirs"]))


@fresh("15.shared", "all are shared, at other ids", count=6)
def _(draw):
    return vocabularies(draw, subset=True)


def batch(draw: Draw, budget=None) -> dict:
    rows = [[draw.whole(1, 19) / 20 for _ in range(draw.whole(0, 1 + draw.size))] for _ in range(draw.whole(1, 4))]
    most = sum(map(len, rows))
    return dict(confidences=rows, budget=draw.whole(0, most) if budget is None else budget(most))


def clear(case: dict) -> bool:
    """No two slots are almost equally good where the budget ends: there rounding would decide."""
    values = []
    for row in case["confidences"]:
        product = 1.0
        for confidence in row:
            product *= confidence
            values.append(product)
    values.sort(reverse=True)
    end = case["budget"]
    return not 0 < end < len(values) or values[end - 1] > values[end] * (1 + 1e-9)


@fresh("15.budget", "fewer slots than draft tokens", weight=2)
def _(draw):
    return draw.until(lambda: batch(draw), clear)


@fresh("15.budget", "a sure token after an unsure one")
def _(draw):
    def fits(case):
        rows = [row for row in case["confidences"] if len(row) > 1]
        return clear(case) and any(row[0] < row[1] for row in rows) and sum(slots(**case)) > 1

    return draw.until(lambda: batch(draw), fits)


@fresh("15.budget", "slots that are equally good")
def _(draw):
    """Their products are exact. Whoever adds logarithms has them equal, too, or the case is not taken."""
    values = [1.0, 0.75, 0.5, 0.375, 0.25]

    def make():
        count, longest = draw.whole(2, 4), 1 + draw.size
        rows = [[draw.choice(values) for _ in range(draw.whole(0, longest))] for _ in range(count)]
        return dict(confidences=rows, budget=draw.whole(1, max(1, sum(map(len, rows)))))

    def fits(case):
        by_logs = [list(accumulate(map(log, row))) for row in case["confidences"]]
        return best_lengths(by_logs, case["budget"]) == slots(**case)

    return draw.until(make, fits)


@fresh("15.budget", "slots that are nearly equally good", weight=0.5, count=6)
def _(draw):
    def make():
        base, tail = draw.whole(1, 9) / 10, [draw.whole(1, 9) / 10 for _ in range(draw.whole(0, 2))]
        rows = [[base + draw.whole(-99, 99) / 1e6, *tail] for _ in range(draw.whole(2, 3))]
        return dict(confidences=rows, budget=draw.whole(1, sum(map(len, rows))))

    return draw.until(make, clear)


@fresh("15.budget", "no slots, or more than there are draft tokens", weight=0.5, count=6)
def _(draw):
    return batch(draw, lambda most: draw.choice([0, most + draw.whole(0, 5)]))


@fresh("15.budget", "tokens that hardly ever survive", weight=0.5, count=4)
def _(draw):
    """With enough slots they are verified too, even where the product is too small for a float."""
    rows = [[draw.choice([1e-200, 1e-180])] * draw.whole(1, 3) for _ in range(draw.whole(1, 2))]
    return dict(confidences=[[0.5], *rows, [1e-200] * 2], budget=3 + sum(map(len, rows)) + draw.whole(0, 2))
