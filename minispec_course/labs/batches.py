"""Static beside continuous batching of the same requests: every step of a real engine, and what each request did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, product

from minispec.load.handle import Model
from minispec.serving.blocks import BlockPool
from minispec.serving.engine import Engine

from .batching import endless
from .frames import Ask, DryEngine, Frame, watch

WAITING, PREFILL, DECODE, PREEMPTED = "waiting", "prefill", "decode", "preempted"
POLICIES = ("static", "continuous")


@dataclass(frozen=True)
class Run:
    """Requests, and every step of the engine that served them `batch` at a time."""

    asks: Sequence[Ask]
    frames: Sequence[Frame]
    batch: int

    @property
    def clock(self) -> list[float]:
        """When each step began, in seconds, and when the last one ended."""
        return [0.0, *accumulate(frame.seconds or 0.0 for frame in self.frames)]

    @property
    def ends(self) -> dict[int, int]:
        """Request → the number of steps that had been taken when it ended."""
        return {id: step + 1 for step, frame in enumerate(self.frames) for id in frame.record.finished}

    @property
    def latencies(self) -> list[int]:
        """Steps from a request's arrival to its end."""
        return [self.ends[id] - ask.arrival for id, ask in enumerate(self.asks)]

    @property
    def seconds(self) -> list[float]:
        """The same in seconds."""
        return [self.clock[self.ends[id]] - self.clock[ask.arrival] for id, ask in enumerate(self.asks)]

    @property
    def preemptions(self) -> int:
        return sum(len(frame.record.preempted) for frame in self.frames)

    @property
    def tokens_processed(self) -> int:
        return sum(row.tokens for frame in self.frames for row in frame.record.rows)


def record(target: Model, asks: Sequence[Ask], batch: int, policy: str, **options) -> Run:
    """Serve the requests with an engine, `batch` at a time. The outputs get the lengths that were asked for."""
    options = dict(enable_prefix_caching=False, max_num_batched_tokens=max(512, batch)) | options
    engine = Engine(endless(target), max_num_seqs=batch, policy=policy, **options)
    if target.device.type == "cuda":  # passes are captured when their shape first comes: not in the steps that we show
        watch(engine, asks)
        engine.take()
    return Run(tuple(asks), watch(engine, asks), batch)


@dataclass(frozen=True)
class Bar:
    """A request in one phase, over steps start … stop − 1."""

    id: int
    phase: str
    start: int
    stop: int
    place: int | None  # in the batch; None: not in it
    tokens: int  # that it processed meanwhile


def bars(run: Run) -> list[Bar]:
    """What every request did, one bar for each phase. The lowest free batch position is taken."""
    found: list[Bar] = []
    places: dict[int, int] = {}
    moments: dict[int, list[tuple]] = {id: [] for id in range(len(run.asks))}  # (phase, place, step, tokens)
    pushed_out: set[int] = set()
    ended: set[int] = set()
    for step, frame in enumerate(run.frames):
        for id in frame.record.preempted:
            del places[id]
            pushed_out.add(id)
        for id in frame.record.admitted:
            places[id] = next(place for place in range(run.batch) if place not in places.values())
            pushed_out.discard(id)
        rows = {row.id: row for row in frame.record.rows}
        for id, ask in enumerate(run.asks):
            if ask.arrival > step or id in ended:
                continue
            if id in rows:
                phase = PREFILL if rows[id].phase == PREFILL else DECODE  # a verify pass decodes, too
            else:
                phase = PREEMPTED if id in pushed_out else WAITING
            moments[id].append((phase, places.get(id), step, rows[id].tokens if id in rows else 0))
        for id in frame.record.finished:
            ended.add(id)
            places.pop(id, None)
    for id, list_of in moments.items():
        for (phase, place), group in groupby(list_of, key=lambda moment: moment[:2]):
            group = list(group)
            found.append(Bar(id, phase, group[0][2], group[-1][2] + 1, place, sum(moment[3] for moment in group)))
    return found


def least_processed(asks: Sequence[Ask]) -> int:
    """Tokens that must be processed at least: all of every output but its last token."""
    return sum(len(ask.prompt) + ask.new - 1 for ask in asks)


NEW = (4, 26, 3, 9, 18, 5, 2, 12, 6, 3)  # a few long answers among many short ones


def few_long_asks(target: Model) -> list[Ask]:
    """Ten requests: six at once, then one every third step."""
    prompt = target.encode("Once upon a time there was a little dog.") if target.tokenizer else list(range(1, 13))
    arrivals = [0] * 6 + [3, 6, 9, 12]
    return [Ask((*prompt, 1 + i), new, arrival) for i, (new, arrival) in enumerate(zip(NEW, arrivals, strict=True))]


def most_steps(asks: Sequence[Ask], batches: Sequence[int], engines: Iterable[Mapping]) -> int:
    """How many steps the longest of all these runs takes. How many is settled without a model."""
    counts = []
    for options, batch, policy in product(engines, batches, POLICIES):
        pool = BlockPool(options["num_blocks"], 4, enable_prefix_caching=False)
        counts.append(len(watch(DryEngine(pool, batch, policy=policy, max_chunk=options.get("max_chunk")), asks)))
    return max(counts)
