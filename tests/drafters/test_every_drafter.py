"""What holds for every drafter: a draft depends on the sequence alone, not on its neighbours nor on what came before.

(That output is the target's with each of them: ../test_speculate.py and ../serving/test_engine.py.)
"""

import random

import pytest
import torch
from all_drafters import ALL
from by_hand import sequence

import minispec as ms
from minispec import tree
from minispec.drafters import Drafter
from minispec.sequence import Sequence

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
