"""The backend of a model on a GPU: `generate` and `speculate` for one prompt, one launch for each token or cycle.

A model gets it when it is loaded onto a GPU (`load` below), or by `Model.accelerate`. The loops are those of
generate.py and speculate.py. Without CUDA everything here works too, only uncaptured; the tests live on that.

A drafter that works on the host, and a batch, have cycles of their own (`Hosted`): the draft goes up, one launch
verifies it, and the best tokens come down. Drafts differ in size from cycle to cycle, launches cannot, so a pass has
one of two sizes: the last token alone, or that and the largest draft. What is missing is padding.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..cpu import invariant
from ..drafters.adaptive import AdaptiveLength
from ..drafters.base import Drafter
from ..load.folder import load as load_model
from ..load.handle import Model
from ..sampling import SamplingParams, pad
from ..sequence import Sequence
from ..speculate import Loop, check_shapes
from ..trace import Cycle
from ..tree import Draft
from ..verify import judge
from . import engine_heads  # noqa: F401 (fills the drafters' table)
from .buckets import memory_for, view
from .capture import Captured, Lease, giving_back, on_the_device, why_not_compile
from .decode import FastDecoder, FastSpeculator, Speculator, TreeSpeculator, kind_of
from .draft_memory import PagedMemory
from .fused import FastTransformer, has_kernels, require_ordinary
from .heads import on_device
from .ragged import RaggedPasses
from .runner import CapturedRunner


class VerifyPasses:
    """The target's captured passes over drafts of up to `most` tokens (scratch included), for every row of memory."""

    @on_the_device
    def __init__(self, target: FastTransformer, most: int, hidden_layers: list[int]):
        self.target, self.most, self.hidden_layers = target, most, tuple(hidden_layers)
        B, T, new = target.batch, 1 + most, dict(device=target.device)
        # A line a row, written by the host: its length, tokens, how far after the last each is, who attends to whom.
        self.sheet = torch.zeros(B, 1 + 2 * T + T * T, dtype=torch.int32, **new)
        self.lines = torch.zeros(self.sheet.shape, dtype=torch.int32, pin_memory=target.device.type == "cuda")
        self.numbers = self.lines.numpy()
        # Captures share their scratch memory: what is to outlive a launch needs a place of its own.
        self.logits = torch.zeros(B, T, target.config.vocab_size, dtype=target.dtype, **new)
        self.best = torch.zeros(B, T, dtype=torch.long, **new)  # −1: NaN or ∞
        self.hidden = {
            n: torch.zeros(B, T, target.config.hidden_size, dtype=target.dtype, **new) for n in hidden_layers
        }
        self.path = torch.zeros(B, 1 + most, dtype=torch.long, **new)  # a start and a path for each row
        self.captures: dict[tuple[int, bool], Captured] = {}
        self.views: dict[int, tuple] = {}  # of the results, by the size of the pass
        self.mover = Captured(self.move, [self.path])

    def run(self, last: list[int], drafts: list[Draft], lengths: list[int]) -> int:
        """Verify one draft a row, after `lengths` cached tokens and the last one. Returns T, the size of the pass.

        Results are in `logits`, `best` and `hidden`: the last token, the draft, padding, and at the end the scratch.
        """
        longest = max(len(draft.tokens) + (len(draft.scratch.tokens) if draft.scratch else 0) for draft in drafts)
        if longest > self.most:
            raise ValueError(
                f"a draft of {longest} tokens, where at most {self.most} were announced: let the "
                "drafter's max_tree_nodes and scratch_slots say how many it proposes"
            )
        branches = any(draft.parents is not None or draft.scratch for draft in drafts)
        T = 1 + self.most if longest else 1
        self.write(last, drafts, lengths, T, branches)
        self.sheet.copy_(self.lines, non_blocking=True)  # whole: only memory without gaps goes while the host works on
        key = T, branches
        if key not in self.captures:
            self.captures[key] = Captured(partial(self.work, T, branches), [self.sheet, self.target.lengths])
        self.captures[key]()
        return T

    def write(self, last, drafts: list[Draft], lengths, T: int, branches: bool) -> None:
        numbers = self.numbers
        numbers[: len(lengths), 0] = lengths
        for row, (token, draft) in enumerate(zip(last, drafts, strict=True)):
            n, scratch = 1 + len(draft.tokens), draft.scratch
            line = np.zeros(T, dtype=np.int32)
            line[:n] = [token, *draft.tokens]
            if scratch:
                line[T - len(scratch.tokens) :] = scratch.tokens
            numbers[row, 1 : 1 + T] = line
            if branches:
                offsets, mask = view(draft, T)
                numbers[row, 1 + T : 1 + 2 * T] = offsets
                numbers[row, 1 + 2 * T : 1 + 2 * T + T * T] = mask.reshape(-1)

    def work(self, T: int, branches: bool) -> None:
        B, sheet = self.target.batch, self.sheet
        self.target.lengths.copy_(sheet[:, 0])
        tokens, offsets, mask = sheet[:, 1 : 1 + T].long(), None, None
        if branches:
            offsets = sheet[:, 1 + T : 1 + 2 * T].long()
            mask = sheet[:, 1 + 2 * T : 1 + 2 * T + T * T].unflatten(1, (T, T)) > 0
        logits, hidden = self.target.verify(tokens, mask, offsets, self.hidden_layers)
        self.logits.view(-1, logits.shape[-1])[: B * T] = logits.flatten(0, 1)
        self.best.view(-1)[: B * T] = self.target.best_tokens(logits).flatten()
        for n, states in self.hidden.items():
            states.view(-1, states.shape[-1])[: B * T] = hidden[n].flatten(0, 1)

    def results(self, T: int) -> tuple[Tensor, Tensor, dict[int, Tensor]]:
        """Logits [B, T, V], best tokens [B, T] and hidden states [B, T, d] of a pass, good until the next."""
        if T not in self.views:
            B = self.target.batch
            take = lambda memory: memory.flatten(0, 1)[: B * T].unflatten(0, (B, T))  # noqa: E731
            self.views[T] = take(self.logits), take(self.best), {n: take(x) for n, x in self.hidden.items()}
        return self.views[T]

    def keep(self, lengths: list[int], paths: list[list[int]]) -> None:
        """Move each row's accepted path together, to the slots right after its last token."""
        if all(list(path) == list(range(len(path))) for path in paths):
            return
        everyone = np.tile(np.arange(-1, self.most), (self.target.batch, 1))  # a start, and a path that changes nothing
        everyone[:, 0] = 0
        for row, (length, path) in enumerate(zip(lengths, paths, strict=True)):
            everyone[row, 0] = length + 1
            everyone[row, 1 : 1 + len(path)] = path
        self.path.copy_(torch.from_numpy(everyone))
        self.mover()

    def move(self) -> None:
        self.target.cache.gather(self.path[:, 1:], self.path[:, 0])


