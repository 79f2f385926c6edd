"""What the scheduler plans for each request of a step, what the pass makes of it, and what is given back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minispec.drafters import Drafter
from minispec.load.handle import Model
from minispec.serving.engine import Engine
from minispec.serving.scheduler import Result

from .batching import endless
from .frames import Ask, DryEngine, Frame, watch

MOMENTS = ("plan", "verify", "roll back")


@dataclass(frozen=True)
class Part:
    """One request's part in a step. Counts are tokens, one slot each, unless they say blocks."""

    id: int
    phase: str  # "prefill", "decode" or "verify"
    start: int  # in the cache before the step
    count: int  # known tokens that the pass processes
    lookahead: int  # slots reserved after them
    drafted: tuple[int, ...]  # the tokens themselves, like `emitted`
    accepted: int
    emitted: tuple[int, ...]
    kept: int  # in the cache after the step; 0 if the request has ended
    blocks_before: int
    blocks_planned: int
    blocks_after: int
    ended: bool

    @property
    def given_back(self) -> int:
        """Blocks that the roll-back returned to the pool, or the request's end."""
        return self.blocks_planned - self.blocks_after


@dataclass(frozen=True)
class Moment:
    """A step: the books after it, and every request's part in it."""

    frame: Frame
    parts: tuple[Part, ...]
    budget: int

    @property
    def scheduled(self) -> int:
        """Tokens that the plan makes room for in the pass."""
        return sum(part.count + part.lookahead for part in self.parts)

    @property
    def processed(self) -> int:
        return sum(part.count + len(part.drafted) for part in self.parts)


def record(engine: Engine | DryEngine, asks: Sequence[Ask]) -> list[Moment]:
    """Serve the requests and keep what each step planned, found and gave back.

    `update` is wrapped: it is called with the plan and the verdicts, when the blocks are still those of the plan.
    """
    update, pool = engine.scheduler.update, engine.pool
    steps: list[tuple[Part, ...]] = []
    before: dict[int, int] = {}

    def blocks() -> dict[int, int]:
        return {id: len(table.blocks) for id, table in pool.tables.items()}

    def listen(plan, results):
        planned, drafted = blocks(), {row.request.id: tuple(row.request.draft_tokens) for row in plan.scheduled}
        done = update(plan, results)
        after, phases = blocks(), {row.id: row.phase for row in done.rows}
        parts = []
        for row in plan.scheduled:
            id = row.request.id
            result = results.get(id) or Result()  # none: something failed, and it is planned again
            kept = pool.tables[id].length if id in pool.tables else 0
            found = (drafted[id], result.accepted, tuple(result.tokens), kept)
            held = (before.get(id, 0), planned[id], after.get(id, 0))
            plan_of = (id, phases[id], row.start, row.count, row.num_lookahead_tokens)
            parts.append(Part(*plan_of, *found, *held, id in done.finished))
        steps.append(tuple(parts))
        before.clear()
        before.update(after)
        return done

    engine.scheduler.update = listen
    try:
        frames = watch(engine, asks)
    finally:
        engine.scheduler.update = update
    budget = engine.scheduler.max_num_batched_tokens
    return [Moment(frame, parts, budget) for frame, parts in zip(frames, steps, strict=True)]


def example_asks(target: Model) -> list[Ask]:
    """Four stories; the last one comes when the others are under way."""
    texts = ("Once upon a time", "One day, Tim and his dog", "Lily saw a big red ball.", "The old dog was tired. He")
    words = [tuple(target.encode(text)) if target.tokenizer else tuple(range(1, 9)) for text in texts]
    return [Ask(words[0], 18), Ask(words[1], 14), Ask(words[2], 10), Ask(words[3], 12, arrival=3)]


def run_engines(target: Model, drafter: Drafter, asks: Sequence[Ask], engines: Mapping[str, Mapping]):
    """The same requests through engines with these options: name → steps. An option `drafter` replaces the drafter."""
    settings = dict(
        drafter=drafter, block_size=4, num_blocks=64, max_num_batched_tokens=32, enable_prefix_caching=False
    )
    return {name: record(Engine(endless(target), **settings | dict(some)), asks) for name, some in engines.items()}
