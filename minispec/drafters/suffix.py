"""Suffix decoding (Oliaro et al., 2025, arXiv:2411.04975): what has usually followed, and how often it did.

Prompt lookup trusts one occurrence of one suffix. Here every suffix of the sequence that has occurred before makes a
proposal, the commonest continuation of all its occurrences, and estimates how many tokens of it will be accepted. The
highest estimate wins. Where a continuation is nearly certain the draft is long; where nothing matches there is none.

The paper keeps all strings in a tree. Here prompt lookup's table says where each token occurs (ngram.py): a few hundred
comparisons per draft, where a pass of the target takes milliseconds.
"""

from collections import Counter, deque

from ..require import real, require, whole
from ..sequence import Sequence
from .base import Draft, Drafter
from .ngram import Found, NGram, Text, matches


class Suffix(Drafter):
    """Draft the continuation, after any matching suffix, of which the most tokens are expected to be accepted.

    A match of m tokens may propose up to `factor`·m more, as long as their joint probability stays ≥ `floor`; match and
    continuation together are at most `depth` long. `memory` is how many past outputs to learn from, across requests and
    runs; the oldest is forgotten first. Without it each sequence has its own tokens alone to learn from.
    """

    def __init__(self, depth: int = 64, factor: float = 1.0, floor: float = 0.1, memory: int = 0):
        require(whole(depth, 2), "a whole number ≥ 2: one to match, one to propose", depth=depth)
        require(real(factor) and factor > 0, "how many tokens to propose per matching token, above 0", factor=factor)
        require(real(floor, 0, 1), "a probability between 0 and 1", floor=floor)
        require(whole(memory, 0), "a number of past outputs, 0 for none", memory=memory)
        self.depth, self.factor, self.floor, self.memory = depth, factor, floor, memory
        self.known: dict[int, Text] = {}
        self.past: deque[Text] = deque(maxlen=memory)

    def propose(self, sequences: list[Sequence], k: int) -> list[Draft]:
        drafts = []
        for sequence in sequences:
            own = self.known.setdefault(sequence.id, Text(sequence.prompt_length))
            own.update(sequence.tokens)
            known = [match for texts in ([own], self.past) for match in matches(texts, sequence.tokens, self.depth - 1)]
            drafts.append(Draft(self._best(known, k)))
        return drafts

    def remember(self, output: list[int]) -> None:
        """Learn from a finished output."""
        if self.memory and output:
            self.past.append(Text())
            self.past[-1].update(output)

    rewind = NGram.rewind  # nothing is learnt: this is no finished output; a preempted request is rewound to length 0

    def forget(self, id: int) -> None:
        """The request has ended: learn from its output. The sequence's own list also has the last cycle's tokens."""
        if id in self.known:
            text = self.known.pop(id)
            self.remember(text.tokens[text.prompt_tokens :])

    def _best(self, known: list[tuple[int, Found]], k: int) -> list[int]:
        """The continuation with the highest score; of equals the first: own tokens, then long matches."""
        best, best_score = [], 0.0
        for m, found in known:
            limit = min(k, int(self.factor * m), self.depth - m)
            if limit > best_score:  # a token adds at most 1 to the score
                tokens, score = walk(found, limit, self.floor)
                if score > best_score:
                    best, best_score = tokens, score
        return best


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
