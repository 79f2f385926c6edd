"""Cycles that are launched before the host has looked at the last one: tokens and cycles as without."""

from __future__ import annotations

import warnings
from random import Random
from unittest.mock import patch

import ahead_checks as checks
import pytest
import torch
from ahead_checks import KINDS, SCENES, Script, as_generated, check, model, prompts
from mutants.patching import DEATHS, rewrite
from pytest import MonkeyPatch
from test_fast import NoLooking

from minispec.gpu import engine_heads, tree_kernels
from minispec.gpu.buckets import Buckets
from minispec.gpu.engine_heads import Cycles, DraftsForMany
from minispec.gpu.ragged import RaggedPasses
from minispec.serving.runner import NextCycle, Runner
from minispec.serving.scheduler import Scheduler
from minispec.verify import greedy

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_changes_but_the_time(kind, scene):
    served = check(scene, kind)
    assert served.launched > max(3, 2 * served.dropped)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 3])
def test_all_cycles_of_a_steady_batch_but_the_first_are_launched_ahead(kind, rows, monkeypatch):
    """Also the last ones, of which each is less deep."""
    begun, right = [], DraftsForMany.begin
    monkeypatch.setattr(DraftsForMany, "begin", lambda *args: begun.append(1) or right(*args))
    script = Script(kind, True)
    for _ in range(rows):  # the same for all: they end together
        script.add([1, 2, 3], 30)
    served = script.run()
    as_generated(served)
    cycles = len(served.outs[0].trace.cycles)
    # The prompt's pass is a cycle, too. After the last one nothing is launched, unless it might not have been the last.
    assert len(begun) == 1 and cycles - 2 <= served.launched + 1 <= cycles and served.dropped <= 1


@pytest.mark.parametrize("kind", ["eagle", "dflash"])
def test_who_ends_does_not_stop_the_others(kind):
    """What was launched for four serves three. The fourth is padding from then on, for the drafter, too."""
    script = Script(kind, True)
    ids = [script.add(prompt, 40) for prompt in prompts(4)]
    engine = script.engine
    for _ in range(5):
        engine.step()
    many, runner, context = engine.drafter.recorded, engine.runner, engine.jobs[ids[1]].context
    row, read = many.rows[context.row], len(many.held[context.row])
    engine.abort(ids[1])
    begun, launched = many.begun, runner.launched
    for _ in range(3):
        engine.step()
    assert (many.begun, runner.launched, runner.dropped) == (begun, launched + 3, 0)
    length, *asked = many.sheet[row, :5].tolist()
    assert asked == [0, 0, 0, 0] and read <= length <= read + 4
    assert runner.buckets.sheet[:4, 2].tolist() == [0, -1, 2, 3]
    as_generated(script.run())


@pytest.mark.parametrize("kind", ["eagle", "dflash"])
def test_the_drafter_s_memory_may_grow(kind):
    with patch.multiple(engine_heads, ROWS=2, TOKENS=16):
        for scene in ("crowd", "steady"):
            assert check(scene, kind).launched > 5


@pytest.mark.parametrize("other", ["sampled", "held"])
def test_sampled_requests_and_forbidden_tokens_wait_for_the_host(other):
    script = Script("eagle", True)
    script.add([1, 2, 3], 40)
    options = dict(temperature=0.8, seed=1) if other == "sampled" else dict(min_new_tokens=12, stop_token_ids=[0, 1, 2])
    script.add([3, 4], 12, **options)
    engine, seen = script.engine, []
    while len(engine.jobs) > 1:
        seen.append(engine.runner.launched)
        engine.step()
    assert len(seen) > 4 and seen[-1] == 0
    script.outs |= engine.take()
    served = script.run()
    assert served.launched > 5
    if other == "sampled":  # drafts use random numbers, too
        del served.asks[1]
    as_generated(served)


@pytest.mark.parametrize("where", ["adopt", "forward", "run_ahead", "synchronise", "judge", "keep", "settle"])
@pytest.mark.parametrize("kind", ["eagle", "dflash"])
def test_an_interrupted_step_can_be_taken_again(kind, where):
    script = Script(kind, True)
    for prompt in prompts(3):
        script.add(prompt, 30)
    runner = script.engine.runner
    right, calls = getattr(runner, where), []

    def interrupted(*args):
        right(*args)
        calls.append(1)
        if len(calls) % 7 == 4:
            raise KeyboardInterrupt

    setattr(runner, where, interrupted)
    stopped = 0
    while script.engine.jobs:
        try:
            script.engine.step()
        except KeyboardInterrupt:
            stopped += 1
        script.engine.check_integrity()
    script.outs = script.engine.take()
    assert stopped > 2 and runner.launched > 5
    as_generated(script.run())


def test_a_launch_that_fails_is_not_tried_again(monkeypatch):
    failed = []

    def broken(*args):
        failed.append(1)
        raise RuntimeError("no launch")

    monkeypatch.setattr(Cycles, "launch", broken)
    assert check_tokens("eagle") and failed == [1]


