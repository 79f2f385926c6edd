"""Which requests take part in the next forward pass, and with how many tokens. No tensors here, and no model.

A request has `num_tokens_with_spec − num_computed_tokens` new tokens to process: a whole prompt at first, then one
token per step, or one token and its draft. To the scheduler these are all the same: tokens that share one budget,
`max_num_batched_tokens` (continuous batching: Orca, Yu et al., 2022; chunked prefill: Sarathi, arXiv:2308.16369).

The plan comes before the draft because slots must exist before the pass, and only the drafter knows how many it fills.
Drafts are served last: they take neither tokens nor blocks from certain work.

When blocks run out, a running request that cannot get its next slot preempts the one that came last, possibly itself.
The preempted request loses its blocks and is computed again later, except for what is still cached. A request is never
preempted by one that came after it, so the first one always advances, and all of them end. (`check` refuses what
does not fit into the pool alone.)

On a GPU the step after this one may be launched before the host knows this one's tokens (gpu/captured_runner.py). For
that are `reserve_ahead`, `Step.ahead` and `Scheduler.reserved`: its slots are reserved a step early.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cache

from ..controller import Controller
from ..require import require, require_counts, require_whole, whole
from ..sequence import NO_DRAFT, Sequence
from .blocks import BlockPool, check
from .metrics import RowRecord, StepRecord

WAITING, RUNNING, PREEMPTED, FINISHED = "waiting", "running", "preempted", "finished"


@dataclass(eq=False)
class Turn:
    """A sequence's part in one step: what is planned, and what came of it."""

    sequence: Sequence
    start: int  # the first position it processes
    count: int  # certain tokens: of the prompt, or the last one emitted
    prefill: bool  # more than one token to process, or just admitted
    draft_length: int = 0  # how deep its draft may be
    max_nodes: int = 0  # how many tokens its draft may have, side branches of a tree included
    share: int = 0  # how many it is given, of which a draft of this depth may need less
    num_lookahead_tokens: int = 0  # slots after the certain tokens, for draft nodes and scratch tokens
    asked: bool = False  # whether a draft was asked for
    accepted: int = 0  # of its draft
    # What a pass gave it (runner.py):
    results: object = None
    row: int = 0  # in a pass of fixed shape
    at: int = 0  # where its logits begin there, from the last certain token on
    sampled: bool = False  # its next token, in `results.best`
    news: list[int] = field(default_factory=list)  # to be emitted
    cycle: object = None  # what the verifier made of its draft; None: none is asked for, or its prompt goes on

    def __post_init__(self):
        # Whether the pass reaches the sequence's last token, and so yields the distribution of the next.
        self.emits = self.start + self.count == len(self.sequence.tokens)

    @property
    def runs(self) -> bool:
        """Its sequence has neither failed nor been aborted since the step began."""
        return self.sequence.status == RUNNING

    @property
    def tokens(self) -> list[int]:
        """What the pass processes, into slots start, start + 1, …: certain ones, drafted ones, scratch."""
        return self.sequence.tokens[self.start : self.start + self.count] + self.sequence.draft.inputs

    @property
    def processed(self) -> int:
        """How many these are."""
        return self.count + len(self.sequence.draft.inputs)

    @property
    def emitted(self) -> int:
        """How many tokens the sequence has gained."""
        return len(self.sequence.tokens) - self.start - self.count if self.emits else 0

    def emit(self, tokens: list[int] | tuple = (), accepted: int = 0, logits=None) -> None:
        """Its part of the pass has run: the sequence goes on with so many accepted draft tokens and one more, up to the
        one that ends it; with none where a chunk does not reach the prompt's end."""
        id, drafted = self.sequence.request_id, len(self.sequence.draft.tokens)
        if drafted > self.max_nodes:
            raise ValueError(f"request {id!r} drafted {drafted} tokens: at most {self.max_nodes} have slots")
        if not 0 <= accepted <= min(drafted, self.draft_length):
            raise ValueError(f"accepted={accepted} for request {id!r}, which drafted {drafted} tokens")
        if len(tokens) != (most := accepted + 1 if self.emits else 0):
            raise ValueError(f"{len(tokens)} tokens for request {id!r}: give {most}")
        self.accepted = accepted
        self.sequence.emit(tokens, logits)


