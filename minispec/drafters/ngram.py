"""Prompt lookup: when the last few tokens have occurred before, guess that what followed then follows now.

There is no model and there are no probabilities, yet it is hard to beat where the completion repeats its prompt:
summaries, edits, quotations.
"""

from __future__ import annotations

from collections.abc import Sequence

from .base import Context, Draft, Drafter


class NGram(Drafter):
    """Draft what followed the most recent earlier occurrence of the longest known suffix, of n_max … n_min tokens."""

    def __init__(self, n_max: int = 3, n_min: int = 1):
        if not (isinstance(n_max, int) and isinstance(n_min, int) and 1 <= n_min <= n_max):
            raise ValueError(f"n_max={n_max!r}, n_min={n_min!r}: give whole numbers with 1 ≤ n_min ≤ n_max")
        self.n_max, self.n_min = n_max, n_min
        self.indexes: dict[int, Index] = {}

    def propose(self, contexts: Sequence[Context], k: int) -> list[Draft]:
        return [Draft(self._lookup(context, k)) for context in contexts]

    def rewind(self, id: int, length: int) -> None:
        if id in self.indexes:
            self.indexes[id].rewind(length)

    def forget(self, id: int) -> None:
        self.indexes.pop(id, None)

    def _lookup(self, context: Context, k: int) -> list[int]:
        tokens = context.tokens
        index = self.indexes.setdefault(context.id, Index(self.n_min, self.n_max))
        index.update(tokens)
        for n in range(min(self.n_max, len(tokens)), self.n_min - 1, -1):
            if position := index.after.get(tuple(tokens[-n:])):  # never 0: an n-gram comes before it
                return tokens[position : position + k]  # fewer than k where the sequence ends first
        return []


class Index:
    """Where each n-gram of one sequence was last continued. It grows with the sequence, and indexes each token once."""

    def __init__(self, n_min: int, n_max: int):
        self.lengths = range(n_min, n_max + 1)
        self.after: dict[tuple[int, ...], int] = {}  # n-gram → position of the token after its latest occurrence
        self.log: list[list[tuple]] = []  # for each token: what it changed, as (n-gram, value before)

    def update(self, tokens: Sequence[int]) -> None:
        # An n-gram is entered when the token after it arrives. So the suffix at the end never finds itself.
        for position in range(len(self.log), len(tokens)):
            ngrams = [tuple(tokens[position - n : position]) for n in self.lengths if n <= position]
            self.log.append([(ngram, self.after.get(ngram)) for ngram in ngrams])
            self.after.update(dict.fromkeys(ngrams, position))

    def rewind(self, length: int) -> None:
        """Take back what the tokens from `length` on have changed."""
        for changes in reversed(self.log[length:]):
            for ngram, before in changes:
                if before is None:
                    del self.after[ngram]
                else:
                    self.after[ngram] = before
        del self.log[length:]
