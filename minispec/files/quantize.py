"""Symmetric quantisation: W ≈ s · W_int with s = max|W| / (2^{b−1} − 1), one scale per output channel or per group.

Rounding to the nearest step errs by at most s/2, so a smaller s is a smaller error: a scale per row (channel) beats one
per tensor, and a scale per group of a row beats both, at the price of storing more scales.
"""

from __future__ import annotations

import torch
from torch import Tensor


def quantize(weight: Tensor, bits: int = 8, group: int | None = None) -> tuple[Tensor, Tensor]:
    """Weight [out, in] as integers of `bits` bits (in int8 storage) [out, in] and scales [out, groups]."""
    if bits not in range(2, 9):
        raise ValueError(f"bits={bits}: give a whole number from 2 to 8")
    rows, columns = weight.shape
    group = columns if group is None else group
    if group < 1 or columns % group:
        raise ValueError(f"group={group} does not divide the {columns} columns of this weight")
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
