"""A draft model's keys and values in blocks, for captured passes.

ContiguousMemory (drafters/model.py) is one KVCache; both have one interface:

    lengths            how many tokens of each living sequence are processed; lowering the number rewinds the sequence
    make_room(ends)    slots for each of these sequences up to so many tokens; what was rewound is forgotten
    forward(new)       one pass over the new tokens of these sequences: logits [B, V] of what follows the last of each,
                       or, with `tails`, of what follows the last few [B, longest tail, V]
    fork(held)         new sequences that begin like others, with as many of their tokens
    rename(old, new)   the new sequence goes on with the memory of the old one
    forget(row)        the sequence has ended

Here a pass over one or two tokens per sequence is a single launch (passes.py). Two are new after a draft that was
accepted whole: its last token and the bonus. A sequence with more new tokens has an ordinary pass. Plain chains have
all their passes in one launch, over the same memory (chains.py).
"""

from collections.abc import Hashable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..cpu import invariant
from ..drafters.model import New, ends
from ..load.model import Model
from ..serving.paged import PagedKVCache
from .passes import Buckets, double
from .ragged import memory_for

ROWS, TOKENS, BLOCK = 8, 1024, 16  # paged memory begins with blocks of 16 for 8 sequences, or as `reserve` says


class PagedMemory:
    """Blocks for any sequence. When there are too few the memory doubles, and stays so: it keeps captures."""

    def __init__(self, draft: Model, tokens: int = 2):
        self.draft, self.tokens, self.lengths = draft, tokens, {}  # passes over up to so many tokens are captured
        self.tables: dict[int, list[int]] = {}  # the blocks of each living sequence, in order
        self.release()
        self.least = 0, 0  # rows and blocks
        self.reserve(ROWS, ROWS * TOKENS)

    def reserve(self, rows: int, tokens: int) -> None:
        """There will be so many sequences of so many tokens in all: memory begins with as much, but no more than 1,024
        tokens for each."""
        blocks = -(-min(tokens, rows * TOKENS) // BLOCK)
        self.least = max(self.least[0], rows), max(self.least[1], blocks)

    def release(self) -> None:
        """Give blocks and captures back: no sequence has any. The next one begins with new ones."""
        self.free: list[int] = []
        self.cache: PagedKVCache | None = None
        self.buckets: Buckets | None = None

    def make_room(self, ends: dict[int, int], grow: bool = True) -> None:
        """Without `grow` only as long as there are free blocks."""
        for row in ends:
            self.lengths.setdefault(row, 0)
            self.tables.setdefault(row, [])
        missing = {row: max(0, -(-end // BLOCK) - len(self.tables[row])) for row, end in ends.items()}
        if grow:
            self._grow(len(ends), sum(missing.values()))
        for row, count in missing.items():
            self.tables[row] += [self.free.pop() for _ in range(min(count, len(self.free)))]

    def capacity(self, row: int) -> int:
        """For how many tokens a sequence has slots."""
        return len(self.tables[row]) * BLOCK

    def forward(self, new: New, tails: Sequence[int] | None = None) -> Tensor:
        tail_of = dict(zip(new, tails, strict=True)) if tails else None
        few = {row: tokens for row, tokens in new.items() if len(tokens) <= self.tokens}
        many = {row: tokens for row, tokens in new.items() if len(tokens) > self.tokens}
        logits = [
            way(some, tail_of and [tail_of[row] for row in some])
            for way, some in ((self._launch, few), (self._ragged, many))
            if some
        ]
        for row in new:
            self.lengths[row] += len(new[row])
        if len(logits) == 1:
            return logits[0]
        slot = {row: i for i, row in enumerate([*few, *many])}
        if tails:  # [b, n, V] each
            logits = [F.pad(part, (0, 0, 0, max(tails) - part.shape[1])) for part in logits]
        return torch.cat(logits)[[slot[row] for row in new]]

    def process(self, new: New) -> None:
        """As `forward`, where nobody asks what follows."""
        with invariant.waived():
            self.buckets.prompts.process(list(new.values()), *self._where(new))
        for row in new:
            self.lengths[row] += len(new[row])

    def fork(self, held: dict[Hashable, tuple[Hashable, int]]) -> None:
        self.make_room({new: length for new, (_, length) in held.items()})
        pairs = []  # of blocks: from, to
        for new, (row, length) in held.items():
            self.lengths[new] = length
            pairs += zip(self.tables[row], self.tables[new][: -(-length // BLOCK)], strict=False)
        old, own = torch.tensor(pairs, dtype=torch.long).view(-1, 2).T.to(self.draft.device)
        for layers in (self.cache.keys, self.cache.values):
            layers[:, own] = layers[:, old]

    def rename(self, old: Hashable, new: Hashable) -> None:
        self.lengths[new], self.tables[new] = self.lengths.pop(old), self.tables.pop(old)

    def forget(self, row: int) -> None:
        self.lengths.pop(row, None)
        self.free += self.tables.pop(row, [])

    def _launch(self, new: New, tails: Sequence[int] | None) -> Tensor:
        """A few tokens of every sequence, by one launch. The logits hold until the next."""
        logits = self.buckets.read(list(new.values()), *self._where(new)).logits
        logits, lengths = logits.view(len(new), -1, logits.shape[1]), [len(tokens) for tokens in new.values()]
        return ends(logits, range(len(lengths)), lengths, tails)  # after it: padding

    def _ragged(self, new: New, tails: Sequence[int] | None) -> Tensor:
        """Any number of tokens of every sequence, laid end to end."""
        transformer, (starts, tables) = self.draft.transformer, self._where(new)
        counts = [len(tokens) for tokens in new.values()]
        flat = torch.tensor([[token for tokens in new.values() for token in tokens]], device=self.draft.device)
        with invariant.waived():
            x, _ = transformer.body(flat, self.cache.open(tables, starts, counts))  # [1, N, d]
            each = pad_sequence(x[0].split(counts), batch_first=True)  # [b, T, d]
            return transformer.head(ends(each, range(len(counts)), counts, tails))

    def _where(self, new: New) -> tuple[list[int], list[list[int]]]:
        return [self.lengths[row] for row in new], [self.tables[row] for row in new]

    def _grow(self, rows: int, blocks: int) -> None:
        """Memory for passes over so many sequences, with so many blocks to give away. Block numbers stay the same."""
        old = self.cache
        most, had = (self.buckets.rows, self.buckets.blank) if old else (0, 0)
        wanted = double(most or self.least[0], rows)
        total = double(had or self.least[1], had + blocks - len(self.free))
        if (wanted, total) == (most, had):
            return
        if old:
            self.buckets.captures.clear()  # which would keep it alive
        self.buckets = memory_for(self.draft, total, BLOCK, wanted, self.tokens - 1)
        self.cache = self.buckets.cache
        if old:
            self.cache.keys[:, :had], self.cache.values[:, :had] = old.keys[:, :had], old.values[:, :had]
        self.free += range(had, total)
