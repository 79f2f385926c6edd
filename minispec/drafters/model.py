"""A small model drafts: it runs ahead of the target, token by token, on a cache of its own.

Bookkeeping. Before a cycle the cache lacks the last token, and the one before it if the last draft was accepted whole
(that draft was proposed but never read). So `propose` first reads whatever is missing, which is one rule for both cases
and for the prompt too. After the cycle, `settle` forgets what the target rejected.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..generate import pad
from ..sampling import Sampling
from ..verify import pick
from ..weights import Model as Handle
from .base import Context, Draft, Drafter, laws, uniforms


class Model(Drafter):
    """Draft with a model of the target's vocabulary. `sampling` may differ from the target's: exact all the same."""

    def __init__(self, draft: Handle, sampling: Sampling | None = None):
        self.draft, self.sampling = draft, sampling
        self.vocab_size = draft.config.vocab_size
        self.cache = None
        self.order: list[int] = []  # the row that sits in each row of the cache
        self.read: dict[int, int] = {}  # how many tokens of each living row the cache holds
        self.committed: dict[int, int] = {}  # how many tokens each row had when it was last drafted for
        self.k = 0

    @torch.inference_mode()
    def propose(self, contexts: Sequence[Context], k: int) -> list[Draft]:
        longest = max(len(context.tokens) for context in contexts) + k
        if k < 1 or longest > self.draft.config.max_length:
            return [Draft([]) for _ in contexts]  # past its own length a draft has nothing to say
        rows = [context.row for context in contexts]
        unread, counts = pad([c.tokens[self.read.get(c.row, 0) :] for c in contexts], self.draft.device)
        self._make_room(rows, longest, unread.shape[1])
        samplings = [self.sampling or context.sampling for context in contexts]
        greedy = all(sampling.greedy for sampling in samplings)
        u = None if greedy else uniforms(contexts, k).to(self.draft.device)  # [B, k]

        logits = self._forward(rows, unread, counts)
        tokens, probs = [], []
        for step in range(k):
            if greedy:
                tokens.append(logits.argmax(-1))  # [B]
            else:
                probs.append(laws(logits, samplings))  # [B, V]
                tokens.append(pick(probs[-1], u[:, step]))
            if step < k - 1:  # nobody asks what follows the last draft, so it is not read
                logits = self._forward(rows, tokens[-1][:, None], torch.ones_like(counts))
        for context in contexts:
            self.committed[context.row] = len(context.tokens)
            self.read[context.row] = len(context.tokens) + k - 1
        self.k = k
        drafted = torch.stack(tokens, 1).tolist()  # B lists of k
        laws_drawn_from = [None] * len(contexts) if greedy else torch.stack(probs, 1)  # [B, k, V]
        return [Draft(row, q) for row, q in zip(drafted, laws_drawn_from, strict=True)]

    def settle(self, row: int, path: Sequence[int], emitted: int, scratch: Tensor | None = None) -> None:
        """Keep the committed tokens and the accepted drafts, of which the k-th was never read."""
        if row in self.committed:  # taken out: a cycle that was not drafted for changes nothing
            self.read[row] = min(self.read[row], self.committed.pop(row) + len(path))

    def rewind(self, row: int, length: int) -> None:
        if row in self.read:
            self.read[row] = min(self.read[row], length)

    def forget(self, row: int) -> None:
        self.read.pop(row, None)
        self.committed.pop(row, None)
        if not self.read:
            self.cache, self.order = None, []

    def _forward(self, rows: list[int], tokens: Tensor, counts: Tensor) -> Tensor:
        """Read these tokens [B, T] of these rows (none of the others), and score what follows: [B, V]."""
        if rows == self.order:
            return self.draft.transformer(tokens, self.cache, counts=counts, last_only=True).logits[:, -1]
        place_of = {row: i for i, row in enumerate(self.order)}
        place = torch.tensor([place_of[row] for row in rows], device=tokens.device)
        all_tokens, all_counts = tokens.new_zeros(len(self.order), tokens.shape[1]), counts.new_zeros(len(self.order))
        all_tokens[place], all_counts[place] = tokens, counts
        return self.draft.transformer(all_tokens, self.cache, counts=all_counts, last_only=True).logits[place, -1]

    def _make_room(self, rows: list[int], longest: int, width: int) -> None:
        """A cache row for everyone, in order, long enough; rewound to what is still true of each row."""
        # A pass of `width` tokens also pads the rows that only ride along: nobody reads that, but it needs slots.
        longest = max([longest, *(length + width for length in self.read.values())])
        new = [row for row in rows if row not in self.read]
        crowded = len(self.read) < len(self.order) / 2  # more dead than alive: move the living together
        if self.cache is None or new or crowded or longest > self.cache.capacity:
            alive = {row: i for i, row in enumerate(self.order) if row in self.read}
            capacity = max(longest, min(self.draft.config.max_length, 2 * longest))
            if self.cache is None or not alive:
                self.cache = self.draft.transformer.new_cache(len(new), capacity)
            else:
                self.cache = self.cache.rows([*alive.values(), *(-1 for _ in new)], max(capacity, self.cache.capacity))
            self.order = [*alive, *new]
            self.read |= dict.fromkeys(new, 0)
        self.cache.lengths = torch.tensor([self.read.get(row, 0) for row in self.order], device=self.draft.device)
