"""What one step of an engine computes: drafts, a forward pass of the target over everything, and the verdicts.

A request without a draft is plain decoding: an empty draft, which is accepted, and a bonus token. So there is one path
for all, and speculation can be off for one request (k=0), for all (no drafter), or while the batch is full.

On a GPU the requests that process no prompt, which is most of them in most steps, have a pass of fixed shape to
themselves, recorded and started by one launch (gpu/buckets.py). That saves far more than it costs to read the weights
once more for the others, whose prompts have recorded passes as well (gpu/ragged.py).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..drafters.base import Context, Drafter
from ..files.handle import Model
from ..generate import Output
from ..speculate import Completion, check_shapes, propose
from ..trace import Cycle, synchronize
from ..tree import Draft, view
from ..verify import judge
from .blocks import BlockPool
from .metrics import PARTS, Clock
from .paged import PagedKVCache, split
from .request import RUNNING, Request, Result, ScheduledRequest

HIDDEN_WINDOW = 512  # while the batch is too full to draft, the hidden states of so many tokens wait (or the prompt's)


@dataclass(eq=False, kw_only=True)
class Job(Completion):
    """One request: what the scheduler (request), the drafter (context) and the caller (writer) know of it."""

    request: Request
    added: float = 0.0  # moments, in seconds
    admitted: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    tokens_read: int = 0  # by the target: prompt, output, drafts, and all of it again after a preemption
    output: Output | None = None  # once it has ended

    def reveal(self) -> Context:
        """As in speculate.py, but the states stay until the drafter has answered: a call that fails is repeated."""
        unseen, context = self.unseen, super().reveal()
        self.unseen = unseen
        return context

    def forget_states(self) -> None:
        self.context.hidden, self.unseen = {}, []


@dataclass(eq=False)
class Turn:
    """A job's part in one step."""

    plan: ScheduledRequest
    job: Job
    asked: bool = False  # whether the drafter was
    draft: Draft = field(default_factory=lambda: Draft([]))
    count: int = 0  # tokens that the pass processed for it, scratch included
    logits: Tensor | None = None  # of a pass [B, T, V], from the last certain token on
    best: Tensor | None = None  # its best tokens [B, T], if the pass found them, too
    row: int = 0  # which of the B is its own
    hidden: dict[int, Tensor] = field(default_factory=dict)  # layer → states of all its tokens [n, d]
    cycle: Cycle | None = None  # what the verifier made of the draft
    result: Result | None = None  # for the scheduler; None: something failed on the way

    @property
    def runs(self) -> bool:
        """Its request has neither failed nor been aborted since the step began."""
        return self.plan.request.status == RUNNING

    @property
    def branches(self) -> bool:
        return self.draft.parents is not None or self.draft.scratch is not None

    @property
    def decodes(self) -> bool:
        """It processes its last token and what was drafted after it: no prompt."""
        return self.plan.count == 1 and self.plan.emits

    def tokens(self) -> list[int]:
        return self.plan.tokens + (self.draft.scratch.tokens if self.draft.scratch else [])

    def ran(self, count: int, logits: Tensor, row: int, hidden: dict[int, Tensor], best: Tensor | None = None) -> None:
        self.count, self.logits, self.row, self.hidden, self.best = count, logits, row, hidden, best
        self.job.tokens_read += count


