"""Scripted models: they answer from a rule instead of weights, keep a cache one can read, and remember every pass.

And a scripted GPU, which captures a graph and replays it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from .exercise import Complaint
from .show import kind

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
                f"your loop was stopped in the {self.name}'s pass number {self.most_passes + 1}: it makes no progress. "
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
                f"rewind({length}): the {self.name}'s cache holds {self.length} tokens and can only shrink. Was it run "
                "on every token that its cache lacked? And is this length meant for this model, not for the other?"
            )
        del self.cache[length:]


class SampledModel(ScriptedModel):
    """The same, but with an opinion on every token: `say` returns logits [V]."""

    def logits(self, text: Text) -> Tensor:
        return self.say(text)


class Later:
    """A number that the device will have when the graph runs. Adding a whole number is a kernel, too."""

    def __init__(self, gpu: Device, value):
        self._gpu, self._value = gpu, value

    def __add__(self, number: int) -> Later:
        if not isinstance(number, int):
            raise Complaint("add or subtract whole numbers only: gpu.count - 1")
        return Later(self._gpu, lambda: self._value() + number)

    def __sub__(self, number: int) -> Later:
        return self + -number

    def _refuse(self, *_):
        raise Complaint(
            "while a graph is captured nothing is computed yet, so Python cannot use a number on the device: not in an "
            "`if`, not as an index, not in a comparison. Leave the arithmetic to the device."
        )

    __bool__ = __int__ = __index__ = __float__ = __lt__ = __gt__ = __le__ = __ge__ = __eq__ = _refuse
    __hash__ = None


class Device:
    """A GPU that captures: what is asked of it is noted once, and replayed over the same memory."""

    ROOM, VOCABULARY = 64, 11

    def __init__(self, text):
        self._text, self._count = [*text, *[0] * (self.ROOM - len(text))], len(text)
        self._tape, self._looks = [], 0

    @property
    def count(self) -> Later:
        """How many tokens the sequence has."""
        return Later(self, lambda: self._count)

    def token(self, position) -> Later:
        """The token at this position."""
        at = self._number(position)
        return self._note(lambda: self._text[at() % self.ROOM])

    def next(self, token, position) -> Later:
        """The model's choice after `token` at `position`."""
        token, at = self._number(token), self._number(position)
        return self._note(lambda: (3 * token() + at() + 1) % self.VOCABULARY)

    def write(self, position, token) -> None:
        """Put a token there."""
        at, token = self._number(position), self._number(token)

        def put():
            self._text[at() % self.ROOM] = token()

        self._note(put)

    def advance(self, number=1) -> None:
        """The sequence has so many more tokens."""
        more = self._number(number)

        def move():
            self._count += more()

        self._note(move)

    def look(self, number) -> int:
        """The number as it is now: the host waits for the device."""
        self._looks += 1
        return self._number(number)()

    def _number(self, value):
        if isinstance(value, Later):
            return value._value
        if isinstance(value, bool) or not isinstance(value, int):
            raise Complaint(f"positions and tokens are whole numbers, or come from the device; yours is {kind(value)}.")
        return lambda: value

    def _note(self, work) -> Later:
        result = []

        def run():
            result[:] = [work()]

        self._tape.append(run)

        def value():
            if not result:
                raise Complaint("you look at a result of a kernel while the graph is captured: it has not run yet.")
            return result[0]

        return Later(self, value)

    def _replay(self):
        for kernel in self._tape:
            kernel()
