"""Token trees: masks and positions against their definition and against a real model, and the two ways to build one."""

import math
from itertools import combinations, product
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minispec import tree
from minispec.drafters import growth, lookahead

PARENTS = st.integers(0, 12).flatmap(lambda n: st.tuples(*(st.integers(-1, i - 1) for i in range(n))).map(list))
BRANCHES = st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=6)
TWIG = [-1, -1, 0, 0, 1, 4]  # root → {0 → {2, 3}, 1 → 4 → 5}


def test_by_hand():
    assert tree.children(TWIG) == {-1: [0, 1], 0: [2, 3], 1: [4], 2: [], 3: [], 4: [5], 5: []}
    assert tree.depths(TWIG) == [1, 1, 2, 2, 2, 3]


@given(PARENTS)
def test_masks_show_exactly_the_ancestors(parents):
    n = len(parents)
    whole = tree.verify_mask(parents)
    mask = whole[1:, 1:]
    assert mask.shape == (n, n) and whole.shape == (n + 1, n + 1) and mask.dtype == whole.dtype == torch.bool
    for i in range(n):
        assert mask[i].nonzero().flatten().tolist() == tree.path_to(parents, i)
        assert whole[i + 1].nonzero().flatten().tolist() == [0] + [j + 1 for j in tree.path_to(parents, i)]
        assert tree.depths(parents)[i] == len(tree.path_to(parents, i))
    assert whole[0].tolist() == [True] + [False] * n


@given(BRANCHES)
def test_merge_is_the_trie_of_its_branches(branches):
    tokens, parents = lookahead.merge(branches)
    tree.check_parents(parents)
    texts = [tuple(tokens[i] for i in tree.path_to(parents, node)) for node in range(len(tokens))]
    assert len(set(texts)) == len(texts)
    assert set(texts) == {tuple(branch[:i]) for branch in branches for i in range(1, len(branch) + 1)}


# ---- static trees --------------------------------------------------------------------------------------------------


ACCURACIES = st.lists(st.lists(st.floats(0, 0.5), min_size=1, max_size=2), min_size=1, max_size=3)


@given(ACCURACIES, st.integers(1, 5))
def test_best_tree_is_the_best_of_all_trees(accuracies, budget):
    everything = [c for d in range(1, len(accuracies) + 1) for c in product(*(range(len(a)) for a in accuracies[:d]))]
    count = min(budget, len(everything))
    rivals = (
        tree.expected_tokens(accuracies, rival)
        for rival in combinations(everything, count)
        if all(choice[:-1] in {(), *rival} for choice in rival)
    )
    found = tree.best_tree(accuracies, budget)
    assert len(found) == len(set(found)) == count
    tree.from_candidates([[0] * len(a) for a in accuracies], found)  # every node has its parent
    assert tree.expected_tokens(accuracies, found) == pytest.approx(max(rivals), abs=1e-12)


# ---- dynamic trees -------------------------------------------------------------------------------------------------


def test_grow_expands_the_likeliest_and_keeps_the_likeliest():
    below = {"a": [("c", 0.9), ("d", 0.1)], "b": [("e", 0.6), ("f", 0.4)], "c": [("g", 0.5)], "e": [("h", 0.5)]}
    number = {name: ord(name) for name in "abcdefghx"}
    calls = []

    def scored(pairs):
        return [(number[name], math.log(p)) for name, p in pairs]

    def expand(so_far, nodes):
        calls.append([chr(so_far.tokens[node]) for node in nodes])
        return [scored(below[chr(so_far.tokens[node])]) for node in nodes]

    # reach: a .5, b .4, x .1 | c .45, d .05, e .24, f .16 | g .225, h .12
    kept = growth.grow(scored([("a", 0.5), ("b", 0.4), ("x", 0.1)]), expand, depth=3, width=2, budget=6)
    assert calls == [["a", "b"], ["c", "e"]]  # one call a depth, the two likeliest nodes of it
    assert [chr(token) for token in kept.tokens] == ["a", "b", "c", "e", "f", "g"]
    assert kept.parents == [-1, -1, 0, 1, 1, 2]


@given(st.integers(0, 999), st.integers(1, 4), st.integers(1, 5), st.integers(1, 5), st.integers(1, 6))
def test_trees_grow_together_as_they_do_alone(seed, trees, tokens, depth, width):
    """Trees of different budgets, grown together, are those that `grow` makes one by one.

    The log-probabilities are multiples of a quarter, some are 0: many nodes have the same score, also as their parents.
    """
    generator = torch.Generator().manual_seed(seed)
    log_q = -0.25 * torch.randint(5, (trees, tokens + 1, tokens), generator=generator)  # after a token; the last: root
    budgets = torch.randint(12, (trees,), generator=generator).tolist()
    seen = torch.zeros(trees, 1, dtype=torch.long)  # of the nodes expanded last: how often token 0 is on their paths

    def children(b: int, path: list[int]) -> torch.Tensor:
        return log_q[b, path[-1] if path else tokens] - 0.25 * path.count(0)

    def expand_one(so_far, nodes, b):
        paths = [[so_far.tokens[i] for i in tree.path_to(so_far.parents, node)] for node in nodes]
        return [[*enumerate(children(b, path).tolist())] for path in paths]

    def expand(level, chosen, parents):
        nonlocal seen
        if level == 0:
            scores = log_q[:, tokens, None]
        else:
            seen = seen.gather(1, parents) + (chosen == 0)
            scores = log_q[torch.arange(trees)[:, None], chosen] - 0.25 * seen[..., None]
        return torch.arange(tokens).expand(scores.shape), scores

    found = growth.grow_batch(expand, depth, width, budgets)
    for b, budget in enumerate(budgets):
        if budget == 0:
            assert found[b].tokens == []
            continue
        root = [*enumerate(children(b, []).tolist())]
        expected = growth.grow(root, lambda so_far, nodes, b=b: expand_one(so_far, nodes, b), depth, width, budget)
        assert (found[b].tokens, found[b].parents) == expected


def test_ancestors_of_a_batch():
    """Of many trees at once what `verify_mask` says of each, whether or not it is known how deep they are."""
    random = Random(0)
    for n in (0, 1, 2, 3, 5, 8, 9, 17, 33):
        chain, star = list(range(-1, n - 1)), [-1] * n
        some = [chain, star, *([random.randint(-1, i - 1) for i in range(n)] for _ in range(4))]
        deep = [[max(-1, i - random.randint(1, 2)) for i in range(n)] for _ in range(4)]  # many levels
        trees = some + deep
        expected = torch.stack([tree.verify_mask(parents)[1:, 1:] for parents in trees])
        depth = max((max(tree.depths(parents), default=0) for parents in trees[1:]), default=0)
        found = torch.tensor(trees, dtype=torch.long).view(len(trees), n)
        assert torch.equal(tree.ancestors(found), expected)
        assert torch.equal(tree.ancestors(found[1:], depth), expected[1:])
