"""The scheduler: budget, order, preemption, lookahead and rollback, with a scripted model in place of a real one."""

from __future__ import annotations

import json
from dataclasses import asdict
from random import Random

import pytest
from block_checks import CHECKS, TREES, SchedulerMachine, Server, run_machine, words

from minispec.serving.blocks import BlockPool, IntegrityError
from minispec.serving.scheduler import Request, Result, Scheduler, StaticScheduler


@pytest.mark.slow
@pytest.mark.parametrize("check", ["scheduler", "overtaking", "two", "guesses last", "shares", "hashed once"])
def test_scheduler(check):
    CHECKS[check]()


@pytest.mark.nightly
@pytest.mark.slow
def test_ten_thousand_steps_break_no_invariant():
    assert run_machine(SchedulerMachine, examples=450, steps=25, shrink=True) >= 10_000


def crowd(plan: Scheduler, count: int, seed: int, longest: int = 40) -> Server:
    server, random = Server(plan), Random(seed)
    for id in range(count):
        new = random.randint(1, longest)
        server.add(Request(id, words(random, 1, longest), new), words(random, random.choice((1, new)), new))
    return server


@pytest.mark.parametrize("policy", [Scheduler, StaticScheduler])
@pytest.mark.parametrize("sharing", [False, True])
def test_a_crowd_in_a_small_pool_ends_with_exactly_its_texts(policy, sharing):
    plan = policy(BlockPool(30, 4, sharing), 8, 40, lookahead=4, **TREES)
    server = crowd(plan, 80, seed=1)
    server.run(Random(2), abort=0.002, fail=0.02)
    assert sum(len(record.preempted) for record in server.records) >= 10
    assert sum(row.accepted for record in server.records for row in record.rows) > 100


# ---------------------------------------------------------------- the plan


def test_long_prompts_are_read_in_chunks_beside_those_who_decode():
    plan = Scheduler(BlockPool(32, 4), 4, max_num_batched_tokens=10)
    server = Server(plan)
    server.add(Request("short", [0, 1, 0], 8), [1] * 8)
    server.step(Random(0))
    server.add(Request("long", [0] * 25, 2), [1, 1])
    records = [server.step(Random(0)) for _ in range(4)]
    assert [[(row.id, row.phase, row.tokens) for row in record.rows] for record in records] == [
        [("short", "decode", 1), ("long", "prefill", 9)],
        [("short", "decode", 1), ("long", "prefill", 9)],
        [("short", "decode", 1), ("long", "prefill", 7)],
        [("short", "decode", 1), ("long", "decode", 1)],
    ]


def test_a_chunk_has_its_own_limit():
    plan = Scheduler(BlockPool(32, 4), 4, max_num_batched_tokens=20, max_chunk=6)
    for id in range(2):
        plan.add(Request(id, [id] * 15, 1))
    assert [row.count for row in plan.schedule().scheduled] == [6, 6]


def test_the_plan_comes_before_the_draft():
    """Slots for every draft that may come; fewer come, fewer are accepted; the rest goes back."""
    pool = BlockPool(32, 4)
    plan = Scheduler(pool, 4, 64, lookahead=4, max_tree_nodes=lambda depth: depth + 1, scratch_slots=2)
    plan.add(request := Request("a", [0] * 6, 20))
    plan.update(plan.schedule(), {"a": Result([1])})
    assert request.num_computed_tokens == 6 and pool.num_used == 2
    step = plan.schedule()
    [row] = step.scheduled
    assert (row.start, row.count, row.draft_length, row.max_nodes, row.num_lookahead_tokens) == (6, 1, 4, 5, 7)
    assert pool.num_used == 4  # 6 + 1 + 7 tokens
    request.draft_tokens = [5, 6, 7]
    assert row.tokens == [1, 5, 6, 7] and request.num_tokens_with_spec == 10 and request.behind == 4
    record = plan.update(step, {"a": Result([5, 9], accepted=1)})
    assert request.output == [1, 5, 9] and request.num_computed_tokens == 8  # the 9 was not read yet
    assert pool.num_used == 2 and request.draft_tokens == []
    assert json.loads(json.dumps(asdict(record)))["rows"] == [
        {"id": "a", "phase": "verify", "tokens": 4, "drafted": 3, "accepted": 1}
    ]


def test_the_last_drafts_are_no_longer_than_the_text():
    plan = Scheduler(BlockPool(32, 4), 4, 64, lookahead=4)
    plan.add(Request("a", [0], 3))
    plan.update(plan.schedule(), {"a": Result([1])})
    assert plan.schedule().scheduled[0].draft_length == 1  # one draft and the token after it are all that is wanted


def test_where_blocks_are_short_drafts_shrink_before_anybody_is_pushed_out():
    pool = BlockPool(3, 4)
    plan = Scheduler(pool, 2, 32, lookahead=6)
    for id in range(2):
        plan.add(Request(id, [id] * 3, 9))
    plan.update(plan.schedule(), {id: Result([1]) for id in range(2)})
    step = plan.schedule()  # both have one slot left in their block, and one block is free
    assert [row.draft_length for row in step.scheduled] == [4, 0] and not step.preempted


