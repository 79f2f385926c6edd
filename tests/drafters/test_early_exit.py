"""Early exit: some of the target's own layers draft. Exact, without a copy of a single weight, and better when trained.

Statistical power: see sequence_distribution.py.
"""

from __future__ import annotations

import pytest
import torch

import minispec as ms

EarlyExit = ms.drafters.EarlyExit
PROMPTS = [[3, 1, 4, 1, 5], [9], [2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3], [27, 18]]


@pytest.fixture(scope="module")
def target(make_model) -> ms.Model:
    return make_model(num_layers=4)


def test_no_weight_is_copied(target):
    before = {name: value.clone() for name, value in target.transformer.state_dict().items()}
    drafter = EarlyExit(target, [0, 2, 3])
    mine, theirs = ({p.data_ptr() for p in model.transformer.parameters()} for model in (drafter.draft, target))
    assert mine < theirs
    assert drafter.draft.transformer.layers[1] is target.transformer.layers[2]
    ms.speculate(target, PROMPTS, drafter, 3, 8)
    after = target.transformer.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("layers", [1, 3, [0, 3], [2]], ids=str)
def test_it_drafts_with_just_these_layers(target, layers):
    """The view's law is the target's own pass with the other layers left out."""
    tokens = torch.tensor([PROMPTS[2]])
    view = EarlyExit(target, layers).draft.transformer
    whole = target.transformer
    assert torch.equal(view(tokens).logits, whole.head(whole.body(tokens, layers=layers)[0]))
    assert view.new_cache(1, 8).keys.shape[0] == view.config.num_layers == len(view.layers)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_all_layers_accept_everything(target, temperature):
    for layers in (4, range(4)):
        outs = ms.speculate(target, PROMPTS, EarlyExit(target, layers), 4, 20, temperature=temperature, seed=0)
        assert all(out.trace.acceptance_rate == 1.0 for out in outs)
        assert all(len(out.trace.cycles) == 4 for out in outs)  # five tokens a cycle
