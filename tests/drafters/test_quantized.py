"""The quantised draft: the target's weights on a coarser grid. The finer the grid, the more is accepted.

Statistical power: see sequence_distribution.py.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import minispec as ms
from minispec.load.quantize import dequantize, quantize

Quantized = ms.drafters.Quantized
PROMPTS = [[3, 1, 4, 1, 5], [9], [2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3], [27, 18]]


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


def test_acceptance_grows_with_bits_and_with_scales(tiny):
    """Σ min(p, q) on 32 texts that the target wrote."""
    written = ms.generate(tiny, [[i] for i in range(32)], 24, temperature=1.0, seed=0)
    texts = torch.tensor([out.tokens for out in written])
    p = tiny.transformer(texts).logits.softmax(-1)

    def acceptance(bits: int, group: int | None = None) -> float:
        q = Quantized(tiny, bits, group).draft.transformer(texts).logits.softmax(-1)
        return float(torch.minimum(p, q).sum(-1).mean())

    per_channel = [acceptance(bits) for bits in (2, 3, 4, 6, 8)]
    print("Σ min(p, q) with 2, 3, 4, 6, 8 bits:", [round(a, 3) for a in per_channel])
    assert per_channel == sorted(per_channel) and len(set(per_channel)) == 5
    assert per_channel[0] < 0.7 and per_channel[-1] > 0.97
    assert acceptance(4, group=8) > acceptance(4)
