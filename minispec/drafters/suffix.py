"""Suffix decoding: a trie of everything generated so far tells what usually comes next, and how often it does.

Prompt lookup trusts one occurrence of one suffix. Here every suffix of the sequence that has occurred before makes a
proposal, the commonest continuation of all its occurrences, and estimates how many tokens of it will be accepted. The
highest estimate wins. Where a continuation is nearly certain the draft is long; where nothing matches there is none.

The trie holds every string of up to `depth` tokens that occurs in its texts. With a node for each, that would be
`depth` nodes per token. But a string seen once is followed by the rest of its text and nothing else. So such a node
stays a leaf that points into the text, and unfolds into real nodes, one token at a time, if the string comes again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from .base import Context, Draft, Drafter


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
        self.known: dict[int, Known] = {}
        self.past = Trie(depth)

    def propose(self, contexts: Sequence[Context], k: int) -> list[Draft]:
        drafts = []
        for context in contexts:
            if context.id not in self.known:
                self.known[context.id] = Known(context.tokens, len(context.tokens), self.depth)
            known = self.known[context.id]
            known.update(context.tokens)
            matches = [*known.matches(), *self.past.matches(context.tokens)]
            drafts.append(Draft(self._best(matches, k)))
        return drafts

    def remember(self, output: Sequence[int]) -> None:
        """Learn from a finished output, and forget the oldest if there are now too many."""
        if self.memory and output:
            self.past.add(output)
            if len(self.past.texts) > self.memory:
                self.past.remove_oldest()

    def rewind(self, id: int, length: int) -> None:
        """Start afresh without learning: this is no finished output. A preempted request is rewound to length 0."""
        if id in self.known:
            old = self.known[id]
            self.known[id] = Known(old.tokens[:length], old.prompt_tokens, self.depth)

    def forget(self, id: int) -> None:
        """The request has ended: learn from its output."""
        if id in self.known:
            self.remember(self.known.pop(id).output())

    def _best(self, matches: Sequence[tuple[int, Node]], k: int) -> list[int]:
        """The continuation with the highest score; of equals the first: own tokens, then long matches."""
        best, best_score = [], 0.0
        for m, node in matches:
            limit = min(k, int(self.factor * m), self.depth - m)
            if limit > best_score:  # a token adds at most 1 to the score
                tokens, score = walk(node, limit, self.floor)
                if score > best_score:
                    best, best_score = tokens, score
        return best


class Known:
    """What is known of one sequence: a trie with its tokens, which grows."""

    def __init__(self, tokens: list[int], prompt_tokens: int, depth: int):
        self.tokens, self.prompt_tokens = tokens, prompt_tokens  # what is there at the first call is the prompt
        self.trie = Trie(depth)
        self.trie.add([])

    def update(self, tokens: list[int]) -> None:
        self.tokens = tokens
        for token in tokens[len(self.trie.texts[-1].tokens) :]:
            self.trie.append(token)

    def matches(self) -> list[tuple[int, Node]]:
        """(m, node of the last m tokens) for every m that occurred before, longest first."""
        return [*enumerate(self.trie.open)][:0:-1]  # without m = 0

    def output(self) -> list[int]:
        """Without the prompt. `tokens` is the context's own list, so the tokens of the last cycle are in it, too."""
        return self.tokens[self.prompt_tokens :]


class Text(NamedTuple):
    """One sequence that a trie has counted."""

    number: int  # later texts have higher numbers
    tokens: list[int]


