"""Attention of a few new tokens over a long memory: two Triton kernels, for contiguous and for paged keys and values.

Decoding reads every key and value for a handful of queries, so the one thing that counts is to read them once, with the
whole GPU at it. Three ideas do that:

- The G query heads of a key/value head and the T new tokens are all just query rows: G·T of them share each tile read.
- A row's slots are cut into *splits*, one program each, so that a single long text keeps every multiprocessor busy.
- Each split ends with a maximum m, a sum ℓ and a weighted sum o of its own (the online softmax). A second small kernel
  merges them: with w = e^(m − max m), the answer is Σ w·o / Σ w·ℓ.

Lengths stay on the device, and the grid depends on shapes alone: a CUDA graph may hold a call and replay it for any
lengths. Row b's T new tokens lie in slots lengths[b] … lengths[b] + T − 1, written before the call; `lengths` counts
what was there before them, as KVCache's does until it advances.

Beside each kernel stands its twin in plain torch, which says the same and runs anywhere. The kernels need Triton and a
GPU whose matrix units Triton can use: NVIDIA's from compute capability 8.0 on, and AMD's CDNA, for which they have been
compiled but on which they have not been run. `kernels_run` is the one place that decides. TRITON_INTERPRET=1 in the
environment before this module is imported makes Triton act them out on a CPU.
"""

from __future__ import annotations

import warnings
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor

from ..cache import visible_slots

# Triton comes with torch on Linux GPUs and is missing elsewhere. The module must import all the same, for its twins.
triton, tl = (import_module(name) for name in ("triton", "triton.language")) if find_spec("triton") else (None, None)
jit = triton.jit if triton else lambda kernel: kernel
INTERPRETED = bool(triton and triton.knobs.runtime.interpret)

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MOST_ROWS = 64  # query rows of one program. More would not fit its registers; they read the tile again, from the L2
MOST_SPLITS = 64  # the merging kernel holds one row of each split
PROGRAMS_PER_SM = 8  # about two or three run at once; a few waves of them even out their ends
CDNA = ("gfx908", "gfx90a", "gfx94", "gfx95")  # AMD's GPUs with matrix units for all of DTYPES, MI100 to MI355X
KIB = 1024
_told: list[str] = []  # why the kernels do not run, where this process has been warned of it


class Tiling(NamedTuple):
    """How a program works: slots a step, warps, and steps whose reads are under way at once."""

    tile: int = 64
    warps: int = 4
    stages: int = 3


class Card(NamedTuple):
    """What a launch has to know of a GPU."""

    multiprocessors: int
    shared: int  # bytes of shared memory that one program may have


# ---- the twins ----


