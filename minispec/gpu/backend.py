"""The backend of a model on a GPU: `generate` and `speculate` for one prompt, one launch for each token or cycle.

A model gets it when it is loaded onto a GPU (`load` below), or by `Model.accelerate`. The loops are those of
generate.py and speculate.py; what is behind them is memory of fixed shape and recordings of what is done in it. Without
CUDA everything here works too, only unrecorded; the tests live on that.

The memory is lent to one call at a time. Another thread's call waits for it; a call from within (a stream's callback),
or beside a stream that nobody reads on, decodes eagerly instead, in memory of its own.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from functools import cached_property, partial

import torch
from torch import Tensor

from ..drafters.base import Drafter
from ..files.folder import load as load_model
from ..files.handle import Model
from ..sampling import SamplingParams
from ..speculate import Completion
from ..trace import Cycle
from .buckets import memory_for
from .decode import FastDecoder, FastSpeculator
from .draft_memory import PagedMemory
from .fused import FastTransformer, require_ordinary
from .record import Recorded, on_the_device, why_not_compile
from .trees import TreeSpeculator

LOOK_EVERY = 8  # launches between two looks at what was generated
RECORDINGS = 8  # kept for each model: one for each way to sample and each draft
PATIENCE = 0.5  # seconds without a sign of life after which a holder of the memory counts as asleep


class Lease:
    """Who may use a model's memory: one call at a time."""

    def __init__(self):
        self.lock, self.holder, self.signs = threading.Lock(), None, 0

    def take(self) -> bool:
        """False where waiting would be in vain: this thread has it already, or its holder does nothing."""
        while self.holder != threading.get_ident():
            signs = self.signs
            if self.lock.acquire(timeout=PATIENCE):
                self.holder = threading.get_ident()
                return True
            if signs == self.signs:
                return False
        return False

    def sign(self) -> None:
        self.signs += 1

    def give_back(self) -> None:
        self.holder = None
        self.lock.release()


class Backend:
    """Memory that grows with the sequences, and recordings of what is done in it."""

    def __init__(self, model: Model, compile: bool | str | None = None, lean: bool | None = None):
        require_ordinary(model.transformer, f"fast=True: {model.name}")
        self.model, self.note, self.lease = model, None, Lease()
        if compile is None and (compile := model.device.type == "cuda"):
            self.note = why_not_compile()
            compile = self.note is None
        lean = bool(compile) if lean is None else lean
        room = 2048 if compile else 256  # to compile for more memory takes seconds
        self.options = dict(capacity=room, compile=compile, lean=lean)
        self.decoders: dict[tuple, FastDecoder] = {}

    @cached_property
    def transformer(self) -> FastTransformer:
        """Fused weights and the memory of one sequence: made when the first prompt comes."""
        return FastTransformer(self.model.transformer, 1, **self.options)

    # ---- what the loops ask for ------------------------------------------------------------------------------------

    def decoder(self, prompts: Sequence[list[int]], params: SamplingParams) -> RecordedDecoder | None:
        """What `generate` decodes this batch by; None: eagerly."""
        if len(prompts) > 1 or not self.lease.take():
            return None
        with giving_back(self.lease):
            held_back = params.held_back(self.model.end_tokens)
            recording = self.recording(
                len(prompts[0]) + params.max_new_tokens, (params.sampling, held_back),
                lambda target: FastDecoder(target, params.sampling, held_back),
            )  # fmt: skip
            recording.start(prompts, params.seed, params.min_new_tokens)
            return RecordedDecoder(recording, [self.lease])

    def speculator(
        self, rows: Sequence[Completion], drafter: Drafter, k: int | str, params: SamplingParams
    ) -> RecordedSpeculator | None:
        """What `speculate` runs its cycles by: one launch each, if the drafter is a model beside this one or a set of
        heads on it. None: eagerly."""
        if len(rows) > 1 or k == "auto":
            return None
        if drafter.on_device is not None and drafter.on_device.takes(drafter):
            return self._with_heads(rows[0], drafter, k, params)
        draft = drafter.chain_model
        if draft is None or draft is self.model or draft.device != self.model.device or not draft.transformer.ordinary:
            return None
        return self._with_model(rows[0], drafter, draft, k, params)

    def _with_heads(self, row: Completion, drafter: Drafter, k: int, params: SamplingParams):
        if not self.lease.take():
            return None
        with giving_back(self.lease):
            held_back = params.held_back(self.model.end_tokens)
            tokens = len(row.context.tokens) + params.max_new_tokens + k + 1 + drafter.max_tree_nodes(k)

            @on_the_device
            def make(target: FastTransformer) -> TreeSpeculator:
                return TreeSpeculator(target, drafter.on_device(drafter, target, k), k, params.sampling, held_back)

            recording = self.recording(tokens, (params.sampling, held_back, drafter, k), make)
            recording.start([row.context.tokens], params.seed, params.min_new_tokens)
            return RecordedSpeculator(recording, row, [self.lease])

    def _with_model(self, row: Completion, drafter: Drafter, draft: Model, k: int, params: SamplingParams):
        tokens = len(row.context.tokens) + params.max_new_tokens + k  # a cycle may go k tokens past the end
        leases = [backend.lease for backend in sorted((self, draft.accelerate()), key=id)]  # in one order: no deadlock
        if not leases[0].take():
            return None
        if not leases[1].take():
            leases[0].give_back()
            return None
        with giving_back(*leases):
            held_back, memory = (
                params.held_back(self.model.end_tokens),
                draft.backend.reserve(self.reserve(tokens).capacity),
            )
            recording = self.recording(
                tokens, (params.sampling, held_back, draft.backend, k, drafter.sampling, memory.capacity),
                lambda target: FastSpeculator(target, memory, k, params.sampling, drafter.sampling, held_back),
            )  # fmt: skip
            recording.start([row.context.tokens], params.seed, params.min_new_tokens)
            return RecordedSpeculator(recording, row, leases)

    @contextmanager
    def passes(self, ids: Tensor, context: int, tokens: Sequence[int]):
        """measure.passes, recorded: calls that process the first M of ids [1, S] after `context`, and a rewind."""
        if not self.lease.take():
            raise ValueError(f"{self.model.name} is generating in this thread: measure it when that is done")
        try:
            memory = self.reserve(ids.shape[1])
            memory.prefill(ids[:, :context], torch.full((1,), context, device=ids.device))
            work = {m: partial(memory.step, ids[:, context : context + m].clone()) for m in tokens}
            yield (
                {m: Recorded(step, [memory.lengths]) for m, step in work.items()},
                lambda: memory.lengths.fill_(context),
            )
        finally:
            self.lease.give_back()

    def serve(self, num_blocks: int, block_size: int, rows: int, k: int, hidden_layers: Sequence[int]):
        """An engine's memory in blocks, and its passes over up to `rows` sequences in shapes that can be recorded."""
        return memory_for(self.model, num_blocks, block_size, rows, k, hidden_layers)

    def draft_memory(self) -> PagedMemory:
        """Memory in blocks for a model that drafts in an engine."""
        return PagedMemory(self.model)

    # ---- recordings ------------------------------------------------------------------------------------------------

    def reserve(self, tokens: int) -> FastTransformer:
        """The transformer, with room for so many tokens."""
        if tokens > self.transformer.capacity:
            self.transformer.allocate(1, 1 << (tokens - 1).bit_length())
            self.decoders.clear()
        return self.transformer

    def recording(self, tokens: int, key: tuple, make: Callable[[FastTransformer], FastDecoder]) -> FastDecoder:
        """What generates sequences of so many tokens in this way: recorded before, or new."""
        target = self.reserve(tokens)
        if key not in self.decoders:
            if len(self.decoders) >= RECORDINGS:
                del self.decoders[next(iter(self.decoders))]
            self.decoders[key] = make(target)
        return self.decoders[key]


