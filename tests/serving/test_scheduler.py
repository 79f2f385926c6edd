"""The scheduler: budget, order, preemption, lookahead and rollback, with a scripted model in place of a real one."""

from random import Random

import pytest
from hypothesis import stateful
from hypothesis import strategies as st
from scripted_server import Server
from slot_memory import chance, random_tokens, run_machine

from minispec.sequence import Sequence
from minispec.serving import blocks
from minispec.serving.blocks import BlockPool
from minispec.serving.scheduler import Scheduler, StaticScheduler
from minispec.tree import Draft
from minispec_course.labs.memory import ContiguousPool


def emit_ones(step):
    """Every request of the step emits a 1, and nothing was accepted."""
    for turn in step.turns:
        turn.emit([1])
    return step


def prefilled(pool, *prompts: list[int], max_new_tokens: int = 9, **options) -> Scheduler:
    """A scheduler whose requests, numbered from 0, have all processed their prompts."""
    plan = Scheduler(pool, **dict(max_num_seqs=20, max_num_batched_tokens=64) | options)
    for id, prompt in enumerate(prompts):
        plan.add(Sequence(id, prompt, max_new_tokens=max_new_tokens))
    plan.update(emit_ones(plan.schedule()))
    return plan


# ---------------------------------------------------------------- the plan


def test_long_prompts_are_processed_in_chunks_beside_requests_that_decode():
    server = Server(Scheduler(BlockPool(32, 4), 4, max_num_batched_tokens=10))
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
    """Slots for every draft token that may come; fewer come, fewer are accepted; the rest goes back."""
    pool = BlockPool(32, 4)
    options = dict(lookahead=4, max_tree_nodes=lambda depth: depth + 1, scratch_slots=2)
    plan = prefilled(pool, [0] * 6, max_new_tokens=20, **options)
    [request] = plan.running
    assert request.num_computed_tokens == 6 and pool.num_used == 2
    step = plan.schedule()
    [turn] = step.turns
    assert (turn.start, turn.count, turn.draft_length, turn.max_nodes, turn.num_lookahead_tokens) == (6, 1, 4, 5, 7)
    assert pool.num_used == 4  # 6 + 1 + 7 tokens
    request.draft = Draft([5, 6, 7])
    assert turn.tokens == [1, 5, 6, 7] and request.num_tokens_with_spec == 10 and request.behind == 4
    turn.emit([5, 9], accepted=1)
    [row] = plan.update(step).rows
    assert request.output == [1, 5, 9] and request.num_computed_tokens == 8  # the 9 was not processed yet
    assert pool.num_used == 2 and request.draft.tokens == []
    assert (row.phase, row.tokens, row.emitted, row.drafted, row.accepted) == ("verify", 4, 2, 3, 1)


def test_lookahead_takes_nothing_from_prompts():
    """No block from a prompt that waits, and no token from one that is being processed."""
    pool = BlockPool(4, 4)
    plan = prefilled(pool, [0] * 3, max_new_tokens=12, max_num_seqs=4, max_num_batched_tokens=8, lookahead=6)
    plan.add(Sequence(1, [0] * 11, max_new_tokens=2))
    step = plan.schedule()
    assert [(turn.sequence.id, turn.count, turn.num_lookahead_tokens) for turn in step.turns] == [(0, 1, 0), (1, 7, 0)]
    assert step.admitted == [1] and pool.num_free == 0


def test_where_blocks_are_short_drafts_shrink_before_a_request_is_preempted():
    step = prefilled(BlockPool(3, 4), [0] * 3, [1] * 3, lookahead=6).schedule()
    assert not step.preempted
    assert [turn.draft_length for turn in step.turns] == [4, 0]  # both have a slot left, and one block is free


CHAINS = {1: [3], 3: [3] * 3, 6: [2] * 6, 12: [1] * 12, 14: [1] * 12 + [0] * 2}
TREES = {1: [5], 3: [2] * 3, 6: [1] * 4 + [0] * 2}


@pytest.mark.parametrize(
    "options, planned", [({}, CHAINS), (dict(max_tree_nodes=lambda depth: depth + 2, scratch_slots=2), TREES)]
)
def test_the_draft_budget_is_shared_evenly(options, planned):
    """Fewer nodes each, then fewer requests; never more in all than the budget, and no cliff on the way."""
    for sequences, nodes in planned.items():
        prompts = [[id] for id in range(sequences)]
        turns = prefilled(BlockPool(99, 4), *prompts, lookahead=3, draft_budget=12, **options).schedule().turns
        assert [turn.max_nodes for turn in turns] == nodes
        assert [turn.draft_length for turn in turns] == [min(3, n) for n in nodes]
        assert sum(turn.num_lookahead_tokens for turn in turns) <= 12


