"""y = x Wᵀ for a few tokens on a GPU: one Triton kernel that reads every weight once, and what surrounds it for free.

With M ≤ 16 tokens a product is a read of W, and a layer is four such reads with small steps between them. Each small
step as a kernel of its own costs a launch and lets the memory idle. Here products take them along:

    norm        (x·g / rms(x)) Wᵀ = (x·g) Wᵀ / rms(x). The product that makes x writes x·g too, and each of its programs
                the squares of its own part of x; the next product sums those up and divides last. In float16 x·g may
                exceed the largest number, 65,504: there it stays float32, and the next product divides first
    SwiGLU      a program computes the same rows of gate and of up, so silu(gate)·up never leaves it
    residual    what the product is added to is read when the sum is done

A program owns ROWS rows of W and goes along them in strips of WIDE numbers. The tensor cores take 16 tokens at least,
so one token costs what sixteen do: a verify pass is as fast as a plain one, and rounds in the same way.

Up to 64 tokens the read of W still takes longest, if x is not read too often: every program reads all of it, from the
GPU's cache. So programs take more rows. Where that makes fewer of them than there are SMs, several share the sums along
the same rows (split-K), and residual and norm are left to `add_norm`, which adds up the parts.

For more tokens the products are torch's (`wide`), and a kernel stands in each gap between two of them: `add_norm` and
`gated`. `rope_and_store` (RoPE, and the write of k and v to memory) serves any number of tokens.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cpu import invariant
from .attention import DTYPES, KIB, card, constants, constexpr, jit, one_rounding, precision, tl, triton, unavailable

NARROW = 1024  # W with fewer rows or columns than this is narrow
MOST_TOKENS = 64  # beyond, torch's own product, with the small steps as kernels of their own, was faster on an H200
HEADS = 16  # that one program turns


class Tiles(NamedTuple):
    """How a program works: rows of W, numbers of each in a strip, warps, and strips under way at once."""

    rows: int
    wide: int
    warps: int
    stages: int


class HalfNormed(NamedTuple):
    """x on its way through a norm: multiplied by the gain, but not yet divided."""

    x: Tensor  # [..., K], x·g, in float32 where the model is in float16
    squares: Tensor  # [P, M], sums of x² over P parts of every token's x, float32 (or better)


def half_normed_dtype(dtype: torch.dtype) -> torch.dtype:
    """A type with the range that x·g needs: float16 ends at 65,504, the others reach as far as float32."""
    return torch.float32 if dtype == torch.float16 else dtype


def half_norm(x: Tensor, gain: Tensor) -> HalfNormed:
    """The first half of a norm; the second is a product's."""
    exact = x.to(torch.promote_types(x.dtype, torch.float32))
    return HalfNormed(x.to(half_normed_dtype(x.dtype)) * gain, exact.square().sum(-1).reshape(1, -1))


def divided(half: HalfNormed, eps: float, dtype: torch.dtype) -> Tensor:
    """The second half of a norm, [..., K]."""
    rms = (half.squares.sum(0) / half.x.shape[-1] + eps).sqrt().view(*half.x.shape[:-1], 1)
    return (half.x / rms).to(dtype)


def skinny_torch(
    x: Tensor | HalfNormed,  # [..., K]
    weight: Tensor,  # [N, K]
    bias: Tensor | None = None,  # [N]
    *,
    eps: float = 0.0,  # of the norm, if x is half-normed
    swiglu: bool = False,  # W is gate over up: silu(gate)·up, [..., N / 2]
    residual: Tensor | None = None,  # [..., N], added
    gain: Tensor | None = None,  # [N], of the norm that follows
) -> Tensor | tuple[Tensor, HalfNormed]:
    """What `skinny` computes, in plain torch: y, and with `gain` also y half-normed."""
    y = F.linear(divided(x, eps, weight.dtype) if isinstance(x, HalfNormed) else x, weight, bias)
    y = gated_torch(y) if swiglu else y
    y = y if residual is None else residual + y
    return y if gain is None else (y, half_norm(y, gain))


