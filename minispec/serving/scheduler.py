"""Which requests take part in the next forward pass, and with how many tokens. No tensors here, and no model.

A request has `num_tokens_with_spec − num_computed_tokens` new tokens to process: a whole prompt at first, then one
token per step, or one token and its draft. To the scheduler these are all the same: tokens that share one budget,
`max_num_batched_tokens` (continuous batching: Orca, Yu et al., 2022; chunked prefill: Sarathi, arXiv:2308.16369).

The plan comes before the draft because slots must exist before the pass, and only the drafter knows how many it fills.
Drafts are served last: they take neither tokens nor blocks from certain work.

When blocks run out, a running request that cannot get its next slot preempts the last one in the order (priority,
arrival), possibly itself. The preempted request loses its blocks and is computed again later, except for what is still
cached. A request is never preempted by one after it, so the first in the order always advances, and all of them end,
unless requests of higher priority keep arriving. (`check` refuses what does not fit into the pool alone.)
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cache
from operator import attrgetter

from .blocks import BlockPool, at_least, require
from .metrics import RowRecord, StepRecord

WAITING, RUNNING, PREEMPTED, FINISHED = "waiting", "running", "preempted", "finished"


@dataclass(eq=False)
class Request:
    """One sequence to be generated, and how far it is."""

    id: Hashable  # a number or a string, if records of it are to become JSON
    prompt: Sequence[int]
    max_new_tokens: int
    priority: int = 0  # smaller goes first; equals go in the order of arrival
    k: int | None = None  # how deep its drafts may be; None: what the scheduler says, 0: no drafts
    arrival: int = 0  # set by the scheduler
    status: str = WAITING
    finish: str | None = None  # "length", "stop", "abort", or what `finish` was told
    preemptions: int = 0
    num_computed_tokens: int = 0  # their keys and values are verified and in the pool
    draft_tokens: list[int] = field(default_factory=list)  # of this pass: the engine fills it, `update` empties it
    block_hashes: list[bytes] = field(default_factory=list)  # computed once, however long it waits for blocks

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
        """Tokens to be processed before the next one is known, drafts included."""
        return self.num_tokens_with_spec - self.num_computed_tokens

    @property
    def room(self) -> int:
        """A pass emits at most one token more than it drafts, so deeper drafts than this could not be used."""
        return len(self.prompt) + self.max_new_tokens - len(self.tokens) - 1


@dataclass(eq=False)
class ScheduledRequest:
    """One request's part of a step."""

    request: Request
    start: int  # the first position it processes
    count: int  # certain tokens: of the prompt, or the last one emitted
    prefill: bool  # more than one token to process, or just admitted
    draft_length: int = 0  # how deep its draft may be
    max_nodes: int = 0  # how many tokens its draft may have, side branches of a tree included
    share: int = 0  # the most that it could have been, if drafts of this depth had as many
    num_lookahead_tokens: int = 0  # slots after the certain tokens, for draft nodes and scratch tokens

    def __post_init__(self):
        # Whether the pass reaches the sequence's last token, and so yields the distribution of the next.
        self.emits = self.start + self.count == len(self.request.tokens)

    @property
    def tokens(self) -> list[int]:
        """What the pass processes, into slots start, start + 1, …"""
        return self.request.tokens[self.start : self.start + self.count] + self.request.draft_tokens


@dataclass(eq=False)
class Step:
    """What `schedule` planned."""

    number: int
    budget: int  # tokens that are left to be scheduled
    scheduled: list[ScheduledRequest] = field(default_factory=list)
    admitted: list[Hashable] = field(default_factory=list)
    preempted: list[Hashable] = field(default_factory=list)
    ahead: bool = False  # slots are reserved for the cycle after this one, too

    def add(self, request: Request, count: int, prefill: bool) -> None:
        self.scheduled.append(ScheduledRequest(request, request.num_computed_tokens, count, prefill))
        self.budget -= count


@dataclass
class Result:
    """What a pass gave one request."""

    tokens: Sequence[int] = ()  # the accepted drafts and the emitted token, up to the one that ends the output
    accepted: int = 0  # drafts that were accepted
    finish: str | None = None  # why the output ends here, e.g. "stop"; the scheduler itself counts max_new_tokens


in_order = attrgetter("priority", "arrival")


