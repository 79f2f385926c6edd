"""A scheduler with a scripted model: every request has the output it must end with, and drafts are right by chance."""

import json
from dataclasses import asdict
from random import Random

from slot_memory import Memory

from minispec.sequence import Sequence
from minispec.serving.scheduler import StaticScheduler
from minispec.tree import Draft


class StopsAt:
    """Stands for a Writer: the sequence stops where its script ends."""

    logprobs = None

    def __init__(self, end: int):
        self.end = end

    def write(self, tokens: list[int], ends: bool) -> bool:
        return len(tokens) == self.end and not ends

    def finish(self, tokens: list[int]) -> None:
        pass


class Server:
    """One `step` is one step of an engine, with all that may be observed in it checked."""

    def __init__(self, scheduler):
        self.scheduler, self.memory = scheduler, Memory(scheduler.pool)
        self.requests: dict[int, Sequence] = {}
        self.scripts: dict[int, list[int]] = {}

    def add(self, request: Sequence, script: list[int]):
        """`script`: what it generates after its prompt; shorter than max_new_tokens if it stops by itself."""
        self.scheduler.add(request)
        self.requests[request.id], self.scripts[request.id] = request, [*request.tokens, *script]
        request.writer = StopsAt(len(self.scripts[request.id]))

    def abort(self, request: Sequence) -> None:
        request.end("abort")
        self.scheduler.finish(request)

    def step(self, random: Random, abort=0.0, fail=0.0):
        running, waiting = list(self.scheduler.running), list(self.scheduler.waiting)
        step = self.scheduler.schedule()
        self.check_plan(step, running, waiting)
        done, paths = set(), {}
        for turn in step.turns:
            request = turn.sequence
            paths[request.id] = self.draft(turn, random)
            if random.random() < abort:
                self.abort(request)
            else:
                read = self.memory.read(request.id, turn.start)
                assert read == request.tokens[: turn.start], f"request {request.id} reads {read}"
        for turn in step.turns:
            request = turn.sequence
            if request.ended:
                continue
            if random.random() < fail:  # then an engine ends it
                self.abort(request)
            else:
                self.memory.write(request.id, turn.start, turn.tokens)
                turn.emit(*self.verify(turn, paths[request.id]))
                done.add(request.id)
        record = self.scheduler.update(step)
        self.check_after(step, record, done)
        return record

    def draft(self, turn, random) -> list[int]:
        """Chains with side branches between: which nodes are the chain is returned."""
        request, script, path, tokens = turn.sequence, self.scripts[turn.sequence.id], [], []
        side = turn.max_nodes - turn.draft_length
        for i in range(random.randint(0, turn.draft_length)):
            extra = random.randint(0, side)
            side -= extra
            tokens += [random.randint(0, 1) for _ in range(extra)]
            path.append(len(tokens))
            position = request.num_tokens + i
            right = random.random() < 0.7 and position < len(script)
            tokens.append(script[position] if right else random.randint(0, 1))
        request.draft = Draft(tokens)
        return path

    def verify(self, turn, path) -> tuple[list[int], int]:
        """What is emitted, and how many of the draft tokens on the path were accepted."""
        request = turn.sequence
        if not turn.emits:
            return [], 0
        n, accepted, drafted = request.num_tokens, 0, request.draft.tokens
        rest = self.scripts[request.id][n:]
        while accepted < len(path) and rest[accepted : accepted + 1] == [drafted[path[accepted]]]:
            accepted += 1
        slots = self.memory.pool.slots(request.id, n, n + len(drafted))
        for i, node in enumerate(path[:accepted]):  # the accepted path moves together
            self.memory.slots[slots[i]] = self.memory.slots[slots[node]]
        return [*rest, 0][: accepted + 1], accepted  # what comes after the script's end is not kept

    def check_plan(self, step, running, waiting):
        plan, turns = self.scheduler, step.turns
        ids = [turn.sequence.id for turn in turns]
        assert len(ids) == len(set(ids))
        planned = sum(turn.count + turn.num_lookahead_tokens for turn in turns)
        assert planned <= plan.max_num_batched_tokens, "over budget"
        assert len(plan.running) <= plan.max_num_seqs, "too many in the batch"
        assert sum(turn.num_lookahead_tokens for turn in turns) <= plan.draft_budget, "over the draft budget"
        for turn in turns:
            assert turn.count <= plan.max_chunk and turn.draft_length <= turn.max_nodes
            assert turn.start == turn.sequence.num_computed_tokens
            assert plan.pool.tables[turn.sequence.id].reserved >= turn.start + turn.count + turn.num_lookahead_tokens
        out, came = len(step.preempted), len(step.admitted)
        assert step.preempted == running[::-1][:out], "not the last ones were preempted"
        assert not out or out < len(running), "the first one was preempted"
        assert step.admitted == [request.id for request in waiting][:came], "a waiting request was overtaken"
        assert plan.waiting == [*step.preempted[::-1], *waiting[came:]], "the order of the queue has changed"
        decoding = [request for request in running if request.num_tokens - request.num_computed_tokens == 1]
        left_out = {request.id for request in decoding if request not in step.preempted} - set(ids)
        assert not left_out, "a decoding request was left out"
        if isinstance(plan, StaticScheduler):
            assert not (running and step.admitted), "a request joined a static batch"

    def check_after(self, step, record, done):
        self.scheduler.check_integrity()
        assert self.scheduler.pool.num_used == record.used_blocks
        assert json.loads(json.dumps(asdict(record)))["step"] == step.number
        assert all(not request.draft.tokens for request in self.requests.values())
        for row in record.rows:
            if row.id in done and row.phase != "prefill":
                assert row.tokens == 1 + row.drafted and row.accepted <= row.drafted
        for turn in step.turns:
            request = turn.sequence
            if request.id in done and not request.ended:
                assert request.num_tokens - request.num_computed_tokens == 1 or not request.output or turn.prefill
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

    def run(self, random, limit=3000):
        for _ in range(limit):
            if not self.scheduler.ids:
                break
            self.step(random)
        self.step(random)  # nothing to do is no error, and what ended between steps gets recorded
        assert not self.scheduler.ids and not self.requests, "a request never ends"
        pool = self.scheduler.pool
        assert pool.num_used == 0 and not any(pool.refcount) and not pool.tables, "blocks leak"