@dataclass(eq=False)
class Step:
    """What `schedule` planned."""

    number: int
    budget: int  # tokens that are left to be scheduled
    turns: list[Turn] = field(default_factory=list)
    admitted: list[Hashable] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    ahead: bool = False  # slots are reserved for the cycle after this one, too

    def add(self, sequence: Sequence, count: int, prefill: bool) -> None:
        self.turns.append(Turn(sequence, sequence.num_computed_tokens, count, prefill))
        self.budget -= count


class Scheduler:
    """Continuous batching: after every step finished requests leave and the next ones join.

    A step processes at most `max_num_batched_tokens` tokens, at most `max_chunk` of them of one prompt, for at most
    `max_num_seqs` requests. `lookahead` is how deep a request drafts that does not say so itself. Drafts share
    `draft_budget` tokens per step (None: what is left of the step's), in equal shares or as a `controller` chooses.
    `max_tree_nodes(depth)` is how many nodes a draft of that depth can have, `scratch_slots` how many tokens it brings
    along that are never accepted.
    """

    def __init__(
        self,
        pool: BlockPool,
        max_num_seqs: int = 32,
        max_num_batched_tokens: int = 512,
        *,
        max_chunk: int | None = None,
        lookahead: int = 0,
        draft_budget: int | None = None,
        max_tree_nodes: Callable[[int], int] = lambda depth: depth,
        scratch_slots: int = 0,
        controller: Controller | None = None,
    ):
        self.pool, self.max_num_seqs, self.max_num_batched_tokens = pool, max_num_seqs, max_num_batched_tokens
        self.max_chunk = max_num_batched_tokens if max_chunk is None else max_chunk
        self.draft_budget = max_num_batched_tokens if draft_budget is None else draft_budget
        self.lookahead, self.max_tree_nodes, self.scratch_slots = lookahead, cache(max_tree_nodes), scratch_slots
        self.controller = controller
        require_counts(max_num_seqs=max_num_seqs, max_chunk=self.max_chunk)
        every = f"a whole number ≥ {max_num_seqs} (max_num_seqs: every running request processes a token per step)"
        fits = whole(max_num_batched_tokens, max_num_seqs)
        require(fits, every, max_num_batched_tokens=max_num_batched_tokens)
        require_whole(lookahead=lookahead, draft_budget=self.draft_budget, scratch_slots=scratch_slots)
        self.ids: set[Hashable] = set()  # of all that have not ended
        self.waiting: list[Sequence] = []  # in the order in which they came; whoever runs came before
        self.running: list[Sequence] = []
        self.steps = 0
        self.reserved = False  # slots are reserved for a whole cycle ahead
        self._ended: list[Hashable] = []  # since the last record

    # ---- sequences come and go -------------------------------------------------------------------------------------

    def check(self, sequence: Sequence) -> None:
        """Refuse a sequence that could never run."""
        require_counts(max_new_tokens=sequence.max_new_tokens)
        require_whole(k=0 if sequence.k is None else sequence.k)
        if not sequence.tokens:
            raise ValueError(f"prompt of request {sequence.request_id!r} is empty: give at least one token")
        longest = sequence.prompt_length + sequence.max_new_tokens - 1  # the last token is never processed
        if longest > self.pool.max_tokens:
            needed, there = self.pool.blocks_for(longest), self.pool.blocks_for(self.pool.max_tokens)
            raise ValueError(
                f"prompt of {sequence.prompt_length} tokens + max_new_tokens={sequence.max_new_tokens} needs {needed} "
                f"blocks, the pool has {there} for one sequence: shorten the sequence or make the pool larger"
            )

    def add(self, sequence: Sequence) -> None:
        self.check(sequence)
        if sequence.request_id in self.ids:
            raise ValueError(f"id={sequence.request_id!r} is already here: choose another, or wait until it has ended")
        self.ids.add(sequence.request_id)
        sequence.status = WAITING
        self.waiting.append(sequence)

    def finish(self, sequence: Sequence) -> None:
        """The sequence leaves now, wherever it is, and its blocks are free. Also in mid-step: `update` skips it."""
        if sequence.status == RUNNING:
            self.running.remove(sequence)
            self.pool.free(sequence.request_id)
        else:
            self.waiting.remove(sequence)
        self.ids.remove(sequence.request_id)
        sequence.status, sequence.draft = FINISHED, NO_DRAFT
        self._ended.append(sequence.request_id)

    # ---- before the pass -------------------------------------------------------------------------------------------

    def schedule(self) -> Step:
        """Plan the next pass: the requests that decode, one token each, then chunks of prompts already begun, then new
        requests; lookahead slots for drafts get what is left of the budget and of the blocks. The engine puts drafts
        into `sequence.draft`, and its pass processes `turn.tokens`."""
        step = Step(self.steps, self.max_num_batched_tokens)
        self.steps += 1
        if self.reserved and not self._others_find_blocks():
            for sequence in self.running:
                self.pool.trim(sequence.request_id)
        behind = [(sequence, sequence.behind) for sequence in self.running]
        self._decode(step, [sequence for sequence, tokens in behind if tokens == 1])
        for sequence in [sequence for sequence, tokens in behind if tokens > 1 and sequence.status == RUNNING]:
            self._prefill(step, sequence)
        self._admit(step)
        if self.waiting and not step.turns:
            held = f"{self.pool.num_used} of the pool's {self.pool.num_blocks} blocks are held outside the scheduler"
            raise RuntimeError(f"request {self.waiting[0].request_id!r} cannot run: {held}; free them")
        self._speculate(step)
        return step

    def _decode(self, step: Step, decoding: list[Sequence]) -> None:
        """One slot for every sequence that decodes; those that came last make room for the first."""
        for sequence in decoding:
            if sequence.status != RUNNING:  # preempted by one before it
                continue
            while not self._reserve(sequence, sequence.num_tokens):
                victim = self.running[-1]
                self._preempt(step, victim)
                if victim is sequence:
                    break
            else:
                step.add(sequence, 1, prefill=False)

    def _prefill(self, step: Step, sequence: Sequence) -> None:
        """As much of the prompt as the budget allows. Its blocks are there since it was admitted."""
        count = min(sequence.behind - sequence.opening, step.budget, self.max_chunk)
        if count > 0:
            step.add(sequence, count, prefill=True)

    def _admit(self, step: Step) -> None:
        """Admit new requests while the batch has room, the step tokens, and the pool blocks for the next one's whole
        prompt. A shorter one never overtakes it, and what was preempted in this step does not return in it."""
        while self.waiting and not step.preempted and len(self.running) < self.max_num_seqs and self._open(step):
            sequence = self.waiting[0]
            cached = self.pool.start(sequence.request_id, sequence.tokens, hashes=sequence.block_hashes)
            if cached is None:
                break
            self.waiting.pop(0)
            sequence.status, sequence.num_computed_tokens = RUNNING, cached
            self.running.append(sequence)
            step.admitted.append(sequence.request_id)
            self._prefill(step, sequence)

    def _open(self, step: Step) -> bool:
        return step.budget > 0

    def _speculate(self, step: Step) -> None:
        """Lookahead slots for the requests that decode: fewer nodes each as the batch fills, then fewer requests."""
        left, scratch = min(step.budget, self.draft_budget), self.scratch_slots
        if left <= scratch:
            return
        if self.controller:
            ids = [turn.sequence.id for turn in step.turns if not turn.prefill]
            # Whose prompt is processed would wait for everybody's drafts, unless they are under way already.
            if self.controller.rests(ids) or (len(ids) < len(step.turns) and not self.reserved):
                return
        drafting = [turn for turn in step.turns if not turn.prefill and self._depth(turn.sequence) > 0]
        if not drafting:
            return
        if self.controller:
            share = self.controller.choose([turn.sequence.id for turn in drafting], left - len(drafting) * scratch)
            if not share:
                return
        else:
            share = max(1, left // len(drafting) - scratch)
        for turn in drafting:
            turn.share = share
            sequence, depth = turn.sequence, self._depth(turn.sequence)
            nodes = min(self.max_tree_nodes(depth), turn.share, left - scratch)
            # Where blocks are short a smaller draft may still fit.
            while nodes > 0 and not self._reserve(sequence, sequence.num_tokens + nodes + scratch):
                nodes -= 1
            if nodes > 0:
                turn.draft_length, turn.max_nodes = min(depth, nodes), nodes
                turn.num_lookahead_tokens = nodes + scratch
                left -= nodes + scratch

    def _reserve(self, sequence: Sequence, total: int) -> bool:
        """Slots for so many tokens, and for all that fit into the same blocks, so most are there already; False: there
        are too few blocks."""
        id, pool = sequence.request_id, self.pool
        return total <= pool.tables[id].reserved or pool.allocate(id, pool.blocks_for(total) * pool.block_size)

    def _depth(self, sequence: Sequence) -> int:
        """Of the next draft: a token after it ends the text at the latest."""
        return min(self.lookahead if sequence.k is None else sequence.k, sequence.room)

    def reserve_ahead(self, step: Step) -> bool:
        """Whether the next step will decode these requests again, unless one of them stops or is aborted: each has a
        token in this one, and room for another. Its slots are reserved, so the device may go on before the host knows.

        With drafts that is a whole cycle, with slots for the case that all of this one's are accepted. Those who end
        may be missing then. Blocks that others could have are not kept from them."""
        turns, drafts = step.turns, any(turn.num_lookahead_tokens for turn in step.turns)
        if not turns or any(turn.prefill for turn in turns) or (drafts and len(turns) < len(self.running)):
            return False
        if (max if drafts else min)(turn.sequence.room for turn in turns) < 1:
            return False
        if self.controller and self.controller.ids and not self.controller.stays():
            return False
        for turn in turns:
            sequence = turn.sequence
            certain = sequence.num_tokens + min(turn.draft_length + 1, sequence.room)
            nodes = min(turn.share, self.max_tree_nodes(self._depth(sequence))) if turn.max_nodes else 0
            if not self._reserve(sequence, certain + nodes):
                return False
        step.ahead = drafts and self._others_find_blocks()
        return step.ahead or not drafts

    def _others_find_blocks(self) -> bool:
        """Whether all who may be admitted next find blocks beside those that are reserved."""
        next_ones = self.waiting[: self.max_num_seqs - len(self.running)]
        return sum(self.pool.blocks_for(len(sequence.tokens)) for sequence in next_ones) <= self.pool.num_free

    def _preempt(self, step: Step, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.pool.free(sequence.request_id)
        sequence.status, sequence.num_computed_tokens = PREEMPTED, 0
        sequence.preemptions += 1
        self.waiting.insert(0, sequence)  # of all that run it came last, and before all that wait
        step.preempted.append(sequence)

    # ---- after the pass --------------------------------------------------------------------------------------------

    def update(self, step: Step) -> StepRecord:
        """The pass is over: what is verified counts as computed, so the next pass overwrites rejected drafts; surplus
        blocks are given back, and sequences that have ended leave."""
        records = []
        for turn in step.turns:
            sequence, emitted, drafted = turn.sequence, turn.emitted, len(turn.sequence.draft.tokens)
            phase = "prefill" if turn.prefill else "verify" if drafted else "decode"
            record = RowRecord(sequence.request_id, phase, turn.processed, emitted, drafted, turn.accepted)
            records.append(record)
            sequence.draft = NO_DRAFT
            if sequence.status != RUNNING:  # it has been aborted, or has failed
                continue
            # The last token is in no cache yet: the next pass begins with it.
            sequence.num_computed_tokens = turn.start + turn.count + max(0, emitted - 1)
            self.pool.commit(sequence.request_id, sequence.tokens, sequence.num_computed_tokens)
            if (turn.num_lookahead_tokens or self.reserved) and not (step.ahead or turn.prefill):
                self.pool.trim(sequence.request_id)
            if sequence.ended:
                self.finish(sequence)
        sizes = len(self.running), len(self.waiting), self.pool.num_used, self.pool.num_free
        preempted = [sequence.request_id for sequence in step.preempted]
        record = StepRecord(step.number, records, step.admitted, preempted, self._ended, *sizes)
        self._ended, self.reserved = [], step.ahead
        return record

    def check_integrity(self) -> None:
        """Every sequence is in one queue, and exactly the running ones hold blocks."""
        self.pool.check_integrity()
        waiting, running, most = self.waiting, self.running, self.max_num_seqs
        check(len(running) <= most, f"{len(running)} requests run, at most {most} may")
        check(len({*waiting, *running}) == len(waiting) + len(running), "a sequence is in two queues")
        check(not any(sequence.ended for sequence in waiting + running), "a sequence is in a queue after its end")
        holders, ids = self.pool.tables, {sequence.request_id for sequence in running}
        check(ids == holders.keys(), "the requests with blocks are not those that run")
        for sequence in running:
            computed, kept = sequence.num_computed_tokens, holders[sequence.request_id].length
            check(
                computed == kept < sequence.num_tokens,
                f"request {sequence.request_id!r}: {computed} computed, {kept} kept",
            )
        for sequence in waiting:
            check(sequence.num_computed_tokens == 0, f"request {sequence.request_id!r} waits, but not from its start")


class StaticScheduler(Scheduler):
    """Static batching, for comparison: a batch is filled up, and the next starts when its last sequence has ended."""

    def _open(self, step: Step) -> bool:
        return len(self.running) == len(step.admitted)  # the batch was empty when this step began


POLICIES = {"continuous": Scheduler, "static": StaticScheduler}
