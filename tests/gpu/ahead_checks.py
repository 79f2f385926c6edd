"""Cycles that an engine launches before the host has looked at the last one: they change nothing but the time.

test_cycles_ahead.py runs these scenes; on a GPU, where cycles are captured:

    PYTHONPATH=.:tests python tests/gpu/ahead_checks.py
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from random import Random

import torch
from all_drafters import random_dflash, random_eagle
from fast_checks import run_on_the_gpu
from tiny_models import random_model

import minispec as ms

D = ms.drafters
KINDS: dict[str, Callable[[ms.Model], D.Drafter]] = {
    "eagle": lambda target: D.Eagle(target, random_eagle(target), width=3, nodes=8),
    "dflash": lambda target: D.DFlash(target, random_dflash(target), nodes=8),
    "model": lambda target: D.EarlyExit(target, 2),
}


@cache
def model(device: str = "cpu", dtype=torch.float64) -> ms.Model:
    """So few tokens that a tree often has the right one: side branches are accepted, and whole paths."""
    return random_model(num_layers=3, vocab_size=10, device=device, dtype=dtype)


@dataclass
class Served:
    """What came of a scene: tokens and cycles of every request, and what was launched."""

    outs: dict
    launched: int
    dropped: int
    asks: dict[int, tuple] = field(default_factory=dict)  # for `generate`

    @property
    def told(self) -> dict:
        """All that must not depend on what was launched when."""
        return {id: (out.tokens, out.finish_reason, cycles_of(out)) for id, out in self.outs.items()}


def cycles_of(out: ms.Output) -> list[tuple] | None:
    return out.trace and [
        (c.drafted, c.parents, c.p, c.path, c.token, c.bonus, c.kept, c.committed) for c in out.trace.cycles
    ]


class Script:
    """An engine, and what happens to it: before step n, or in the middle of it, when the first request is settled."""

    def __init__(self, kind: str, ahead: bool, target: ms.Model | None = None, **options):
        self.target = target or model()
        sizes = dict(num_blocks=150, block_size=4, max_num_seqs=6, k=3, max_chunk=16)
        self.engine = ms.Engine(self.target, KINDS[kind](self.target), fast=True, **sizes | options)
        self.engine.runner.runs_ahead = ahead
        self.asks: dict[int, tuple] = {}
        self.outs: dict = {}

    def add(self, prompt: list[int], new: int, k: int | None = None, **options) -> int:
        id = self.engine.add(prompt, new, k=k, **options)
        self.asks[id] = prompt, new, options
        return id

    def run(self, events: dict[int, Callable[[], None]] | None = None, inside: dict | None = None) -> Served:
        engine, step, right = self.engine, 0, self.engine._emit

        def emit(turn):
            right(turn)
            if event := (inside or {}).pop(step, None):
                event()

        engine._emit = emit
        while engine.sequences or step < max(events or [0]):
            if event := (events or {}).get(step):
                event()
            if engine.sequences:
                engine.step()
                engine.check_integrity()
            step += 1
            self.outs |= engine.take()
        assert engine.pool.num_used == 0 and not engine.runner.drafter.captured.rows
        return Served(self.outs, engine.runner.launched, engine.runner.dropped, self.asks)


def prompts(count: int, longest: int = 12, seed: int = 0) -> list[list[int]]:
    random = Random(seed)
    return [random.choices(range(10), k=random.randint(2, longest)) for _ in range(count)]


# ---- scenes: kind, whether to launch ahead → what came of it --------------------------------------------------------


def steady(kind: str, ahead: bool, **options) -> Served:
    """Four requests of different lengths, until each has all its tokens."""
    script = Script(kind, ahead, **options)
    for i, prompt in enumerate(prompts(4)):
        script.add(prompt, 20 + 7 * i)
    return script.run()


def crowd(kind: str, ahead: bool, num_blocks: int = 150, **options) -> Served:
    """Requests that come in pairs, that draft deeper or not at all, and some of which end at a stop token."""
    script, random = Script(kind, ahead, num_blocks=num_blocks, **options), Random(5)
    some = [(prompt, random.randint(1, 40), random.choice((None, None, 1, 5, 0))) for prompt in prompts(14)]

    def come() -> None:
        for _ in range(2):
            prompt, new, k = some.pop()
            script.add(prompt, new, k, stop_token_ids=[7] if len(some) % 3 else [])

    return script.run({7 * step: come for step in range(7)})


def preempted(kind: str, ahead: bool) -> Served:
    """So few blocks that requests are preempted, and slots for a cycle ahead are often not to be had. (Those that are
    may take a cached block's memory: then another prompt is computed again, and steps differ.)"""
    script = Script(kind, ahead, num_blocks=24, enable_prefix_caching=False)
    for prompt in prompts(6):
        script.add(prompt, 30)
    served = script.run()
    assert script.engine.metrics()["totals"]["preemptions"] > 0
    return served


def aborted(kind: str, ahead: bool) -> Served:
    """Requests are aborted between two steps and inside one, and others take their rows."""
    script = Script(kind, ahead)
    first, second, third, _ = (script.add(prompt, 40) for prompt in prompts(4))
    return script.run(
        {5: lambda: script.engine.abort(second), 6: lambda: script.add([1, 2, 3], 20)},
        {9: lambda: script.engine.abort(third), 11: lambda: (script.engine.abort(first), script.add([4, 5], 12))},
    )


def budgeted(kind: str, ahead: bool) -> Served:
    """The fewer requests are left, the more nodes each may draft."""
    return steady(kind, ahead, draft_budget=13)


SCENES = dict(steady=steady, crowd=crowd, preempted=preempted, aborted=aborted, budgeted=budgeted)


def check(scene: str, kind: str) -> Served:
    """The same tokens, cycle by cycle, as without a launch ahead, and the tokens of `generate`."""
    found, expected = (SCENES[scene](kind, ahead) for ahead in (True, False))
    assert expected.launched == 0 and found.outs.keys() == expected.outs.keys()
    for id, (tokens, reason, cycles) in found.told.items():
        assert (tokens, reason) == expected.told[id][:2]
        for cycle, other in zip(cycles or [], expected.told[id][2] or [], strict=True):
            # A neighbour that has ended in the cycle before still counts for how deep trees are searched: the same
            # draft, or one with fewer nodes.
            assert cycle == other or (set(cycle[0]) < set(other[0]) and cycle[3:] == other[3:])
    as_generated(found)
    return found


def as_generated(served: Served, target: ms.Model | None = None) -> None:
    for id, (prompt, new, options) in served.asks.items():
        out, alone = served.outs[id], ms.generate(target or model(), prompt, new, **options)
        assert out.error is None and out.finish_reason in (alone.finish_reason, "abort")
        assert out.tokens == alone.tokens[: len(out.tokens)]
        assert len(out.tokens) == len(alone.tokens) or out.finish_reason == "abort"


def main() -> None:
    def captured(kind: str) -> None:
        """float32 on the device: the tokens of `generate` there, with cycles launched ahead."""
        target = model("cuda", torch.float32)
        script = Script(kind, True, target)
        for i, prompt in enumerate(prompts(6)):
            script.add(prompt, 30 + 7 * i, k=0 if i == 3 else None)
        served = script.run()
        assert served.launched > 20 > served.dropped and script.engine.runner.runs_ahead
        as_generated(served, target)

    run_on_the_gpu({kind: lambda kind=kind: captured(kind) for kind in KINDS})


if __name__ == "__main__":
    main()