class Hosted(Loop):
    """speculate.Loop with captured passes. Sequences that have ended ride along as padding."""

    def __init__(self, passes: VerifyPasses, lease: Lease, model: Model, rows: list[Sequence], drafter, k, params):
        self.passes, self.lease, self.places = passes, lease, list(range(len(rows)))
        drafter.record()
        super().__init__(model, rows, drafter, k, params)

    def prefill(self, room: int) -> None:
        prompts, target = [sequence.tokens[:-1] for sequence in self.sequences], self.passes.target
        tokens, counts = pad(prompts, target.device)
        hidden = target.prefill(tokens, counts, self.drafter.hidden_layers)
        for i, sequence in enumerate(self.sequences):
            states = {n: states[i, : len(prompts[i])] for n, states in hidden.items()}
            sequence.remember(states, self.drafter.hidden_window)

    def cycles(self) -> list:
        self.lease.sign()
        return super().cycles()

    def forward(self):
        check_shapes(self.drafts, self.model.config.vocab_size)
        B = self.passes.target.batch
        last, drafts, self.lengths = [0] * B, [Draft([])] * B, [0] * B
        for place, sequence, draft in zip(self.places, self.sequences, self.drafts, strict=True):
            tokens, drafts[place] = sequence.tokens, draft
            last[place], self.lengths[place] = tokens[-1], len(tokens) - 1
        T = self.passes.run(last, drafts, self.lengths)
        logits, best, hidden = self.passes.results(T)
        if len(self.places) < B:
            logits, best = logits[self.places], best[self.places]
            hidden = {n: states[self.places] for n, states in hidden.items()}
        self.best = best
        return logits, hidden

    def judge(self):
        return judge(self.logits, self.sequences, self.drafts, self.drafter.lossless, self.best)

    def keep(self) -> None:
        paths = [[]] * self.passes.target.batch
        for place, verdict in zip(self.places, self.verdicts, strict=True):
            paths[place] = verdict.path
        self.passes.keep(self.lengths, paths)

    def leave(self, going: list[int]) -> None:
        self.places = [self.places[i] for i in going]

    def close(self) -> None:
        super().close()
        self.lease.give_back()


