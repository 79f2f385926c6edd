"""Cycles that are launched before the host has looked at the last one: tokens and cycles as without."""

import warnings
from random import Random
from unittest.mock import patch

import pytest
import torch
from ahead_checks import KINDS, SCENES, Script, as_generated, check, model, prompts
from test_fast import NoLooking

from minispec.gpu.drafts import DraftsForMany, Launch
from minispec.gpu.passes import Buckets
from minispec.gpu.ragged import RaggedPasses

pytestmark = pytest.mark.slow


QUICK = {"eagle": ("crowd", "preempted", "aborted", "budgeted"), "model": ("crowd", "preempted"), "dflash": ()}
nightly = pytest.mark.nightly


@pytest.mark.parametrize(
    "kind, scene",
    [pytest.param(k, scene, marks=[] if scene in QUICK[k] else nightly) for k in KINDS for scene in SCENES],
)
def test_nothing_changes_but_the_time(kind, scene):
    served = check(scene, kind)
    assert served.launched > max(3, 2 * served.dropped)


def test_who_ends_does_not_stop_the_others():
    """What was launched for four serves three. The fourth is padding from then on, for the drafter, too."""
    script = Script("eagle", True)
    ids = [script.add(prompt, 40) for prompt in prompts(4)]
    engine = script.engine
    for _ in range(5):
        engine.step()
    many, runner, context = engine.drafter.captured, engine.runner, engine.sequences[ids[1]]
    row, read = many.rows[context.id], len(many.held[context.id])
    engine.abort(ids[1])
    begun, launched = many.begun, runner.launched
    for _ in range(3):
        engine.step()
    assert (many.begun, runner.launched, runner.dropped) == (begun, launched + 3, 0)
    length, *asked = many.sheet[row, :5].tolist()
    assert asked == [0, 0, 0, 0] and read <= length <= read + 4
    assert runner.buckets.sheet[:4, 2].tolist() == [0, -1, 2, 3]
    as_generated(script.run())


def test_the_last_row_ends_first_and_its_blocks_go_to_others():
    """What is launched ahead for four rows must not write for the one that has ended: others own its blocks by then."""
    script = Script("eagle", True, num_blocks=44, enable_prefix_caching=False)
    for prompt, new in zip(prompts(4), (44, 44, 44, 6), strict=True):
        script.add(prompt, new)
    served = script.run()
    assert served.launched > 8
    as_generated(served)


@pytest.mark.parametrize("kind", ["eagle", "model"])
@pytest.mark.parametrize("other", ["sampled", "held"])
def test_sampled_requests_and_forbidden_tokens_wait_for_the_host(other, kind):
    script = Script(kind, True)
    script.add([1, 2, 3], 40)
    options = dict(temperature=0.8, seed=1) if other == "sampled" else dict(min_new_tokens=12, stop_token_ids=[0, 1, 2])
    script.add([3, 4], 12, **options)
    engine, seen = script.engine, []
    while len(engine.sequences) > 1:
        seen.append(engine.runner.launched)
        engine.step()
    assert len(seen) > 4 and seen[-1] == 0
    script.outs |= engine.take()
    served = script.run()
    assert served.launched > 5
    if other == "sampled":  # drafts use random numbers, too
        del served.asks[1]
    as_generated(served)


@pytest.mark.parametrize("owner, method", [(Buckets, "read_drafted"), (DraftsForMany, "begin"), (RaggedPasses, "read")])
def test_what_breaks_for_all_is_repeated_for_each_alone(owner, method, monkeypatch):
    """Also in a step whose cycle was launched ahead, beside the prompt of somebody new."""
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


@pytest.mark.parametrize("seed, after", [(1, 2), *(pytest.param(s, 1, marks=nightly) for s in (2, 4))])
def test_a_cycle_that_fails_half_way_moves_no_path_twice(seed, after, monkeypatch):
    """The graph that ends a cycle has moved the accepted paths, one of them [1, 4] or [1, 5]; then the draft after it
    cannot be launched."""
    script, right = Script("eagle", True), Launch.work
    runner = script.engine.runner

    def broken(launch):
        if runner.runs_ahead and runner.launched == after:
            raise RuntimeError("no launch")
        right(launch)

    monkeypatch.setattr(Launch, "work", broken)
    for prompt in prompts(6, seed=seed):
        script.add(prompt, 40)
    with pytest.warns(UserWarning, match="nothing is launched ahead any more"):
        as_generated(script.run())


@pytest.mark.parametrize("kind", ["eagle", "model", pytest.param("dflash", marks=nightly)])
def test_damaged_memory_fails_its_request_alone(kind):
    """NaN reaches neither the neighbours nor the next one in its row of the drafter's memory."""
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


@pytest.mark.parametrize("options", [{}, dict(temperature=0.8, top_k=9, seed=0)])
def test_nobody_looks_at_a_number(options):
    """Neither a draft's launch, nor the end of a cycle."""
    for kind in KINDS if not options else ("model",):
        script = Script(kind, True)
        for prompt in prompts(3):
            script.add(prompt, 20, **options)
        for _ in range(5):
            script.engine.step()
        cycles, launches = script.engine.runner.cycles, script.engine.drafter.captured.launches.values()
        assert launches and bool(cycles.captures) == (not options)
        with NoLooking(), torch.inference_mode(False), torch.no_grad():
            for size in cycles.captures:
                cycles.work(*size)
            for launch in launches:
                launch.work()
