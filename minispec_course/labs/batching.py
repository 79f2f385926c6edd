"""Static and continuous batching of the same requests: every step, and which way is faster.

Nothing is added to the engine. It is stepped from outside, and its books are copied in between: frames, which the
pictures of serving are drawn from. They need no model (memory.DryEngine).
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby, product
from pathlib import Path
from random import Random
from statistics import median
from typing import NamedTuple

from tqdm import tqdm

from minispec.drafters import Drafter, name_of
from minispec.generate import generate
from minispec.load.model import Model
from minispec.measure import Timing, machine, median_time
from minispec.serving.blocks import BlockPool, PoolStats
from minispec.serving.engine import Engine
from minispec.serving.scheduler import StepRecord

from .memory import ContiguousPool, DryEngine

# ---- every step of an engine ----------------------------------------------------------------------------------------


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


class Holding(NamedTuple):
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


def snapshot(pool: BlockPool, waiting: Sequence[Hashable] = (), record: StepRecord | None = None) -> Frame:
    """The pool as it is now."""
    holdings = {id: Holding(tuple(table.blocks), table.length) for id, table in pool.tables.items()}
    shape = (pool.num_blocks, pool.block_size, isinstance(pool, ContiguousPool))
    return Frame(*shape, holdings, tuple(pool.cached_blocks), pool.stats(), tuple(waiting), record)


def watch(engine: Engine | DryEngine, asks: Sequence[Ask]) -> list[Frame]:
    """Serve the requests, 0, 1, 2 … in the order given, and look at the books after every step."""
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


# ---- what each request did ------------------------------------------------------------------------------------------

WAITING, PREFILL, DECODE, PREEMPTED = "waiting", "prefill", "decode", "preempted"
POLICIES = ("static", "continuous")


@dataclass(frozen=True)
class Run:
    """Requests, and every step of the engine that served them `batch` at a time."""

    asks: Sequence[Ask]
    frames: Sequence[Frame]
    batch: int

    @property
    def ends(self) -> dict[int, int]:
        """Request → the number of steps that had been taken when it ended."""
        return {id: step + 1 for step, frame in enumerate(self.frames) for id in frame.record.finished}

    @property
    def latencies(self) -> list[int]:
        """Steps from a request's arrival to its end."""
        return [self.ends[id] - ask.arrival for id, ask in enumerate(self.asks)]

    @property
    def preemptions(self) -> int:
        return sum(len(frame.record.preempted) for frame in self.frames)

    @property
    def tokens_processed(self) -> int:
        return sum(row.tokens for frame in self.frames for row in frame.record.rows)


def record(asks: Sequence[Ask], batch: int, policy: str, num_blocks: int, max_chunk: int | None = None) -> Run:
    """Serve the requests, `batch` at a time. How many steps that takes is settled without a model."""
    pool = BlockPool(num_blocks, 4, enable_prefix_caching=False)
    return Run(tuple(asks), watch(DryEngine(pool, batch, policy=policy, max_chunk=max_chunk), asks), batch)


class Bar(NamedTuple):
    """A request in one phase, over steps start … stop − 1."""

    id: int
    phase: str
    start: int
    stop: int
    place: int | None  # in the batch; None: not in it
    tokens: int  # that it processed meanwhile


def bars(run: Run) -> list[Bar]:
    """What every request did, one bar for each phase. The lowest free seat is taken."""
    moments: list[Bar] = []  # of one step each
    places: dict[int, int] = {}
    pushed_out: set[int] = set()
    for step, frame in enumerate(run.frames):
        for id in frame.record.preempted:
            del places[id]
            pushed_out.add(id)
        for id in frame.record.admitted:
            places[id] = next(place for place in range(run.batch) if place not in places.values())
            pushed_out.discard(id)
        rows = {row.id: row for row in frame.record.rows}
        for id, ask in enumerate(run.asks):
            if ask.arrival <= step < run.ends[id]:
                phase = PREEMPTED if id in pushed_out else WAITING
                if id in rows:
                    phase = PREFILL if rows[id].phase == PREFILL else DECODE  # a verify pass decodes, too
                moments.append(Bar(id, phase, step, step + 1, places.get(id), rows[id].tokens if id in rows else 0))
        for id in frame.record.finished:
            del places[id]
    found = []
    moments.sort(key=lambda bar: (bar.id, bar.start))
    for _, group in groupby(moments, key=lambda bar: (bar.id, bar.phase, bar.place)):
        some = list(group)
        found.append(some[0]._replace(stop=some[-1].stop, tokens=sum(bar.tokens for bar in some)))
    return found


def least_processed(asks: Sequence[Ask]) -> int:
    """Tokens that must be processed at least: all of every output but its last token."""
    return sum(len(ask.prompt) + ask.new - 1 for ask in asks)


NEW = (4, 26, 3, 9, 18, 5, 2, 12, 6, 3)  # a few long answers among many short ones


