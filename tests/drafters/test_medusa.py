"""Medusa: what the heads propose is their formula, the tree is the best one, and training sees what drafting sees."""

import pytest
import torch
from all_drafters import random_medusa
from by_hand import sequence
from loop_checks import SAMPLED_PROMPT, SAMPLED_TOKENS, countable_pair, expected_distribution, sample
from sequence_distribution import chi_square

import minispec as ms
from minispec.drafters import Medusa, MedusaHeads
from minispec.tree import best_tree, depths, from_candidates

PROMPTS = [[3, 1, 4, 1, 5], [9], [2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3], [27, 18]]
IDS = torch.arange(0, 64, 3)  # a reduced vocabulary


def last_states(target: ms.Model, text: list[int]) -> torch.Tensor:
    """What the LM head is given at every position of a sequence, from one plain pass: [T, d]."""
    return target.transformer.norm(target.transformer.body(torch.tensor([text], device=target.device))[0][0])


def by_hand(target: ms.Model, heads: MedusaHeads, h: torch.Tensor) -> list[torch.Tensor]:
    """Logits of every head, one after another, from one state h [d]."""
    d, ids = len(h), range(target.config.vocab_size) if heads.head_ids is None else heads.head_ids.tolist()
    own = heads.own_head in (True, "each")
    W2 = heads.head if own else torch.stack([target.transformer.lm_head.weight[i] for i in ids])
    logits = []
    for k in range(heads.count):
        z = h
        parts = [heads.weight.view(-1, d, d), heads.bias.view(-1, d), *heads.more]
        for W1, b in zip(parts[::2], parts[1::2], strict=True):
            a = W1[k] @ z + b[k]
            z = z + a / (1 + torch.exp(-a))
        own = W2 @ (torch.eye(d, dtype=h.dtype) + heads.map[k]) if heads.own_head == "map" else W2
        logits.append((own[k] if heads.own_head == "each" else own) @ z)
    return logits


def candidates_by_hand(target: ms.Model, heads: MedusaHeads, text: list[int]) -> list[list[int]]:
    """The best tokens of each head for a sequence whose last token was not processed yet."""
    ids = torch.arange(target.config.vocab_size) if heads.head_ids is None else heads.head_ids
    logits = by_hand(target, heads, last_states(target, text[:-1])[-1])
    return [ids[head.argsort(descending=True)][:10].tolist() for head in logits]


# ---------------------------------------------------------------- the heads


def test_the_formula(tiny):
    shapes = [{}, {"own_head": "each"}, {"own_head": "map"}, {"own_head": "map", "blocks": 3}]
    for head_ids, more in ((ids, more) for ids in (None, IDS) for more in shapes):
        heads, h = random_medusa(tiny, head_ids=head_ids, **more), last_states(tiny, PROMPTS[0])
        for state, logits in zip(h, heads(h), strict=True):
            assert torch.allclose(logits, torch.stack(by_hand(tiny, heads, state)), rtol=0, atol=1e-12), more
        best = heads(h).argsort(-1, descending=True)[..., :10]
        assert torch.equal(heads.candidates(h), best if head_ids is None else head_ids[best])


# ---------------------------------------------------------------- what is drafted


@pytest.mark.parametrize("tree", ["best", "chain"])
def test_drafts_are_the_heads_candidates(tiny, tree):
    """Of sequences of different lengths: the shape that fits k, with the candidates that the formula gives."""
    heads = random_medusa(tiny, head_ids=IDS)
    for k in (1, 2, 3, 9):  # never deeper than there are heads
        drafter, n = Medusa(tiny, heads, nodes=9, tree=tree), min(k, 3)
        shape = best_tree(heads.accuracy[:n], 9) if tree == "best" else [(0,), (0, 0), (0, 0, 0)][:n]
        for prompt in PROMPTS[::2]:
            (draft,) = drafter.propose([sequence(prompt, tiny, drafter.hidden_layers)], k)
            expected = from_candidates(candidates_by_hand(tiny, heads, prompt), shape)
            assert draft.tokens == expected.tokens and draft.probs is None
            assert draft.parents == (None if tree == "chain" else expected.parents)
            assert len(draft.tokens) == drafter.max_tree_nodes(k) and max(depths(expected.parents)) <= k


# ---------------------------------------------------------------- typical acceptance: not lossless


@pytest.mark.slow
def test_typical_acceptance_is_not_lossless():
    """The first cycle's draft is the same in every row, and so is what is accepted of it, whatever p says.

    1,000 outputs; the lossless drafter with the same tree passes the same check.
    """
    target = countable_pair()[0]
    drafters = {exact: Medusa(target, random_medusa(target), nodes=6, lossless=exact) for exact in (True, False)}
    outputs = {exact: sample(each, 3, seed=1, draws=1000, temperature=1.0) for exact, each in drafters.items()}
    expected = expected_distribution(temperature=1.0)
    assert chi_square(outputs[True], expected) > 1e-4 and chi_square(outputs[False], expected) < 1e-12
    out = ms.speculate(target, SAMPLED_PROMPT, drafters[False], 3, SAMPLED_TOKENS, temperature=1.0, seed=0)
    first = out.trace.cycles[0]
    p = (
        target.transformer(torch.tensor([[*SAMPLED_PROMPT, *first.drafted]]))
        .logits[0, len(SAMPLED_PROMPT) - 1]
        .softmax(-1)
    )
    entropy = float(torch.special.entr(p).sum())
    roots = [token for token, parent in zip(first.drafted, first.parents, strict=True) if parent == -1]
    passes = [token for token in roots if p[token] > min(0.09, 0.3 * 2.718281828**-entropy)]
    assert passes and {output[0] for output in outputs[False]} <= {*passes}  # certain now, where p had
    assert float(p[passes].sum()) < 0.999 and len({output[0] for output in outputs[True]}) == 5
    assert first.accepted and not first.lossless and "not lossless" in repr(drafters[False])
    assert '"lossless": false' in out.trace.to_json() and "lossless" not in repr(drafters[True])
