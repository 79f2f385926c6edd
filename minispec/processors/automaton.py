"""A constraint as an automaton over tokens: after every prefix it says which tokens may come next.

The states are regular expressions themselves. What may follow the character c in a match of r is another regular
expression, the derivative of r by c (Brzozowski, 1964):

    after("ab|ac", "a") = "b|c"        after("(ab)*", "a") = "b(ab)*"        after("ab", "x") = ∅

So to follow a string is to take derivatives, one for each character, and the string matches if what is left may be
empty. A token is a few characters at once. It is allowed if the derivative by all of them is not ∅, and the whole
vocabulary is asked at once by walking a tree of its characters (a trie) instead of its tokens one by one.

The state is a function of the prefix, so there is nothing to roll back when a draft is rejected: the state before it is
still the state of the prefix before it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache, reduce

import torch
from torch import Tensor

# ---- regular expressions as tuples ---------------------------------------------------------------------------------
#   ("set", source)           one character, by Python's own word for it: "a", "[a-z]", r"\d", "."
#   ("cat", r, s, …)          one after the other; ("cat",) is the empty string
#   ("or", {r, s, …})         one of them; ("or", {}) is ∅, which nothing matches
#   ("rep", r, least, most)   r so many times; most may be ∞

Regex = tuple
EMPTY: Regex = ("cat",)
NONE: Regex = ("or", frozenset())


def cat(*parts: Regex) -> Regex:
    if NONE in parts:
        return NONE
    flat = [inner for part in parts for inner in (part[1:] if part[0] == "cat" else (part,))]
    return flat[0] if len(flat) == 1 else ("cat", *flat)


def either(parts: Iterable[Regex]) -> Regex:
    flat = frozenset(inner for part in parts for inner in (part[1] if part[0] == "or" else (part,)))
    return next(iter(flat)) if len(flat) == 1 else ("or", flat)


def may_end(r: Regex) -> bool:
    """Whether the empty string matches."""
    kind, *parts = r
    if kind == "rep":
        return parts[1] == 0 or may_end(parts[0])
    return (kind == "cat" and all(map(may_end, parts))) or (kind == "or" and any(map(may_end, parts[0])))


@lru_cache(maxsize=1 << 16)
def after(r: Regex, c: str) -> Regex:
    """What has to follow the character c so that all of it matches r."""
    kind, *parts = r
    if kind == "set":
        return EMPTY if re.fullmatch(parts[0], c, re.DOTALL) else NONE
    if kind == "or":
        return either(after(part, c) for part in parts[0])
    if kind == "rep":
        inner, least, most = parts
        return cat(after(inner, c), ("rep", inner, max(least - 1, 0), most - 1)) if most > 0 else NONE
    if not parts:
        return NONE
    head, tail = parts[0], cat(*parts[1:])
    ways = [cat(after(head, c), tail)]
    return either([*ways, after(tail, c)] if may_end(head) else ways)


# ---- from a pattern ------------------------------------------------------------------------------------------------

CLASS, ESCAPE = r"\[\^?\]?(?:\\.|[^\]\\])*\]", r"\\(?:[dDwWsSnrtfv]|[^A-Za-z0-9]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4})"
ONE = re.compile(rf"{CLASS}|{ESCAPE}|[^\\^$]", re.DOTALL)
TIMES = re.compile(r"\{(\d+|(?=,))(,?)(\d*)\}")


def parse(pattern: str) -> Regex:
    """A pattern of Python's `re`: characters, classes, groups, |, * + ? and {m,n}. The whole output must match it."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"regex={pattern!r} is no regular expression: {error}") from None
    r, end = _alternatives(pattern, 0)
    if end < len(pattern):
        raise _beyond(pattern, end)
    return r


def _alternatives(pattern: str, at: int) -> tuple[Regex, int]:
    ways, parts = [], []
    while at < len(pattern) and pattern[at] != ")":
        if pattern[at] == "|":
            ways, parts, at = [*ways, cat(*parts)], [], at + 1
            continue
        part, at = _one(pattern, at)
        part, at = _times(part, pattern, at)
        parts.append(part)
    return either([*ways, cat(*parts)]), at


