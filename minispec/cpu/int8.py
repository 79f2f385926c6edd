"""A linear layer whose weight is int8: a quarter of the bytes that float32 makes a token read, and another model.

The weight is W̃ = s · W_int with one scale per row (load/quantize.py). It is kept in panels alone (panels.py), a byte
per parameter, and a pass of few tokens multiplies with these. For many tokens, and for whoever asks for `weight`, W̃ is
expanded into a temporary matrix of float32.

SmolLM2 on two quiet Neoverse-N1 cores, after 256 cached tokens: a pass of one token takes 11.4 ms in place of 21.9, of
five 26.6 in place of 29.0 (one thread: 15.4 and 36.1, 44.7 and 49.9). It is never slower, but five tokens cost 2.3
plain passes in place of 1.3, because reading was most of the pass and is no longer: speculation has less to gain.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import machine, trials
from .panels import GROUP, Panels, fits, multiply

# In groups, one after the other. On a Neoverse-N1 core a SmolLM2 prompt of 64 and of 128 tokens took 0.4 and 0.8 s of
# processor time in groups, and 1.0 and 1.3 s with weights that were expanded first.
MOST_TOKENS = 256


class Int8Linear(nn.Linear):
    """x W̃ᵀ + b. To everybody else it is a linear layer with the weight W̃; nothing is left of what was rounded."""

    def __init__(self, integers: Tensor, scale: Tensor, bias: Tensor | None = None):
        nn.Module.__init__(self)  # not nn.Linear's: it would make a weight
        self.out_features, self.in_features = integers.shape
        panels = Panels(integers, scale.reshape(-1))
        self.register_buffer("integers", panels.data)  # int8
        self.register_buffer("scale", panels.scale)  # [N] float32, and some zeros
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    @property
    def weight(self) -> Tensor:
        """W̃ [N, K] in float32, made anew whenever it is asked for."""
        integers = self.integers.transpose(1, 2)  # [N/16, 16, K], or [N/16, 16, K/4, 4]
        integers = integers.flatten(2)[..., : self.in_features]
        return (integers * self.scale.view(-1, 16, 1)).flatten(0, 1)[: self.out_features]

    def forward(self, x: Tensor) -> Tensor:
        M = math.prod(x.shape[:-1])
        compiled = machine.wish() != "torch" and machine.compiled() is not None
        if not 1 <= M <= MOST_TOKENS or not fits(x, self.scale) or not compiled:
            return F.linear(x, self.weight.to(x.dtype), self.bias)
        panels, threads = self.panels, trials.threads_for(self.integers.nbytes)
        tokens = x.detach().reshape(M, -1)
        y = torch.cat([multiply(group, panels, threads) for group in tokens.split(GROUP)])
        y = y.view(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias

    @property
    def panels(self) -> Panels:
        """What the product reads: the layer's own memory, wherever it was moved."""
        panels = Panels.__new__(Panels)
        panels.N, panels.K, panels.data, panels.scale = self.out_features, self.in_features, self.integers, self.scale
        return panels

    def _save_to_state_dict(self, destination, prefix, keep_vars) -> None:
        """Under the names of a linear layer, so that a copy or a file of the model holds what it computes with."""
        destination[f"{prefix}weight"] = self.weight
        if self.bias is not None:
            destination[f"{prefix}bias"] = self.bias.detach()
