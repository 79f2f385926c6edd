"""Our EAGLE head in the published form, without training: other weights, the same logits.

Our head has one product that no engine computes. Beside attention, the token has a path of its own into the stream,

    x = g + P e + attention([e; norm(g)])

and the published layer has only attention. But attention can carry P e, too: a head whose query and key are the same
constant vector b at every position gives position t − n the score bᵀ R(n) b / √D, where R(n) is RoPE's rotation. The
score is largest for n = 0, where nothing is turned. If b is long enough, all other shares of the softmax are smaller
than what a float can hold: such a head attends to its own position and to nothing else, and returns its own value.
With P's rows as the values of d / D such heads, and the identity as their part of o_proj, attention adds P e. The
constant is a bias (`attention_bias`), which vLLM and speculators load; SGLang's EAGLE-3 layer has none.

The price is width: every query head gets its key/value head, and d / D heads are added in each layer.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from ..drafters.eagle_head import EagleHead
from ..model import Attention, Config, rope_frequencies
from .handle import Model

MARGIN = 128.0  # exp(−128) is 0 in float32 (the smallest number above it is exp(−103)), and 3e-56 in float64


def published_eagle(head: EagleHead, target: Model) -> EagleHead:
    """A head of the published form with the logits of this one; itself, if it has that form already."""
    if head.form.public:
        return head
    c, d = head.config, head.config.hidden_size
    if c.qk_norm:
        raise ValueError(
            "this head norms queries and keys, so that no constant is long enough to carry its embed_proj "
            "through attention: train one with form=Form.eagle3()"
        )
    added = math.ceil(d / c.head_dim)
    wide = replace(c, num_heads=c.num_heads + added, num_kv_heads=c.num_heads + added, qkv_bias=True, out_bias=True)
    new = EagleHead(
        target,
        head.head_ids,
        head.hidden_layers,
        c.num_layers,
        c.intermediate_size,
        head.own_head,
        replace(head.form, embed_proj=False),
        wide,
    ).requires_grad_(False)
    new.embed, new.accuracy = head.embed, head.accuracy
    parts = dict(head.named_parameters())
    for name, weight in new.named_parameters():
        if "self_attn" not in name:
            weight.copy_(parts[name])
    for old, other in zip(attentions(head), attentions(new), strict=True):
        widen(old, other, c)
    first, start = new.self_attn, c.num_heads * c.head_dim  # where the added heads begin
    first.q_proj.bias[start:] = first.k_proj.bias[start:] = own_position(wide, added).to(new.norm.weight)
    first.v_proj.weight[start : start + d, :d] = head.embed_proj.weight  # [d, 2d]: from e alone
    first.o_proj.weight[:, start : start + d] = torch.eye(d)
    return new.eval()


def attentions(head: EagleHead) -> list[Attention]:
    return [head.self_attn, *(layer.self_attn for layer in head.more)]


def widen(old: Attention, new: Attention, c: Config) -> None:
    """The same attention as the first heads of a wider one, each query head with a copy of its keys and values."""
    groups, used = c.num_heads // c.num_kv_heads, c.num_heads * c.head_dim

    def for_each_query(weight: Tensor) -> Tensor:  # [Hkv · D, …] → [H · D, …]
        return weight.unflatten(0, (-1, c.head_dim)).repeat_interleave(groups, 0).flatten(0, 1)

    for name, spread in (("q_proj", lambda weight: weight), ("k_proj", for_each_query), ("v_proj", for_each_query)):
        ours, theirs = getattr(old, name), getattr(new, name)
        theirs.weight[:used] = spread(ours.weight)
        if ours.bias is not None:
            theirs.bias[:used] = spread(ours.bias)
    new.o_proj.weight[:, :used] = old.o_proj.weight
    if old.o_proj.bias is not None:
        new.o_proj.bias.copy_(old.o_proj.bias)


def own_position(c: Config, heads: int) -> Tensor:
    """What queries and keys of so many heads are to be, so that they attend to their own position: [heads · D].

    All entries are s: RoPE turns D/2 pairs (s, s), so that the score at distance n is s² · 2 Σᵢ cos(n θᵢ) / √D.
    """
    distances = torch.arange(1, c.max_length, dtype=torch.float64)
    angles = distances[:, None] * rope_frequencies(c).double()  # [n, D/2]
    lost = 2 * (1 - angles.cos()).sum(-1)  # how far below the score at distance 0, over s² / √D
    s = math.sqrt(MARGIN * math.sqrt(c.head_dim) / lost.min().item())
    return torch.full((heads * c.head_dim,), s)
