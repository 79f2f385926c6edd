"""What a drafter with layers of its own remembers: keys and values of every living sequence."""

from collections.abc import Callable, Hashable

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..cache import KVCache
from ..model import Config
from ..recurrent import DEEPEST
from ..sequence import Sequence


class DraftCache:
    """The sequences of a draft are the rows of one KVCache, in the order in which they are asked for. They stay there
    as long as the same ones are asked for; otherwise they move together, from wherever they were."""

    def __init__(self, config: Config, new_cache: Callable[[int, int], KVCache]):
        self.max_length, self.new_cache = config.max_length, new_cache  # new_cache(rows, capacity)
        self.lengths: dict[int, int] = {}  # entries of each living sequence; lowering the number rewinds it
        self.places: dict[int, tuple[KVCache, int]] = {}  # the cache that holds them, and the row
        self.cache: KVCache | None = None  # of the sequences that were asked for last

    def make_room(self, ends: dict[int, int]) -> None:
        """Bring these sequences together, with slots for so many entries of each."""
        lengths = [self.lengths.setdefault(id, 0) for id in ends]
        # A pass pads all rows to the one with the most new tokens: never attended to, but it needs slots.
        longest = max(lengths) + max(end - self.lengths[id] for id, end in ends.items())
        here = [self.places.get(id) for id in ends] == [(self.cache, row) for row in range(len(ends))]
        if not here or self.cache.batch > len(ends) or self.cache.capacity < longest:
            self.cache = self.new_cache(len(ends), max(longest, min(self.max_length, 2 * longest)))
            if self.cache.states:
                self.cache.states.reach = DEEPEST  # a draft takes many passes, and all of them may be rewound
            for row, (id, length) in enumerate(zip(ends, lengths, strict=True)):
                if length:
                    old, at = self.places[id]
                    self.cache.keys[:, row, :, :length] = old.keys[:, at, :, :length]
                    self.cache.values[:, row, :, :length] = old.values[:, at, :, :length]
                    if old.states:
                        self.cache.states.adopt(row, old.states, at)
                self.places[id] = self.cache, row
        self.cache.lengths = torch.tensor(lengths, device=self.cache.keys.device)

    def fork(self, held: dict[Hashable, tuple[Hashable, int]]) -> None:
        """New sequence → the one that it begins like, and how many entries they share."""
        for new, (id, length) in held.items():
            self.lengths[new], self.places[new] = min(length, self.lengths[id]), self.places[id]
        self.cache = None  # two sequences have one row: whoever is asked for next is moved to one of its own

    def rename(self, old: Hashable, new: Hashable) -> None:
        self.lengths[new], self.places[new] = self.lengths.pop(old), self.places.pop(old)

    def forget(self, id: int) -> None:
        self.lengths.pop(id, None)
        self.places.pop(id, None)
        if not self.lengths:
            self.cache = None

    def release(self) -> None:
        """There is nothing to give back: memory goes with the last sequence."""


class StateCache(DraftCache):
    """Entry t is made of the target's hidden states at position t, so entries follow what the target has processed."""

    def __init__(self, config: Config, device: torch.device, dtype: torch.dtype):
        super().__init__(config, lambda rows, capacity: KVCache(config, rows, capacity, device=device, dtype=dtype))
        self.nothing = torch.zeros(0, config.hidden_size, device=device, dtype=dtype)
        self.seen: dict[int, int] = {}  # up to which position of a sequence there are entries

    def take(self, sequences: list[Sequence], layers: list[int], extra: int) -> tuple[dict[int, Tensor], list[int]]:
        """The states that are new since the last call, of these layers: [B, T, d] each, and how many of every sequence.
        Their entries count from now on, and there is room for `extra` more after them."""
        new = {c.id: len(c.hidden.get(layers[0], ())) for c in sequences}
        for c in sequences:
            if self.seen.get(c.id) != len(c.tokens) - 1 - new[c.id]:
                # A new sequence, or one with a gap. Start where its states start: RoPE depends on distances alone, so
                # that positions in the cache need not be those in the sequence.
                self.lengths[c.id] = 0
            self.seen[c.id] = len(c.tokens) - 1
        self.make_room({id: self.lengths[id] + count + extra for id, count in new.items()})
        for id, count in new.items():
            self.lengths[id] += count
        states = {n: [c.hidden.get(n, self.nothing) for c in sequences] for n in layers}
        return {n: pad_sequence(parts, batch_first=True) for n, parts in states.items()}, list(new.values())

    def forget(self, id: int) -> None:
        self.seen.pop(id, None)
        super().forget(id)
