"""Checks that the block pool and the scheduler keep their promises, against a memory that really holds tokens.

`Memory` stands for the tensors: slot → token. A text is right when its request reads it back through its table.
"""

import json
from dataclasses import asdict
from random import Random

from hypothesis import HealthCheck, Phase, settings, stateful
from hypothesis import strategies as st
from pytest import MonkeyPatch

from minispec.sequence import Sequence
from minispec.serving import blocks, scheduler
from minispec.tree import Draft
from minispec_course.labs.memory import ContiguousPool

TREES = dict(max_tree_nodes=lambda depth: depth + 2, scratch_slots=2)


class Memory:
    def __init__(self, pool):
        self.pool, self.slots = pool, {}

    def write(self, request, start, tokens):
        self.slots.update(zip(self.pool.slots(request, start, start + len(tokens)), tokens, strict=True))

    def read(self, request, stop):
        return [self.slots.get(slot) for slot in self.pool.slots(request, 0, stop)]

    def read_blocks(self, table):
        size = self.pool.block_size
        return [self.slots.get(block * size + i) for block in table for i in range(size)]

    def fill(self, request, tokens):
        """Prefill: start the request, compute what is not cached, keep all of it."""
        cached = self.pool.start(request, tokens)
        self.write(request, cached, tokens[cached:])
        self.pool.commit(request, tokens)
        return cached


# ---- the pool, by chance -------------------------------------------------------------------------------------------

# Hypothesis chooses what happens; how exactly follows from a seed, since lists of its own are mostly short or empty.
chance = st.integers(0, 2**32).map(Random)


def words(random: Random, least: int, most: int) -> list[int]:
    """Two words only, so that texts often begin alike."""
    return random.choices((0, 1), k=random.randint(least, most))