@pytest.mark.parametrize("owner, method", [(Buckets, "read_drafted"), (DraftsForMany, "begin"), (RaggedPasses, "read")])
@pytest.mark.parametrize("kind", ["eagle", "dflash"])
def test_what_breaks_for_all_is_repeated_for_each_alone(kind, owner, method, monkeypatch):
    """Also in a step whose cycle was launched ahead, beside the prompt of somebody new."""
    right, calls = getattr(owner, method), []

    def broken(self, some, *rest):
        calls.append(len(some))
        if len(some) > 1 and len(calls) % 2:
            raise RuntimeError("too many at once")
        return right(self, some, *rest)

    monkeypatch.setattr(owner, method, broken)
    script = Script(kind, True, max_num_seqs=5)
    for i, prompt in enumerate(prompts(3)):
        script.add(prompt, 20 + 9 * i)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it succeeded, more slowly
        served = script.run({6: lambda: (script.add([1, 2], 20), script.add([1, 2, 3], 20))})
    assert max(calls) > 1 and 1 in calls and served.launched > 5
    as_generated(served)


def check_tokens(kind: str) -> bool:
    script = Script(kind, True)
    for prompt in prompts(3):
        script.add(prompt, 20)
    as_generated(script.run())
    return True


@pytest.mark.parametrize("kind", ["eagle", "dflash"])
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


@pytest.mark.parametrize("kind", ["eagle", "dflash"])
def test_two_engines_share_a_drafter(kind):
    """What one has launched ahead is dropped when the other has drafted since, and nothing is lost with it."""
    told = []
    for ahead in (True, False):
        drafter, random = KINDS[kind](model()), Random(0)
        with patch.dict(KINDS, {"shared": lambda target, drafter=drafter: drafter}):
            scripts = [Script("shared", ahead) for _ in range(2)]
        for seed, script in enumerate(scripts):
            for prompt in prompts(3, seed=seed):
                script.add(prompt, 30)
        while any(script.engine.jobs for script in scripts):
            script = random.choice(scripts)
            for _ in range(random.choice((1, 1, 4))):
                if script.engine.jobs:
                    script.engine.step()
                    script.engine.check_integrity()
        for script in scripts:
            script.outs = script.engine.take()
            served = script.run()
            as_generated(served)
            told.append(served.told)
            assert not ahead or served.launched > served.dropped > 3
    assert told[:2] == told[2:]


def test_who_is_elsewhere_is_not_served():
    script = Script("eagle", True)
    for prompt in prompts(3):
        script.add(prompt, 30)
    for dropped in range(1, 4):
        for _ in range(3):
            script.engine.step()
        starts = script.engine.runner.next_cycle.starts
        starts[script.engine.jobs[1].request] += 1  # as if the device had accepted one more
        script.engine.step()
        assert script.engine.runner.dropped == dropped
    as_generated(script.run())


def test_nobody_looks_at_a_number():
    for kind in ("eagle", "dflash"):
        script = Script(kind, True)
        for prompt in prompts(3):
            script.add(prompt, 20)
        for _ in range(5):
            script.engine.step()
        cycles = script.engine.runner.cycles
        assert cycles.captures
        for size in cycles.captures:
            with NoLooking(), torch.inference_mode(False), torch.no_grad():
                cycles.end(*size)


