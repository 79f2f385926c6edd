"""The target drafts for itself: with some of its layers, without a copy of a single weight, or on a coarser grid."""

import pytest
import torch
from torch import nn

import minispec as ms
from minispec.load.quantize import dequantize, quantize

EarlyExit, Quantized = ms.drafters.EarlyExit, ms.drafters.Quantized
PROMPTS = [[3, 1, 4, 1, 5], [9], [2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3], [27, 18]]


@pytest.fixture(scope="module")
def target(make_model) -> ms.Model:
    return make_model(num_layers=4)


def test_no_weight_is_copied(target):
    before = {name: value.clone() for name, value in target.transformer.state_dict().items()}
    drafter = EarlyExit(target, 3)
    mine, theirs = ({p.data_ptr() for p in model.transformer.parameters()} for model in (drafter.draft, target))
    assert mine < theirs
    assert drafter.draft.transformer.layers[2] is target.transformer.layers[2]
    ms.speculate(target, PROMPTS, drafter, 3, 8)
    after = target.transformer.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("layers", [1, 3])
def test_it_drafts_with_just_these_layers(target, layers):
    """The view's logits are those of the target's own pass with the other layers left out."""
    tokens = torch.tensor([PROMPTS[2]])
    view = EarlyExit(target, layers).draft.transformer
    whole = target.transformer
    assert torch.equal(view(tokens).logits, whole.head(whole.body(tokens, layers=layers)[0]))
    assert view.new_cache(1, 8).keys.shape[0] == view.config.num_layers == len(view.layers)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_all_layers_accept_everything(target, temperature):
    outs = ms.speculate(target, PROMPTS, EarlyExit(target, 4), 4, 20, temperature=temperature, seed=0)
    assert all(out.trace.acceptance_rate == 1.0 for out in outs)
    assert all(len(out.trace.cycles) == 4 for out in outs)  # five tokens per cycle


def linears(model: ms.Model) -> dict[str, torch.Tensor]:
    return {name: m.weight for name, m in model.transformer.named_modules() if isinstance(m, nn.Linear)}


@pytest.mark.parametrize("overrides", [dict(), dict(tie_embeddings=True), dict(qkv_bias=True, qk_norm=True)], ids=str)
def test_every_linear_is_on_the_grid_and_nothing_else_changes(make_model, overrides):
    target = make_model(**overrides)
    before = {name: value.clone() for name, value in target.transformer.state_dict().items()}
    draft = Quantized(target, 4, group=8).draft
    rounded = linears(draft)
    assert len(rounded) == 7 * target.config.num_layers + 1 and "lm_head" in rounded
    for name, weight in linears(target).items():
        expected = dequantize(*quantize(weight, 4, 8)).to(weight.dtype)
        assert torch.equal(rounded[name], expected) and not torch.equal(weight, expected)
    after = draft.transformer.state_dict()
    shared = [name for name in after if name.removesuffix(".weight") not in rounded]
    assert "embed_tokens.weight" in shared and any("norm" in name for name in shared)
    for name in shared:  # embedding, norms and biases: the very same memory
        assert after[name].data_ptr() == target.transformer.state_dict()[name].data_ptr()
    assert all(torch.equal(before[name], value) for name, value in target.transformer.state_dict().items())
