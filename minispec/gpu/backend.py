"""The backend of a model on a GPU: `generate` and `speculate` for one prompt, one launch for each token or cycle.

A model gets it when it is loaded onto a GPU (`load` below), or by `Model.accelerate`. The loops are those of
generate.py and speculate.py. Without CUDA everything here works too, only uncaptured; the tests live on that.

A drafter that works on the host, and a batch, have cycles of their own (`Hosted`): the draft goes up, one launch
verifies it, and the best tokens come down. These passes are an engine's, over memory in blocks (passes.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from ..controller import LONGEST
from ..cpu import invariant
from ..drafters.base import Drafter
from ..load.model import Model
from ..params import SamplingParams
from ..require import warn_once
from ..sequence import Sequence
from ..speculate import Loop
from ..trace import Cycle
from ..verify import judge
from . import chains  # noqa: F401  what drafts in a draft model's place
from .captured_runner import CapturedRunner
from .decode import FastDecoder, FastSpeculator, Speculator, TreeSpeculator, kind_of
from .draft_memory import BLOCK, PagedMemory
from .graph import Captured, Lease, lent, on_the_device
from .heads import on_device
from .passes import Buckets
from .ragged import memory_for
from .weights import FastTransformer, has_kernels, require_ordinary


class Hosted(Loop):
    """speculate.Loop over memory in blocks, by the captured passes of an engine (passes.py). Row i of the batch owns
    the i-th run of blocks."""

    def __init__(self, passes: Buckets, lease: Lease, model: Model, rows: list[Sequence], drafter, k, params):
        self.passes, self.lease, each = passes, lease, passes.blank // len(rows)
        self.tables = [list(range(i * each, (i + 1) * each)) for i in range(len(rows))]
        drafter.capture()
        super().__init__(model, rows, drafter, k, params)

    def prefill(self, room: int) -> None:
        some = [i for i, row in enumerate(self.sequences) if len(row.tokens) > 1]
        if some:
            prompts, tables = [self.sequences[i].tokens[:-1] for i in some], [self.tables[i] for i in some]
            self.passes.prompts.process(prompts, [0] * len(some), tables)
        self.drafter.read_prompts(self.sequences)

    def step(self) -> list:
        self.lease.sign()
        if self.drafter.hidden_layers:
            self.passes.cache.show(self.sequences, self.tables)
        return super().step()

    def forward(self):
        drafts, self.lengths = self.drafts, [len(row.tokens) - 1 for row in self.sequences]
        new = [[row.tokens[-1], *draft.inputs] for row, draft in zip(self.sequences, drafts, strict=True)]
        results = self.passes.read(new, self.lengths, self.tables, drafts)
        longest, shape = max(map(len, new)), (len(new), self.passes.shape[1], -1)
        logits, self.best = results.logits.view(shape)[:, :longest], results.best.view(shape[:2])
        return logits, {}  # hidden states are in their blocks

    def judge(self):
        return judge(self.logits, self.sequences, self.drafts, self.drafter.lossless, self.best)

    def keep(self) -> None:
        after = [length + 1 for length in self.lengths]
        self.passes.move(self.tables, after, [cycle.path for cycle in self.cycles])

    def leave(self, going: list[int]) -> None:
        self.tables = [self.tables[i] for i in going]

    def close(self) -> None:
        try:
            super().close()  # asks the drafter to forget, which may fail
        finally:
            self.lease.give_back()


LEAST = 256  # slots of each sequence of a batch, if no call needs more
AHEAD = 2  # launches that may be under way: while the host waits for one, the device works on the next
CAPTURES = 32  # kept for each model: one for each way to sample and each drafter; they share their scratch memory


def power_of_two(count: int) -> int:
    """The next one."""
    return 1 << (count - 1).bit_length()


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
        self.blocks: Buckets | None = None  # for drafts of the host, and `blocks_for` what sizes

    # ---- what the loops ask for ------------------------------------------------------------------------------------

    def decoder(self, sequences: list[Sequence], params: SamplingParams) -> CapturedDecoder | None:
        """What `generate` decodes this batch by; None: eagerly."""

        def make(leases: list[Lease]) -> CapturedDecoder:
            prompts = [sequence.tokens for sequence in sequences]
            return CapturedDecoder(self.begin(FastDecoder, (), prompts, params, 0), sequences, leases)

        return None if self.beyond(params) or sequences[0].has_noise else self.lent([self], make)

    def speculator(
        self, rows: list[Sequence], drafter: Drafter, k: int | str, params: SamplingParams
    ) -> CapturedSpeculator | Hosted | None:
        """What `speculate` runs its cycles by: one launch each, if the drafter is a model beside this one or a set of
        heads on it, else one for each pass. None: eagerly."""
        # Only the host's cycles show their logits, and process them by the prefix.
        hosted = self.beyond(params) or len(rows) > 1 or k == "auto" or params.logprobs is not None
        hosted = hosted or rows[0].has_noise  # and only they know noise
        make, backends, draft = self._hosted, [self], None if hosted else getattr(drafter, "chain_model", None)
        made = None if hosted else on_device(drafter)
        if made and (made.samples or params.temperature == 0):
            make = self._with_heads
        elif draft and draft is not self.model and draft.device == self.model.device and draft.transformer.ordinary:
            make, backends = self._with_model, sorted((self, draft.accelerate()), key=id)  # in one order: no deadlock
        return self.lent(backends, partial(make, rows, drafter, k, params))

    def beyond(self, params: SamplingParams) -> bool:
        """Whether a request asks for what no capture knows: logits that depend on the prefix. Says so once."""
        asked = params.by_prefix or params.min_new_tokens > 0
        if asked:
            warn_once(
                "penalties, biases, constraints and min_new_tokens are applied by the host: `generate` "
                "decodes without CUDA graphs, and drafts are judged one by one. Outputs are the same, later"
            )
        return asked

    def lent(self, backends: list[Backend], make: Callable):
        """What `make` makes of their leases; None, which is said once: one of them is with another call."""
        made = lent([backend.lease for backend in backends], make)
        if made is None:
            warn_once(
                f"another call holds the GPU memory of {self.model.name} and does nothing (or this one was made by its "
                "`stream`): this one runs without CUDA graphs. Outputs are the same, later"
            )
        return made

    def _hosted(self, rows: list[Sequence], drafter: Drafter, k: int | str, params: SamplingParams, leases) -> Hosted:
        longest = LONGEST if k == "auto" else k
        most = drafter.max_tree_nodes(longest) + drafter.scratch_slots
        tokens = max(len(row.tokens) for row in rows) + params.max_new_tokens + longest + 1 + most
        passes = self.in_blocks(tokens, len(rows), most, drafter.hidden_layers)
        return Hosted(passes, *leases, self.model, list(rows), drafter, k, params)

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
        """measure.passes, captured: calls that process the first M of ids [1, S] after `context`, and a rewind."""
        if not self.lease.take():
            raise ValueError(f"{self.model.name} is generating in this thread: measure it when that is done")
        try:
            memory = self.reserve(ids.shape[1])
            memory.prefill(ids[:, :context], torch.full((1,), context, device=ids.device))
            work = {m: partial(memory.step, ids[:, context : context + m].clone()) for m in tokens}
            calls = {m: Captured(step, [memory.lengths]) for m, step in work.items()}
            yield calls, lambda: memory.lengths.fill_(context)
        finally:
            self.lease.give_back()

    def serve(self, num_blocks: int, block_size: int, rows: int, k: int, hidden_layers: list[int]) -> Buckets:
        """An engine's memory in blocks, and its passes over up to `rows` sequences in shapes that can be captured."""
        return memory_for(self.model, num_blocks, block_size, rows, k, hidden_layers)

    def draft_memory(self, tokens: int = 2) -> PagedMemory:
        """Memory in blocks for a model that drafts, with captured passes over up to so many tokens of a sequence."""
        return PagedMemory(self.model, tokens)

    def check_invariance(self) -> None:
        """What was captured adds up in another order, if that has changed."""
        if self.invariant != invariant.wanted():
            self.memories, self.decoders, self.blocks, self.invariant = {}, {}, None, not self.invariant

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

    def in_blocks(self, tokens: int, rows: int, most: int, layers: list[int]) -> Buckets:
        """Passes over so many sequences with drafts of up to `most` tokens, in one memory of blocks for all drafters:
        of few long sequences, or of many short ones. What is too small is made anew, large enough for what it was made
        for before, too."""
        self.check_invariance()
        had = self.blocks_for if self.blocks else (self.room // BLOCK, 0, 0, frozenset())
        needed = rows * -(-power_of_two(tokens) // BLOCK)
        sizes = *map(max, had[:3], (needed, rows, most)), had[3].union(layers)
        if not self.blocks or sizes != had:
            self.blocks, self.blocks_for = None, sizes
            blocks, rows, most, layers = sizes
            self.blocks = self.serve(blocks, BLOCK, rows, most, sorted(layers))
        return self.blocks

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