AHEAD = 2  # launches that may be under way: while the host waits for one, the device works on the next
CAPTURES = 32  # kept for each model: one for each way to sample and each drafter; they share their scratch memory


class Backend:
    """Memory that grows with the sequences, and captures of what is done in it."""

    def __init__(self, model: Model, compile: bool | str | None = None, lean: bool | None = None):
        require_ordinary(model.transformer, f"fast=True: {model.name}")
        self.model, self.note, self.lease, self.told = model, None, Lease(), False
        self.invariant = invariant.wanted()
        on_gpu = model.device.type == "cuda"
        lean = has_kernels(model.device, model.dtype) if lean is None else lean
        if compile is None and (compile := on_gpu and not lean):  # lean passes leave nothing to be fused
            self.note = why_not_compile(model.device, model.dtype)
            compile = self.note is None
        room = 2048 if on_gpu else 256  # more memory is other memory, and everything is captured again
        self.options = dict(capacity=room, compile=compile, lean=lean)
        self.memories: dict[int, FastTransformer] = {}  # by the number of sequences
        self.decoders: dict[tuple, FastDecoder | VerifyPasses] = {}

    # ---- what the loops ask for ------------------------------------------------------------------------------------

    def decoder(self, sequences: list[Sequence], params: SamplingParams) -> Iterator | None:
        """What `generate` decodes this batch by; None: eagerly."""
        if self.beyond(params) or not self.lease.take():
            return None
        with giving_back(self.lease):
            held_back, prompts = params.held_back(self.model.end_tokens), [sequence.tokens for sequence in sequences]
            tokens, key = max(map(len, prompts)) + params.max_new_tokens, (kind_of(params.sampling), held_back)
            make = lambda target: FastDecoder(target, params.sampling, held_back)  # noqa: E731
            capture = self.capture(tokens, key, make, len(prompts))
            capture.start(prompts, params.seed, params.min_new_tokens, params.sampling)
            return CapturedDecoder(capture, sequences, [self.lease])

    def speculator(
        self, rows: list[Sequence], drafter: Drafter, k: int | str, params: SamplingParams
    ) -> CapturedSpeculator | None:
        """What `speculate` runs its cycles by: one launch each, if the drafter is a model beside this one or a set of
        heads on it, else one for each pass. None: eagerly."""
        # Only the host's cycles show their logits, and process them by the prefix.
        if self.beyond(params) or len(rows) > 1 or k == "auto" or params.logprobs is not None:
            return self._hosted(rows, drafter, k, params)
        if on_device(drafter):
            return self._with_heads(rows[0], drafter, k, params)
        draft = drafter.chain_model
        if draft is None or draft is self.model or draft.device != self.model.device or not draft.transformer.ordinary:
            return self._hosted(rows, drafter, k, params)
        return self._with_model(rows[0], drafter, draft, k, params)

    def beyond(self, params: SamplingParams) -> bool:
        """Whether a request asks for what no capture knows: logits that depend on the prefix. Says so once."""
        if params.by_prefix and not self.told:
            self.told = True
            warnings.warn(
                "penalties, biases, bad words and constraints are applied by the host: `generate` decodes "
                "without CUDA graphs, and drafts are judged one by one. Outputs are the same, later",
                stacklevel=2,
            )
        return params.by_prefix

    def _hosted(self, rows: list[Sequence], drafter: Drafter, k: int | str, params: SamplingParams):
        if not self.lease.take():
            return None
        with giving_back(self.lease):
            longest = AdaptiveLength().longest if k == "auto" else k
            most = drafter.max_tree_nodes(longest) + drafter.scratch_slots
            tokens = max(len(row.tokens) for row in rows) + params.max_new_tokens + longest + 1 + most
            key, layers = ("passes", most, tuple(drafter.hidden_layers)), drafter.hidden_layers
            passes = self.capture(tokens, key, lambda target: VerifyPasses(target, most, layers), len(rows))
            return Hosted(passes, self.lease, self.model, list(rows), drafter, k, params)

    def _with_heads(self, row: Sequence, drafter: Drafter, k: int, params: SamplingParams):
        if not self.lease.take():
            return None
        with giving_back(self.lease):
            held_back = params.held_back(self.model.end_tokens)
            tokens = len(row.tokens) + params.max_new_tokens + AHEAD * (k + 1) + drafter.max_tree_nodes(k)

            @on_the_device
            def make(target: FastTransformer) -> Speculator:
                heads = on_device(drafter)(drafter, target, k)
                return TreeSpeculator(target, heads, k, params.sampling, held_back)

            capture = self.capture(tokens, (kind_of(params.sampling), held_back, drafter, k), make)
            capture.start([row.tokens], params.seed, params.min_new_tokens, params.sampling)
            return CapturedSpeculator(capture, [row], [self.lease])

    def _with_model(self, row: Sequence, drafter: Drafter, draft: Model, k: int, params: SamplingParams):
        tokens = len(row.tokens) + params.max_new_tokens + AHEAD * (k + 1)  # cycles may go past the end
        leases = [backend.lease for backend in sorted((self, draft.accelerate()), key=id)]  # in one order: no deadlock
        if not leases[0].take():
            return None
        if not leases[1].take():
            leases[0].give_back()
            return None
        with giving_back(*leases):
            held_back = params.held_back(self.model.end_tokens)
            memory = draft.backend.reserve(self.reserve(tokens).capacity)
            key = kind_of(params.sampling), held_back, draft.backend, k, drafter.sampling, memory.capacity
            make = lambda target: FastSpeculator(target, memory, k, params.sampling, drafter.sampling, held_back)  # noqa: E731
            capture = self.capture(tokens, key, make)
            capture.start([row.tokens], params.seed, params.min_new_tokens, params.sampling)
            return CapturedSpeculator(capture, [row], leases)

    def runner(self, *options) -> CapturedRunner:
        """What an engine's steps run by."""
        return CapturedRunner(*options)

    @contextmanager
    def passes(self, ids: Tensor, context: int, tokens: list[int]):
        """measure.passes, captured: calls that process the first M of ids [1, S] after `context`, and a rewind."""
        if not self.lease.take():
            raise ValueError(f"{self.model.name} is generating in this thread: measure it when that is done")
        try:
            memory = self.reserve(ids.shape[1])
            memory.prefill(ids[:, :context], torch.full((1,), context, device=ids.device))
            work = {m: partial(memory.step, ids[:, context : context + m].clone()) for m in tokens}
            yield (
                {m: Captured(step, [memory.lengths]) for m, step in work.items()},
                lambda: memory.lengths.fill_(context),
            )
        finally:
            self.lease.give_back()

    def serve(self, num_blocks: int, block_size: int, rows: int, k: int, hidden_layers: list[int]):
        """An engine's memory in blocks, and its passes over up to `rows` sequences in shapes that can be captured."""
        cache, buckets = memory_for(self.model, num_blocks, block_size, rows, k, hidden_layers)
        options = dict(compile=buckets.compile, lean=buckets.skinny is not None)
        buckets.prompts = RaggedPasses(self.model.transformer, cache, rows, hidden_layers=hidden_layers, **options)
        return cache, buckets

    def draft_memory(self, tokens: int = 2) -> PagedMemory:
        """Memory in blocks for a model that drafts, with captured passes over up to so many tokens of a sequence."""
        return PagedMemory(self.model, tokens)

    # ---- captures ------------------------------------------------------------------------------------------------

    @on_the_device
    def reserve(self, tokens: int, batch: int = 1) -> FastTransformer:
        """Fused weights, and memory of so many tokens for each of so many sequences."""
        if self.invariant != invariant.wanted():  # what was captured adds up in another order
            self.memories, self.decoders, self.invariant = {}, {}, not self.invariant
        if batch not in self.memories:
            for other in [size for size in self.memories if size > 1]:  # memory of one batch is kept, and of one prompt
                self.forget(other)
            # Compiled is one prompt alone: to compile takes seconds for each number of sequences.
            options = self.options if batch == 1 else self.options | dict(compile=False)
            self.memories[batch] = FastTransformer(self.model.transformer, batch, **options)
        memory = self.memories[batch]
        if tokens > memory.capacity:
            self.forget(batch)
            memory.allocate(batch, 1 << (tokens - 1).bit_length())
            self.memories[batch] = memory
        return memory

    def forget(self, batch: int) -> None:
        """Memory and captures for so many sequences."""
        del self.memories[batch]
        self.decoders = {key: made for key, made in self.decoders.items() if key[0] != batch}

    def capture(self, tokens: int, key: tuple, make: Callable[[FastTransformer], object], batch: int = 1):
        """What generates sequences of so many tokens in this way: captured before, or new."""
        target, key = self.reserve(tokens, batch), (batch, *key)
        made = self.decoders.pop(key, None) or make(target)
        while len(self.decoders) >= CAPTURES:  # the one that was used longest ago goes
            del self.decoders[next(iter(self.decoders))]
        self.decoders[key] = made
        return made