def test_a_waiting_prompt_is_hashed_once(monkeypatch):
    """A request that cannot start yet asks at every step which of its blocks are cached."""
    hashed, right = [], blocks.block_hash
    monkeypatch.setattr(blocks, "block_hash", lambda parent, tokens: hashed.append(tokens) or right(parent, tokens))
    server = Server(Scheduler(BlockPool(8, 4), 4, 64))
    server.add(Sequence("first", [0, 1] * 8, max_new_tokens=12), [1] * 12)
    server.add(Sequence("second", [1] * 5, max_new_tokens=12), [1] * 12)
    server.step(Random(0))
    server.add(Sequence("blocked", [0, 1] * 8 + [0] * 12, max_new_tokens=4), [1] * 4)
    hashed.clear()
    for _ in range(4):
        server.step(Random(0))
    assert server.scheduler.waiting and hashed.count([0, 1] * 2) == 4  # four blocks of the first are found
    server.run(Random(0))


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize("tokens, accepted", [([], 0), ([1, 2], 0), ([1], 1)])
def test_impossible_results_are_refused_before_anything_changes(tokens, accepted):
    plan = Scheduler(BlockPool(16, 4), 4, 64)
    for id in "ab":
        plan.add(Sequence(id, [0] * 6, max_new_tokens=9))
    step = plan.schedule()
    with pytest.raises(ValueError, match="'b'"):
        step.turns[1].emit(tokens, accepted)
    assert [request.output for request in plan.running] == [[], []]
    plan.update(emit_ones(step))


def test_blocks_held_from_outside_are_an_error_and_no_endless_loop():
    pool = BlockPool(4, 4)
    pool.start("outside", range(12))
    plan = prefilled(pool, [0] * 4)
    with pytest.raises(RuntimeError, match="outside"):
        plan.schedule()
    pool.free("outside")
    assert plan.schedule().turns


# ---------------------------------------------------------------- in any order


class SchedulerMachine(stateful.RuleBasedStateMachine):
    """Requests arrive, are stepped, fail and are aborted in any order, with any sizes."""

    @stateful.initialize(
        pool=st.tuples(st.integers(4, 16), st.integers(1, 4), st.sampled_from(["caching", "paged", "contiguous"])),
        seqs=st.integers(1, 5),
        spare=st.integers(0, 12),
        chunk=st.none() | st.integers(1, 6),
        lookahead=st.integers(0, 4),
        budget=st.none() | st.integers(0, 8),
        extra=st.integers(0, 2),
        scratch=st.integers(0, 2),
        policy=st.sampled_from([Scheduler, StaticScheduler]),
    )
    def make(self, pool, seqs, spare, chunk, lookahead, budget, extra, scratch, policy):
        num_blocks, size, kind = pool
        if kind == "contiguous":
            made = ContiguousPool(num_blocks, size, max_length=max(1, num_blocks * size // 2))
        else:
            made = BlockPool(num_blocks, size, kind == "caching")
        slots = dict(max_tree_nodes=lambda depth: depth + extra, scratch_slots=scratch)
        plan = policy(made, seqs, seqs + spare, max_chunk=chunk, lookahead=lookahead, draft_budget=budget, **slots)
        self.server, self.ids = Server(plan), 0

    @stateful.rule(random=chance)
    def add(self, random):
        plan = self.server.scheduler
        for _ in range(random.randint(1, 4)):
            self.ids += 1
            prompt, new = random_tokens(random, 1, 12), random.randint(1, 14)
            request = Sequence(self.ids, prompt, max_new_tokens=new, k=random.choice((None, None, 0, 6)))
            if len(prompt) + new - 1 <= plan.pool.max_tokens:
                self.server.add(request, random_tokens(random, random.choice((1, new)), new))
                continue
            before = list(plan.waiting)
            with pytest.raises(ValueError, match="blocks"):  # it can never fit
                plan.add(request)
            assert before == plan.waiting and request.id not in plan.ids

    @stateful.precondition(lambda self: self.server.scheduler.ids)
    @stateful.rule(random=chance, trouble=st.sampled_from([0, 0, 1]))
    def step(self, random, trouble):
        self.server.step(random, abort=0.1 * trouble, fail=0.3 * trouble)

    @stateful.precondition(lambda self: self.server.scheduler.ids)
    @stateful.rule(random=chance)
    def some_steps(self, random):
        for _ in range(3):
            self.server.step(random)

    @stateful.precondition(lambda self: len(self.server.scheduler.ids) > 3)
    @stateful.rule(random=chance)
    def abort(self, random):
        plan = self.server.scheduler
        self.server.abort(random.choice(plan.waiting + plan.running))

    @stateful.invariant()
    def bookkeeping_is_right(self):
        if hasattr(self, "server"):
            self.server.scheduler.check_integrity()

    def teardown(self):
        if hasattr(self, "server"):
            self.server.run(Random(0))


@pytest.mark.slow
def test_in_any_order_every_request_ends_with_its_own_output():
    run_machine(SchedulerMachine, examples=60, steps=25)
