"""A draft model in an engine: the chains of all requests by one launch, the verify pass right behind it.

What is new to the draft model after a cycle are two tokens at most: the last token, and the one before it if the whole
draft was accepted, because its last token was proposed but never processed. So a launch is one pass over two tokens of
every sequence, the second perhaps padding, and then a pass over one token for each further token of the draft. Passes
and memory in blocks are those of draft_memory.py; a sequence with more new tokens has an ordinary pass before.

    line       length, how many of the two new tokens count, how many tokens to draft, depth, last token, the new ones
    numbers    of sampled drafts: temperature, top_k, top_p, min_p, and a random number for each draft token

Nothing is said of rewinding: the drafter lowers a length (drafters/model.py), or `follow` does so on the device, where
the next cycle is launched before the host has synchronised with the last (engine_heads.Cycles). What was sampled, and
from which distributions, stays on the device for the verifier.

What a processor does to logits (penalties, constraints) only the host knows: for such requests, as for a draft model
with another vocabulary and for a cascade, drafter and host go through the same memory pass by pass.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..drafters.base import FOR_MANY
from ..drafters.early_exit import EarlyExit
from ..drafters.model import DraftModel
from ..drafters.quantized import Quantized
from ..sampling import COLDEST, precise, truncate, uniforms
from ..sequence import Sequence
from ..tree import Draft
from .buckets import rows_of
from .capture import Arrival, Captured, Event, on_the_device, sheet
from .draft_memory import PagedMemory
from .engine_heads import DraftsForMany, Pending
from .pages import pick

NEW = 2  # tokens that a launch processes for each sequence before it drafts


class ChainLaunch:
    """The captured drafts of B sequences, `nodes` tokens each. `cuts`: which of top_k, top_p and min_p the requests
    use; None: all draft greedily."""

    def __init__(self, owner: ModelForMany, B: int, nodes: int, cuts: tuple[bool, bool, bool] | None):
        self.owner, self.rows, self.nodes, self.cuts = owner, B, nodes, cuts
        self.captured = Captured(self.work, [owner.sheet])

    def work(self) -> None:
        """The device's part. No host sync: it is all in sheet and numbers."""
        owner, buckets, B = self.owner, self.owner.buckets, self.rows
        length, new, wanted = owner.sheet[:B, :3].long().unbind(1)  # [B] each
        row, passes = buckets.places[:B], buckets.sheet[:B]  # what Buckets.work reads: lengths and tokens
        passes[:, 0], passes[:, 1 : 1 + NEW] = length, owner.sheet[:B, 5:]
        buckets.work(B, NEW, False)
        at, end = row * NEW + (new - 1).clamp(min=0), length + new
        for i in range(self.nodes):
            token = self.choose(buckets.logits[at], buckets.best[at].clamp(min=0), i)  # −1: NaN; any draft will do
            owner.out[:B, 0, i] = torch.where(i < wanted, token, -1)
            if i + 1 < self.nodes:
                passes[:, 0], passes[:, 1] = end + i, token
                buckets.work(B, 1, False)
                at = row

    def choose(self, logits: Tensor, best: Tensor, i: int) -> Tensor:
        """The i-th draft token [B]: the best one, or sampled from what is kept in q."""
        if self.cuts is None:
            return best
        numbers = self.owner.numbers[: self.rows]
        temperature, *cuts = numbers[:, :4, None].unbind(1)  # [B, 1] each
        scores = logits.to(precise(logits))
        scores = scores / temperature.clamp(min=COLDEST).to(scores.dtype)
        cuts = cuts[0].long().clamp(min=1), *cuts[1:]  # 0 in rows of padding
        q = truncate(scores, *(cut if used else None for cut, used in zip(cuts, self.cuts, strict=True)))
        self.owner.q[: self.rows, i] = q
        token = pick(q, numbers[:, 4 + i]).clamp(max=q.shape[1] - 1)  # NaN picks a token that does not exist
        return torch.where(temperature[:, 0] > 0, token, best)


class PendingChains(Pending):
    """The same with q, as chains: Draft.parents is None."""

    def __init__(self, owner: ModelForMany, launch: ChainLaunch, rows: list[int], sampled: list[bool]):
        super().__init__(owner, launch, rows)
        self.q, self.sampled = owner.q, sampled

    def drafts(self) -> list[Draft]:
        if self.made is None:
            chains, self.made = self.wait()[:, 0, : self.nodes].tolist(), []
            q = self.q[: self.launch.rows].clone() if any(self.sampled) else None  # the next launch overwrites it
            for row, sampled in zip(self.rows, self.sampled, strict=True):
                tokens = [token for token in chains[row] if token >= 0] if row >= 0 else []
                self.made.append(Draft(tokens, q[row, : len(tokens)] if sampled and tokens else None))
        return self.made


