"""Engine: many requests at once, each served as if it were alone. Scheduler + paged memory + model + drafter.

One step:

    schedule     which requests process how many tokens, and whose drafts get slots (scheduler.py)
    draft        one draft for each request that got slots, all in one call of the drafter (runner.py)
    forward      one forward pass of the target over everything: prompt chunks, single tokens, tokens with their drafts;
                 where it is clear what the next step will process, its pass is launched, too (`run_ahead`)
    judge        accept, correct, emit: the very functions of speculate.py
    update       what was rejected is rewound, surplus blocks go back, finished requests leave

A seed belongs to its request. Without a drafter a request's output does not depend on what else is in the batch,
sampled or not. With one, sampled outputs follow the same distribution, but how many random numbers are used depends on
how deep the batch allowed to draft. Greedy outputs are the same in any case.

What raises in mid-step is tried again for each request alone. Only a request that fails even then ends, with
finish_reason="error" and the exception in `Output.error`.
"""

from __future__ import annotations

import time
import warnings
from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import count
from numbers import Integral
from threading import Lock, get_ident

import torch
from tqdm.auto import tqdm

from ..drafters.base import Drafter
from ..generate import Output, prepare
from ..load.handle import Model
from ..sampling import SamplingParams
from ..speculate import Completion, check_drafter, check_rule
from .blocks import BlockPool, at_least, require
from .metrics import Metrics, StepRecord
from .paged import blocks_that_fit, bytes_per_block
from .runner import Job, Runner, Turn
from .scheduler import FINISHED, POLICIES, Request, Step
from .warm_up import warm_up


class FairLock:
    """A lock that its holder may take again, and that a thread in a loop cannot keep from the others.

    A plain lock would do for safety, but a thread that releases it and takes it again at once nearly always wins. Here
    all wait in `line` first, so the looping thread queues up behind the one that is waiting already.
    """

    def __init__(self):
        self.line, self.lock = Lock(), Lock()
        self.owner, self.depth = None, 0  # the thread that holds it, and how often it has taken it

    @property
    def mine(self) -> bool:
        return self.owner == get_ident()

    def __enter__(self):
        if not self.mine:
            with self.line:
                self.lock.acquire()
            self.owner = get_ident()
        self.depth += 1

    def __exit__(self, *exception):
        self.depth -= 1
        if not self.depth:
            self.owner = None
            self.lock.release()


