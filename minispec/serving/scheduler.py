"""Who runs in the next pass, and with how many tokens. No tensors and no model: only requests and the block pool.

A request is `num_tokens_with_spec − num_computed_tokens` tokens behind: a whole prompt at first, then one token a step,
or one token and its drafts. To the scheduler these are all the same: tokens that share the pass's one budget.

    schedule()              what certainly has to be read: first the running requests that are one token behind, then
                            chunks of prompts already begun, then newcomers, first come first served
                            and what is left of the budget and of the blocks goes to lookahead slots for drafts
    the engine drafts       at most row.draft_length deep and row.num_lookahead_tokens nodes in all, which it puts into
                            request.draft_tokens; a drafter may well propose less
    the engine's pass       reads row.tokens into pool.slots(...); a tree's accepted path is then moved together, to the
                            slots right after the certain tokens
    update(step, results)   accepted and emitted tokens are appended, num_computed_tokens is rolled back to what is
                            verified, full blocks are hashed, surplus blocks given back

The plan comes before the draft because slots must exist before the pass, and how many tokens a drafter finds is known
only then. Guesses are served last: they take neither tokens nor blocks from anybody who has real work.

Want of blocks: a running request that cannot get its next slot pushes out the last one in the order (priority,
arrival), possibly itself. That one loses its blocks and is computed again later (what is still cached is not). Nobody
is ever pushed out by a request behind it, so the first in the order always goes on, and everybody ends.
"""

from __future__ import annotations

import json
from bisect import insort
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass, field
from operator import attrgetter

from .blocks import BlockPool, Copy, require

WAITING, RUNNING, PREEMPTED, FINISHED = "waiting", "running", "preempted", "finished"


@dataclass(eq=False)
class Request:
    """One text to be written, and how far it is."""

    id: Hashable  # a number or a string, if records of it are to become JSON
    prompt: Sequence[int]
    max_new_tokens: int
    priority: int = 0  # smaller goes first; equals go in the order of arrival
    k: int | None = None  # how deep its drafts may be; None: what the scheduler says, 0: no drafts
    arrival: int = 0  # set by the scheduler
    status: str = WAITING
    finish: str | None = None  # "length", "stop", "aborted", or what `finish` was told
    preemptions: int = 0
    num_computed_tokens: int = 0  # their keys and values are verified and in the pool
    draft_tokens: list[int] = field(default_factory=list)  # of this pass: the engine fills it, `update` empties it

    def __post_init__(self):
        self.tokens = list(self.prompt)  # prompt and output

    @property
    def output(self) -> list[int]:
        return self.tokens[len(self.prompt) :]

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_tokens_with_spec(self) -> int:
        return self.num_tokens + len(self.draft_tokens)

    @property
    def behind(self) -> int:
        """Tokens to be read before the next one is known, drafts included."""
        return self.num_tokens_with_spec - self.num_computed_tokens

    @property
    def room(self) -> int:
        """A pass emits at most one token more than it drafts, so deeper drafts than this could not be used."""
        return len(self.prompt) + self.max_new_tokens - self.num_tokens - 1


@dataclass(eq=False)
class Row:
    """One request's part of a step."""

    request: Request
    start: int  # the first position it reads
    count: int  # tokens of the text that it reads
    prefill: bool  # more than one token behind, or just admitted
    draft_length: int = 0  # how deep its draft may be
    num_lookahead_tokens: int = 0  # slots after the text's: as many draft nodes and scratch tokens may ride along

    @property
    def emits(self) -> bool:
        """The pass reaches the end of the text, so its last law is that of the next token."""
        return self.start + self.count == self.request.num_tokens

    @property
    def tokens(self) -> list[int]:
        """What the pass reads, into slots start, start + 1, …"""
        return self.request.tokens[self.start : self.start + self.count] + self.request.draft_tokens


@dataclass(eq=False)
class Step:
    """What `schedule` planned."""

    number: int
    rows: list[Row] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)  # for the tensors, in this order, before the pass
    admitted: list[Hashable] = field(default_factory=list)
    preempted: list[Hashable] = field(default_factory=list)


