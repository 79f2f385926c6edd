"""Suffix decoding (Oliaro et al., 2025, arXiv:2411.04975): what has usually followed, and how often it did.

Prompt lookup trusts one occurrence of one suffix. Here every suffix of the sequence that has occurred before makes a
proposal, the commonest continuation of all its occurrences, and estimates how many tokens of it will be accepted. The
highest estimate wins. Where a continuation is nearly certain the draft is long; where nothing matches there is none.

The paper keeps all strings in a tree. Here a table says where each token occurs, and a match is made longer by leaving
out the occurrences that do not fit: a few hundred comparisons per draft, where a pass of the target takes milliseconds.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence

from .base import Context, Draft, Drafter

Found = list[tuple[list[int], int]]  # occurrences of a string: (text, position after it), latest last
LATEST = 256  # how many occurrences of a long match are counted


class Suffix(Drafter):
    """Draft the continuation, after any matching suffix, of which the most tokens are expected to be accepted.

    A match of m tokens may propose up to `factor`·m more, as long as their joint probability stays ≥ `floor`; match and
    continuation together are at most `depth` long. `memory` is how many past outputs to learn from, across requests and
    runs; the oldest is forgotten first. Without it each sequence has its own tokens alone to learn from.
    """

    def __init__(self, depth: int = 64, factor: float = 1.0, floor: float = 0.1, memory: int = 0):
        for name, value, right, wanted in (
            ("depth", depth, isinstance(depth, int) and depth >= 2, "a whole number ≥ 2: one to match, one to propose"),
            ("factor", factor, 0 < factor < math.inf, "how many tokens to propose per matching token, above 0"),
            ("floor", floor, 0 <= floor <= 1, "a probability between 0 and 1"),
            ("memory", memory, isinstance(memory, int) and memory >= 0, "a number of past outputs, 0 for none"),
        ):
            if not right:
                raise ValueError(f"{name}={value!r}: give {wanted}")
        self.depth, self.factor, self.floor, self.memory = depth, factor, floor, memory
        self.known: dict[int, Text] = {}
        self.past: deque[Text] = deque(maxlen=memory)

    def propose(self, contexts: Sequence[Context], k: int) -> list[Draft]:
        drafts = []
        for context in contexts:
            own = self.known.setdefault(context.id, Text(len(context.tokens)))  # so far all of it is the prompt
            own.update(context.tokens)
            matches = [match for texts in ([own], self.past) for match in self._matches(texts, context.tokens)]
            drafts.append(Draft(self._best(matches, k)))
        return drafts

    def remember(self, output: list[int]) -> None:
        """Learn from a finished output."""
        if self.memory and output:
            self.past.append(Text())
            self.past[-1].update(output)

    def rewind(self, id: int, length: int) -> None:
        """Start afresh without learning: this is no finished output. A preempted request is rewound to length 0."""
        if id in self.known:
            old = self.known[id]
            self.known[id] = Text(old.prompt_tokens)
            self.known[id].update(old.tokens[:length])

    def forget(self, id: int) -> None:
        """The request has ended: learn from its output. The context's own list also has the last cycle's tokens."""
        if id in self.known:
            text = self.known.pop(id)
            self.remember(text.tokens[text.prompt_tokens :])

    def _matches(self, texts: Iterable[Text], tokens: list[int]) -> list[tuple[int, Found]]:
        """(m, occurrences of the last m tokens) for every m that occurs in these texts, longest first."""
        found = [(text.tokens, end) for text in texts for end in text.after.get(tokens[-1], ())]
        matches, m = [], 1
        while found:
            matches.append((m, found))
            m += 1
            if m > min(len(tokens), self.depth - 1):
                break
            found = [(text, end) for text, end in found if end >= m and text[end - m] == tokens[-m]]
            if m >= 4:  # a sequence that goes round in circles has hundreds: the latest tell as much
                found = found[-LATEST:]
        return matches[::-1]

    def _best(self, matches: Sequence[tuple[int, Found]], k: int) -> list[int]:
        """The continuation with the highest score; of equals the first: own tokens, then long matches."""
        best, best_score = [], 0.0
        for m, found in matches:
            limit = min(k, int(self.factor * m), self.depth - m)
            if limit > best_score:  # a token adds at most 1 to the score
                tokens, score = walk(found, limit, self.floor)
                if score > best_score:
                    best, best_score = tokens, score
        return best


class Text:
    """One sequence, which grows, and where each of its tokens occurs."""

    def __init__(self, prompt_tokens: int = 0):
        self.tokens, self.prompt_tokens = [], prompt_tokens
        self.after: dict[int, list[int]] = defaultdict(list)  # token → the positions after it, where something follows
        self.indexed = 1

    def update(self, tokens: list[int]) -> None:
        self.tokens = tokens
        for position in range(self.indexed, len(tokens)):
            self.after[tokens[position - 1]].append(position)
        self.indexed = max(self.indexed, len(tokens))


def walk(found: Found, limit: int, floor: float) -> tuple[list[int], float]:
    """The likeliest continuation of a string, and its score: how many tokens of it one may expect to be accepted.

    P(x₁ … x_i) = Π count(x_i) / (occurrences of x₁ … x_{i−1} that go on); score = Σ_i P(x₁ … x_i).
    """
    tokens, p, score = [], 1.0, 0.0
    while len(tokens) < limit and found:
        following = [text[end] for text, end in found]
        latest = {token: i for i, token in enumerate(following)}
        token, count = max(Counter(following).items(), key=lambda item: (item[1], latest[item[0]]))
        p *= count / len(found)
        if p < floor:
            break
        tokens.append(token)
        score += p
        found = [(text, end + 1) for text, end in found if text[end] == token and end + 1 < len(text)]
    return tokens, score
