"""The target's decode and verify passes over paged memory, in few fixed shapes, so that each can be one launch.

A step of the engine in which nobody reads a prompt brings one token a row, or one token and its draft. Such a pass has
two sizes, B rows of T tokens. Both are rounded up to *buckets*, so that a few captures (capture.py) serve every step:

    rows      1, 2, 4, 8, 16, 24, 32, …
    tokens    1, or 1 + a draft of 1, 2, 4, … or k

Two blocks at the end of the pool, never given to anybody, take what is rounded up:

    blank     follows the last block in every table, and is all of a padding row's: zeros, to be read
    spare     what would be written to the blank one goes here: garbage, never read

They are two since 0 · NaN is NaN: a row gone wrong must not reach its neighbours through garbage that all share.

The host writes two sheets of numbers: lengths and tokens, and the tables, of which it rewrites only those that have
changed. Each is sent by one transfer, whole lines of it: only memory without gaps goes while the host works on. A pass
after one of a single token per row needs no lengths and tokens (`again`): it takes the tokens that the last one found.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..load.handle import Model
from ..model import Transformer
from ..serving.paged import PagedKVCache
from ..tree import Draft, check_parents, depths
from . import tree_kernels
from .attention import flash_decode_paged, flash_decode_paged_torch
from .capture import Arrival, Captured, Event, on_the_device, why_not_compile
from .fused import Fused, has_kernels

FEW_MOVES = 16  # slots that the smallest capture of a move moves
FREE_TOKENS = 64  # a pass of fewer takes about as long as a pass of one: its weights are read once (products.py)


def rows_of(count: int) -> int:
    """The bucket of so many rows: 1, 2, 4, then multiples of 8."""
    return 1 << (count - 1).bit_length() if count <= 4 else -(-count // 8) * 8


def tokens_of(draft: int, most: int) -> int:
    """The bucket of the certain token and so many draft and scratch tokens, `most` at the most."""
    return 1 + (min(most, 1 << (draft - 1).bit_length()) if draft else 0)


def best_attention(device: torch.device, dtype: torch.dtype):
    """The kernel, or where it cannot run its twin."""
    return flash_decode_paged if has_kernels(device, dtype) else flash_decode_paged_torch


class Result(NamedTuple):
    """What a pass gives, for its B rows of T tokens."""

    logits: Tensor  # [B, T, V]
    best: Tensor  # [B, T], the best tokens; −1: NaN or ∞
    hidden: dict[int, Tensor]  # layers → [B, T, d]


def view(draft: Draft, size: int) -> tuple[np.ndarray, np.ndarray]:
    """tree.view on the host's side of a sheet: how far after the last token each is [T], who attends to whom [T, T]."""
    n, mask, offsets = 1 + len(draft.tokens), np.eye(size, dtype=bool), np.zeros(size, dtype=np.int32)
    mask[:n, 0] = True
    for node, parent in enumerate(draft.tree, start=1):
        if parent >= 0:
            mask[node] |= mask[parent + 1]
    offsets[1:n] = depths(draft.tree)
    if draft.scratch:
        s = len(draft.scratch.tokens)
        mask[-s:, -s:] = draft.scratch.mask.numpy()
        mask[-s:, 0] = True
        offsets[-s:] = draft.scratch.offsets
    return offsets, mask


@lru_cache(4096)
def tree_view(parents: tuple[int, ...], T: int) -> np.ndarray:
    """How far after its certain token each of T tokens is, and who attends to whom [T + T·T]: that token, the nodes
    of a tree, and padding, which attends to itself. Small trees come in few shapes."""
    check_parents(parents)
    offsets, mask = view(Draft([0] * len(parents), None, list(parents)), T)
    return np.concatenate([offsets, mask.reshape(-1)]).astype(np.int32)


def scratch_view(draft: Draft, tokens: int, T: int) -> np.ndarray:
    """The same for a draft with scratch tokens, of which there is no end of shapes."""
    offsets, mask = np.zeros(T, dtype=np.int32), np.eye(T, dtype=np.int32)
    offsets[:tokens], mask[:tokens, :tokens] = view(draft, tokens)
    return np.concatenate([offsets, mask.reshape(-1)])