def draft_share(wanted: int, sequences: int, budget: int, scratch: int = 0) -> int:
    """How many nodes each of `sequences` drafts may have, when `budget` tokens are left for all of them and for the
    scratch tokens of each: an equal share, and at least one node. A pass is nearly free only up to some number of
    tokens, and a full batch has used these up without any draft."""
    return min(wanted, max(1, budget // sequences - scratch))


class Scheduler:
    """Continuous batching: after every step finished requests leave and the next ones join.

    A step processes at most `max_num_batched_tokens` tokens, at most `max_chunk` of them of one prompt, for at most
    `max_num_seqs` requests. `lookahead` is how deep a request drafts that does not say so itself. Drafts share
    `draft_budget` tokens per step (None: what is left of the step's) in equal shares. `max_tree_nodes(depth)` is how
    many nodes a draft of that depth can have, `scratch_slots` how many tokens it brings along that are never accepted.
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
    ):
        self.pool, self.max_num_seqs, self.max_num_batched_tokens = pool, max_num_seqs, max_num_batched_tokens
        self.max_chunk = max_num_batched_tokens if max_chunk is None else max_chunk
        self.draft_budget = max_num_batched_tokens if draft_budget is None else draft_budget
        self.lookahead, self.max_tree_nodes, self.scratch_slots = lookahead, cache(max_tree_nodes), scratch_slots
        at_least("max_num_seqs", max_num_seqs, 1)
        every = " (max_num_seqs: every running request processes a token per step)"
        at_least("max_num_batched_tokens", max_num_batched_tokens, max_num_seqs, every)
        for name, least in (("max_chunk", 1), ("lookahead", 0), ("draft_budget", 0), ("scratch_slots", 0)):
            at_least(name, getattr(self, name), least)
        self.requests: dict[Hashable, Request] = {}  # all that have not ended
        self.waiting: list[Request] = []  # both in the order (priority, arrival)
        self.running: list[Request] = []
        self.arrivals = self.steps = 0
        self.reserved = False  # slots are reserved for a whole cycle ahead
        self._ended: list[Hashable] = []  # since the last record

    # ---- requests come and go --------------------------------------------------------------------------------------

    def check(self, request: Request) -> None:
        """Refuse a request that could never run."""
        if request.id in self.requests:
            raise ValueError(f"request id={request.id!r} is already here: choose another, or wait until it has ended")
        if not request.prompt:
            raise ValueError(f"prompt of request {request.id!r} is empty: give at least one token")
        at_least("max_new_tokens", request.max_new_tokens, 1)
        at_least("k", 0 if request.k is None else request.k, 0)
        longest = len(request.prompt) + request.max_new_tokens - 1  # the last token is never processed
        if longest > self.pool.max_tokens:
            needed, there = self.pool.blocks_for(longest), self.pool.blocks_for(self.pool.max_tokens)
            raise ValueError(
                f"prompt of {len(request.prompt)} tokens + max_new_tokens={request.max_new_tokens} needs {needed} "
                f"blocks, the pool has {there} for one request: shorten the request or make the pool larger"
            )

    def add(self, request: Request) -> None:
        self.check(request)
        request.status, request.arrival = WAITING, self.arrivals
        self.arrivals += 1
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
        return self.finish(id, "abort")

    # ---- before the pass -------------------------------------------------------------------------------------------

    def schedule(self) -> Step:
        """Plan the next pass: the requests that decode, one token each, then chunks of prompts already begun, then new
        requests; lookahead slots for drafts get what is left of the budget and of the blocks. The engine puts drafts
        into `request.draft_tokens`, and its pass processes `scheduled.tokens`."""
        step = Step(self.steps, self.max_num_batched_tokens)
        self.steps += 1
        if self.reserved and not self._others_find_blocks():
            for request in self.running:
                self.pool.trim(request.id)
        behind = [(request, request.behind) for request in self.running]
        self._decode(step, [request for request, tokens in behind if tokens == 1])
        for request in [request for request, tokens in behind if tokens > 1 and request.status == RUNNING]:
            self._prefill(step, request)
        self._admit(step)
        if self.requests and not step.scheduled:
            held = f"{self.pool.num_used} of the pool's {self.pool.num_blocks} blocks are held outside the scheduler"
            raise RuntimeError(f"request {self.waiting[0].id!r} cannot run: {held}; free them")
        self._speculate(step)
        return step

    def _decode(self, step: Step, decoding: Sequence[Request]) -> None:
        """One slot for every request that decodes; the last in the order make room for the first."""
        for request in decoding:
            if request.status != RUNNING:  # preempted by one before it
                continue
            while not self._reserve(request, request.num_tokens):
                victim = self.running[-1]
                self._preempt(step, victim)
                if victim is request:
                    break
            else:
                step.add(request, 1, prefill=False)

    def _prefill(self, step: Step, request: Request) -> None:
        """As much of the prompt as the budget allows. Its blocks are there since it was admitted."""
        count = min(request.behind, step.budget, self.max_chunk)
        if count > 0:
            step.add(request, count, prefill=True)

    def _admit(self, step: Step) -> None:
        """Admit new requests while the batch has room, the step tokens, and the pool blocks for the next one's whole
        prompt. A shorter one never overtakes it, and what was preempted in this step does not return in it."""
        while self.waiting and not step.preempted and len(self.running) < self.max_num_seqs and self._open(step):
            request = self.waiting[0]
            cached = self.pool.start(request.id, request.tokens, hashes=request.block_hashes)
            if cached is None:
                break
            self.waiting.pop(0)
            request.status, request.num_computed_tokens = RUNNING, cached
            insort(self.running, request, key=in_order)
            step.admitted.append(request.id)
            self._prefill(step, request)

    def _open(self, step: Step) -> bool:
        return step.budget > 0

    def _speculate(self, step: Step) -> None:
        """Lookahead slots for the requests that decode: fewer nodes each as the batch fills, then fewer requests."""
        willing = [s for s in step.scheduled if not s.prefill and s.request.k != 0]
        depths = [min(self._depth(s.request), s.request.room) for s in willing]
        drafting = [(scheduled, depth) for scheduled, depth in zip(willing, depths, strict=True) if depth > 0]
        share = left = min(step.budget, self.draft_budget)
        scratch = self.scratch_slots
        for scheduled, depth in drafting if left > scratch else ():
            nodes = draft_share(self.max_tree_nodes(depth), len(drafting), share, scratch)
            nodes, request = min(nodes, left - scratch), scheduled.request
            # Where blocks are short a smaller draft may still fit.
            while nodes > 0 and not self._reserve(request, request.num_tokens + nodes + scratch):
                nodes -= 1
            if nodes > 0:
                scheduled.draft_length, scheduled.max_nodes = min(depth, nodes), nodes
                scheduled.share = max(1, share // len(drafting) - scratch)
                scheduled.num_lookahead_tokens = nodes + scratch
                left -= nodes + scratch

    def _reserve(self, request: Request, total: int) -> bool:
        """Slots for so many tokens, most of which are often there; False: there are too few blocks."""
        return total <= self.pool.tables[request.id].reserved or self.pool.allocate(request.id, total) is not None

    def _depth(self, request: Request) -> int:
        return self.lookahead if request.k is None else request.k

    def reserve_ahead(self, step: Step) -> bool:
        """Whether the next step will decode these requests again, unless one of them stops or is aborted: each has a
        token in this one, and room for another. Its slots are reserved, so the device may go on before the host knows.

        With drafts that is a whole cycle, with slots for the case that all of this one's are accepted. Those who end
        may be missing then. Blocks that others could have are not kept from them."""
        rows, drafts = step.scheduled, any(s.num_lookahead_tokens for s in step.scheduled)
        if not rows or any(s.prefill for s in rows) or (drafts and len(rows) < len(self.running)):
            return False
        if (max if drafts else min)(s.request.room for s in rows) < 1:
            return False
        for s in rows:
            certain = len(s.request.tokens) + min(s.draft_length + 1, s.request.room)
            nodes = min(s.share, self.max_tree_nodes(self._depth(s.request))) if s.share else 0
            if not self._reserve(s.request, certain + nodes):
                return False
        step.ahead = drafts and self._others_find_blocks()
        return step.ahead or not drafts

    def _others_find_blocks(self) -> bool:
        """Whether all who may be admitted next find blocks beside those that are reserved."""
        next_ones = self.waiting[: self.max_num_seqs - len(self.running)]
        return sum(self.pool.blocks_for(len(request.tokens)) for request in next_ones) <= self.pool.num_free

    def _preempt(self, step: Step, request: Request) -> None:
        self.running.remove(request)
        self.pool.free(request.id)
        request.status, request.num_computed_tokens = PREEMPTED, 0
        request.preemptions += 1
        insort(self.waiting, request, key=in_order)
        step.preempted.append(request.id)

    # ---- after the pass --------------------------------------------------------------------------------------------

    def update(self, step: Step, results: dict[Hashable, Result]) -> StepRecord:
        """The pass is over: a Result for every scheduled request, an empty one where a chunk did not reach its end. New
        tokens are appended, num_computed_tokens is rolled back to what is verified, surplus blocks are given back.

        What has no result did not run, because something failed: nothing of it counts, and it is planned again."""
        pairs = [(scheduled, results.get(scheduled.request.id)) for scheduled in step.scheduled]
        for scheduled, result in pairs:
            self._check(scheduled, result)
        records = []
        for scheduled, result in pairs:
            request, drafted = scheduled.request, len(scheduled.request.draft_tokens)
            phase = "prefill" if scheduled.prefill else "verify" if drafted else "decode"
            accepted = result.accepted if result else 0
            records.append(RowRecord(request.id, phase, scheduled.count + drafted, drafted, accepted))
            if drafted:
                request.draft_tokens = []
            if request.status != RUNNING:  # it has ended since
                continue
            if result is not None:
                request.tokens += result.tokens
                # The emitted token is in no cache yet: the next pass begins with it.
                request.num_computed_tokens = min(scheduled.start + scheduled.count + accepted, request.num_tokens)
                self.pool.commit(request.id, request.tokens, request.num_computed_tokens)
            if (scheduled.num_lookahead_tokens or self.reserved) and not (step.ahead or scheduled.prefill):
                self.pool.trim(request.id)
            if result is not None and (result.finish or request.room < 0):
                self.finish(request.id, result.finish or "length")
        sizes = len(self.running), len(self.waiting), self.pool.num_used, self.pool.num_free
        record = StepRecord(step.number, records, step.admitted, step.preempted, self._ended, *sizes)
        self._ended, self.reserved = [], step.ahead
        return record

    @staticmethod
    def _check(scheduled: ScheduledRequest, result: Result | None) -> None:
        """Refuse a result that cannot come from this plan, before anything is changed."""
        request = scheduled.request
        id, drafted = request.id, len(request.draft_tokens)
        if drafted > scheduled.max_nodes:
            raise ValueError(f"request {id!r} drafted {drafted} tokens: at most {scheduled.max_nodes} have slots")
        if result is None or request.status != RUNNING:
            return
        if not 0 <= result.accepted <= min(drafted, scheduled.draft_length):
            raise ValueError(f"accepted={result.accepted} for request {id!r}, which drafted {drafted} tokens")
        most = result.accepted + 1 if scheduled.emits else 0
        if len(result.tokens) > most or (len(result.tokens) < most and not result.finish):
            raise ValueError(f"{len(result.tokens)} tokens for request {id!r}: give {most}; fewer only with a `finish`")

    def check_integrity(self) -> None:
        """Every request is in one queue, in its order, and exactly the running ones hold blocks."""
        self.pool.check_integrity()
        waiting, running, most = self.waiting, self.running, self.max_num_seqs
        require(len(running) <= most, f"{len(running)} requests run, at most {most} may")
        for queue in (waiting, running):
            require(queue == sorted(queue, key=in_order), "a queue is unordered")
        everybody = {request.id: request for request in waiting + running}
        require(everybody == self.requests, "a request is in no queue, or in one after its end")
        require(len(everybody) == len(waiting) + len(running), "a request is in two queues")
        holders, ids = self.pool.tables, {request.id for request in running}
        require(ids == holders.keys(), "the requests with blocks are not those that run")
        for request in running:
            computed, kept = request.num_computed_tokens, holders[request.id].length
            require(computed == kept < request.num_tokens, f"request {request.id!r}: {computed} computed, {kept} kept")
        for request in waiting:
            require(request.num_computed_tokens == 0, f"request {request.id!r} waits, but not from its start")


class StaticScheduler(Scheduler):
    """Static batching, for comparison: a batch is filled up, and the next starts when its last request has ended."""

    def _open(self, step: Step) -> bool:
        return len(self.running) == len(step.admitted)  # the batch was empty when this step began


POLICIES = {"continuous": Scheduler, "static": StaticScheduler}
