"""Fresh cases of set 08."""

from __future__ import annotations

import torch

from .e08 import lookup, places_after, suffix_walk
from .fresh import Draw, fresh


def repeating(draw: Draw, least: int = 1) -> list[int]:
    """A sequence of few different tokens, so that much of it occurs more than once."""
    tokens = draw.choice([[0, 1], [0, 1, 2], [1, 12, 2], [1, 11, 111]])  # 1, 12 is not 11, 2
    return [draw.choice(tokens) for _ in range(draw.whole(least, 4 + 3 * draw.size))]


def lookup_case(draw: Draw) -> dict:
    return dict(text=repeating(draw), n_max=draw.whole(1, 1 + draw.size), k=draw.whole(1, 2 + draw.size))


@fresh("08.ngram", "longest suffix, latest occurrence", weight=2, count=15)
def _(draw):
    def has_a_choice(case):
        return any(len(places_after(case["text"], n)) > 1 for n in range(1, case["n_max"] + 1))

    return draw.until(lambda: lookup_case(draw), has_a_choice)


@fresh("08.ngram", "an occurrence that overlaps the suffix", weight=0.5, count=5)
def _(draw):
    """7 5 5 5: the suffix 5 5 occurs one position earlier, too."""
    run, *others = draw.sample(range(1, 9), 4)
    text = [*others[: draw.whole(0, 3)], *[run] * draw.whole(2, 3 + draw.size)]
    return dict(text=text, n_max=draw.whole(1, 4), k=draw.whole(1, 3))


@fresh("08.ngram", "tokens of several digits", weight=0.5, count=6)
def _(draw):
    """12 and then 3 is not 1 and then 23, whatever it looks like side by side."""
    a, b, c = draw.sample(range(1, 10), 3)
    before = [draw.whole(30, 40) for _ in range(draw.whole(0, 2))]
    text = [*before, a, 10 * b + c, draw.whole(30, 40), 10 * a + b, c]
    return dict(text=text, n_max=draw.whole(2, 4), k=draw.whole(1, 3))


@fresh("08.ngram", "fewer tokens follow than are wanted")
def _(draw):
    return draw.until(lambda: lookup_case(draw), lambda case: 0 < len(lookup(**case)) < case["k"])


@fresh("08.ngram", "nothing to find, or hardly any text", weight=0.5)
def _(draw):
    if draw.chance(0.5):
        return dict(text=repeating(draw)[: draw.whole(1, 3)], n_max=draw.whole(1, 5), k=draw.whole(1, 4))
    text = draw.sample(range(20), draw.whole(1, 6))
    return dict(text=text, n_max=draw.whole(1, 3), k=draw.whole(1, 3))


def walk_case(draw: Draw, floors: list[float]) -> dict:
    return dict(text=repeating(draw, 2), k=draw.whole(1, 1 + draw.size), floor=draw.choice(floors))


@fresh("08.suffix_walk", "the most frequent continuation", weight=2)
def _(draw):
    return draw.until(lambda: walk_case(draw, [0.03, 0.07]), lambda case: len(suffix_walk(**case)[0]) >= 2)


@fresh("08.suffix_walk", "equally frequent: the one seen last")
def _(draw):
    def tie(case):
        text = case["text"]
        longest = max((n for n in range(1, len(text)) if places_after(text, n)), default=0)
        after = [text[place] for place in places_after(text, longest)] if longest else []
        counts = sorted((after.count(x) for x in set(after)), reverse=True)
        return len(counts) > 1 and counts[0] == counts[1]

    return draw.until(lambda: walk_case(draw, [0.03, 0.07]), tie)


@fresh("08.suffix_walk", "the floor")
def _(draw):
    """Floors that are no simple fraction: no probability is equal to one of them, up to rounding."""

    def stopped(case):
        return len(suffix_walk(**case)[0]) < len(suffix_walk(case["text"], case["k"], 0.0)[0])

    return draw.until(lambda: walk_case(draw, [0.13, 0.23, 0.31, 0.37, 0.47, 0.57, 0.71, 0.97]), stopped)


@fresh("08.suffix_walk", "exactly at the floor", weight=0.5, count=6)
def _(draw):
    """P does not fall below the floor where it equals it. Only halves and quarters, which are exact."""

    def on_the_edge(case):
        whole = suffix_walk(case["text"], case["k"], 0.0)[1]
        drafted, above = suffix_walk(**case)[0], suffix_walk(case["text"], case["k"], case["floor"] + 1e-9)[0]
        return (64 * whole).is_integer() and drafted != above

    return draw.until(lambda: walk_case(draw, [0.25, 0.5, 1.0]), on_the_edge)


@fresh("08.suffix_walk", "nothing to draft", weight=0.5, count=6)
def _(draw):
    text = draw.choice([draw.sample(range(20), draw.whole(1, 6)), [3] * draw.whole(1, 5)])
    return dict(text=text, k=draw.whole(1, 4), floor=draw.choice([0.0, 0.13, 1.0]))


def streams_case(draw: Draw, *, eps: float, layers: int, n: int) -> dict:
    tokens, d, vocabulary = draw.whole(1, 1 + draw.size), draw.whole(2, 3 + draw.size), draw.whole(2, 4 + draw.size)
    streams = draw.until(
        lambda: draw.decimals(layers + 1, tokens, d) * torch.arange(1, layers + 2)[:, None, None],
        lambda x: bool((x != 0).any(-1).all()),
    )
    weight, head = 1 + draw.decimals(d, most=0.5), draw.decimals(vocabulary, d)
    return dict(streams=streams, n=n, norm_weight=weight, eps=eps, head=head)


@fresh("08.early_exit", "any layer", weight=2)
def _(draw):
    layers = draw.whole(2, 4)
    return streams_case(draw, eps=0.0, layers=layers, n=draw.whole(1, layers - 1))


@fresh("08.early_exit", "an ε that matters")
def _(draw):
    layers = draw.whole(1, 4)
    return streams_case(draw, eps=draw.choice([0.1, 0.5, 2.0]), layers=layers, n=draw.whole(1, layers))


@fresh("08.early_exit", "all layers", weight=0.5, count=6)
def _(draw):
    layers = draw.whole(1, 4)
    return streams_case(draw, eps=0.0, layers=layers, n=layers)


def three(draw: Draw, n: int) -> dict:
    return dict(p=draw.probs(n), middle=draw.probs(n), tiny=draw.probs(n))


@fresh("08.cascade_distribution", "in general", weight=2, count=8)
def _(draw):
    return three(draw, 2 if draw.size < 2 else 3)


@fresh("08.cascade_distribution", "all positive", count=8)
def _(draw):
    n = 2 if draw.size < 2 else 3
    return dict(p=draw.probs(n, positive=True), middle=draw.probs(n, positive=True), tiny=draw.probs(n, positive=True))


@fresh("08.cascade_distribution", "models that agree", weight=0.5, count=6)
def _(draw):
    case = three(draw, draw.whole(2, 3))
    return {**case, "tiny": case["middle"].clone()} if draw.chance(0.6) else {**case, "middle": case["p"].clone()}
