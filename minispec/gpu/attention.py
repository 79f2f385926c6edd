"""Attention of new tokens over a long memory: two Triton kernels, for contiguous and for paged keys and values.

Decoding reads every key and value for a handful of queries: what counts is to read them once, with the whole GPU at it.

- The G query heads of a key/value head and the T new tokens are all just query rows: G·T of them share each tile read.
- A row's slots are cut into *splits*, one program each, so that a single long text keeps every SM busy.
- Each split ends with a maximum m, a sum ℓ and a weighted sum o of its own (the online softmax). A second small kernel
  merges them: with w = e^(m − max m), the answer is Σ w·o / Σ w·ℓ.

Lengths stay on the device, and the grid depends on shapes alone: a CUDA graph may hold a call and replay it for any
lengths. Row b's T new tokens lie in slots lengths[b] … lengths[b] + T − 1, written before the call.

`flash_ragged` is for prompts, where every sequence brings a number of new tokens of its own, laid end to end. A chunk
has enough query rows to fill the GPU with blocks of them, so its slots are not split.

Beside each kernel stands its reference version in plain torch, which runs anywhere. The kernels need a GPU whose
tensor cores Triton can use: NVIDIA's from compute capability 8.0 on. TRITON_INTERPRET=1 in the environment makes Triton
interpret them on a CPU.
"""

import warnings
from collections import namedtuple
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor

from ..cache import visible_slots
from ..cpu import invariant

# Triton comes with torch on Linux GPUs and is missing elsewhere, where torch does the work.
triton, tl = (import_module(name) for name in ("triton", "triton.language")) if find_spec("triton") else (None, None)
constexpr = tl.constexpr if tl else None
jit = triton.jit if triton else lambda kernel=None, **options: kernel or jit
INTERPRETED = bool(triton and triton.knobs.runtime.interpret)

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MOST_ROWS = 64  # query rows of one program. More would not fit its registers; they read the tile again, from the L2
CHUNK_ROWS = 128  # of a program where chunks of prompts are processed, with twice the warps: a tile serves more queries
LONG = 512  # new tokens from which on that is worth it
MOST_SPLITS = 32  # the merging kernel holds one row of each split
PROGRAMS_PER_SM = 4  # two or three run at once. Fewer are faster for equal lengths, more if one row is much longer
KIB, LOG2E = 1024, 1.4426950408889634  # powers of two, not of e: 2^(x log₂ e) = eˣ
_told: list[str] = []  # why the kernels do not run, where this process has been warned of it


class Tiling(NamedTuple):
    """How a program works: slots a step, warps, and steps whose reads are under way at once."""

    tile: int = 64
    warps: int = 4
    stages: int = 3


class Card(NamedTuple):
    """What a launch has to know of a GPU."""

    sms: int
    shared: int  # bytes of shared memory that one program may have


@lru_cache
def _named(*names: str):
    return namedtuple("Constants", names)


def constants(**sizes):
    """What a kernel is compiled for, as one argument: size.ROWS, … Its tensors come as tuples, with None for those that
    are not there; the compiler leaves out what would have been done with them."""
    return _named(*sizes)(*map(constexpr, sizes.values()))


# ---- the reference versions ----