class giving_back:
    """Give the leases back if something goes wrong before somebody else looks after them."""

    def __init__(self, *leases: Lease):
        self.leases = leases

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind, *rest) -> None:
        if kind is not None:
            for lease in self.leases:
                lease.give_back()


class RecordedDecoder:
    """Plain decoding of one sequence, a launch for each token: generate.Decoder's twin."""

    def __init__(self, recording: FastDecoder, leases: Sequence[Lease]):
        self.recording, self.leases = recording, list(leases)

    def launch(self, most: int) -> None:
        """As many as surely do not exceed `most` tokens by a whole launch, and then a look."""
        for lease in self.leases:
            lease.sign()
        self.recording.launch(min(-(-most // self.recording.most), LOOK_EVERY))

    def next(self, most: int) -> list[list[int]]:
        self.launch(most)
        return self.recording.fetch()

    def close(self) -> None:
        while self.leases:
            self.leases.pop().give_back()


class RecordedSpeculator(RecordedDecoder):
    """Speculative decoding of one sequence, a launch for each cycle: speculate.Eager's twin."""

    def __init__(self, recording: FastSpeculator, row: Completion, leases: Sequence[Lease]):
        super().__init__(recording, leases)
        self.row = row

    def cycles(self) -> list[list[Cycle]]:
        self.launch(self.row.room + 1)
        self.recording.fetch()
        return [self.recording.history(first=len(self.row.trace.cycles))]

    def finish(self) -> list[Completion]:
        return [] if self.row.ended else [self.row]


Model.make_backend = Backend  # handed in here: a handle knows of no device's backend


def load(name, *, device=None, dtype: torch.dtype | None = None, fast: bool | None = None) -> Model:
    """Load a model: a known name (see `ms.models()`), a folder, or a hub id. On the GPU when there is one.

    `fast` (by default: on a GPU) decodes single prompts by CUDA graphs; where that cannot be, a warning says why.
    """
    model = load_model(name, device=device, dtype=dtype)
    if fast or (fast is None and model.device.type == "cuda"):
        if model.device.type != "cuda":
            warnings.warn(f"fast=True needs a CUDA device and {model.name} is on {model.device}: it decodes as usual",
                          stacklevel=2)  # fmt: skip
        elif note := model.accelerate().note:
            warnings.warn(f"{model.name} decodes by CUDA graphs, but uncompiled: {note}", stacklevel=2)
    return model