class Engine:
    """Serve requests together, with continuous batching (or "static", for comparison) and paged memory.

    `num_blocks` blocks of `block_size` tokens are shared by at most `max_num_seqs` requests at a time. None: as many as
    fit on the GPU beside the weights and can be of use, on a CPU 512; `repr(engine)` says how many. A step processes at
    most `max_num_batched_tokens` tokens, at most `max_chunk` of one prompt. Drafts are up to `k` deep; all of a step
    have at most `draft_budget` nodes and scratch tokens. Sampled chains are accepted by `rule`, as in `speculate`.
    With `enable_prefix_caching` a prompt that begins like an earlier one reuses its blocks, unless the drafter needs
    the target's hidden states. Metrics keep the last `history` steps and requests. `fast` (None: on a GPU): see runner.

    Every method may be called from any thread. A thread that steps in a loop lets the others in between two steps.
    Outputs go to the thread that takes them, while `generate` keeps its own. Stream callbacks run inside
    a step: they may add and abort, but not step. Engines may share a drafter if they do not step at the same time.
    """

    def __init__(
        self,
        target: Model,
        drafter: Drafter | None = None,
        num_blocks: int | None = None,
        block_size: int = 16,
        max_num_seqs: int = 32,
        max_num_batched_tokens: int = 512,
        k: int = 4,
        *,
        enable_prefix_caching: bool = True,
        policy: str = "continuous",
        max_chunk: int | None = None,
        draft_budget: int = 64,
        history: int = 1024,
        fast: bool | None = None,
        rule: str = "token",
    ):
        at_least("k", k, 0)
        at_least("history", history, 0)
        if policy not in POLICIES:
            raise ValueError(f"policy={policy!r}: give one of {', '.join(POLICIES)}")
        check_rule(rule, drafter)
        slots = dict(lookahead=k, draft_budget=draft_budget)
        if drafter is not None:
            check_drafter(target, drafter)
            slots |= dict(max_tree_nodes=drafter.max_tree_nodes, scratch_slots=drafter.scratch_slots)
        num_blocks = blocks_that_fit(target, block_size, max_num_seqs) if num_blocks is None else num_blocks
        self.target, self.drafter = target, drafter
        self.k, self.drafts = k, bool(drafter and draft_budget)
        self.pool = BlockPool(num_blocks, block_size, enable_prefix_caching and not (drafter and drafter.hidden_layers))
        self.scheduler = POLICIES[policy](self.pool, max_num_seqs, max_num_batched_tokens, max_chunk=max_chunk, **slots)
        most_nodes = min(drafter.max_tree_nodes(k), draft_budget) if drafter and k else 0
        self.runner = Runner(target, drafter, self.pool, max_num_seqs, most_nodes, fast, rule)
        self.jobs: dict[int | str, Job] = {}
        self.outputs: dict[int | str, Output] = {}  # of requests that have ended, until somebody takes them
        self.measured = Metrics(history)
        self.lock, self.closed = FairLock(), False

    def __repr__(self) -> str:
        pool, by = self.pool, f"drafter={type(self.drafter).__name__}, " if self.drafter else ""
        size = f"{pool.num_blocks * bytes_per_block(self.target, pool.block_size) / 2**20:,.0f} MiB"
        memory = f"{pool.num_blocks} blocks of {pool.block_size} tokens ({size})"
        return f"Engine({self.target.name}, {by}{memory}, max_num_seqs={self.scheduler.max_num_seqs})"

    # ---- requests --------------------------------------------------------------------------------------------------

    def add(
        self, prompt, max_new_tokens: int | None = None, *, request_id: int | str | None = None, **options
    ) -> int | str:
        """Queue a request; returns its id. `options`: `params` (a SamplingParams) or its fields; `stream`, called with
        each piece of text; `k`, how deep to draft for it (None: as the engine, 0: not at all); `priority`: smaller goes
        first."""
        return self._enqueue(self._job(prompt, max_new_tokens, **options), request_id)

    def generate(
        self, prompts: Sequence, params: SamplingParams | None = None, *, progress: bool = True, **options
    ) -> list[Output]:
        """The outputs of a list of prompts, in its order, with a progress bar if there are several. Each has a seed of
        its own, as in a batch of `ms.generate`. Other requests are served meanwhile; their outputs wait for `take`."""
        self._refuse_inside_a_step("generate")
        if isinstance(prompts, str) or (len(prompts) and isinstance(prompts[0], (Integral, dict))):
            prompts = [prompts]  # one text, one list of token ids, or one conversation
        jobs = [self._job(prompt, params=params, index=i, **options) for i, prompt in enumerate(prompts)]
        bar = tqdm(total=len(jobs), unit="request", disable=not progress or len(jobs) < 2)
        with bar, self._serving(jobs):
            there = ended = 0  # how many of these outputs, and how many requests had ended when they were counted
            while there < len(jobs):
                self.step()
                if ended != (ended := self.measured.totals["requests"]):
                    there = sum(job.output is not None for job in jobs)
                    bar.update(there - bar.n)
        return [job.output for job in jobs]

    def run(self) -> dict[int | str, Output]:
        """Step until nothing is left to do; the outputs of all that have ended since they were last taken."""
        self._refuse_inside_a_step("run")
        while self.jobs:
            self.step()
        return self.take()

    def take(self) -> dict[int | str, Output]:
        """The outputs of requests that have ended: kept until they are taken, and not after."""
        with self.lock:
            outputs, self.outputs = self.outputs, {}
            return outputs

    def abort(self, id: int | str) -> None:
        """End a request now, wherever it is. Its output, as far as it came, has finish_reason="abort"."""
        with self.lock:
            self.scheduler.abort(id)
            self._close(self.jobs[id], "abort")

    def shutdown(self) -> None:
        """Abort all requests and give the memory back. Outputs can still be taken; nothing can be added any more."""
        with self.lock:
            for id in list(self.jobs):
                self.abort(id)
            self.closed = True
            self.runner.release()

    def _job(
        self,
        prompt,
        max_new_tokens: int | None = None,
        *,
        params: SamplingParams | None = None,
        index: int = 0,
        stream: Callable[[str], None] | None = None,
        k: int | None = None,
        priority: int = 0,
        **options,
    ) -> Job:
        """A request that is checked, but not added."""
        params = SamplingParams.of(params, max_new_tokens=max_new_tokens, **options)
        k = (self.k if k is None else k) if self.drafts else 0
        prompts, batched = prepare(self.target, prompt, params)
        if batched:
            raise ValueError(f"prompt holds {len(prompts)} prompts: give them to `generate`, or add them one by one")
        if not isinstance(priority, int):
            raise ValueError(f"priority={priority!r}: give a whole number; smaller goes first")
        request = Request(None, prompts[0], params.max_new_tokens, priority, k)
        self.scheduler.check(request)
        return Job(**vars(Completion.begin(self.target, prompts[0], params, index, stream)), request=request)

    def _enqueue(self, job: Job, id: int | str | None = None) -> int | str:
        with self.lock:
            if self.closed:
                raise ValueError("this engine has been shut down: make a new one")
            taken = ChainMap(self.jobs, self.outputs)
            id = next(n for n in count(self.scheduler.arrivals) if n not in taken) if id is None else id
            if not isinstance(id, (int, str)) or id in taken:
                raise ValueError(
                    f"request_id={id!r}: give a number or a string that no running request has, and no "
                    "output not yet taken"
                )
            job.request.id, job.added = id, time.perf_counter()
            self.scheduler.add(job.request)
            self.jobs[id] = job
            return id

    @contextmanager
    def _serving(self, jobs: Sequence[Job]) -> Iterator[None]:
        """Add these requests; at the end, or if anything raises, abort what still runs and keep no output of theirs."""
        try:
            for job in jobs:
                self._enqueue(job)
            yield
        finally:
            with self.lock:
                for job in jobs:
                    if self.jobs.get(job.request.id) is job:
                        self.abort(job.request.id)
                    if job.output is not None and self.outputs.get(job.request.id) is job.output:
                        del self.outputs[job.request.id]

    # ---- one step --------------------------------------------------------------------------------------------------

    def step(self) -> StepRecord:
        """One forward pass of the target for every request whose turn it is."""
        self._refuse_inside_a_step("step")
        with self.lock, torch.inference_mode():
            return self._step()

    def _step(self) -> StepRecord:
        runner, clock = self.runner, self.runner.begin()
        plan = self.scheduler.schedule()
        turns = [Turn(scheduled, self.jobs[scheduled.request.id]) for scheduled in plan.scheduled]
        try:
            self._begin(plan)
            runner.adopt(turns)
            clock.lap("scheduling")
            self._attempt(runner.draft, [turn for turn in turns if turn.plan.draft_length and not turn.asked])
            clock.lap("drafting")
            self._attempt(runner.forward, turns)
            if runner.may_run_ahead(turns) and self.scheduler.reserve_ahead(plan):
                runner.run_ahead(turns)  # the device goes on while the host waits for this step's tokens
            emitting = [turn for turn in turns if turn.plan.emits]
            self._attempt(runner.synchronise, emitting)
            clock.lap("pass")
            self._attempt(runner.judge, emitting)
            runner.keep(turns)
            runner.settle_all(turns, self._fail)
            clock.lap("sampling")
        except BaseException:  # Ctrl-C: what has no result is planned again, and the drafter starts it afresh
            for turn in turns:
                if turn.asked and turn.result is None:
                    runner.restart(turn.job)
            raise
        finally:
            record = self.scheduler.update(plan, {turn.plan.request.id: turn.result for turn in turns})
            for turn in turns:
                if turn.job.output is None and turn.plan.request.status == FINISHED:
                    self._close(turn.job, turn.job.writer.finish_reason)
            clock.lap("scheduling")
            self.measured.add_step(record, turns, clock.seconds)
        return record

    def _begin(self, plan: Step) -> None:
        for job in map(self.jobs.get, plan.preempted):
            job.forget_states()  # all of it will be processed again, so the drafter will get all its states again
            try:
                self.runner.restart(job)
            except Exception as error:
                self._fail(job, error)

    def _attempt(self, work: Callable[[Sequence[Turn]], None], turns: Sequence[Turn]) -> None:
        """Do some work for all turns at once, less those that a callback has aborted meanwhile. If that fails, do it
        for each alone, and end the request that fails again."""
        turns = [turn for turn in turns if turn.runs]
        try:
            if turns:
                work(turns)
        except Exception as error:
            if len(turns) == 1:
                self._fail(turns[0].job, error)
            else:
                for turn in turns:
                    self._attempt(work, [turn])
                if all(turn.runs for turn in turns):  # nothing is wrong with any of them
                    warnings.warn(
                        f"{work.__name__} failed for {len(turns)} requests at once, and succeeded, far more "
                        f"slowly, for each alone: {error!r}",
                        stacklevel=2,
                    )

    def _fail(self, job: Job, error: Exception) -> None:
        if job.output is None:  # else its own callback aborted it, and raised after that
            self.scheduler.finish(job.request.id, "error")
            self._close(job, "error", error)

    def _close(self, job: Job, reason: str, error: Exception | None = None) -> None:
        """The scheduler is done with the request: so are drafter and engine, and its output is there."""
        del self.jobs[job.request.id]
        seconds = time.perf_counter() - job.added
        try:
            if self.drafter:
                self.drafter.forget(job.context.id)
        except Exception as broken:
            reason, error = "error", error or broken
        if job.writer.finish_reason != reason:
            job.writer.end(reason)
        job.output = job.writer.output(job.prompt_tokens, seconds, job.trace if job.request.k else None)
        job.output.error = error
        job.forget_states()
        self.outputs[job.request.id] = job.output
        self.measured.add_request(job)

    def _refuse_inside_a_step(self, method: str) -> None:
        if self.lock.mine:
            raise RuntimeError(
                f"{method}() was called inside a step, from a stream callback or a drafter, but a step "
                "cannot begin before the last one ends: call it after that"
            )

    # ---- figures ---------------------------------------------------------------------------------------------------

    def metrics(self) -> dict:
        """Everything measured so far, as plain data: it goes to JSON as it is."""
        with self.lock:
            return self.measured.to_dict() | {"blocks": asdict(self.pool.stats())}

    def check_integrity(self) -> None:
        """Scheduler, drafter and caller are shown the same tokens of the same requests."""
        with self.lock:
            self.scheduler.check_integrity()
            require(self.jobs.keys() == self.scheduler.requests.keys(), "scheduler and engine serve different requests")
            for id, job in self.jobs.items():
                name, tokens, computed = f"request {id!r}", job.request.tokens, job.request.num_computed_tokens
                require(tokens == job.context.tokens, f"{name}: the drafter is shown other tokens")
                require(tokens[job.prompt_tokens :] == job.writer.tokens, f"{name}: the caller gets other tokens")
                require(job.output is None and not job.ended, f"{name} has ended, but runs")
                held = sum(len(next(iter(states.values()))) for states in job.unseen)
                require(held <= computed, f"{name}: hidden states of {held} tokens, but {computed} are computed")

    warm_up = warm_up  # before any request is added