class CapturedDecoder:
    """Plain decoding, a launch for each token: generate.token_by_token's twin. The host waits for one launch while the
    next runs."""

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

    @property
    def ahead(self) -> int:
        return AHEAD

    def close(self) -> None:
        while self.leases:
            self.leases.pop().give_back()


class CapturedSpeculator(CapturedDecoder):
    """Speculative decoding of one sequence, a launch for each cycle: speculate.Loop's twin."""

    @property
    def ahead(self) -> int:
        [sequence] = self.sequences
        return AHEAD if sequence.trace.cycles else 1  # the first cycle's parts are timed: nothing follows it at once

    def cycles(self) -> list[list[tuple[Cycle, None]]]:
        [sequence] = self.sequences
        return [[(cycle, None) for cycle in self.next(sequence.room + 1)]]

    def finish(self) -> None:
        self.sequences = [sequence for sequence in self.sequences if not sequence.ended]


Model.make_backend = Backend  # handed in here: a handle knows of no device's backend


def load(
    name, *, device=None, dtype: torch.dtype | None = None, fast: bool | None = None, weights=None, tokenizer=None
) -> Model:
    """Load a model: a known name (see `ms.models()`), a folder, or a hub id. On the GPU when there is one.

    Or a live model of transformers, `ms.load(model, tokenizer=tokenizer)`: it stays on its device and in its precision,
    and its weights are shared, not copied.

    `fast` (by default: on a GPU) decodes single prompts by CUDA graphs; where that cannot be, a warning says why.

    `weights="int8"`, on a CPU, rounds every matrix of the layers and the LM head to int8, one scale per row: a quarter
    of the bytes per token, and another model than the float32 one, whose distributions are close to its and not the
    same. The embedding's rows stay float32. The float32 matrices are not kept.
    """
    model = load_model(name, device=device, dtype=dtype, weights=weights, tokenizer=tokenizer)
    if fast or (fast is None and model.device.type == "cuda"):
        if model.device.type != "cuda":
            warnings.warn(
                f"fast=True needs a CUDA device and {model.name} is on {model.device}: it decodes as usual",
                stacklevel=2,
            )
        elif note := model.accelerate().note:
            warnings.warn(f"{model.name} decodes by CUDA graphs, but uncompiled: {note}", stacklevel=2)
    return model
