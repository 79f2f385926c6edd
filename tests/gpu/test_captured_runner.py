"""Cycles that an engine launches before the host has seen the tokens of the last one (captured_runner.py): they change
nothing but the time."""

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from itertools import cycle
from random import Random
from unittest.mock import patch

import pytest
import torch
from all_drafters import random_dflash, random_eagle, random_medusa, random_mtp, random_pairs
from reference import capturable
from tiny_models import random_model

import minispec as ms
from minispec.gpu.drafts import DraftsForMany, Launch
from minispec.gpu.passes import Buckets
from minispec.gpu.ragged import RaggedPasses

pytestmark = pytest.mark.slow
nightly = pytest.mark.nightly
D = ms.drafters
KINDS: dict[str, Callable[[ms.Model], D.Drafter]] = {
    "eagle": lambda target: D.Eagle(target, random_eagle(target), width=3, nodes=8),
    "dflash": lambda target: D.DFlash(target, random_dflash(target), nodes=8),
    "model": lambda target: D.EarlyExit(target, 2),
    "medusa": lambda target: D.Medusa(target, random_medusa(target), nodes=7),
    "eagle, chain": lambda target: D.Eagle(target, random_eagle(target), tree=False),
    "dspark": lambda target: D.DSpark(target, random_pairs(target, D.DSparkHead), confidence=0.3),
    "dflash2, chain": lambda target: D.DFlash2(target, random_pairs(target), tree=False),
    "mtp": lambda target: D.MTP(target, random_mtp(target)),
}
SAMPLED = dict(temperature=0.9), dict(temperature=1.2, top_p=0.9), dict(temperature=0.7, top_k=5, min_p=0.02)
WAYS = dict(greedy=({},), sampled=SAMPLED, mixed=(SAMPLED[0], {}, SAMPLED[2]))  # how requests sample, in turn


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
    chances = lambda c: [round(x, 9) for x in (*c.p, *c.q)]  # noqa: E731
    return out.trace and [
        (c.drafted, c.parents, chances(c), c.path, c.token, c.bonus, c.kept, c.committed) for c in out.trace.cycles
    ]


class Script:
    """An engine, and what happens to it: before step n, or in the middle of it, when the first request is settled."""

    def __init__(self, kind: str, ahead: bool, target: ms.Model | None = None, way: str = "greedy", **options):
        self.target, self.ways = target or model(), enumerate(cycle(WAYS[way]))
        sizes = dict(num_blocks=150, block_size=4, max_num_seqs=6, k=3, max_chunk=16)
        self.engine = ms.Engine(self.target, KINDS[kind](self.target), fast=True, **sizes | options)
        self.engine.runner.runs_ahead = ahead
        self.asks: dict[int, tuple] = {}
        self.outs: dict = {}

    def add(self, prompt: list[int], new: int, k: int | None = None, **options) -> int:
        seed, way = next(self.ways)
        options = dict(seed=seed) | way | options
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


# ---- scenes: kind, whether to launch ahead → what came of it ------------------------------------------------------


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


def preempted(kind: str, ahead: bool, **options) -> Served:
    """So few blocks that requests are preempted, and slots for a cycle ahead are often not to be had. (Those that are
    may take a cached block's memory: then another prompt is computed again, and steps differ.)"""
    script = Script(kind, ahead, num_blocks=24, enable_prefix_caching=False, **options)
    for prompt in prompts(6):
        script.add(prompt, 30)
    served = script.run()
    assert script.engine.metrics()["totals"]["preemptions"] > 0
    return served


def aborted(kind: str, ahead: bool, **options) -> Served:
    """Requests are aborted between two steps and inside one, and others take their rows."""
    script = Script(kind, ahead, **options)
    first, second, third, _ = (script.add(prompt, 40) for prompt in prompts(4))
    return script.run(
        {5: lambda: script.engine.abort(second), 6: lambda: script.add([1, 2, 3], 20)},
        {9: lambda: script.engine.abort(third), 11: lambda: (script.engine.abort(first), script.add([4, 5], 12))},
    )


def budgeted(kind: str, ahead: bool, **options) -> Served:
    """The fewer requests are left, the more nodes each may draft."""
    return steady(kind, ahead, draft_budget=13, **options)


SCENES = dict(steady=steady, crowd=crowd, preempted=preempted, aborted=aborted, budgeted=budgeted)
QUICK = {
    "greedy": {"eagle": ("crowd", "preempted", "aborted", "budgeted"), "model": ("crowd", "preempted")},
    "sampled": {
        "eagle": ("crowd",),
        "model": ("crowd", "preempted"),
        "medusa": ("budgeted",),
        "eagle, chain": ("crowd",),
    },
    "mixed": {"eagle": ("aborted",), "model": ("budgeted",), "dflash": ("steady",), "medusa": ("crowd",)}
    | {"mtp": ("preempted",), "dspark": ("steady",)},
}


