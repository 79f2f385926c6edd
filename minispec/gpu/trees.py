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
from ..tree import Draft
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
    def __init__(
        self,
        target: FastTransformer,
        drafter: DeviceDrafter,
        k: int,
        sampling: Sampling | None = None,
        held_back: Sequence[int] = (),
    ):
        self.drafter, self.k, self.nodes, self.most = drafter, k, drafter.nodes, k + 1
        self.kernels = tree_kernels if has_kernels(target.device, target.dtype) else None
        self.laid_out = self.kernels.laid_out if self.kernels else tree_kernels.laid_out_torch
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
        self.marks.mark(0)
        tokens, parents = self.drafter.propose(self.text, self.count)  # [B, nodes] each
        self.marks.mark(1)
        new, mask, offsets = self.laid_out(tokens, parents, self.text, self.count, self.k)
        logits, hidden = self.target.verify(new, mask, offsets, self.drafter.hidden_layers)
        self.marks.mark(2)
        logits = self.allowed(logits, offsets)
        path, verified, run, added, line, chances = self.verdict(logits, tokens, parents, mask, offsets)
        if self.kernels:
            self.kernels.move(self.target.cache.keys, self.target.cache.values, path, self.count)
        else:
            self.target.cache.gather(path, self.count)
        self.commit(run, added, line, chances)
        self.drafter.settle(hidden, verified, run, added)
        self.marks.mark(3)

    def verdict(self, logits: Tensor, tokens: Tensor, parents: Tensor, mask: Tensor, offsets: Tensor):
        """The accepted path [B, k] (unused places hold their own number), the same as slots of the pass, after the last
        token's [B, k + 1], its tokens and the one after them [B, k + 1], how many these are [B], and what the log says
        of it."""
        B, k = len(tokens), self.k
        if self.kernels and self.sampling.greedy:
            return self.kernels.walk(self.target.best_tokens(logits), tokens, parents, k, self.sound)
        above, depths = mask[:, 1:, 1:], offsets[:, 1:]
        accepted, token, chances, sound = self.judge(logits, tokens, parents, above, self.take(self.numbers))
        self.sound &= sound
        kept = accepted.sum(-1)
        # Where each accepted node goes: to its depth on the path. The others go to a column that nobody reads.
        place, node = torch.where(accepted, depths - 1, k), self.target.places[: self.nodes].repeat(B, 1)
        path = self.target.places[: k + 1].repeat(B, 1).scatter_(1, place, node)[:, :k]
        run = torch.zeros(B, k + 1, dtype=torch.long, device=path.device).scatter_(1, place, tokens)
        run.scatter_(1, kept[:, None], token[:, None])
        line = torch.cat([tokens, parents, accepted.long(), token[:, None]], 1)
        return path, F.pad(path + 1, (1, 0)), run, kept + 1, line, chances

    def commit(self, run: Tensor, added: Tensor, line: Tensor, chances: Tensor) -> None:
        """Append the first `added` [B] of run [B, k + 1] to the text, and note what was logged of it."""
        if self.kernels:
            self.kernels.commit(
                run,
                added,
                line,
                chances,
                self.sound,
                self.cycles,
                self.text,
                self.count,
                self.target.lengths,
                self.log,
                self.chances,
                self.report,
            )
            self.cycles += 1
        else:
            self.append(run, added)
            self.target.lengths.copy_(self.count - 1)  # the last token is unprocessed
            self.note(line, chances)

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
