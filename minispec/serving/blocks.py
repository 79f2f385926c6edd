"""Paging as bookkeeping: which block of memory holds which tokens. No tensors here, only lists and counters.

The memory for keys and values is cut into `num_blocks` blocks of `block_size` slots, one slot per token. A request owns
a *table*, the list of its blocks in order, and finds the token at position p in

    slot = table[p // block_size] * block_size + p % block_size

so its memory need not be contiguous, grows block by block, and wastes less than one block at its end (PagedAttention:
Kwon et al., 2023, arXiv:2309.06180). A block can be in several tables at once, and a reference count says in how many.
Only full blocks are shared, and nobody writes into a full block: so none ever has to be copied first (copy-on-write).

One step of an engine, seen from here:

    start(request, prompt)         once: the cached prefix by reference, fresh blocks for the rest
    allocate(request, total)       before a forward pass: slots for its tokens and its drafts (the lookahead slots)
    commit(request, tokens, n)     after it: n tokens are verified and kept; full blocks become findable by their hash
    trim(request)                  the rest is forgotten, and blocks that hold nothing more are given back
    free(request)                  at the end

A block that no table holds but that still has a hashed prefix in it is *cached*: as free as the others, but given out
last, the least recently used first. Where memory is short `start` returns None and `allocate` False, and nothing has
changed.
"""

import hashlib
from array import array
from collections import Counter, OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from ..require import require_counts


@dataclass
class Table:
    """What one request holds."""

    blocks: list[int]
    length: int = 0  # tokens whose keys and values are verified and kept
    reserved: int = 0  # positions that may be written; those from `length` on belong to this request alone
    hashes: list[bytes] = field(default_factory=list)  # of its leading full blocks


@dataclass
class PoolStats:
    """A snapshot of the pool, and what happened in it so far."""

    used_blocks: int
    free_blocks: int  # cached ones among them
    cached_blocks: int
    shared_blocks: int  # in more than one table
    tokens: int  # Σ lengths: what the requests see
    tokens_stored: int  # slots that hold them: fewer, where blocks are shared
    waste: int  # slots of used blocks that hold nothing verified
    prefix_queries: int = 0  # requests started
    prefix_hits: int = 0  # those that found a cached prefix
    prefix_tokens: int = 0  # tokens they did not have to compute
    evictions: int = 0

    @property
    def waste_fraction(self) -> float:
        """Internal waste: which part of the memory in use holds nothing."""
        return self.waste / max(1, self.tokens_stored + self.waste)


def block_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Names a block by all tokens up to its end. SHA-256: a collision would hand out the tokens of another request."""
    return hashlib.sha256(parent + array("q", tokens).tobytes()).digest()


class IntegrityError(AssertionError):
    """The books do not balance: a bug, never a user's mistake."""


def check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise IntegrityError(otherwise)


