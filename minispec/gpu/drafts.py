"""Medusa, EAGLE, MTP and DFlash in an engine: one launch drafts for all requests.

The arithmetic is that of heads.py. But requests come, go and are preempted between two drafts, so the host says before
each launch what is new, on one sheet of numbers, as for the target's passes (passes.py):

    row        a living request has a row of the drafter's memory, from its first draft until it is forgotten. A launch
               works on the first B rows; those that are not asked are padding, written past their length
    line       length, how many of its T = k + 1 new positions count, nodes and depth that it is allowed, last token,
               and of each new position the token after it and where its hidden states are
    states     those of all new positions, one after the other

The drafts stay on the device: the target's pass takes them from there (Buckets.read_drafted), and the host builds its
own `Draft`s meanwhile (`Pending.drafts`). Requests with more than T new positions have the first of them processed
before, by an ordinary pass.

**The next cycle, launched before the host has synchronised with the last one** (`Cycles`). After a pass over drafts on
the device, all that the next cycle depends on is there. Three captured graphs, one after another:

    end of     judge each draft (verdict.py), by a walk along the best tokens where nobody samples; move the accepted
    this       path's keys and values to the slots right after the certain token; copy the hidden states of what was
    cycle      verified to where the drafter reads them; write the sheets that the host would have written
    draft      Launch.work
    pass       Buckets.work over the new drafts

The host meanwhile finds the same paths for itself, or is told of them where somebody samples, and plans the next step.
Only if that asks for what was launched does it count (captured_runner.py). Otherwise nothing has happened: what came
after the moved path lies past the lengths that the host knows, and so does what the drafter has made of it.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial
from heapq import heappop, heappush
from math import prod
from operator import itemgetter
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cache import KVCache, attention, per_query_head, visible_slots
from ..drafters.base import FOR_MANY, Drafter
from ..drafters.dflash import DFlash
from ..drafters.dflash2 import DFlash2
from ..drafters.dspark import DSpark
from ..drafters.eagle import Eagle
from ..drafters.medusa import Medusa
from ..drafters.mtp import MTP
from ..sampling import Sampling, precise
from ..sequence import GREEDY, Sequence
from ..serving.runner import Results
from ..tree import Draft
from . import trees
from .graph import Arrival, Captured, Captures, Event, on_the_device, sheet
from .heads import DeviceDrafter, on_device
from .passes import Buckets, double, rows_of
from .verdict import Drafts, RowSamplings, Steps, judge
from .vocab import pick
from .weights import has_kernels

ROWS, TOKENS = 8, 2048  # memory begins with rows for 8 sequences of 2,048 tokens: a drafter has few layers
EARLY = 1024  # positions of prompts that one captured pass processes, padding included


Sampler = Callable[[int, Tensor, Tensor], Tensor]


def fours(count: int) -> int:
    """1, 4, 16, …: at least so many."""
    return 1 << -(-(count - 1).bit_length() // 2) * 2


def rows_from(memory: KVCache, start: int, stop: int, length: int = 0) -> KVCache:
    """Some rows of a cache, in the same memory, with lengths of their own."""
    part = copy(memory)
    part.keys, part.values = memory.keys[:, start:stop], memory.values[:, start:stop]
    part.lengths = torch.full((stop - start,), length, dtype=torch.long, device=memory.keys.device)
    return part


class SomeRows:
    """Any rows [b] of a cache, with lengths [b] of their own, for a captured pass: no host sync, so the pass looks at
    all slots. What pads a short row lies past its length."""

    def __init__(self, memory: KVCache, rows: Tensor, lengths: Tensor):
        self.memory, self.rows, self.lengths = memory, rows, lengths

    def reserve(self, count: int) -> tuple[Tensor, int]:
        end = self.memory.capacity
        return (self.lengths[:, None] + torch.arange(count, device=self.rows.device)).clamp(max=end - 1), end

    def begin(self, count: int):
        slots, end = self.reserve(count)
        visible = per_query_head(visible_slots(slots, end, None), self.memory.groups)
        return slots, lambda layer, q, k, v: attention(q, *self.extend(layer, slots, end, k, v), visible)

    def extend(self, layer: int, slots: Tensor, end: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        own = self.memory.keys[layer], self.memory.values[layer]
        for memory, new in zip(own, (keys, values), strict=True):
            memory[self.rows[:, None], :, slots] = new.transpose(1, 2)
        return own[0][self.rows], own[1][self.rows]


class Launch:
    """The captured drafts of B rows, with up to `nodes` nodes each, sampled in these ways (None: they are not)."""

    def __init__(self, drafts: DeviceDrafter, owner: DraftsForMany, steps: Steps | None):
        self.drafts, self.owner, B = drafts, owner, drafts.cache.batch
        self.rows, self.nodes, self.steps = B, drafts.nodes, steps
        self.captured = Captured(self.work, [owner.sheet, *drafts.state()])

    def work(self) -> None:
        """The device's part. No host sync: it is all in the sheet."""
        drafts, T = self.drafts, self.owner.T
        sheet = self.owner.sheet[: self.rows].long()
        lengths, fresh, drafts.budgets, drafts.depths, last = sheet[:, :5].unbind(1)
        run, where = sheet[:, 5 : 5 + T], sheet[:, 5 + T :]  # [B, T] each
        drafts.cache.lengths.copy_(lengths)
        hidden = dict(zip(self.owner.drafter.hidden_layers, self.owner.states[:, where], strict=True))  # [B, T, d] each
        drafts.settle(hidden, torch.arange(T, device=run.device).expand_as(run), run, fresh)
        if self.steps is not None and self.steps.coupled:
            drafts.with_noise = self.owner.samplings.with_noise
        elif self.steps is not None:
            drafts.pick = partial(self.pick, self.owner.sampler(self.rows, self.nodes, self.steps))
        tokens, parents = drafts.propose(last[:, None], torch.ones_like(last))
        n = tokens.shape[1]
        self.owner.out[: self.rows, 0, : self.nodes] = F.pad(tokens, (0, self.nodes - n), value=-1)
        self.owner.out[: self.rows, 1, :n] = parents

    def pick(self, sample: Sampler, i: int, logits: Tensor) -> Tensor:
        """The i-th token [B] of sampled chains, by the head's logits [B, v]."""
        ids = self.drafts.head.head_ids
        everywhere = logits.new_full((len(logits), self.owner.vocab_size), -torch.inf).index_copy_(1, ids, logits)
        return sample(i, everywhere, ids[logits.argmax(-1)])


