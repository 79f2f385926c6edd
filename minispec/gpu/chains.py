"""A draft model in an engine: the chains of all requests by one launch, and the verify pass right behind it.

After a cycle at most two tokens are new to the draft model: the last one, and the one before it if the whole draft was
accepted, whose last token was proposed but never processed. So a launch is one pass over two tokens of every sequence,
the second perhaps padding, and a pass over one for each further draft token. Passes and memory in blocks are those of
draft_memory.py; a sequence with more new tokens has an ordinary pass before. The host says what is new:

    line       length, how many of the two tokens count, how many to draft, depth, last token, the two new ones
    sampling   how each row samples, and its random numbers (verdict.py)

To rewind is to lower a length: the drafter does it (drafters/model.py), or `follow` on the device, where the next cycle
is launched before the host has synchronised with the last (drafts.Cycles).

Penalties and constraints depend on the prefix, which the host alone knows. Requests with these, draft models with
another vocabulary and cascades draft pass by pass, through the same memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..drafters.base import FOR_MANY
from ..drafters.early_exit import EarlyExit
from ..drafters.model import DraftModel
from ..drafters.quantized import Quantized
from ..sequence import Sequence
from .draft_memory import PagedMemory
from .drafts import DraftsForMany, Pending
from .graph import Arrival, Captured, Event, on_the_device, sheet
from .passes import rows_of
from .verdict import RowSamplings, Steps

NEW = 2  # tokens that a launch processes for each sequence before it drafts


class ChainLaunch:
    """The captured drafts of B sequences, `nodes` tokens each, sampled in these ways."""

    def __init__(self, owner: ModelForMany, B: int, nodes: int, steps: Steps | None):
        self.owner, self.rows, self.nodes, self.steps = owner, B, nodes, steps
        self.captured = Captured(self.work, [owner.sheet])

    def work(self) -> None:
        """The device's part. No host sync: it is all in the sheets."""
        owner, buckets, B = self.owner, self.owner.buckets, self.rows
        length, new, wanted = owner.sheet[:B, :3].long().unbind(1)  # [B] each
        row, line = buckets.places[:B], buckets.sheet[:B]  # what Buckets.work reads: length and tokens
        line[:, 0], line[:, 1 : 1 + NEW] = length, owner.sheet[:B, 5:]
        buckets.work(B, NEW, False)
        at = row * NEW + (new - 1).clamp(min=0)  # what follows the last new token
        sample = owner.sampler(B, self.nodes, self.steps)
        for i in range(self.nodes):
            token = buckets.best[at].clamp(min=0)  # −1: NaN; any draft will do
            if sample is not None:
                token = sample(i, buckets.logits[at], token)
            owner.out[:B, 0, i] = torch.where(i < wanted, token, -1)
            if i + 1 < self.nodes:
                line[:, 0], line[:, 1], at = length + new + i, token, row
                buckets.work(B, 1, False)


