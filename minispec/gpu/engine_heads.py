"""Medusa, EAGLE and DFlash in an engine: one launch drafts for all requests.

The arithmetic is that of heads.py, for B rows at once and in fixed order. Inside a recorded cycle the verified states
are handed on inside the device; in an engine, requests come, go and are preempted between two drafts, so here the host
says before each launch what is new, on one sheet of numbers, as for the target's passes (buckets.py):

    row        a living request has a row of the drafter's memory, from its first draft until it is forgotten. A launch
               works on the first B rows, rounded up as the rows of a pass are. Rows without a request, or whose
               request is not asked, are padding: what is written for them lies past their length
    line       length, how many of its T = k + 1 new positions count, nodes and depth that it is allowed, last token,
               and of each new position the token after it and where its hidden states are
    states     those of all new positions, one after the other

The drafts stay on the device, too: the target's pass takes them from there (Buckets.read), and the host builds its own
`Draft`s while that pass runs. `begin` launches, and `Pending.drafts` waits. Where the next cycle is launched before the
host has looked at this one (ahead.py), the device writes the lines itself, and `adopt` is all that is left to do.

A request with more than T new positions, after its prompt or when it was not drafted for, has the first of them
processed before, by an ordinary pass. Memory and sheets grow by doubling, and are recorded anew then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cache import KVCache
from ..drafters.base import Context, Drafter
from ..drafters.dflash import DFlash
from ..drafters.eagle import Eagle
from ..drafters.medusa import Medusa
from ..model import Config
from ..tree import Draft
from .ahead import Cycles
from .buckets import Arrival, Buckets, rows_of
from .fused import has_kernels
from .heads import DeviceDrafter, DFlashOnDevice, EagleOnDevice
from .record import Event, Recorded, on_the_device, why_not_compile

ROWS, TOKENS = 8, 2048  # memory begins with rows for 8 sequences of 2,048 tokens: a drafter has few layers


@dataclass
class Shape:
    """What a drafter on the device asks of its target: sizes, and how to compile a function."""

    batch: int
    capacity: int
    device: torch.device
    dtype: torch.dtype
    config: Config
    embedding: Tensor
    compiled: Callable


def compiled(device: torch.device, dtype: torch.dtype) -> Callable:
    """torch.compile, one version for many shapes; nothing without a GPU, where it does not work, or where kernels leave
    nothing to be fused."""
    works = device.type == "cuda" and not has_kernels(device, dtype) and why_not_compile(device, dtype) is None
    return partial(torch.compile, dynamic=None) if works else lambda function: function


def rows_from(memory: KVCache, start: int, stop: int) -> KVCache:
    """Some rows of a cache, in the same memory, with lengths of their own."""
    part = copy(memory)
    part.keys, part.values = memory.keys[:, start:stop], memory.values[:, start:stop]
    part.lengths = torch.zeros(stop - start, dtype=torch.long, device=memory.keys.device)
    return part


class Launch:
    """The recorded drafts of B rows, with up to `nodes` nodes each."""

    def __init__(self, drafts: DeviceDrafter, owner: DraftsForMany):
        self.drafts, self.owner, B = drafts, owner, drafts.cache.batch
        self.rows, self.nodes = B, drafts.nodes
        self.recorded = Recorded(self.work, [owner.sheet, *drafts.state()])

    def work(self) -> None:
        """The device's part. Nobody looks at a number: it is all in the sheet."""
        drafts, T = self.drafts, self.owner.T
        sheet = self.owner.sheet[: self.rows].long()
        lengths, fresh, drafts.budgets, drafts.depths, last = sheet[:, :5].unbind(1)
        run, where = sheet[:, 5 : 5 + T], sheet[:, 5 + T :]  # [B, T] each
        drafts.cache.lengths.copy_(lengths)
        hidden = {n: states[where] for n, states in self.owner.states.items()}  # [B, T, d]
        drafts.settle(hidden, torch.arange(T, device=run.device).expand_as(run), run, fresh)
        tokens, parents = drafts.propose(last[:, None], torch.ones_like(last))
        n = tokens.shape[1]
        self.owner.out[: self.rows, 0, : self.nodes] = F.pad(tokens, (0, self.nodes - n), value=-1)
        self.owner.out[: self.rows, 1, :n] = parents


