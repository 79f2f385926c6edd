"""The engine's thread, and the queue between it and the event loop.

Two threads, and one rule for each. The event loop talks to clients and never waits for the engine: a step may take
seconds. The engine's thread steps and never waits for a client: a slow reader's pieces pile up in its own queue, which
max_tokens bounds. What the event loop wants goes into `inbox` and is done between two steps, so that a request whose
client has gone holds its blocks for one step more at most. What the engine has emitted goes back once per step.

What happened is counted for Prometheus, under the names that vLLM gives the same things:

TTFT    time to first token: from the request's arrival to the end of the step that emitted its first token
ITL     inter-token latency: between two steps that emitted tokens of one request; with speculation a step emits several
TPOT    time per output token: of one request, (end − first token) / (tokens − 1)
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import NamedTuple
from uuid import uuid4

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from minispec.output import Output, TokenLogprob
from minispec.sequence import Sequence as Request
from minispec.serving.engine import Engine
from minispec.serving.metrics import StepRecord

from .schemas import ApiError

log = logging.getLogger("minispec_tools.serve")


class Event(NamedTuple):
    """What a step gave one request."""

    text: str
    tokens: int  # of its output so far
    output: Output | None  # once it has ended
    error: Exception | None = None  # why it ended, if that was nobody's wish
    logprobs: list[TokenLogprob] | None = None  # of the tokens since the event before, if they were asked for


@dataclass(eq=False)
class Ticket:
    """One request of the engine on its way through the server: a choice of an answer."""

    index: int  # of the choice
    opening: str  # the prompt as text, if the answer repeats it
    prompt: list[int]
    sequence: Request | None  # None: nothing is generated
    pieces: list[str]  # of the step under way, for the engine's thread
    events: asyncio.Queue  # (ticket, Event) of all choices of an answer, for the event loop
    scores: Iterator[list[TokenLogprob]] | None = None  # of the prompt, chunk by chunk, if they were asked for
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)  # they are there before the first event
    id: str = field(default_factory=lambda: uuid4().hex)
    arrived: float = field(default_factory=time.perf_counter)
    tokens: int = 0  # emitted up to the last step, which was …
    last: float = 0.0  # … at this moment
    first: float = 0.0  # when its first token was there
    told: int = 0  # tokens whose log-probabilities have been handed over


# ---- metrics -------------------------------------------------------------------------------------------------------

SECONDS = [digit * 10.0**power for power in range(-4, 2) for digit in (1, 2, 5)] + [100.0, 200.0]  # 0.1 ms to 200 s
GAUGES = {
    "num_requests_running": "requests in the batch",
    "num_requests_waiting": "requests that wait to be admitted",
    "kv_cache_usage_perc": "part of the blocks that requests hold, 0 to 1",
    "spec_decode_draft_size": "tokens that a draft may have now, as the controller chooses (0: no drafts)",
    "spec_decode_accepted_per_draft": "tokens accepted of the largest drafts, on average over the last ones",
}
COUNTERS = {  # prometheus_client adds _total
    "prompt_tokens": "tokens of prompts whose request has emitted its first token",
    "generation_tokens": "tokens emitted",
    "num_preemptions": "requests that had to give their blocks back",
    "prefix_cache_queries": "tokens of admitted requests that were looked up in the prefix cache",
    "prefix_cache_hits": "those of them that were found",
    "spec_decode_num_drafts": "drafts that were verified",
    "spec_decode_num_draft_tokens": "their tokens",
    "spec_decode_num_accepted_tokens": "the tokens of them that were accepted",
}
HISTOGRAMS = {
    "time_to_first_token_seconds": "from arrival to the first token",
    "inter_token_latency_seconds": "between two steps that emitted tokens of a request",
    "request_time_per_output_token_seconds": "of a request, after its first token",
    "e2e_request_latency_seconds": "from arrival to the end",
}


class Metrics:
    """Counters of one server. The engine's thread counts, and any thread may read."""

    def __init__(self, model: str):
        self.registry, self.prefix_hits = CollectorRegistry(), 0

        def make(kind, name: str, help: str, *labels: str, **options):
            metric = kind(f"vllm:{name}", help, ["model_name", *labels], registry=self.registry, **options)
            return metric if labels else metric.labels(model)

        self.model = model
        self.of = {name: make(Gauge, name, help) for name, help in GAUGES.items()}
        self.of |= {name: make(Counter, name, help) for name, help in COUNTERS.items()}
        self.of |= {name: make(Histogram, name, help, buckets=SECONDS) for name, help in HISTOGRAMS.items()}
        accepted = "draft tokens accepted, by their position in the draft"
        self.accepted_at = make(Counter, "spec_decode_num_accepted_tokens_per_pos", accepted, "position")
        self.success = make(Counter, "request_success", "requests that have ended", "finished_reason")

    def count_tokens(self, ticket: Ticket, tokens: int, now: float) -> None:
        """A request has so many tokens now."""
        if tokens > ticket.tokens:
            if ticket.tokens:
                self.of["inter_token_latency_seconds"].observe(now - ticket.last)
            else:
                ticket.first = now
                self.of["time_to_first_token_seconds"].observe(now - ticket.arrived)
                self.of["prompt_tokens"].inc(len(ticket.prompt))
            self.of["generation_tokens"].inc(tokens - ticket.tokens)
            ticket.tokens, ticket.last = tokens, now

    def count_end(self, ticket: Ticket, output: Output, now: float) -> None:
        self.success.labels(self.model, output.finish_reason).inc()
        if output.finish_reason in ("stop", "length"):
            self.of["e2e_request_latency_seconds"].observe(now - ticket.arrived)
            if ticket.tokens > 1:
                per_token = (ticket.last - ticket.first) / (ticket.tokens - 1)
                self.of["request_time_per_output_token_seconds"].observe(per_token)

    def count_step(self, engine: Engine, record: StepRecord | None, admitted: Sequence[Ticket]) -> None:
        """The state between two steps; `record` is of the step before, if there was one since the last time."""
        self.of["num_requests_running"].set(len(engine.scheduler.running))
        self.of["num_requests_waiting"].set(len(engine.scheduler.waiting))
        self.of["kv_cache_usage_perc"].set(engine.pool.num_used / engine.pool.num_blocks)
        if controller := engine.controller:
            self.of["spec_decode_draft_size"].set(controller.size)
            self.of["spec_decode_accepted_per_draft"].set(controller.gain[controller.sizes[-1]])
        if record is None:
            return
        self.of["num_preemptions"].inc(len(record.preempted))
        hits, self.prefix_hits = self.prefix_hits, engine.pool.counts["prefix_tokens"]
        self.of["prefix_cache_hits"].inc(self.prefix_hits - hits)
        if engine.pool.enable_prefix_caching:
            self.of["prefix_cache_queries"].inc(sum(len(ticket.prompt) + ticket.tokens for ticket in admitted))
        for row in record.rows:
            if row.drafted:
                self.of["spec_decode_num_drafts"].inc()
                self.of["spec_decode_num_draft_tokens"].inc(row.drafted)
                self.of["spec_decode_num_accepted_tokens"].inc(row.accepted)
                for position in range(row.accepted):
                    self.accepted_at.labels(self.model, position).inc()

    def render(self) -> bytes:
        return generate_latest(self.registry)


