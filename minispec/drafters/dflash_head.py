"""DFlash's layers: what dflash.py describes, as a module."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..model import Attention, Config, Layer, Linear, RMSNorm, Transformer, rope_at, rotate


class DFlashHead(nn.Module):
    """The drafter's own weights: `config` is the target's, with the drafter's number of layers and MLP width.

    Embedding and LM head are the target's. Only the tokens `head_ids` are scored, with `own_head` by rows of its own.
    Drafters that ship norm the target's streams before fc, and a context once more in each layer, and learn the vector
    of a blank. Published ones (`public`) do none of it: a blank is the embedding of a mask token.
    """

    def __init__(
        self,
        config: Config,
        head_ids: Tensor,
        hidden_layers: Sequence[int],
        block: int = 8,
        own_head: bool = False,
        public: bool = False,
    ):
        if block < 2:
            raise ValueError(f"block={block}: a block is the last token and at least one blank, so give 2 or more")
        if not hidden_layers:
            raise ValueError("hidden_layers is empty: name at least one depth of the target")
        super().__init__()
        d, eps = config.hidden_size, config.norm_eps
        self.config, self.hidden_layers, self.block, self.public = config, tuple(hidden_layers), block, public
        self.fc = Linear(len(self.hidden_layers) * d, d, bias=False)
        self.context_norm = RMSNorm(d, eps)
        if public:
            self.register_buffer("mask", torch.zeros(d), persistent=False)  # the target's, see read_dflash
        else:
            self.mask = nn.Parameter(torch.zeros(d))
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(d, eps)
        self.lm_head = Linear(d, len(head_ids), bias=False) if own_head else None
        self.register_buffer("head_ids", head_ids.clone())

    def blank_is(self, token: int, target: Transformer) -> None:
        """The published form: a blank is the target's embedding of this token."""
        self.mask_token_id = token
        self.mask.copy_(target.embed_tokens.weight[token])

    @property
    def dtype(self) -> torch.dtype:
        return self.norm.weight.dtype

    def context(self, hidden: dict[int, Tensor], positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Keys and values [B, Hkv, T, D] for every layer, of positions [B, T] with the target's streams [B, T, d]."""
        streams = [hidden[n].to(self.dtype) for n in self.hidden_layers]
        if not self.public:  # late streams are far larger than early ones: so each counts when fc begins to learn
            streams = [F.rms_norm(h, self.norm.weight.shape, eps=self.config.norm_eps) for h in streams]
        context = self.context_norm(self.fc(torch.cat(streams, -1)).to(self.dtype))  # [B, T, d]
        rope = rope_at(self.config, positions, self.dtype)
        given = [context if self.public else layer.input_layernorm(context) for layer in self.layers]
        return [keys_values(layer.self_attn, x, rope) for layer, x in zip(self.layers, given, strict=True)]

    def forward(self, last: Tensor, positions: Tensor, attend) -> Tensor:
        """Process blocks side by side: embedded last tokens [n, A, d], positions [n, A·B] → normed states [n, A, B, d].

        `attend(layer, q, k, v)` decides what a position attends to: its context, and its own block.
        """
        (n, A, _), B = last.shape, positions.shape[1] // last.shape[1]
        blanks = self.mask.expand(n, A, B - 1, -1)  # [n, A, B − 1, d]
        x = torch.cat([last[:, :, None].to(self.dtype), blanks], 2).flatten(1, 2)  # [n, A·B, d]
        rope = rope_at(self.config, positions, self.dtype)
        for i, layer in enumerate(self.layers):
            x = layer(x, rope, partial(attend, i))
        return self.norm(x).unflatten(1, (A, B))

    def head_rows(self, target: Transformer) -> Tensor:
        """Rows of an LM head for the tokens `head_ids`, [v, d]: logits are states @ rowsᵀ."""
        return target.lm_head.weight[self.head_ids].to(self.dtype) if self.lm_head is None else self.lm_head.weight


def keys_values(attn: Attention, x: Tensor, rope) -> tuple[Tensor, Tensor]:
    """A layer's keys and values of normed streams [B, T, d]: [B, Hkv, T, D] each."""
    heads = (-1, attn.head_dim)
    k = attn.k_norm(attn.k_proj(x).unflatten(-1, heads)).transpose(1, 2)
    return rotate(k, *rope), attn.v_proj(x).unflatten(-1, heads).transpose(1, 2)