class ModelForMany(DraftsForMany):
    """A draft model's launches. Its memory is the drafter's own, and so is the account of what is processed."""

    def __init__(self, drafter: DraftModel):
        self.drafter, self.memory, self.device = drafter, drafter.memory, drafter.draft.device
        self.rows: dict[int, int] = {}  # the line of each sequence that was last drafted for
        self.states, self.q, self.buckets = {}, None, None  # none of the target's hidden states
        self.launches: dict[tuple, ChainLaunch] = {}  # by B, nodes and cuts
        self.k = self.begun = 0
        self.goes_on = False  # whether what was drafted last can be followed by a cycle launched ahead
        self.sent = Event(self.device)

    @classmethod
    def takes(cls, drafter: DraftModel) -> bool:
        same_device = drafter.target is not None and drafter.draft.device == drafter.target.device
        return same_device and drafter.chain_model is not None and isinstance(drafter.memory, PagedMemory)

    def knows(self, sequences: list[Sequence]) -> bool:
        processed = any(c.needs_processing and c.processors.always for c in sequences)
        return not processed and self.drafter.chain_model is not None

    @property
    def held(self) -> dict[int, int]:
        return self.memory.lengths

    def begin(self, sequences: list[Sequence], k: int, depths: list[int]) -> PendingChains:
        """As DraftsForMany.begin. Past the draft model's own context length there is nothing to draft."""
        self.begun += 1
        drafter, memory = self.drafter, self.memory
        longest = drafter.draft.config.max_length - self.span(k)
        fitting = [(c, depth) for c, depth in zip(sequences, depths, strict=True) if 0 < len(c.tokens) <= longest]
        some = [c for c, _ in fitting]
        new = drafter.open(some)
        self._make_room({c.id: len(c.tokens) + self.span(k) for c in some}, k)
        if early := {id: tokens[:-1] for id, tokens in new.items() if len(tokens) > NEW}:
            memory.forward(early)
        lines = []
        for c, depth in fitting:
            tokens, nodes = c.tokens[memory.lengths[c.id] :], min(depth, c.allowed_nodes(depth))
            padding = [0] * (NEW - len(tokens))
            lines.append([memory.lengths[c.id], len(tokens), nodes, depth, c.tokens[-1], *tokens, *padding])
        samplings = [drafter.sampling or c.sampling for c in some]
        sampled = not all(sampling.greedy for sampling in samplings)
        cuts = tuple(map(any, zip(*(sampling.steps for sampling in samplings), strict=True))) if sampled else None
        launch = self._launch(len(some), max((line[2] for line in lines), default=1), cuts)
        self.sent.wait()  # the last lines are gone: they may be written again
        nobody, nothing = launch.rows - len(lines), [0] * (5 + NEW)
        self.lines_numpy[: launch.rows] = [*lines, *[nothing] * nobody]
        self.sheet[: launch.rows].copy_(self.lines[: launch.rows], non_blocking=True)
        if sampled:
            vocabulary = drafter.draft.config.vocab_size
            ways = [[s.temperature, s.top_k or vocabulary, s.top_p, s.min_p] for s in samplings]
            self.host_numbers[: len(some), :4] = torch.tensor(ways, dtype=torch.float64)
            self.host_numbers[: len(some), 4 : 4 + k] = uniforms([c.generator for c in some], k)
            self.numbers.copy_(self.host_numbers, non_blocking=True)
        self.sent.record()
        self.rows = {c.id: row for row, c in enumerate(some)}
        self._send_tables(launch)
        launch.captured()
        for c in some:
            memory.lengths[c.id] = len(c.tokens) + launch.nodes - 1
        self.goes_on = not sampled and len(some) == len(sequences)
        is_sampled = {c.id: not sampling.greedy for c, sampling in zip(some, samplings, strict=True)}
        rows = [self.rows.get(c.id, -1) for c in sequences]
        return PendingChains(self, launch, rows, [is_sampled.get(c.id, False) for c in sequences])

    def adopt(self, sequences: list[Sequence], launch: ChainLaunch) -> PendingChains:
        self.drafter.open(sequences)
        for c in sequences:
            self.memory.lengths[c.id] = len(c.tokens) + launch.nodes - 1
        self.rows = {c.id: self.rows[c.id] for c in sequences}  # blocks of the others may be somebody else's soon
        self.memory.make_room({c.id: len(c.tokens) + self.span(self.k) for c in sequences}, grow=False)
        self._send_tables(launch)
        return PendingChains(self, launch, list(self.rows.values()), [False] * len(sequences))

    def span(self, k: int) -> int:
        """Slots that this cycle and the next may write to, after the tokens that there are."""
        return 2 * (k + 1)

    def fits(self, rows: int) -> bool:
        span, longest = self.span(self.k), self.drafter.draft.config.max_length
        room = [min(longest, self.memory.capacity(id)) for id in self.rows]
        enough = all(self.drafter.committed[id] + span <= slots for id, slots in zip(self.rows, room, strict=True))
        return enough and self.goes_on and rows <= self.count and self.buckets is self.memory.buckets

    def follow(self, lines: Tensor, asked: Tensor, run: Tensor, where: Tensor, nodes: int) -> None:
        """Of the accepted tokens all are processed but the last of a whole draft; `run` goes on with the next token."""
        seen = (asked[:, 0] - 1).clamp(0, nodes - 1)  # [rows]
        lines[:, 0] += lines[:, 1] + seen
        lines[:, 1:5] = asked
        lines[:, 1] -= seen
        lines[:, 5:] = run.gather(1, seen[:, None] + self.buckets.places[:NEW])

    def forget(self, row: int) -> None:
        self.rows.pop(row, None)
        self.memory.forget(row)

    # ---- memory ----------------------------------------------------------------------------------------------------

    def _make_room(self, ends: dict[int, int], k: int) -> None:
        self.memory.make_room(ends)
        if k > self.k or self.memory.buckets is not self.buckets:
            self._renew(max(k, self.k))

    @on_the_device
    def _renew(self, k: int) -> None:
        """The memory has grown, or drafts have: what was captured knows the old ones."""
        self.launches.clear()
        self.k, self.T, self.buckets, self.q = k, k + 1, self.memory.buckets, None
        self.count = rows_of(self.buckets.rows)
        self.sheet, self.lines, self.lines_numpy = sheet(self.count, 5 + NEW, device=self.device)
        self.out = torch.zeros(self.count, 2, k, dtype=torch.long, device=self.device)
        self.out[:, 1] = torch.arange(k, device=self.device) - 1  # the parents of a chain
        self.arrival = Arrival(self.out)
        self.host_numbers = torch.zeros(self.count, 4 + k, dtype=torch.float64, pin_memory=self.device.type == "cuda")
        self.numbers = self.host_numbers.to(self.device)

    def _send_tables(self, launch: ChainLaunch) -> None:
        tables: list[list[int]] = [[] for _ in range(launch.rows)]
        for id, row in self.rows.items():
            tables[row] = self.memory.tables[id]
        self.buckets.sent.wait()
        self.buckets.write_tables(tables)
        self.buckets.sent.record()

    def _launch(self, count: int, nodes: int, cuts: tuple | None) -> ChainLaunch:
        """The capture for so many sequences and drafts of up to so many tokens."""
        return self._prepare(rows_of(max(1, count)), min(1 << (max(1, nodes) - 1).bit_length(), self.k), cuts)

    def prepare(self) -> None:
        """Capture the drafts of all numbers of sequences and tokens, in the ways to sample that have been met."""
        for cuts in {cuts for _, _, cuts in self.launches}:
            for B in sorted({rows_of(row) for row in range(1, self.count + 1)}):
                for nodes in {min(1 << n, self.k) for n in range(self.k.bit_length() + 1)}:
                    self._prepare(B, nodes, cuts).captured.prepare()

    @on_the_device
    def _prepare(self, B: int, nodes: int, cuts: tuple | None) -> ChainLaunch:
        if cuts is not None and self.q is None:
            shape, dtype = (self.count, self.k, self.buckets.config.vocab_size), precise(self.buckets.logits)
            self.q = torch.zeros(shape, dtype=dtype, device=self.device)
        if (B, nodes, cuts) not in self.launches:
            self.launches[B, nodes, cuts] = ChainLaunch(self, B, nodes, cuts)
        return self.launches[B, nodes, cuts]


FOR_MANY.update({DraftModel: ModelForMany, EarlyExit: ModelForMany, Quantized: ModelForMany})
