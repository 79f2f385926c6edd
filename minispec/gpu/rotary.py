"""RoPE and the write to memory between two products, as one kernel: q turned, k turned and stored, v stored.

A pass over a few tokens is a few hundred small kernels, and this is one of eight in a layer. torch.compile makes two of
it, after seconds of compiling for every number of tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .attention import jit, tl, triton


@jit
def _turn(
    qkv, cos, sin, positions, rows, slots, q, keys, values, T, qkv_token, rows_b, rows_t, kv_row, kv_head, kv_slot,
    H: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One head of one token: of q, of k or of v."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    d = tl.arange(0, WIDTH)
    inside = d < D
    first = qkv + token * qkv_token + head * D
    x = tl.load(first + d, mask=inside, other=0.0)
    if head < H + HKV:
        low = d < D // 2
        partner = tl.load(first + tl.where(low, d + D // 2, d - D // 2), mask=inside, other=0.0).to(tl.float32)
        at = tl.load(positions + token).to(tl.int64) * D + d
        c = tl.load(cos + at, mask=inside, other=0.0).to(tl.float32)
        s = tl.load(sin + at, mask=inside, other=0.0).to(tl.float32)
        x = (x.to(tl.float32) * c + tl.where(low, -partner, partner) * s).to(x.dtype)
    if head < H:
        tl.store(q + (token * H + head) * D + d, x, mask=inside)
    else:
        row = tl.load(rows + token // T * rows_b + token % T * rows_t).to(tl.int64)
        slot = tl.load(slots + token).to(tl.int64)
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
    positions, slots, rows = positions.contiguous(), slots.contiguous(), rows.expand(B, T)
    row, head, slot, _ = keys.stride()
    with torch.cuda.device_of(qkv):
        _turn[(B * T, H + 2 * Hkv)](
            qkv, cos, sin, positions, rows, slots, q, keys, values, T, qkv.stride(1), *rows.stride(), row, head, slot,
            H=H, HKV=Hkv, D=D, WIDTH=triton.next_power_of_2(D), num_warps=1,
        )  # fmt: skip
    return q.transpose(1, 2)