class Node:
    """A string, and how often it was seen. Without `children` it is a leaf: the text goes on at `end`, if it does."""

    __slots__ = ("best", "children", "count", "end", "followed", "text", "token")

    def __init__(self, token: int | None, text: Text | None, end: int):
        self.token = token  # the last one of the string
        self.text, self.end = text, end  # its latest occurrence stops before text.tokens[end]
        self.count = 1
        self.followed = 0  # as `count`, without occurrences that nothing has followed (yet): Σ count of the children
        self.children: dict[int, Node] | None = None
        self.best: Node | None = None  # the most frequent child, of equals the latest

    def unfold(self) -> None:
        """The string comes again: no longer a leaf. What followed the first time becomes a leaf of its own."""
        self.children = {}
        if self.end < len(self.text.tokens):
            token = self.text.tokens[self.end]
            self.best = self.children[token] = Node(token, self.text, self.end + 1)
            self.followed = 1


class Trie:
    """Counts of all strings of up to `depth` tokens in some texts; the latest may grow, the oldest may be removed."""

    def __init__(self, depth: int):
        self.depth = depth
        self.root = Node(None, None, 0)
        self.root.children = {}
        self.texts: deque[Text] = deque()
        self.open: list[Node] = []  # open[m]: node of the last m tokens, for every m that had occurred before

    def add(self, tokens: Sequence[int]) -> None:
        """Begin a new text with these tokens."""
        self.texts.append(Text(self.texts[-1].number + 1 if self.texts else 0, []))
        self.open = [self.root]
        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        """The latest text goes on: every open suffix becomes one token longer. If it is new with that, it is a leaf."""
        text, still_open = self.texts[-1], [self.root]
        text.tokens.append(token)
        end = len(text.tokens)
        for length, node in enumerate(self.open, start=1):
            child = node.children.get(token)
            if child is None:
                child = node.children[token] = Node(token, text, end)
            else:
                if length < self.depth:  # deeper strings are not kept, so nothing need follow it
                    if child.children is None:
                        child.unfold()
                    still_open.append(child)
                child.count += 1
                child.text, child.end = text, end
            node.followed += 1
            if node.best is None or child.count >= node.best.count:  # no other was seen as lately
                node.best = child
        self.open = still_open

    def remove_oldest(self) -> None:
        """Take back every count of the oldest text."""
        tokens = self.texts.popleft().tokens
        for start in range(len(tokens)):
            node = self.root
            for token in tokens[start : start + self.depth]:
                child = node.children[token]
                child.count -= 1
                node.followed -= 1
                if child.count == 0:
                    del node.children[token]
                if node.best is child:
                    node.best = max(node.children.values(), key=lambda c: (c.count, c.text.number, c.end), default=None)
                if child.count == 0:
                    break
                node = child

    def find(self, string: Sequence[int]) -> Node | None:
        node = self.root
        for i, token in enumerate(string):
            if node.children is None:
                rest = string[i:]
                end = node.end + len(rest)
                return Node(rest[-1], node.text, end) if node.text.tokens[node.end : end] == rest else None
            node = node.children.get(token)
            if node is None:
                return None
        return node

    def matches(self, tokens: list[int]) -> list[tuple[int, Node]]:
        """(m, node of the last m tokens) for every m that occurs here, longest first."""
        found = []
        for m in range(1, min(len(tokens), self.depth - 1) + 1):
            node = self.find(tokens[-m:])
            if node is None:
                break  # then no longer suffix occurs either
            found.append((m, node))
        return found[::-1]


def walk(node: Node, limit: int, floor: float) -> tuple[list[int], float]:
    """The likeliest continuation of a string, and its score: how many tokens of it one may expect to be accepted.

    P(x₁ … x_i) = Π count(child) / count(node), over occurrences that were continued at all; score = Σ_i P(x₁ … x_i).
    """
    tokens, p, score = [], 1.0, 0.0
    while len(tokens) < limit and node.children is not None and node.best is not None:
        p *= node.best.count / node.followed
        if p < floor:
            return tokens, score
        node = node.best
        tokens.append(node.token)
        score += p
    if node.children is None:  # seen once: the rest is certain
        for token in node.text.tokens[node.end : node.end + limit - len(tokens)]:
            tokens.append(token)
            score += p
    return tokens, score
