"""EAGLE-3's drafting layer, in the forms that were published and in ours.

All of them fuse residual streams of the target to one feature g and run one layer over [embedding, feature]:

    g_t = fc([h_low; h_mid; h_high])         e = norm(emb(x_{t+1}))
    x   = g_t + attention([e; norm(g_t)])    f_t = x + mlp(norm(x))     logits = head(norm(f_t))

What differs is small, and `Form` names it: whether the streams are normed before fc, what the residual path starts
from, and whether a draft goes on from f or from norm(f). EAGLE-1, which is another layer, is in eagle1.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..cache import Attend
from ..kernels import linear
from ..load.handle import Model
from ..load.heads import fill, find_heads, heads_for, save_heads
from ..model import MLP, Attention, Config, Layer, Linear, RMSNorm, only_linears, rope_at


@dataclass(frozen=True)
class Form:
    """Where heads differ. The default is the form of the heads that ship; `Form.eagle3` is the published one."""

    stream_norm: str = "plain"  # before fc: "plain" (no gain), "each" (EAGLE-3.1's fc_norm), "joint" (all at once), ""
    embed_proj: bool = True  # ours: beside attention the token has a path of its own into the stream
    norm_before_residual: bool = False  # the residual path starts from norm(g), not from g
    norm_output: bool = False  # EAGLE-3.1: what is handed to the next step is norm(f)

    @classmethod
    def eagle3(cls, **different) -> Form:
        return cls(**{"stream_norm": "", "embed_proj": False} | different)

    @property
    def public(self) -> bool:
        """Whether other engines compute it, too. Norms without a gain are EAGLE-3.1's with gains of one."""
        return not self.embed_proj