# ---- the engine's thread -------------------------------------------------------------------------------------------


class Service:
    """An engine that a thread of its own steps. At most `max_waiting` requests wait beside those that run."""

    def __init__(self, engine: Engine, metrics: Metrics, max_waiting: int = 512):
        self.engine, self.metrics = engine, metrics
        self.most = engine.scheduler.max_num_seqs + max_waiting
        self.longest = min(engine.target.config.max_length, engine.pool.max_tokens)  # prompt and output of a request
        self.open: set[Ticket] = set()  # neither ended nor refused; the event loop's
        self.tickets: dict[str, Ticket] = {}  # the same by id; the engine thread's
        self.scoring: list[Ticket] = []  # their prompts first; the engine thread's
        self.inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.draining = self.stopped = False
        self.thread = Thread(target=self._run, name="minispec-engine", daemon=True)

    # ---- called in the event loop ----------------------------------------------------------------------------------

    def start(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.thread.start()

    def require_life(self) -> None:
        if self.draining or not self.thread.is_alive():
            what = "the server is shutting down" if self.draining else "the engine's thread has ended"
            raise ApiError(503, f"{what}: ask another one", "unavailable")

    def require_room(self, choices: int = 1) -> None:
        """Refuse a request now rather than let it wait for ever."""
        self.require_life()
        if len(self.open) + choices > self.most:
            full = f"{len(self.open)} requests are running or waiting, and {self.most} may: try again later"
            raise ApiError(429, full, "queue_full", headers={"Retry-After": "1"})

    def submit(self, tickets: list[Ticket]) -> None:
        self.require_room(len(tickets))
        self.open.update(tickets)
        for ticket in tickets:
            self.inbox.put(partial(self._add, ticket))

    def abort(self, tickets: Iterable[Ticket]) -> None:
        """Nobody waits for them any more. If one has ended, nothing happens."""
        for ticket in self.open.intersection(tickets):
            self.inbox.put(partial(self._abort, ticket))

    async def drain(self, seconds: float) -> None:
        """Take nothing more, let open requests end within a deadline, and abort the rest."""
        self.draining, deadline = True, time.perf_counter() + seconds
        while self.open and time.perf_counter() < deadline:
            await asyncio.sleep(0.02)
        self.abort(self.open)
        while self.open and self.thread.is_alive():
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        await self.drain(0)
        self.inbox.put(self._stop)
        await asyncio.to_thread(self.thread.join)

    def _deliver(self, batch: Iterable[tuple[Ticket, Event]]) -> None:
        for ticket, event in batch:
            ticket.events.put_nowait((ticket, event))
            if event.output or event.error:
                self.open.discard(ticket)

    # ---- run by the engine's thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        """What the event loop has asked for comes first; with no request to serve, wait until it asks. Between two
        steps, one chunk of one prompt is scored."""
        while not self.stopped:
            if not (self.scoring or self.engine.sequences) or not self.inbox.empty():
                self.inbox.get()()
                continue
            if self.scoring:
                self._score(self.scoring[0])
            if self.engine.sequences:
                self._step()

    def _step(self) -> None:
        try:
            self._hand_over(self.engine.step())
        except Exception as error:  # no fault of one request: the engine ends those by itself
            log.exception("a step failed: all open requests end")
            for id in list(self.engine.sequences):
                self.engine.abort(id)
            self._hand_over(None, error)

    def _add(self, ticket: Ticket) -> None:
        if ticket.scores is not None:
            self.scoring.append(ticket)
        elif ticket.sequence is None:
            self._tell(ticket, output=Output([], "", len(ticket.prompt), 0.0, "length"))
        else:
            try:
                self.engine.enqueue(ticket.sequence, ticket.id)
                self.tickets[ticket.id] = ticket
            except Exception as error:
                self._tell(ticket, error=error)

    def _score(self, ticket: Ticket) -> None:
        """One more chunk of its prompt; after the last one the engine gets it."""
        try:
            if chunk := next(ticket.scores, None):
                ticket.prompt_logprobs += chunk
                return
        except Exception as error:
            self._tell(ticket, error=error)
        else:
            ticket.scores = None
            self._add(ticket)
        self.scoring.remove(ticket)

    def _tell(self, ticket: Ticket, output: Output | None = None, error: Exception | None = None) -> None:
        """How a request ends of which the engine knows nothing."""
        self.loop.call_soon_threadsafe(self._deliver, [(ticket, Event("", 0, output, error))])

    def _abort(self, ticket: Ticket) -> None:
        if ticket.id in self.engine.sequences:
            self.engine.abort(ticket.id)
            self._hand_over(None)
        elif ticket in self.scoring:
            self.scoring.remove(ticket)
            self._tell(ticket, output=Output([], "", len(ticket.prompt), 0.0, "abort"))

    def _stop(self) -> None:
        self.stopped = True
        self.engine.shutdown()

    def _hand_over(self, record: StepRecord | None, error: Exception | None = None) -> None:
        """To each request what it got since the last time; the event loop is woken once for all of them."""
        now, outputs, batch = time.perf_counter(), self.engine.take(), []
        running, admitted = ([row.id for row in record.rows], record.admitted) if record else ([], [])
        self.metrics.count_step(self.engine, record, [self.tickets[id] for id in admitted])
        for ticket in map(self.tickets.get, dict.fromkeys([*running, *outputs])):
            output = outputs.get(ticket.id)
            sequence = self.engine.sequences.get(ticket.id)  # until its output is there
            tokens = len(output.tokens) if output else sequence.num_tokens - sequence.prompt_length
            logprobs = output.logprobs if output else sequence.writer.logprobs
            self.metrics.count_tokens(ticket, tokens, now)
            if ticket.pieces or output:
                new = None if logprobs is None else logprobs[ticket.told : tokens]
                event = Event("".join(ticket.pieces), tokens, output, error or (output and output.error), new)
                ticket.told = tokens
                batch.append((ticket, event))
                ticket.pieces.clear()
            if output:
                del self.tickets[ticket.id]
                self.metrics.count_end(ticket, output, now)
        if batch:
            self.loop.call_soon_threadsafe(self._deliver, batch)