class Pending:
    """Drafts that are on the device, or soon will be, until the next ones are begun."""

    def __init__(self, owner: DraftsForMany, launch: Launch, sequences: list[Sequence]):
        self.memory, self.nodes, self.depth = owner.out, launch.nodes, owner.k  # [rows, 2, …]: tokens and parents
        self.launch, self.rows = launch, [owner.rows.get(c.id, -1) for c in sequences]  # of the memory; −1: no draft
        self.wait, self.made, self.branches = owner.arrival.begin(owner.out[: launch.rows]), None, owner.branches
        drawn = launch.steps is not None and not launch.steps.coupled
        sampled = [drawn and not owner.sampling_of(c).greedy for c in sequences]
        self.q, self.coins = owner.q, [c.coins if own else None for c, own in zip(sequences, sampled, strict=True)]

    def drafts(self, judged: bool = False) -> list[Draft]:
        """One for each sequence: wait for them. What was judged on the device is needed by nobody else."""
        if self.made is None:
            numbers, self.made = self.wait()[:, :, : self.nodes].tolist(), []
            # The next launch overwrites q.
            q = self.q[: self.launch.rows].clone() if any(self.coins) and not judged else None
            for row, coins in zip(self.rows, self.coins, strict=True):
                tokens, parents = numbers[row]
                end = 0 if row < 0 else tokens.index(-1) if tokens[-1] < 0 else self.nodes  # no more
                own = q[row, :end] if coins and end and not judged else None
                self.made.append(Draft(tokens[:end], own, parents[:end] if end and self.branches else None))
                if coins:
                    coins.skip(end)
        return self.made


