"""What heads compute, straight from the definitions: one position at a time, no cache, no batch, no mask."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from minispec.model import rope_at, rotate


def rms(x: Tensor, gain: Tensor | float = 1.0, eps: float = 1e-5) -> Tensor:
    return gain * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def turn(c, x: Tensor, position: int) -> Tensor:
    """RoPE: x [H, D] at a position. Rotations are the model's, which test_model.py compares with transformers'."""
    return rotate(x[None, :, None], *rope_at(c, torch.tensor([[position]]), x.dtype))[0, :, 0]


class Attention:
    """Each new entry attends to all before it and to itself; keys and values are plain lists."""

    def __init__(self, c, weight: Callable[[str], Tensor]):
        self.c, self.weight, self.keys, self.values = c, weight, [], []  # weight("q") is that of q_proj, …

    def __call__(self, x: Tensor) -> Tensor:
        c, position, out = self.c, len(self.keys), []
        q, k, v = ((self.weight(n) @ x).view(-1, c.head_dim) for n in "qkv")
        self.keys.append(turn(c, k, position))
        self.values.append(v)
        for h, query in enumerate(turn(c, q, position)):
            kv = h // (c.num_heads // c.num_kv_heads)
            share = torch.stack([key[kv] @ query for key in self.keys]) / c.head_dim**0.5
            out.append(share.softmax(0) @ torch.stack([value[kv] for value in self.values]))
        return self.weight("o") @ torch.cat(out)


def of_module(attn) -> Callable[[str], Tensor]:
    return lambda name: getattr(attn, f"{name}_proj").weight
