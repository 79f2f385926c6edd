"""Trees keep to the number of nodes that a verify pass has room for: the best ones of each tree stay."""

import random

import pytest
from all_drafters import random_dflash, random_eagle, random_medusa
from by_hand import sequence

import minispec as ms
from minispec import tree
from minispec.drafters import Draft, Drafter
from minispec.drafters.lookahead import Window

D = ms.drafters
TEXTS = [[3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7, 9]]


def full_lookahead(target: ms.Model) -> D.Lookahead:
    """Every last token finds five guesses."""
    drafter = D.Lookahead(target)
    for row, text in enumerate(TEXTS):
        state = drafter.windows[row] = Window(random.Random(row), [[] for _ in range(3)])
        state.pool[text[-1]] = [(7, 8, 9), (7, 8, 1), (2, 3, 4), (7, 5, 5), (6, 6, 6)]
    return drafter


MAKE = {
    "medusa": lambda target: D.Medusa(target, random_medusa(target), nodes=9),
    "medusa, chain": lambda target: D.Medusa(target, random_medusa(target), tree="chain"),
    "eagle": lambda target: D.Eagle(target, random_eagle(target), width=3, nodes=12),
    "eagle, chain": lambda target: D.Eagle(target, random_eagle(target), tree=False),
    "dflash": lambda target: D.DFlash(target, random_dflash(target), nodes=12),
    "dflash, chain": lambda target: D.DFlash(target, random_dflash(target), tree=False),
    "lookahead": full_lookahead,
}


def propose(target: ms.Model, drafter: Drafter, k: int, budgets) -> list[Draft]:
    sequences = []
    for row, (tokens, budget) in enumerate(zip(TEXTS, budgets, strict=True)):
        sequences.append(sequence(tokens, target, drafter.hidden_layers, id=row, seed=row))
        sequences[-1].max_nodes = budget
    return drafter.propose(sequences, k)


def paths(draft: Draft) -> list[tuple[int, ...]]:
    """Every node as the tokens of its path."""
    parents = range(-1, len(draft.tokens) - 1) if draft.parents is None else draft.parents
    return [tuple(draft.tokens[i] for i in tree.path_to(parents, node)) for node in range(len(draft.tokens))]


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKE)
def test_drafts_keep_to_their_budgets(tiny, name):
    """Each sequence has its own, and a part of its whole draft stays: as many nodes as are allowed."""
    for k in (1, 2, 4):
        whole = propose(tiny, MAKE[name](tiny), k, [None] * 3)
        for budgets in ([None, 99, 99], [0, 1, 2], [4, 99, 1], [3, None, 0], [0, 0, 0]):
            drafts = propose(tiny, MAKE[name](tiny), k, budgets)
            for draft, full, budget in zip(drafts, whole, budgets, strict=True):
                assert len(draft.tokens) == (len(full.tokens) if budget is None else min(budget, len(full.tokens)))
                kept = iter(paths(full))
                assert all(path in kept for path in paths(draft))  # in the same order
                if draft.parents is not None:
                    tree.check_parents(draft.parents)
                assert (draft.scratch is None) == (full.scratch is None)


@pytest.mark.parametrize("name", ["medusa", "eagle", "dflash"])
def test_what_stays_is_the_best_tree_of_that_size(tiny, name):
    for budget in (1, 2, 5, 8):
        drafter, small = MAKE[name](tiny), MAKE[name](tiny)
        small.nodes = budget
        if name == "medusa":
            drafter.heads.accuracy = [[0.5, 0.31, 0.11], [0.45, 0.19, 0.17], [0.4, 0.21, 0.13]]  # no two nodes tie
            drafter, small = (D.Medusa(tiny, drafter.heads, nodes) for nodes in (drafter.nodes, budget))
        assert propose(tiny, drafter, 3, [budget] * 3) == propose(tiny, small, 3, [None] * 3)


@pytest.mark.parametrize("name", MAKE)
def test_no_draft_needs_more_slots_than_it_says(tiny, name):
    drafter = MAKE[name](tiny)
    for k in range(1, 9):
        nodes = max(len(draft.tokens) for draft in propose(tiny, MAKE[name](tiny), k, [None] * 3))
        assert nodes <= drafter.max_tree_nodes(k)
        assert drafter.max_tree_nodes(k) <= drafter.max_tree_nodes(k + 1)  # a cache for drafts of k holds shorter ones
