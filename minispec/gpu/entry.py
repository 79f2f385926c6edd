"""What EAGLE's head is given for every entry, each by one kernel.

    stream    a residual stream of the target, at the verified slots of its pass, normed: a part of what `fc` fuses
    enter     embed_norm(embedding of the token) beside feature_norm(g), and g itself: the feature of the entry's parent

In torch these are gathers, a lookup, norms and copies, each a launch of its own over a few thousand numbers.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .attention import jit, tl, triton


def at_places(states: Tensor, places: Tensor) -> Tensor:
    """states [B, T, d] at places [B, m]: [B, m, d]."""
    return states.take_along_dim(places[..., None], 1)


# ---- the twins ----


def stream_torch(states: Tensor, slots: Tensor, out: Tensor, eps: float) -> None:
    """The target's states [B, T, d] at slots [B, m], normed without a gain, to `out` [B, m, d]."""
    out.copy_(F.rms_norm(at_places(states, slots).to(out.dtype), out.shape[-1:], eps=eps))


def enter_torch(
    tokens: Tensor,  # [B, w]
    embedding: Tensor,  # [V, d]
    features: Tensor,  # [B, n, d]
    parents: Tensor | None,  # [B, w], which of the n comes before each token (None: n = w, its own)
    gains: tuple[Tensor, Tensor],  # [d] each, of the norms of token and feature
    eps: float,
) -> tuple[Tensor, Tensor]:
    """[norm(embedded token); norm(g)] [B, w, 2d], and g [B, w, d]."""
    g = features if parents is None else at_places(features, parents)
    e, (token_gain, feature_gain) = F.embedding(tokens, embedding).to(g.dtype), gains
    normed = (F.rms_norm(x, x.shape[-1:], gain, eps) for x, gain in ((e, token_gain), (g, feature_gain)))
    return torch.cat([*normed], -1), g


# ---- the kernels ----


@jit
def _normed(x, d, eps):
    """x / √(mean x² + eps), of d numbers; those after them are zero."""
    return x / tl.sqrt_rn(tl.sum(x * x, 0) / d + eps)


@jit
def _stream(states, slots, out, d, eps, states_row, states_slot, slots_row, out_row, out_slot, WIDTH: tl.constexpr):
    """One token of one sequence."""
    b, i, at = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64), tl.arange(0, WIDTH)
    slot = tl.load(slots + b * slots_row + i).to(tl.int64)
    x = tl.load(states + b * states_row + slot * states_slot + at, mask=at < d, other=0.0).to(tl.float32)
    tl.store(out + b * out_row + i * out_slot + at, _normed(x, d, eps).to(out.dtype.element_ty), mask=at < d)


@jit
def _enter(
    tokens,
    embedding,
    features,
    parents,
    token_gain,
    feature_gain,
    both,
    g,
    w,
    d,
    eps,
    features_row,
    HAS_PARENTS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """One token of one sequence."""
    b, i, at = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64), tl.arange(0, WIDTH)
    entry, inside = b * w + i, at < d
    parent = i
    if HAS_PARENTS:
        parent = tl.load(parents + entry)
    token = tl.load(tokens + entry)
    e = tl.load(embedding + token * d + at, mask=inside, other=0.0).to(both.dtype.element_ty)  # rounded, as the twin's
    feature = tl.load(features + b * features_row + parent * d + at, mask=inside, other=0.0)
    if HAS_PARENTS:
        tl.store(g + entry * d + at, feature, mask=inside)
    e = _normed(e.to(tl.float32), d, eps) * tl.load(token_gain + at, mask=inside, other=0.0).to(tl.float32)
    f = _normed(feature.to(tl.float32), d, eps) * tl.load(feature_gain + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(both + entry * 2 * d + at, e.to(both.dtype.element_ty), mask=inside)
    tl.store(both + entry * 2 * d + d + at, f.to(both.dtype.element_ty), mask=inside)


# ---- calling them ----


def stream(states: Tensor, slots: Tensor, out: Tensor, eps: float) -> None:
    """As `stream_torch`."""
    B, m, d = out.shape
    with torch.cuda.device_of(states):
        _stream[(B, m)](
            states,
            slots,
            out,
            d,
            eps,
            *states.stride()[:2],
            slots.stride(0),
            *out.stride()[:2],
            WIDTH=triton.next_power_of_2(d),
            num_warps=4,
        )


def enter(
    tokens: Tensor,
    embedding: Tensor,
    features: Tensor,
    parents: Tensor | None,
    gains: tuple[Tensor, Tensor],
    eps: float,
) -> tuple[Tensor, Tensor]:
    """As `enter_torch`."""
    (B, w), d, features = tokens.shape, features.shape[-1], features.contiguous()
    both, tokens = features.new_empty(B, w, 2 * d), tokens.contiguous()
    g = features if parents is None else features.new_empty(B, w, d)
    with torch.cuda.device_of(features):
        _enter[(B, w)](
            tokens,
            embedding,
            features,
            tokens if parents is None else parents.contiguous(),
            *gains,
            both,
            g,
            w,
            d,
            eps,
            features.stride(0),
            HAS_PARENTS=parents is not None,
            WIDTH=triton.next_power_of_2(d),
            num_warps=4,
        )
    return both, g
