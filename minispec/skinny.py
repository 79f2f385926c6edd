"""y = x Wᵀ for a few tokens on a GPU: one Triton kernel that reads every weight once, and what surrounds it for free.

With M ≤ 16 tokens a product is a read of W, and a layer is four such reads with small steps between them. Each small
step (norm, residual, SwiGLU) as a kernel of its own costs a launch and lets the memory idle. Here the product takes
them along, while the weights stream past:

    norm        y = (x·g / rms(x)) Wᵀ = (x·g) Wᵀ / rms(x): the sum of squares comes along, the division comes last
    SwiGLU      a program computes the same rows of gate and of up, so silu(gate)·up never leaves it
    residual    what the product is added to is read when the sum is done

A program owns ROWS rows of W and goes along them in strips of WIDE numbers. The matrix units take 16 tokens at least,
so one token costs what sixteen do: a verify pass is as fast as a plain one, and rounds in the same way.

Between two kernels of a graph the memory idles too, until the second has begun. With `early` a kernel begins while the
one before it still runs, and asks for its first weights, for which it needs nobody. Only then does it wait.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .flash_decode import DTYPES, INTERPRETED, jit, tl, triton, unavailable

MOST_TOKENS = 16


class Tiles(NamedTuple):
    """How a program works: rows of W, numbers of each in a strip, warps, and strips under way at once."""

    rows: int = 16
    wide: int = 256
    warps: int = 4
    stages: int = 4


def skinny_torch(
    x: Tensor,  # [..., K]
    weight: Tensor,  # [N, K]
    bias: Tensor | None = None,  # [N]
    *,
    norm: Tensor | None = None,  # [K], with eps: x is normed first
    eps: float = 0.0,
    swiglu: bool = False,  # W is gate over up: silu(gate)·up, [..., N / 2]
    residual: Tensor | None = None,  # [..., N], added
) -> Tensor:
    """What `skinny` computes, in plain torch."""
    if norm is not None:
        x = F.rms_norm(x, norm.shape, norm, eps)
    y = F.linear(x, weight, bias)
    if swiglu:
        gate, up = y.chunk(2, -1)
        y = F.silu(gate) * up
    return y if residual is None else residual + y


@jit
def _begin_early(w, first):
    """Ask for the first 2 KB of every row of W, then wait until the kernel before has written what this one reads."""
    at = first[:, None] + tl.arange(0, 16)[None, :] * (128 // (w.dtype.element_ty.primitive_bitwidth // 8))
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [(w + at).to(tl.int64)], tl.int32, is_pure=False, pack=1
    )
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()  # from here on the next kernel may do the same


@jit
def _strip(w, at, usable, xs, total):
    """One strip of some rows of W [ROWS, WIDE] with all tokens [TOKENS, WIDE], added to total [ROWS, TOKENS]."""
    weights = tl.load(w + at, mask=usable, other=0.0, eviction_policy="evict_first")  # nobody reads them again
    return tl.dot(weights, tl.trans(xs), total, input_precision="tf32x3")


@jit
def _product(
    x, w, bias, norm, residual, y, eps, m, n, width, x_row, residual_row,
    HAS_BIAS: tl.constexpr, HAS_NORM: tl.constexpr, SWIGLU: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    EVEN: tl.constexpr, EARLY: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """ROWS numbers of the result, for all tokens. n counts the result's: with SWIGLU W has twice as many rows."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token, wide = tl.arange(0, TOKENS), tl.arange(0, WIDE)
    inside, asked = row < n, token < m
    first = row.to(tl.int64) * width  # where each row of W begins
    if EARLY:
        _begin_early(w, first)
    second = tl.cast(n, tl.int64) * width  # from gate to up
    total = tl.zeros([ROWS, TOKENS], tl.float32)
    other = tl.zeros([ROWS, TOKENS], tl.float32)
    squares = tl.zeros([TOKENS], tl.float32)
    for start in tl.range(0, width, WIDE):
        k = start + wide
        within = (k < width) | EVEN  # the compiler drops a mask that is always true
        xs = tl.load(x + token[:, None] * x_row + k[None, :], mask=asked[:, None] & within[None, :], other=0.0)
        if HAS_NORM:
            exact = xs.to(tl.float32)
            squares += tl.sum(exact * exact, 1)
            gain = tl.load(norm + k, mask=within, other=0.0).to(tl.float32)
            xs = (exact * gain[None, :]).to(w.dtype.element_ty)
        at, usable = first[:, None] + k[None, :], inside[:, None] & within[None, :]
        total = _strip(w, at, usable, xs, total)
        if SWIGLU:
            other = _strip(w, at + second, usable, xs, other)
    if HAS_NORM:
        scale = tl.rsqrt(squares / width + eps)[None, :]
        total, other = total * scale, other * scale
    if HAS_BIAS:
        total += tl.load(bias + row, mask=inside, other=0.0).to(tl.float32)[:, None]
        if SWIGLU:
            other += tl.load(bias + n + row, mask=inside, other=0.0).to(tl.float32)[:, None]
    if SWIGLU:
        total = total * tl.sigmoid(total) * other
    kept = inside[:, None] & asked[None, :]
    if HAS_RESIDUAL:
        before = tl.load(residual + token[None, :] * residual_row + row[:, None], mask=kept, other=0.0)
        total += before.to(tl.float32)
    tl.store(y + token[None, :] * n + row[:, None], total.to(y.dtype.element_ty), mask=kept)