@jit
def _strip(w, at, usable, xs, total, PRECISION: constexpr):
    """One strip of some rows of W [ROWS, WIDE] with some tokens [TOKENS, WIDE], added to total [ROWS, TOKENS]."""
    weights = tl.load(w + at, mask=usable, other=0.0, eviction_policy="evict_first")  # nobody reads them again
    return tl.dot(weights, tl.trans(xs), total, input_precision=PRECISION)


@jit
def _scale(squares, token, asked, m, width, parts, eps, PARTS: constexpr):
    """1 / rms of every token, [TOKENS], from the sums of squares that the product before left in parts."""
    part = tl.arange(0, PARTS)
    there = (part < parts)[:, None] & asked[None, :]
    square = tl.sum(tl.load(squares + part[:, None] * m + token[None, :], mask=there, other=0.0), 0)  # [TOKENS]
    return tl.rsqrt(square / width + eps)


# One compiled version for all numbers of tokens: for m = 1 the compiler would lay the squares out in another way, and
# add them up in another order.
@jit(do_not_specialize=["m"])
def _product(tensors, results, eps, m, numbers, size):
    """ROWS numbers of the result, for TOKENS tokens. n counts the result's: with SWIGLU W has twice as many rows.
    Several programs (SPLITS) may share the sums along the rows: y are its parts then."""
    x, w, bias, squares, residual, gain = tensors
    y, scaled, sums = results
    n, width, parts, x_row, residual_row = numbers
    row = tl.program_id(1) * size.ROWS + tl.arange(0, size.ROWS)
    token, wide = tl.program_id(0) * size.TOKENS + tl.arange(0, size.TOKENS), tl.arange(0, size.WIDE)
    inside, asked, split = row < n, token < m, tl.program_id(2)
    first = row.to(tl.int64) * width  # where each row of W begins
    second = tl.cast(n, tl.int64) * width  # from gate to up
    total = tl.zeros([size.ROWS, size.TOKENS], tl.float32)
    other = tl.zeros([size.ROWS, size.TOKENS], tl.float32)
    if size.DIVIDE_FIRST:
        scale = _scale(squares, token, asked, m, width, parts, eps, size.PARTS)
    begin, end = 0, width
    if size.SPLITS > 1:
        strips = tl.cdiv(width, size.WIDE)
        begin, end = split * strips // size.SPLITS * size.WIDE, (split + 1) * strips // size.SPLITS * size.WIDE
    for start in tl.range(begin, end, size.WIDE):
        k = start + wide
        within = (k < width) | size.EVEN  # the compiler drops a mask that is always true
        xs = tl.load(x + token[:, None] * x_row + k[None, :], mask=asked[:, None] & within[None, :], other=0.0)
        if size.DIVIDE_FIRST:
            xs = (xs * scale[:, None]).to(w.dtype.element_ty)
        at, usable = first[:, None] + k[None, :], inside[:, None] & within[None, :]
        total = _strip(w, at, usable, xs, total, size.PRECISION)
        if size.SWIGLU:
            other = _strip(w, at + second, usable, xs, other, size.PRECISION)
    if (squares is not None) and (not size.DIVIDE_FIRST):
        scale = _scale(squares, token, asked, m, width, parts, eps, size.PARTS)
        total, other = total * scale[None, :], other * scale[None, :]
    if bias is not None:
        total += tl.load(bias + row, mask=inside & (split == 0), other=0.0).to(tl.float32)[:, None]
        if size.SWIGLU:
            other += tl.load(bias + n + row, mask=inside, other=0.0).to(tl.float32)[:, None]
    if size.SWIGLU:
        total = total * tl.sigmoid(total) * other
    kept = inside[:, None] & asked[None, :]
    at = (split.to(tl.int64) * m + token[None, :]) * n + row[:, None]
    if residual is not None:
        before = tl.load(residual + token[None, :] * residual_row + row[:, None], mask=kept, other=0.0)
        total += before.to(tl.float32)
    rounded = total.to(y.dtype.element_ty)
    tl.store(y + at, rounded, mask=kept)
    if gain is not None:  # of what was rounded: that is what a norm would read
        exact = tl.where(kept, rounded.to(tl.float32), 0.0)
        g = tl.load(gain + row, mask=inside, other=0.0).to(tl.float32)[:, None]
        tl.store(scaled + at, (exact * g).to(scaled.dtype.element_ty), mask=kept)
        tl.store(sums + tl.program_id(1) * m + token, tl.sum(exact * exact, 0), mask=asked)