@dataclass
class Result:
    """What one row's pass gave."""

    tokens: Sequence[int] = ()  # the accepted drafts and the emitted token, up to the one that ends the text
    accepted: int = 0  # drafts that were accepted
    finish: str | None = None  # why the text ends here, e.g. "stop"; max_new_tokens is looked after by the scheduler


@dataclass
class RowRecord:
    id: Hashable
    phase: str  # "prefill", "decode" or "verify"
    tokens: int  # read by the pass, drafts included
    drafted: int
    accepted: int


@dataclass
class StepRecord:
    """One step as plain data, for timelines."""

    step: int
    rows: list[RowRecord]
    admitted: list[Hashable]
    preempted: list[Hashable]
    finished: list[Hashable]  # since the record before
    running: int  # after the step, like all that follow
    waiting: int
    used_blocks: int
    free_blocks: int

    def to_json(self) -> str:
        return json.dumps(asdict(self))


in_order = attrgetter("priority", "arrival")


def draft_length(k: int, running: int, token_budget: int) -> int:
    """How deep `running` requests may draft when `token_budget` tokens are left for all their drafts.

    A pass is nearly free only up to some number of tokens. A full batch has used that up without any draft.
    """
    return min(k, token_budget // running)


class Scheduler:
    """Continuous batching: after every step the finished leave and the next ones join.

    A step reads at most `token_budget` tokens, at most `max_chunk` of them of one prompt, for at most `max_num_seqs`
    requests. `lookahead` is how deep a request drafts that does not say so itself; `extra_slots` (the drafter's) is how
    many more tokens a drafting row may need, for side branches and scratch. `draft_length` decides how deep really.
    """

    def __init__(
        self,
        pool: BlockPool,
        max_num_seqs: int = 32,
        token_budget: int = 512,
        *,
        max_chunk: int | None = None,
        lookahead: int = 0,
        extra_slots: int = 0,
        draft_length: Callable[[int, int, int], int] = draft_length,
    ):
        at_least("max_num_seqs", max_num_seqs, 1)
        at_least("token_budget", token_budget, max_num_seqs, "max_num_seqs: whoever runs reads a token a step")
        at_least("max_chunk", 1 if max_chunk is None else max_chunk, 1)
        at_least("lookahead", lookahead, 0)
        at_least("extra_slots", extra_slots, 0)
        self.pool, self.max_num_seqs, self.token_budget = pool, max_num_seqs, token_budget
        self.max_chunk = token_budget if max_chunk is None else max_chunk
        self.lookahead, self.extra_slots, self.draft_length = lookahead, extra_slots, draft_length
        self.requests: dict[Hashable, Request] = {}  # all that have not ended
        self.waiting: list[Request] = []  # both in the order (priority, arrival)
        self.running: list[Request] = []
        self.arrivals = self.steps = 0
        self._ended: list[Hashable] = []  # since the last record

    # ---- requests come and go --------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Let the request wait for its turn. Refused here if it could never run."""
        if request.id in self.requests:
            raise ValueError(f"request id={request.id!r} is already here: choose another, or wait until it has ended")
        if not request.prompt:
            raise ValueError(f"prompt of request {request.id!r} is empty: give at least one token")
        at_least("max_new_tokens", request.max_new_tokens, 1)
        at_least("k", 0 if request.k is None else request.k, 0)
        longest = len(request.prompt) + request.max_new_tokens - 1  # the last token is never read
        if longest > self.pool.max_tokens:
            raise ValueError(
                f"prompt of {len(request.prompt)} tokens + max_new_tokens={request.max_new_tokens} needs "
                f"{self.pool.blocks_for(longest)} blocks, the pool has {self.pool.blocks_for(self.pool.max_tokens)} "
                "for one request: shorten the request or make the pool larger"
            )
        request.arrival, self.arrivals = self.arrivals, self.arrivals + 1
        request.status = WAITING
        self.requests[request.id] = request
        insort(self.waiting, request, key=in_order)

    def finish(self, id: Hashable, reason: str = "stop") -> Request:
        """The request ends now, wherever it is, and its blocks are free. Also in mid-step: `update` then skips it."""
        if id not in self.requests:
            raise ValueError(f"request id={id!r} is not here: it was never added, or it has ended")
        request = self.requests.pop(id)
        if request.status == RUNNING:
            self.running.remove(request)
            self.pool.free(id)
        else:
            self.waiting.remove(request)
        request.status, request.finish, request.draft_tokens = FINISHED, reason, []
        self._ended.append(id)
        return request

    def abort(self, id: Hashable) -> Request:
        return self.finish(id, "aborted")

    # ---- before the pass -------------------------------------------------------------------------------------------

    def schedule(self) -> Step:
        """Plan the next pass. It has no rows only when there is nothing left to do."""
        step = Step(self.steps)
        self.steps += 1
        self._decode(step)
        budget = self.token_budget - len(step.rows)
        for request in self.running:
            if request.behind > 1:
                budget -= self._prefill(step, request, budget)
        budget = self._admit(step, budget)
        if self.requests and not step.rows:
            raise RuntimeError(
                f"request {self.waiting[0].id!r} cannot run: {self.pool.num_used} of the pool's {self.pool.num_blocks} "
                "blocks are held by somebody outside the scheduler; free them"
            )
        self._speculate(step, budget)
        return step

    def _decode(self, step: Step) -> None:
        """One slot for everybody who is one token behind; the last in the order make room for the first."""
        for request in list(self.running):
            if request.status != RUNNING or request.behind > 1:
                continue
            while (copies := self.pool.allocate(request.id, request.num_tokens)) is None:
                victim = self.running[-1]
                self._preempt(step, victim)
                if victim is request:
                    break
            else:
                step.rows.append(Row(request, request.num_computed_tokens, 1, prefill=False))
                step.copies += copies

    def _prefill(self, step: Step, request: Request, budget: int) -> int:
        """As much of the prompt as the budget allows. Its blocks are there since it was admitted."""
        count = min(request.behind, budget, self.max_chunk)
        if count > 0:
            step.rows.append(Row(request, request.num_computed_tokens, count, prefill=True))
        return count

    def _admit(self, step: Step, budget: int) -> int:
        """Let newcomers in while there are places, budget, and blocks for the whole prompt of the next one. It is never
        overtaken by a shorter one behind it. Whoever was pushed out in this step does not come back in it."""
        while self.waiting and not step.preempted and len(self.running) < self.max_num_seqs and self._open(budget):
            cached = self.pool.start(self.waiting[0].id, self.waiting[0].tokens)
            if cached is None:
                break
            request = self.waiting.pop(0)
            request.status, request.num_computed_tokens = RUNNING, cached
            insort(self.running, request, key=in_order)
            step.admitted.append(request.id)
            budget -= self._prefill(step, request, budget)
        return budget

    def _open(self, budget: int) -> bool:
        return budget > 0

    def _speculate(self, step: Step, budget: int) -> None:
        """Lookahead slots for the rows that decode, as far as tokens and free blocks go round."""
        rows = [row for row in step.rows if not row.prefill]
        share = max(0, budget - len(rows) * self.extra_slots)
        for row in rows:
            request = row.request
            k = self.lookahead if request.k is None else request.k
            depth = min(self.draft_length(k, len(rows), share), request.room, budget - self.extra_slots)
            # Where blocks are short a shorter draft may still fit. Its block was made writable for the certain token.
            while depth > 0 and self.pool.allocate(request.id, request.num_tokens + depth + self.extra_slots) is None:
                depth -= 1
            if depth > 0:
                row.draft_length, row.num_lookahead_tokens = depth, depth + self.extra_slots
                budget -= row.num_lookahead_tokens

    def _preempt(self, step: Step, request: Request) -> None:
        self.running.remove(request)
        self.pool.free(request.id)
        request.status, request.num_computed_tokens = PREEMPTED, 0
        request.preemptions += 1
        insort(self.waiting, request, key=in_order)
        step.preempted.append(request.id)

    # ---- after the pass --------------------------------------------------------------------------------------------

    def update(self, step: Step, results: dict[Hashable, Result]) -> StepRecord:
        """The pass is over: one Result for every row, an empty one where a chunk did not reach the end of its text.

        A row without a result did not run, because something failed: nothing of it counts, and it is planned again.
        Rows of requests that have ended since are skipped.
        """
        rows = [(row, results.get(row.request.id)) for row in step.rows]
        for row, result in rows:
            self._check(row, result)
        records = []
        for row, result in rows:
            request, drafted = row.request, len(row.request.draft_tokens)
            phase = "prefill" if row.prefill else "verify" if drafted else "decode"
            accepted = result.accepted if result else 0
            records.append(RowRecord(request.id, phase, row.count + drafted, drafted, accepted))
            request.draft_tokens = []
            if request.status != RUNNING:
                continue
            if result is not None:
                request.tokens += result.tokens
                # The text and the accepted drafts. The emitted token is in no cache yet: it opens the next pass.
                request.num_computed_tokens = min(row.start + row.count + accepted, request.num_tokens)
                self.pool.commit(request.id, request.tokens, request.num_computed_tokens)
            if not row.prefill:
                self.pool.trim(request.id)
            if result is not None and (result.finish or request.room < 0):
                self.finish(request.id, result.finish or "length")
        record = StepRecord(step.number, records, step.admitted, step.preempted, self._ended, len(self.running),
                            len(self.waiting), self.pool.num_used, self.pool.num_free)  # fmt: skip
        self._ended = []
        return record

    @staticmethod
    def _check(row: Row, result: Result | None) -> None:
        """Refuse a result that cannot come from this row, before anything is changed."""
        id, drafted = row.request.id, len(row.request.draft_tokens)
        if drafted > row.num_lookahead_tokens:
            raise ValueError(f"request {id!r} drafted {drafted} tokens: at most {row.num_lookahead_tokens} have slots")
        if result is None or row.request.status != RUNNING:
            return
        if not 0 <= result.accepted <= min(drafted, row.draft_length):
            raise ValueError(f"accepted={result.accepted} for request {id!r}, which drafted {drafted} tokens")
        most = result.accepted + 1 if row.emits else 0
        if len(result.tokens) > most or (len(result.tokens) < most and not result.finish):
            raise ValueError(f"{len(result.tokens)} tokens for request {id!r}: give {most}; fewer only with a `finish`")

    def check_integrity(self) -> None:
        """Raise IntegrityError if the pool, the queues and the requests do not agree. Between steps only."""
        self.pool.check_integrity()
        require(len(self.running) <= self.max_num_seqs, f"{len(self.running)} run, {self.max_num_seqs} may")
        for queue in (self.waiting, self.running):
            require(queue == sorted(queue, key=in_order), "a queue is out of order")
        everybody = {r.id: r for r in self.waiting + self.running}
        require(everybody == self.requests, "a request is in no queue, or in one after its end")
        require(len(everybody) == len(self.waiting) + len(self.running), "a request is in two queues")
        require({r.id for r in self.running} == self.pool.tables.keys(), "those who hold blocks are not those who run")
        for request in self.running:
            kept = self.pool.tables[request.id].length
            computed = request.num_computed_tokens
            require(computed == kept < request.num_tokens, f"request {request.id!r}: {computed} computed, {kept} kept")
        for request in self.waiting:
            require(request.num_computed_tokens == 0, f"request {request.id!r} waits, but not from its start")


def at_least(name: str, value: int, least: int, because: str = "") -> None:
    if not isinstance(value, int) or value < least:
        raise ValueError(f"{name}={value!r}: give a whole number ≥ {least}" + (f" ({because})" if because else ""))


class StaticScheduler(Scheduler):
    """Static batching, for comparison: a batch is filled up, and the next starts when its last request has ended."""

    def schedule(self) -> Step:
        self._filling = not self.running
        return super().schedule()

    def _open(self, budget: int) -> bool:
        return self._filling