def as_generated(served: Served, target: ms.Model | None = None) -> None:
    for id, (prompt, new, options) in served.asks.items():
        if options.get("temperature"):  # drafts use random numbers, too
            continue
        out, alone = served.outs[id], ms.generate(target or model(), prompt, new, **options)
        assert out.error is None and out.finish_reason in (alone.finish_reason, "abort")
        assert out.tokens == alone.tokens[: len(out.tokens)]
        assert len(out.tokens) == len(alone.tokens) or out.finish_reason == "abort"


@pytest.mark.parametrize(
    "kind, scene, way",
    [
        pytest.param(kind, scene, way, marks=[] if scene in QUICK[way].get(kind, ()) else nightly)
        for kind in KINDS
        for scene in SCENES
        for way in WAYS
    ],
)
def test_nothing_changes_but_the_time(kind, scene, way, rule="token"):
    """The same tokens, cycle by cycle, as without a launch ahead, where the host judges all drafts; and the greedy
    ones are the tokens of `generate`."""
    found, expected = (SCENES[scene](kind, ahead, way=way, rule=rule) for ahead in (True, False))
    assert expected.launched == 0 and found.outs.keys() == expected.outs.keys()
    for id, (tokens, reason, cycles) in found.told.items():
        assert (tokens, reason) == expected.told[id][:2]
        for own, other in zip(cycles or [], expected.told[id][2] or [], strict=True):
            # A neighbour that has ended in the cycle before still counts for how deep trees are searched: the same
            # draft, or one with fewer nodes.
            assert own == other or (Counter(own[0]) < Counter(other[0]) and own[3:] == other[3:])
    as_generated(found)
    assert found.launched > max(3, 2 * found.dropped)


NOISY = "model", "eagle", "medusa", "dflash", "dspark", "eagle, chain", "mtp", "dflash2, chain"


@pytest.mark.parametrize(
    "kind, scene", [*zip(NOISY, ("crowd", "steady", "budgeted", "aborted") * 2, strict=True), ("eagle", "preempted")]
)
def test_coupled_cycles_emit_what_generate_emits(kind, scene):
    """Token for token, whatever is launched ahead, and by the same drafts as the host's."""
    found, expected = (SCENES[scene](kind, ahead, way="mixed", rule="coupled") for ahead in (True, False))
    assert found.launched > max(3, 2 * found.dropped) and expected.launched == 0
    for served in (found, expected):
        for id, (prompt, new, options) in served.asks.items():
            out, alone = served.outs[id], ms.generate(model(), prompt, new, rule="coupled", **options)
            assert out.error is None and out.tokens == alone.tokens[: len(out.tokens)]
            assert len(out.tokens) == len(alone.tokens) or out.finish_reason == "abort"


@pytest.mark.parametrize("scene", ["steady", *(pytest.param(scene, marks=nightly) for scene in ("crowd", "aborted"))])
def test_blocks_are_judged_by_the_device_as_by_the_host(scene):
    test_nothing_changes_but_the_time("model", scene, "mixed", rule="block")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_captured_cycles_launched_ahead_generate_the_same(kind, device):
    target = model(device, torch.float32)
    script = Script(kind, True, target)
    for i, prompt in enumerate(prompts(6)):
        script.add(prompt, 30 + 7 * i, k=0 if i == 3 else None)
    served = script.run()
    assert served.launched > 20 > served.dropped and script.engine.runner.runs_ahead
    as_generated(served, target)


def test_a_request_that_ends_does_not_stop_the_others():
    """What was launched for four serves three."""
    script = Script("eagle", True)
    ids = [script.add(prompt, 40) for prompt in prompts(4)]
    engine = script.engine
    for _ in range(5):
        engine.step()
    many, runner = engine.drafter.captured, engine.runner
    engine.abort(ids[1])
    begun, launched = many.begun, runner.launched
    for _ in range(3):
        engine.step()
    assert (many.begun, runner.launched, runner.dropped) == (begun, launched + 3, 0)
    as_generated(script.run())


def test_the_last_request_ends_first_and_its_blocks_go_to_others():
    """What is launched ahead for four requests must not write for one that has ended: others own its blocks."""
    script = Script("eagle", True, num_blocks=44, enable_prefix_caching=False)
    for prompt, new in zip(prompts(4), (44, 44, 44, 6), strict=True):
        script.add(prompt, new)
    served = script.run()
    assert served.launched > 8
    as_generated(served)


@pytest.mark.parametrize("kind", ["eagle", "model"])
@pytest.mark.parametrize("way", [{}, dict(temperature=0.8)])
def test_forbidden_tokens_wait_for_the_host(way, kind):
    script = Script(kind, True)
    script.add([1, 2, 3], 40, **way)
    script.add([3, 4], 12, min_new_tokens=12, stop_token_ids=[0, 1, 2])
    engine, seen = script.engine, []
    while len(engine.sequences) > 1:
        seen.append(engine.runner.launched)
        engine.step()
    assert len(seen) > 4 and seen[-1] == 0
    script.outs |= engine.take()
    served = script.run()
    assert served.launched > 5
    as_generated(served)


