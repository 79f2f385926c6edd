"""Draft while the target verifies: the next drafts for the likeliest outcomes are there before the outcome is.

The outcome of a verification is (a, t): a of n draft tokens are accepted, then t is emitted. The next draft follows
d₁ … d_a t, and the draft model can guess how likely that is:

    P(a, t) ≈ keep₁ ⋯ keep_a · (1 − keep_{a+1}) · q(t | t ≠ d_{a+1}),    for a = n: keep₁ ⋯ keep_n · q(t).

So during the target's pass it processes its own draft once more, for q after every prefix, and drafts for the
likeliest outcomes side by side. If the real one is among them (a hit), its draft is used; if not, it drafts as usual.
(Speculative speculative decoding: Kumar, Dao and May, 2026, arXiv:2603.03251, with a GPU for the draft model alone;
here the two share one, on two streams, which took longer than in turn on an H200. On a CPU nothing runs meanwhile.)

Exact: what is prepared for an outcome is sampled after that outcome, with random numbers that the verification does not
use, and the emitted tokens alone decide which draft is used. Given these it is an ordinary draft with its own q.
"""

from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from ..controller import LONGEST
from ..require import require, whole
from ..sampling import Sampling
from ..sequence import Sequence
from ..tree import Draft, cut
from .base import BESIDE, Drafter
from .model import DraftModel

RAW, SAMPLED_KEEP = Sampling(temperature=1.0), 0.8  # greedy tokens are kept with q(d); sampled ones about this often


def likelihoods(q: Tensor, drafted: list[int], keep: Tensor) -> Tensor:
    """P(a, t) [n+1, V] of q [n+1, V] after each prefix of n draft tokens, which are accepted with probability keep."""
    n, one = len(drafted), keep.new_ones(1)
    other = q.clone()
    other[range(n), drafted] = 0.0  # the correction is never the token that was rejected
    other /= other.sum(-1, keepdim=True).clamp(min=torch.finfo(q.dtype).tiny)
    ends_here = torch.cat([one, keep.cumprod(0)]) * torch.cat([1 - keep, one])  # [n+1]
    return ends_here[:, None] * other


class Ahead(Drafter):
    """`ms.drafters.Ahead(ms.drafters.Model(draft), outcomes=8)`: prepare drafts for so many outcomes of each cycle.
    `hits` and `misses` count the drafts that were there, and those that had to be made."""

    def __init__(self, inner: DraftModel, outcomes: int = 8):
        chains = isinstance(inner, DraftModel) and inner.chain_model is not None
        require(chains, "a draft model of the target's vocabulary: ms.drafters.Model(draft)", inner=inner)
        require(whole(outcomes, 0), "how many outcomes to prepare for, ≥ 0", outcomes=outcomes)
        self.inner, self.outcomes, self.k, self.hits, self.misses = inner, outcomes, 0, 0, 0
        self.prepared: dict[int, dict[tuple[int, ...], tuple[Draft, tuple]]] = {}  # sequence → its tokens → draft, fork

    def __repr__(self) -> str:
        return f"Ahead({self.inner!r}, {self.outcomes})"

    def fit(self, target) -> None:
        self.inner.fit(target)
        require(self.inner.chain_model is not None, "a draft model with the target's tokenizer", inner=self.inner)

    def beside(self, wait: bool):
        """Where the draft model works: on a GPU in a queue beside the target's, or with `wait` when that is done."""
        device = self.inner.draft.device
        return BESIDE[device.type](device, wait) if device.type in BESIDE else nullcontext()

    def propose(self, sequences: list[Sequence], k: int) -> list[Draft]:
        self.k, drafts = k, {}
        for sequence in sequences:
            prepared = self.prepared.get(sequence.id, {})
            if there := prepared.pop(tuple(sequence.tokens), None):
                drafts[sequence.id] = cut(there[0], k)
                self.inner.become(there[1], sequence.id)
            self._drop(sequence.id)
        missed = [sequence for sequence in sequences if sequence.id not in drafts]
        self.hits, self.misses = self.hits + len(drafts), self.misses + len(missed)
        if missed:
            with self.beside(wait=True):
                drafts |= {c.id: draft for c, draft in zip(missed, self.inner.propose(missed, k), strict=True)}
        return [drafts[sequence.id] for sequence in sequences]

    @torch.inference_mode()
    def while_verifying(self, sequences: list[Sequence], drafts: list[Draft]) -> None:
        longest, known = self.inner.draft.config.max_length - self.k - 1, self.inner.committed
        some = {  # those whose next draft would have room, here and in the output
            c: draft
            for c, draft in zip(sequences, drafts, strict=True)
            if c.id in known and c.room > 1 and len(c.tokens) + len(draft.tokens) <= longest
        }
        if not (some and self.outcomes and self.k):
            return
        forks, held = [], {}
        with self.beside(wait=False):
            for sequence, outcomes in zip(some, self._likeliest([*some], [*some.values()]), strict=True):
                self._drop(sequence.id)
                for i, tokens in enumerate(outcomes):
                    forks.append(replace(sequence, id=(sequence.id, i), tokens=[*sequence.tokens, *tokens]))
                    held[forks[-1].id] = sequence.id, len(forks[-1].tokens) - 1
            self.inner.memory.fork(held)
            for fork, draft in zip(forks, self.inner.propose(forks, self.k) if forks else [], strict=True):
                self.prepared.setdefault(fork.id[0], {})[tuple(fork.tokens)] = draft, fork.id

    def _likeliest(self, sequences: list[Sequence], drafts: list[Draft]) -> list[list[list[int]]]:
        """The tokens that the likeliest outcomes emit, of every sequence. All of a draft is in the memory then."""
        lengths = self.inner.memory.lengths
        for c in sequences:
            lengths[c.id] = min(lengths[c.id], len(c.tokens) - 1)
        samplings = [RAW if c.sampling.greedy else c.sampling for c in sequences]
        q = self.inner.read_drafts(sequences, drafts, samplings)  # [B, n + 1, V]
        V, found = q.shape[-1], []
        for c, draft, own in zip(sequences, drafts, q, strict=True):
            n = len(draft.tokens)
            keep = own[range(n), draft.tokens]  # [n]
            keep = keep if c.sampling.greedy else torch.full_like(keep, SAMPLED_KEEP)
            chances = likelihoods(own[: n + 1], draft.tokens, keep)[: c.room - 1].flatten()
            best = chances.topk(min(self.outcomes, len(chances)))
            pairs = zip(best.values.tolist(), best.indices.tolist(), strict=True)
            found.append([[*draft.tokens[: i // V], i % V] for chance, i in pairs if chance > 0])
        return found

    def _drop(self, id: int) -> None:
        self.prepared.pop(id, None)
        for i in range(self.outcomes):  # all that there may be: a preparation that failed has left some behind
            self.inner.forget((id, i))

    def settle(self, id: int, path: list[int], emitted: int, scratch: Tensor | None = None) -> None:
        self.inner.settle(id, path, emitted)

    def rewind(self, id: int, length: int) -> None:
        self._drop(id)
        self.inner.rewind(id, length)

    def forget(self, id: int) -> None:
        self._drop(id)
        self.inner.forget(id)

    def capture(self) -> None:
        self.inner.pass_tokens = 1 + LONGEST
        self.inner.capture()

    def release(self) -> None:
        self.inner.release()
