"""What holds for every drafter: a draft depends on the sequence alone, not on its neighbours nor on what came before;
and it has no more nodes than a verify pass has room for.

(That output is the target's with each of them: ../test_speculate.py and ../serving/test_engine.py.)
"""

import random

import pytest
import torch
from all_drafters import ALL
from by_hand import paths, sequence

import minispec as ms
from minispec import tree
from minispec.drafters import Draft, Drafter, Lookahead, Medusa
from minispec.drafters.lookahead import Window
from minispec.sequence import Sequence

# ---------------------------------------------------------------- on the sequence alone

# Lookahead's window is made of earlier passes. How many numbers a cascade samples depends on its neighbours.
CASES = [(name, t) for name in ALL for t in (0.0, 1.0) if name != "lookahead" and not (t and "cascade" in name)]


def asked(target: ms.Model, drafter: Drafter, id: int, tokens: list[int], since: int, temperature: float) -> Sequence:
    sampling, layers = ms.Sampling(temperature), drafter.hidden_layers
    return sequence(tokens, target, layers, id=id, since=since, sampling=sampling, seed=len(tokens))


def kept_by(drafter: Drafter) -> list:
    """All that it remembers of any sequence."""
    memory = getattr(drafter, "memory", None)
    tables = [getattr(drafter, name, None) for name in ("known", "committed", "held")]
    tables += [getattr(memory, name, None) for name in ("lengths", "order", "seen", "cache")]
    return [table for table in tables if table]


@pytest.mark.parametrize("name, temperature", CASES)
def test_a_draft_depends_on_its_sequence_alone_in_any_order_of_events(make_model, name, temperature):
    """Sequences join, sit out, accept a part of a draft, go on without one, are preempted and end."""
    target, draft = make_model(num_layers=3), make_model(num_layers=1)
    drafter, fresh, rng = ALL[name](target, draft), ALL[name](target, draft), random.Random(5)
    texts, told, drafted = {}, {}, 0  # told: how many tokens' states each sequence's drafter was given
    for turn in range(12):
        if turn < 3 or rng.random() < 0.3:
            texts[turn], told[turn] = [rng.randrange(8) for _ in range(rng.randint(1, 8))], 0
        chosen, k = rng.sample(sorted(texts), rng.randint(1, len(texts))), rng.randint(1, 4)
        made = drafter.propose([asked(target, drafter, id, texts[id], told[id], temperature) for id in chosen], k)
        drafts = dict(zip(chosen, made, strict=True))
        for id, draft in drafts.items():
            (alone,) = fresh.propose([asked(target, fresh, id, texts[id], 0, temperature)], k)
            fresh.forget(id)
            assert (draft.tokens, draft.parents) == (alone.tokens, alone.parents)
            assert (draft.probs is None) == (alone.probs is None)
            assert draft.probs is None or torch.allclose(draft.probs, alone.probs, rtol=0, atol=1e-10)
            told[id], drafted = len(texts[id]) - 1, drafted + len(draft.tokens)
        for id in list(texts):
            path, tokens = [], drafts[id].tokens if id in drafts else []
            if tokens and (node := rng.randint(-1, len(tokens) - 1)) >= 0:
                path = tree.path_to(drafts[id].parents or range(-1, len(tokens) - 1), node)
            texts[id] += [*(tokens[i] for i in path), rng.randrange(8)]
            drafter.settle(id, path, texts[id][-1])
        if len(texts) > 2:
            drafter.rewind(preempted := rng.choice(sorted(texts)), 0)
            told[preempted] = 0
            drafter.forget(ended := rng.choice(sorted(texts)))
            del texts[ended]
    for id in texts:
        drafter.forget(id)
    assert not kept_by(drafter) and not kept_by(fresh) and drafted


# ---------------------------------------------------------------- as many nodes as are allowed

TEXTS = [[3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7, 9]]
# An engine gives chains of models and of lookups a smaller k instead.
BUDGETED = [
    name for name in ALL if name.partition(",")[0] in "medusa eagle dflash mtp dflash2 dspark lookahead".split()
]


def made(name: str, target: ms.Model) -> Drafter:
    drafter = ALL[name](target, None)
    if isinstance(drafter, Lookahead):  # every last token finds five guesses
        for row, text in enumerate(TEXTS):
            state = drafter.windows[row] = Window(random.Random(row), [[] for _ in range(3)])
            state.pool[text[-1]] = [(7, 8, 9), (7, 8, 1), (2, 3, 4), (7, 5, 5), (6, 6, 6)]
    return drafter


def propose(target: ms.Model, drafter: Drafter, k: int, budgets) -> list[Draft]:
    sequences = []
    for row, (tokens, budget) in enumerate(zip(TEXTS, budgets, strict=True)):
        sequences.append(sequence(tokens, target, drafter.hidden_layers, id=row, seed=row))
        sequences[-1].max_nodes = budget
    return drafter.propose(sequences, k)


@pytest.mark.slow
@pytest.mark.parametrize("name", BUDGETED)
def test_drafts_keep_to_their_budgets(tiny, name):
    """Each sequence has its own, and a part of its whole draft stays: as many nodes as are allowed."""
    for k in (1, 2, 4):
        whole = propose(tiny, made(name, tiny), k, [None] * 3)
        for budgets in ([None, 99, 99], [0, 1, 2], [4, 99, 1], [3, None, 0], [0, 0, 0]):
            drafts = propose(tiny, made(name, tiny), k, budgets)
            for draft, full, budget in zip(drafts, whole, budgets, strict=True):
                assert len(draft.tokens) == (len(full.tokens) if budget is None else min(budget, len(full.tokens)))
                kept = iter(paths(full))
                assert all(path in kept for path in paths(draft))  # in the same order
                if draft.parents is not None:
                    tree.check_parents(draft.parents)
                assert (draft.scratch is None) == (full.scratch is None)


@pytest.mark.parametrize("name", ["medusa", "eagle, tree", "dflash, tree", "mtp, tree", "dflash2, tree"])
def test_what_stays_is_the_best_tree_of_that_size(tiny, name):
    for budget in (1, 2, 5):
        drafter, small = made(name, tiny), made(name, tiny)
        small.nodes = budget
        if name == "medusa":
            drafter.heads.accuracy = [[0.5, 0.31, 0.11], [0.45, 0.19, 0.17], [0.4, 0.21, 0.13]]  # no two nodes tie
            drafter, small = (Medusa(tiny, drafter.heads, nodes) for nodes in (drafter.nodes, budget))
        assert propose(tiny, drafter, 3, [budget] * 3) == propose(tiny, small, 3, [None] * 3)


@pytest.mark.parametrize("name", ALL)
def test_no_draft_needs_more_slots_than_it_says(tiny, tiny_draft, name):
    """And a cache for drafts of k holds shorter ones."""
    for k in range(1, 9):
        drafter = made(name, tiny) if name in BUDGETED else ALL[name](tiny, tiny_draft)
        drafts = propose(tiny, drafter, k, [None] * 3)
        assert drafter.tree or all(draft.parents is None for draft in drafts)
        nodes = max(len(draft.tokens) for draft in drafts)
        assert nodes <= drafter.max_tree_nodes(k) <= drafter.max_tree_nodes(k + 1)