class Buckets(Fused):
    """Passes of up to `rows` rows, each one certain token and up to `k` draft and scratch tokens, over `cache`.

    The last two blocks of the cache are the blank and the spare one. `hidden_layers` are streams that passes hand out.
    """

    dynamic = None  # one compiled version for many shapes: there are too many buckets for one each

    @on_the_device
    def __init__(self, transformer: Transformer, cache: PagedKVCache, rows: int, k=0, *, hidden_layers=(), **options):
        super().__init__(transformer, **options)  # compile, lean
        self.cache, self.rows, self.k, self.hidden_layers = cache, rows, k, tuple(hidden_layers)
        self.block_size, self.blank, self.spare = cache.block_size, cache.num_blocks - 2, cache.num_blocks - 1
        # To a layer a block is what a row is in contiguous memory: [blocks, Hkv, block_size, D].
        self.memory = tuple(layers.transpose(2, 3).unbind() for layers in (cache.keys, cache.values))
        longest = min(self.config.max_length, self.blank * cache.block_size) + k  # padding after the very last token
        self.width = -(-longest // cache.block_size)  # of a table
        self.number(self.width * cache.block_size)
        most, new = rows_of(rows), dict(dtype=self.dtype, device=self.device)
        # One line a row: length, tokens, and of trees how far after the certain token each is and who attends to whom.
        # The host writes `lines`, the device reads its copy, the sheet. Tables have a sheet of their own.
        sizes, pinned = (1 + (1 + k) * (3 + k), self.width), self.device.type == "cuda"
        self.sheet, self.table_sheet = (torch.zeros(most, n, dtype=torch.int32, device=self.device) for n in sizes)
        self.lines, self.table_lines = (torch.zeros(most, n, dtype=torch.int32, pin_memory=pinned) for n in sizes)
        self.numbers, self.table_numbers = self.lines.numpy(), self.table_lines.numpy()  # quicker to write to
        self.table_numbers[:] = self.blank
        self.table_sheet.copy_(self.table_lines)
        self.tables: list[list[int]] = [[] for _ in range(most)]  # what is written in each line
        # Captures share their scratch memory: what is to outlive a launch needs a place of its own.
        self.logits = torch.zeros(most * (1 + k), self.config.vocab_size, **new)
        self.best = torch.zeros(most * (1 + k), dtype=torch.long, device=self.device)
        self.streams = {n: torch.zeros(most * (1 + k), self.config.hidden_size, **new) for n in self.hidden_layers}
        self.attend = best_attention(self.device, self.dtype)
        self.captures: dict[tuple[int, int, bool], Captured] = {}
        self.drafted: dict[tuple[int, int, bool], Captured] = {}  # passes over trees in a drafter's memory,
        self.drafts_at: tuple[int, int] | None = None  # which is there, and up to so deep
        self.followers: dict[int, Captured] = {}  # by the rows of a pass that goes on by itself
        self.blocks = cache.keys.flatten(1, 2), cache.values.flatten(1, 2)  # [L, slots, Hkv, D]
        size = max(FEW_MOVES, 1 << (most * (1 + k)).bit_length())
        self.moves = torch.zeros(size, 2, dtype=torch.int32, device=self.device)  # from, to
        self.move_lines = torch.zeros(size, 2, dtype=torch.int32, pin_memory=self.device.type == "cuda")
        self.movers: dict[int, Captured] = {}
        self.results: dict[tuple[int, int, int], Result] = {}  # views of the above, by the shape of the pass
        self.shape, self.count = (1, 1, False), 0  # of the last pass, and how many rows of it were real
        self.sent, self.arrivals = Event(self.device), [Arrival(self.best) for _ in range(2)]

    def takes(self, rows: Sequence[Sequence[int]]) -> bool:
        """Whether there is a bucket for these tokens."""
        return len(rows) <= self.rows and max(map(len, rows)) <= 1 + self.k

    def read(self, rows, starts, tables, drafts: Sequence[Draft] | None = None) -> Result:
        """One pass: each row's certain token, draft and scratch, into positions start, start + 1, … of its blocks.

        The result is good until the next pass. Where a row brings fewer than T tokens, padding follows. `drafts` are
        needed where some of them are trees, or bring scratch tokens along.
        """
        B, T = rows_of(len(rows)), tokens_of(max(map(len, rows)) - 1, self.k)
        self.write(rows, starts, tables, B, T)
        if drafts is not None:
            self.write_views(drafts, rows, B, T)
        self.send(B)
        return self.launch(self.captures, (B, T, drafts is not None), len(rows))

    def read_drafted(
        self, last, starts, tables, drafted: Sequence[int | None], memory: Tensor, nodes: int, depth: int, limits=None
    ) -> Result:
        """The same for trees that are on the device: `memory` [rows, 2, …] holds up to `nodes` tokens (−1: no more) and
        parents of each, and `drafted` says in which row those of each sequence are. None: it has no draft. `limits` are
        for the draft after this one, if that is to be made without the host: how deep it may be, how many tokens the
        text has room for beside this pass's one, and how many nodes the draft gets."""
        B, T = rows_of(len(last)), 1 + nodes
        limits = limits or [(0, 0, 0)] * len(last)
        lines = [
            [token, -1 if row is None else row, *limit] for token, row, limit in zip(last, drafted, limits, strict=True)
        ]
        self.write([[token] for token in last], starts, tables, B, 1)
        self.numbers[:B, 1:6] = [*lines, *[[0, -1, 0, 0, 0]] * (B - len(lines))]
        self.send(B)
        if (memory.data_ptr(), depth) != self.drafts_at:  # the drafter's memory has grown
            self.drafted, self.drafts_at = {}, (memory.data_ptr(), depth)
        return self.launch(self.drafted, (B, T, (memory, depth)), len(last))

    def launch(self, captures: dict, shape: tuple, count: int) -> Result:
        """`work` of this shape, of which `count` rows are real."""
        B, T, branches = shape
        key = B, T, bool(branches)
        if key not in captures:
            captures[key] = Captured(partial(self.work, *shape), [self.sheet, self.table_sheet])
        self.shape, self.count = key, count
        captures[key]()
        return self.result(B, T, count)

    def again(self, tables: Sequence[Sequence[int]]) -> Result:
        """The pass after one of a single token per row, before the host has seen it: the same rows, one position
        further, with what is in `best`. Their tables have the slots."""
        B, T, branches = self.shape
        if T != 1 or branches or len(tables) != self.count:
            raise ValueError(f"{len(tables)} rows after a pass of {self.count} rows of {T} tokens: read them instead")
        self.sent.wait()
        self.write_tables(tables)
        self.sent.record()
        if B not in self.followers:
            self.followers[B] = Captured(partial(self.follow, B), [self.sheet, self.best])
        self.followers[B]()
        return self.result(B, T, self.count)

    def fetch(self) -> Callable[[], list[int]]:
        """The best tokens of the last pass are on their way: what is returned waits for them. The next pass may be
        launched meanwhile, and the one after it when these have been waited for."""
        self.arrivals.reverse()
        B, T, _ = self.shape
        wait = self.arrivals[0].begin(self.best[: B * T])
        return lambda: wait().tolist()

    def result(self, B: int, T: int, rows: int) -> Result:
        shape = B, T, rows
        if shape not in self.results:
            take = lambda flat: flat[: B * T].unflatten(0, (B, T))[:rows]  # noqa: E731
            streams = {n: take(stream) for n, stream in self.streams.items()}
            self.results[shape] = Result(take(self.logits), take(self.best), streams)
        return self.results[shape]

    def send(self, B: int) -> None:
        """The first B lines, to the sheet."""
        self.sheet[:B].copy_(self.lines[:B], non_blocking=True)
        self.sent.record()

    def write(self, rows, starts, tables, B: int, T: int) -> None:
        """The host's part: B lines, those of padding rows included."""
        for row, (tokens, start, table) in enumerate(zip(rows, starts, tables, strict=True)):
            if (end := start + len(tokens)) > min(len(table), self.width) * self.block_size:
                raise ValueError(
                    f"row {row}: {end} tokens do not fit its table of {len(table)} blocks of "
                    f"{self.block_size}; allocate blocks before the pass"
                )
        nobody = B - len(rows)
        rows, starts, tables = [*rows, *[[]] * nobody], [*starts, *[0] * nobody], [*tables, *[[]] * nobody]
        self.sent.wait()  # the last sheet is gone: its lines may be written again
        self.numbers[:B, 0] = starts
        self.numbers[:B, 1 : 1 + T] = [[*tokens, *[0] * (T - len(tokens))] for tokens in rows]
        self.write_tables(tables)

    def write_tables(self, tables: Sequence[Sequence[int]]) -> None:
        """Write and send those that are not what their lines say."""
        changed = [row for row, table in enumerate(tables) if table != self.tables[row]]
        for row in changed:
            self.tables[row] = list(tables[row])
            used = tables[row][: self.width]  # beyond it no text can be, only slots for a tree
            self.table_numbers[row] = self.blank
            self.table_numbers[row, : len(used)] = used
        if changed:
            some = slice(changed[0], changed[-1] + 1)
            self.table_sheet[some].copy_(self.table_lines[some], non_blocking=True)

    def write_views(self, drafts: Sequence[Draft], rows: Sequence[Sequence[int]], B: int, T: int) -> None:
        """How far after its certain token each token is, and who attends to whom. Padding attends to itself."""
        views = [
            tree_view(tuple(draft.tree), T) if draft.scratch is None else scratch_view(draft, len(tokens), T)
            for draft, tokens in zip(drafts, rows, strict=True)
        ]
        nobody = tree_view((), T)
        self.numbers[:B, 1 + T : 1 + T * (2 + T)] = [*views, *[nobody] * (B - len(views))]

    def work(self, B: int, T: int, branches: bool | tuple[Tensor, int]) -> None:
        """The device's part. No host sync: it is all in the sheet, or in a drafter's memory."""
        lengths, tables, tokens = self.sheet[:B, :1], self.table_sheet[:B], self.sheet[:B, 1 : 1 + T]
        slots = lengths + self.places[:T]  # [B, T]
        positions, mask = slots, None
        if isinstance(branches, tuple):
            tokens, offsets, mask = self.trees_of(B, T, *branches)
            positions = lengths + offsets
        elif branches:
            views = self.sheet[:B, 1 + T : 1 + T * (2 + T)]
            positions, mask = lengths + views[:, :T], views[:, T:].unflatten(1, (T, T)) > 0
        blocks = tables.gather(1, slots // self.block_size).long()  # [B, T]
        blocks = blocks.masked_fill(blocks == self.blank, self.spare)
        lengths = lengths[:, 0].clone(memory_format=torch.contiguous_format)  # stride 1, even if it is one
        look = lambda q, k, v: self.attend(q, k.transpose(1, 2), v.transpose(1, 2), tables, lengths, mask)  # noqa: E731
        x, hidden = self.through(
            tokens, positions, self.memory, blocks, slots % self.block_size, look, hidden_layers=self.hidden_layers
        )
        logits = self.head(x)
        self.logits[: B * T] = logits.flatten(0, 1)
        self.best[: B * T] = self.best_tokens(logits).flatten()
        for n, stream in self.streams.items():
            stream[: B * T] = hidden[n].flatten(0, 1)

    def trees_of(self, B: int, T: int, memory: Tensor, depth: int) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens [B, T], how far after the first each is, and who attends to whom [B, T, T], of drafts in memory."""
        last, row = self.sheet[:B, 1:3].long().split(1, 1)  # [B, 1] each
        tokens, parents = memory[row[:, 0].clamp(min=0), :, : T - 1].unbind(1)  # [B, T − 1]
        there = (tokens >= 0) & (row >= 0)
        lay_out = tree_kernels.laid_out if has_kernels(self.device, self.dtype) else tree_kernels.laid_out_torch
        tokens, parents = tokens.masked_fill(~there, 0), torch.where(there, parents, -1)
        tokens, mask, offsets = lay_out(tokens, parents, last, torch.ones_like(last[:, 0]), depth)
        return tokens, offsets, mask

    def follow(self, B: int) -> None:
        """`work` for the next token of each row. Padding rows stay where they are."""
        self.sheet[:B, 0] += self.table_sheet[:B, 0] != self.blank
        self.sheet[:B, 1] = self.best[:B].clamp(min=0)  # −1 is no token; what comes of it is dropped
        self.work(B, 1, False)

    def move(self, tables: Sequence[Sequence[int]], starts: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """PagedKVCache.gather, captured: positions start + path go to start, start + 1, …"""
        size, moves = self.block_size, []
        for table, start, path in zip(tables, starts, paths, strict=True):
            for to, node in enumerate(path):
                if node != to:
                    a, b = start + node, start + to
                    moves.append((table[a // size] * size + a % size, table[b // size] * size + b % size))
        if not moves:
            return
        count = max(FEW_MOVES, 1 << (len(moves) - 1).bit_length())
        nothing = self.spare * size, self.spare * size
        self.sent.wait()
        self.move_lines.numpy()[:count] = [*moves, *[nothing] * (count - len(moves))]
        self.moves[:count].copy_(self.move_lines[:count], non_blocking=True)
        self.sent.record()
        if count not in self.movers:
            self.movers[count] = Captured(partial(self._move, count), [self.moves])
        self.movers[count]()

    def _move(self, count: int) -> None:
        source, target = self.moves[:count].long().unbind(1)
        for memory in self.blocks:
            memory[:, target] = memory[:, source]


@on_the_device
def memory_for(
    target: Model, num_blocks: int, block_size: int, rows: int, k: int = 0, hidden_layers: Sequence[int] = ()
) -> tuple[PagedKVCache, Buckets]:
    """An engine's blocks, and its passes over them in fixed shapes."""
    lean = has_kernels(target.device, target.dtype)
    compile = target.device.type == "cuda" and not lean  # kernels leave nothing to be fused
    if note := why_not_compile(target.device, target.dtype) if compile else None:
        warnings.warn(f"{target.name} is served by CUDA graphs, but uncompiled: {note}", stacklevel=4)
    memory = dict(block_size=block_size, device=target.device, dtype=target.dtype)
    cache = PagedKVCache(target.config, num_blocks + 2, **memory)  # blank, spare
    options = dict(hidden_layers=hidden_layers, compile=compile and note is None, lean=lean)
    return cache, Buckets(target.transformer, cache, rows, k, **options)
