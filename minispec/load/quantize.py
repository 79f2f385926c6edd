"""Symmetric quantisation: W ≈ s · W_int with s = max|W| / (2^{b−1} − 1), one scale per output channel or per group.

Rounding to the nearest step errs by at most s/2, so a smaller s is a smaller error: a scale per row (channel) beats one
per tensor, and a scale per group of a row beats both, at the price of storing more scales.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from ..cpu.int8 import Int8Linear
from ..model import Transformer
from ..require import require


def quantize(weight: Tensor, bits: int = 8, group: int | None = None) -> tuple[Tensor, Tensor]:
    """Weight [out, in] as integers of `bits` bits (in int8 storage) [out, in] and scales [out, groups]."""
    require(bits in range(2, 9), "a whole number from 2 to 8", bits=bits)
    rows, columns = weight.shape
    group = columns if group is None else group
    require(group >= 1 and columns % group == 0, f"a divisor of the {columns} columns of this weight", group=group)
    largest = 2 ** (bits - 1) - 1  # 127 for int8: symmetric, so −128 stays unused
    blocks = weight.float().view(rows, columns // group, group)
    scale = blocks.abs().amax(-1) / largest  # [out, groups]
    scale = torch.where(scale == 0, 1.0, scale)  # an all-zero block is zero with any scale
    integers = (blocks / scale[..., None]).round().to(torch.int8)
    return integers.view(rows, columns), scale


def dequantize(integers: Tensor, scale: Tensor) -> Tensor:
    """W̃ = s · W_int, in the scale's dtype."""
    rows, columns = integers.shape
    blocks = integers.view(rows, scale.shape[1], -1).to(scale.dtype) * scale[..., None]
    return blocks.view(rows, columns)


def to_int8(transformer: Transformer) -> Transformer:
    """The same model object with every matrix of the layers and of the LM head in int8; the float32 ones are let go.

    The embedding stays as it is: a lookup reads one row per token, so fewer bits there save no time and cost
    accuracy. A head tied to it is untied, because a product does read all rows. Norms and biases stay, too.
    """
    if transformer.config.experts is not None:
        raise ValueError("weights='int8' is for dense models, and this is a mixture of experts: leave weights out")
    for module in list(transformer.modules()):
        for name, part in module.named_children():
            if isinstance(part, nn.Linear):
                setattr(module, name, Int8Linear(*quantize(part.weight.detach()), part.bias))  # a scale per row
    transformer.config = replace(transformer.config, tie_embeddings=False)
    return transformer