class ModelForMany(DraftsForMany):
    """A draft model's launches. Its memory is the drafter's own, and so is the account of what is processed."""

    branches, samples = False, True

    def __init__(self, drafter: DraftModel):
        self.drafter, self.memory, self.device = drafter, drafter.memory, drafter.draft.device
        self.rows: dict[int, int] = {}  # the line of each sequence that was drafted for last
        self.begun, self.sent = 0, Event(self.device)
        self.release()

    @classmethod
    def takes(cls, drafter: DraftModel) -> bool:
        plain = drafter.chain_model is not None and drafter.target is not None
        return plain and isinstance(drafter.memory, PagedMemory) and drafter.draft.device == drafter.target.device

    def reserve(self, rows: int, tokens: int) -> None:
        self.memory.reserve(rows, tokens)

    def release(self) -> None:
        """As DraftsForMany.release. The drafter's memory is its own to release."""
        self.launches: dict[tuple, ChainLaunch] = {}  # by B, nodes and steps
        self.k, self.buckets, self.q = 0, None, None
        self.sheet = self.host_lines = self.lines = self.samplings = self.out = self.arrival = None

    def knows(self, sequences: list[Sequence]) -> bool:
        """What depends on the prefix is drafted pass by pass."""
        by_prefix = any(c.needs_processing and c.processors.always for c in sequences)
        return self.drafter.chain_model is not None and not by_prefix

    @property
    def vocab_size(self) -> int:
        return self.drafter.draft.config.vocab_size

    @property
    def held(self) -> dict[int, int]:
        return self.memory.lengths

    def read_prompts(self, sequences: list[Sequence]) -> None:
        memory, longest = self.memory, self.drafter.draft.config.max_length
        prompts = {c.id: c.tokens for c in sequences if len(c.tokens) <= longest}
        memory.make_room({id: len(tokens) for id, tokens in prompts.items()})
        new = {id: tokens[memory.lengths[id] : -1] for id, tokens in prompts.items()}
        if new := {id: tokens for id, tokens in new.items() if tokens}:
            memory.process(new)

    def begin(self, sequences: list[Sequence], k: int, depths: list[int]) -> Pending:
        """As DraftsForMany.begin. Past the draft model's own context length there is nothing to draft. Where many
        prompts are new, as many are processed as fit into one captured pass; the other sequences draft later."""
        self.begun += 1
        drafter, memory = self.drafter, self.memory
        self.reach = 2 * (max(k, self.k) + 1)  # slots after the last token that this cycle and the next may write to
        longest = drafter.draft.config.max_length - self.reach
        depth_of = {c.id: n for c, n in zip(sequences, depths, strict=True) if 0 < len(c.tokens) <= longest}
        fitting = [c for c in sequences if c.id in depth_of]
        new = drafter.open(fitting)
        memory.make_room({c.id: len(c.tokens) + self.reach for c in fitting})
        if k > self.k or memory.buckets is not self.buckets:
            self._renew(max(k, self.k))
        early, room = {}, self.buckets.prompts.tokens
        for id, tokens in new.items():
            if len(tokens) > NEW and (not early or len(tokens) <= room):
                early[id] = tokens[:-1]
                room -= len(tokens)
        if early:
            memory.process(early)
            fitting = [c for c in fitting if len(c.tokens) - memory.lengths[c.id] <= NEW]
        samplings = [self.sampling_of(c) for c in fitting]
        steps = Steps.of(samplings, any(c.noise is not None for c in fitting))
        lines = []
        for c in fitting:
            length, depth = memory.lengths[c.id], depth_of[c.id]
            padding = [0] * (NEW - len(c.tokens) + length)
            asked = length, len(c.tokens) - length, c.allowed_nodes(depth), depth, c.tokens[-1]
            lines.append([*asked, *c.tokens[length:], *padding])
        nodes = max((line[2] for line in lines), default=1)
        launch = self._prepare(rows_of(max(1, len(lines))), min(1 << (nodes - 1).bit_length(), self.k), steps)
        self.sent.wait()  # the last sheet is gone: its lines may be written again
        self.lines[: launch.rows] = [*lines, *[[0] * (5 + NEW)] * (launch.rows - len(lines))]
        self.sheet[: launch.rows].copy_(self.host_lines[: launch.rows], non_blocking=True)
        if steps is not None:
            self.samplings.write(samplings, fitting)
        self.sent.record()
        self.rows = {c.id: row for row, c in enumerate(fitting)}
        self._send_tables(launch)
        launch.captured()
        for c in fitting:
            memory.lengths[c.id] = len(c.tokens) + launch.nodes - 1
        self.goes_on = self.countable(fitting) and len(fitting) == len(sequences)
        return Pending(self, launch, sequences)

    def adopt(self, sequences: list[Sequence], launch: ChainLaunch) -> Pending:
        self.drafter.open(sequences)
        for c in sequences:
            self.memory.lengths[c.id] = len(c.tokens) + launch.nodes - 1
        self.memory.make_room({c.id: len(c.tokens) + self.reach for c in sequences}, grow=False)
        self.rows = {c.id: self.rows[c.id] for c in sequences}  # the blocks of others may be somebody else's soon
        self._send_tables(launch)
        return Pending(self, launch, sequences)

    def fits(self, rows: int) -> bool:
        limit, held = self.drafter.draft.config.max_length, self.drafter.committed
        room = all(held[id] + self.reach <= min(limit, self.memory.capacity(id)) for id in self.rows)
        return room and self.goes_on and rows <= self.count and self.buckets is self.memory.buckets

    def follow(self, lines: Tensor, asked: Tensor, run: Tensor, where: Tensor, nodes: int) -> None:
        """Accepted tokens are processed, all but the last of a whole draft; `run` goes on with the next token."""
        seen = (asked[:, 0] - 1).clamp(0, nodes - 1)  # [rows]
        lines[:, 0] += lines[:, 1] + seen
        lines[:, 1:5] = asked
        lines[:, 1] -= seen
        lines[:, 5:] = run.gather(1, seen[:, None] + self.buckets.places[:NEW])

    def forget(self, row: int) -> None:
        self.rows.pop(row, None)
        self.memory.forget(row)

    @on_the_device
    def _renew(self, k: int) -> None:
        """The memory has grown, or drafts have: what was captured knows the old ones."""
        self.launches.clear()
        self.k, self.T, self.buckets, self.q = k, k + 1, self.memory.buckets, None
        self.count = rows_of(self.buckets.rows)
        self.sheet, self.host_lines, self.lines = sheet(self.count, 5 + NEW, device=self.device)
        self.samplings = RowSamplings(self.count, self.buckets.config.vocab_size, self.device)
        parents = torch.arange(k, device=self.device) - 1  # of a chain
        self.out = torch.stack([parents, parents]).repeat(self.count, 1, 1)  # [rows, 2, k]
        self.arrival = Arrival(self.out)

    def _send_tables(self, launch: ChainLaunch) -> None:
        tables: list[list[int]] = [[] for _ in range(launch.rows)]
        for id, row in self.rows.items():
            tables[row] = self.memory.tables[id]
        self.buckets.sent.wait()
        self.buckets.write_tables(tables)
        self.buckets.sent.record()

    @on_the_device
    def _prepare(self, B: int, nodes: int, steps: Steps | None) -> ChainLaunch:
        self.keep_q(steps, self.buckets.logits)
        if (B, nodes, steps) not in self.launches:
            self.launches[B, nodes, steps] = ChainLaunch(self, B, nodes, steps)
        return self.launches[B, nodes, steps]

    def prepare(self) -> None:
        """Capture the drafts of all numbers of sequences and tokens, in the ways to sample that have been met."""
        for steps in {steps for _, _, steps in self.launches}:
            for B in {rows_of(row) for row in range(1, self.count + 1)}:
                for nodes in {min(1 << n, self.k) for n in range(self.k.bit_length() + 1)}:
                    self._prepare(B, nodes, steps).captured.prepare()


FOR_MANY.update({DraftModel: ModelForMany, EarlyExit: ModelForMany, Quantized: ModelForMany})
