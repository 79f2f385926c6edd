"""Engine: many requests at once, each served as if it were alone. Scheduler + paged memory + model + drafter.

One step:

    schedule     which requests process how many tokens, and whose drafts get slots (scheduler.py)
    draft        one draft for each request that got slots, all in one call of the drafter (runner.py)
    forward      one forward pass of the target over everything: prompt chunks, single tokens, tokens with their drafts;
                 where it is clear what the next step will process, its pass is launched, too (`run_ahead`)
    verify       accept, correct: by verify.judge, or on the device where no sampled draft has to be judged
    keep         the accepted path of a tree moves together
    emit         the tokens join their sequence, and the drafter is told
    update       verified tokens count from now on, surplus blocks go back, finished requests leave
    deliver      callers get their text and outputs

A seed belongs to its request. What else is in the batch changes no output, up to rounding (cpu/invariant.py), but with
a drafter it decides how deep a draft may be, and so how many random numbers are used: sampled outputs then follow the
same distribution, and greedy ones are the same. With rule="coupled" sampled ones are the same, too.

What raises in mid-step is tried again for each request alone. Only a request that fails even then ends, with
finish_reason="error" and the exception in `Output.error`. Ctrl-C is taken between two steps: the next one goes on, and
nothing is lost. (`generate`, when it is interrupted, aborts its own requests. A second Ctrl-C is for drafters and
callbacks that hang, and ends the requests of the step; bookkeeping is never interrupted.)
"""

import gc
import signal
import time
import warnings
from collections import ChainMap
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import asdict
from itertools import count
from threading import Lock, get_ident, main_thread

import torch
from tqdm.auto import tqdm

from ..controller import LONGEST, Controller
from ..drafters.base import Drafter
from ..generate import is_one, prepare
from ..load.model import Model
from ..output import Output
from ..params import SamplingParams
from ..require import require, require_whole
from ..sampling import emitting_positions
from ..sequence import Sequence
from ..speculate import check_drafter, deepest
from ..trace import Clock, Cycle
from ..verify import check_rule
from .blocks import BlockPool, check
from .metrics import PARTS, Metrics, StepRecord
from .paged import blocks_that_fit, bytes_per_block
from .runner import Runner, logits_of
from .scheduler import FINISHED, POLICIES, RUNNING, Turn
from .warm_up import warm_up

DEPTH, HOLD = 4, 16  # of trees, where a controller chooses their sizes; steps that a choice holds
interrupts_are_waiting = may_break_off = False  # the main thread's alone: no other one gets any interrupts


@contextmanager
def interrupts_wait():
    """Ctrl-C, unless it is ignored, is taken when the outermost of these blocks is left, which is told that it was
    pressed; a second one as soon as `may_break_off`."""
    global interrupts_are_waiting
    pressed, handler = [], signal.getsignal(signal.SIGINT)
    if get_ident() != main_thread().ident or interrupts_are_waiting or not callable(handler):
        yield pressed
        return

    def press(number: int, frame) -> None:
        global may_break_off
        pressed.append(number)
        if may_break_off and len(pressed) > 1:
            may_break_off = False
            handler(number, frame)

    signal.signal(signal.SIGINT, press)
    interrupts_are_waiting = True
    try:
        yield pressed
    finally:
        interrupts_are_waiting = False
        signal.signal(signal.SIGINT, handler)
        if pressed:
            handler(signal.SIGINT, None)


class Breakable:
    """Work that may hang, and may be broken off: it changes no books. (Entered for each request of a step: cheap.)"""

    def __enter__(self) -> None:
        global may_break_off
        may_break_off = interrupts_are_waiting and get_ident() == main_thread().ident

    def __exit__(self, *error) -> None:
        global may_break_off
        may_break_off = False


breakable = Breakable()


def controller_for(depth: int, nodes: int, fast: bool) -> Controller:
    """2, 4, 8, … nodes; of chains one, too, and all lengths where the batch need not be as wide as its longest row."""
    trees = nodes > depth
    powers = [*(1 << n for n in range(trees, nodes.bit_length())), nodes]
    sizes = powers if trees or fast else range(1, depth + 1)
    return Controller(sizes, depth if trees else None, hold=HOLD, memory=0.98)


