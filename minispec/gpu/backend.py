"""`generate` and `speculate` for one prompt by CUDA graphs: the same tokens, one launch each or one a whole cycle.

A model on a GPU gets its fast side, `model.backend`, when it is loaded. Without CUDA everything here works too, only
unrecorded; the tests live on that.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from functools import cached_property

import torch

from ..drafters import Model as ModelDrafter
from ..files.folder import load as load_model
from ..files.handle import Model
from ..generate import Output, Writer, prepare
from ..sampling import Sampling
from ..speculate import check
from ..trace import Cycle, Trace
from .buckets import memory_for
from .decode import FastDecoder, FastSpeculator
from .draft_memory import PagedMemory
from .fused import FastTransformer, require_ordinary
from .record import why_not_compile

LOOK_EVERY = 8  # launches between two looks at what was written
RECORDINGS = 8  # kept for each model: one for each way to sample and each draft


class Fast:
    """A model's fast side: memory that grows with the texts, and recordings of what is done in it."""

    def __init__(self, model: Model, compile: bool | str | None = None, lean: bool | None = None):
        require_ordinary(model.transformer, f"fast=True: {model.name}")
        self.model, self.note = model, None
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

    def serve(self, num_blocks: int, block_size: int, rows: int, k: int, hidden_layers: Sequence[int]):
        """An engine's memory in blocks, and its passes over up to `rows` sequences in shapes that can be recorded."""
        return memory_for(self.model, num_blocks, block_size, rows, k, hidden_layers)

    def draft_memory(self) -> PagedMemory:
        """Memory in blocks for a model that drafts in an engine."""
        return PagedMemory(self.model)

    def generate(
        self, ids: Sequence[int], max_new_tokens: int, sampling: Sampling, seed: int | None = None, stop=(), stream=None
    ) -> Output:
        """`minispec.generate` for one prompt that was checked already."""
        writer, start = Writer(self.model, max_new_tokens, stop, stream), time.perf_counter()
        decoder = self.decoder(len(ids) + max_new_tokens, sampling)
        decoder.start([ids], seed)
        while writer.finish is None:
            decoder.launch(launches(writer, decoder))
            any(writer.write(token) for token in decoder.fetch()[0])  # up to the one that ends the text
        return writer.output(len(ids), time.perf_counter() - start)

    def takes(self, drafter, k) -> bool:
        """Whether a cycle of this drafter can be recorded."""
        return isinstance(drafter, ModelDrafter) and drafter.draft is not self.model and isinstance(k, int)

    def speculate(
        self, ids: Sequence[int], drafter: ModelDrafter, k: int, max_new_tokens: int, sampling: Sampling,
        seed: int | None = None, stop=(), stream=None, on_cycle=None,
    ) -> Output:  # fmt: skip
        """`minispec.speculate` for one prompt and a drafter that it takes."""
        writer, trace, start = Writer(self.model, max_new_tokens, stop, stream), Trace(), time.perf_counter()
        room = len(ids) + max_new_tokens + k  # a cycle may write k tokens past the end
        decoder = self.decoder(room, sampling, accelerate(drafter.draft), k, drafter.sampling)
        decoder.start([ids], seed)
        while writer.finish is None:
            decoder.launch(launches(writer, decoder))
            decoder.fetch()
            for cycle in decoder.history(first=len(trace.cycles)):
                for kept, token in enumerate(cycle.tokens, start=1):
                    if writer.write(token):
                        cycle.kept = kept
                        break
                trace.cycles.append(cycle)
                if on_cycle:
                    on_cycle(cycle)
                if writer.finish is not None:  # what was written past the end never happened
                    break
        return writer.output(len(ids), time.perf_counter() - start, trace)

    def reserve(self, tokens: int) -> FastTransformer:
        """The transformer, with room for so many tokens."""
        if tokens > self.transformer.capacity:
            self.transformer.allocate(1, 1 << (tokens - 1).bit_length())
            self.decoders.clear()
        return self.transformer

    def decoder(self, tokens: int, sampling: Sampling, draft: Fast | None = None, k: int = 0,
                draft_sampling: Sampling | None = None) -> FastDecoder:  # fmt: skip
        """What writes such texts: recorded before, or new."""
        target = self.reserve(tokens)
        memory = draft and draft.reserve(target.capacity)
        key = (sampling, draft, k, draft_sampling, memory and memory.capacity)  # more memory is other memory
        if key not in self.decoders:
            if len(self.decoders) >= RECORDINGS:
                del self.decoders[next(iter(self.decoders))]
            self.decoders[key] = (
                FastSpeculator(target, memory, k, sampling, draft_sampling) if draft else FastDecoder(target, sampling)
            )
        return self.decoders[key]