class Pending:
    """Drafts that are on the device, or soon will be, until the next ones are begun."""

    def __init__(self, owner: DraftsForMany, launch: Launch, rows: list[int]):
        self.memory, self.nodes, self.depth = owner.out, launch.nodes, owner.k  # [rows, 2, …]: tokens and parents
        self.launch = launch
        self.rows = rows  # of the memory, one for each context
        self.wait, self.made = owner.arrival.begin(owner.out[: launch.rows]), None

    def drafts(self) -> list[Draft]:
        """One for each context: wait for them."""
        if self.made is None:
            numbers, self.made = self.wait()[:, :, : self.nodes].tolist(), []
            for tokens, parents in map(numbers.__getitem__, self.rows):
                end = tokens.index(-1) if tokens[-1] < 0 else self.nodes  # no more
                self.made.append(Draft(tokens[:end], None, parents[:end]) if end else Draft([]))
        return self.made


class DraftsForMany:
    """The memory of a drafter for all its sequences, and its launches. One subclass for each kind of drafter."""

    on_device: type[DeviceDrafter]

    def __init__(self, drafter: Drafter):
        self.drafter, self.device = drafter, drafter.target.device
        self.compiled = compiled(self.device, drafter.target.dtype)
        self.rows: dict[int, int] = {}  # the row of each living sequence
        self.held: dict[int, range] = {}  # and its positions that are in memory there
        self.free: list[int] = []  # the lowest is taken first, so that few rows are in use
        self.k = self.count = self.capacity = 0
        self.memory: KVCache | None = None
        self.launches: dict[tuple[int, int], Launch] = {}  # by B and nodes
        self.sent, self.begun = Event(self.device), 0  # how often drafts were begun

    @classmethod
    def takes(cls, drafter: Drafter) -> bool:
        """Whether it drafts what this drafter would."""
        return drafter.target.transformer.ordinary and cls.on_device.takes(drafter)

    @property
    def T(self) -> int:
        """New positions that a launch processes for each sequence."""
        return self.k + 1

    def propose(self, contexts: Sequence[Context], k: int) -> list[Draft]:
        """As Drafter.propose; k ≥ 1."""
        return self.begin(contexts, k, [k] * len(contexts)).drafts()

    def ready(self, context: Context) -> bool:
        """Whether it can draft for this sequence."""
        return True

    def ahead(self, buckets: Buckets) -> Cycles:
        """Launches of whole cycles, with these passes."""
        return Cycles(self, buckets)

    def adopt(self, contexts: Sequence[Context], launch: Launch) -> Pending:
        """As `begin`, for drafts that were launched ahead: only the host has to be told."""
        for c in contexts:
            self.held[c.row] = range(self.held[c.row].start, len(c.tokens) - 1)
        return Pending(self, launch, [self.rows[c.row] for c in contexts])

    def begin(self, contexts: Sequence[Context], k: int, depths: Sequence[int]) -> Pending:
        """Launch the drafts of these sequences, none deeper than its depth, k at the most."""
        self.begun += 1
        layers = self.drafter.hidden_layers
        counts = [c.hidden[layers[0]].shape[0] if c.hidden else 0 for c in contexts]
        held = [self.resume(c.row, len(c.tokens) - 1 - count) for c, count in zip(contexts, counts, strict=True)]
        budgets = [c.allowed_nodes(self.drafter.max_tree_nodes(k)) for c in contexts]
        self._make_room(contexts, k, max(map(len, held)) + max(counts))
        launch = self._launch(max(budgets))
        T, lines, parts, first = self.T, {}, [], 0
        for row, positions in self.held.items():  # those that are not asked ride along: their memory is not touched
            lines[self.rows[row]] = [len(positions), 0, 0, 0, 0, *[0] * (2 * T)]
        for c, count, before, budget, depth in zip(contexts, counts, held, budgets, depths, strict=True):
            hidden, length = c.hidden, len(before)
            if (early := count - T) > 0:
                self.read(
                    self.rows[c.row], length, c.tokens[-count:-T], {n: states[:early] for n, states in hidden.items()}
                )
                hidden, length, count = {n: states[early:] for n, states in hidden.items()}, length + early, T
            padding = [0] * (T - count)
            new, where = c.tokens[len(c.tokens) - count :], range(first, first + count)
            lines[self.rows[c.row]] = [length, count, budget, depth, c.tokens[-1], *new, *padding, *where, *padding]
            parts += [hidden] if count else []
            first += count
        for n in layers if parts else ():
            torch.cat([states[n] for states in parts], out=self.states[n][:first])
        nobody = [0] * (5 + 2 * T)
        self.sent.wait()  # the last sheet is gone: its lines may be written again
        self.numbers[: launch.rows] = [lines.get(row, nobody) for row in range(launch.rows)]
        self.sheet[: launch.rows].copy_(self.lines[: launch.rows], non_blocking=True)
        self.sent.record()
        launch.recorded()
        for c, before in zip(contexts, held, strict=True):
            self.held[c.row] = range(before.start, len(c.tokens) - 1)
        return Pending(self, launch, [self.rows[c.row] for c in contexts])

    def resume(self, row: int, start: int) -> range:
        """The positions in memory, if the next states are those of position `start`. With a gap between, it begins
        anew after it: RoPE depends on distances alone."""
        held = self.held.get(row, range(start, start))
        return held if held.stop == start else range(start, start)

    def read(self, row: int, length: int, tokens: list[int], hidden: dict[int, Tensor]) -> None:
        """Process positions with these hidden states [n, d] after the first `length` of a row, in an ordinary pass;
        `tokens` are those after each."""
        raise NotImplementedError

    def forget(self, row: int) -> None:
        self.held.pop(row, None)
        if row in self.rows:
            heappush(self.free, self.rows.pop(row))

    # ---- memory ----------------------------------------------------------------------------------------------------

    def _make_room(self, contexts: Sequence[Context], k: int, longest: int) -> None:
        """A row for each, of at least so many tokens, and lines for drafts of depth k."""
        longest = max([longest, *map(len, self.held.values())])
        new = [c.row for c in contexts if c.row not in self.rows]
        k = max(self.k, k)
        count = double(self.count or ROWS, self.count - len(self.free) + len(new))
        capacity = double(self.capacity or TOKENS, longest + k + 1)
        if (k, count, capacity) != (self.k, self.count, self.capacity):
            self._grow(k, count, capacity)
        for row in new:
            self.rows[row] = heappop(self.free)

    @on_the_device
    def _grow(self, k: int, count: int, capacity: int) -> None:
        old, target = self.memory, self.drafter.target
        for row in range(self.count, count):
            heappush(self.free, row)
        self.k, self.count, self.capacity = k, count, capacity
        self.launches.clear()  # they would keep the old memory alive
        line, pinned = 5 + 2 * self.T, self.device.type == "cuda"
        self.lines = torch.zeros(count, line, dtype=torch.int32, pin_memory=pinned)
        self.numbers = self.lines.numpy()  # the same memory, quicker to write to
        self.sheet = torch.zeros(count, line, dtype=torch.int32, device=self.device)
        new = dict(dtype=target.dtype, device=self.device)
        self.states = {
            n: torch.zeros(count * self.T, target.config.hidden_size, **new) for n in self.drafter.hidden_layers
        }
        # Recordings share their scratch memory: what is to outlive a launch needs a place of its own.
        self.out = torch.zeros(count, 2, self.drafter.max_tree_nodes(k), dtype=torch.long, device=self.device)
        self.arrival = Arrival(self.out)
        like = self._on_device(1).cache
        self.memory = copy(like)
        layers, _, heads, slots, size = like.keys.shape
        self.memory.keys, self.memory.values = (like.keys.new_zeros(layers, count, heads, slots, size) for _ in "kv")
        if old is not None:
            rows, end = old.batch, min(old.capacity, slots)
            self.memory.keys[:, :rows, :, :end] = old.keys[:, :, :, :end]
            self.memory.values[:, :rows, :, :end] = old.values[:, :, :, :end]

    def _on_device(self, B: int) -> DeviceDrafter:
        target = self.drafter.target
        embedding = target.transformer.embed_tokens.weight
        shape = Shape(B, self.capacity, self.device, target.dtype, target.config, embedding, self.compiled)
        return self.on_device(self.drafter, shape, self.k)

    def _launch(self, nodes: int) -> Launch:
        """The recording for the rows in use and drafts of up to so many nodes."""
        B = min(self.count, rows_of(1 + max(self.rows.values())))
        nodes = min(1 << (max(1, nodes) - 1).bit_length(), self.drafter.max_tree_nodes(self.k))
        if (B, nodes) not in self.launches:
            self.launches[B, nodes] = self._prepare(B, nodes)
        return self.launches[B, nodes]

    def prepare(self) -> None:
        """Record the drafts of all numbers of rows and of nodes that this memory can hold."""
        most = self.drafter.max_tree_nodes(self.k)
        for B in sorted({min(self.count, rows_of(row)) for row in range(1, self.count + 1)}):
            for nodes in {min(1 << n, most) for n in range(most.bit_length() + 1)}:
                if (B, nodes) not in self.launches:
                    self.launches[B, nodes] = self._prepare(B, nodes)
                self.launches[B, nodes].recorded.prepare()

    @on_the_device
    def _prepare(self, B: int, nodes: int) -> Launch:
        drafts = self._on_device(B)
        drafts.cache = drafts.layers.cache = rows_from(self.memory, 0, B)
        self.narrow(drafts, nodes)
        return Launch(drafts, self)

    def narrow(self, drafts: DeviceDrafter, nodes: int) -> None:
        """The likeliest n nodes of a tree are among the n likeliest of each depth, so no more need be grown."""
        drafts.nodes = min(drafts.nodes, nodes)