def _one(pattern: str, at: int) -> tuple[Regex, int]:
    if pattern[at] == "(":
        start = at + 3 if pattern.startswith("(?:", at) else at + 1
        if pattern.startswith("?", start):
            raise _beyond(pattern, at)
        inner, end = _alternatives(pattern, start)
        return inner, end + 1
    found = ONE.match(pattern, at)
    if found is None or found[0] in ("*", "+", "?"):
        raise _beyond(pattern, at)
    return ("set", re.escape(found[0]) if len(found[0]) == 1 and found[0] != "." else found[0]), found.end()


def _times(part: Regex, pattern: str, at: int) -> tuple[Regex, int]:
    counts = {"*": (0, math.inf), "+": (1, math.inf), "?": (0, 1)}
    if pattern[at : at + 1] in counts:
        least, most = counts[pattern[at]]
        at += 1
    elif found := TIMES.match(pattern, at):
        least, at = int(found[1] or 0), found.end()
        most = int(found[3]) if found[3] else math.inf if found[2] else least
    else:
        return part, at
    if pattern[at : at + 1] in ("?", "+", "*"):  # a lazy or possessive match is a way to search, and we do not search
        raise _beyond(pattern, at)
    return ("rep", part, least, most), at


def _beyond(pattern: str, at: int) -> NotImplementedError:
    return NotImplementedError(
        f"regex={pattern!r}: {pattern[at : at + 4]!r} at {at} is more than our automaton knows (characters, classes, "
        'groups, |, *, +, ?, {m,n}); install the extra "constraints", which knows more'
    )


def literal(text: str) -> Regex:
    return cat(*(("set", re.escape(c)) for c in text))


# ---- over the tokens of a vocabulary ---------------------------------------------------------------------------------


class Vocabulary:
    """Every token as text (None: it has none, as an end token), and all of them as a tree of characters."""

    def __init__(self, pieces: Sequence[str | None]):
        self.pieces = list(pieces)
        self.root: dict = {}  # character → (tokens that end there, what goes on)
        for token, piece in enumerate(self.pieces):
            here, node = None, self.root
            for c in piece or "":
                here, node = node.setdefault(c, ([], {}))
            if here is not None:
                here.append(token)


class Automaton:
    """A regular expression over a vocabulary. A state is what the rest of the output must match; None: it never can."""

    def __init__(self, start: Regex, vocabulary: Vocabulary, ends: Iterable[int]):
        self.start, self.vocabulary, self.ends = start, vocabulary, sorted(ends)
        self.masks: dict[Regex, Tensor] = {}

    def next(self, state: Regex | None, token: int) -> Regex | None:
        """The state after one token more."""
        piece = self.vocabulary.pieces[token]
        if state is None or not piece:
            return None
        state = reduce(after, piece, state)
        return None if state == NONE else state

    def allowed(self, state: Regex) -> Tensor:
        """Which tokens may come next, [V] bool: those that lead on, and where it may end the end tokens."""
        if state not in self.masks:
            found, walk = list(self.ends) if may_end(state) else [], [(self.vocabulary.root, state)]
            while walk:
                node, r = walk.pop()
                for c, (tokens, further) in node.items():
                    if (rest := after(r, c)) != NONE:
                        found += tokens
                        walk.append((further, rest))
            mask = torch.zeros(len(self.vocabulary.pieces), dtype=torch.bool)
            mask[found] = True
            if len(self.masks) >= 1024:
                self.masks.clear()
            self.masks[state] = mask
        return self.masks[state]


class Choices:
    """An automaton that knows no text: one of some lists of tokens, then an end token. A state is the tokens so far."""

    def __init__(self, choices: Iterable[Sequence[int]], size: int, ends: Iterable[int]):
        self.choices, self.size, self.ends, self.start = [tuple(choice) for choice in choices], size, sorted(ends), ()

    def next(self, state: tuple | None, token: int) -> tuple | None:
        longer = None if state is None else (*state, token)
        return longer if any(choice[: len(longer or ())] == longer for choice in self.choices) else None

    def allowed(self, state: tuple) -> Tensor:
        mask, n = torch.zeros(self.size, dtype=torch.bool), len(state)
        mask[[choice[n] for choice in self.choices if choice[:n] == state and len(choice) > n]] = True
        if state in self.choices:
            mask[self.ends] = True
        return mask
