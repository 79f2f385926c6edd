"""Scripted models: they answer from a rule instead of weights, keep a cache one can read, and remember every pass."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from .exercise import Complaint

VOCABULARY = 16
Text = tuple[int, ...]


def whole_text(text: Text) -> int:
    """A next token that depends on every token before it and on its position: no mistake in a cache goes unnoticed."""
    state = 7
    for place, token in enumerate(text):
        state = (state * state + 29 * token + place) % 991
    return state % VOCABULARY


def wrong_at(places: Collection[int]) -> Callable[[Text], int]:
    """The same rule, but mistaken about the tokens at these positions (0 is the prompt's first)."""
    return lambda text: (whole_text(text) + (len(text) in places)) % VOCABULARY


def continuation(prompt: Sequence[int], count: int) -> list[int]:
    """What plain greedy decoding writes after a prompt."""
    text = tuple(prompt)
    for _ in range(count):
        text += (whole_text(text),)
    return list(text[len(prompt) :])


class ScriptedModel:
    """read(tokens) → logits [T, V] after each of them; length; rewind(length). The cache is the text read so far."""

    def __init__(self, name: str, say: Callable[[Text], int], cache: Sequence[int], most_passes: int):
        self.name, self.say, self.cache, self.most_passes = name, say, list(cache), most_passes
        self.passes: list[tuple[int, list[int]]] = []  # (tokens in the cache before it, tokens read)

    @property
    def length(self) -> int:
        """How many tokens the cache holds."""
        return len(self.cache)

    def read(self, tokens: Sequence[int]) -> Tensor:
        tokens = [int(token) for token in tokens]
        if not tokens:
            raise Complaint(
                f"the {self.name} was called without a token. Its cache holds {self.length}: if that is as long "
                "as the text, was it rewound after the last cycle?"
            )
        if len(self.passes) == self.most_passes:
            raise Complaint(
                f"your loop was stopped in the {self.name}'s pass number {self.most_passes + 1}: it does not get on. "
                "Every cycle has to add at least one token."
            )
        self.passes.append((self.length, tokens))
        rows = []
        for token in tokens:
            self.cache.append(token)
            rows.append(self.logits(tuple(self.cache)))
        return torch.stack(rows)

    def logits(self, text: Text) -> Tensor:
        """After this text, [V]."""
        logits = torch.zeros(VOCABULARY)
        logits[self.say(text)] = 1.0
        return logits

    def rewind(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise Complaint(
                f"rewind({length}): the {self.name}'s cache holds {self.length} tokens, it can only shrink."
            )
        del self.cache[length:]


class LawModel(ScriptedModel):
    """The same, but with an opinion on every token: `say` returns logits [V]."""

    def logits(self, text: Text) -> Tensor:
        return self.say(text)
