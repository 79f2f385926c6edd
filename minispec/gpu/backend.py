"""The backend of a model on a GPU: `generate` and `speculate` for one prompt, one launch for each token or cycle.

A model gets it when it is loaded onto a GPU (`load` below), or by `Model.accelerate`. The loops are those of
generate.py and speculate.py. Without CUDA everything here works too, only uncaptured; the tests live on that.

Whatever else is asked for, drafters that work on the host, batches, other rules, goes through an engine that has no
other requests (`serve`): with memory for these, and captures that the next call like this one finds again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Lock

from torch import Tensor

from ..controller import LONGEST
from ..cpu import invariant
from ..drafters.base import Drafter
from ..load.model import Model
from ..params import SamplingParams
from ..sequence import Sequence
from ..serving.engine import Engine
from ..trace import Cycle
from . import chains  # noqa: F401  what drafts in a draft model's place
from .captured_runner import CapturedRunner
from .decode import FastDecoder, FastSpeculator, Speculator, TreeSpeculator, kind_of
from .draft_memory import BLOCK, PagedMemory
from .graph import Captured, Lease, lent, on_the_device
from .heads import on_device
from .passes import Buckets, rows_of
from .ragged import MOST_TOKENS, memory_for
from .weights import FastTransformer, has_kernels, require_ordinary

LEAST = 256  # slots of each sequence of a batch, if no call needs more
AHEAD = 2  # launches that may be under way: while the host waits for one, the device works on the next
CAPTURES = 32  # kept for each model: one for each way to sample and each drafter; they share their scratch memory
ENGINES = 4  # kept for calls like the last ones


def power_of_two(count: int) -> int:
    """The next one."""
    return 1 << (count - 1).bit_length()


def by_host(sequences: list[Sequence], params: SamplingParams) -> bool:
    """Whether logits must come to the host: to be processed by the prefix, told, or given noise."""
    asked = params.by_prefix or params.min_new_tokens > 0 or params.logprobs is not None
    return asked or sequences[0].has_noise


class Backend:
    """Memory that grows with the sequences, and captures of what is done in it."""

    runner = CapturedRunner  # what an engine's steps run by

    def __init__(self, model: Model, lean: bool | None = None):
        require_ordinary(model.transformer, f"fast=True: {model.name}")
        self.model, self.lease = model, Lease()
        self.invariant = invariant.wanted()
        self.lean = has_kernels(model.device, model.dtype) if lean is None else lean
        # Slots that memory begins with: more is other memory, and everything is captured again.
        self.room = 2048 if model.device.type == "cuda" else 256
        self.memories: dict[int, FastTransformer] = {}  # by the number of sequences
        self.decoders: dict[tuple, FastDecoder] = {}
        self.idle: dict[tuple, Engine] = {}  # for calls of each kind; the one that was used last comes last
        self.lock = Lock()

    # ---- what the loops ask for ------------------------------------------------------------------------------------

    def decoder(self, sequences: list[Sequence], params: SamplingParams) -> CapturedDecoder | None:
        """What `generate` decodes this batch by; None: by `serve`."""

        def make(leases: list[Lease]) -> CapturedDecoder:
            prompts = [sequence.tokens for sequence in sequences]
            return CapturedDecoder(self.begin(FastDecoder, (), prompts, params, 0), sequences, leases)

        return None if by_host(sequences, params) else self.lent([self], make)

    def speculator(
        self, rows: list[Sequence], drafter: Drafter, k: int | str, params: SamplingParams, rule: str
    ) -> CapturedSpeculator | None:
        """What `speculate` runs its cycles by, one launch each, if the drafter is a model beside this one or a set of
        heads on it, for one prompt. None: by `serve`."""
        if by_host(rows, params) or len(rows) > 1 or k == "auto" or rule == "block":
            return None
        made, draft = on_device(drafter), getattr(drafter, "chain_model", None)
        greedy = params.temperature == 0 and not getattr(drafter, "sampling", None)
        if made and (greedy or not made.samples(drafter)):
            return self.lent([self], partial(self._with_heads, rows, drafter, k, params))
        if draft and draft is not self.model and draft.device == self.model.device and draft.transformer.ordinary:
            backends = sorted((self, draft.accelerate()), key=id)  # in one order: no deadlock
            return self.lent(backends, partial(self._with_model, rows, drafter, k, params))
        return None

    def serve(self, sequences: list[Sequence], drafter: Drafter | None = None, k=0, rule="token", on_cycle=None):
        """Decode these sequences by an engine of their own. `on_cycle` is shown each cycle as it ends."""
        outputs, shown, (key, engine) = {}, dict.fromkeys(sequences, 0), self.engine_for(sequences, drafter, k, rule)
        try:
            for sequence in sequences:
                sequence.k = engine.k
                engine.enqueue(sequence, outputs=outputs)
            while len(outputs) < len(sequences):
                engine.step()
                for sequence in sequences:
                    for cycle in sequence.trace.cycles[shown[sequence] :] if on_cycle else ():
                        on_cycle(cycle)
                    shown[sequence] = len(sequence.trace.cycles)
                    if sequence.error:
                        raise sequence.error
        finally:
            for request_id in list(engine.sequences):  # none, unless something went wrong
                engine.abort(request_id)
            self.keep(key, engine)

    def engine_for(self, sequences: list[Sequence], drafter: Drafter | None, k: int | str, rule: str):
        """An idle engine for such calls, or a new one, and what it is kept under. Who is called inside a `stream`, or
        in another thread, finds none idle."""
        rows, depth = rows_of(len(sequences)), LONGEST if k == "auto" else k
        most = drafter.max_tree_nodes(depth) + drafter.scratch_slots if drafter else 0
        longest = max(len(sequence.tokens) + sequence.max_new_tokens for sequence in sequences)
        slots = -(-power_of_two(longest + 2 * (depth + 1 + most)) // BLOCK) * rows  # of two cycles past the end
        model = getattr(drafter, "chain_model", None)  # every drafter with this draft model drafts alike
        kind = (type(drafter), id(model), drafter.sampling) if model else id(drafter)
        key = kind, rows, k, rule, invariant.wanted()
        with self.lock:
            engine = self.idle.pop(key, None)
        if engine is not None and engine.pool.num_blocks < slots:
            engine.shutdown()
        if engine is None or engine.closed:
            blocks = max(slots, self.room // BLOCK)
            sizes = dict(num_blocks=blocks, block_size=BLOCK, max_num_seqs=rows)
            budget = max(MOST_TOKENS, rows * (1 + most))
            options = dict(k=None if k == "auto" else k, rule=rule, enable_prefix_caching=False, history=8, fast=True)
            engine = Engine(self.model, drafter, max_num_batched_tokens=budget, **sizes, **options)
        return key, engine

    def keep(self, key: tuple, engine: Engine) -> None:
        """For the next call like this one: those that were used last."""
        with self.lock:
            leaving = [self.idle.pop(key)] if key in self.idle else []  # another thread's, for the same kind of call
            self.idle[key] = engine
            while len(self.idle) > ENGINES:
                leaving.append(self.idle.pop(next(iter(self.idle))))
        for other in leaving:
            other.shutdown()

    def lent(self, backends: list[Backend], make: Callable):
        """What `make` makes of their leases; None: one of them is with another call."""
        return lent([backend.lease for backend in backends], make)

    def _with_heads(self, rows: list[Sequence], drafter: Drafter, k: int, params: SamplingParams, leases):
        def make(target: FastTransformer, sampling) -> Speculator:
            return TreeSpeculator(target, on_device(drafter)(drafter, target, k), k, sampling)

        spare = AHEAD * (k + 1) + drafter.max_tree_nodes(k)
        capture = self.begin(make, (drafter, k), [rows[0].tokens], params, spare)
        return CapturedSpeculator(capture, rows, leases)

    def _with_model(self, rows: list[Sequence], drafter: Drafter, k: int, params: SamplingParams, leases):
        spare, draft = AHEAD * (k + 1), drafter.chain_model.backend  # cycles may go past the end
        target = self.reserve(len(rows[0].tokens) + params.max_new_tokens + spare)
        memory = draft.reserve(target.capacity)

        def make(target: FastTransformer, sampling) -> Speculator:
            return FastSpeculator(target, memory, k, sampling, drafter.sampling)

        key = draft, k, drafter.sampling, memory.capacity
        capture = self.begin(make, key, [rows[0].tokens], params, spare)
        return CapturedSpeculator(capture, rows, leases)

    @contextmanager
    def passes(self, ids: Tensor, context: int, tokens: list[int]):
        """measure.passes, captured: an engine's passes over the first M of ids [1, S] after `context`. They count
        nothing, so there is nothing to rewind."""
        (row,), most = ids.tolist(), max(tokens)
        table = list(range(-(-len(row) // BLOCK)))
        passes = self.memory(len(table), BLOCK, 1, most - 1, ())
        passes.prompts.process([row[:context]], [0], [table])
        passes.write([row[context : context + most]], [context], [table], 1, most)
        passes.send(1)
        calls = {m: Captured(partial(passes.work, 1, m, False), [passes.sheet]) for m in tokens}
        yield calls, lambda: None

    def memory(self, num_blocks: int, block_size: int, rows: int, k: int, hidden_layers: list[int]) -> Buckets:
        """An engine's memory in blocks, and its passes over up to `rows` sequences in shapes that can be captured."""
        return memory_for(self.model, num_blocks, block_size, rows, k, hidden_layers)

    def draft_memory(self, tokens: int = 2) -> PagedMemory:
        """Memory in blocks for a model that drafts, with captured passes over up to so many tokens of a sequence."""
        return PagedMemory(self.model, tokens)

    def check_invariance(self) -> None:
        """What was captured adds up in another order, if that has changed."""
        if self.invariant != invariant.wanted():
            self.memories, self.decoders, self.invariant = {}, {}, not self.invariant

    # ---- captures ------------------------------------------------------------------------------------------------

    @on_the_device
    def reserve(self, tokens: int, batch: int = 1) -> FastTransformer:
        """Fused weights, and memory of so many tokens for each of so many sequences, rounded up: most calls find what
        an earlier one has captured."""
        self.check_invariance()
        capacity = max(self.room if batch == 1 else LEAST, power_of_two(tokens))
        if batch not in self.memories:
            for other in [size for size in self.memories if size > 1]:  # memory of one batch is kept, and of one prompt
                self.forget(other)
            self.memories[batch] = FastTransformer(self.model.transformer, batch, capacity, lean=self.lean)
        memory = self.memories[batch]
        if tokens > memory.capacity:
            self.forget(batch)
            memory.allocate(batch, capacity)
            self.memories[batch] = memory
        return memory

    def forget(self, batch: int) -> None:
        """Memory and captures for so many sequences."""
        del self.memories[batch]
        self.decoders = {key: made for key, made in self.decoders.items() if key[0] != batch}

    @on_the_device
    def begin(self, make: Callable, key: tuple, prompts: list[list[int]], params: SamplingParams, spare: int):
        """What decodes in this way, captured before or made now, begun with these prompts. It may need `spare` slots
        past the end of the longest."""
        batch = len(prompts)
        target = self.reserve(max(map(len, prompts)) + params.max_new_tokens + spare, batch)
        key = batch, kind_of(params.sampling), *key
        made = self.decoders.pop(key, None) or make(target, params.sampling)
        while len(self.decoders) >= CAPTURES:  # the one that was used longest ago goes
            del self.decoders[next(iter(self.decoders))]
        self.decoders[key] = made
        made.start(prompts, params.seed, params.sampling)
        return made


