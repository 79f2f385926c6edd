"""Prompts in an engine, in few fixed shapes, so that a forward pass over any mix of them is one launch.

Chunks of prompts are laid end to end, as in the eager pass (serving/paged.py), and only attention tells sequences apart
(attention.py, flash_ragged). A pass has few sizes, rounded up to *buckets*; a capture serves each combination of them:

    tokens       16, 32, 64, 128, 256, then multiples of 256
    sequences    8, 64, … or as many as the engine serves
    logits       as many as sequences: a prompt needs those of its last token alone. More where chains are verified

How the tokens are divided among sequences is no size. Padding tokens belong to no sequence: their keys and values go to
the spare block (passes.py), which nothing reads. The host's part of a pass is one sheet of numbers, sent by one
transfer that the host does not wait for.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..load.model import Model
from ..model import Transformer
from ..serving.paged import PagedKVCache
from ..serving.runner import Results
from .attention import flash_ragged, flash_ragged_torch
from .graph import Captures, on_the_device, sheet
from .passes import Buckets, PagedPasses
from .weights import has_kernels

MOST_TOKENS = 2048
MOST_LOGITS = 256  # more than an engine's sequences are needed only where long chains are verified beside prompts


def tokens_of(count: int) -> int:
    """The bucket of so many tokens. A large pass computes as long as it has tokens, hence finer steps there."""
    return max(16, 1 << (count - 1).bit_length()) if count <= 256 else -(-count // 256) * 256


def few_of(count: int, most: int) -> int:
    """The bucket of so many sequences or logits: padding costs little there, hence few sizes."""
    size = 8
    while size < count:
        size *= 8
    return min(size, most)


class Shape(NamedTuple):
    """The sizes of a pass, rounded up."""

    tokens: int  # N
    sequences: int  # R
    logits: int  # M


class Sheet(NamedTuple):
    """What the host says of a pass: views of one run of numbers, a NumPy array's or a tensor's."""

    tokens: Tensor  # [N]
    positions: Tensor  # [N]
    slots: Tensor  # [N], where in the pool its keys and values go
    needed: Tensor  # [M], tokens whose logits are needed
    starts: Tensor  # [R], where each sequence's tokens begin
    counts: Tensor  # [R], how many they are
    lengths: Tensor  # [R], how many were cached before them
    tables: Tensor  # [R, W]


class RaggedPasses(PagedPasses):
    """Passes over up to `tokens` new tokens of up to `rows` sequences."""

    @on_the_device
    def __init__(self, transformer: Transformer, cache: PagedKVCache, rows: int, tokens=MOST_TOKENS, **options):
        longest = min(transformer.config.max_length, cache.num_blocks * cache.block_size)
        self.transformer, self.tokens, self.most_logits = transformer, tokens, max(rows, MOST_LOGITS)
        super().__init__(transformer, cache, rows, longest, self.most_logits, **options)
        largest, _ = self.parts(Shape(tokens_of(tokens), rows, self.most_logits))[-1]
        self.sheet, self.lines, self.numbers = sheet(largest, device=self.device)
        # The kernel; its reference version on a CPU, where nothing is captured; None: neither may do it.
        eager = None if self.device.type == "cuda" else flash_ragged_torch
        self.attend = flash_ragged if has_kernels(self.device, self.dtype) else eager
        self.captures = Captures(self.work, self.sheet)

    def read(self, rows, starts, tables, needed) -> Results | None:
        """One pass: each sequence's new tokens, into positions start, start + 1, … of its blocks, and the logits of the
        last `needed` of each. None: there is no bucket for that. The results, of one sequence after the other, are the
        caller's: [Σ needed, V]."""
        shape = self.shape(rows, needed)
        if shape is None:
            return None
        self.sent.wait()
        self.write(self.cut(self.numbers, shape), rows, starts, tables, needed)
        used, _ = self.parts(shape)[-1]
        self.sheet[:used].copy_(self.lines[:used], non_blocking=True)
        self.sent.record()
        self.captures(*shape)
        M = sum(needed)
        return Results(self.logits[:M].clone(), self.best[:M].clone())

    def process(self, rows, starts, tables) -> None:
        """The same for any number of tokens, where no logits are needed."""
        if self.read(rows, starts, tables, [0] * len(rows)) is None:
            flat = torch.tensor([[token for row in rows for token in row]], device=self.device)
            paged = self.cache.open(tables, starts, list(map(len, rows)))
            _, hidden = self.transformer.body(flat, paged, hidden_layers=self.cache.hidden_layers)
            self.cache.store(paged.slots, hidden)

    def sizes(self, most: int) -> list[int]:
        """The numbers of tokens that passes have, up to `most`."""
        return [n for n in range(1, min(most, self.tokens) + 1) if tokens_of(n) == n]

    def shape(self, rows, needed: Sequence[int]) -> Shape | None:
        """The bucket of such a pass; None: there is none."""
        total, asked = sum(map(len, rows)), sum(needed)
        if total > self.tokens or len(rows) > self.rows or asked > self.most_logits or self.attend is None:
            return None
        sequences = few_of(len(rows), self.rows)
        logits = sequences if asked <= sequences else few_of(asked, self.most_logits)
        return Shape(tokens_of(total), sequences, logits)

    def parts(self, shape: Shape) -> list[tuple[int, tuple[int, ...]]]:
        """Where each part of a sheet begins, and its shape; at the end, where a sheet of this shape ends."""
        N, R, M = shape
        shapes = [(N,), (N,), (N,), (M,), (R,), (R,), (R,), (R, self.width)]
        rooms = [-(-prod(part) // 4) * 4 for part in shapes]  # begin at a multiple of 16 bytes, as kernels like it
        return list(zip(accumulate(rooms, initial=0), [*shapes, ()], strict=True))

    def cut(self, numbers: Tensor | np.ndarray, shape: Shape) -> Sheet:
        return Sheet(*(numbers[at : at + prod(part)].reshape(part) for at, part in self.parts(shape)[:-1]))

    def write(self, sheet: Sheet, rows, starts, tables, needed) -> None:
        """The host's part. Tables are not cleared: beyond a sequence's last token nobody looks."""
        at = asked = 0
        for b, (tokens, start, table, last) in enumerate(zip(rows, starts, tables, needed, strict=True)):
            n = len(tokens)
            blocks = np.array(table[: -(-(start + n) // self.block_size)], dtype=np.int32)
            own, places = slice(at, at + n), np.arange(start, start + n)
            sheet.tokens[own], sheet.positions[own] = tokens, places
            sheet.slots[own] = blocks[places // self.block_size] * self.block_size + places % self.block_size
            sheet.needed[asked : asked + last] = np.arange(at + n - last, at + n)
            sheet.starts[b], sheet.counts[b], sheet.lengths[b] = at, n, start
            sheet.tables[b, : len(blocks)] = blocks
            at, asked = at + n, asked + last
        sheet.tokens[at:], sheet.positions[at:], sheet.slots[at:] = 0, 0, self.spare * self.block_size
        sheet.needed[asked:] = 0
        sheet.starts[len(rows) :], sheet.counts[len(rows) :], sheet.lengths[len(rows) :] = at, 0, 0

    def work(self, *shape: int) -> None:
        """The device's part, of a Shape. No host sync: it is all in the sheet."""
        sheet = self.cut(self.sheet, Shape(*shape))
        numbers = sheet.tables, sheet.starts, sheet.counts, sheet.lengths

        def look(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            o = self.attend(q[0].transpose(0, 1), k.transpose(1, 2), v.transpose(1, 2), *numbers)  # [N, H, D]
            return o.transpose(0, 1)[None]

        tokens, positions, slots = sheet.tokens[None], sheet.positions[None], sheet.slots[None].long()  # [1, N]
        x = self.body(tokens, positions, slots // self.block_size, slots % self.block_size, look)
        self.give(self.head(x[0, sheet.needed.long()]))


@on_the_device
def memory_for(
    target: Model, num_blocks: int, block_size: int, rows: int, k: int = 0, hidden_layers: Sequence[int] = ()
) -> Buckets:
    """Passes in fixed shapes over blocks, which are their `cache`: those that decode, and `prompts`."""
    memory = dict(hidden_layers=hidden_layers, device=target.device, dtype=target.dtype)
    cache = PagedKVCache(target.config, num_blocks + 2, block_size, **memory)  # blank, spare
    lean = has_kernels(target.device, target.dtype)
    buckets = Buckets(target.transformer, cache, rows, k, lean=lean)
    buckets.prompts = RaggedPasses(target.transformer, cache, rows, lean=lean)
    return buckets