def few_long_asks() -> list[Ask]:
    """Ten requests: six at once, then one every third step."""
    return [Ask((1,) * 12, new, arrival) for new, arrival in zip(NEW, [0] * 6 + [3, 6, 9, 12], strict=True)]


# ---- which way is faster, lesson 04 ---------------------------------------------------------------------------------

PADDED, STATIC, CONTINUOUS, SPECULATIVE = "padded", "static", "continuous", "speculative"
Work = Sequence[tuple[Sequence[int], int]]  # prompts, and how many tokens to write after each


def workload(prompts: Sequence[Sequence[int]], count: int, longest: int, seed: int = 0) -> list:
    """`count` requests: the prompts in turn, and lengths of which half are below an eighth of `longest`."""
    random = Random(seed)
    lengths = [min(longest, 1 + int(longest / 8 * random.lognormvariate(0, 1.3))) for _ in range(count)]
    return [(prompts[i % len(prompts)], length) for i, length in enumerate(lengths)]


def endless(target: Model) -> Model:
    """The same model without end tokens: how long an output becomes is then ours to say, and equal on every machine.
    Its passes are captured where the target's are."""
    same = Model(target.name, target.transformer, target.tokenizer, (), target.chat_template)
    if target.backend:
        same.accelerate()
    return same


def padded(target: Model, work: Work, batch: int) -> dict:
    texts, steps = [], 0
    for first in range(0, len(work), batch):
        some = work[first : first + batch]
        longest = max(length for _, length in some)
        outs = generate(target, [prompt for prompt, _ in some], longest)
        texts += [out.tokens[:length] for out, (_, length) in zip(outs, some, strict=True)]
        steps += longest
    return {"texts": texts, "steps": steps}


def served(engine: Engine, work: Work) -> dict:
    """All requests by an engine that has served them before: on a GPU its passes are then captured. Its metrics keep
    as many requests as these are."""
    before = engine.metrics()["totals"]
    ids = [engine.add(prompt, length) for prompt, length in work]
    outs, metrics = engine.run(), engine.metrics()
    totals, requests = metrics["totals"], metrics["requests"]
    per_token = [r["time_per_output_token"] for r in requests if r["time_per_output_token"] is not None]
    return {
        "texts": [outs[id].tokens for id in ids],
        "steps": totals["steps"] - before["steps"],
        "time_to_first_token": median(r["time_to_first_token"] for r in requests),
        "time_per_output_token": median(per_token) if per_token else None,
    }


def compare(
    target: Model, work: Work, batch: int = 8, repeat: int = 3, drafter: Drafter | None = None, k: int = 4
) -> dict:
    """The same requests in each of these ways, one after the other in each round. Ratios are those of single rounds.

    padded        `generate` on a list, batch after batch: a finished sequence stays until the longest is done
    static        the engine, but no request joins a batch until its last one has ended
    continuous    the engine as it is: a request that ends makes room for the next at once
    speculative   with a drafter: the same with drafts
    """
    target = endless(target)
    ways: dict[str, Callable[[], dict]] = {PADDED: partial(padded, target, work, batch)}
    options = dict(max_num_seqs=batch, num_blocks=512, enable_prefix_caching=False, history=len(work))
    for policy in (STATIC, CONTINUOUS):
        ways[policy] = partial(served, Engine(target, policy=policy, **options), work)
    if drafter is not None:
        ways[SPECULATIVE] = partial(served, Engine(target, drafter, k=k, **options), work)
    runs: dict[str, list[dict]] = {name: [] for name in ways}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn, name in tqdm(list(product(range(repeat + 1), ways)), leave=False, disable=None):  # on terminals only
        taken = median_time(lambda: runs[name].append(ways[name]()), 1, 0, target.device)  # noqa: B023
        if turn:  # the first round only warms up
            seconds[name].append(taken.median)
    tokens = sum(length for _, length in work)
    results = {}
    for name, laps in runs.items():
        last = laps[-1]
        results[name] = {
            **{key: value for key, value in last.items() if key != "texts"},
            "tokens_per_second": asdict(Timing.of(seconds[name]).rate(tokens)),
            "over_static": asdict(Timing.of([b / a for a, b in zip(seconds[name], seconds[STATIC], strict=True)])),
            "same_texts": sum(a == b for a, b in zip(last["texts"], runs[STATIC][-1]["texts"], strict=True)),
        }
    return {
        "benchmark": "batching",
        "target": Path(target.name).name or target.name,
        "dtype": str(target.dtype).removeprefix("torch."),
        "requests": len(work),
        "tokens": tokens,
        "longest": max(length for _, length in work),
        "batch": batch,
        "drafter": None if drafter is None else name_of(drafter),
        "k": None if drafter is None else k,
        "repeat": repeat,
        "results": results,
        "machine": machine(),
    }
