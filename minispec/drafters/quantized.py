"""A quantised copy of the target drafts: nearly the same distributions, from weights of fewer bits."""

from dataclasses import replace

import torch
from torch import nn

from ..cpu import machine
from ..load.folder import build
from ..load.model import Model
from ..load.quantize import dequantize, quantize, to_int8
from ..sampling import Sampling
from .model import DraftModel


class Quantized(DraftModel):
    """Draft with the target's weights in `bits` bits: one scale per output channel, or per `group` of its inputs.

    A draft is only cheaper where a product reads the few bits instead of the floats: 8 bits with a scale per channel on
    a CPU (cpu/int8.py), where a SmolLM2 token costs c = 0.43 of the target's on one Neoverse-N1 core. All else computes
    on weights rounded and then expanded again: acceptance is the real one, and the speed is the target's.
    """

    def __init__(self, target: Model, bits: int = 8, group: int | None = None, sampling: Sampling | None = None):
        super().__init__(quantized_copy(target, bits, group), sampling)
        self.bits, self.group = bits, group


def quantized_copy(model: Model, bits: int = 8, group: int | None = None) -> Model:
    """The model with the weight of every linear layer, the head's too, rounded to `bits` bits. All else is shared: the
    embedding stays as it is, and a head tied to it is untied (load/quantize.to_int8 says why)."""
    whole = model.transformer
    tensors = dict(whole.state_dict())
    for name, module in whole.named_modules():
        if isinstance(module, nn.Linear):
            tensors[f"{name}.weight"] = dequantize(*quantize(module.weight.detach(), bits, group))
    config = replace(model.config, tie_embeddings=False)
    copy = build(config, tensors, where=f"the copy of {model.name}", device=model.device, dtype=model.dtype)
    if bits == 8 and group is None and has_product(model):
        to_int8(copy)  # rounding twice changes nothing
    return model.around(copy, f"{model.name} in {bits} bits")


def has_product(model: Model) -> bool:
    """Whether int8 weights of this model are multiplied as they are. A small model's stay in the cache either way."""
    c = model.config
    large = c.hidden_size * max(c.vocab_size, c.intermediate_size) >= machine.REPAYS_LOADING
    possible = model.device.type == "cpu" and model.dtype == torch.float32 and machine.wish() != "torch"
    return large and possible and machine.compiled() is not None