def flash_decode_torch(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, mask: Tensor | None = None) -> Tensor:
    """What `flash_decode` computes: softmax(q kᵀ / √D) v over the slots that each new token sees."""
    B, H, T, D = q.shape
    Hkv, S = k.shape[1:3]
    new = lengths.long()[:, None] + torch.arange(T, device=q.device)  # [B, T]: where the new tokens lie
    seen = visible_slots(new, S, mask)  # [B, T, S]
    filled = torch.arange(S, device=q.device) <= new[:, -1:]  # [B, S]
    exact = torch.promote_types(q.dtype, torch.float32)
    # What was never written may be NaN, and 0 · NaN is NaN: not seeing it is not enough.
    k, v = (torch.where(filled[:, None, :, None], x, 0).to(exact) for x in (k, v))  # [B, Hkv, S, D]
    queries = q.reshape(B, Hkv, H // Hkv, T, D).to(exact)
    scores = torch.einsum("bhgtd, bhsd -> bhgts", queries, k) / D**0.5
    weights = scores.masked_fill(~seen[:, None, None], -torch.inf).softmax(-1).nan_to_num()  # sees nothing: all zero
    return torch.einsum("bhgts, bhsd -> bhgtd", weights, v).reshape(B, H, T, D).to(q.dtype)


def flash_decode_paged_torch(
    q: Tensor, key_blocks: Tensor, value_blocks: Tensor, tables: Tensor, lengths: Tensor, mask: Tensor | None = None
) -> Tensor:
    """What `flash_decode_paged` computes: the row's blocks laid end to end, then as above."""
    k, v = (blocks[tables.long()].flatten(1, 2).transpose(1, 2) for blocks in (key_blocks, value_blocks))
    return flash_decode_torch(q, k, v, lengths, mask)  # k, v: [B, Hkv, blocks · block_size, D]


# ---- the kernels ----


@jit
def _fold(q, k, v, seen, m, ell, o, scale, MASKED: tl.constexpr, PRECISION: tl.constexpr):
    """One tile into the running (m, ell, o) of every query row: the online softmax, with powers of two for speed.

    q [ROWS, D], k and v [TILE, D], seen [ROWS, TILE]. m begins finite: a row that sees nothing yet keeps ell = 0, and
    no NaN.
    """
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale  # [ROWS, TILE]
    if MASKED:
        s = tl.where(seen, s, float("-inf"))
    top = tl.maximum(m, tl.max(s, 1))
    p = tl.exp2(s - top[:, None])
    shrink = tl.exp2(m - top)
    o = tl.dot(p.to(v.dtype), v, o * shrink[:, None], input_precision=PRECISION)
    return top, ell * shrink + tl.sum(p, 1), o


@jit
def _offsets(slot, filled, table, stride_block, stride_slot, BLOCK_SIZE: tl.constexpr):
    """Where slots begin, counted from the head's first number: in order, or wherever the table put their blocks."""
    if BLOCK_SIZE == 0:
        return slot * stride_slot
    else:
        block = tl.load(table + slot // BLOCK_SIZE, mask=filled, other=0)
        return block.to(tl.int64) * stride_block + (slot % BLOCK_SIZE) * stride_slot


@jit
def _attend_split(
    q, k, v, tables, lengths, mask, out, part_o, part_m, part_l, scale, capacity,
    q_batch, q_head, q_token, kv_batch, kv_head, kv_slot, table_batch, mask_batch, out_batch, out_head, out_token,
    T: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr, HAS_MASK: tl.constexpr,
    ALONE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One split of the slots of one row's key/value head, for up to ROWS of its G·T query rows."""
    # Neighbouring programs take neighbouring heads of the same slots: in a paged memory these lie side by side.
    row_blocks = (G * T + ROWS - 1) // ROWS
    head = tl.program_id(0) // row_blocks
    split, splits = tl.program_id(1), tl.num_programs(1)
    b = tl.program_id(2).to(tl.int64)

    row = tl.program_id(0) % row_blocks * ROWS + tl.arange(0, ROWS)  # row g·T + t is token t of the group's head g
    token, query_head = row % T, head * G + row // T
    d = tl.arange(0, WIDTH)  # head_dim, rounded up to a power of two
    real = (row < G * T)[:, None] & (d < D)[None, :]
    asked = query_head * q_head + token * q_token
    queries = tl.load(q + b * q_batch + asked[:, None] + d[None, :], mask=real, other=0.0)  # [ROWS, WIDTH]

    length = tl.load(lengths + b).to(tl.int32)
    end = tl.minimum(length + T, capacity)
    tiles = (end + TILE - 1) // TILE
    first, last = split * tiles // splits * TILE, tl.minimum((split + 1) * tiles // splits * TILE, end)
    seen_by_all = tl.maximum(first, tl.minimum(last, length // TILE * TILE))  # before it: whole tiles of the past

    table = tables + b * table_batch
    if BLOCK_SIZE == 0:
        k += b * kv_batch
        v += b * kv_batch
    k += head.to(tl.int64) * kv_head
    v += head.to(tl.int64) * kv_head
    m = tl.full([ROWS], -1e30, tl.float32)
    ell = tl.zeros([ROWS], tl.float32)
    o = tl.zeros([ROWS, WIDTH], tl.float32)

    for start in tl.range(first, seen_by_all, TILE):  # the long way, without a mask
        slot = start + tl.arange(0, TILE)
        filled = slot >= 0  # all of them
        at = _offsets(slot, filled, table, kv_batch, kv_slot, BLOCK_SIZE)[:, None] + d[None, :]
        wide = (d < D)[None, :]  # the compiler drops it where D is a power of two
        keys = tl.load(k + at, mask=wide, other=0.0)
        values = tl.load(v + at, mask=wide, other=0.0)
        m, ell, o = _fold(queries, keys, values, True, m, ell, o, scale, False, PRECISION)

    for start in tl.range(seen_by_all, last, TILE, num_stages=1):  # where the past ends and the new tokens are
        slot = start + tl.arange(0, TILE)
        filled = slot < end
        at = _offsets(slot, filled, table, kv_batch, kv_slot, BLOCK_SIZE)[:, None] + d[None, :]
        usable = filled[:, None] & (d < D)[None, :]
        keys = tl.load(k + at, mask=usable, other=0.0)  # zero past the end: 0 · NaN would be NaN
        values = tl.load(v + at, mask=usable, other=0.0)
        new = slot - length  # which of the new tokens; negative: the past
        if HAS_MASK:
            inside = (new >= 0) & (new < T)
            pair = mask + b * mask_batch + token[:, None] * T + new[None, :]
            among_new = tl.load(pair, mask=inside[None, :] & filled[None, :], other=0) != 0
            seen = (new < 0)[None, :] | among_new
        else:
            seen = (new[None, :] <= token[:, None]) & filled[None, :]
        m, ell, o = _fold(queries, keys, values, seen, m, ell, o, scale, True, PRECISION)

    if ALONE:
        o = o / tl.where(ell != 0, ell, 1.0)[:, None]  # NaN stays NaN
        answered = query_head * out_head + token * out_token
        tl.store(out + b * out_batch + answered[:, None] + d[None, :], o.to(out.dtype.element_ty), mask=real)
    else:
        heads = tl.num_programs(0) // row_blocks * G
        part = ((b * heads + query_head) * T + token) * splits + split  # [B, H, T, splits]
        tl.store(part_m + part, m, mask=row < G * T)
        tl.store(part_l + part, ell, mask=row < G * T)
        if first < last:  # a split without slots has ell = 0, and nobody will look at its o
            tl.store(part_o + part[:, None] * D + d[None, :], o, mask=real)


@jit
def _merge_splits(
    out, part_o, part_m, part_l, splits, heads, out_batch, out_head, out_token,
    T: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """One query: Σ w·o / Σ w·ell over its splits, w = 2^(m − max m)."""
    query = tl.program_id(0).to(tl.int64)  # b·H·T + h·T + t
    split, d = tl.arange(0, SPLITS), tl.arange(0, WIDTH)
    part = query * splits + split
    m = tl.load(part_m + part, mask=split < splits, other=-1e30)
    ell = tl.load(part_l + part, mask=split < splits, other=0.0)
    w = tl.exp2(m - tl.max(m, 0))
    filled = (ell != 0)[:, None] & (d < D)[None, :]
    o = tl.load(part_o + part[:, None] * D + d[None, :], mask=filled, other=0.0)  # [SPLITS, WIDTH]
    total = tl.sum(w * ell, 0)
    o = tl.sum(w[:, None] * o, 0) / tl.where(total != 0, total, 1.0)
    at = query // (heads * T) * out_batch + query // T % heads * out_head + query % T * out_token
    tl.store(out + at + d, o.to(out.dtype.element_ty), mask=d < D)


# ---- calling them ----


def flash_decode(
    q: Tensor,  # [B, H, T, D], the new tokens' queries
    k: Tensor,  # [B, Hkv, S, D], a layer of KVCache
    v: Tensor,
    lengths: Tensor,  # [B], on the device: slots filled before the new tokens, at most S − T
    mask: Tensor | None = None,  # bool [T, T] or [B, T, T]: which new token sees which; None: those up to itself
    *,
    splits: int | None = None,  # programs that share a row's slots; None: enough to fill the GPU
    tiling: Tiling | None = None,
) -> Tensor:
    """Attention of T new tokens over contiguous memory: [B, H, T, D], as `flash_decode_torch`."""
    if k.dim() != 4 or k.shape[0] != q.shape[0]:
        raise ValueError(f"k is {list(k.shape)}, q {list(q.shape)}: give both with one row for each text, [B, …]")
    _, heads, capacity, _ = k.shape
    return _launch(q, k, v, None, lengths, mask, splits, tiling, heads=heads, capacity=capacity, strides=k.stride())


def flash_decode_paged(
    q: Tensor,  # [B, H, T, D]
    key_blocks: Tensor,  # [blocks, block_size, Hkv, D], a layer of PagedKVCache
    value_blocks: Tensor,
    tables: Tensor,  # [B, n], on the device: the blocks of each row, in order; beyond its last token anything
    lengths: Tensor,  # [B]
    mask: Tensor | None = None,
    *,
    splits: int | None = None,
    tiling: Tiling | None = None,
) -> Tensor:
    """The same over memory in blocks, as `flash_decode_paged_torch`."""
    if key_blocks.dim() != 4 or tables.dim() != 2 or tables.shape[0] != q.shape[0]:
        raise ValueError(
            f"key_blocks is {list(key_blocks.shape)}, tables {list(tables.shape)}, q {list(q.shape)}: "
            "give [blocks, block_size, Hkv, D], [B, n] and [B, H, T, D]"
        )
    block, slot, head, one = key_blocks.stride()
    return _launch(
        q, key_blocks, value_blocks, tables, lengths, mask, splits, tiling, heads=key_blocks.shape[2],
        capacity=tables.shape[1] * key_blocks.shape[1], strides=(block, head, slot, one),
    )  # fmt: skip


def kernels_run(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels serve this device and dtype; if not, torch does the work. A GPU that has to do without them
    is slower than it could be, so a warning says why, once per process."""
    if device.type != "cuda":  # an interpreter is for tests
        return False
    reason = unavailable(device)
    if reason is None and dtype not in DTYPES:
        reason = f"the model is in {dtype}; load it with dtype=torch.bfloat16, float16 or float32"
    if reason and not _told:
        _told.append(reason)
        warnings.warn(f"attention and products of few tokens run in plain torch, not by minispec's kernels, which is "
                      f"right but slower: {reason}", stacklevel=3)  # fmt: skip
    return reason is None


def unavailable(device) -> str | None:
    """Why the kernels cannot run on this device, and what would do; None where they can."""
    device = torch.device(device)
    if triton is None:
        return "Triton is not installed (`pip install triton`; on Linux PyTorch's GPU builds bring it along)"
    if INTERPRETED:
        return None
    if device.type != "cuda":
        return f"the kernels need an NVIDIA or AMD GPU, and this is {device.type} (TRITON_INTERPRET=1 acts them out)"
    return _no_matrix_units(device)


@lru_cache
def _no_matrix_units(device: torch.device) -> str | None:
    """Why Triton's products would be computed number by number on this GPU, many times slower than by torch's."""
    if torch.version.hip:
        architecture = torch.cuda.get_device_properties(device).gcnArchName.split(":")[0]  # gfx942:sramecc+:xnack-
        if not architecture.startswith(CDNA):
            return f"of AMD's GPUs only CDNA (MI100 and later) multiplies all that they need; this is {architecture}"
        return None
    major, minor = torch.cuda.get_device_capability(device)
    if major < 8:
        return (
            f"{device} has compute capability {major}.{minor}, for which Triton compiles them without tensor cores; "
            "use a GPU of capability 8.0 or later (A100, RTX 30 and newer)"
        )
    return None


def choose_splits(programs: int, capacity: int, tile: int, multiprocessors: int) -> int:
    """How many programs share a row's slots: enough to fill the GPU, but a tile for each, if the memory were full."""
    wanted = -(-PROGRAMS_PER_SM * multiprocessors // programs)
    return max(1, min(wanted, -(-capacity // tile), MOST_SPLITS))


@lru_cache
def card(device: torch.device) -> Card:
    if device.type != "cuda":  # acted out: nothing is scarce
        return Card(1, 227 * KIB)
    properties = torch.cuda.get_device_properties(device)
    shared = getattr(properties, "shared_memory_per_block_optin", 0)
    return Card(properties.multi_processor_count, max(shared, 64 * KIB))  # AMD's do not say; all have 64 KiB


def _launch(q, k, v, tables, lengths, mask, splits, tiling, *, heads: int, capacity: int, strides) -> Tensor:
    """Check, choose, and run the kernels. strides: of a row or block, a head, a slot and a number of k."""
    _check(q, k, v, tables, lengths, mask, heads, splits)
    B, H, T, D = q.shape
    G, width = H // heads, max(16, triton.next_power_of_2(D))
    rows = min(MOST_ROWS, max(16, triton.next_power_of_2(G * T)))  # a matrix unit takes 16 at least
    multiprocessors, shared = card(q.device)
    rows, best = default_tiling(q.dtype, rows, width, shared)
    row_blocks = -(-G * T // rows)
    tile, warps, stages = tiling or best
    splits = splits or choose_splits(B * heads * row_blocks, capacity, tile, multiprocessors)

    out = torch.empty_like(q)
    part_o = q.new_empty(B, H, T, splits, D, dtype=torch.float32) if splits > 1 else out
    part_m, part_l = q.new_empty(2, B, H, T, splits, dtype=torch.float32) if splits > 1 else (out, out)
    mask = None if mask is None else mask.contiguous().view(torch.uint8).expand(B, T, T)
    if tables is not None:
        stages = 2 * stages - 1  # the compiler gives half of them to the table, whose entries must arrive even earlier
    grid = (heads * row_blocks, splits, B)
    with torch.cuda.device_of(q):  # Triton launches on the current device
        _attend_split[grid](
            q, k, v, lengths if tables is None else tables, lengths, lengths if mask is None else mask,
            out, part_o, part_m, part_l, D**-0.5 * 1.4426950408889634, capacity,  # log₂ e: powers of two, not of e
            *q.stride()[:3], *strides[:3], 0 if tables is None else tables.stride(0),
            0 if mask is None else mask.stride(0), *out.stride()[:3],
            T=T, G=G, D=D, BLOCK_SIZE=0 if tables is None else k.shape[1], HAS_MASK=mask is not None, ALONE=splits == 1,
            ROWS=rows, WIDTH=width, TILE=tile, PRECISION=precision(q.dtype), num_warps=warps, num_stages=stages,
        )  # fmt: skip
        if splits > 1:
            _merge_splits[(B * H * T,)](
                out, part_o, part_m, part_l, splits, H, *out.stride()[:3],
                T=T, D=D, WIDTH=width, SPLITS=triton.next_power_of_2(splits), num_warps=4,
            )  # fmt: skip
    return out


def precision(dtype: torch.dtype) -> str:
    """How a product takes its numbers: as they are ("ieee"), but on NVIDIA float32 as three products of tf32. NVIDIA's
    matrix units know no float32, and the three are about as exact as one. AMD's do, and Triton refuses tf32x3 there."""
    return "tf32x3" if dtype == torch.float32 and torch.version.hip is None else "ieee"


def shared_bytes(tiling: Tiling, dtype: torch.dtype, rows: int, width: int) -> int:
    """Shared memory of a program: tiles of k and v under way, the queries and their weights (float32 in two parts, for
    tf32x3), and the table's entries. Hopper's matrix units hold one stage more, and Hopper has room for it."""
    tile, _, stages = tiling
    under_way = (stages - 1) * 2 * tile * width
    multiplied = rows * (width + tile) * (2 if dtype == torch.float32 else 1)
    return (under_way + multiplied) * dtype.itemsize + 8 * tile


@lru_cache
def default_tiling(dtype: torch.dtype, rows: int, width: int, shared: int) -> tuple[int, Tiling]:
    """Query rows of a program, `rows` at the most, and its tiling: the same bytes under way whatever the numbers' size,
    and less where that would not fit `shared`. An RTX 4090 has 99 KiB, an A100 163, an H200 227."""
    tiling, least = Tiling(tile=64 if dtype.itemsize == 2 else 32), Tiling(tile=16)
    while rows > 16 and shared_bytes(least, dtype, rows, width) > shared:
        rows //= 2
    while tiling.tile > least.tile and shared_bytes(tiling, dtype, rows, width) > shared:
        tiling = tiling._replace(tile=tiling.tile // 2)
    return rows, tiling


def _check(q, k, v, tables, lengths, mask, heads: int, splits: int | None) -> None:
    if reason := unavailable(q.device):
        raise ValueError(f"q is on {q.device}: {reason}; call the twin, whose name ends in _torch")
    B, H, T, D = q.shape
    if INTERPRETED and q.dtype == torch.bfloat16:
        raise ValueError("q is bfloat16, which Triton's interpreter takes for whole numbers: give float16 or float32")
    if q.dtype not in DTYPES or k.dtype != q.dtype or v.dtype != q.dtype:
        raise ValueError(f"q, k, v are {q.dtype}, {k.dtype}, {v.dtype}: give all in bfloat16, float16 or float32")
    if k.shape[3] != D or H % heads or v.shape != k.shape or v.stride() != k.stride():
        raise ValueError(
            f"q is {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}: give k and v of one shape and layout, with "
            "the queries' last dimension and a number of heads that divides theirs"
        )
    if q.stride(3) != 1 or k.stride(3) != 1:
        raise ValueError("the last dimension of q, k or v is strided: make it contiguous")
    for name, tensor in (("lengths", lengths), ("tables", tables)):
        if tensor is not None and (tensor.is_floating_point() or tensor.stride(-1) != 1 or tensor.device != q.device):
            raise ValueError(f"{name}: give whole numbers on {q.device}, contiguous along the last dimension")
    if lengths.shape != (B,):
        raise ValueError(f"lengths is {list(lengths.shape)}, not [{B}]: give one for each row")
    if mask is not None and (mask.dtype != torch.bool or mask.shape not in ((T, T), (B, T, T))):
        raise ValueError(f"mask is {mask.dtype} {list(mask.shape)}: give bool [{T}, {T}] or [{B}, {T}, {T}]")
    if splits is not None and not 1 <= splits <= MOST_SPLITS:
        raise ValueError(f"splits={splits}: give a number from 1 to {MOST_SPLITS}, or None")