def double(size: int, needed: int) -> int:
    while size < needed:
        size *= 2
    return size


class EagleForMany(DraftsForMany):
    on_device = EagleOnDevice

    def narrow(self, drafts: EagleOnDevice, nodes: int) -> None:
        super().narrow(drafts, nodes)
        drafts.width = min(drafts.width, nodes)

    def ready(self, context: Context) -> bool:
        states = context.hidden.get(self.drafter.hidden_layers[0])
        return states is not None and states.shape[0] > 0  # a prompt of one token may have none

    def read(self, row: int, length: int, tokens: list[int], hidden: dict[int, Tensor]) -> None:
        head, part = self.drafter.head, rows_from(self.memory, row, row + 1)
        part.lengths.fill_(length)
        slots, attend = part.begin(len(tokens))
        g = head.fuse([hidden[n] for n in head.hidden_layers])
        head(torch.tensor([tokens], device=self.device), g[None], head.rope(slots), attend)


class DFlashForMany(DraftsForMany):
    on_device = DFlashOnDevice

    def resume(self, row: int, start: int) -> range:
        held = self.held.get(row, range(start, start))
        return range(held.start, start) if held.start <= start <= held.stop else range(start, start)

    def read(self, row: int, length: int, tokens: list[int], hidden: dict[int, Tensor]) -> None:
        part = rows_from(self.memory, row, row + 1)
        part.lengths.fill_(length)
        slots, end = part.reserve(len(tokens))
        states = {n: hidden[n][None] for n in self.drafter.hidden_layers}
        for layer, (keys, values) in enumerate(self.drafter.heads.context(states, slots)):
            part.extend(layer, slots, end, keys, values)