def skinny(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, norm: Tensor | None = None, eps: float = 0.0,
    swiglu: bool = False, residual: Tensor | None = None, tiles: Tiles | None = None, early: bool = False,
) -> Tensor:  # fmt: skip
    """As `skinny_torch`, by the kernel. `early` is for kernels of one stream that read what others just wrote."""
    *shape, K = x.shape
    M, N = math.prod(shape), _width(weight, swiglu)
    _check(x, weight, bias, norm, swiglu, residual, M)
    x = x.reshape(M, K)
    added = None if residual is None else residual.reshape(M, N)
    y = x.new_empty(M, N)
    rows, wide, warps, stages = tiles or default_tiles(x.dtype, weight.shape, swiglu)
    # A tensor that is not there is never read, but the kernel wants an address.
    _product[(-(-N // rows),)](
        x, weight, weight if bias is None else bias, weight if norm is None else norm, x if added is None else added,
        y, eps, M, N, K, x.stride(0), 0 if added is None else added.stride(0),
        HAS_BIAS=bias is not None, HAS_NORM=norm is not None, SWIGLU=swiglu, HAS_RESIDUAL=added is not None,
        EVEN=K % wide == 0, EARLY=early, TOKENS=MOST_TOKENS, ROWS=rows, WIDE=wide,
        num_warps=warps, num_stages=stages, **({"launch_pdl": True} if early else {}),
    )  # fmt: skip
    return y.view(*shape, N)


@lru_cache
def default_tiles(dtype: torch.dtype, shape: tuple[int, int], swiglu: bool) -> Tiles:
    """Few rows a program where W has few, or counts double: several have to share a multiprocessor, or it idles."""
    wide = min(256 if dtype.itemsize == 2 else 128, max(64, triton.next_power_of_2(shape[1])))
    return Tiles(rows=16 if swiglu or shape[0] <= 8192 else 32, wide=wide)


def fits(x: Tensor, weight: Tensor) -> bool:
    """Whether `skinny` may compute this product: few tokens, on a GPU that Triton knows, in a type it takes."""
    few = 1 <= math.prod(x.shape[:-1]) <= MOST_TOKENS
    return few and x.dtype in DTYPES and weight.is_contiguous() and unavailable(x.device) is None


def _check(x, weight, bias, norm, swiglu: bool, residual, tokens: int) -> None:
    if reason := unavailable(x.device):
        raise ValueError(f"x is on {x.device}: {reason}; call the twin, skinny_torch")
    if not 1 <= tokens <= MOST_TOKENS:
        raise ValueError(f"x holds {tokens} tokens: this product takes 1 to {MOST_TOKENS}, for others call F.linear")
    if INTERPRETED and x.dtype == torch.bfloat16:
        raise ValueError("x is bfloat16, which Triton's interpreter takes for whole numbers: give float16 or float32")
    if x.dtype not in DTYPES or weight.dtype != x.dtype:
        raise ValueError(f"x and weight are {x.dtype} and {weight.dtype}: give both in bfloat16, float16 or float32")
    if weight.dim() != 2 or weight.shape[1] != x.shape[-1] or not weight.is_contiguous():
        raise ValueError(
            f"weight is {list(weight.shape)} and x {list(x.shape)}: give it contiguous, [N, K] for [..., K]"
        )
    if swiglu and weight.shape[0] % 2:
        raise ValueError(f"weight has {weight.shape[0]} rows: gate over up makes an even number")
    wanted = {"bias": (weight.shape[0],), "norm": (x.shape[-1],), "residual": (*x.shape[:-1], _width(weight, swiglu))}
    for name, tensor in (("bias", bias), ("norm", norm), ("residual", residual)):
        if tensor is not None and (tuple(tensor.shape) != wanted[name] or tensor.device != x.device):
            raise ValueError(f"{name} is {list(tensor.shape)} on {tensor.device}: give {list(wanted[name])} beside x")


def _width(weight: Tensor, swiglu: bool) -> int:
    """Numbers of the result: W's rows, or half of them where gate lies over up."""
    return weight.shape[0] // (2 if swiglu else 1)