def launches(writer: Writer, decoder: FastDecoder) -> int:
    """As many as the text surely needs, at most `most` − 1 tokens too far; fewer where it may end any time."""
    needed = -(-(writer.limit - len(writer.tokens)) // decoder.most)
    free = not (writer.model.end_tokens or writer.stop or writer.stream)
    return needed if free else min(needed, LOOK_EVERY)


def accelerate(model: Model, compile: bool | str | None = None) -> Fast:
    """The model's fast side, made on first use. Its big matrices are fused in place, and the model shares them."""
    return model.accelerate(compile)


def load(name, *, device=None, dtype: torch.dtype | None = None, fast: bool | None = None) -> Model:
    """Load a model: a known name (see `ms.models()`), a folder, or a hub id. On the GPU when there is one.

    `fast` (by default: on a GPU) decodes single prompts by CUDA graphs; where that cannot be, a warning says why.
    """
    model = load_model(name, device=device, dtype=dtype)
    if fast or (fast is None and model.device.type == "cuda"):
        if model.device.type != "cuda":
            warnings.warn(f"fast=True needs a CUDA device and {model.name} is on {model.device}: it decodes as usual",
                          stacklevel=2)  # fmt: skip
        elif note := accelerate(model).note:
            warnings.warn(f"{model.name} decodes by CUDA graphs, but uncompiled: {note}", stacklevel=2)
    return model


def generate(
    model: Model,
    prompt,
    max_new_tokens: int = 64,
    *,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int | None = None,
    stop: str | Sequence[str] = (),
    stream: Callable[[str], None] | None = None,
) -> Output:
    """`minispec.generate` for one prompt, one launch a token."""
    sampling = Sampling(temperature, top_k, top_p, min_p)
    ids = one_prompt(model, prompt, max_new_tokens)
    return accelerate(model).generate(ids, max_new_tokens, sampling, seed, stop, stream)


def speculate(
    model: Model,
    prompt,
    drafter: ModelDrafter,
    k: int = 4,
    max_new_tokens: int = 64,
    *,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int | None = None,
    stop: str | Sequence[str] = (),
    stream: Callable[[str], None] | None = None,
    on_cycle: Callable[[Cycle], None] | None = None,
) -> Output:
    """`minispec.speculate` for one prompt and a model as drafter, one launch a cycle.

    Its cycles always draft k tokens, and those of `out.trace` have no times: a launch has no parts.
    """
    sampling = Sampling(temperature, top_k, top_p, min_p)
    check(model, drafter, k, False)
    ids = one_prompt(model, prompt, max_new_tokens)
    if not accelerate(model).takes(drafter, k):
        raise ValueError(f"drafter={drafter!r}, k={k!r}: a recorded cycle needs ms.drafters.Model with another model, "
                         "and a fixed k; ms.speculate takes all others")  # fmt: skip
    return model.backend.speculate(ids, drafter, k, max_new_tokens, sampling, seed, stop, stream, on_cycle)


def one_prompt(model: Model, prompt, max_new_tokens: int) -> list[int]:
    prompts, batched = prepare(model, prompt, max_new_tokens)
    if batched:
        raise ValueError(f"prompt is a batch of {len(prompts)}: recorded decoding takes one prompt at a time")
    return prompts[0]


Model.make_backend = Fast  # handed in here: a handle knows of no device's backend
