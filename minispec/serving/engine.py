"""Engine: many requests at once, each served as if it were alone. Scheduler + paged memory + model + drafter.

One step:

    schedule     who reads how many tokens, and whose drafts get slots (scheduler.py)
    draft        one draft for each row that got some, all rows in one call of the drafter
    read         one pass of the target over everything: prompt chunks, single tokens, tokens with their drafts
    judge        accept, correct, write: the very functions of speculate.py, row by row
    update       what was refused is forgotten, surplus blocks go back, the finished leave

A row without a draft is plain decoding: a draft of nothing, which is accepted, and a bonus. So there is one path for
all, and speculation can be off for one request (k=0), for all (no drafter), or whenever the batch is full.

When something raises in mid-step, it is tried again for each row alone. Whoever fails even then ends with
finish="error" and the exception in `Output.error`; the others do not notice. The drafter is told to forget all rows of
a call that broke, since nobody knows how far it came: it starts afresh, which costs it time and changes no law.

On a GPU those who read no prompt and whose drafts are chains, which is most rows of most steps, have a pass to
themselves, by one launch: see buckets.py. A draft model's passes go the same way: see drafters/memory.py.

A seed belongs to its request. Without a drafter a request's text does not depend on what else is in the batch, sampled
or not. With one, sampled texts follow the same law, but how many random numbers are used depends on how deep the batch
allowed to draft. Greedy texts are the same in any case.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..drafters.base import Draft, Drafter
from ..files.handle import Model
from ..generate import Output, prepare
from ..sampling import SamplingParams
from ..speculate import Completion, check_drafter, check_shapes, propose, view
from ..trace import Cycle, synchronize
from ..verify import Verdict, judge
from .blocks import BlockPool, require
from .metrics import PARTS, Clock, Metrics, RequestMetrics, StepMetrics
from .paged import PagedKVCache, split
from .scheduler import FINISHED, RUNNING, Request, Result, Scheduler, StaticScheduler, Step, at_least
from .scheduler import Row as PlannedRow
from .scheduler import draft_length as share_evenly

POLICIES = {"continuous": Scheduler, "static": StaticScheduler}


@dataclass(eq=False, kw_only=True)
class Job(Completion):
    """One request: what the scheduler (request), the drafter (context) and the caller (writer) know of it."""

    request: Request
    added: float  # moments, in seconds
    admitted: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    tokens_read: int = 0  # by the target: prompt, text, drafts, and all of it again after a preemption
    output: Output | None = None  # once it has ended

    @property
    def speculates(self) -> bool:
        return self.request.k != 0

    def metrics(self) -> RequestMetrics:
        """Of a job that has ended."""
        out, cycles, first = self.output, self.trace.cycles, self.first_token
        several = len(out.tokens) > 1
        return RequestMetrics(
            id=self.request.id,
            finish=out.finish_reason,
            prompt_tokens=self.prompt_tokens,
            tokens=len(out.tokens),
            tokens_read=self.tokens_read,
            drafted=sum(len(cycle.drafted) for cycle in cycles),
            accepted=sum(cycle.accepted for cycle in cycles),
            preemptions=self.request.preemptions,
            waited=None if self.admitted is None else self.admitted - self.added,
            time_to_first_token=None if first is None else first - self.added,
            time_per_output_token=(self.last_token - first) / (len(out.tokens) - 1) if several else None,
            seconds=out.seconds,
            goodput=out.tokens_per_second,
        )


@dataclass(eq=False)
class Turn:
    """A job's part in one step."""

    plan: PlannedRow
    job: Job
    asked: bool = False  # whether the drafter was
    count: int = 0  # tokens that it read, scratch included
    draft: Draft = field(default_factory=lambda: Draft([]))
    logits: Tensor | None = None  # [1 + drafts + scratch, V], from the last certain token on; or else
    bucket: tuple[Tensor, int] | None = None  # the logits of its whole pass [B, T, V], and which row is its own
    hidden: dict[int, Tensor] = field(default_factory=dict)  # layers → states of all its tokens [n, d]
    verdict: Verdict | None = None
    cycle: Cycle | None = None

    @property
    def decodes(self) -> bool:
        """It reads its last token and a chain after it, if anything: no prompt, no tree, no scratch."""
        return self.plan.count == 1 and self.plan.emits and not self.branches

    @property
    def branches(self) -> bool:
        return self.draft.parents is not None or self.draft.scratch is not None

    def reads(self) -> list[int]:
        return self.plan.tokens + (self.draft.scratch.tokens if self.draft.scratch else [])


