"""A drafter for the drafter: a tiny one proposes, a middle model corrects, the target verifies what came out.

The middle model treats `inner` as the target treats any drafter: it accepts, corrects and adds one token of its own,
so its tokens follow its own distribution exactly, in fewer passes. To the target, that distribution is the q of this
draft, and bookkeeping is that of any draft model. `inner` is told of every correction as if it were settled, and is
rewound when the target rejects a part of the draft.
"""

from dataclasses import replace

import torch
from torch import Tensor

from ..load.model import Model
from ..require import require_counts
from ..sampling import Sampling, pad, uniforms
from ..sequence import NO_DRAFT, Sequence
from ..tree import stack
from ..verify import chain_batch, check_sampled, greedy, own_choices
from .base import Draft, Drafter, propose
from .model import DraftModel


class Cascade(DraftModel):
    """Draft with `middle`, for which `inner` drafts chains of up to `inner_k` tokens."""

    chain_model = None  # the inner drafter must be asked, too

    def __init__(self, inner: Drafter, middle: Model, inner_k: int = 4, sampling: Sampling | None = None):
        require_counts(inner_k=inner_k)
        if inner.hidden_layers:
            raise ValueError(f"inner={type(inner).__name__} needs hidden states, which a cascade does not hand on")
        inner.fit(middle)
        super().__init__(middle, sampling)
        self.inner, self.inner_k = inner, inner_k
        self.pass_tokens = 2 + inner_k  # a pass verifies the inner drafter's tokens

    def _chains(self, sequences: list[Sequence], k: int) -> list[Draft]:
        """k tokens of the middle model for every sequence, in as few of its passes as `inner` guesses well."""
        ends = {c.id: len(c.tokens) + k for c in sequences}
        drafted = [replace(c, tokens=list(c.tokens), sampling=self.sampling or c.sampling) for c in sequences]
        q: dict[int, list[Tensor]] = {c.id: [] for c in sequences}  # the middle model's, of the tokens it emitted
        while now := [c for c in drafted if len(c.tokens) < ends[c.id]]:
            # The middle model adds a token of its own, so with one missing `inner` is not asked.
            room = [ends[c.id] - len(c.tokens) - 1 for c in now]
            drafts = self._ask_inner(now, room)
            p = self.read_drafts(now, drafts, [c.sampling for c in now])  # [b, n + 1, V], the middle model's
            guessed, lengths = pad([draft.tokens for draft in drafts], p.device)  # [b, n], [b]
            q_inner = stack(drafts, p)
            if q_inner is not None:
                check_sampled(guessed, q_inner, lengths)
            if now[0].noise is not None:  # the middle model's own choices, as if it were the target
                own = own_choices(p, now, drafts).tolist()
                verdicts = [greedy(o, d.tokens, d.node_parents) for o, d in zip(own, drafts, strict=True)]
                outcomes = [(verdict.accepted, verdict.token) for verdict in verdicts]
            else:
                u = uniforms([c.coins for c in now], p.shape[1], p.device)
                accepted, emitted = chain_batch(p, q_inner, guessed, lengths, u)
                outcomes = zip(accepted.tolist(), emitted.tolist(), strict=True)
            for j, (c, (a, token)) in enumerate(zip(now, outcomes, strict=True)):
                self.memory.lengths[c.id] = len(c.tokens) + a  # the last token and the accepted drafts
                c.tokens += [*drafts[j].tokens[:a], token]
                q[c.id].append(p[j, : a + 1])
                if room[j]:
                    self.inner.settle(c.id, range(a), token)
        sampled = [c.noise is None and not c.sampling.greedy for c in drafted]
        return [Draft(c.tokens[-k:], torch.cat(q[c.id]) if s else None) for c, s in zip(drafted, sampled, strict=True)]

    def settle(self, id: int, path: list[int], emitted: int, scratch: Tensor | None = None) -> None:
        start = self.committed.get(id)
        super().settle(id, path, emitted)
        if start is not None:
            self.inner.rewind(id, start + len(path))

    def rewind(self, id: int, length: int) -> None:
        super().rewind(id, length)
        self.inner.rewind(id, length)

    def forget(self, id: int) -> None:
        super().forget(id)
        self.inner.forget(id)

    def _ask_inner(self, sequences: list[Sequence], room: list[int]) -> list[Draft]:
        """The inner drafter's chains, each cut to the room that is left. Where there is none it is not asked."""
        asked, depths = [c for c, n in zip(sequences, room, strict=True) if n], [n for n in room if n]
        k, vocab_size = min(self.inner_k, max(room)), self.draft.config.vocab_size
        proposed = iter(propose(self.inner, asked, k, vocab_size, depths))
        drafts = [next(proposed) if n else NO_DRAFT for n in room]
        if any(draft.parents is not None for draft in drafts):
            raise ValueError(f"inner={type(self.inner).__name__} drafts trees: give a cascade a drafter of chains")
        return drafts

    def capture(self) -> None:
        super().capture()
        self.inner.capture()

    def release(self) -> None:
        super().release()
        self.inner.release()
