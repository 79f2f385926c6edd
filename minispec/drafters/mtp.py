"""MTP: the multi-token prediction module that DeepSeek-V3 and Qwen3-Next are trained with, as a drafter.

(DeepSeek-AI, 2024, arXiv:2412.19437.) During pretraining the module is a second objective: beside the next token the
model predicts the one after it. Afterwards it is a drafter that nobody had to train. At position t it is given the
target's last state h_t, after the final norm, and the token that came next:

    x   = proj([norm_e(emb(x_{t+1})); norm_h(h_t)])        [2d] → [d], each half with an RMSNorm of its own
    f_t = layer(x)                                          one ordinary decoder layer, with its own cache
    q(x_{t+2}) = softmax(head(norm(f_t)))                   a final norm of its own; embedding and head are the target's

There is one module, so to draft k > 1 tokens it is chained: f_t stands in for h_{t+1}, as in EAGLE. A module that has
only learnt from true states guesses worse from the second step on; Qwen3-Next was therefore trained on chains. So MTP
is EAGLE-1 with three norms, trained on text instead of on the target's states, and its bookkeeping is EAGLE's.
"""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from ..load.model import Model
from ..model import Layer, Linear, RMSNorm
from ..require import require_counts
from .eagle import Eagle, Head


class MTPHead(Head):
    """The module for a target, all weights zero: `load` one, or train one (minispec_tools/train). Its parameters have
    the names of DeepSeek's checkpoints; embedding and LM head are the target's, and are not stored. `mlp` is the number
    of neurons of its layer (None: the target's), whose MLP is dense even where the target has experts."""

    kind = "mtp"
    borrows = False  # it scores the whole vocabulary as the target does: no choice of rows

    def __init__(self, target: Model, mlp: int | None = None):
        super().__init__()
        mlp = target.config.intermediate_size if mlp is None else mlp
        require_counts(mlp=mlp)
        self.config = c = replace(target.config, num_layers=1, intermediate_size=mlp, experts=None, delta=None)
        d = c.hidden_size
        with torch.random.fork_rng(devices=[]):  # torch fills new layers from its global generator: give that back
            self.enorm, self.hnorm = RMSNorm(d, c.norm_eps), RMSNorm(d, c.norm_eps)
            self.eh_proj = Linear(2 * d, d, bias=False)
            self.layer, self.norm = Layer(c), RMSNorm(d, c.norm_eps)
        self.adopt(target)

    def adopt(self, target: Model) -> None:
        super().adopt(target)
        self.hidden_layers = (target.config.num_layers,)
        self.target_norm = target.transformer.norm.forward  # bound: no part of this module
        self.register_buffer("head", target.transformer.lm_head.weight.detach(), persistent=False)  # [V, d]
        self.register_buffer("head_ids", torch.arange(len(self.head), device=target.device), persistent=False)

    def fuse(self, streams: list[Tensor]) -> Tensor:
        """The target's last residual stream [..., d] as its LM head is given it."""
        (h,) = streams
        return self.target_norm(h).to(self.dtype)

    def enter(self, tokens: Tensor, h: Tensor) -> tuple[Tensor, None]:
        both = torch.cat([self.enorm(self.embed(tokens).to(self.dtype)), self.hnorm(h)], -1)  # [B, T, 2d]
        return self.eh_proj(both), None

    @property
    def blocks(self) -> list[tuple[nn.Module, ...]]:
        return [self.layer.parts]

    @property
    def shape(self) -> dict:
        return {"mlp": self.config.intermediate_size}

    @classmethod
    def made(cls, target: Model, settings: dict) -> "MTPHead":
        return cls(target, settings["mlp"])


class MTP(Eagle):
    """Draft with a multi-token prediction module: an MTPHead, its folder or hub id, or None for the one that ships.
    By default a chain of k tokens, as DeepSeek-V3 and Qwen3-Next are served; the options are Eagle's."""

    def __init__(self, target: Model, heads: nn.Module | str | Path | None = None, tree: bool = False, **options):
        super().__init__(target, MTPHead.load(target, heads), tree, **options)