class Engine:
    """Serve requests together, with continuous batching (or "static", for comparison) and paged memory.

    `num_blocks` blocks of `block_size` tokens are shared by at most `max_num_seqs` requests at a time. None: as many as
    fit on the GPU beside the weights and can be of use, on a CPU 512; `repr(engine)` says how many. A step processes at
    most `max_num_batched_tokens` tokens, at most `max_chunk` of one prompt. Who drafts how far is chosen from measured
    acceptance and times (controller.py): chains of up to 8 tokens, trees up to 4 deep. With a number as `k` all drafts
    are up to so deep, and with a `draft_budget` those of a step have at most so many nodes and scratch tokens, in equal
    shares. Sampled drafts are accepted by `rule`, as in `speculate`. With `enable_prefix_caching` a prompt that begins
    like an earlier one reuses its blocks (not of a hybrid model: a block holds no recurrent state). Metrics keep the
    last `history` steps and requests. `fast` (None: on a GPU): passes are captured as CUDA graphs (gpu/).

    Every method may be called from any thread. A thread that steps in a loop lets the others in between two steps.
    Outputs go to the thread that takes them, while `generate` keeps its own. Stream callbacks run at the end of a step,
    which holds the lock: they may add and abort, but not step. Engines may share a drafter if they do not step at the
    same time.
    """

    def __init__(
        self,
        target: Model,
        drafter: Drafter | None = None,
        num_blocks: int | None = None,
        block_size: int = 16,
        max_num_seqs: int = 32,
        max_num_batched_tokens: int = 512,
        k: int | None = None,
        *,
        enable_prefix_caching: bool = True,
        policy: str = "continuous",
        max_chunk: int | None = None,
        draft_budget: int | None = None,
        history: int = 1024,
        fast: bool | None = None,
        rule: str = "token",
    ):
        if drafter is not None:
            check_drafter(target, drafter)
        longest = 0 if drafter is None or draft_budget is not None else drafter.max_tree_nodes(LONGEST)
        chains = longest and all(drafter.max_tree_nodes(n) == min(n, longest) for n in range(1, LONGEST))
        self.k = (longest if chains else DEPTH) if k is None else k  # a block may be shorter than LONGEST
        require_whole(k=self.k, history=history)
        require(policy in POLICIES, f"one of {', '.join(POLICIES)}", policy=policy)
        check_rule(rule, drafter)
        fast = target.may_capture() if fast is None else fast
        share = 0 if drafter is None and draft_budget is None else draft_budget  # of a step's tokens
        slots, most_nodes, self.controller = dict(lookahead=self.k, draft_budget=share), 0, None
        if drafter is not None:
            slots |= dict(max_tree_nodes=drafter.max_tree_nodes, scratch_slots=drafter.scratch_slots)
            most_nodes = drafter.max_tree_nodes(self.k) if self.k else 0
            if k is None and draft_budget is None:
                self.controller = slots["controller"] = controller_for(self.k, most_nodes, fast)
        if num_blocks is None:
            num_blocks = blocks_that_fit(target, block_size, max_num_seqs, drafter.hidden_layers if drafter else ())
        self.target, self.drafter = target, drafter
        self.speculates = drafter is not None and draft_budget != 0
        # A block holds no recurrent state, and without that of its end a prefix is of no use.
        self.pool = BlockPool(num_blocks, block_size, enable_prefix_caching and target.config.delta is None)
        self.scheduler = POLICIES[policy](self.pool, max_num_seqs, max_num_batched_tokens, max_chunk=max_chunk, **slots)
        most_nodes = most_nodes if draft_budget is None else min(most_nodes, draft_budget)
        options = target, drafter, self.pool, rule
        self.runner = target.capturer().runner(*options, max_num_seqs, most_nodes) if fast else Runner(*options)
        self.sequences: dict[int | str, Sequence] = {}  # by the caller's id, until their outputs are there
        self.goes_to: dict[int | str, dict] = {}  # and where these go: to `outputs`, or to a `generate` that waits
        self.numbers = count()  # ids that callers do not give
        self.undelivered: list[Sequence] = []  # of the step that is complete, with something to deliver
        self.outputs: dict[int | str, Output] = {}  # of requests that have ended, until somebody takes them
        self.measured = Metrics(history)
        self.line, self.lock, self.inside = Lock(), Lock(), None  # the thread that is inside
        self.closed = False

    def __repr__(self) -> str:
        pool, by = self.pool, f"drafter={type(self.drafter).__name__}, " if self.drafter else ""
        size = pool.num_blocks * bytes_per_block(self.target, pool.block_size, self.runner.hidden_layers)
        memory = f"{pool.num_blocks} blocks of {pool.block_size} tokens ({size / 2**20:,.0f} MiB)"
        return f"Engine({self.target.name}, {by}{memory}, max_num_seqs={self.scheduler.max_num_seqs})"

    # ---- requests --------------------------------------------------------------------------------------------------

    def add(
        self, prompt, max_new_tokens: int | None = None, *, request_id: int | str | None = None, **options
    ) -> int | str:
        """Queue a request; returns its id. `options`: `params` (a SamplingParams) or its fields; `stream`, called with
        each piece of text; `k`, how deep to draft for it (None: as the engine, 0: not at all)."""
        return self.enqueue(self.sequence(prompt, max_new_tokens, **options), request_id)

    def generate(
        self, prompts: list, params: SamplingParams | None = None, *, progress: bool = True, **options
    ) -> list[Output]:
        """The outputs of a list of prompts, in its order, with a progress bar if there are several. Each has a seed of
        its own, as in a batch of `ms.generate`. Other requests are served meanwhile; their outputs wait for `take`."""
        self._refuse_inside_a_step("generate")
        prompts = [prompts] if is_one(prompts) and len(prompts) else prompts
        mine = [self.sequence(prompt, params=params, index=i, **options) for i, prompt in enumerate(prompts)]
        outputs: dict[int | str, Output] = {}
        try:
            for sequence in mine:
                self.enqueue(sequence, outputs=outputs)
            show = progress and len(mine) > 1
            with tqdm(total=len(mine), unit="request", disable=not show) as bar, interrupts_wait() as pressed:
                while len(outputs) < len(mine) and not pressed:
                    self.step()
                    bar.update(len(outputs) - bar.n)
        finally:
            with self._alone():
                for sequence in mine:  # none is left, unless something raised
                    self._end(sequence)
        return [outputs[sequence.request_id] for sequence in mine]

    def run(self) -> dict[int | str, Output]:
        """Step until nothing is left to do; the outputs of all that have ended since they were last taken."""
        self._refuse_inside_a_step("run")
        with interrupts_wait() as pressed:
            while self.sequences and not pressed:
                self.step()
        outputs = self.take()
        if outputs and all(output.finish_reason == "error" for output in outputs.values()):
            first = next(iter(outputs.values())).error
            failure = RuntimeError(f"all {len(outputs)} requests of this run failed, the first with {first!r}")
            failure.outputs = outputs  # as far as they came
            raise failure from first
        return outputs

    def take(self) -> dict[int | str, Output]:
        """The outputs of requests that have ended: kept until they are taken, and not after."""
        with interrupts_wait() as pressed, self._alone():
            outputs = dict(self.outputs)
            if not pressed:  # else nobody would get them
                self.outputs.clear()
        return outputs

    def abort(self, id: int | str) -> None:
        """End a request now, wherever it is. Its output, as far as it came, has finish_reason="abort"."""
        with self._alone():
            if id not in self.sequences:
                raise ValueError(f"request id={id!r} is not here: it was never added, or it has ended")
            self._end(self.sequences[id])

    def shutdown(self) -> None:
        """Abort all requests and give the memory back. Outputs can still be taken; nothing can be added any more."""
        with self._alone():
            for id in list(self.sequences):
                self.abort(id)
            self.closed = True
            gc.unfreeze()  # see warm_up.py
            self.runner.release()

    def sequence(
        self,
        prompt,
        max_new_tokens: int | None = None,
        *,
        params: SamplingParams | None = None,
        index: int = 0,
        stream: Callable[[str], None] | None = None,
        k: int | None = None,
        **options,
    ) -> Sequence:
        """A request that is checked, but not added: `enqueue` does that, perhaps in another thread."""
        params = SamplingParams.of(params, max_new_tokens=max_new_tokens, **options)
        k = (self.k if k is None else k) if self.speculates else 0
        if self.target.config.delta:
            require(k <= deepest(self.target), f"at most {deepest(self.target)}, the states that are kept", k=k)
        made, batched = prepare(self.target, prompt, params, stream, index, k=k, rule=self.runner.rule)
        if batched:
            raise ValueError(f"prompt holds {len(made)} prompts: give them to `generate`, or add them one by one")
        [sequence] = made
        self.scheduler.check(sequence)
        return sequence

    def enqueue(self, sequence: Sequence, id: int | str | None = None, outputs: dict | None = None) -> int | str:
        with self._alone():
            if self.closed:
                raise ValueError("this engine has been shut down: make a new one")
            taken = ChainMap(self.sequences, self.outputs)
            id = next(n for n in self.numbers if n not in taken) if id is None else id
            if not isinstance(id, (int, str)) or id in taken:
                raise ValueError(
                    f"request_id={id!r}: give a number or a string that no running request has, and no "
                    "output not yet taken"
                )
            sequence.request_id, sequence.added_at = id, time.perf_counter()
            self.scheduler.add(sequence)
            self.sequences[id], self.goes_to[id] = sequence, self.outputs if outputs is None else outputs
            return id

    # ---- one step --------------------------------------------------------------------------------------------------

    def step(self) -> StepRecord:
        """One forward pass of the target for every request whose turn it is."""
        self._refuse_inside_a_step("step")
        with self._alone(), torch.inference_mode():
            return self._step()

    def _step(self) -> StepRecord:
        self._deliver()  # what an interrupted callback has kept from the others
        runner, clock, step = self.runner, Clock(*PARTS), self.scheduler.schedule()
        turns, runner.clock = step.turns, clock
        emitting = [turn for turn in turns if turn.emits]
        try:
            self._restart(step.preempted)
            self._attempt(runner.begin, turns)
            clock.lap("scheduling")
            self._attempt(runner.draft, [turn for turn in turns if turn.draft_length and not turn.asked])
            clock.lap("drafting")
            self._attempt(runner.forward, turns)
            if self.controller is None or self.controller.drafts_lately:
                self._attempt(runner.read_prompts, [turn for turn in emitting if turn.prefill and turn.sequence.k])
            self._attempt(runner.while_verifying, [turn for turn in turns if turn.asked])
            runner.run_ahead(step, self.scheduler.reserve_ahead)
            self._attempt(runner.synchronise, emitting)
            clock.lap("pass")
            self._attempt(runner.verify, emitting)
            self._attempt(runner.keep, turns)
            clock.lap("sampling")
            for turn in turns:
                try:
                    if turn.runs:
                        self._emit(turn)
                except Exception as error:
                    self._end(turn.sequence, "error", error)
            record = self.scheduler.update(step)
        except BaseException:  # a second Ctrl-C, say: nobody knows how far this came
            for turn in turns:
                self._end(turn.sequence)
            raise
        self.undelivered = [turn.sequence for turn in turns if turn.sequence.ended or turn.sequence.writer.pieces]
        clock.lap("scheduling")
        record.seconds = clock.seconds
        self.measured.add_step(record)
        if self.controller:
            self._learn(turns, sum(clock.seconds.values()))
        self._deliver()
        return record

    def _learn(self, turns: list[Turn], seconds: float) -> None:
        """What the controller goes by: how the drafts ended, and how long a step took that processed no prompt."""
        for turn in turns:
            if turn.asked and turn.max_nodes == turn.share:
                self.controller.learn(turn.share, turn.accepted)
        if turns and not any(turn.prefill for turn in turns):
            self.controller.time([turn.sequence.id for turn in turns], [turn.share for turn in turns], seconds)

    def _restart(self, sequences: list[Sequence]) -> None:
        """All of these will be processed again, so the drafter will be shown all their states again."""
        for sequence in sequences:
            try:
                self.runner.restart(sequence)
            except Exception as error:
                self._end(sequence, "error", error)

    def _attempt(self, work: Callable[[list[Turn]], None], turns: list[Turn]) -> None:
        """Some work for all turns at once, less those that have failed before; if that fails, for each alone."""
        turns = [turn for turn in turns if turn.sequence.status == RUNNING]
        try:
            if turns:
                with breakable:
                    work(turns)
        except Exception as error:
            if len(turns) == 1:
                self._end(turns[0].sequence, "error", error)
            else:
                for turn in turns:
                    self._attempt(work, [turn])
                if all(turn.runs for turn in turns):  # nothing is wrong with any of them
                    warnings.warn(
                        f"{work.__name__} failed for {len(turns)} requests at once, and succeeded, far more "
                        f"slowly, for each alone: {error!r}",
                        stacklevel=2,
                    )

    def _emit(self, turn: Turn) -> None:
        """The tokens of a turn become part of its sequence, and the drafter is told how its draft ended."""
        sequence, cycle = turn.sequence, turn.cycle
        path, logits, draft = cycle.path if cycle else [], None, sequence.draft
        if turn.emits and sequence.wants_logprobs:
            logits = logits_of(turn)[emitting_positions(path)]
        turn.emit(turn.news, len(path), logits)
        if not turn.emits:  # a chunk that does not reach the prompt's end
            return
        if cycle is None and sequence.opening:
            token, lossless = turn.news[0], self.drafter.lossless
            cycle = Cycle.of(draft, path, token, [], None, turn.start + turn.count, lossless)
        if cycle:
            cycle.kept = turn.emitted
            cycle.took(*self.runner.parts())
            sequence.trace.cycles.append(cycle)
        elif sequence.k:
            sequence.trace.plain += 1
        sequence.last_token_at = time.perf_counter()
        sequence.first_token_at = sequence.first_token_at or sequence.last_token_at
        if turn.asked and not sequence.ended:
            scratch = draft.scratch and logits_of(turn)[-len(draft.scratch.tokens) :]
            with breakable:
                self.drafter.settle(sequence.id, cycle.path, cycle.token, scratch)

    def _deliver(self) -> None:
        """Stream what is new, and close what has ended. The step is over, so a callback may add and abort."""
        while self.undelivered:
            sequence = self.undelivered[0]
            try:
                with breakable:
                    sequence.writer.flush()
            except Exception as error:
                self._end(sequence, "error", error)
            if sequence.ended:
                self._end(sequence)
            self.undelivered.pop(0)

    def _end(self, sequence: Sequence, reason: str = "abort", error: Exception | None = None) -> None:
        """A request leaves scheduler, drafter and engine, and its output is there. One that has come to its own end in
        this step keeps that as its reason."""
        if self.sequences.get(sequence.request_id) is not sequence:
            return  # it has left already
        if error or not sequence.ended:
            sequence.end(reason, error)
        if sequence.status != FINISHED:
            self.scheduler.finish(sequence)
        del self.sequences[sequence.request_id]
        try:
            if self.drafter:
                self.drafter.forget(sequence.id)
            if self.controller:
                self.controller.forget(sequence.id)
        except Exception as broken:
            sequence.end("error", sequence.error or broken)
        output = sequence.result(time.perf_counter() - sequence.added_at, trace=bool(sequence.k))
        self.goes_to.pop(sequence.request_id)[sequence.request_id] = output
        self.measured.add_request(sequence, output)

    @contextmanager
    def _alone(self):
        """Nobody else is in the engine meanwhile: no other thread, and no Ctrl-C. Who is inside may enter again. All
        others wait in `line` first: so a thread that steps in a loop queues up behind those that are waiting."""
        if self.inside == get_ident():
            yield
            return
        with interrupts_wait():
            with self.line:
                self.lock.acquire()
            try:
                self.inside = get_ident()
                yield
            finally:
                self.inside = None
                self.lock.release()

    def _refuse_inside_a_step(self, method: str) -> None:
        if self.inside == get_ident():
            raise RuntimeError(
                f"{method}() was called inside a step, from a stream callback or a drafter, but a step "
                "cannot begin before the last one ends: call it after that"
            )

    # ---- figures ---------------------------------------------------------------------------------------------------

    def metrics(self) -> dict:
        """Everything measured so far, as plain data: it goes to JSON as it is."""
        with self._alone():
            control = {"controller": self.controller.to_dict()} if self.controller else {}
            return self.measured.to_dict() | {"blocks": asdict(self.pool.stats())} | control

    def check_integrity(self) -> None:
        """Exactly the requests that the scheduler knows are served, none of them past its end."""
        with self._alone():
            self.scheduler.check_integrity()
            served = {id for id, sequence in self.sequences.items() if sequence.status != FINISHED}
            check(served == self.scheduler.ids, "scheduler and engine serve different requests")
            for sequence in self.sequences.values():
                name, seen, computed = f"request {sequence.request_id!r}", sequence.seen, sequence.num_computed_tokens
                check(seen <= computed, f"{name}: {seen} hidden states were shown, but {computed} are computed")

    warm_up = warm_up  # before any request is added
