"""Draft while the target verifies: the next drafts for the likeliest outcomes are there before the outcome is.

A verification ends with a of the n draft tokens accepted and one token more, t: (a, t) is its outcome, and the next
draft follows the tokens it emits, d₁ … d_a t. The draft model guesses how likely each outcome is:

    P(a, t) ≈ keep₁ ⋯ keep_a · (1 − keep_{a+1}) · q(t | t ≠ d_{a+1}),    without the last two conditions where a = n.

So while the target's pass is under way it processes its own draft once more, which gives q after every prefix, and
drafts for the likeliest outcomes, side by side. If the real outcome is one of them (a hit), its draft is used; if not,
it drafts as usual, and nothing is lost but the work. (Speculative speculative decoding: Kumar, Dao and May, 2026,
arXiv:2603.03251. Theirs has a GPU of its own for the draft model; here both share one, on two streams.)

Exact: the draft prepared for an outcome is sampled from the draft model after that outcome, with random numbers that
the verification does not use; which one is used depends on the emitted tokens alone. So given these tokens it is an
ordinary draft, and its q is what it was sampled from.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from ..processors.drafts import process
from ..require import real, require, whole
from ..sampling import Sampling, distributions, pad
from ..sequence import Sequence
from ..speculate import LONGEST
from ..tree import Draft, cut
from ..verify import at
from .base import BESIDE, Drafter
from .model import DraftModel

RAW = Sampling(temperature=1.0)


def likelihoods(q: Tensor, drafted: Tensor, lengths: Tensor, keep: Tensor) -> Tensor:
    """P(a, t) [B, n+1, V] of every outcome: q [B, n+1, V] after the last token and after each draft token, drafts
    [B, n] of these lengths [B], and how likely each draft token is to be accepted [B, n]."""
    a = torch.arange(q.shape[1], device=q.device)
    ends = torch.ones_like(keep[:, :1])
    reach = torch.cat([ends, keep.cumprod(1)], 1) * (a <= lengths[:, None])  # [B, n+1]: d₁ … d_a are accepted
    stop = torch.cat([1 - keep, ends], 1).masked_fill(a == lengths[:, None], 1.0)  # and no more
    tested = (a[:-1] < lengths[:, None])[..., None]
    rejected = torch.zeros_like(q[:, :-1], dtype=torch.bool).scatter_(2, drafted[..., None], tested)
    other = q.clone()
    other[:, :-1].masked_fill_(rejected, 0.0)  # the correction is never the token that was rejected
    return (reach * stop)[..., None] * other / other.sum(-1, keepdim=True).clamp(min=torch.finfo(q.dtype).tiny)


class Ahead(Drafter):
    """`ms.drafters.Ahead(ms.drafters.Model(draft), outcomes=8)`: prepare drafts for so many outcomes of each cycle.

    `acceptance` is how often a sampled draft token is expected to pass; for greedy requests the draft model's own
    probability says it. `hits` and `misses` count the cycles whose draft was there, and those that had to draft.
    """

    def __init__(self, inner: DraftModel, outcomes: int = 8, acceptance: float = 0.8):
        chains = isinstance(inner, DraftModel) and inner.chain_model is not None
        require(chains, "a draft model of the target's vocabulary: ms.drafters.Model(draft)", inner=inner)
        require(whole(outcomes, 0), "how many outcomes to prepare for, ≥ 0", outcomes=outcomes)
        require(real(acceptance, 0, 1), "a probability", acceptance=acceptance)
        self.inner, self.outcomes, self.acceptance, self.k = inner, outcomes, acceptance, 0
        self.prepared: dict[int, dict[tuple[int, ...], tuple[Draft, tuple]]] = {}  # sequence → its tokens → draft, fork
        self.hits = self.misses = 0

    def __repr__(self) -> str:
        return f"Ahead({self.inner!r}, {self.outcomes})"

    def fit(self, target) -> None:
        self.inner.fit(target)
        require(self.inner.chain_model is not None, "a draft model with the target's tokenizer", inner=self.inner)

    def beside(self, wait: bool):
        """Where the draft model works: on a GPU in a queue of its own, beside what the target's is busy with, or once
        it has done that (wait=True)."""
        device = self.inner.draft.device
        return BESIDE[device.type](device, wait) if device.type in BESIDE else nullcontext()

    def propose(self, sequences: list[Sequence], k: int) -> list[Draft]:
        self.k, drafts = k, {}
        for sequence in sequences:
            prepared = self.prepared.pop(sequence.id, {})
            draft, fork = prepared.pop(tuple(sequence.tokens), (None, None))
            if draft is not None:
                self.inner.become(fork, sequence.id)
                drafts[sequence.id] = cut(draft, k)
            self.hits, self.misses = self.hits + (draft is not None), self.misses + (draft is None)
            self._drop(prepared)
        missed = [sequence for sequence in sequences if sequence.id not in drafts]
        if missed:
            with self.beside(wait=True):
                drafts |= {c.id: draft for c, draft in zip(missed, self.inner.propose(missed, k), strict=True)}
        return [drafts[sequence.id] for sequence in sequences]

    @torch.inference_mode()
    def while_verifying(self, sequences: list[Sequence], drafts: list[Draft]) -> None:
        longest, known = self.inner.draft.config.max_length - self.k - 1, self.inner.committed
        some = [
            (sequence, draft)
            for sequence, draft in zip(sequences, drafts, strict=True)
            if sequence.id in known and sequence.room > 1 and len(sequence.tokens) + len(draft.tokens) <= longest
        ]
        if some and self.outcomes and self.k:
            with self.beside(wait=False):
                self._prepare(*map(list, zip(*some, strict=True)))

    def _prepare(self, sequences: list[Sequence], drafts: list[Draft]) -> None:
        forks, held = [], {}
        for sequence, outcomes in zip(sequences, self._likeliest(sequences, drafts), strict=True):
            self._drop(self.prepared.pop(sequence.id, {}))
            for i, tokens in enumerate(outcomes):
                forks.append(replace(sequence, id=(sequence.id, i), tokens=[*sequence.tokens, *tokens]))
                held[forks[-1].id] = sequence.id, len(forks[-1].tokens) - 1
        self.inner.memory.fork(held)
        for fork, draft in zip(forks, self.inner.propose(forks, self.k) if forks else [], strict=True):
            self.prepared.setdefault(fork.id[0], {})[tuple(fork.tokens)] = draft, fork.id

    def _likeliest(self, sequences: list[Sequence], drafts: list[Draft]) -> list[list[list[int]]]:
        """The tokens that the likeliest outcomes emit, of every sequence. All of a draft is in the memory then."""
        memory, device, ends = self.inner.memory, self.inner.draft.device, {}
        for c, draft in zip(sequences, drafts, strict=True):
            memory.lengths[c.id] = min(memory.lengths[c.id], len(c.tokens) - 1)
            ends[c.id] = c.tokens + draft.tokens
        memory.make_room({id: len(tokens) for id, tokens in ends.items()})
        new = {id: tokens[memory.lengths[id] :] for id, tokens in ends.items()}
        logits = memory.forward(new, [1 + len(draft.tokens) for draft in drafts])  # [B, n+1, V]
        process(logits, sequences, drafts)
        greedy = torch.tensor([[c.sampling.greedy] for c in sequences], device=device)
        q = distributions(logits, [RAW if c.sampling.greedy else c.sampling for c in sequences])
        drafted, lengths = pad([draft.tokens for draft in drafts], device)
        keep = torch.where(greedy, at(q[:, :-1], drafted), self.acceptance)
        room = torch.tensor(
            [[c.room - 1] for c in sequences], device=device
        )  # a draft of one token has to fit after it
        fits = torch.arange(q.shape[1], device=device) < room
        chances = likelihoods(q, drafted, lengths, keep) * fits[..., None]
        best = chances.flatten(1).topk(min(self.outcomes, chances[0].numel()))
        found = zip(sequences, drafts, best.values.tolist(), best.indices.tolist(), strict=True)
        V = q.shape[-1]
        return [
            [[*draft.tokens[: i // V], i % V] for p, i in zip(chance, place, strict=True) if p > 0]
            for _, draft, chance, place in found
        ]

    def _drop(self, prepared: dict) -> None:
        for _, fork in prepared.values():
            self.inner.forget(fork)

    def settle(self, id: int, path: list[int], emitted: int, scratch: Tensor | None = None) -> None:
        self.inner.settle(id, path, emitted)

    def rewind(self, id: int, length: int) -> None:
        self._drop(self.prepared.pop(id, {}))
        self.inner.rewind(id, length)

    def forget(self, id: int) -> None:
        self._drop(self.prepared.pop(id, {}))
        self.inner.forget(id)

    def capture(self) -> None:
        self.inner.pass_tokens = 1 + LONGEST
        self.inner.capture()