@pytest.mark.parametrize("owner, method", [(Buckets, "read_drafted"), (DraftsForMany, "begin"), (RaggedPasses, "read")])
def test_what_breaks_for_all_is_repeated_for_each_alone(owner, method, monkeypatch):
    """Also in a step whose cycle was launched ahead, beside the prompt of a new request."""
    right, calls = getattr(owner, method), []

    def broken(self, some, *rest):
        calls.append(len(some))
        if len(some) > 1 and len(calls) % 2:
            raise RuntimeError("too many at once")
        return right(self, some, *rest)

    monkeypatch.setattr(owner, method, broken)
    script = Script("eagle", True, max_num_seqs=5)
    for i, prompt in enumerate(prompts(3)):
        script.add(prompt, 20 + 9 * i)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it succeeded, more slowly
        served = script.run({6: lambda: (script.add([1, 2], 20), script.add([1, 2, 3], 20))})
    assert max(calls) > 1 and 1 in calls and served.launched > 5
    as_generated(served)


@pytest.mark.parametrize("fails", ["before", "after", "next"])
@pytest.mark.parametrize("seed, after", [(1, 2), *(pytest.param(s, 1, marks=nightly) for s in (2, 4))])
def test_a_cycle_that_fails_half_way_moves_no_path_twice(fails, seed, after, monkeypatch):
    """The end of a cycle moves the accepted paths, one of them [1, 4] or [1, 5]. It fails before that, or right after,
    or the draft after it cannot be launched."""
    script = Script("eagle", True)
    runner = script.engine.runner
    cycles = runner.cycles
    owner, method = dict(before=(cycles, "walk"), after=(cycles.many, "follow"), next=(Launch, "work"))[fails]
    right = getattr(owner, method)

    def broken(*args):
        if runner.runs_ahead and runner.launched == after:
            raise RuntimeError("no launch")
        return right(*args)

    monkeypatch.setattr(owner, method, broken)
    for prompt in prompts(6, seed=seed):
        script.add(prompt, 40)
    with pytest.warns(UserWarning, match="nothing is launched ahead any more"):
        as_generated(script.run())


@pytest.mark.parametrize("kind", ["eagle", "model", pytest.param("dflash", marks=nightly)])
def test_damaged_memory_fails_its_request_alone(kind):
    """NaN reaches neither the neighbours nor the next request in its part of the drafter's memory."""
    drafted = []
    for ahead in (True, False):
        script = Script(kind, ahead)
        ids = [script.add(prompt, 40) for prompt in prompts(3)]
        engine = script.engine
        for _ in range(6):
            engine.step()
        for memory in (engine.runner.cache.keys, engine.runner.cache.values):
            memory[:, engine.pool.tables[ids[1]].blocks[0]] = torch.nan
        served = script.run({4: lambda script=script: script.add([1, 2, 3, 4], 40)})
        assert served.outs[ids[1]].finish_reason == "error" and "NaN" in str(served.outs[ids[1]].error)
        del served.outs[ids[1]], served.asks[ids[1]]
        as_generated(served)
        drafted.append(served.told)
        assert (served.launched > 10) == ahead
    assert drafted[0] == drafted[1]


@pytest.mark.parametrize("kind", ["eagle", "model"])
def test_two_engines_share_a_drafter(kind):
    """What one has launched ahead is dropped when the other has drafted since, and nothing is lost with it."""
    told = []
    for ahead in (True, False):
        drafter, random = KINDS[kind](model()), Random(0)
        with patch.dict(KINDS, {"shared": lambda target, drafter=drafter: drafter}):
            scripts = [Script("shared", ahead) for _ in range(2)]
        for seed, script in enumerate(scripts):
            for prompt in prompts(3, seed=seed):
                script.add(prompt, 18)
        while any(script.engine.sequences for script in scripts):
            script = random.choice(scripts)
            for _ in range(random.choice((1, 1, 4))):
                if script.engine.sequences:
                    script.engine.step()
                    script.engine.check_integrity()
        for script in scripts:
            script.outs = script.engine.take()
            served = script.run()
            as_generated(served)
            told.append(served.told)
            assert not ahead or served.launched > served.dropped > 0
    assert told[:2] == told[2:]


@pytest.mark.parametrize("way", ["greedy", "mixed"])
def test_no_launch_waits_for_a_number(way):
    """Neither that of a draft, nor that of the end of a cycle."""
    for kind in KINDS:
        script = Script(kind, True, way=way)
        for prompt in prompts(3):
            script.add(prompt, 20)
        for _ in range(5):
            script.engine.step()
        cycles, launches = script.engine.runner.cycles, script.engine.drafter.captured.launches.values()
        assert launches and cycles.captures
        with capturable():
            for size in cycles.captures:
                cycles.work(*size)
            for launch in launches:
                launch.work()