class MedusaForMany:
    """Medusa's table of candidates after the newest hidden states [B, d], by one launch. The tree is the host's."""

    def __init__(self, drafter: Medusa):
        self.drafter, self.newest, self.tables, self.recordings = drafter, None, None, {}

    @classmethod
    def takes(cls, drafter: Medusa) -> bool:
        return drafter.target.transformer.ordinary

    def __call__(self, newest: Tensor) -> Tensor:
        B = rows_of(len(newest))
        if self.newest is None or len(self.newest) < B:
            self._grow(double(ROWS, B))
        self.newest[: len(newest)] = newest
        if B not in self.recordings:
            self.recordings[B] = Recorded(partial(self.work, B), [self.newest])
        self.recordings[B]()
        return self.tables[: len(newest)]

    @on_the_device
    def _grow(self, rows: int) -> None:
        drafter, target = self.drafter, self.drafter.target
        self.recordings.clear()
        self.newest = torch.zeros(rows, target.config.hidden_size, dtype=target.dtype, device=target.device)
        candidates = drafter.heads.count * len(drafter.heads.accuracy[0])
        self.tables = torch.zeros(rows, candidates, dtype=torch.long, device=target.device)

    def work(self, B: int) -> None:
        self.tables[:B] = self.drafter.table(self.newest[:B])

    def prepare(self) -> None:
        """Record the tables of all numbers of rows that have been met."""
        for B in sorted({rows_of(row) for row in range(1, 1 + (0 if self.newest is None else len(self.newest)))}):
            self(self.newest[:B])

    def forget(self, row: int) -> None:
        """Nothing is kept."""


# Handed in here: a drafter knows of no device.
Medusa.for_many, Eagle.for_many, DFlash.for_many = MedusaForMany, EagleForMany, DFlashForMany
