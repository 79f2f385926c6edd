"""EAGLE-1 and EAGLE-2: the layer is an ordinary one, and its feature is the target's last state.

(Li et al., 2024, arXiv:2401.15077 and arXiv:2406.16858, which have the same weights and differ in how the tree grows.)
The target's state h_t, after its final norm, and the embedding of the next token are fused before the layer,

    x = fc([emb(x_{t+1}); h_t])      x = x + attention(x)      f_t = x + mlp(norm(x))      logits = head(f_t)

with no norm before attention and none before the LM head, which is the target's: f_t was trained to be h_{t+1} itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..cache import Attend
from ..kernels import linear
from ..load.handle import Model
from ..model import MLP, Attention, Config, Layer, Linear, RMSNorm, only_linears, rope_at


class Eagle1Head(nn.Module):
    """The layer for a target; `config` has its widths and its number of layers. All weights are zero: `read_eagle`."""

    def __init__(self, target: Model, config: Config, fc_bias: bool = True):
        super().__init__()
        self.config, d = config, config.hidden_size
        one = replace(config, num_layers=1)
        self.fc = Linear(2 * d, d, bias=fc_bias)
        self.self_attn, self.mlp_norm, self.mlp = Attention(one), RMSNorm(d, config.norm_eps), MLP(one)
        self.more = nn.ModuleList(Layer(one) for _ in range(config.num_layers - 1))
        self.to(target.device, target.dtype)
        self.hidden_layers = (target.config.num_layers,)
        self.target_norm = target.transformer.norm.forward  # bound: no part of this module
        self.embed = partial(F.embedding, weight=target.transformer.embed_tokens.weight)
        self.register_buffer("head", target.transformer.lm_head.weight.detach(), persistent=False)  # [V, d]
        self.register_buffer("head_ids", torch.arange(len(self.head), device=target.device), persistent=False)

    @property
    def dtype(self) -> torch.dtype:
        return self.mlp_norm.weight.dtype

    def fuse(self, streams: Sequence[Tensor]) -> Tensor:
        """The target's highest stream [..., d] as its LM head is given it."""
        (h,) = streams
        return self.target_norm(h).to(self.dtype)

    ordinary = property(only_linears)

    @property
    def blocks(self) -> list[tuple[nn.Module | None, ...]]:  # for cpu/fused.py; the first attends with what it is given
        return [(None, self.self_attn, self.mlp_norm, self.mlp), *(layer.parts for layer in self.more)]

    def forward(self, tokens: Tensor, g: Tensor, rope, attend: Attend, at_once=None) -> Tensor:
        """Tokens [B, T] and the features before them [B, T, d] → features of these tokens [B, T, d]."""
        x = self.fc(torch.cat([self.embed(tokens).to(self.dtype), g], -1))
        if at_once:  # all layers by one call
            return at_once(x, rope=rope, given=x)[0]
        x = x + self.self_attn(x, rope, partial(attend, 0))
        x = x + self.mlp(self.mlp_norm(x))
        for n, layer in enumerate(self.more, start=1):
            x = layer(x, rope, partial(attend, n))
        return x

    def logits(self, feature: Tensor) -> Tensor:
        """Features [..., d] to logits of the whole vocabulary, [..., V]."""
        return linear(feature, self.head)

    def rope(self, positions: Tensor):
        return rope_at(self.config, positions, self.dtype)