def skinny(x, weight, bias=None, *, eps=0.0, swiglu=False, residual=None, gain=None, tiles: Tiles | None = None):
    """As `skinny_torch`, by the kernel, where it `fits`; but where programs share sums, y comes normed whole."""
    x, squares = x if isinstance(x, HalfNormed) else (x, None)
    *shape, K = x.shape
    M, N = math.prod(shape), weight.shape[0] // (2 if swiglu else 1)
    x, (sms, shared) = x.reshape(M, K), card(x.device)
    together = tokens_together(M, weight)
    rows, wide, warps, stages = tiles or default_tiles(weight.dtype, x.dtype, weight.shape, swiglu, shared, together)
    programs = -(-N // rows)
    shared_sums = together > 16 and residual is not None and gain is not None
    splits = max(1, min(sms // programs, K // wide)) if shared_sums else 1
    y, scaled, sums = weight.new_empty(splits, M, N, dtype=torch.float32 if splits > 1 else weight.dtype), None, None
    added, following = (None, None) if splits > 1 else (residual, gain)  # what the product takes along
    if following is not None:
        scaled = torch.empty_like(y, dtype=half_normed_dtype(y.dtype))
        sums = y.new_empty(programs, M, dtype=torch.float32)
    added = None if added is None else added.reshape(M, N)
    parts = 1 if squares is None else len(squares)
    tensors, results = (x, weight, bias, squares, added, following), (y, scaled, sums)
    numbers = N, K, parts, x.stride(0), 0 if added is None else added.stride(0)
    sizes = dict(TOKENS=together, ROWS=rows, WIDE=wide, SPLITS=splits, PARTS=triton.next_power_of_2(parts))
    sizes |= dict(EVEN=K % wide == 0, DIVIDE_FIRST=squares is not None and x.dtype != weight.dtype)
    sizes |= dict(SWIGLU=swiglu, PRECISION=precision(weight.dtype))
    grid = -(-M // together), programs, splits
    options = dict(num_warps=warps, num_stages=stages, **one_rounding())
    with torch.cuda.device_of(x):  # Triton launches on the current device
        _product[grid](tensors, results, eps, M, numbers, constants(**sizes), **options)
    if splits > 1:
        return add_norm(residual, y, gain, eps)
    y = y.view(*shape, N)
    return y if gain is None else (y, HalfNormed(scaled.view(*shape, N), sums))


def shared_bytes(
    tiles: Tiles, dtype: torch.dtype, x_dtype: torch.dtype, swiglu: bool, tokens: int = 16, hopper: bool = False
) -> int:
    """Shared memory of a program: the strips of W (gate's and up's) and of x that are under way. Hopper's tensor cores
    read from there, and hold one more."""
    strip = (2 if swiglu else 1) * tiles.rows * dtype.itemsize + tokens * x_dtype.itemsize
    return (tiles.stages - (not hopper)) * tiles.wide * strip


@lru_cache
def default_tiles(
    dtype: torch.dtype, x_dtype: torch.dtype, shape: tuple[int, int], swiglu: bool, shared: int, tokens: int = 16
) -> Tiles:
    """What was fastest on an H200. The more rows W has, the more of them a program may take: all SMs must have one, or
    part of the memory idles, unless programs share sums. Short rows want short strips. A GPU with less shared memory
    has fewer strips under way, but three at least, then fewer rows, but 16 at least, and then shorter strips."""
    rows, width = shape
    if tokens > 16 and min(shape) >= NARROW:
        tiles = Tiles(64, 64 if swiglu else 128, 4, 4)
    elif width < 1024:
        tiles = Tiles(64, 64, 4, 5) if rows > 8192 else Tiles(16, 128, 2, 5)
    elif rows > 8192:
        tiles = Tiles(128, 128, 8, 3)
    else:
        tiles = Tiles(64, 128, 4, 5) if rows > 4096 else Tiles(16, 256, 2, 4)
    if dtype.itemsize == 4:
        tiles = tiles._replace(wide=tiles.wide // 2)  # the same bytes
    hopper = shared > 200 * KIB  # an A100, which has the most of all others, has 163
    while shared_bytes(tiles, dtype, x_dtype, swiglu, tokens, hopper) > shared:
        if tiles.stages > 3:
            tiles = tiles._replace(stages=tiles.stages - 1)
        elif tiles.rows > 16:
            tiles = tiles._replace(rows=tiles.rows // 2, warps=max(2, tiles.warps // 2))
        else:
            tiles = tiles._replace(wide=tiles.wide // 2)
    return tiles


def narrow(weight: Tensor) -> bool:
    return min(weight.shape) < NARROW


def tokens_together(tokens: int, weight: Tensor) -> int:
    """Tokens that one program takes: a power of two, and as many as a tensor core wants at least. A narrow matrix has
    too few programs for all SMs, so there the tokens are divided, too."""
    if invariant.wanted() or narrow(weight):
        return 16
    return min(max(16, triton.next_power_of_2(tokens)), MOST_TOKENS)


def fits(x: Tensor, weight: Tensor) -> bool:
    """Whether `skinny` may compute this product: few tokens, in a type it takes, on a GPU that runs the kernels. A pass
    that is to be batch-invariant takes no other: torch's order of a sum depends on the number of tokens."""
    few = math.prod(x.shape[:-1]) <= MOST_TOKENS or invariant.wanted()
    return x.numel() > 0 and few and x.dtype in DTYPES and weight.is_contiguous() and unavailable(x.device) is None


@jit
def _add_norm(x, delta, gain, y, normed, eps, d, WIDTH: constexpr, PARTS: constexpr):
    """One token: y = x + δ, and y / √(mean y² + eps) · gain. δ may come in parts, to be summed."""
    token, i = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    at, inside = token * d + i, i < d
    total = tl.load(x + at, mask=inside, other=0.0)
    if delta is not None:
        added = tl.load(delta + at, mask=inside, other=0.0)
        for part in tl.static_range(1, PARTS):
            added += tl.load(delta + part * tl.num_programs(0).to(tl.int64) * d + at, mask=inside, other=0.0)
        total += added.to(total.dtype)  # rounded, as a product is
        tl.store(y + at, total, mask=inside)
    wide = total.to(tl.float32)
    scale = 1 / tl.sqrt_rn(tl.sum(wide * wide, 0) / d + eps)
    g = tl.load(gain + i, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + at, (wide * scale * g).to(total.dtype), mask=inside)


def add_norm(x: Tensor, delta: Tensor | None, gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x + delta [..., d] (None: x; [parts, ..., d]: their sum), and its RMS norm times gain [d]."""
    d, x = x.shape[-1], x.contiguous()
    y, normed = x if delta is None else torch.empty_like(x), torch.empty_like(x)
    given = x, None if delta is None else delta.contiguous(), gain, y, normed, eps, d
    with torch.cuda.device_of(x):
        sizes = dict(WIDTH=triton.next_power_of_2(d), PARTS=1 if delta is None else delta.numel() // x.numel())
        _add_norm[(x.numel() // d,)](*given, **sizes, num_warps=4 if d <= 2048 else 8)
    return y, normed


def add_norm_torch(x: Tensor, delta: Tensor | None, gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    x = x if delta is None else x + delta
    return x, F.rms_norm(x, gain.shape, gain, eps)


@jit
def _gated(gate_up, y, n, PAGE: constexpr):
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


def gated_torch(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


class Between(NamedTuple):
    """The small steps between torch's products."""

    add_norm: Callable
    gated: Callable


BY_KERNEL, BY_TORCH = Between(add_norm, gated), Between(add_norm_torch, gated_torch)


def wide(x, weight, bias=None, *, eps=0.0, swiglu=False, residual=None, gain=None, between: Between = BY_KERNEL):
    """As `skinny_torch`, for any number of tokens: torch's product, and one step after it. y comes normed whole."""
    y = F.linear(divided(x, eps, weight.dtype) if isinstance(x, HalfNormed) else x, weight, bias)
    if swiglu:
        return between.gated(y)
    if gain is not None:
        return between.add_norm(residual, y, gain, eps)
    return y if residual is None else residual + y


@jit
def _rope(tensors, T, apart, H: constexpr, HKV: constexpr, D: constexpr, WIDTH: constexpr, HEADS: constexpr):
    """Some heads of one token, of q, of k and of v."""
    qkv, cos, sin, positions, rows, slots, q, keys, values = tensors
    qkv_token, positions_b, positions_t, rows_b, rows_t, slots_b, slots_t, kv_row, kv_head, kv_slot = apart
    token, head = tl.program_id(0).to(tl.int64), (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    d, b, t = tl.arange(0, WIDTH)[None, :], token // T, token % T
    inside, low = (head < H + 2 * HKV) & (d < D), d < D // 2
    first = qkv + token * qkv_token + head * D
    x = tl.load(first + d, mask=inside, other=0.0)  # [HEADS, WIDTH]
    partner = tl.load(first + tl.where(low, d + D // 2, d - D // 2), mask=inside, other=0.0).to(tl.float32)
    at = tl.load(positions + b * positions_b + t * positions_t).to(tl.int64) * D + d
    c = tl.load(cos + at, mask=d < D, other=0.0).to(tl.float32)
    s = tl.load(sin + at, mask=d < D, other=0.0).to(tl.float32)
    turned = (x.to(tl.float32) * c + tl.where(low, -partner, partner) * s).to(x.dtype)
    tl.store(q + (token * H + head) * D + d, turned, mask=inside & (head < H))
    row = tl.load(rows + b * rows_b + t * rows_t).to(tl.int64)
    slot = tl.load(slots + b * slots_b + t * slots_t).to(tl.int64)
    place, of_k = row * kv_row + slot * kv_slot + d, head < H + HKV
    tl.store(keys + place + (head - H) * kv_head, turned, mask=inside & (head >= H) & of_k)
    tl.store(values + place + (head - H - HKV) * kv_head, x, mask=inside & (head >= H + HKV))


def rope_and_store(qkv, cos, sin, positions, keys, values, rows, slots) -> Tensor:
    """[B, T, (H + 2·Hkv)·D] → the queries [B, H, T, D], rotated by cos and sin [S, 1, D] at positions [B, T]; keys and
    values are in memory [R, Hkv, S, D]: in rows [B, 1] or [B, T] of it, and slots [B, T] of these."""
    (B, T, width), (Hkv, D) = qkv.shape, (keys.shape[1], keys.shape[3])
    H = width // D - 2 * Hkv
    q = qkv.new_empty(B, T, H, D)
    rows = rows.expand(B, T)
    tensors = qkv, cos, sin, positions, rows, slots, q, keys, values
    apart = qkv.stride(1), *positions.stride(), *rows.stride(), *slots.stride(), *keys.stride()[:3]
    with torch.cuda.device_of(qkv):
        sizes = dict(H=H, HKV=Hkv, D=D, WIDTH=triton.next_power_of_2(D), HEADS=HEADS)
        _rope[(B * T, -(-(H + 2 * Hkv) // HEADS))](tensors, T, apart, **sizes, num_warps=8)
    return q.transpose(1, 2)
