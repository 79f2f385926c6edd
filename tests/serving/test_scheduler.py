"""The scheduler: budget, order, preemption, lookahead and rollback, with a scripted model in place of a real one."""

import json
from dataclasses import asdict
from random import Random

import pytest
from block_checks import CHECKS, Server, emit_ones

from minispec.sequence import Sequence
from minispec.serving.blocks import BlockPool
from minispec.serving.scheduler import Scheduler
from minispec.tree import Draft


@pytest.mark.slow
@pytest.mark.parametrize("check", ["scheduler", "guesses last", "shares", "hashed once"])
def test_scheduler(check):
    CHECKS[check]()


# ---------------------------------------------------------------- the plan


def test_long_prompts_are_read_in_chunks_beside_those_who_decode():
    plan = Scheduler(BlockPool(32, 4), 4, max_num_batched_tokens=10)
    server = Server(plan)
    server.add(Sequence("short", [0, 1, 0], max_new_tokens=8), [1] * 8)
    server.step(Random(0))
    server.add(Sequence("long", [0] * 25, max_new_tokens=2), [1, 1])
    records = [server.step(Random(0)) for _ in range(4)]
    assert [[(row.id, row.phase, row.tokens) for row in record.rows] for record in records] == [
        [("short", "decode", 1), ("long", "prefill", 9)],
        [("short", "decode", 1), ("long", "prefill", 9)],
        [("short", "decode", 1), ("long", "prefill", 7)],
        [("short", "decode", 1), ("long", "decode", 1)],
    ]


def test_the_plan_comes_before_the_draft():
    """Slots for every draft that may come; fewer come, fewer are accepted; the rest goes back."""
    pool = BlockPool(32, 4)
    plan = Scheduler(pool, 4, 64, lookahead=4, max_tree_nodes=lambda depth: depth + 1, scratch_slots=2)
    plan.add(request := Sequence("a", [0] * 6, max_new_tokens=20))
    plan.update(emit_ones(plan.schedule()))
    assert request.num_computed_tokens == 6 and pool.num_used == 2
    step = plan.schedule()
    [row] = step.turns
    assert (row.start, row.count, row.draft_length, row.max_nodes, row.num_lookahead_tokens) == (6, 1, 4, 5, 7)
    assert pool.num_used == 4  # 6 + 1 + 7 tokens
    request.draft = Draft([5, 6, 7])
    assert row.tokens == [1, 5, 6, 7] and request.num_tokens_with_spec == 10 and request.behind == 4
    row.emit([5, 9], accepted=1)
    record = plan.update(step)
    assert request.output == [1, 5, 9] and request.num_computed_tokens == 8  # the 9 was not read yet
    assert pool.num_used == 2 and request.draft.tokens == []
    assert json.loads(json.dumps(asdict(record)))["rows"] == [
        {"id": "a", "phase": "verify", "tokens": 4, "emitted": 2, "drafted": 3, "accepted": 1}
    ]


def test_where_blocks_are_short_drafts_shrink_before_anybody_is_pushed_out():
    pool = BlockPool(3, 4)
    plan = Scheduler(pool, 2, 32, lookahead=6)
    for id in range(2):
        plan.add(Sequence(id, [id] * 3, max_new_tokens=9))
    plan.update(emit_ones(plan.schedule()))
    step = plan.schedule()  # both have one slot left in their block, and one block is free
    assert [row.draft_length for row in step.turns] == [4, 0] and not step.preempted


# ---------------------------------------------------------------- trouble


@pytest.mark.parametrize("tokens, accepted", [([], 0), ([1, 2], 0), ([1], 1)])
def test_impossible_results_are_refused_before_anything_changes(tokens, accepted):
    plan = Scheduler(BlockPool(16, 4), 4, 64)
    for id in "ab":
        plan.add(Sequence(id, [0] * 6, max_new_tokens=9))
    step = plan.schedule()
    with pytest.raises(ValueError, match="'b'"):
        step.turns[1].emit(tokens, accepted)
    assert [r.output for r in plan.running] == [[], []]
    plan.update(emit_ones(step))


def test_blocks_held_by_others_are_an_error_and_no_endless_loop():
    pool = BlockPool(4, 4)
    plan = Scheduler(pool, 2, 16)
    pool.start("stranger", range(12))
    plan.add(Sequence("a", [0] * 4, max_new_tokens=8))
    plan.update(emit_ones(plan.schedule()))
    with pytest.raises(RuntimeError, match="outside"):
        plan.schedule()
    pool.free("stranger")
    assert plan.schedule().turns
