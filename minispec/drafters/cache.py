"""What a drafter with layers of its own remembers: keys and values of every living sequence, in one KVCache."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..cache import KVCache
from ..model import Config
from ..sequence import Sequence
from .base import Drafter


class DraftCache:
    """A row of the cache for every living sequence. All rows take part in a pass: those without new tokens ride along,
    and what is written after their length is never attended to."""

    def __init__(self, config: Config, new_cache: Callable[[int, int], KVCache]):
        self.max_length, self.new_cache = config.max_length, new_cache  # new_cache(rows, capacity)
        self.lengths: dict[int, int] = {}  # entries of each living sequence; lowering the number rewinds it
        self.order: list[int] = []  # the sequence in each row of the cache
        self.cache: KVCache | None = None

    def make_room(self, ends: dict[int, int]) -> None:
        """Slots for each of these sequences up to so many entries. Those that are new get a row."""
        for id in ends:
            self.lengths.setdefault(id, 0)
        order = list(self.lengths)
        # Rows that ride along are padded as far as the others: never attended to, but it needs slots.
        longest = max(self.lengths.values()) + max(end - self.lengths[id] for id, end in ends.items())
        capacity = self.cache.capacity if self.cache else 0
        if longest > capacity:
            capacity = max(longest, min(self.max_length, 2 * longest))
        if self.cache is None:
            self.cache = self.new_cache(len(order), capacity)
        elif order != self.order or capacity > self.cache.capacity:
            row = {id: i for i, id in enumerate(self.order)}
            self.cache = self.cache.rows([row.get(id, -1) for id in order], capacity)
        self.order = order
        self.cache.lengths = torch.tensor([self.lengths[id] for id in order], device=self.cache.keys.device)

    def rows(self, sequences: list[Sequence]) -> slice | Tensor:
        """The rows of these sequences, as an index: a slice, which copies nothing, if they are all there are."""
        ids, row = [c.id for c in sequences], {id: i for i, id in enumerate(self.order)}
        return slice(None) if ids == self.order else torch.tensor([row[id] for id in ids]).to(self.cache.keys.device)

    def forget(self, id: int) -> None:
        self.lengths.pop(id, None)
        if not self.lengths:
            self.cache, self.order = None, []


class StateCache(DraftCache):
    """Entry t is made of the target's hidden states at position t, so entries follow what the target has processed."""

    def __init__(self, config: Config, device: torch.device, dtype: torch.dtype):
        super().__init__(config, lambda rows, capacity: KVCache(config, rows, capacity, device=device, dtype=dtype))
        self.nothing = torch.zeros(0, config.hidden_size, device=device, dtype=dtype)
        self.seen: dict[int, int] = {}  # up to which position of a sequence there are entries

    def take(self, sequences: list[Sequence], layers: list[int], extra: int) -> tuple[dict[int, Tensor], list[int]]:
        """The states that are new since the last call, of these layers: [R, T, d] each, and how many of every row.
        Their entries count from now on, and there is room for `extra` more after them."""
        hidden = {c.id: c.hidden for c in sequences}
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
        counts = [new.get(id, 0) for id in self.order]
        each = [hidden[id] if count else {} for id, count in zip(self.order, counts, strict=True)]
        states = {n: [h.get(n, self.nothing) for h in each] for n in layers}
        return {n: pad_sequence(parts, batch_first=True) for n, parts in states.items()}, counts

    def forget(self, id: int) -> None:
        self.seen.pop(id, None)
        super().forget(id)


class StateDrafter(Drafter):
    """A drafter whose module makes entries of the target's hidden states."""

    memory: StateCache

    def capture(self) -> None:
        if not self.memory.lengths:  # sequences that are under way stay where they are
            super().capture()

    def forget(self, id: int) -> None:
        if self.captured:
            self.captured.forget(id)
        self.memory.forget(id)