class PoolMachine(stateful.RuleBasedStateMachine):
    """Requests start, grow with drafts that are partly refused, and end, in any order."""

    @stateful.initialize(
        num_blocks=st.sampled_from([3, 8, 16, 32]),
        block_size=st.sampled_from([1, 2, 3, 4]),
        sharing=st.sampled_from([True, True, False]),
    )
    def make(self, num_blocks, block_size, sharing):
        self.pool = blocks.BlockPool(num_blocks, block_size, sharing)
        self.memory, self.texts, self.seen, self.ids = Memory(self.pool), {}, [[]], 0
        for seed in range(2):
            self.start(Random(seed))

    def new_id(self):
        self.ids += 1
        return self.ids

    @stateful.rule(random=chance)
    def arrive(self, random):
        self.start(random)

    def start(self, random):
        tokens = random.choice([*self.seen, *self.texts.values()]) + words(random, 0, 9)
        request, pool = self.new_id(), self.pool
        running = sum(pool.refcount[block] > 0 for block in pool.match_prefix(tokens))
        fits = pool.blocks_for(len(tokens)) - running <= pool.num_free
        cached = pool.start(request, tokens)
        assert (cached is not None) == fits
        if cached is not None:
            assert cached < max(1, len(tokens)), "a prefix hit must leave a token to compute"
            assert self.memory.read(request, cached) == tokens[:cached]
            self.memory.write(request, cached, tokens[cached:])
            kept = random.choice((len(tokens), random.randint(cached, len(tokens))))
            pool.commit(request, tokens, kept)
            pool.trim(request)
            self.texts[request] = tokens[:kept]

    @stateful.precondition(lambda self: self.texts)
    @stateful.rule(random=chance)
    def pass_over_some(self, random):
        for request in random.sample(list(self.texts), k=(len(self.texts) + 1) // 2):
            self.append(request, random)

    def append(self, request, random):
        pool = self.pool
        text, tokens, drafts = self.texts[request], words(random, 1, 3), words(random, 0, 6)
        whole = text + tokens + drafts
        for total in (len(text) + len(tokens), len(whole)):  # the certain ones first, then the lookahead slots
            if not pool.allocate(request, total):
                assert pool.blocks_for(total) - len(pool.table(request)) > pool.num_free
                self.end(request)  # or nothing would happen any more
                return
        self.memory.write(request, len(text), whole[len(text) :])
        self.texts[request] = whole[: len(text) + len(tokens) + random.randint(0, len(drafts))]
        pool.commit(request, whole, len(self.texts[request]))
        pool.trim(request)

    @stateful.precondition(lambda self: self.texts)
    @stateful.rule(random=chance)
    def free(self, random):
        self.end(random.choice(list(self.texts)))

    def end(self, request):
        self.pool.free(request)
        self.seen = [*self.seen, self.texts.pop(request)][-8:]

    @stateful.precondition(lambda self: self.pool.cached_blocks)
    @stateful.rule(random=chance)
    def evict(self, random):
        """A stranger takes many of the free blocks, fills them with its own text and leaves without a trace."""
        tokens = [7] * random.randint(1, min(12, self.pool.num_free * self.pool.block_size))
        self.pool.start("stranger", tokens)
        self.memory.write("stranger", 0, tokens)
        self.pool.free("stranger")

    @stateful.invariant()
    def books_balance(self):
        if not hasattr(self, "pool"):
            return
        self.pool.check_integrity()
        for request, text in self.texts.items():
            assert self.memory.read(request, len(text)) == text, f"request {request} reads somebody else's tokens"
            assert len(self.pool.table(request)) == self.pool.blocks_for(len(text)), "surplus blocks were kept"
        for text in self.seen:
            for tokens in (text, [*text, 0]):
                found = self.pool.match_prefix(tokens)
                assert len(found) * self.pool.block_size < max(1, len(tokens))
                assert self.memory.read_blocks(found) == tokens[: len(found) * self.pool.block_size]
        stats = self.pool.stats()
        assert stats.tokens == sum(map(len, self.texts.values())) >= stats.tokens_stored
        assert 0 <= stats.waste <= (self.pool.block_size - 1) * len(self.texts)

    def teardown(self):
        if hasattr(self, "pool"):
            for request in self.texts:
                self.pool.free(request)
            self.pool.check_integrity()
            assert self.pool.num_used == 0 and not any(self.pool.refcount)


# ---- the scheduler, by chance --------------------------------------------------------------------------------------


class Script:
    """In the place of a Writer: the text stops where the script ends."""

    logprobs = None

    def __init__(self, end: int):
        self.end = end

    def write(self, tokens: list[int], ends: bool) -> bool:
        return len(tokens) == self.end and not ends

    def finish(self, tokens: list[int]) -> None:
        pass


def abort_one(plan, request: Sequence) -> None:
    request.end("abort")
    plan.finish(request)


def emit_ones(step):
    """Every request of the step emits a 1 and nothing was accepted."""
    for turn in step.turns:
        turn.emit([1])
    return step


class Server:
    """A scheduler with a scripted model: every request has the text it must end with, drafts are right by chance.

    One `step` is one step of an engine, with all that may be observed in it checked.
    """

    def __init__(self, scheduler):
        self.scheduler, self.memory = scheduler, Memory(scheduler.pool)
        self.requests: dict[int, Sequence] = {}
        self.scripts: dict[int, list[int]] = {}
        self.records = []

    def add(self, request: Sequence, script: list[int]):
        """`script`: what it writes after its prompt; shorter than max_new_tokens if it stops by itself."""
        self.scheduler.add(request)
        self.requests[request.id], self.scripts[request.id] = request, [*request.tokens, *script]
        request.writer = Script(len(self.scripts[request.id]))

    def step(self, random: Random, abort=0.0, fail=0.0):
        plan, pool = self.scheduler, self.scheduler.pool
        running, waiting = list(plan.running), list(plan.waiting)
        step = plan.schedule()
        self.check_plan(step, running, waiting)
        done, paths = set(), {}
        for row in step.turns:
            request = row.sequence
            paths[request.id] = self.draft(row, self.scripts[request.id], random)
            if random.random() < abort:
                abort_one(plan, request)
            else:
                read = self.memory.read(request.id, row.start)
                assert read == request.tokens[: row.start], f"request {request.id} reads {read}"
        for row in step.turns:
            request = row.sequence
            if request.ended:
                continue
            if random.random() < fail:  # then an engine ends it
                abort_one(plan, request)
            else:
                self.memory.write(request.id, row.start, row.tokens)
                row.emit(*self.verify(row, self.scripts[request.id], paths[request.id]))
                done.add(request.id)
        record = plan.update(step)
        self.check_after(step, record, done)
        assert pool.num_used == record.used_blocks and json.loads(json.dumps(asdict(record)))["step"] == step.number
        self.records.append(record)
        return record

    def draft(self, row, script, random):
        """Chains with side branches between: which nodes are the chain is returned."""
        request, path, tokens = row.sequence, [], []
        depth = random.randint(0, row.draft_length)
        side = row.max_nodes - row.draft_length
        for i in range(depth):
            extra = random.randint(0, side)
            side -= extra
            tokens += [random.randint(0, 1) for _ in range(extra)]
            path.append(len(tokens))
            place = request.num_tokens + i
            right = random.random() < 0.7 and place < len(script)
            tokens.append(script[place] if right else random.randint(0, 1))
        request.draft = Draft(tokens)
        return path

    def verify(self, row, script, path):
        request = row.sequence
        if not row.emits:
            return [], 0
        n, accepted, drafted = request.num_tokens, 0, request.draft.tokens
        right = lambda i: script[n + i : n + i + 1] == [drafted[path[i]]]  # noqa: E731
        while accepted < len(path) and right(accepted):
            accepted += 1
        slots = self.memory.pool.slots(request.id, n, n + len(drafted))
        for i, node in enumerate(path[:accepted]):  # the accepted path moves together
            self.memory.slots[slots[i]] = self.memory.slots[slots[node]]
        return [*script[n:], 0][: accepted + 1], accepted  # what comes after the script's end is not kept

    def check_plan(self, step, running, waiting):
        plan = self.scheduler
        ids = [row.sequence.id for row in step.turns]
        assert len(ids) == len(set(ids))
        planned = sum(row.count + row.num_lookahead_tokens for row in step.turns)
        assert planned <= plan.max_num_batched_tokens, "over budget"
        assert len(plan.running) <= plan.max_num_seqs, "too many at once"
        assert all(row.count <= plan.max_chunk for row in step.turns)
        assert sum(row.num_lookahead_tokens for row in step.turns) <= plan.draft_budget, "over the draft budget"
        assert all(row.draft_length <= row.max_nodes for row in step.turns)
        for row in step.turns:
            assert row.start == row.sequence.num_computed_tokens
            assert plan.pool.tables[row.sequence.id].reserved >= row.start + row.count + row.num_lookahead_tokens
        out = len(step.preempted)
        assert step.preempted == running[::-1][:out], "not the last ones were pushed out"
        assert not out or out < len(running), "the first one was pushed out"
        came = len(step.admitted)
        assert step.admitted == [r.id for r in waiting][:came], "somebody was overtaken"
        assert plan.waiting == [*step.preempted[::-1], *waiting[came:]], "somebody lost the place in the queue"
        decoding = {r.id for r in running if r.num_tokens - r.num_computed_tokens == 1} - {r.id for r in step.preempted}
        assert decoding <= set(ids), "a decoding request was left out"
        if isinstance(plan, scheduler.StaticScheduler):
            assert not (running and step.admitted), "a static batch was joined"

    def check_after(self, step, record, done):
        self.scheduler.check_integrity()
        assert all(not r.draft.tokens for r in self.requests.values())
        for row in record.rows:
            if row.id in done and row.phase != "prefill":
                assert row.tokens == 1 + row.drafted and row.accepted <= row.drafted
        for row in step.turns:
            request = row.sequence
            if request.id in done and not request.ended:
                assert request.num_tokens - request.num_computed_tokens == 1 or not request.output or row.prefill
        for id in record.finished:
            request, script = self.requests.pop(id), self.scripts.pop(id)
            assert request.status == "finished" and id not in self.scheduler.ids
            if request.finish_reason == "abort":
                assert request.tokens == script[: request.num_tokens]
            else:
                full = len(script) == request.prompt_length + request.max_new_tokens
                assert request.tokens == script and request.finish_reason == ("length" if full else "stop")
        for id, request in self.requests.items():
            assert request.tokens == self.scripts[id][: request.num_tokens]

    def run(self, random, limit=3000, **chances):
        for _ in range(limit):
            if not self.scheduler.ids:
                break
            self.step(random, **chances)
        self.step(random)  # nothing to do is no error, and what ended between steps gets recorded
        assert not self.scheduler.ids and not self.requests, "somebody never ends"
        pool = self.scheduler.pool
        assert pool.num_used == 0 and not any(pool.refcount) and not pool.tables, "blocks leak"


class SchedulerMachine(stateful.RuleBasedStateMachine):
    @stateful.initialize(
        pool=st.tuples(st.integers(4, 16), st.integers(1, 4), st.sampled_from(["sharing", "paged", "contiguous"])),
        seqs=st.integers(1, 5),
        spare=st.integers(0, 12),
        chunk=st.none() | st.integers(1, 6),
        lookahead=st.integers(0, 4),
        budget=st.none() | st.integers(0, 8),
        extra=st.integers(0, 2),
        scratch=st.integers(0, 2),
        static=st.booleans(),
    )
    def make(self, pool, seqs, spare, chunk, lookahead, budget, extra, scratch, static):
        num_blocks, size, kind = pool
        if kind == "contiguous":
            made = ContiguousPool(num_blocks, size, max_length=max(1, num_blocks * size // 2))
        else:
            made = blocks.BlockPool(num_blocks, size, kind == "sharing")
        policy = scheduler.StaticScheduler if static else scheduler.Scheduler
        slots = dict(max_tree_nodes=lambda depth: depth + extra, scratch_slots=scratch)
        plan = policy(made, seqs, seqs + spare, max_chunk=chunk, lookahead=lookahead, draft_budget=budget, **slots)
        self.server, self.ids = Server(plan), 0

    @stateful.rule(random=chance)
    def add(self, random):
        plan = self.server.scheduler
        for _ in range(random.randint(1, 4)):
            self.ids += 1
            prompt, new = words(random, 1, 12), random.randint(1, 14)
            request = Sequence(self.ids, prompt, max_new_tokens=new, k=random.choice((None, None, 0, 6)))
            if len(prompt) + new - 1 <= plan.pool.max_tokens:
                self.server.add(request, words(random, random.choice((1, new)), new))
                continue
            before = list(plan.waiting)
            try:
                plan.add(request)
            except ValueError as error:
                assert "blocks" in str(error) and before == plan.waiting and request.id not in plan.ids
            else:
                raise AssertionError("a request that can never fit was let in")

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
        abort_one(plan, random.choice(plan.waiting + plan.running))

    @stateful.invariant()
    def books_balance(self):
        if hasattr(self, "server"):
            self.server.scheduler.check_integrity()

    def teardown(self):
        if hasattr(self, "server"):
            self.server.run(Random(0))


def run_machine(machine, examples: int, steps: int = 50) -> None:
    quiet = dict(database=None, deadline=None, suppress_health_check=list(HealthCheck), print_blob=False)
    size = dict(max_examples=examples, stateful_step_count=steps, phases=[Phase.generate], report_multiple_bugs=False)
    every = settings(derandomize=True, **size, **quiet)  # the same in every run
    stateful.run_state_machine_as_test(machine, settings=every)


def check_pool(examples: int = 100) -> None:
    run_machine(PoolMachine, examples)


def check_scheduler(examples: int = 60) -> None:
    run_machine(SchedulerMachine, examples, steps=25)


# ---- single promises, without chance -------------------------------------------------------------------------------


def check_lru() -> None:
    """The least recently used block goes first."""
    pool = blocks.BlockPool(4, 1)
    memory = Memory(pool)
    for request, token in (("a", 1), ("b", 2), ("c", 3), ("d", 4)):
        memory.fill(request, [token])
    for request in "bacd":
        pool.free(request)
    memory.fill("a again", [1, 9])  # uses 1 and evicts 2, the longest unused
    assert [bool(pool.match_prefix([token, 0])) for token in (1, 2, 3, 4)] == [True, False, True, True]
    pool.free("a again")  # now 3 and 4 are older than 1
    memory.fill("e", [5, 6])
    assert [bool(pool.match_prefix([token, 0])) for token in (1, 3, 4)] == [True, False, False]
    assert pool.stats().evictions == 3


def check_prefix_end() -> None:
    """Of a prefix the end goes first."""
    pool = blocks.BlockPool(3, 2)
    memory = Memory(pool)
    memory.fill("a", [1, 2, 3, 4, 5, 6])
    pool.free("a")
    memory.fill("b", [7, 8])
    assert len(pool.match_prefix([1, 2, 3, 4, 5, 6, 0])) == 2


def check_guesses_last() -> None:
    """Lookahead slots take no block from a prompt that waits, and no token from one that is being read."""
    pool = blocks.BlockPool(4, 4)
    plan = scheduler.Scheduler(pool, 4, max_num_batched_tokens=8, lookahead=6)
    server = Server(plan)
    server.add(Sequence(0, [0] * 3, max_new_tokens=12), [1] * 12)
    server.step(Random(0))
    server.add(Sequence(1, [0] * 11, max_new_tokens=2), [1] * 2)
    step = plan.schedule()
    assert [(row.sequence.id, row.count, row.num_lookahead_tokens) for row in step.turns] == [(0, 1, 0), (1, 7, 0)]
    assert step.admitted == [1] and pool.num_free == 0


def check_shares() -> None:
    """Fewer nodes each, then fewer requests; never more in all than the budget, and no cliff on the way."""
    for trees, planned in (
        ({}, {1: [3], 3: [3] * 3, 6: [2] * 6, 12: [1] * 12, 14: [1] * 12 + [0] * 2}),
        (TREES, {1: [5], 3: [2] * 3, 6: [1] * 4 + [0] * 2}),
    ):
        for sequences, nodes in planned.items():
            plan = scheduler.Scheduler(blocks.BlockPool(99, 4), 20, 64, lookahead=3, draft_budget=12, **trees)
            for id in range(sequences):
                plan.add(Sequence(id, [id], max_new_tokens=9))
            plan.update(emit_ones(plan.schedule()))
            step = plan.schedule()
            assert [row.max_nodes for row in step.turns] == nodes
            assert [row.draft_length for row in step.turns] == [min(3, n) for n in nodes]
            assert sum(row.num_lookahead_tokens for row in step.turns) <= 12


def check_hashed_once() -> None:
    """A request that cannot start yet asks at every step which of its blocks are cached, but is hashed once."""
    hashed, right = [], blocks.block_hash
    with MonkeyPatch.context() as patch:
        patch.setattr(blocks, "block_hash", lambda parent, tokens: hashed.append(tokens) or right(parent, tokens))
        server = Server(scheduler.Scheduler(blocks.BlockPool(8, 4), 4, 64))
        server.add(Sequence("first", [0, 1] * 8, max_new_tokens=12), [1] * 12)
        server.add(Sequence("second", [1] * 5, max_new_tokens=12), [1] * 12)
        server.step(Random(0))
        server.add(Sequence("blocked", [0, 1] * 8 + [0] * 12, max_new_tokens=4), [1] * 4)
        hashed.clear()
        for _ in range(4):
            server.step(Random(0))
        assert server.scheduler.waiting and hashed.count([0, 1] * 2) == 4  # four blocks of the first are found
        server.run(Random(0))


CHECKS = {name[6:].replace("_", " "): check for name, check in list(globals().items()) if name.startswith("check_")}