class EagleHead(nn.Module):
    """The drafting layer for a target. `head_ids` are the tokens it can propose.

    `hidden_layers` are the streams it is given (three by default), `layers` its decoder layers (the first is EAGLE's,
    more are ordinary ones), `mlp` the neurons of each. The embedding and the LM head's rows are the target's, and are
    not stored; with `own_head` the rows are a copy to train. A published head may have another number of attention
    heads than its target, or other rotations: `config`. All weights are zero: `load` a head, or train a
    train.eagle.new_head.
    """

    def __init__(
        self,
        target: Model,
        head_ids: Tensor,
        hidden_layers: Sequence[int] | None = None,
        layers: int = 1,
        mlp: int | None = None,
        own_head: bool = False,
        form: Form | None = None,
        config: Config | None = None,
    ):
        super().__init__()
        c, depth = config or target.config, target.config.num_layers
        mlp = c.intermediate_size if mlp is None else mlp
        for name, value in (("layers", layers), ("mlp", mlp)):
            if not (isinstance(value, int) and value >= 1):
                raise ValueError(f"{name}={value!r}: give a whole number ≥ 1")
        self.hidden_layers = tuple(spread(depth) if hidden_layers is None else hidden_layers)
        if not self.hidden_layers or not all(0 <= n <= depth for n in self.hidden_layers):
            raise ValueError(
                f"hidden_layers={self.hidden_layers}: the target has {depth} layers, "
                f"so give numbers from 0 (its embedding) to {depth}"
            )
        self.own_head, self.accuracy = own_head, []  # accuracy: measured by train.eagle.calibrate
        self.form = form = form or Form()
        self.config = c = replace(c, num_layers=layers, intermediate_size=mlp)
        d, n = c.hidden_size, len(self.hidden_layers)
        with torch.random.fork_rng(devices=[]):  # torch fills new layers from its global generator: give that back
            self.stream_norms = None
            if form.stream_norm == "each":
                self.stream_norms = nn.ModuleList(RMSNorm(d, c.norm_eps) for _ in range(n))
            elif form.stream_norm == "joint":
                self.stream_norms = RMSNorm(n * d, c.norm_eps)
            self.fc = Linear(n * d, d, bias=False)
            self.embed_norm, self.feature_norm = RMSNorm(d, c.norm_eps), RMSNorm(d, c.norm_eps)
            self.embed_proj = Linear(d, d, bias=False) if form.embed_proj else None
            self.self_attn = Attention(replace(c, hidden_size=2 * d))  # from both halves …
            self.self_attn.o_proj = Linear(c.num_heads * c.head_dim, d, bias=c.out_bias)  # … to one feature
            self.mlp_norm, self.mlp = RMSNorm(d, c.norm_eps), MLP(c)
            self.more = nn.ModuleList(Layer(c) for _ in range(layers - 1))
            self.norm = RMSNorm(d, c.norm_eps)
        self.to(target.device, target.dtype)
        for weight in self.parameters():
            nn.init.zeros_(weight)
        self.register_buffer("head_ids", head_ids.long().to(target.device))
        self.borrow(target)

    def borrow(self, target: Model) -> None:
        """Take the target's embedding, and the rows of its LM head that `head_ids` name."""
        self.embed = partial(F.embedding, weight=target.transformer.embed_tokens.weight)  # no part of this module
        rows = target.transformer.lm_head.weight.detach()[self.head_ids].to(self.norm.weight.dtype)  # [v, d]
        if self.own_head:
            self.head = nn.Parameter(rows)
        else:
            self.register_buffer("head", rows, persistent=False)  # moves with the module, but is not stored

    @property
    def dtype(self) -> torch.dtype:
        return self.norm.weight.dtype

    def fuse(self, streams: Sequence[Tensor]) -> Tensor:
        """The target's residual streams [..., d] to one feature [..., d]."""
        return self.fc(self.side_by_side(streams)).to(self.dtype)

    def side_by_side(self, streams: Sequence[Tensor]) -> Tensor:
        """What fc is given, [..., n · d]. Late streams are far larger than early ones, so most forms norm them."""
        streams = [h.to(self.dtype) for h in streams]
        if self.form.stream_norm == "plain":
            streams = [F.rms_norm(h, h.shape[-1:], eps=self.config.norm_eps) for h in streams]
        elif self.form.stream_norm == "each":
            streams = [norm(h) for norm, h in zip(self.stream_norms, streams, strict=True)]
        together = torch.cat(streams, -1)  # [..., n · d]
        return self.stream_norms(together) if self.form.stream_norm == "joint" else together

    def enter(self, tokens: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [B, T] and the features before them [B, T, d] → where the residual path starts [B, T, d], and what
        attention is given [B, T, 2d]."""
        e, normed = self.embed_norm(self.embed(tokens).to(self.dtype)), self.feature_norm(g)
        x = normed if self.form.norm_before_residual else g
        if self.embed_proj is not None:  # with few key/value heads, attention lets only Hkv · D numbers through
            x = x + self.embed_proj(e)
        return x, torch.cat([e, normed], -1)

    ordinary = property(only_linears)

    @property
    def blocks(self) -> list[tuple[nn.Module | None, ...]]:  # for cpu/fused.py; what the first attends with is normed
        return [(None, self.self_attn, self.mlp_norm, self.mlp), *(layer.parts for layer in self.more)]

    def forward(self, tokens: Tensor, g: Tensor, rope, attend: Attend, at_once=None) -> Tensor:
        """Tokens [B, T] and the features before them [B, T, d] → features of these tokens [B, T, d]."""
        x, both = self.enter(tokens, g)
        if at_once:  # all layers by one call
            x = at_once(x, rope=rope, given=both)[0]
        else:
            x = x + self.self_attn(both, rope, partial(attend, 0))
            x = x + self.mlp(self.mlp_norm(x))
            for n, layer in enumerate(self.more, start=1):
                x = layer(x, rope, partial(attend, n))
        return self.norm(x) if self.form.norm_output else x

    def logits(self, feature: Tensor) -> Tensor:
        """Features [..., d] to logits of the tokens `head_ids`, [..., v]."""
        return linear(feature if self.form.norm_output else self.norm(feature), self.head)

    def rope(self, positions: Tensor):
        return rope_at(self.config, positions, self.dtype)

    @property
    def shape(self) -> dict:
        """The arguments that make another head like this one."""
        same = {
            "hidden_layers": list(self.hidden_layers),
            "layers": self.config.num_layers,
            "own_head": self.own_head,
            "mlp": self.config.intermediate_size,
            "head_vocab": len(self.head_ids),
        }
        return same if self.form == Form() else same | {"form": asdict(self.form)}

    def save(self, target: Model, folder: str | Path, bits: int | None = 8) -> None:
        if replace(self.config, num_layers=1, intermediate_size=1) != replace(
            target.config, num_layers=1, intermediate_size=1
        ):
            raise ValueError(
                "this head has attention or rotations of its own, which minispec's own storage does not "
                "keep: write it with minispec.load.write_heads.write_eagle"
            )
        save_heads(self, folder, heads_for(target, "eagle") | self.shape | {"accuracy": self.accuracy}, bits)

    @classmethod
    def load(cls, target: Model, folder: str | Path | None = None) -> EagleHead:
        """A stored head of ours; None: the one that ships with minispec."""
        folder, settings = find_heads(target, "eagle", folder)
        form = Form(**settings["form"]) if "form" in settings else None
        head = cls(
            target,
            torch.arange(settings["head_vocab"]),
            *(settings[key] for key in ("hidden_layers", "layers", "mlp", "own_head")),
            form,
        )
        fill(head, folder)
        if not head.own_head:
            head.borrow(target)  # only now it is known which rows
        head.accuracy = settings["accuracy"]
        return head


def spread(layers: int) -> tuple[int, int, int]:
    """A low, a middle and a high residual stream of a target with so many layers."""
    return layers // 3, 2 * layers // 3, layers
