"""What an engine's memory and queues looked like after every step: the frames that the pictures of serving are drawn
from. Nothing is added to the engine. It is stepped from outside, and its books are copied in between."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from random import Random

from minispec.sequence import Sequence
from minispec.serving.blocks import BlockPool, PoolStats
from minispec.serving.engine import Engine
from minispec.serving.scheduler import Scheduler, StaticScheduler, StepRecord

from .memory import ContiguousPool


@dataclass(frozen=True)
class Ask:
    """One request to be served: `new` tokens after `prompt`. It comes just before step `arrival`."""

    prompt: tuple[int, ...]
    new: int
    arrival: int = 0
    limit: int | None = None  # what it says it might generate at most; None: it knows exactly

    @property
    def announced(self) -> int:
        """Slots that it may come to need, as far as it says. (The last token of an output is never processed.)"""
        return len(self.prompt) + max(self.new, self.limit or 0) - 1


@dataclass(frozen=True)
class Holding:
    """What one request holds."""

    blocks: tuple[int, ...]
    tokens: int  # slots of them that hold one, from the first on


@dataclass(frozen=True)
class Frame:
    """A pool at one moment; `record` is what the step before it did, where there was one."""

    num_blocks: int
    block_size: int
    contiguous: bool
    holdings: dict[Hashable, Holding]
    cached: tuple[int, ...]  # free, but still to be found by their hash
    stats: PoolStats
    waiting: tuple[Hashable, ...] = ()  # in their order
    record: StepRecord | None = None

    @property
    def seconds(self) -> float | None:
        """How long the step took; None if no model was there to take any time."""
        parts = self.record.seconds if self.record else {}
        return sum(parts.values()) if parts else None

    def owners(self) -> dict[int, list[Hashable]]:
        """Block → the requests that have it in their tables."""
        found: dict[int, list[Hashable]] = {}
        for id, holding in self.holdings.items():
            for block in holding.blocks:
                found.setdefault(block, []).append(id)
        return found

    @property
    def widest_gap(self) -> int:
        """Slots of the longest run of free blocks: the most that one contiguous piece could have."""
        used, widest, gap = self.owners(), 0, 0
        for block in range(self.num_blocks):
            gap = 0 if block in used else gap + 1
            widest = max(widest, gap)
        return widest * self.block_size


def snapshot(pool: BlockPool, waiting: list[Hashable] = (), record: StepRecord | None = None) -> Frame:
    """The pool as it is now."""
    holdings = {id: Holding(tuple(table.blocks), table.length) for id, table in pool.tables.items()}
    shape = (pool.num_blocks, pool.block_size, isinstance(pool, ContiguousPool))
    return Frame(*shape, holdings, tuple(pool.cached_blocks), pool.stats(), tuple(waiting), record)


class DryEngine:
    """An engine's scheduler and pool without a model: every pass is taken as done, and every token is 0.

    Which request runs when, and which block holds what, does not depend on the tokens: the record is the engine's.
    """

    def __init__(
        self, pool: BlockPool, max_num_seqs=32, max_num_batched_tokens=512, policy="continuous", max_chunk=None
    ):
        kind = {"continuous": Scheduler, "static": StaticScheduler}[policy]
        self.pool, self.scheduler = pool, kind(pool, max_num_seqs, max_num_batched_tokens, max_chunk=max_chunk)

    def add(self, prompt: list[int], max_new_tokens: int, *, request_id: Hashable) -> None:
        self.scheduler.add(Sequence(request_id, list(prompt), max_new_tokens=max_new_tokens))

    def step(self) -> StepRecord:
        step = self.scheduler.schedule()
        for turn in step.turns:
            turn.emit([0] * turn.emits)
        return self.scheduler.update(step)


def watch(engine: Engine | DryEngine, asks: list[Ask]) -> list[Frame]:
    """Serve the requests, 0, 1, 2 … in the order given, and look at the books after every step."""
    if not asks:
        raise ValueError("asks is empty: give at least one request")
    frames: list[Frame] = []
    last = max(ask.arrival for ask in asks)
    while engine.scheduler.ids or len(frames) <= last:
        for id, ask in enumerate(asks):
            if ask.arrival == len(frames):
                engine.add(ask.prompt, ask.new, request_id=id)
        record = engine.step()
        frames.append(snapshot(engine.pool, [sequence.request_id for sequence in engine.scheduler.waiting], record))
    return frames


def example_asks(count: int = 14, longest: int = 96, seed: int = 0) -> list[Ask]:
    """Requests that come one after the other. Every second one begins with the same instructions of 20 tokens; outputs
    end well before the limit that was announced, as most do."""
    random = Random(seed)
    instructions = tuple(range(1, 21))
    asks = []
    for i in range(count):
        own = tuple(random.randrange(100, 2000) for _ in range(random.randint(4, 20)))
        prompt = instructions + own if i % 2 else own
        new = random.randint(6, 44)
        limit = min(longest + 1 - len(prompt), new + random.randint(0, 40))
        asks.append(Ask(prompt, new, arrival=3 * (i // 2), limit=limit))
    return asks


def letter(id: int) -> str:
    """What a request is called in pictures: A … Z, then A1 …"""
    return chr(ord("A") + id % 26) + (str(id // 26) if id >= 26 else "")
