"""A whole cycle with a token tree as one launch: draft, verify, accept, append, and what the drafter learns from it.

The drafter is one of heads.py, whose weights read the target's hidden states: its draft depends on nothing that the
host knows. `propose` gives n tokens and their parents, both on the device; the verify pass processes them all under
their ancestors' mask, `verify.tree_batch` finds the accepted path, and the path's keys and values are moved together.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..sampling import Sampling, finite
from ..trace import Cycle
from ..tree import Draft, ancestors
from ..verify import Verdict, tree_batch
from . import tree_kernels
from .decode import Speculator
from .fused import FastTransformer, has_kernels
from .heads import DeviceDrafter
from .pages import pick
from .record import on_the_device


class TreeSpeculator(Speculator):
    """Speculative decoding with trees of `drafter`, at most k deep."""

    @on_the_device
    def __init__(self, target: FastTransformer, drafter: DeviceDrafter, k: int, sampling: Sampling | None = None,
                 held_back: Sequence[int] = ()):  # fmt: skip
        self.drafter, self.k, self.nodes, self.most = drafter, k, drafter.nodes, k + 1
        self.kernels = tree_kernels if has_kernels(target.device, target.dtype) else None
        # One line a cycle: tokens, parents and which of them were accepted, then the token after the path.
        super().__init__(target, sampling, held_back, line=3 * self.nodes + 1, chances=self.nodes)
        self.judge = target.compiled(self.judge)

    @property
    def numbers(self) -> int:
        return 0 if self.sampling.greedy else self.nodes + 1

    def state(self) -> list[Tensor]:
        return [*super().state(), *self.drafter.state()]

    def read_prompts(self, tokens: Tensor, counts: Tensor) -> None:
        hidden = self.target.prefill(tokens, counts, self.drafter.hidden_layers)
        self.drafter.start(self.text[:, 1 : tokens.shape[1] + 1], hidden, counts)
        self.begin_log()

    def step(self) -> None:
        n = self.count.clone()
        self.marks.mark(0)
        tokens, parents = self.drafter.propose(self.text, n)  # [B, nodes] each
        self.marks.mark(1)
        mask, offsets = self.shape(parents)
        last = self.text.gather(1, n[:, None] - 1)
        logits, hidden = self.target.verify(torch.cat([last, tokens], 1), mask, offsets, self.drafter.hidden_layers)
        self.marks.mark(2)
        logits = self.allowed(logits, offsets)
        path, run, kept, line, chances = self.verdict(logits, tokens, parents, mask[:, 1:, 1:], offsets[:, 1:])
        if self.kernels:
            self.kernels.move(self.target.cache.keys, self.target.cache.values, path, n)
        else:
            self.target.cache.gather(path, n)
        self.append(run, kept + 1)
        self.target.lengths.copy_(n + kept)
        self.drafter.settle(hidden, F.pad(path + 1, (1, 0)), run, kept + 1)  # at [last token, accepted nodes …]
        self.note(line, chances)
        self.marks.mark(3)

    def shape(self, parents: Tensor) -> tuple[Tensor, Tensor]:
        """Who attends to whom in the verify pass [B, n + 1, n + 1], and how far after the past each is [B, n + 1]."""
        if self.kernels:
            return self.kernels.masks(parents, self.k, root=True)
        above = ancestors(parents, self.k)
        mask = F.pad(above, (1, 0, 1, 0))
        mask[:, :, 0] = True  # the last token comes before the tree, and every node attends to it
        return mask, F.pad(above.sum(-1), (1, 0))

    def verdict(self, logits: Tensor, tokens: Tensor, parents: Tensor, above: Tensor, depths: Tensor):
        """The accepted path [B, k] (unused places hold their own number), its tokens and the one after them [B, k + 1],
        how long it is [B], and what the log says of it."""
        B, k = len(tokens), self.k
        if self.kernels and self.sampling.greedy:
            best = self.target.best_tokens(logits)  # [B, n + 1]
            path, run, kept, token, accepted, chances = self.kernels.walk(best, tokens, parents, k)
            self.sound &= (best >= 0).all()
        else:
            accepted, token, chances, sound = self.judge(logits, tokens, parents, above, self.take(self.numbers))
            self.sound &= sound
            kept = accepted.sum(-1)
            # Where each accepted node goes: to its depth on the path. The others go to a column that nobody reads.
            place, node = torch.where(accepted, depths - 1, k), self.target.places[: self.nodes].repeat(B, 1)
            path = self.target.places[: k + 1].repeat(B, 1).scatter_(1, place, node)[:, :k]
            run = torch.zeros(B, k + 1, dtype=torch.long, device=path.device).scatter_(1, place, tokens)
            run.scatter_(1, kept[:, None], token[:, None])
        return path, run, kept, torch.cat([tokens, parents, accepted.long(), token[:, None]], 1), chances

    def judge(self, logits: Tensor, tokens: Tensor, parents: Tensor, above: Tensor, u: Tensor | None):
        """Which nodes are accepted [B, n], the token after them [B], what the target gave each node [B, n], and whether
        there was no NaN or ∞."""
        p = logits if u is None else self.sampling.unchecked_probs(logits)
        accepted, token = tree_batch(p, tokens, parents, above, None, u, pick=pick)
        if u is None:
            chances = tokens == logits.argmax(-1).gather(1, parents + 1)
        else:
            chances, token = p.flatten(1).gather(1, (parents + 1) * p.shape[-1] + tokens), self.inside(token)
        return accepted, token, chances.double(), finite(p)

    def cycle(self, line: list[int], chances: list[float]) -> Cycle:
        n, token = self.nodes, line[-1]
        tokens, parents, accepted = line[:n], line[n : 2 * n], line[2 * n : 3 * n]
        path = [node for node in range(n) if accepted[node]]
        return Cycle.of(Draft(tokens, None, parents), Verdict(path, token), chances, None, 0)
