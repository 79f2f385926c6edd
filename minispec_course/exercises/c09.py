"""Fresh cases of set 09."""

from __future__ import annotations

import math
from itertools import pairwise

import torch

from .e09 import every_node, reach_of
from .fresh import Draw, fresh


def heads_case(draw: Draw, count: int, *, everything: bool = False) -> dict:
    d, vocabulary = draw.whole(2, 2 + draw.size), draw.whole(3, 5 + draw.size)
    ids = (
        list(range(vocabulary)) if everything else sorted(draw.sample(range(vocabulary), draw.whole(2, vocabulary - 1)))
    )
    return dict(
        h=draw.decimals(d),
        t=draw.whole(0, 40),
        weight=draw.decimals(count, d, d),
        bias=draw.decimals(count, d),
        lm_head=draw.decimals(vocabulary, d),
        head_ids=torch.tensor(ids),
    )


@fresh("09.medusa_head", "one head")
def _(draw):
    return heads_case(draw, 1)


@fresh("09.medusa_head", "several heads")
def _(draw):
    return heads_case(draw, draw.whole(2, 4))


@fresh("09.medusa_head", "the whole vocabulary", weight=0.5, count=6)
def _(draw):
    return heads_case(draw, draw.whole(1, 3), everything=True)


def parents_of(draw: Draw, count: int) -> list[int]:
    return [draw.whole(-1, i - 1) for i in range(count)]


@fresh("09.tree_mask", "any tree", weight=2)
def _(draw):
    return dict(parents=parents_of(draw, draw.whole(1, 2 + draw.size)), prefix=draw.whole(0, 3))


@fresh("09.tree_mask", "chains and stars", weight=0.5)
def _(draw):
    count = draw.whole(1, 5)
    return dict(parents=draw.choice([list(range(-1, count - 1)), [-1] * count]), prefix=draw.whole(0, 3))


@fresh("09.tree_mask", "deep branches")
def _(draw):
    """Two paths from the root that grow by turns."""
    parents = [-1, -1]
    for _ in range(draw.whole(2, 3 + draw.size)):
        parents.append(draw.whole(max(0, len(parents) - 2), len(parents) - 1))
    return dict(parents=parents, prefix=draw.whole(0, 2))


def siblings_case(draw: Draw, count: int, n: int, drawn: str) -> dict:
    draft = draw.until(lambda: draw.probs(n), lambda q: drawn == "independent" or int((q > 0).sum()) >= count)
    return dict(p=draw.probs(n), draft=draft, count=count, drawn=drawn)


@fresh("09.tree_verify", "one sibling", count=5)
def _(draw):
    return siblings_case(draw, 1, draw.whole(2, 3), draw.choice(["independent", "distinct", "the likeliest"]))


@fresh("09.tree_verify", "two siblings", count=8)
def _(draw):
    return siblings_case(draw, 2, draw.whole(2, 3), draw.choice(["independent", "distinct", "the likeliest"]))


@fresh("09.tree_verify", "three siblings", count=6)
def _(draw):
    return siblings_case(draw, 3, 3, draw.choice(["distinct", "the likeliest", "independent"]))


@fresh("09.tree_verify", "the same token twice", count=6)
def _(draw):
    """Sampled independently from a draft that prefers one token, which the target likes less. With two other tokens
    the residual still changes after the second rejection."""
    favourite = draw.whole(55, 90) / 100
    p = draw.whole(10, 50) / 100
    if draw.chance(0.5):
        rest, part = 1 - favourite, draw.choice([0.2, 0.4])
        draft = torch.tensor([favourite, part * rest, (1 - part) * rest]).double().round(decimals=3)
        target = torch.tensor([p, (1 - p) / 2, (1 - p) / 2]).double().round(decimals=3)
        return dict(p=target, draft=draft, count=2, drawn="independent")
    return dict(
        p=torch.tensor([p, 1 - p]).double().round(decimals=2),
        draft=torch.tensor([favourite, 1 - favourite]).double().round(decimals=2),
        count=draw.whole(2, 3),
        drawn="independent",
    )


def accuracies_of(draw: Draw, heads: int, most: int) -> list[list[float]]:
    """Candidates of a head are right with decreasing frequency, and never two of them at once."""
    return [
        sorted((x / 100 for x in draw.parts(draw.whole(1, most) + 1, 100, least=3)[:-1]), reverse=True)
        for _ in range(heads)
    ]


def shape_case(draw: Draw, heads: int, most: int) -> dict:
    def make():
        accuracies = accuracies_of(draw, heads, most)
        nodes = every_node(accuracies)
        return dict(accuracies=accuracies, budget=draw.whole(1, min(len(nodes), 3 + 2 * draw.size)))

    def no_ties(case):
        reaches = sorted(reach_of(case["accuracies"], node) for node in every_node(case["accuracies"]))
        return all(b - a > 1e-6 for a, b in pairwise(reaches))

    return draw.until(make, no_ties)


@fresh("09.tree_tokens", "several heads", weight=2)
def _(draw):
    return shape_case(draw, draw.whole(2, 3), 3)


@fresh("09.tree_tokens", "a budget for more than all nodes", weight=0.5, count=5)
def _(draw):
    case = shape_case(draw, draw.whole(1, 2), 2)
    return {**case, "budget": len(every_node(case["accuracies"])) + draw.whole(1, 4)}


@fresh("09.tree_tokens", "one head", weight=0.5, count=6)
def _(draw):
    return shape_case(draw, 1, 4)


@fresh("09.tree_tokens", "one candidate per head", weight=0.5, count=6)
def _(draw):
    return shape_case(draw, draw.whole(1, 4), 1)


def threshold(case: dict) -> tuple[float, float]:
    entropy = float(torch.special.entr(case["p"]).sum())
    return case["epsilon"], case["delta"] * math.exp(-entropy)


def typical_case(draw: Draw, fits) -> dict:
    """No token's probability is just at the threshold."""

    def make():
        p = draw.probs()
        scales = dict(epsilon=draw.whole(1, 19) / 20 + 0.003, delta=draw.whole(2, 20) / 20)
        return dict(p=p, q=draw.probs(len(p)), **scales)

    def settled(case):
        least = min(threshold(case))
        return fits(case) and bool(((case["p"] - least).abs() > 1e-4).all())

    return draw.until(make, settled)


@fresh("09.typical", "ε is the smaller one")
def _(draw):
    return typical_case(draw, lambda case: threshold(case)[0] < threshold(case)[1])


@fresh("09.typical", "the entropy decides")
def _(draw):
    return typical_case(draw, lambda case: threshold(case)[0] > threshold(case)[1])


@fresh("09.typical", "a token is impossible")
def _(draw):
    return typical_case(draw, lambda case: bool(((case["p"] == 0) & (case["q"] > 0)).any()))


@fresh("09.typical", "exactly at the threshold", weight=0.5, count=6)
def _(draw):
    """A probability that equals ε is not above it."""

    def make():
        case = typical_case(draw, lambda case: True)
        return {**case, "epsilon": draw.choice([x for x in case["p"].tolist() if x > 0])}

    def first_is_smaller(case):
        epsilon, other = threshold(case)
        at = int((case["p"] == epsilon).nonzero()[0])
        return epsilon < other - 1e-4 and float(case["q"][at]) > 0 and epsilon < 1

    return draw.until(make, first_is_smaller)


@fresh("09.typical", "some pass and some do not")
def _(draw):
    def both(case):
        passes = case["p"] > min(threshold(case))
        return bool((passes & (case["q"] > 0)).any()) and bool((~passes & (case["q"] > 0)).any())

    return typical_case(draw, both)
