"""Prompt lookup: when the last few tokens have occurred before, guess that what followed then follows now.

There is no model and there are no probabilities, yet it is hard to beat where the completion repeats its prompt:
summaries, edits, quotations.
"""

from collections import defaultdict
from collections.abc import Iterable

from ..require import require, whole
from ..sequence import Sequence
from .base import Draft, Drafter

Found = list[tuple[list[int], int]]  # occurrences of a string: (tokens, position after it), latest last
LATEST = 256  # how many occurrences of a long match are looked at


class NGram(Drafter):
    """Draft what followed the most recent earlier occurrence of the longest known suffix, of n_max … n_min tokens."""

    def __init__(self, n_max: int = 3, n_min: int = 1):
        fits = whole(n_max) and whole(n_min, 1, n_max)
        require(fits, "whole numbers with 1 ≤ n_min ≤ n_max", n_max=n_max, n_min=n_min)
        self.n_max, self.n_min = n_max, n_min
        self.known: dict[int, Text] = {}

    def propose(self, sequences: list[Sequence], k: int) -> list[Draft]:
        drafts = []
        for sequence in sequences:
            text, tokens = self.known.setdefault(sequence.id, Text()), sequence.tokens
            text.update(tokens)
            n, found = next(iter(matches([text], tokens, self.n_max)), (0, []))
            end = found[-1][1] if n >= self.n_min else len(tokens)
            drafts.append(Draft(tokens[end : end + k]))  # fewer than k where the sequence ends first
        return drafts

    def rewind(self, id: int, length: int) -> None:
        if id in self.known:
            self.known[id].rewind(length)

    def forget(self, id: int) -> None:
        self.known.pop(id, None)


class Text:
    """One sequence, which grows, and where each of its tokens occurs."""

    def __init__(self, prompt_tokens: int = 0):
        self.tokens, self.prompt_tokens = [], prompt_tokens
        self.after: dict[int, list[int]] = defaultdict(list)  # token → the positions after it, in order
        self.indexed = 1

    def update(self, tokens: list[int]) -> None:
        # A token is entered when the next one arrives. So the suffix at the end never finds itself.
        for position in range(self.indexed, len(tokens)):
            self.after[tokens[position - 1]].append(position)
        self.tokens, self.indexed = tokens, max(1, len(tokens))

    def rewind(self, length: int) -> None:
        """Take back what the tokens from `length` on have entered."""
        for token in self.tokens[max(0, length - 1) : self.indexed - 1]:
            self.after[token].pop()
        self.tokens, self.indexed = self.tokens[:length], max(1, min(self.indexed, length))


def matches(texts: Iterable[Text], tokens: list[int], most: int) -> list[tuple[int, Found]]:
    """(m, occurrences of the last m tokens) for every m ≤ most that occurs in these texts, longest first. A match is
    made longer by leaving out the occurrences that do not fit."""
    found = [(text.tokens, end) for text in texts for end in text.after.get(tokens[-1], ())]
    levels, m = [], 1
    while found:
        levels.append((m, found))
        m += 1
        if m > min(len(tokens), most):
            break
        found = [(text, end) for text, end in found if end >= m and text[end - m] == tokens[-m]]
        if m >= 4:  # a sequence that goes round in circles has hundreds: the latest tell as much
            found = found[-LATEST:]
    return levels[::-1]