class Engine:
    """Serve requests together, with continuous batching (or "static", for comparison) and paged memory.

    `num_blocks` blocks of `block_size` tokens are shared by at most `max_num_seqs` requests at a time; a step reads at
    most `token_budget` tokens, at most `max_chunk` of one prompt. Drafts are up to `k` deep, less when the batch is
    full: `draft_budget` tokens are shared among all rows, and once there are more rows than that, nobody drafts.
    `draft_length(k, rows, budget)` may decide otherwise. With `prefix_sharing` a prompt that begins like an earlier one
    reuses its blocks; a drafter that reads hidden states needs those of every token, so it turns that off. Metrics keep
    the last `history` steps and requests. `fast` passes (None: on a GPU) have fixed shapes, recorded where they can be.
    """

    def __init__(
        self,
        target: Model,
        drafter: Drafter | None = None,
        num_blocks: int = 512,
        block_size: int = 16,
        max_num_seqs: int = 32,
        token_budget: int = 512,
        k: int = 4,
        *,
        prefix_sharing: bool = True,
        policy: str = "continuous",
        max_chunk: int | None = None,
        draft_budget: int = 64,
        draft_length: Callable[[int, int, int], int] = share_evenly,
        history: int = 1024,
        fast: bool | None = None,
    ):
        for name, value, least in (("k", k, 0), ("draft_budget", draft_budget, 0), ("history", history, 0)):
            at_least(name, value, least)
        if policy not in POLICIES:
            raise ValueError(f"policy={policy!r}: give one of {', '.join(POLICIES)}")
        if drafter is not None:
            check_drafter(target, drafter)
        self.target, self.drafter = target, drafter
        self.hidden_layers = tuple(drafter.hidden_layers) if drafter else ()
        self.pool = BlockPool(num_blocks, block_size, prefix_sharing and not self.hidden_layers)
        self.scheduler = POLICIES[policy](
            self.pool, max_num_seqs, token_budget, max_chunk=max_chunk, lookahead=k if drafter else 0,
            extra_slots=drafter.extra_slots if drafter else 0,
            draft_length=lambda k, rows, left: draft_length(k, rows, min(left, draft_budget)),
        )  # fmt: skip
        if fast is None:
            fast = target.device.type == "cuda" and target.transformer.ordinary
        if fast:
            sizes = num_blocks, block_size, max_num_seqs, k if drafter else 0
            self.cache, self.buckets = target.recorder().serve(*sizes, self.hidden_layers)
        else:
            memory = dict(block_size=block_size, device=target.device, dtype=target.dtype)
            self.cache, self.buckets = PagedKVCache(target.config, num_blocks, **memory), None
        if drafter and self.buckets:
            drafter.record()
        self.jobs: dict[int | str, Job] = {}
        self.outputs: dict[int | str, Output] = {}  # of requests that have ended, until somebody takes them
        self.measured = Metrics(history)
        self.arrivals = 0
        self.closed = False

    # ---- requests --------------------------------------------------------------------------------------------------

    def add(
        self,
        prompt,
        max_new_tokens: int | None = None,
        *,
        params: SamplingParams | None = None,
        stream: Callable[[str], None] | None = None,
        k: int | None = None,
        priority: int = 0,
        request_id: int | str | None = None,
        **options,
    ) -> int | str:
        """Queue a request, with the arguments of `generate`; returns its id. Nothing runs before `step` or `run`.

        `k` is how deep to draft for this one (None: as the engine; 0: not at all). Smaller `priority` goes first.
        """
        if self.closed:
            raise ValueError("this engine has been shut down: make a new one")
        params = SamplingParams.of(params, max_new_tokens=max_new_tokens, **options)
        prompts, batched = prepare(self.target, prompt, params)
        if batched:
            raise ValueError(
                f"prompt holds {len(prompts)} prompts: add them one by one, they run together all the same"
            )
        completion = Completion.begin(self.target, prompts[0], params, stream=stream)
        number = self.arrivals
        id = next(n for n in range(number, 2**62) if self._is_free(n)) if request_id is None else request_id
        if not isinstance(id, (int, str)) or not self._is_free(id):
            raise ValueError(
                f"request_id={id!r}: give a number or a string that no running request has, and no output not yet taken"
            )
        if not isinstance(priority, int):
            raise ValueError(f"priority={priority!r}: give a whole number; smaller goes first")
        request = Request(id, prompts[0], params.max_new_tokens, priority, k if self.drafter else 0)
        self.scheduler.add(request)  # refuses what can never run
        self.jobs[id] = Job(**vars(completion), request=request, added=time.perf_counter())
        self.arrivals += 1
        return id

    def _is_free(self, id: int | str) -> bool:
        return id not in self.jobs and id not in self.outputs

    def run(self) -> dict[int | str, Output]:
        """Step until nothing is left to do; the outputs of all that have ended since they were last taken."""
        while self.jobs:
            self.step()
        return self.take()

    def take(self) -> dict[int | str, Output]:
        """The outputs of requests that have ended: kept until they are taken, and not after."""
        outputs, self.outputs = self.outputs, {}
        return outputs

    def stream(self, prompt, max_new_tokens: int | None = None, **options) -> Iterator[str]:
        """Add a request and hand out its text piece by piece, stepping everybody. To stop listening is to abort it.

        `options` are those of `add`. If the request fails, its error is raised here.
        """
        if self.target.tokenizer is None:
            raise ValueError(f"{self.target.name} has no tokenizer, so there is no text to stream: use add and run")
        pieces: deque[str] = deque()
        id = self.add(prompt, max_new_tokens, stream=pieces.append, **options)
        return self._pieces(self.jobs[id], pieces)

    def _pieces(self, job: Job, pieces: deque[str]) -> Iterator[str]:
        id = job.request.id
        try:
            while pieces or job.output is None:
                if pieces:
                    yield pieces.popleft()
                else:
                    self.step()
        finally:
            if job.output is None:
                self.abort(id)
            if self.outputs.get(id) is job.output:
                del self.outputs[id]
        if job.output.error is not None:
            raise job.output.error

    def abort(self, id: int | str) -> None:
        """End a request now, wherever it is. Its output, as far as it came, has finish="aborted"."""
        self.scheduler.abort(id)
        self._close(self.jobs[id], "aborted")

    def shutdown(self) -> None:
        """Abort everybody and give the memory back. Outputs can still be taken; nothing can be added any more."""
        for id in list(self.jobs):
            self.abort(id)
        self.closed, self.cache, self.buckets = True, None, None

    # ---- one step --------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self) -> StepMetrics:
        """One pass of the target for everybody whose turn it is."""
        clock = Clock()
        plan = self.scheduler.schedule()
        turns = [Turn(row, self.jobs[row.request.id]) for row in plan.rows]
        results: dict[int | str, Result] = {}
        try:
            self._begin(plan)
            clock.lap("scheduling")
            self._attempt(self._draft, [turn for turn in turns if turn.plan.draft_length])
            clock.lap("drafting")
            self._attempt(partial(self._read, clock), running(turns))
            clock.lap("pass")
            emitting = [turn for turn in running(turns) if turn.plan.emits]
            self._attempt(self._judge, emitting)
            self._keep(running(emitting))
            clock.lap("sampling")
            for turn in turns:
                self._attempt(partial(self._settle, results, clock), running([turn]))  # a callback may abort the next
            clock.lap("sampling")
        except BaseException:  # Ctrl-C: rows without a result are planned again, and the drafter starts them afresh
            for turn in turns:
                if turn.asked and turn.plan.request.id not in results:
                    self._forget(turn.job)
            raise
        finally:
            record = self.scheduler.update(plan, results)
            for turn in turns:
                if turn.job.output is None and turn.plan.request.status == FINISHED:
                    self._close(turn.job, turn.job.writer.finish_reason)
            clock.lap("scheduling")
            cycles = [turn.cycle for turn in turns if turn.cycle and turn.plan.request.id in results]
            measured = self.measured.add_step(record, sum(turn.count for turn in turns), cycles, clock.seconds)
        return measured

    def _attempt(self, work: Callable[[list[Turn]], None], turns: list[Turn]) -> None:
        """Do some work for all turns at once. If it fails, for each alone: whoever fails even then has failed."""
        if not turns:
            return
        try:
            work(turns)
        except Exception as error:
            if len(turns) == 1:
                self._fail(turns[0].job, error)
            else:
                for turn in turns:
                    self._attempt(work, [turn])

    def _begin(self, plan: Step) -> None:
        now = time.perf_counter()
        for id in plan.admitted:
            job = self.jobs[id]
            job.admitted = now if job.admitted is None else job.admitted
        for id in plan.preempted:  # all of it will be read again, so the drafter will hear all of it again
            job = self.jobs[id]
            job.context.hidden, job.unseen = {}, []
            try:
                self._forget(job)
            except Exception as error:
                self._fail(job, error)
        if plan.copies:
            self.cache.copy(plan.copies)

    def _draft(self, turns: list[Turn]) -> None:
        depths = [turn.plan.draft_length for turn in turns]
        try:
            drafts = propose(self.drafter, [turn.job for turn in turns], max(depths), depths)
            check_shapes(drafts, self.target.config.vocab_size)
            for turn, draft in zip(turns, drafts, strict=True):
                slots = len(draft.tokens) + (len(draft.scratch.tokens) if draft.scratch else 0)
                if slots > (most := turn.plan.num_lookahead_tokens):
                    raise ValueError(f"{self.drafter!r} made a draft of {slots} tokens, scratch included, for {most} "
                                     "slots: its extra_slots must say how many it needs beyond a chain's")  # fmt: skip
        except BaseException:
            for turn in turns:
                self._forget(turn.job)
            raise
        for turn, draft in zip(turns, drafts, strict=True):
            turn.draft, turn.asked = draft, True
            turn.plan.request.draft_tokens = draft.tokens
            turn.job.context.hidden = {}  # the drafter has seen them

    def _read(self, clock: Clock, turns: list[Turn]) -> None:
        """One pass over everything; or two, where there are fixed shapes for those who decode. What these save is far
        more than it costs to read the weights once more for the others."""
        decoding = [turn for turn in turns if turn.decodes] if self.buckets else []
        rows = [turn.reads() for turn in decoding]
        if decoding and self.buckets.takes(rows):
            self._read_bucket(clock, decoding, rows)
            turns = [turn for turn in turns if not turn.decodes]
        if turns:
            self._read_ragged(clock, turns)

    def _read_ragged(self, clock: Clock, turns: list[Turn]) -> None:
        """One pass over [text …, drafts …, scratch …] of every row, end to end; logits only where somebody asks."""
        transformer, device = self.target.transformer, self.target.device
        rows = [turn.reads() for turn in turns]
        starts, counts = [turn.plan.start for turn in turns], [len(row) for row in rows]
        masks, positions = None, None
        if any(turn.branches for turn in turns):  # a drafting row reads one certain token, as a verify pass does
            views = [view(turn.draft, n) if turn.branches else (None, torch.arange(n))
                     for turn, n in zip(turns, counts, strict=True)]  # fmt: skip
            masks = [mask for mask, _ in views]
            offsets = [start + offset for start, (_, offset) in zip(starts, views, strict=True)]
            positions = torch.cat(offsets)[None].to(device)  # [1, N]
        tables = [self.pool.tables[turn.plan.request.id].blocks for turn in turns]
        paged = self.cache.open(tables, starts, counts, masks)
        tokens = torch.tensor([[token for row in rows for token in row]], device=device)  # [1, N]
        clock.lap("scheduling")  # where everybody's blocks are is bookkeeping too
        x, hidden = transformer.body(tokens, paged, positions=positions, hidden_layers=self.hidden_layers)
        # The laws of the tokens after a prompt's are known already; a chunk that does not reach its end yields none.
        asked = [n - turn.plan.count + 1 if turn.plan.emits else 0 for turn, n in zip(turns, counts, strict=True)]
        if sum(asked) < x.shape[1]:
            wanted, end = [], 0
            for n, count in zip(asked, counts, strict=True):
                end += count
                wanted += range(end - n, end)
            x = x[:, wanted]
        logits = split(transformer.head(x), asked)  # [1 + drafts + scratch, V] each
        states = {n: split(state, counts) for n, state in hidden.items()}
        synchronize(device)
        for i, turn in enumerate(turns):
            turn.logits, turn.hidden = logits[i], {n: of_rows[i] for n, of_rows in states.items()}
            turn.count = counts[i]
            turn.job.tokens_read += counts[i]

    def _read_bucket(self, clock: Clock, turns: list[Turn], rows: list[list[int]]) -> None:
        """A pass in a fixed shape, for rows that decode."""
        tables = [self.pool.tables[turn.plan.request.id].blocks for turn in turns]
        clock.lap("scheduling")
        logits, hidden = self.buckets.read(rows, [turn.plan.start for turn in turns], tables)
        if len(turns) == 1:  # after trouble everybody reads alone, one after the other, before anybody is judged
            logits, hidden = logits.clone(), {n: states.clone() for n, states in hidden.items()}
        synchronize(self.target.device)
        clock.lap("pass")
        for i, (turn, row) in enumerate(zip(turns, rows, strict=True)):
            turn.bucket, turn.hidden = (logits, i), {n: states[i, : len(row)] for n, states in hidden.items()}
            turn.count = len(row)
            turn.job.tokens_read += len(row)

    def _judge(self, turns: list[Turn]) -> None:
        drafts, jobs = [turn.draft for turn in turns], [turn.job for turn in turns]
        lossless = self.drafter is None or self.drafter.lossless
        verdicts, p, q = judge(side_by_side(turns), [job.context for job in jobs], drafts, lossless)
        for i, (turn, draft, verdict) in enumerate(zip(turns, drafts, verdicts, strict=True)):
            committed = len(turn.job.context.tokens)
            turn.verdict, turn.cycle = verdict, Cycle.of(draft, verdict, p[i], q and q[i], committed, lossless)

    def _keep(self, turns: list[Turn]) -> None:
        """The accepted path of a tree moves together, to the slots right after the certain token."""
        trees = [turn for turn in turns if turn.draft.parents is not None and turn.verdict.path]
        if not trees:
            return
        tables = [self.pool.tables[turn.plan.request.id].blocks for turn in trees]
        starts = [turn.plan.start + turn.plan.count for turn in trees]
        self.cache.gather(tables, starts, [turn.verdict.path for turn in trees])

    def _settle(self, results: dict, clock: Clock, turns: list[Turn]) -> None:
        """Hand out what one row's pass gave: to the caller, to the scheduler, and to the drafter."""
        [turn] = turns
        job, id, count = turn.job, turn.plan.request.id, turn.plan.count
        path = turn.verdict.path if turn.verdict else []
        if self.hidden_layers and job.speculates:
            states = {n: h[[*range(count), *(count + node for node in path)]] for n, h in turn.hidden.items()}
            job.remember(states, self.drafter.hidden_window)
        if turn.verdict is None:
            results[id] = Result()
            return
        cycle, parts = turn.cycle, clock.seconds
        cycle.draft_seconds, cycle.verify_seconds, cycle.sample_seconds = (parts[part] for part in PARTS[1:])
        job.write(cycle)
        job.last_token = time.perf_counter()
        job.first_token = job.last_token if job.first_token is None else job.first_token
        results[id] = Result(cycle.tokens, turn.verdict.accepted, job.writer.finish_reason)
        if turn.asked and not job.ended:
            scratch = turn.logits[-len(turn.draft.scratch.tokens) :] if turn.draft.scratch else None
            self.drafter.settle(job.context.row, path, turn.verdict.token, scratch)

    # ---- the end of a request --------------------------------------------------------------------------------------

    def _fail(self, job: Job, error: Exception) -> None:
        if job.output is None:  # else its own callback aborted it, and raised after that
            self.scheduler.finish(job.request.id, "error")
            self._close(job, "error", error)

    def _close(self, job: Job, reason: str, error: Exception | None = None) -> None:
        """The scheduler is done with the request: so are we."""
        id, now = job.request.id, time.perf_counter()
        del self.jobs[id]
        try:
            self._forget(job)
        except Exception as broken:
            reason, error = "error", error or broken
        if job.writer.finish_reason != reason:
            job.writer.end(reason)
        trace = job.trace if self.drafter and job.speculates else None
        job.output = self.outputs[id] = job.writer.output(job.prompt_tokens, now - job.added, trace)
        job.output.error = error
        job.context.hidden, job.unseen = {}, []
        self.measured.add_request(job.metrics())

    def _forget(self, job: Job) -> None:
        if self.drafter is not None:
            self.drafter.forget(job.context.row)

    # ---- figures ---------------------------------------------------------------------------------------------------

    def metrics(self) -> dict:
        """Everything measured so far, as plain data: it goes to JSON as it is."""
        return self.measured.to_dict() | {"blocks": asdict(self.pool.stats())}

    def check_integrity(self) -> None:
        """Raise IntegrityError if the books of scheduler, pool and engine do not agree. Between steps only."""
        self.scheduler.check_integrity()
        require(self.jobs.keys() == self.scheduler.requests.keys(), "scheduler and engine serve different requests")
        for id, job in self.jobs.items():
            text = job.request.tokens
            require(text == job.context.tokens, f"request {id!r}: the drafter is shown another text")
            require(text[job.prompt_tokens :] == job.writer.tokens, f"request {id!r}: another text is written")
            require(job.output is None and not job.ended, f"request {id!r} has ended, but runs")


def side_by_side(turns: list[Turn]) -> Tensor:
    """Their logits at the last certain token and the drafts, [B, n + 1, V]; shorter drafts are followed by padding."""
    longest = 1 + max(len(turn.draft.tokens) for turn in turns)
    if all(turn.bucket and turn.bucket[0] is turns[0].bucket[0] for turn in turns):  # they are already
        together, rows = turns[0].bucket[0], [turn.bucket[1] for turn in turns]
        return (together if len(rows) == len(together) else together[rows])[:, :longest]
    each = [turn.bucket[0][turn.bucket[1]] if turn.bucket else turn.logits for turn in turns]
    own = [logits[: len(turn.draft.tokens) + 1] for turn, logits in zip(turns, each, strict=True)]
    return pad_sequence(own, batch_first=True)


def running(turns: list[Turn]) -> list[Turn]:
    """Those whose request has neither failed nor been aborted since the step began."""
    return [turn for turn in turns if turn.plan.request.status == RUNNING]