def test_priorities_come_first_and_go_last():
    pool = BlockPool(5, 4, enable_prefix_caching=False)
    server = Server(Scheduler(pool, 3, 32))
    server.add(Request("low", [0] * 4, 9, priority=1), [1] * 9)
    server.add(Request("normal", [0] * 4, 9), [1] * 9)
    server.add(Request("urgent", [0] * 4, 9, priority=-1), [1] * 9)
    assert server.step(Random(0)).admitted == ["urgent", "normal", "low"]
    server.run(Random(0))
    assert {id for record in server.records for id in record.preempted} <= {"normal", "low"}
    assert [id for record in server.records for id in record.finished] == ["urgent", "normal", "low"]


def test_preempted_work_is_found_again_if_it_is_still_cached():
    pool = BlockPool(6, 4)
    server = Server(Scheduler(pool, 2, 64))
    server.add(Request("old", [0] * 8, 9), [1] * 9)
    server.add(Request("new", [1] * 12, 2), [0, 0])
    server.run(Random(0))
    assert sum(len(record.preempted) for record in server.records) == 1
    assert pool.stats().prefix_tokens >= 8  # some of the twelve were not evicted meanwhile


def test_a_static_batch_is_joined_by_nobody():
    lengths = [2, 30, 2, 2, 2, 2]
    steps = {}
    for policy in (Scheduler, StaticScheduler):
        server = Server(policy(BlockPool(64, 4), 2, 32))
        for id, new in enumerate(lengths):
            server.add(Request(id, [id], new), [1] * new)
        server.run(Random(0))
        steps[policy] = len(server.records)
        if policy is StaticScheduler:
            assert [record.admitted for record in server.records if record.admitted] == [[0, 1], [2, 3], [4, 5]]
    assert steps[Scheduler] < steps[StaticScheduler]


# ---------------------------------------------------------------- trouble


def test_a_pass_that_failed_is_planned_again():
    plan = Scheduler(BlockPool(16, 4), 4, 64, lookahead=3)
    plan.add(request := Request("a", [0] * 6, 9))
    plan.update(plan.schedule(), {})
    assert request.num_computed_tokens == 0
    plan.update(plan.schedule(), {"a": Result([1])})
    used = plan.pool.num_used
    step = plan.schedule()
    request.draft_tokens = [1, 2, 3]
    plan.update(step, {})
    assert request.output == [1] and request.num_computed_tokens == 6 and plan.pool.num_used == used
    plan.check_integrity()


def test_whoever_ends_in_mid_step_is_skipped_and_the_others_go_on():
    plan = Scheduler(BlockPool(16, 4), 4, 64)
    for id in "ab":
        plan.add(Request(id, [0] * 6, 9))
    step = plan.schedule()
    failed = plan.finish("a", "error")
    plan.add(Request("a", [1], 2))  # the id is free at once
    record = plan.update(step, {"b": Result([1])})
    assert failed.finish == "error" and failed.output == [] and record.finished == ["a"]
    plan.check_integrity()
    assert [row.request.id for row in plan.schedule().scheduled] == ["b", "a"]


def test_text_after_the_end_is_left_out():
    plan = Scheduler(BlockPool(16, 2), 4, 64, lookahead=4)
    plan.add(request := Request("a", [0], 9))
    plan.update(plan.schedule(), {"a": Result([1])})
    step = plan.schedule()
    request.draft_tokens = [2, 3, 4, 5]
    record = plan.update(step, {"a": Result([2, 3], accepted=4, finish="stop")})
    assert request.output == [1, 2, 3] and request.finish == "stop" and record.finished == ["a"]
    assert plan.pool.num_used == 0 and len(plan.pool.match_prefix([0, 1, 2, 3, 9])) == 2


@pytest.mark.parametrize(
    "result", [Result(), Result([1, 2]), Result([1], accepted=1), Result([1, 2], accepted=1), Result([], accepted=-1)]
)
def test_impossible_results_are_refused_before_anything_changes(result):
    plan = Scheduler(BlockPool(16, 4), 4, 64)
    for id in "ab":
        plan.add(Request(id, [0] * 6, 9))
    step = plan.schedule()
    with pytest.raises(ValueError, match="'b'"):
        plan.update(step, {"a": Result([1]), "b": result})
    assert [r.output for r in plan.running] == [[], []]
    plan.update(step, {"a": Result([1]), "b": Result([1])})


def test_blocks_held_by_others_are_an_error_and_no_endless_loop():
    pool = BlockPool(4, 4)
    plan = Scheduler(pool, 2, 16)
    pool.start("stranger", range(12))
    plan.add(Request("a", [0] * 4, 8))
    plan.update(plan.schedule(), {"a": Result([1])})
    with pytest.raises(RuntimeError, match="outside"):
        plan.schedule()
    pool.free("stranger")
    assert plan.schedule().scheduled


def test_integrity_is_really_checked():
    plan = Scheduler(BlockPool(4, 4), 2, 16)
    plan.add(request := Request("a", [0] * 4, 8))
    plan.update(plan.schedule(), {"a": Result([1])})
    plan.check_integrity()
    request.num_computed_tokens -= 1
    with pytest.raises(IntegrityError, match="computed"):
        plan.check_integrity()