class BlockPool:
    """All blocks, and the tables of all requests."""

    def __init__(self, num_blocks: int, block_size: int = 16, enable_prefix_caching: bool = True):
        require_counts(num_blocks=num_blocks, block_size=block_size)
        self.num_blocks, self.block_size, self.enable_prefix_caching = num_blocks, block_size, enable_prefix_caching
        self.tables: dict[Hashable, Table] = {}
        self.refcount = [0] * num_blocks
        self.free_blocks = dict.fromkeys(reversed(range(num_blocks)))  # a set that remembers order; the last is next
        self.cached_blocks: OrderedDict[int, None] = OrderedDict()  # free, but hashed; longest unused first
        self.blocks_of: dict[bytes, list[int]] = {}  # hash → the blocks that hold these tokens; the first is found
        self.hash_of: dict[int, bytes] = {}  # and back
        self.counts: Counter[str] = Counter()  # the events of PoolStats

    # ---- asking ----------------------------------------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        return len(self.free_blocks) + len(self.cached_blocks)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    @property
    def max_tokens(self) -> int:
        """How long a request may get that has the pool for itself."""
        return self.num_blocks * self.block_size

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def table(self, request: Hashable) -> list[int]:
        """A copy of the request's block table."""
        return list(self._table(request).blocks)

    def slots(self, request: Hashable, start: int, stop: int) -> list[int]:
        """Where the tokens at positions start … stop − 1 are, or will be written."""
        table, size = self._table(request), self.block_size
        if not 0 <= start <= stop <= table.reserved:
            raise ValueError(f"slots {start} to {stop}: request {request!r} has {table.reserved}; allocate first")
        return [table.blocks[p // size] * size + p % size for p in range(start, stop)]

    def match_prefix(self, tokens: Sequence[int], hashes: list[bytes] | None = None) -> list[int]:
        """The blocks that already hold the beginning of `tokens`. Never all of it: the last token has to be processed,
        since that is what yields the distribution of the next. `hashes` of leading blocks are used and added to."""
        blocks, hashes, size = [], [] if hashes is None else hashes, self.block_size
        for i, start in enumerate(range(0, len(tokens) - size, size) if self.enable_prefix_caching else ()):
            if i == len(hashes):
                hashes.append(block_hash(hashes[-1] if i else b"", tokens[start : start + size]))
            if hashes[i] not in self.blocks_of:
                break
            blocks.append(self.blocks_of[hashes[i]][0])
        return blocks

    # ---- a request's life ------------------------------------------------------------------------------------------

    def start(self, request: Hashable, tokens: Sequence[int] = (), hashes: list[bytes] | None = None) -> int | None:
        """Open a table with room for all of `tokens`; returns how many of them are cached. None: too few free blocks.
        A request that will ask again keeps its `hashes`."""
        self._refuse_twice(request)
        blocks = self.match_prefix(tokens, hashes)
        fresh = self.blocks_for(len(tokens)) - len(blocks)
        # Cached blocks that are about to be used count as free until then, and cannot serve as fresh ones too.
        if fresh + sum(self.refcount[block] == 0 for block in blocks) > self.num_free:
            return None
        for block in blocks:
            self._share(block)
        length, known = len(blocks) * self.block_size, [self.hash_of[block] for block in blocks]
        self.tables[request] = Table(blocks + [self._take() for _ in range(fresh)], length, len(tokens), known)
        self.counts.update(prefix_queries=1, prefix_hits=int(bool(blocks)), prefix_tokens=length)
        return length

    def allocate(self, request: Hashable, total: int) -> bool:
        """Make the positions from the request's length up to `total` writable: for the tokens of a pass and its drafts.
        False: too few free blocks."""
        table = self._table(request)
        fresh = self.blocks_for(total) - len(table.blocks)
        if fresh > self.num_free:
            return False
        table.blocks += [self._take() for _ in range(fresh)]
        table.reserved = max(total, table.reserved)
        return True

    def commit(self, request: Hashable, tokens: Sequence[int], length: int | None = None) -> None:
        """The first `length` of `tokens` (all, unless given) are verified, and their keys and values are in place. Only
        now may full blocks be hashed: no other request may find a draft that is rejected later."""
        table, size = self._table(request), self.block_size
        length = len(tokens) if length is None else length
        if not table.length <= length <= min(table.reserved, len(tokens)):
            there = f"request {request!r} has {table.length} tokens and slots for {table.reserved}"
            raise ValueError(f"length={length} of {len(tokens)}: {there}; allocate before the pass")
        table.length = length
        for i in range(len(table.hashes), length // size) if self.enable_prefix_caching else ():
            name = block_hash(table.hashes[-1] if i else b"", tokens[i * size : (i + 1) * size])
            table.hashes.append(name)
            self.blocks_of.setdefault(name, []).append(table.blocks[i])
            self.hash_of[table.blocks[i]] = name

    def trim(self, request: Hashable) -> None:
        """Keep the verified tokens, and give blocks back that hold none of them."""
        table = self._table(request)
        table.reserved = table.length
        self._give_back(table, self._kept_blocks(table))

    def free(self, request: Hashable) -> None:
        """The request has ended. Blocks that only it held are free; hashed ones stay findable until they are needed."""
        self._give_back(self._table(request), 0)
        del self.tables[request]

    # ---- one block -------------------------------------------------------------------------------------------------

    def _take(self) -> int:
        """A free block: a blank one, or the least recently used of the cached ones."""
        if self.free_blocks:
            block, _ = self.free_blocks.popitem()
        else:
            block, _ = self.cached_blocks.popitem(last=False)
            self._forget_hash(block)
            self.counts["evictions"] += 1
        self.refcount[block] = 1
        return block

    def _share(self, block: int) -> None:
        if self.refcount[block] == 0:
            del self.cached_blocks[block]
        self.refcount[block] += 1

    def _release(self, block: int) -> None:
        self.refcount[block] -= 1
        if self.refcount[block] == 0:
            if block in self.hash_of and len(self.blocks_of[self.hash_of[block]]) > 1:
                self._forget_hash(block)  # two requests had computed it side by side, and the other copy is found
            (self.cached_blocks if block in self.hash_of else self.free_blocks)[block] = None

    def _forget_hash(self, block: int) -> None:
        if block in self.hash_of:
            name = self.hash_of.pop(block)
            self.blocks_of[name].remove(block)
            if not self.blocks_of[name]:
                del self.blocks_of[name]

    def _give_back(self, table: Table, keep: int) -> None:
        """Release all blocks but the first `keep`, the last first: a prefix is useless without its beginning."""
        while len(table.blocks) > keep:
            self._release(table.blocks.pop())

    def _kept_blocks(self, table: Table) -> int:  # a contiguous pool keeps them all
        return self.blocks_for(table.length)

    def _table(self, request: Hashable) -> Table:
        if request not in self.tables:
            raise ValueError(f"request {request!r} has no blocks in this pool: start it first")
        return self.tables[request]

    def _refuse_twice(self, request: Hashable) -> None:
        if request in self.tables:
            raise ValueError(f"request {request!r} already has blocks in this pool: free it, or choose another id")

    # ---- the books -------------------------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Every block is counted once: in tables, cached or free; hashes agree; what is written is not shared."""
        entries = Counter(block for table in self.tables.values() for block in table.blocks)
        for block, count in enumerate(self.refcount):
            check(count == entries[block], f"block {block} is in {entries[block]} tables, its refcount says {count}")
        free, cached, used = set(self.free_blocks), set(self.cached_blocks), set(entries)
        check(not free & cached and not (free | cached) & used, "a block is both free and used, or free twice")
        check(free | cached | used == set(range(self.num_blocks)), "a block is neither free nor used")
        named = {block: name for name, blocks in self.blocks_of.items() for block in blocks}
        check(named == self.hash_of and all(self.blocks_of.values()), "the directions of the hash map disagree")
        check(cached <= named.keys() and not free & named.keys(), "cached must mean free and hashed")
        check(len({named[block] for block in cached}) == len(cached), "the same tokens are cached twice")
        for request, table in self.tables.items():
            name, hashed = f"request {request!r}", table.length // self.block_size if self.enable_prefix_caching else 0
            check(len(set(table.blocks)) == len(table.blocks), f"{name} has one block twice in its table")
            check(table.length <= table.reserved <= len(table.blocks) * self.block_size, f"{name} has too few blocks")
            check(len(table.hashes) == hashed, f"{name} has {len(table.hashes)} hashes for {hashed} full blocks")
            for block, known in zip(table.blocks, table.hashes, strict=False):
                check(named.get(block, known) == known, f"{name} holds block {block} under another hash")
            for block in table.blocks[self.blocks_for(table.length) :]:  # to be written in the coming pass
                alone = self.refcount[block] == 1 and block not in named
                check(alone, f"{name} is about to write into block {block}, which others can see")

    def stats(self) -> PoolStats:
        filled: dict[int, int] = {}  # block → slots that hold something: the fullest view of it counts
        for table in self.tables.values():
            for i, block in enumerate(table.blocks):
                filled[block] = max(filled.get(block, 0), min(self.block_size, table.length - i * self.block_size))
        shared = sum(count > 1 for count in self.refcount)
        tokens, stored = sum(table.length for table in self.tables.values()), sum(filled.values())
        waste = self.num_used * self.block_size - stored
        return PoolStats(
            self.num_used, self.num_free, len(self.cached_blocks), shared, tokens, stored, waste, **self.counts
        )
