"""The target's decode and verify passes over paged memory, in few fixed shapes, so that each can be one launch.

A step of the engine in which nobody reads a prompt brings one token a row, or one token and its draft. Such a pass has
two sizes, B rows of T tokens. Both are rounded up to *buckets*, so that a few captures (graph.py) serve every step:

    rows      1, 2, 4, 8, 16, 24, 32, 48, 64, 96, …
    tokens    1, or 1 + a draft of 1, 2, 4, … or k

Two blocks at the end of the pool, never given to anybody, take what is rounded up:

    blank     follows the last block in every table, and is all of a padding row's: zeros, to be read
    spare     what would be written to the blank one goes here: garbage, never read

They are two since 0 · NaN is NaN: a row gone wrong must not reach its neighbours through garbage that all share.

The host writes two sheets of numbers: lengths and tokens, and the tables, of which it rewrites only those that have
changed. Each is sent by one transfer, whole lines of it: only memory without gaps goes while the host works on. A pass
after one of a single token per row needs no lengths and tokens (`again`): it takes the tokens that the last one found.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import numpy as np
import torch
from torch import Tensor

from ..controller import rounded
from ..model import Transformer
from ..serving.paged import PagedKVCache
from ..serving.runner import Results
from ..tree import Draft, mask_and_offsets
from . import trees
from .attention import flash_decode_paged, flash_decode_paged_torch
from .graph import Arrival, Captures, Event, on_the_device, sheet
from .verdict import RowSamplings, Steps
from .vocab import pick
from .weights import Fused, has_kernels

FEW_MOVES = 16  # slots that the smallest capture of a move moves


def rows_of(count: int) -> int:
    """The bucket of so many rows: powers of two, and from 16 on the numbers halfway between them."""
    return rounded(count) if count > 16 else 1 << (count - 1).bit_length()


def double(size: int, needed: int) -> int:
    """Of memory, which is captured anew when it grows: that is expensive, hence twice as much each time."""
    while size < needed:
        size *= 2
    return size


def tokens_of(draft: int, most: int) -> int:
    """The bucket of the certain token and so many draft and scratch tokens, `most` at the most."""
    return 1 + (min(most, 1 << (draft - 1).bit_length()) if draft else 0)


def best_attention(device: torch.device, dtype: torch.dtype):
    """The kernel, or where it cannot run its reference version."""
    return flash_decode_paged if has_kernels(device, dtype) else flash_decode_paged_torch


def numbers_of(draft: Draft, T: int) -> np.ndarray:
    """How far after the certain token each of T tokens is, and who attends to whom: one run of numbers [T + T·T]."""
    mask, offsets = mask_and_offsets(draft, T)
    return np.concatenate([offsets.numpy(), mask.numpy()], axis=None)


@lru_cache(4096)
def numbers_of_tree(parents: tuple[int, ...], T: int) -> np.ndarray:
    """The same for a tree without scratch tokens: small ones come in few shapes."""
    return numbers_of(Draft([0] * len(parents), None, list(parents)), T)


class PagedPasses(Fused):
    """Passes over the blocks of `cache` for up to `rows` sequences of up to `longest` tokens, and memory for so many
    logits that they give. The last two blocks of the cache are the blank and the spare one."""

    @on_the_device
    def __init__(self, transformer: Transformer, cache: PagedKVCache, rows, longest, logits, **options):
        super().__init__(transformer, **options)
        self.cache, self.rows = cache, rows
        self.block_size, self.blank, self.spare = cache.block_size, cache.num_blocks - 2, cache.num_blocks - 1
        # To a layer a block is what a row is in contiguous memory: [blocks, Hkv, block_size, D].
        self.memory = tuple(layers.transpose(2, 3).unbind() for layers in (cache.keys, cache.values))
        self.width = -(-longest // cache.block_size)  # of a table
        self.number(self.width * cache.block_size)
        # Captures share their scratch memory: what is to outlive a launch needs a place of its own.
        self.logits = torch.zeros(logits, self.config.vocab_size, dtype=self.dtype, device=self.device)
        self.best = torch.zeros(logits, dtype=torch.long, device=self.device)
        self.sent = Event(self.device)  # the last sheet: its lines may be written again

    def body(self, tokens: Tensor, positions: Tensor, blocks: Tensor, slots: Tensor, look) -> Tensor:
        """Through all layers: tokens [B, T] at these positions, into these slots of these blocks → [B, T, d]."""
        layers = self.cache.hidden_layers
        x, hidden = self.through(tokens, positions, self.memory, blocks, slots, look, hidden_layers=layers)
        if hidden:
            self.cache.store((blocks * self.block_size + slots).flatten(), hidden)
        return x

    def give(self, logits: Tensor) -> None:
        """Logits [n, V], and the best tokens."""
        self.logits[: len(logits)] = logits
        self.best[: len(logits)] = self.best_tokens(logits)


class Buckets(PagedPasses):
    """Passes of up to `rows` rows, each one certain token and up to `k` draft and scratch tokens."""

    @on_the_device
    def __init__(self, transformer: Transformer, cache: PagedKVCache, rows: int, k=0, **options):
        most, size = rows_of(rows), (1 + k) * rows_of(rows)
        longest = min(transformer.config.max_length, (cache.num_blocks - 2) * cache.block_size)
        super().__init__(transformer, cache, rows, longest + k, size, **options)
        self.k = k
        # One line a row: length, tokens, and of trees how far after the certain token each is and who attends to whom.
        # Tables have a sheet of their own.
        self.sheet, self.lines, self.numbers = sheet(most, 1 + (1 + k) * (3 + k), device=self.device)
        self.table_sheet, self.table_lines, self.table_numbers = sheet(most, self.width, device=self.device)
        self.table_numbers[:] = self.blank
        self.table_sheet.copy_(self.table_lines)
        self.tables: list[list[int]] = [[] for _ in range(most)]  # what is written in each line
        self.samplings = RowSamplings(most, self.config.vocab_size, self.device)
        self.steps: Steps | None = None  # of the last pass; None: all rows were greedy
        self.attend = best_attention(self.device, self.dtype)
        self.captures = Captures(self.work, self.sheet, self.table_sheet, self.samplings.sheet)
        self.drafted = Captures(self.work)  # passes over trees in a drafter's memory,
        self.drafts_at: tuple[int, int] | None = None  # which is there, and up to so deep
        self.followers = Captures(self.follow, self.sheet, self.best, self.samplings.sheet)  # of passes that go on
        moves = max(FEW_MOVES, 1 << size.bit_length())
        self.moves, self.move_lines, self.move_numbers = sheet(moves, 2, device=self.device)  # from, to
        self.movers = Captures(self._move, self.moves)
        self.views: dict[int, tuple] = {}  # of logits and best tokens, by the number of positions
        self.shape, self.count = (1, 1, False), 0  # of the last pass, and how many rows of it were real
        self.arrivals = [Arrival(self.best) for _ in range(2)]

    @property
    def counts(self) -> set[int]:
        """The most rows of each bucket."""
        return {min(self.rows, rows_of(count)) for count in range(1, self.rows + 1)}

    def takes(self, rows: Sequence[Sequence[int]]) -> bool:
        """Whether there is a bucket for these tokens."""
        return len(rows) <= self.rows and max(map(len, rows)) <= 1 + self.k

    def read(self, rows, starts, tables, drafts: Sequence[Draft] | None = None, sequences=None) -> Results:
        """One pass: each row's certain token, draft and scratch, into positions start, start + 1, … of its blocks.

        The results, T positions of each row, are good until the next pass. Where a row brings fewer than T tokens,
        padding follows. `drafts` say which are trees, or bring scratch tokens along. Where nobody has any, those of
        `sequences` that sample have their next token in the place of the best one.
        """
        B, T = rows_of(len(rows)), tokens_of(max(map(len, rows)) - 1, self.k)
        self.write(rows, starts, tables, B, T)
        trees = drafts is not None and any(draft.branches for draft in drafts)
        if trees:
            views = [numbers_of(d, T) if d.scratch else numbers_of_tree(tuple(d.node_parents), T) for d in drafts]
            self.numbers[:B, 1 + T : 1 + T * (2 + T)] = [*views, *[numbers_of_tree((), T)] * (B - len(views))]
        coupled = any(sequence.has_noise for sequence in sequences or ())
        self.tell(sequences if T == 1 or coupled else None)
        self.send(B)
        return self.launch(self.captures, (B, T, trees, self.steps), len(rows))

    def tell(self, sequences: Sequence | None) -> None:
        """How the rows of the next pass sample."""
        samplings = [sequence.sampling for sequence in sequences or ()]
        self.steps = Steps.of(samplings, any(sequence.has_noise for sequence in sequences or ()))
        if self.steps is not None:
            self.samplings.write(samplings, sequences)

    @property
    def best_says_all(self) -> bool:
        """Whether a draft is judged by the best tokens of the last pass alone, or by those that noise has chosen."""
        return self.steps is None or self.steps.coupled

    def read_drafted(
        self, lines: Sequence[tuple], starts, tables, memory: Tensor, nodes: int, depth: int, sequences=None
    ) -> Results:
        """The same for trees that are on the device: `memory` [rows, 2, …] holds up to `nodes` tokens (−1: no more) and
        parents of each. A line is a sequence's last token, the row of its draft (−1: it has none), and for the draft
        after this one, if that is to be made without the host: how deep it may be, how many tokens the text has room
        for beside this pass's one, and how many nodes the draft gets."""
        B, T = rows_of(len(lines)), 1 + nodes
        self.write([line[:1] for line in lines], starts, tables, B, 1)
        self.numbers[:B, 1:6] = [*lines, *[(0, -1, 0, 0, 0)] * (B - len(lines))]
        self.tell(sequences)
        self.send(B)
        if (memory.data_ptr(), depth) != self.drafts_at:  # the drafter's memory has grown
            work = partial(self.work, drafts=(memory, depth))
            self.drafted, self.drafts_at = Captures(work, self.sheet, self.table_sheet), (memory.data_ptr(), depth)
        return self.over_drafts(B, T, len(lines))

    def over_drafts(self, B: int, T: int, count: int) -> Results:
        """A pass over drafts in the drafter's memory."""
        return self.launch(self.drafted, (B, T, True, self.steps if self.best_says_all else None), count)

    def launch(self, captures: Captures, shape: tuple, count: int) -> Results:
        """`work` of this shape, of which `count` rows are real."""
        self.shape, self.count = shape[:3], count
        captures(*shape)
        return self.results()

    def results(self) -> Results:
        """What the last pass gave, one row after the other: [rows · T, …]."""
        n = self.count * self.shape[1]
        if n not in self.views:
            self.views[n] = self.logits[:n], self.best[:n]
        return Results(*self.views[n])

    def again(self, tables: Sequence[Sequence[int]]) -> Results:
        """The pass after one of a single token per row, before the host has seen it: the same rows, one position
        further, with what is in `best`. Their tables have the slots; those of rows that have ended are empty."""
        self.sent.wait()
        self.write_tables(tables)
        self.sent.record()
        self.followers(self.shape[0], self.steps)
        return self.results()

    def fetch(self) -> Callable[[], list[int]]:
        """The best tokens of the last pass are on their way: what is returned waits for them. The next pass may be
        launched meanwhile, and the one after it when these have been waited for."""
        self.arrivals.reverse()
        B, T, _ = self.shape
        wait = self.arrivals[0].begin(self.best[: B * T])
        return lambda: wait().tolist()

    def send(self, B: int) -> None:
        """The first B lines, to the sheet."""
        self.sheet[:B].copy_(self.lines[:B], non_blocking=True)
        self.sent.record()

    def write(self, rows, starts, tables, B: int, T: int) -> None:
        """The host's part: B lines, those of padding rows included."""
        nobody = B - len(rows)
        rows, starts, tables = [*rows, *[[]] * nobody], [*starts, *[0] * nobody], [*tables, *[[]] * nobody]
        self.sent.wait()
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

    def work(
        self, B: int, T: int, branches: bool, steps: Steps | None = None, drafts: tuple[Tensor, int] | None = None
    ) -> None:
        """The device's part. No host sync: it is all in the sheet, or in a drafter's memory."""
        lengths, tables, tokens = self.sheet[:B, :1], self.table_sheet[:B], self.sheet[:B, 1 : 1 + T]
        slots, offsets = lengths + self.places[:T], self.places[:T]  # [B, T], [T]
        positions, mask = slots, None
        if drafts is not None:
            tokens, offsets, mask = self.trees_of(B, T, *drafts)
            positions = lengths + offsets
        elif branches:
            views = self.sheet[:B, 1 + T : 1 + T * (2 + T)]
            offsets, mask = views[:, :T], views[:, T:].unflatten(1, (T, T)) > 0
            positions = lengths + offsets
        blocks = tables.gather(1, slots // self.block_size).long()  # [B, T]
        blocks = blocks.masked_fill(blocks == self.blank, self.spare)
        lengths = lengths[:, 0].clone(memory_format=torch.contiguous_format)  # stride 1, even if it is one
        look = lambda q, k, v: self.attend(q, k.transpose(1, 2), v.transpose(1, 2), tables, lengths, mask)  # noqa: E731
        x = self.body(tokens, positions, blocks, slots % self.block_size, look)
        self.give(self.head(x).flatten(0, 1))
        if steps is not None:
            self.choose(B, T, offsets, steps)

    def choose(self, B: int, T: int, offsets: Tensor, steps: Steps) -> None:
        """Of rows that sample: the next token, or under rule="coupled" all T of them, in the place of the best ones.
        Where nothing was drafted they are counted."""
        own, logits, best = self.samplings, self.logits[: B * T].view(B, T, -1), self.best[: B * T].view(B, T)
        if steps.coupled:
            tokens = own.own_choices(logits, best, offsets, steps)
        else:  # T = 1
            p = own.probs(logits, best, steps)[:, 0]  # [B, V]
            token = pick(p, own.uniforms(B, 1)[:, 0]).clamp(max=self.config.vocab_size - 1)[:, None]
            tokens = torch.where(own.sampled(B)[:, None] & (best >= 0), token, best)
        self.best[: B * T] = tokens.flatten()
        if T == 1:
            own.count(B, 1, 1)

    def trees_of(self, B: int, T: int, memory: Tensor, depth: int) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens [B, T], how far after the first each is, and who attends to whom [B, T, T], of drafts in memory."""
        last, row = self.sheet[:B, 1:3].long().split(1, 1)  # [B, 1] each
        tokens, parents = memory[row[:, 0].clamp(min=0), :, : T - 1].unbind(1)  # [B, T − 1]
        there = (tokens >= 0) & (row >= 0)
        lay_out = trees.laid_out if has_kernels(self.device, self.dtype) else trees.laid_out_torch
        tokens, parents = tokens.masked_fill(~there, 0), torch.where(there, parents, -1)
        tokens, mask, offsets = lay_out(tokens, parents, last, torch.ones_like(last[:, 0]), depth)
        return tokens, offsets, mask

    def follow(self, B: int, steps: Steps | None) -> None:
        """`work` for the next token of each row. Padding rows stay where they are."""
        self.sheet[:B, 0] += self.table_sheet[:B, 0] != self.blank
        self.sheet[:B, 1] = self.best[:B].clamp(min=0)  # −1 is no token; what comes of it is dropped
        self.work(B, 1, False, steps)

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
        if (count,) not in self.movers:  # to warm up is to work for real, and a path moved twice is lost
            self.moves[:] = self.spare * size
            self.movers.of(count).prepare()
        self.sent.wait()
        self.move_numbers[:count] = [*moves, *[nothing] * (count - len(moves))]
        self.moves[:count].copy_(self.move_lines[:count], non_blocking=True)
        self.sent.record()
        self.movers(count)

    def _move(self, count: int) -> None:
        source, target = self.moves[:count].long().unbind(1)
        for memory in self.cache.memories:
            memory[:, target] = memory[:, source]
