"""Stand-ins that show how the loop treats its models: scripted transformers that remember every pass, and drafters.

A `Scripted` transformer keeps the tokens themselves where a real one keeps keys, in a real KVCache. So what a token of
a pass sees is a text one can read, and a cache that was not rewound, or fed twice, shows as a wrong text.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

import minispec as ms
from minispec.cache import visible_slots
from minispec.drafters import Draft, Drafter
from minispec.model import Pass
from minispec.sequence import Sequence

Text = tuple[int, ...]


class Reading(NamedTuple):
    """One pass of a scripted model. Padding is left out."""

    held: list[int]  # tokens of each row in the cache before the pass
    tokens: list[list[int]]  # what each row was given
    positions: list[list[int]]
    texts: list[list[Text]]  # everything each of these tokens could see, itself included


class Scripted:
    """Says `say(text)` after every text: a token (then it is certain), or a law over all tokens."""

    def __init__(self, say: Callable[[Text], int | list[float]], vocab_size: int = 16, max_length: int = 64):
        heads = dict(num_heads=1, num_kv_heads=1, head_dim=1)
        self.config = ms.Config(vocab_size, vocab_size, 1, num_layers=1, **heads, max_length=max_length)
        self.say, self.device, self.dtype = say, torch.device("cpu"), torch.float64
        self.cache: ms.KVCache | None = None  # the one of the latest pass
        self.readings: list[Reading] = []

    def new_cache(self, batch: int = 1, capacity: int | None = None) -> ms.KVCache:
        return ms.KVCache(self.config, batch, capacity, dtype=self.dtype)

    def __call__(self, tokens: Tensor, cache: ms.KVCache, *, last_only: bool = False, counts=None, **options) -> Pass:
        x, hidden = self.body(tokens, cache, counts=counts, **options)
        if last_only:
            x = x[torch.arange(len(x)), x.shape[1] - 1 if counts is None else counts - 1][:, None]
        return Pass(self.head(x), hidden)

    def body(self, tokens, cache, *, counts=None, positions=None, mask=None, hidden_layers=()) -> tuple[Tensor, dict]:
        B, T = tokens.shape
        held, real = cache.lengths.tolist(), [T] * B if counts is None else counts.tolist()
        slots, end = cache.reserve(T)
        fresh = tokens[:, None, :, None].to(self.dtype)  # [B, Hkv = 1, T, D = 1]
        keys, _ = cache.extend(0, slots, end, fresh, fresh)
        visible, positions = visible_slots(slots, end, mask), slots if positions is None else positions
        # Scratch tokens come after the padding and are not recorded: these tests have none.
        texts = [[tuple(keys[b, 0, visible[b, t], 0].int().tolist()) for t in range(real[b])] for b in range(B)]
        self.readings.append(
            Reading(
                held,
                [tokens[b, : real[b]].tolist() for b in range(B)],
                [positions[b, : real[b]].tolist() for b in range(B)],
                texts,
            )
        )
        cache.advance(T if counts is None else counts)
        self.cache = cache
        x = torch.zeros(B, T, self.config.vocab_size, dtype=self.dtype)  # the "residual stream" is already the logits
        for b, row in enumerate(texts):
            for t, text in enumerate(row):
                x[b, t] = self._logits(self.say(text))
        return x, {n: x for n in hidden_layers}

    def head(self, x: Tensor) -> Tensor:
        return x

    def _logits(self, said: int | list[float]) -> Tensor:
        law = torch.tensor(said, dtype=self.dtype)
        if isinstance(said, int):
            law = torch.nn.functional.one_hot(law.long(), self.config.vocab_size).to(self.dtype)
        return law.log()

    def contents(self, row: int = 0) -> list[int]:
        """The tokens that a row of the latest cache holds."""
        return self.cache.keys[0, row, 0, : int(self.cache.lengths[row]), 0].int().tolist()


def scripted(say, end_tokens: list[int] = (), **config) -> ms.Model:
    return ms.Model("scripted", Scripted(say, **config), None, end_tokens)


def whole_text(text: Text, vocab_size: int = 16) -> int:
    """A next token that depends on every token before it and on its place, so no mistake in a cache goes unnoticed."""
    said = 1
    for place, token in enumerate(text):
        said = (said * said + 31 * token + place) % 997
    return 1 + said % (vocab_size - 1)  # never 0, which is what padding looks like


def continuation(prompt: list[int], count: int, say=whole_text) -> list[int]:
    """What plain greedy decoding writes."""
    text = tuple(prompt)
    for _ in range(count):
        text += (say(text),)
    return list(text[len(prompt) :])


def wrong_at(places: list[int], say=whole_text, vocab_size: int = 16) -> Callable[[Text], int]:
    """A draft that agrees with the target, except about the tokens in these places of the text."""
    return lambda text: 1 + say(text) % (vocab_size - 1) if len(text) in places else say(text)


class Given(Drafter):
    """Proposes what `make(context, k)` returns, and notes what it is told."""

    extra = 0  # nodes of a draft beyond a chain's

    def __init__(self, make: Callable[[Sequence, int], Draft]):
        self.make = make
        self.asked: list[tuple[int, int]] = []  # (row, k)
        self.settled: list[tuple[int, list[int], int]] = []  # (row, path, emitted)
        self.forgotten: list[int] = []
        self.numbers: dict[int, int] = {}  # ids are unique in the process: here sequences count from 0 as they come

    def max_tree_nodes(self, k: int) -> int:
        return k + self.extra

    def number(self, row: int) -> int:
        return self.numbers.setdefault(row, len(self.numbers))

    def propose(self, contexts: list[Sequence], k: int) -> list[Draft]:
        contexts = [replace(context, id=self.number(context.id)) for context in contexts]
        self.asked += [(context.id, k) for context in contexts]
        return [self.make(context, k) for context in contexts]

    def settle(self, row: int, path: list[int], emitted: int, scratch: Tensor | None = None) -> None:
        self.settled.append((self.number(row), list(path), emitted))

    def forget(self, row: int) -> None:
        self.forgotten.append(self.number(row))
