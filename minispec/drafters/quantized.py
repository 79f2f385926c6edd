"""A quantised copy of the target drafts: nearly the same distributions, from weights of fewer bits."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from ..files.folder import build
from ..files.handle import Model
from ..files.quantize import dequantize, quantize
from ..sampling import Sampling
from .model import DraftModel


class Quantized(DraftModel):
    """Draft with the target's weights in `bits` bits: one scale per output channel, or per `group` of its inputs.

    This computes what a quantised model computes, on weights rounded and then expanded again, so acceptance is the
    real one and the speed is not: a draft is only cheaper where a kernel reads the few bits instead of the floats.
    """

    def __init__(self, target: Model, bits: int = 8, group: int | None = None, sampling: Sampling | None = None):
        super().__init__(quantized_copy(target, bits, group), sampling)
        self.bits, self.group = bits, group


def quantized_copy(model: Model, bits: int = 8, group: int | None = None) -> Model:
    """The model with the weight of every linear layer, the head's too, rounded to `bits` bits. All else is shared.

    The embedding stays as it is: a lookup reads one row per token, so fewer bits there save no time and cost
    acceptance. A head tied to it is untied, because a product does read all rows.
    """
    whole = model.transformer
    tensors = dict(whole.state_dict())
    for name, module in whole.named_modules():
        if isinstance(module, nn.Linear):
            tensors[f"{name}.weight"] = dequantize(*quantize(module.weight.detach(), bits, group))
    config = replace(model.config, tie_embeddings=False)
    copy = build(config, tensors, where=f"the copy of {model.name}", device=model.device, dtype=model.dtype)
    return Model(f"{model.name} in {bits} bits", copy, model.tokenizer, model.end_tokens, model.chat_template)