class DraftsForMany:
    """The memory of a drafter for all its sequences, and its launches. One subclass for each kind of drafter."""

    branches: bool  # whether drafts may be trees, whose accepted paths have to move together
    samples: bool  # whether they are sampled where requests sample: chains, from q [rows, k, V], by `samplings`
    reads = True  # it keeps something of every position

    def __init__(self, drafter: Drafter):
        self.drafter, self.device, self.branches = drafter, drafter.target.device, drafter.tree
        self.samples = on_device(drafter).samples(drafter)
        self.rows: dict[int, int] = {}  # the row of each living sequence
        self.held: dict[int, range] = {}  # and its positions that are in memory there
        self.least = ROWS  # rows that memory begins with
        self.sent, self.begun = Event(self.device), 0  # how often drafts were begun
        self.release()

    @classmethod
    def takes(cls, drafter: Drafter) -> bool:
        """Whether it drafts what this drafter would."""
        return drafter.target.transformer.ordinary and on_device(drafter) is not None

    @property
    def vocab_size(self) -> int:
        return self.drafter.target.config.vocab_size

    def reserve(self, rows: int, tokens: int) -> None:
        """There will be so many sequences, of so many tokens in all."""
        self.least = max(self.least, rows_of(rows))

    def release(self) -> None:
        """Give memory and captures back, unless there are sequences in it; the next one begins with new ones."""
        if self.rows:
            return
        self.free: list[int] = []  # the lowest is taken first, so that few rows are in use
        self.k = self.count = self.capacity = 0
        self.memory: KVCache | None = None
        self.launches: dict[tuple, Launch] = {}  # by B, nodes and steps
        self.samplings: RowSamplings | None = None
        self.q: Tensor | None = None
        self.sheet = self.lines = self.numbers = self.states = self.out = self.arrival = None
        self.early_states = self.early_sheet = self.early_lines = self.early_numbers = self.early = None

    def propose(self, sequences: list[Sequence], k: int) -> list[Draft]:
        """As Drafter.propose; k ≥ 1."""
        return self.begin(sequences, k, [k] * len(sequences)).drafts()

    def ready(self, sequence: Sequence) -> bool:
        """Whether it can draft for this sequence."""
        return True

    def knows(self, sequences: list[Sequence]) -> bool:
        """Whether it can draft for all of them."""
        return True

    def sampling_of(self, sequence: Sequence) -> Sampling:
        """How its draft is sampled, or what its noise is added to."""
        if not (self.samples or sequence.has_noise):
            return GREEDY
        return getattr(self.drafter, "sampling", None) or sequence.sampling

    def countable(self, sequences: list[Sequence]) -> bool:
        """Whether a cycle that is launched ahead can count the random numbers: where only the draft takes any, it does
        not."""
        return all(self.sampling_of(c).greedy or not c.sampling.greedy or c.noise is not None for c in sequences)

    def keep_q(self, steps: Steps | None, like: Tensor) -> None:
        """Memory for the distributions of drafts, once any are sampled."""
        if steps is not None and not steps.coupled and self.q is None:
            shape = self.count, self.k, self.vocab_size
            self.q = torch.zeros(shape, dtype=precise(like), device=self.device)

    def sampler(self, B: int, nodes: int, steps: Steps | None) -> Sampler | None:
        """On the device: what samples the i-th token of B chains, from logits [B, V] with these best tokens [B]. What
        it is sampled from is kept in q; with noise it is chosen, and there is no q. None: the best tokens."""
        own = self.samplings
        u = own.uniforms(B, nodes) if steps is not None and not steps.coupled else None

        def sample(i: int, logits: Tensor, best: Tensor) -> Tensor:
            if steps.coupled:
                return own.own_choices(logits[:, None], best[:, None], i, steps)[:, 0]
            q = own.probs(logits[:, None], best[:, None], steps)[:, 0]  # [B, V]
            self.q[:B, i] = q
            return pick(q, u[:, i]).clamp(max=q.shape[1] - 1)  # NaN picks a token that does not exist

        return None if steps is None else sample

    def adopt(self, sequences: list[Sequence], launch: Launch) -> Pending:
        """As `begin`, for drafts that were launched ahead: only the host has to be told."""
        for c in sequences:
            self.hold(c, self.held[c.id].start)
        return Pending(self, launch, sequences)

    def begin(self, sequences: list[Sequence], k: int, depths: list[int]) -> Pending:
        """Launch the drafts of these sequences, none deeper than its depth, k at the most."""
        self.begun += 1
        layers = self.drafter.hidden_layers
        counts = [c.hidden[layers[0]].shape[0] if c.hidden else 0 for c in sequences]
        held = [self.resume(c.id, len(c.tokens) - 1 - count) for c, count in zip(sequences, counts, strict=True)]
        budgets = [c.allowed_nodes(self.drafter.max_tree_nodes(k)) for c in sequences]
        self._make_room(sequences, k, max(map(len, held)) + (max(counts) if self.reads else 1))
        steps = Steps.of([self.sampling_of(c) for c in sequences], any(c.has_noise for c in sequences))
        launch = self._launch(max(budgets), steps)
        T, lines, parts, first = self.T, {}, [], 0
        most = T if self.reads else 1
        early = {c.id: max(0, count - most) for c, count in zip(sequences, counts, strict=True)}
        if self.reads and any(early.values()):
            self._process([(c, len(before), early[c.id]) for c, before in zip(sequences, held, strict=True)])
        for row, positions in self.held.items():  # those that are not asked ride along: their memory is not touched
            lines[self.rows[row]] = [len(positions), 0, 0, 0, 0, *[0] * (2 * T)]
        for c, count, before, budget, depth in zip(sequences, counts, held, budgets, depths, strict=True):
            hidden = {n: states[early[c.id] :] for n, states in c.hidden.items()}
            length, count = len(before) + early[c.id], min(count, most)
            padding = [0] * (T - count)
            new, where = c.tokens[len(c.tokens) - count :], range(first, first + count)
            lines[self.rows[c.id]] = [length, count, budget, depth, c.tokens[-1], *new, *padding, *where, *padding]
            parts += [hidden] if count else []
            first += count
        for layer, n in enumerate(layers if parts else ()):
            torch.cat([states[n] for states in parts], out=self.states[layer, :first])
        nobody = [0] * (5 + 2 * T)
        self.sent.wait()  # the last sheet is gone: its lines may be written again
        self.numbers[: launch.rows] = [lines.get(row, nobody) for row in range(launch.rows)]
        self.sheet[: launch.rows].copy_(self.lines[: launch.rows], non_blocking=True)
        if steps is not None:
            asked = {self.rows[c.id]: c for c in sequences}
            rows = [asked.get(row) for row in range(launch.rows)]
            self.samplings.write([self.sampling_of(c) if c else GREEDY for c in rows], rows)
        self.sent.record()
        self.goes_on = self.countable(sequences)
        launch.captured()
        for c, before in zip(sequences, held, strict=True):
            self.hold(c, before.start)
        return Pending(self, launch, sequences)

    def hold(self, sequence: Sequence, start: int) -> None:
        """All positions of a sequence are in memory from this one on, but for the last token's."""
        self.held[sequence.id] = range(start, len(sequence.tokens) - 1)

    def resume(self, row: int, start: int) -> range:
        """The positions in memory, if the next states are those of position `start`. With a gap between, it begins
        anew after it: RoPE depends on distances alone."""
        held = self.held.get(row, range(start, start))
        return held if held.stop == start else range(start, start)

    def _process(self, early: list[tuple[Sequence, int, int]]) -> None:
        """Of each sequence, with its length in memory, so many new positions that do not fit a launch: in captured
        passes, each over as many sequences as fit."""
        some: list[tuple[Sequence, int, int]] = []
        for one in sorted((one for one in early if one[2]), key=itemgetter(2)):
            if some and prod(self._early_shape([*some, one])) > EARLY:
                self._process_some(some)
                some = []
            some.append(one)
        self._process_some(some)

    def _early_shape(self, early: list[tuple[Sequence, int, int]]) -> tuple[int, int]:
        return fours(len(early)), max(16, fours(max(n for _, _, n in early)))

    def _process_some(self, early: list[tuple[Sequence, int, int]]) -> None:
        """One such pass; an ordinary one for a sequence that is too long for any."""
        (R, N), T, layers = self._early_shape(early), self.T, self.drafter.hidden_layers
        if R * N > EARLY:
            [(c, length, n)] = early
            own = rows_from(self.memory, self.rows[c.id], self.rows[c.id] + 1, length)
            tokens = torch.tensor([c.tokens[-n - T : -T]], device=self.device)
            self.read(own, tokens, {layer: c.hidden[layer][None, :n] for layer in layers})
            return
        for layer in layers:
            parts = [c.hidden[layer][:n] for c, _, n in early]
            torch.cat(parts, out=self.early_states[layer][: sum(map(len, parts))])
        lines, first = [], 0
        for c, length, n in early:
            padding = [0] * (N - n)
            line = [self.rows[c.id], length, *c.tokens[-n - T : -T], *padding, *range(first, first + n), *padding]
            lines.append(line)
            first += n
        nobody = [self.count, *[0] * (2 * N + 1)]  # the spare row
        self.sent.wait()
        self.early_numbers[:R, : 2 * N + 2] = [*lines, *[nobody] * (R - len(lines))]
        self.early_sheet[:R].copy_(self.early_lines[:R], non_blocking=True)
        self.sent.record()
        self.early(R, N)

    def _early(self, R: int, N: int) -> None:
        """The device's part of such a pass, of R sequences with up to N positions."""
        sheet = self.early_sheet[:R].long()
        rows, lengths = sheet[:, :2].unbind(1)
        tokens, where = sheet[:, 2 : 2 + N], sheet[:, 2 + N : 2 + 2 * N]  # [R, N] each
        hidden = {n: states[where] for n, states in self.early_states.items()}
        self.read(SomeRows(self.memory, rows, lengths), tokens, hidden)

    def read(self, own: KVCache | SomeRows, tokens: Tensor, hidden: dict[int, Tensor]) -> None:
        """Process positions with these hidden states [b, n, d]; `tokens` [b, n] are those after each."""
        raise NotImplementedError

    def fits(self, rows: int) -> bool:
        """Whether memory has room for two more cycles of everybody, this one and the next."""
        longest = max(map(len, self.held.values()), default=0)
        return self.goes_on and self.count >= rows and longest + 2 * (self.k + 1) <= self.capacity

    def follow(self, lines: Tensor, asked: Tensor, run: Tensor, where: Tensor, nodes: int) -> None:
        """On the device: the lines [rows, …] of the draft after this one, if `run` [rows, k + 1] are the tokens of the
        cycle, and a line's next four numbers are `asked` [rows, 4]. The last draft had up to `nodes` nodes."""
        lines[:, 0] += lines[:, 1]  # of the last draft's new positions it has read
        lines[:, 1:5], lines[:, 5 : 5 + self.T], lines[:, 5 + self.T :] = asked, run, where

    def forget(self, row: int) -> None:
        self.held.pop(row, None)
        if row in self.rows:
            heappush(self.free, self.rows.pop(row))

    # ---- memory ----------------------------------------------------------------------------------------------------

    def _make_room(self, sequences: list[Sequence], k: int, longest: int) -> None:
        """A row for each, of at least so many tokens, and lines for drafts of depth k."""
        longest = max([longest, *map(len, self.held.values())])
        new = [c.id for c in sequences if c.id not in self.rows]
        k = max(self.k, k)
        count = double(self.count or self.least, self.count - len(self.free) + len(new))
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
        self.T = k + 1  # new positions that a launch processes for each sequence
        self.launches.clear()  # they would keep the old memory alive
        self.samplings, self.q = RowSamplings(count, self.vocab_size, self.device), None
        self.sheet, self.lines, self.numbers = sheet(count, 5 + 2 * self.T, device=self.device)
        layers, d = self.drafter.hidden_layers, target.config.hidden_size
        new = dict(dtype=target.dtype, device=self.device)
        self.states = torch.zeros(len(layers), count * self.T, d, **new)
        # Captures share their scratch memory: what is to outlive a launch needs a place of its own.
        self.out = torch.zeros(count, 2, self.drafter.max_tree_nodes(k), dtype=torch.long, device=self.device)
        self.arrival = Arrival(self.out)
        self.early_states = {n: torch.zeros(EARLY, d, **new) for n in layers}
        self.early_sheet, self.early_lines, self.early_numbers = sheet(EARLY // 16, 2 + 2 * EARLY, device=self.device)
        self.early = Captures(self._early, self.early_sheet)
        self.memory = on_device(self.drafter).new_cache(self.drafter, self._sizes(count + 1), k)  # one row to spare
        if old is not None:
            rows, end = old.batch, min(old.capacity, self.memory.capacity)
            self.memory.keys[:, :rows, :, :end] = old.keys[:, :, :, :end]
            self.memory.values[:, :rows, :, :end] = old.values[:, :, :, :end]

    def _sizes(self, B: int) -> SimpleNamespace:
        """What a DeviceDrafter for B rows asks of its target."""
        target = self.drafter.target
        sizes = dict(batch=B, capacity=self.capacity, device=self.device, dtype=target.dtype, config=target.config)
        return SimpleNamespace(**sizes, embedding=target.transformer.embed_tokens.weight)

    def _launch(self, nodes: int, steps: Steps | None) -> Launch:
        """The capture for the rows in use and drafts of up to so many nodes."""
        B = min(self.count, fours(1 + max(self.rows.values())))  # more rows hardly take longer
        nodes = min(1 << (max(1, nodes) - 1).bit_length(), self.drafter.max_tree_nodes(self.k))
        return self.launches.get((B, nodes, steps)) or self._prepare(B, nodes, steps)

    def prepare(self) -> None:
        """Capture the drafts of all numbers of rows and of nodes that this memory can hold."""
        if self.memory is None:  # nobody was drafted for
            return
        most = self.drafter.max_tree_nodes(self.k)
        self.early_sheet.zero_()  # a sheet for one shape makes no sense to another
        self.early_sheet[:, 0] = self.count
        for R, N in ((R, N) for R in (1, 4, 16, 64) for N in (16, 64, 256, 1024) if R * N <= EARLY):
            self.early.of(R, N).prepare()
        for B in {min(self.count, fours(rows)) for rows in range(1, self.count + 1)}:
            for nodes in {min(1 << n, most) for n in range(most.bit_length() + 1)}:
                for steps in {steps for *_, steps in self.launches}:
                    self._prepare(B, nodes, steps).captured.prepare()

    @on_the_device
    def _prepare(self, B: int, nodes: int, steps: Steps | None) -> Launch:
        self.keep_q(steps, self.drafter.target.transformer.norm.weight)
        if (B, nodes, steps) not in self.launches:
            drafts = on_device(self.drafter)(self.drafter, self._sizes(B), self.k, rows_from(self.memory, 0, B))
            # The likeliest n nodes of a tree are among the n likeliest of each depth, so no more need be grown.
            drafts.nodes = min(drafts.nodes, nodes)
            self.launches[B, nodes, steps] = Launch(drafts, self, steps)
        return self.launches[B, nodes, steps]


class EagleForMany(DraftsForMany):
    def ready(self, sequence: Sequence) -> bool:
        return self.drafter.ready(sequence)

    def read(self, own: KVCache, tokens: Tensor, hidden: dict[int, Tensor]) -> None:
        head, (slots, attend) = self.drafter.head, own.begin(tokens.shape[1])
        head(tokens, head.fuse([hidden[n] for n in head.hidden_layers]), head.rope(slots), attend)


class DFlashForMany(DraftsForMany):
    def resume(self, row: int, start: int) -> range:
        held = self.held.get(row, range(start, start))
        return range(held.start, start) if held.start <= start <= held.stop else range(start, start)

    def read(self, own: KVCache, tokens: Tensor, hidden: dict[int, Tensor]) -> None:
        slots, end = own.reserve(tokens.shape[1])
        for layer, (keys, values) in enumerate(self.drafter.heads.context(hidden, slots)):
            own.extend(layer, slots, end, keys, values)


class MedusaForMany(DraftsForMany):
    """Medusa's heads look at the newest hidden state alone: there is nothing to be kept."""

    reads = False

    def ready(self, sequence: Sequence) -> bool:
        return self.drafter.ready(sequence)

    def hold(self, sequence: Sequence, start: int) -> None:
        self.held[sequence.id] = range(1)

    def resume(self, row: int, start: int) -> range:
        return range(1)


class Cycles:
    """Launches of the next cycle, over the drafts of `many` and the passes of `buckets`."""

    def __init__(self, many: DraftsForMany, buckets: Buckets, rule: str = "token"):
        self.many, self.buckets, self.rule, self.out, self.moved = many, buckets, rule, None, False
        self.captures: dict[tuple, Captured] = {}  # by the rows and tokens of a pass, and how target and draft sample
        kernels = has_kernels(buckets.device, buckets.dtype)
        self.walk = trees.walk if kernels else trees.walk_torch
        self.sound = torch.ones((), dtype=torch.bool, device=buckets.device)  # the host checks for NaN itself

    def fits(self) -> bool:
        return self.many.fits(self.buckets.shape[0])

    def end(self, tables: list[list[int]], launch: Launch) -> None:
        """The end of a cycle over the drafts of this launch. Tables have the slots for the next one, however this one
        ends; those of requests that have ended are empty."""
        self.moved = False  # a replay moves all paths, but the same work by the host may fail before or after that
        buckets, (B, T, _) = self.buckets, self.buckets.shape
        if self.out is not self.many.out:
            self._renew()
        buckets.sent.wait()
        buckets.write_tables(tables)
        buckets.sent.record()
        key = B, T, buckets.steps, launch.steps
        if key not in self.captures:
            self._capture(*key)
        self.captures[key]()
        self.moved = True

    def fetch(self) -> Callable[[], list[list[float]]]:
        """The verdicts of the last cycle are on their way, a line for each row: what is returned waits for them."""
        B, T, _ = self.buckets.shape
        wait = self.arrival.begin(self.report[: B * (3 * T - 2)])
        return lambda: wait().view(B, 3 * T - 2).tolist()

    def draft(self, launch: Launch) -> None:
        """The next cycle begins."""
        launch.captured()
        self.begun = self.many.begun

    def verify(self) -> Results:
        """The pass over what was drafted. Its results are good until the next one."""
        buckets, (B, T, _) = self.buckets, self.buckets.shape
        return buckets.over_drafts(B, T, B)

    def stands(self) -> bool:
        """Whether nobody else has drafted since."""
        return self.begun == self.many.begun

    @on_the_device
    def _renew(self) -> None:
        """The drafter's memory has grown: what was captured knows the old one."""
        many, device = self.many, self.buckets.device
        self.captures.clear()
        self.out, self.places = many.out, torch.arange(max(many.count, many.T), device=device)
        # How many nodes a draft can have, by its depth 0 … k.
        self.most_nodes = [0, *(many.drafter.max_tree_nodes(depth) for depth in range(1, many.T))]
        self.most = torch.tensor(self.most_nodes, device=device)
        size = len(self.buckets.sheet) * (3 * many.out.shape[2] + 1)
        self.report = torch.zeros(size, dtype=torch.float64, device=device)
        self.arrival = Arrival(self.report)

    @on_the_device
    def _capture(self, B: int, T: int, steps: Steps | None, drafts: Steps | None) -> None:
        buckets, many = self.buckets, self.many
        state = [buckets.sheet, buckets.samplings.sheet, many.sheet]
        state += [many.samplings.sheet] if drafts else []
        captured = Captured(partial(self.work, B, T, steps, drafts), state)
        if not captured.eager:
            # To warm up is to work for real, and a path moved twice is lost. With blank tables all rows are padding.
            tables = buckets.table_sheet.clone()
            buckets.table_sheet.fill_(buckets.blank)
            try:
                captured.prepare()
            finally:
                buckets.table_sheet.copy_(tables)
                self.moved = False
        self.captures[B, T, steps, drafts] = captured

    # ---- the device's part -----------------------------------------------------------------------------------------

    def work(self, B: int, T: int, steps: Steps | None, drafts: Steps | None) -> None:
        """The end of a cycle of B rows of T tokens, whose target and drafts sample so. No host sync."""
        buckets, many, k = self.buckets, self.many, self.many.k
        sheet, real = buckets.sheet[:B], buckets.table_sheet[:B, 0] != buckets.blank
        start, _, row, deepest, room, share = sheet[:, :6].long().unbind(1)  # [B] each
        row = torch.where(real, row, -1)  # of the drafter; −1: there is no draft

        # What this cycle came to.
        best = buckets.best[: B * T].view(B, T)
        tokens, parents = many.out[row.clamp(min=0), :, : T - 1].unbind(1)  # [B, T − 1]
        absent = (tokens < 0) | (row < 0)[:, None]
        if steps is None or steps.coupled:
            path, _, run, new, line, _ = self.walk(best, tokens.masked_fill(absent, -2), parents, k, self.sound)
            token, taken = line[:, -1], 0
        else:
            drafted = Drafts(tokens.masked_fill(absent, -1), parents)
            if drafts:
                held = row.clamp(min=0)
                drafted = drafted._replace(q=many.q[held, : T - 1], sampled=many.samplings.sampled(many.count)[held])
            path, run, new, token, taken = self.judge(B, T, steps, drafted)
        if steps is not None:
            buckets.samplings.count(B, new * real, taken * real)
        # The states of what was verified, the last of them again in the place of what was not: slots hold anything.
        places = start[:, None] + torch.minimum(self.places[: k + 1], new[:, None] - 1)  # [B, k + 1]
        if many.branches:  # the accepted path moves together; what is not accepted, from the spare block to itself
            kept = (self.places[:k] < new[:, None] - 1).repeat(1, 2)  # [B, 2k]
            moves = start[:, None] + 1 + torch.cat([path, self.places[:k].expand_as(path)], 1)
            places = torch.cat([places, moves * kept], 1)
        slots = buckets.cache.slots(buckets.table_sheet[:B], self.places[:B, None], places)
        if many.branches:
            source, target = slots[:, k + 1 :].where(kept, buckets.spare * buckets.block_size).chunk(2, 1)
            for memory in buckets.cache.memories:
                memory[:, target.flatten()] = memory[:, source.flatten()]
        self.moved = True
        if buckets.cache.hidden_layers:
            at = slots[:, : k + 1].flatten()
            broken = (best < 0).any(1, keepdim=True).expand(B, k + 1).reshape(-1, 1)  # NaN would outlive its request
            many.states[:, : len(at)] = buckets.cache.states.flatten(1, 2)[:, at].masked_fill(broken, 0)

        # What the next may be: see Scheduler._speculate.
        room = room - new
        depth = torch.minimum(deepest, room).clamp(0, k)
        nodes = torch.minimum(self.most[depth], share)
        depth = torch.minimum(depth, nodes)

        # The lines of the drafter, in the order of its own rows; who is not asked rides along.
        mine = row == self.places[: many.count, None]  # [rows, B]
        who = mine.int().argmax(1)  # [rows]
        asked = torch.stack([new, nodes, depth, token], 1)[who] * mine.any(1, keepdim=True)
        many.follow(many.sheet, asked, run[who], who[:, None] * (k + 1) + self.places[: k + 1], T - 1)
        if drafts:
            many.samplings.follow(buckets.samplings, who, mine.any(1))

        # The lines of the pass. A row that has ended by its length may have no slot to go to.
        start = start + new * (real & (room >= 0))
        sheet[:, :5] = torch.stack([start, token, row, deepest, room], 1)

    def judge(self, B: int, T: int, steps: Steps, drafts: Drafts) -> tuple[Tensor, ...]:
        """The verdicts on B drafts, of which the host is told: path, run, how many tokens are new, the last of them,
        and how many random numbers were taken."""
        buckets, many = self.buckets, self.many
        logits, best = buckets.logits[: B * T].view(B, T, -1), buckets.best[: B * T].view(B, T)
        verdicts = judge(logits, best, drafts, many.k, not many.branches, buckets.samplings, steps, self.rule)
        self.report[: verdicts.report.numel()] = verdicts.report.flatten()
        last = verdicts.run.gather(1, verdicts.new[:, None] - 1)[:, 0]
        return verdicts.path, verdicts.run, verdicts.new, last, verdicts.taken


FOR_MANY.update({Medusa: MedusaForMany, Eagle: EagleForMany, MTP: EagleForMany})
FOR_MANY.update({DFlash: DFlashForMany, DFlash2: DFlashForMany, DSpark: DFlashForMany})