def flash_decode_torch(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, mask: Tensor | None = None) -> Tensor:
    """What `flash_decode` computes: softmax(q kᵀ / √D) v over the slots that each new token sees."""
    B, H, T, D = q.shape
    Hkv, S = k.shape[1:3]
    entries = T if mask is None else mask.shape[-1]
    new = lengths.long()[:, None] + torch.arange(entries, device=q.device)  # [B, E]: where they lie, the T newest last
    seen = visible_slots(new, S, mask)  # [B, T, S]
    filled = torch.arange(S, device=q.device) <= new[:, -1:]  # [B, S]
    exact = torch.promote_types(q.dtype, torch.float32)
    # What was never written may be NaN, and 0 · NaN is NaN: not seeing it is not enough.
    k, v = (torch.where(filled[:, None, :, None], x, 0).to(exact) for x in (k, v))  # [B, Hkv, S, D]
    queries = q.reshape(B, Hkv, H // Hkv, T, D).to(exact)
    scores = torch.einsum("bhgtd, bhsd -> bhgts", queries, k) / D**0.5
    weights = scores.masked_fill(~seen[:, None, None], -torch.inf).softmax(-1).nan_to_num()  # sees nothing: all zero
    return torch.einsum("bhgts, bhsd -> bhgtd", weights, v).reshape(B, H, T, D).to(q.dtype)


def flash_decode_paged_torch(q, key_blocks, value_blocks, tables, lengths, mask=None) -> Tensor:
    """What `flash_decode_paged` computes: the row's blocks laid end to end, then as above."""
    k, v = (blocks[tables.long()].flatten(1, 2).transpose(1, 2) for blocks in (key_blocks, value_blocks))
    return flash_decode_torch(q, k, v, lengths, mask)  # k, v: [B, Hkv, blocks · block_size, D]


def flash_ragged_torch(q, key_blocks, value_blocks, tables, starts, counts, lengths) -> Tensor:
    """What `flash_ragged` computes: one sequence after the other, as above. It synchronises; the kernel does not."""
    out, block_size = torch.zeros_like(q), key_blocks.shape[1]
    for b, (start, count, length) in enumerate(zip(starts.tolist(), counts.tolist(), lengths.tolist(), strict=True)):
        if count:
            own, used = slice(start, start + count), -(-(length + count) // block_size)
            queries, table = q[own].transpose(0, 1)[None], tables[b : b + 1, :used]  # [1, H, count, D], [1, used]
            o = flash_decode_paged_torch(queries, key_blocks, value_blocks, table, lengths[b : b + 1])
            out[own] = o[0].transpose(0, 1)
    return out


# ---- the kernels ----


@jit
def _fold(q, k, v, seen, m, ell, o, scale, MASKED: constexpr, PRECISION: constexpr):
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
def _offsets(slot, filled, table, stride_block, stride_slot, BLOCK_SIZE: constexpr):
    """Where slots begin, counted from the head's first number: in order, or wherever the table put their blocks."""
    if table is None:
        return slot * stride_slot
    else:
        block = tl.load(table + slot // BLOCK_SIZE, mask=filled, other=0)
        return block.to(tl.int64) * stride_block + (slot % BLOCK_SIZE) * stride_slot


@jit
def _piece(starts, counts, sequences, splits, FEW, SEQUENCES: constexpr, G: constexpr, ROWS: constexpr):
    """A program's piece of a ragged batch: sequence, block of its query rows, split, splits; and whether it is idle.

    Pieces are numbered. First come the splits of sequences with at most FEW query rows, `splits` for every sequence.
    Then come the blocks of ROWS query rows of all others: sequence b has the numbers from starts[b]·G // ROWS + b on,
    which are always enough. To find b is to count the sequences that begin before. Numbers that are left over are idle.

    The last piece begins first: the last block of a chunk sees the most slots, so it should not be the last to begin.
    """
    piece = tl.num_programs(1) - 1 - tl.program_id(1)
    number = piece - sequences * splits  # negative: a split
    every = tl.arange(0, SEQUENCES)
    there = every < sequences
    begin = tl.load(starts + every, mask=there, other=0).to(tl.int32) * G // ROWS + every
    b = tl.sum((there & (begin <= number)).to(tl.int32), 0) - 1
    b = tl.where(number < 0, piece // splits, b)
    begin = tl.load(starts + b).to(tl.int32) * G // ROWS + b
    block = tl.where(number < 0, 0, number - begin)
    split = tl.where(number < 0, piece % splits, 0)
    rows = tl.load(counts + b).to(tl.int32) * G
    idle = ((rows <= FEW) != (number < 0)) | (block * ROWS >= rows)
    return b, block, split, tl.where(number < 0, splits, 1), idle


@jit(do_not_specialize=["T", "E", "FEW", "most", "sequences"])  # one compiled version for all numbers of tokens
def _attend_split(tensors, parts, scale, capacity, heads, apart, sequences, most, T, E, FEW, size):
    """One split of the slots of one row's key/value head, for up to ROWS of its G·T query rows.

    A ragged batch (SEQUENCES > 0) has `counts` in place of T. A mask has T rows and E columns: the tokens are the
    newest T of E entries after `lengths`. `most` are the splits of sequences with up to FEW query rows: in a ragged
    batch the others have one.
    """
    q, k, v, tables, starts, counts, lengths, mask = tensors
    out, part_o, part_m, part_l = parts
    q_batch, q_head, q_token, kv_batch, kv_head, kv_slot, table_batch, mask_batch = apart
    # Neighbouring programs take neighbouring heads of the same slots: in a paged memory these lie side by side.
    if starts is None:
        row_blocks = (size.G * T + size.ROWS - 1) // size.ROWS
        head, block = tl.program_id(0) // row_blocks, tl.program_id(0) % row_blocks
        split, splits = tl.program_id(1), most
        b = tl.program_id(2).to(tl.int64)
        count = T
    else:
        head = tl.program_id(0)
        b, block, split, splits, idle = _piece(starts, counts, sequences, most, FEW, size.SEQUENCES, size.G, size.ROWS)
        if idle:
            return
        b = b.to(tl.int64)
        count = tl.load(counts + b).to(tl.int32)
        begin = tl.load(starts + b).to(tl.int64)
        q += begin * q_token
        out += begin * q_token

    row = block * size.ROWS + tl.arange(0, size.ROWS)  # row t·G + g is token t of the group's head g
    token, query_head = row // size.G, head * size.G + row % size.G
    d = tl.arange(0, size.WIDTH)  # head_dim, rounded up to a power of two
    real = (row < count * size.G)[:, None] & (d < size.D)[None, :]
    asked = b * q_batch + (query_head * q_head + token * q_token)[:, None] + d[None, :]
    queries = tl.load(q + asked, mask=real, other=0.0)  # [ROWS, WIDTH]

    # The block's first token sees all before it and its last one nothing after it, unless a mask says otherwise.
    length = tl.load(lengths + b).to(tl.int32)
    by_all = block * size.ROWS // size.G  # so many new tokens are seen by all of the block …
    by_any = tl.minimum(count, (block * size.ROWS + size.ROWS - 1) // size.G + 1)  # … and so many by some
    if mask is not None:
        by_all, by_any = 0, E
    end = tl.minimum(length + by_any, capacity)
    tiles = (end + size.TILE - 1) // size.TILE
    first, last = split * tiles // splits * size.TILE, tl.minimum((split + 1) * tiles // splits * size.TILE, end)
    whole = (length + by_all) // size.TILE * size.TILE  # tiles that all see
    seen_by_all = tl.maximum(first, tl.minimum(last, whole))

    if tables is None:
        k += b * kv_batch
        v += b * kv_batch
    else:
        tables += b * table_batch
    k += head.to(tl.int64) * kv_head
    v += head.to(tl.int64) * kv_head
    m = tl.full([size.ROWS], -1e30, tl.float32)
    ell = tl.zeros([size.ROWS], tl.float32)
    o = tl.zeros([size.ROWS, size.WIDTH], tl.float32)

    for start in tl.range(first, seen_by_all, size.TILE):  # the long way, without a mask
        slot = start + tl.arange(0, size.TILE)
        filled = slot >= 0  # all of them
        at = _offsets(slot, filled, tables, kv_batch, kv_slot, size.BLOCK_SIZE)[:, None] + d[None, :]
        wide = (d < size.D)[None, :]  # the compiler drops it where D is a power of two
        keys = tl.load(k + at, mask=wide, other=0.0)
        values = tl.load(v + at, mask=wide, other=0.0)
        m, ell, o = _fold(queries, keys, values, True, m, ell, o, scale, False, size.PRECISION)

    for start in tl.range(seen_by_all, last, size.TILE, num_stages=1):  # where the past ends and the new tokens are
        slot = start + tl.arange(0, size.TILE)
        filled = slot < end
        at = _offsets(slot, filled, tables, kv_batch, kv_slot, size.BLOCK_SIZE)[:, None] + d[None, :]
        usable = filled[:, None] & (d < size.D)[None, :]
        keys = tl.load(k + at, mask=usable, other=0.0)  # zero past the end: 0 · NaN would be NaN
        values = tl.load(v + at, mask=usable, other=0.0)
        new = slot - length  # which of the new tokens; negative: the past
        seen = (new[None, :] <= token[:, None]) & filled[None, :]
        if mask is not None:
            inside = ((new >= 0) & (new < E) & filled)[None, :] & (token < T)[:, None]
            pair = mask + b * mask_batch + token[:, None] * E + new[None, :]
            seen = (new < 0)[None, :] | (tl.load(pair, mask=inside, other=0) != 0)
        m, ell, o = _fold(queries, keys, values, seen, m, ell, o, scale, True, size.PRECISION)

    if splits == 1:
        o = o / tl.where(ell != 0, ell, 1.0)[:, None]  # NaN stays NaN
        tl.store(out + asked, o.to(out.dtype.element_ty), mask=real)
    else:
        part = ((b * heads + head) * FEW + row) * splits + split  # [B, Hkv, FEW, splits]
        tl.store(part_m + part, m, mask=row < count * size.G)
        tl.store(part_l + part, ell, mask=row < count * size.G)
        if first < last:  # a split without slots has ell = 0, and its o is not read
            tl.store(part_o + part[:, None] * size.D + d[None, :], o, mask=real)


@jit(do_not_specialize=["FEW", "splits"])
def _merge_splits(parts, starts, counts, splits, heads, apart, FEW, size):
    """One query: Σ w·o / Σ w·ell over its splits, w = 2^(m − max m)."""
    out, part_o, part_m, part_l = parts
    q_batch, q_head, q_token = apart
    query = tl.program_id(0).to(tl.int64)  # (b·Hkv + head)·FEW + row
    row, head, b = query % FEW, query // FEW % heads, query // FEW // heads
    if starts is not None:
        rows = tl.load(counts + b).to(tl.int32) * size.G
        if (row >= rows) | (rows > FEW):  # nobody's, or answered already
            return
        out += tl.load(starts + b).to(tl.int64) * q_token
    split, d = tl.arange(0, size.SPLITS), tl.arange(0, size.WIDTH)
    part = query * splits + split
    m = tl.load(part_m + part, mask=split < splits, other=-1e30)
    ell = tl.load(part_l + part, mask=split < splits, other=0.0)
    w = tl.exp2(m - tl.max(m, 0))
    filled = (ell != 0)[:, None] & (d < size.D)[None, :]
    o = tl.load(part_o + part[:, None] * size.D + d[None, :], mask=filled, other=0.0)  # [SPLITS, WIDTH]
    total = tl.sum(w * ell, 0)
    o = tl.sum(w[:, None] * o, 0) / tl.where(total != 0, total, 1.0)
    at = b * q_batch + (head * size.G + row % size.G) * q_head + row // size.G * q_token
    tl.store(out + at + d, o.to(out.dtype.element_ty), mask=d < size.D)


# ---- calling them ----


def flash_decode(
    q: Tensor,  # [B, H, T, D], the new tokens' queries
    k: Tensor,  # [B, Hkv, S, D], a layer of KVCache
    v: Tensor,
    lengths: Tensor,  # [B], on the device: slots filled before the new tokens, at most S − T
    # Which new token sees which, bool [T, T] or [B, T, T]; None: those up to itself. With [B, T, E] the new tokens are
    # the newest T of E entries after `lengths`.
    mask: Tensor | None = None,
    *,
    splits: int | None = None,  # programs that share a row's slots; None: enough to fill the GPU
    tiling: Tiling | None = None,
) -> Tensor:
    """Attention of T new tokens over contiguous memory: [B, H, T, D], as `flash_decode_torch`."""
    _, heads, capacity, _ = k.shape
    return _launch(q, k, v, None, lengths, mask, splits, tiling, heads=heads, capacity=capacity, strides=k.stride())


def flash_decode_paged(q, key_blocks, value_blocks, tables, lengths, mask=None, *, splits=None, tiling=None) -> Tensor:
    """The same over memory in blocks, [blocks, block_size, Hkv, D], a layer of PagedKVCache. tables [B, n], on the
    device, are the blocks of each row, in order; beyond its last token anything."""
    layout = in_blocks(key_blocks, tables)
    return _launch(q, key_blocks, value_blocks, tables, lengths, mask, splits, tiling, **layout)


def in_blocks(key_blocks: Tensor, tables: Tensor) -> dict:
    _, size, heads, _ = key_blocks.shape
    block, slot, head, one = key_blocks.stride()
    return dict(heads=heads, capacity=tables.shape[1] * size, strides=(block, head, slot, one))


def flash_ragged(
    q: Tensor,  # [N, H, D], the new tokens of all sequences, end to end; after the last one's anything
    key_blocks: Tensor,  # [blocks, block_size, Hkv, D]
    value_blocks: Tensor,
    tables: Tensor,  # [R, n]
    starts: Tensor,  # [R], where each sequence's queries begin: 0, and then ascending
    counts: Tensor,  # [R], how many new tokens it brings; 0: it is padding
    lengths: Tensor,  # [R], how many tokens were cached before them
    *,
    splits: int | None = None,  # programs that share the slots of a sequence with few queries
    rows: int | None = None,  # query rows of a program
    tiling: Tiling | None = None,
) -> Tensor:
    """Attention of a ragged batch over memory in blocks: [N, H, D], as `flash_ragged_torch`. What comes out for tokens
    of no sequence is anything."""
    layout = in_blocks(key_blocks, tables) | dict(ragged=(starts, counts), rows=rows)
    q = q.transpose(0, 1)[None]  # [1, H, N, D]
    out = _launch(q, key_blocks, value_blocks, tables, lengths, None, splits, tiling, **layout)
    return out[0].transpose(0, 1)


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
        warnings.warn(
            f"attention and products of few tokens run in plain torch, not by minispec's kernels, which is "
            f"right but slower: {reason}",
            stacklevel=3,
        )
    return reason is None


def unavailable(device) -> str | None:
    """Why the kernels cannot run on this device, and what would do; None where they can."""
    device = torch.device(device)
    if triton is None:
        return "Triton is not installed (`pip install triton`; on Linux PyTorch's GPU builds bring it along)"
    if INTERPRETED:
        return None
    if device.type != "cuda":
        return f"the kernels need an NVIDIA GPU, and this is {device.type} (TRITON_INTERPRET=1 interprets them)"
    return _no_tensor_cores(device)


@lru_cache
def _no_tensor_cores(device: torch.device) -> str | None:
    """Why Triton's products would be computed number by number on this GPU, many times slower than by torch's."""
    if torch.version.hip:
        return f"{device} is AMD's, on which they have never run"
    major, minor = torch.cuda.get_device_capability(device)
    if major < 8:
        return (
            f"{device} has compute capability {major}.{minor}, for which Triton compiles them without tensor cores; "
            "use a GPU of capability 8.0 or later (A100, RTX 30 and newer)"
        )
    return None


def choose_splits(programs: int, capacity: int, tile: int, sms: int) -> int:
    """How many programs share a row's slots: enough to fill the GPU, but a tile for each, if the memory were full."""
    wanted = -(-PROGRAMS_PER_SM * sms // programs)
    return max(1, min(wanted, -(-capacity // tile), MOST_SPLITS))


@lru_cache
def card(device: torch.device) -> Card:
    if device.type != "cuda":  # interpreted: nothing is scarce
        return Card(1, 227 * KIB)
    properties = torch.cuda.get_device_properties(device)
    return Card(properties.multi_processor_count, properties.shared_memory_per_block_optin)


def _launch(
    q, k, v, tables, lengths, mask, splits, tiling, *, heads: int, capacity: int, strides, ragged=None, rows=None
) -> Tensor:
    """Choose, and run the kernels. strides: of a row or block, a head, a slot and a number of k. ragged: where
    the queries of each sequence begin in a q of one row, and how many they are."""
    B = len(lengths) if ragged else len(q)
    if reason := unavailable(q.device):
        raise ValueError(f"q is on {q.device}: {reason}; call the reference version, whose name ends in _torch")
    _, H, T, D = q.shape
    G, width = H // heads, max(16, triton.next_power_of_2(D))
    sms, shared = card(q.device)
    most = rows or (CHUNK_ROWS if ragged and T >= LONG else MOST_ROWS)
    rows = min(most, max(16, triton.next_power_of_2(G * T)))  # a tensor core takes 16 at least
    if invariant.wanted():  # one shape for every number of tokens and sequences, and one run along the slots
        rows, splits = MOST_ROWS, 1
    rows, best = default_tiling(q.dtype, rows, width, shared)
    row_blocks = -(-G * T // rows)
    tile, warps, stages = tiling or best
    few = min(rows, MOST_ROWS) if ragged else G * T  # query rows of a sequence whose slots are split
    # Blocks of query rows are programs, too, and as many times the rows to merge: hence the square.
    splits = splits or choose_splits(B * heads * (1 if ragged else row_blocks**2), capacity, tile, sms)
    grid = (heads, B * splits + G * T // rows + B) if ragged else (heads * row_blocks, splits, B)

    out = q.new_empty_strided(q.shape, q.stride())  # it lies as the queries do
    parts = out, out, out, out
    if splits > 1:
        shape, exact = (B, heads, few, splits), dict(dtype=torch.float32)
        parts = out, q.new_empty(*shape, D, **exact), *q.new_empty(2, *shape, **exact)
    entries = T if mask is None else mask.shape[-1]
    if mask is not None:
        mask = mask.contiguous().view(torch.uint8).expand(B, T, entries)
    if tables is not None:
        stages = 2 * stages - 1  # the compiler gives half of them to the table, whose entries must arrive even earlier
    starts, counts = ragged or (None, None)
    q_apart = 0 if ragged else q.stride(0), *q.stride()[1:3]  # a ragged batch is one row
    apart = *q_apart, *strides[:3], *(0 if rows is None else rows.stride(0) for rows in (tables, mask))
    sizes = dict(G=G, D=D, ROWS=rows, WIDTH=width, TILE=tile, PRECISION=precision(q.dtype))
    sizes |= dict(BLOCK_SIZE=0 if tables is None else k.shape[1], SEQUENCES=triton.next_power_of_2(B) if ragged else 0)
    options = dict(num_warps=warps, num_stages=stages, **one_rounding())
    with torch.cuda.device_of(q):  # Triton launches on the current device
        tensors, numbers = (q, k, v, tables, starts, counts, lengths, mask), (D**-0.5 * LOG2E, capacity, heads)
        counted = B, splits, T, entries, few
        _attend_split[grid](tensors, parts, *numbers, apart, *counted, constants(**sizes), **options)
        if splits > 1:
            size = constants(G=G, D=D, WIDTH=width, SPLITS=triton.next_power_of_2(splits))
            _merge_splits[(B * heads * few,)](parts, starts, counts, splits, heads, q_apart, few, size, num_warps=1)
    return out


def one_rounding() -> dict[str, bool]:
    """Options of a launch. Whether a product and a sum become one instruction, which rounds once, is the compiler's
    choice, and it may choose otherwise for whole tiles than for masked ones. A batch-invariant pass asks it not to."""
    return {"enable_fp_fusion": False} if invariant.wanted() else {}


def precision(dtype: torch.dtype) -> str:
    """How a product takes its numbers: as they are ("ieee"), but float32 as three products of tf32. Tensor cores know
    no float32, and the three are about as exact as one."""
    return "tf32x3" if dtype == torch.float32 else "ieee"


def shared_bytes(tiling: Tiling, dtype: torch.dtype, rows: int, width: int) -> int:
    """Shared memory of a program: tiles of k and v under way, the queries and their weights (float32 in two parts, for
    tf32x3), and the table's entries. Hopper's tensor cores hold one stage more, and Hopper has room for it."""
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
    return rows, tiling if rows <= MOST_ROWS else tiling._replace(warps=2 * tiling.warps)
