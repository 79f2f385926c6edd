"""Early exit: some of the target's own layers draft. Exact, without a copy of a single weight, and better when trained.

Statistical power: see sequence_distribution.py.
"""

from __future__ import annotations

import pytest
import torch
from sequence_distribution import DRAWS, assert_follows, joint_distribution, many_rows

import minispec as ms
from minispec.drafters.early_exit import Adapter
from minispec.model import RMSNorm

EarlyExit = ms.drafters.EarlyExit
PROMPTS = [[3, 1, 4, 1, 5], [9], [2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3], [27, 18]]
SMALL = dict(vocab_size=5, hidden_size=16, intermediate_size=24, num_layers=3, num_heads=2, num_kv_heads=1)


@pytest.fixture(scope="module")
def target(make_model) -> ms.Model:
    return make_model(num_layers=4)


def overlap(target: ms.Model, drafter: ms.drafters.Model, texts: list[list[int]]) -> float:
    """Mean Σ min(p, q) over all positions of these texts: the acceptance at T = 1."""
    with torch.inference_mode():
        p, q = (model.transformer(torch.tensor(texts)).logits.softmax(-1) for model in (target, drafter.draft))
    return float(torch.minimum(p, q).sum(-1).mean())


@pytest.mark.slow
@pytest.mark.parametrize("layers", [None, [0, 1, 3]], ids=str)
def test_greedy_equals_generate(target, layers):
    plain = [out.tokens for out in ms.generate(target, PROMPTS, 16)]
    drafter = EarlyExit(target, layers)
    for k in range(1, 9):
        assert [out.tokens for out in ms.speculate(target, PROMPTS, drafter, k, 16)] == plain


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layers", "knobs"), [([0, 2], dict(temperature=1.0)), (2, dict(temperature=0.7, top_k=4, top_p=0.9))], ids=str
)
def test_sampled_texts_follow_the_law_of_the_target(make_model, layers, knobs):
    target = make_model(**SMALL)
    with many_rows():
        outs = ms.speculate(target, [[1, 2, 3]] * DRAWS, EarlyExit(target, layers), 2, 3, **knobs)
    assert_follows(
        [out.tokens for out in outs], joint_distribution(target, [1, 2, 3], 3, ms.Sampling(**knobs)), str(knobs)
    )
    accepted = sum(out.trace.cycles[0].accepted for out in outs) / DRAWS
    assert 0.2 < accepted < 1.8  # both ways a cycle can end were put to the test


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


def test_the_default_is_half_of_the_layers(target, make_model):
    assert EarlyExit(target).layers == [0, 1]
    assert EarlyExit(make_model(num_layers=1)).layers == [0]


@pytest.mark.slow
@pytest.mark.parametrize("exit", [Adapter(16), RMSNorm(16, 1e-5)], ids=["adapter", "norm"])
def test_a_trained_exit_accepts_more_and_stays_exact(make_model, exit):
    """Trained on 32 texts, measured on 32 others that the target wrote too."""
    target = make_model(**SMALL | dict(vocab_size=8))
    written = ms.generate(target, [[i % 8] for i in range(64)], 24, temperature=1.0, seed=3)
    texts = [out.tokens for out in written]
    weights = {name: value.clone() for name, value in target.transformer.state_dict().items()}
    untrained, drafter = EarlyExit(target, 1), EarlyExit(target, 1, exit)
    losses = drafter.train_exit(texts[:32], steps=80, lr=1e-2)
    assert len(losses) == 80 and sum(losses[-10:]) < sum(losses[:10])
    before, after = (overlap(target, d, texts[32:]) for d in (untrained, drafter))
    print(f"Σ min(p, q): {before:.3f} untrained, {after:.3f} trained")
    assert after > before + 0.02
    # The target is what it was, and knows nothing of the training.
    assert all(torch.equal(weights[name], value) for name, value in target.transformer.state_dict().items())
    assert all(p.grad is None for p in target.transformer.parameters())
    prompts = [[1, 2], [3]]
    plain = [out.tokens for out in ms.generate(target, prompts, 12)]
    assert [out.tokens for out in ms.speculate(target, prompts, drafter, 3, 12)] == plain


@pytest.mark.slow
def test_an_adapter_starts_as_the_untrained_exit_and_training_repeats(target):
    tokens = torch.tensor([PROMPTS[0]])
    plain, adapted = EarlyExit(target, 2), EarlyExit(target, 2, Adapter(32))
    assert torch.equal(plain.draft.transformer(tokens).logits, adapted.draft.transformer(tokens).logits)
    again = EarlyExit(target, 2, Adapter(32))
    state = torch.get_rng_state()
    assert adapted.train_exit(PROMPTS, steps=5) == again.train_exit(PROMPTS, steps=5)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("layers", [0, -1, 5, [], [0, 0], [2, 1], [0, 4], [-1, 2]], ids=str)
def test_layers_that_do_not_exist_are_refused(target, layers):
    with pytest.raises(ValueError, match="layers="):
        EarlyExit(target, layers)


def test_without_an_exit_there_is_nothing_to_train(target):
    with pytest.raises(ValueError, match="exit=None"):
        EarlyExit(target, 2).train_exit(PROMPTS)