def random_trees(count: int, nodes: int, tokens: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Best tokens [B, n + 1], and tokens and parents [B, n] of trees, some of which end early (tokens −2)."""
    random, trees = Random(seed), []
    for _ in range(count):
        parents = [random.randint(-1, node - 1) for node in range(nodes)]
        drafted, size, taken = [], random.randint(0, nodes), set()
        for node, parent in enumerate(parents):
            free = [token for token in range(tokens) if (parent, token) not in taken]
            drafted.append(random.choice(free) if free and node < size else -2)
            taken.add((parent, drafted[-1]))
        trees.append((random.choices(range(tokens), k=nodes + 1), drafted, parents))
    return tuple(torch.tensor(part) for part in zip(*trees, strict=True))


def test_the_way_down_a_tree():
    best, tokens, parents = random_trees(200, 9, 4)
    depth = 5
    sound = torch.tensor(True)
    path, verified, run, added, line, given = tree_kernels.walk_torch(best, tokens, parents, depth, sound)
    kept, token, accepted = added - 1, line[:, -1], line[:, 2 * tokens.shape[1] : -1]
    assert bool(sound) and torch.equal(verified[:, 1:], path + 1) and not bool(verified[:, 0].any())
    for i in range(200):
        drafted = [t for t in tokens[i].tolist() if t >= 0]
        expected = greedy(best[i].tolist(), drafted, parents[i].tolist()[: len(drafted)])
        if expected.accepted > depth:
            continue
        n = expected.accepted
        assert (kept[i], token[i], path[i, :n].tolist()) == (n, expected.token, expected.path)
        assert path[i, n:].tolist() == list(range(n, depth))
        assert run[i, : n + 1].tolist() == [*(drafted[node] for node in expected.path), expected.token]
        assert accepted[i].nonzero().flatten().tolist() == expected.path
    assert torch.equal(given.bool(), tokens == best.gather(1, parents + 1)) and len(set(kept.tolist())) > 3
    best[3, 2] = -1
    tree_kernels.walk_torch(best, tokens, parents, depth, sound)
    assert not bool(sound)


# ---------------------------------------------------------------- broken variants

MUTANTS = {
    "any node on the way down": (tree_kernels, "walk_torch", "(parents == last[:, None])", "(parents < node)"),
    "paths stay where they are": (
        Cycles,
        "end",
        "self.move(start + 1, path, new - 1, buckets.table_sheet[:B])",
        "pass",
    ),
    "paths are moved to the certain token": (Cycles, "end", "self.move(start + 1,", "self.move(start,"),
    "states of the first nodes": (Cycles, "end", "verified.clamp(max=T - 1)", "verified.clamp(max=1)"),
    "states of another row": (
        Cycles,
        "end",
        "self.places[:B, None] * T + verified",
        "self.places[:B, None].flip(0) * T + verified",
    ),
    "the drafter's lengths stay": (Cycles, "end", "lines[:, 0] += lines[:, 1]", "pass"),
    "the drafter gets the last token of another": (Cycles, "end", "token], 1)[who]", "token.flip(0)], 1)[who]"),
    "the end is not in sight": (Cycles, "end", "line[:, -1], room - new", "line[:, -1], room"),
    "shares are forgotten": (Cycles, "end", "torch.minimum(self.most[depth], share)", "self.most[depth]"),
    "starts stay": (Cycles, "end", "start = start + new * (real & (room >= 0))", "pass"),
    "NaN is handed on": (Cycles, "end", ".masked_fill(broken, 0)", ""),
    "ended requests go on": (Cycles, "end", "row = torch.where(real, row, -1)", "pass"),
    "tables stay": (Cycles, "launch", "buckets.write_tables(tables)", "pass"),
    "whoever drafted since": (Cycles, "stands", "self.begun == self.many.begun", "True"),
    "what is held stays": (DraftsForMany, "adopt", "len(c.tokens) - 1", "self.held[c.row].stop"),
    "dropped states are lost": (NextCycle, "drop", "turn.job.remember(states,", "turn.job.remember({},"),
    "one dropped state too many": (NextCycle, "drop", "start - turn.plan.start", "start - turn.plan.start + 1"),
    "wherever they are": (NextCycle, "serves", "plan.start != self.starts.get(request)", "False"),
    "whatever was to be drafted": (
        NextCycle,
        "serves",
        "(plan.draft_length, plan.max_nodes) != self.draft_of(before)",
        "False",
    ),
    "forbidden tokens are not waited for": (Runner, "may_run_ahead", " and not turn.held", ""),
    "sampled requests are launched ahead": (Runner, "may_run_ahead", "self._goes_on(turns)", "True"),
    "reserved slots are given back": (Scheduler, "update", "(step.ahead or scheduled.prefill)", "scheduled.prefill"),
    "too few slots": (Scheduler, "reserve_ahead", "certain + nodes", "certain"),
    "slots are kept for good": (Scheduler, "update", "(scheduled.num_lookahead_tokens or self.reserved)", "False"),
}


def whole_story() -> None:
    """Every scene, and what happens to somebody in some of them."""
    for scene in ("steady", "swapped", "aborted", "budgeted", "preempted", "crammed"):
        check(scene, "eagle")
    with MonkeyPatch.context() as patch:
        test_all_cycles_of_a_steady_batch_but_the_first_are_launched_ahead("eagle", 3, patch)
    test_sampled_requests_and_forbidden_tokens_wait_for_the_host("sampled")
    test_sampled_requests_and_forbidden_tokens_wait_for_the_host("held")
    test_two_engines_share_a_drafter("eagle")
    test_who_ends_does_not_stop_the_others("eagle")
    test_who_is_elsewhere_is_not_served()
    test_damaged_memory_fails_its_request_alone("eagle")
    test_damaged_memory_fails_its_request_alone("dflash")


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name, monkeypatch):
    rewrite(monkeypatch, *MUTANTS[name])
    with pytest.raises(DEATHS):
        whole_story()
        pytest.fail("nobody notices", pytrace=False)


# ---------------------------------------------------------------- on a GPU, captured


@pytest.mark.gpu
def test_the_kernel_walks_the_same_way():
    trees = [part.cuda() for part in random_trees(200, 9, 4)]
    sound = torch.tensor(True, device="cuda")
    both = (walk(*trees, 5, sound) for walk in (tree_kernels.walk, tree_kernels.walk_torch))
    for mine, theirs in zip(*both, strict=True):
        assert torch.equal(mine, theirs.to(mine.dtype))


@pytest.mark.gpu
def test_recorded():
    checks.main()