class CapturedDecoder:
    """Plain decoding, a launch for each token: generate.token_by_token's twin. The host waits for one launch while the
    next runs."""

    ahead = AHEAD

    def __init__(self, capture: FastDecoder, sequences: list[Sequence], leases: list[Lease]):
        self.capture, self.sequences, self.leases = capture, sequences, list(leases)

    def __iter__(self) -> Iterator[tuple[list[list[int]], None]]:
        while True:
            yield self.next(min(sequence.room + 1 for sequence in self.sequences if not sequence.ended)), None

    def next(self, most: int) -> list[list[int]]:
        """What the next launch gives; at least `most` tokens are still wanted, so as many launches may be under way."""
        for lease in self.leases:
            lease.sign()
        while self.capture.asked < min(most, self.ahead):
            self.capture.ask()
        return self.capture.answer()

    def close(self) -> None:
        while self.leases:
            self.leases.pop().give_back()


class CapturedSpeculator(CapturedDecoder):
    """Speculative decoding of one sequence, a launch for each cycle: speculate.Loop's twin."""

    @property
    def ahead(self) -> int:
        [sequence] = self.sequences
        return AHEAD if sequence.trace.cycles else 1  # the first cycle's parts are timed: nothing follows it at once

    def step(self) -> list[list[tuple[Cycle, None]]]:
        [sequence] = self.sequences
        return [[(cycle, None) for cycle in self.next(sequence.room + 1)]]

    def finish(self) -> None:
        self.sequences = [sequence for sequence in self.sequences if not sequence.ended]