class Runner:
    """Target, drafter and the memory of both. `fast` passes (None: on a GPU) have fixed shapes, and are recorded."""

    def __init__(self, target: Model, drafter: Drafter | None, pool: BlockPool, max_num_seqs: int, most_nodes: int,
                 fast: bool | None):  # fmt: skip
        self.target, self.drafter, self.pool, self.clock = target, drafter, pool, Clock()
        self.hidden_layers = tuple(drafter.hidden_layers) if drafter else ()
        if fast is None:
            fast = target.device.type == "cuda" and target.transformer.ordinary
        if fast:
            most = most_nodes + drafter.scratch_slots if drafter else 0  # tokens beside the certain one
            sizes = pool.num_blocks, pool.block_size, max_num_seqs, most
            self.cache, self.buckets = target.recorder().serve(*sizes, self.hidden_layers)
        else:
            memory = dict(block_size=pool.block_size, device=target.device, dtype=target.dtype)
            self.cache, self.buckets = PagedKVCache(target.config, pool.num_blocks, **memory), None
        if drafter and self.buckets:
            drafter.record()

    def draft(self, turns: Sequence[Turn]) -> None:
        """One call of the drafter for all; each draft is cut to the depth and to the nodes that its slots allow."""
        depths = [turn.plan.draft_length for turn in turns]
        for turn in turns:
            turn.job.context.max_nodes = turn.plan.max_nodes
        try:
            drafts = propose(self.drafter, [turn.job for turn in turns], max(depths), depths)
            check_shapes(drafts, self.target.config.vocab_size)
            most, slots = max(len(d.scratch.tokens) if d.scratch else 0 for d in drafts), self.drafter.scratch_slots
            if most > slots:
                raise ValueError(f"{self.drafter!r} made a draft with {most} scratch tokens: scratch_slots={slots}")
        except BaseException:
            for turn in turns:  # how far it came is unknown, so it starts afresh: that costs time and biases nothing
                self.restart(turn.job)
            raise
        for turn, draft in zip(turns, drafts, strict=True):
            turn.draft, turn.asked = prune(draft, turn.plan.max_nodes), True
            turn.plan.request.draft_tokens = turn.draft.tokens
            turn.job.forget_states()  # the drafter has them now

    def restart(self, job: Job) -> None:
        """The drafter starts this request afresh; it has not ended, so nothing is to be learnt from it yet."""
        if self.drafter:
            self.drafter.rewind(job.context.row, 0)

    def forward(self, turns: Sequence[Turn]) -> None:
        """One pass over everything; or two, where there are fixed shapes for the requests that decode."""
        decoding = [turn for turn in turns if turn.decodes] if self.buckets else []
        rows = [turn.tokens() for turn in decoding]
        if decoding and self.buckets.takes(rows):
            self._bucket_pass(decoding, rows)
            turns = [turn for turn in turns if not turn.decodes]
        if turns:
            self._ragged_pass(turns)

    def _ragged_pass(self, turns: Sequence[Turn]) -> None:
        """[certain tokens …, drafts …, scratch …] of every request, end to end; logits only where they are needed."""
        transformer, device = self.target.transformer, self.target.device
        rows = [turn.tokens() for turn in turns]
        starts, counts = [turn.plan.start for turn in turns], [len(row) for row in rows]
        # What follows a prompt's tokens is known already; a chunk that does not reach the end needs no logits.
        needed = [n - turn.plan.count + 1 if turn.plan.emits else 0 for turn, n in zip(turns, counts, strict=True)]
        if self.buckets and self._recorded_pass(turns, rows, starts, needed):
            return
        masks, positions = None, None
        if any(turn.branches for turn in turns):  # a drafting request has one certain token, as in any verify pass
            views = [view(turn.draft, n) if turn.branches else (None, torch.arange(n))
                     for turn, n in zip(turns, counts, strict=True)]  # fmt: skip
            masks = [mask for mask, _ in views]
            offsets = [start + offset for start, (_, offset) in zip(starts, views, strict=True)]
            positions = torch.cat(offsets)[None].to(device)  # [1, N]
        paged = self.cache.open(self._tables(turns), starts, counts, masks)
        tokens = torch.tensor([[token for row in rows for token in row]], device=device)  # [1, N]
        self.clock.lap("scheduling")  # where everybody's blocks are is bookkeeping too
        x, hidden = transformer.body(tokens, paged, positions=positions, hidden_layers=self.hidden_layers)
        if sum(needed) < x.shape[1]:
            parts = zip(split(x, counts), counts, needed, strict=True)
            x = torch.cat([states[count - n :] for states, count, n in parts])[None]
        logits = split(transformer.head(x), needed)  # [1 + drafts + scratch, V] each
        states = {n: split(state, counts) for n, state in hidden.items()}
        synchronize(device)
        for i, turn in enumerate(turns):
            turn.ran(counts[i], logits[i][None], 0, {n: of_turns[i] for n, of_turns in states.items()})

    def _recorded_pass(self, turns: Sequence[Turn], rows, starts, needed) -> bool:
        """The same in a fixed shape; False: there is none for so many tokens."""
        tables, drafts = self._tables(turns), [turn.draft for turn in turns]
        self.clock.lap("scheduling")
        result = self.buckets.prompts.read(rows, starts, tables, needed, drafts)
        if result is None:
            return False
        synchronize(self.target.device)
        for i, (turn, logits, best) in enumerate(zip(turns, result.logits, result.best, strict=True)):
            states = {n: of_turns[i] for n, of_turns in result.hidden.items()}
            turn.ran(len(rows[i]), logits[None], 0, states, best[None])
        return True

    def _bucket_pass(self, turns: Sequence[Turn], rows: list[list[int]]) -> None:
        """A pass in a fixed shape, for requests that decode."""
        tables = self._tables(turns)
        self.clock.lap("scheduling")
        drafts = [turn.draft for turn in turns] if any(turn.branches for turn in turns) else None
        logits, best, hidden = self.buckets.read(rows, [turn.plan.start for turn in turns], tables, drafts)
        if len(turns) == 1:  # after a fault each runs alone, one after the other, before any of them is judged
            logits, best, hidden = logits.clone(), best.clone(), {n: states.clone() for n, states in hidden.items()}
        synchronize(self.target.device)
        self.clock.lap("pass")
        for i, (turn, row) in enumerate(zip(turns, rows, strict=True)):
            turn.ran(len(row), logits, i, {n: states[i, : len(row)] for n, states in hidden.items()}, best)

    def judge(self, turns: Sequence[Turn]) -> None:
        contexts, drafts = [turn.job.context for turn in turns], [turn.draft for turn in turns]
        lossless = self.drafter is None or self.drafter.lossless
        verdicts, p, q = judge(side_by_side(turns), contexts, drafts, lossless, side_by_side(turns, "best"))
        for i, turn in enumerate(turns):
            turn.cycle = Cycle.of(turn.draft, verdicts[i], p[i], q and q[i], len(contexts[i].tokens), lossless)

    def keep(self, turns: Sequence[Turn]) -> None:
        """The accepted path of a tree moves together, to the slots right after the certain token."""
        trees = [turn for turn in turns if turn.runs and turn.draft.parents is not None and turn.cycle.path]
        if trees:
            starts, paths = [turn.plan.start + turn.plan.count for turn in trees], [turn.cycle.path for turn in trees]
            (self.buckets.move if self.buckets else self.cache.gather)(self._tables(trees), starts, paths)

    def settle(self, turns: Sequence[Turn]) -> None:
        """Hand out what the pass gave one request: to the caller, to the scheduler, and to the drafter."""
        [turn] = turns
        job, cycle, count = turn.job, turn.cycle, turn.plan.count
        if turn.hidden and job.request.k:
            kept = [*range(count), *(count + node for node in (cycle.path if cycle else []))]
            newest = self.drafter.hidden_window or max(job.prompt_tokens, HIDDEN_WINDOW)
            job.remember({n: states[kept] for n, states in turn.hidden.items()}, newest)
        if cycle is None:  # a chunk that does not reach the prompt's end
            turn.result = Result()
            return
        parts = self.clock.seconds
        cycle.draft_seconds, cycle.verify_seconds, cycle.sample_seconds = (parts[part] for part in PARTS[1:])
        job.write(cycle)
        job.last_token = time.perf_counter()
        job.first_token = job.first_token or job.last_token
        turn.result = Result(cycle.tokens, cycle.accepted, job.writer.finish_reason)
        if turn.asked and not job.ended:
            end = turn.count - count + 1  # of its logits, which begin at the last certain token
            scratch = turn.draft.scratch and turn.logits[turn.row, end - len(turn.draft.scratch.tokens) : end]
            self.drafter.settle(job.context.row, cycle.path, cycle.token, scratch)

    def _tables(self, turns: Sequence[Turn]) -> list[list[int]]:
        return [self.pool.tables[turn.plan.request.id].blocks for turn in turns]


def prune(draft: Draft, nodes: int) -> Draft:
    """The first `nodes` of a draft. Parents come before children, so what is left is a tree again; and which nodes go
    is known before any token is sampled, so the output keeps the target's distribution."""
    if len(draft.tokens) <= nodes:
        return draft
    probs = None if draft.probs is None else draft.probs[:nodes]
    return Draft(draft.tokens[:nodes], probs, draft.parents and draft.parents[:nodes], draft.scratch)


def side_by_side(turns: Sequence[Turn], what: str = "logits") -> Tensor | None:
    """Their logits (or best tokens) at the last certain token and the drafts, [B, n + 1, …]; padding follows shorter
    drafts. None: some pass did not say."""
    each = [getattr(turn, what) for turn in turns]
    if any(part is None for part in each):
        return None
    longest, rows = 1 + max(len(turn.draft.tokens) for turn in turns), [turn.row for turn in turns]
    if all(part is each[0] for part in each):  # they come from one pass
        return (each[0] if rows == list(range(len(each[0]))) else each[0][rows])[:, :longest]
    own = [part[turn.row, : len(turn.draft.tokens) + 1] for part, turn in zip(each, turns, strict=True)]
    return pad_sequence(own, batch_first=True)
