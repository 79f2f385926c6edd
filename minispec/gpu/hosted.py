"""Cycles of a drafter that works on the host: its draft goes up, one launch verifies it, and the best tokens come down.

For drafters that look things up (n-grams, suffixes), that ride along in the target's pass (lookahead), or whose model
chooses its own length (k="auto"), and for batches. Drafts differ in size from cycle to cycle, launches cannot, so a
pass has one of two sizes: the last token alone, or that and the largest draft. What is missing is padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..drafters.base import Drafter
from ..generate import pad
from ..load.handle import Model
from ..sampling import SamplingParams
from ..speculate import Completion, Eager, check_shapes
from ..trace import Cycle
from ..tree import Draft, depths
from ..verify import judge
from .fused import FastTransformer
from .lease import Lease
from .record import Recorded, on_the_device


class VerifyPasses:
    """The target's recorded passes over drafts of up to `most` tokens (scratch included), for every row of memory."""

    @on_the_device
    def __init__(self, target: FastTransformer, most: int, hidden_layers: Sequence[int]):
        self.target, self.most, self.hidden_layers = target, most, tuple(hidden_layers)
        B, T, new = target.batch, 1 + most, dict(device=target.device)
        # A line a row, written by the host: its length, tokens, how far after the last each is, who attends to whom.
        self.sheet = torch.zeros(B, 1 + 2 * T + T * T, dtype=torch.int32, **new)
        self.lines = torch.zeros(self.sheet.shape, dtype=torch.int32, pin_memory=target.device.type == "cuda")
        self.numbers = self.lines.numpy()
        # Recordings share their scratch memory: what is to outlive a launch needs a place of its own.
        self.logits = torch.zeros(B, T, target.config.vocab_size, dtype=target.dtype, **new)
        self.best = torch.zeros(B, T, dtype=torch.long, **new)  # −1: NaN or ∞
        self.hidden = {
            n: torch.zeros(B, T, target.config.hidden_size, dtype=target.dtype, **new) for n in hidden_layers
        }
        self.path = torch.zeros(B, 1 + most, dtype=torch.long, **new)  # a start and a path for each row
        self.recordings: dict[tuple[int, bool], Recorded] = {}
        self.views: dict[int, tuple] = {}  # of the results, by the size of the pass
        self.mover = Recorded(self.move, [self.path])

    def run(self, last: Sequence[int], drafts: Sequence[Draft], lengths: Sequence[int]) -> int:
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
        if key not in self.recordings:
            self.recordings[key] = Recorded(partial(self.work, T, branches), [self.sheet, self.target.lengths])
        self.recordings[key]()
        return T

    def write(self, last, drafts: Sequence[Draft], lengths, T: int, branches: bool) -> None:
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

    def keep(self, lengths: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
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


def view(draft: Draft, size: int) -> tuple[np.ndarray, np.ndarray]:
    """tree.view on the host's side of a sheet: how far after the last token each is [T], who attends to whom [T, T]."""
    n, mask, offsets = 1 + len(draft.tokens), np.eye(size, dtype=bool), np.zeros(size, dtype=np.int32)
    mask[:n, 0] = True
    for node, parent in enumerate(draft.tree, start=1):
        if parent >= 0:
            mask[node] |= mask[parent + 1]
    offsets[1:n] = depths(draft.tree)
    if draft.scratch:
        s = len(draft.scratch.tokens)
        mask[-s:, -s:] = draft.scratch.mask.numpy()
        mask[-s:, 0] = True
        offsets[-s:] = draft.scratch.offsets
    return offsets, mask


class Hosted(Eager):
    """speculate.Eager with recorded passes. Sequences that have ended ride along as padding."""

    def __init__(
        self,
        model: Model,
        rows: list[Completion],
        drafter: Drafter,
        k: int | str,
        params: SamplingParams,
        passes: VerifyPasses,
        lease: Lease,
    ):
        self.passes, self.lease, self.places = passes, lease, list(range(len(rows)))
        drafter.record()
        super().__init__(model, rows, drafter, k, params)

    def prefill(self, params: SamplingParams, spare: int) -> None:
        prompts, target = [row.context.tokens[:-1] for row in self.rows], self.passes.target
        tokens, counts = pad(prompts, target.device)
        hidden = target.prefill(tokens, counts, self.drafter.hidden_layers)
        for i, row in enumerate(self.rows):
            row.remember({n: states[i, : len(prompts[i])] for n, states in hidden.items()}, self.drafter.hidden_window)

    def cycles(self) -> list[list[Cycle]]:
        self.lease.sign()
        return super().cycles()

    def forward(self):
        check_shapes(self.drafts, self.model.config.vocab_size)
        B = self.passes.target.batch
        last, drafts, self.lengths = [0] * B, [Draft([])] * B, [0] * B
        for place, row, draft in zip(self.places, self.rows, self.drafts, strict=True):
            last[place], drafts[place], self.lengths[place] = row.context.tokens[-1], draft, len(row.context.tokens) - 1
        T = self.passes.run(last, drafts, self.lengths)
        logits, best, hidden = self.passes.results(T)
        if len(self.places) < B:
            logits, best = logits[self.places], best[self.places]
            hidden = {n: states[self.places] for n, states in hidden.items()}
        self.best = best
        return logits, hidden

    def judge(self, logits: Tensor):
        contexts = [row.context for row in self.rows]
        return judge(logits, contexts, self.drafts, self.drafter.lossless, self.best)

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
