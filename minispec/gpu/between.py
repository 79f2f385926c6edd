"""What lies between the products of a layer, one kernel for each gap, for any number of tokens.

    add_norm          the residual stream and what the last product adds to it, and the sum normed for the next product
    turn_and_store    RoPE and the write to memory: q turned, k turned and stored, v stored
    gated             SwiGLU: silu(gate) · up

torch needs two to ten launches for each. torch.compile would fuse them, too, after seconds of compiling for every new
shape; these are compiled once per model. Passes over few tokens need only `turn_and_store`: their products
(products.py) take the other two along.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .attention import jit, tl, triton


@jit
def _add_norm(x, delta, gain, y, normed, eps, d, WIDTH: tl.constexpr):
    """One token: y = x + δ, and y / √(mean y² + eps) · gain."""
    token, i = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    at, inside = token * d + i, i < d
    total = tl.load(x + at, mask=inside, other=0.0) + tl.load(delta + at, mask=inside, other=0.0)  # rounded, as stored
    tl.store(y + at, total, mask=inside)
    wide = total.to(tl.float32)
    scale = 1 / tl.sqrt_rn(tl.sum(wide * wide, 0) / d + eps)
    g = tl.load(gain + i, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + at, (wide * scale * g).to(total.dtype), mask=inside)


def add_norm(x: Tensor, delta: Tensor, gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x + delta [..., d], and its RMS norm times gain [d]."""
    d, x, delta = x.shape[-1], x.contiguous(), delta.contiguous()
    y, normed = torch.empty_like(x), torch.empty_like(x)
    with torch.cuda.device_of(x):
        _add_norm[(x.numel() // d,)](
            x, delta, gain, y, normed, eps, d, WIDTH=triton.next_power_of_2(d), num_warps=4 if d <= 2048 else 8
        )
    return y, normed


@jit
def _gated(gate_up, y, n, PAGE: tl.constexpr):
    """A page of one token: silu(gate) · up."""
    token, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * PAGE + tl.arange(0, PAGE)
    gate = tl.load(gate_up + token * 2 * n + i, mask=i < n, other=0.0)
    up = tl.load(gate_up + token * 2 * n + n + i, mask=i < n, other=0.0)
    wide = gate.to(tl.float32)
    tl.store(y + token * n + i, (wide / (1 + tl.exp(-wide))).to(gate.dtype) * up, mask=i < n)


def gated(gate_up: Tensor) -> Tensor:
    """[..., 2n] → silu(first half) · second half, [..., n]."""
    *shape, n = (*gate_up.shape[:-1], gate_up.shape[-1] // 2)
    gate_up, page = gate_up.contiguous(), 1024
    y = gate_up.new_empty(*shape, n)
    with torch.cuda.device_of(gate_up):
        _gated[(y.numel() // n, -(-n // page))](gate_up, y, n, PAGE=page, num_warps=4)
    return y


@jit
def _turn(
    qkv,
    cos,
    sin,
    positions,
    rows,
    slots,
    q,
    keys,
    values,
    T,
    qkv_token,
    positions_b,
    positions_t,
    rows_b,
    rows_t,
    slots_b,
    slots_t,
    kv_row,
    kv_head,
    kv_slot,
    H: tl.constexpr,
    HKV: tl.constexpr,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """One head of one token: of q, of k or of v."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    d, b, t = tl.arange(0, WIDTH), token // T, token % T
    inside = d < D
    first = qkv + token * qkv_token + head * D
    x = tl.load(first + d, mask=inside, other=0.0)
    if head < H + HKV:
        low = d < D // 2
        partner = tl.load(first + tl.where(low, d + D // 2, d - D // 2), mask=inside, other=0.0).to(tl.float32)
        at = tl.load(positions + b * positions_b + t * positions_t).to(tl.int64) * D + d
        c = tl.load(cos + at, mask=inside, other=0.0).to(tl.float32)
        s = tl.load(sin + at, mask=inside, other=0.0).to(tl.float32)
        x = (x.to(tl.float32) * c + tl.where(low, -partner, partner) * s).to(x.dtype)
    if head < H:
        tl.store(q + (token * H + head) * D + d, x, mask=inside)
    else:
        row = tl.load(rows + b * rows_b + t * rows_t).to(tl.int64)
        slot = tl.load(slots + b * slots_b + t * slots_t).to(tl.int64)
        place = row * kv_row + slot * kv_slot + d
        if head < H + HKV:
            tl.store(keys + place + (head - H) * kv_head, x, mask=inside)
        else:
            tl.store(values + place + (head - H - HKV) * kv_head, x, mask=inside)


def turn_and_store(
    qkv: Tensor,  # [B, T, (H + 2·Hkv)·D]
    cos: Tensor,  # [S, 1, D], of every position
    sin: Tensor,
    positions: Tensor,  # [B, T]
    keys: Tensor,  # [R, Hkv, S, D], the layer's memory
    values: Tensor,
    rows: Tensor,  # [B, 1] or [B, T]: which of the R
    slots: Tensor,  # [B, T]
) -> Tensor:
    """The queries [B, H, T, D], rotated; keys and values are in memory."""
    (B, T, width), (Hkv, D) = qkv.shape, (keys.shape[1], keys.shape[3])
    H = width // D - 2 * Hkv
    q = qkv.new_empty(B, T, H, D)
    rows = rows.expand(B, T)
    row, head, slot, _ = keys.stride()
    with torch.cuda.device_of(qkv):
        _turn[(B * T, H + 2 * Hkv)](
            qkv,
            cos,
            sin,
            positions,
            rows,
            slots,
            q,
            keys,
            values,
            T,
            qkv.stride(1),
            *positions.stride(),
            *rows.stride(),
            *slots.stride(),
            row,
            head,
            slot,
            H=H,
            HKV=Hkv,
            D=D,
            WIDTH=triton.next_power_of_2(D),
            num_warps=1,
        )
    return q.transpose(1, 2)
