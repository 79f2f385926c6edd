"""The engine's thread, and the queue between it and the event loop.

Two threads, and one rule for each. The event loop talks to clients and never waits for the engine: a step may take
seconds. The engine's thread steps and never waits for a client: a slow reader's pieces pile up in its own queue, which
max_tokens bounds. What the event loop wants goes into `inbox` and is done between two steps, so that a request whose
client has gone holds its blocks for one step more at most. What the engine has emitted goes back once per step.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from queue import SimpleQueue
from threading import Thread

from ..serving.engine import Engine
from ..serving.metrics import StepRecord
from .metrics import Metrics
from .schemas import ApiError
from .ticket import Event, Ticket

log = logging.getLogger("minispec.server")


class Service:
    """An engine that a thread of its own steps. At most `max_waiting` requests wait beside those that run."""

    def __init__(self, engine: Engine, metrics: Metrics, max_waiting: int = 512):
        self.engine, self.metrics = engine, metrics
        self.most = engine.scheduler.max_num_seqs + max_waiting
        self.longest = min(engine.target.config.max_length, engine.pool.max_tokens)  # prompt and output of a request
        self.open: set[Ticket] = set()  # neither ended nor refused; the event loop's
        self.tickets: dict[str, Ticket] = {}  # the same by id; the engine thread's
        self.inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.draining = self.stopped = False
        self.thread = Thread(target=self._run, name="minispec-engine", daemon=True)

    # ---- called in the event loop ----------------------------------------------------------------------------------

    def start(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.thread.start()

    def require_room(self) -> None:
        """Refuse a request now rather than let it wait for ever."""
        if self.draining:
            raise ApiError(503, "the server is shutting down: ask another one", "unavailable")
        if len(self.open) >= self.most:
            full = f"{len(self.open)} requests are running or waiting, which is all that may: try again later"
            raise ApiError(429, full, "queue_full", headers={"Retry-After": "1"})

    def submit(self, ticket: Ticket) -> None:
        self.require_room()
        self.open.add(ticket)
        self.inbox.put(partial(self._add, ticket))

    def abort(self, ticket: Ticket) -> None:
        """Nobody waits for it any more. If it has ended, nothing happens."""
        if ticket in self.open:
            self.inbox.put(partial(self._abort, ticket))

    async def drain(self, seconds: float) -> None:
        """Take nothing more, let open requests end within a deadline, and abort the rest."""
        self.draining, deadline = True, time.perf_counter() + seconds
        while self.open and time.perf_counter() < deadline:
            await asyncio.sleep(0.02)
        for ticket in self.open:
            self.abort(ticket)
        while self.open and self.thread.is_alive():
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        await self.drain(0)
        self.inbox.put(self._stop)
        await asyncio.to_thread(self.thread.join)

    def _deliver(self, batch: Iterable[tuple[Ticket, Event]]) -> None:
        for ticket, event in batch:
            ticket.events.put_nowait(event)
            if event.output or event.error:
                self.open.discard(ticket)

    # ---- run by the engine's thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self.stopped:
            self._listen()
            if self.engine.jobs:
                self._step()

    def _listen(self) -> None:
        """Do what the event loop has asked for; with no request to serve, wait until it asks."""
        wait = not self.engine.jobs
        while wait or not self.inbox.empty():
            wait = False
            self.inbox.get()()

    def _step(self) -> None:
        try:
            self._hand_over(self.engine.step())
        except Exception as error:  # no fault of one request: the engine ends those by itself
            log.exception("a step failed: all open requests end")
            for id in list(self.engine.jobs):
                self.engine.abort(id)
            self._hand_over(None, error)

    def _add(self, ticket: Ticket) -> None:
        try:
            stream = ticket.pieces.append if ticket.stream else None
            self.engine.add(ticket.prompt, params=ticket.params, request_id=ticket.id, stream=stream)
            self.tickets[ticket.id] = ticket
        except Exception as error:
            self.loop.call_soon_threadsafe(self._deliver, [(ticket, Event("", 0, None, error))])

    def _abort(self, ticket: Ticket) -> None:
        if ticket.id in self.engine.jobs:
            self.engine.abort(ticket.id)
            self._hand_over(None)

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
            written = output or self.engine.jobs[ticket.id].writer
            tokens, logprobs = len(written.tokens), written.logprobs
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
