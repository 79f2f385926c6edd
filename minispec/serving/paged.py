"""PagedKVCache: keys and values of many requests in blocks of one pool, and attention that follows block tables.

A contiguous KVCache reserves `capacity` slots for every sequence, used or not. Here all sequences share a pool of small
blocks (PagedAttention, Kwon et al., 2023, arXiv:2309.06180). Which request owns which block, and how many of its tokens
count, is kept in blocks.py, in plain Python; this file is given lists of block numbers and moves tensors. Its reference
is `KVCache`: the same forward passes over the same tokens give the same logits.

A drafter that builds on the target's hidden states needs those of every position. They lie in the same slots as keys
and values: so they are shared with the blocks of a prefix, move with an accepted path, and wait as long as they must.

The new tokens of all sequences are laid end to end, [1, N]. So the linear layers process no padding, whether a sequence
brings a prompt chunk of hundreds of tokens, one token to decode, or a draft to verify; attention alone tells sequences
apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ..cache import TILE, Attend, Places, attention_of_pass
from ..load.model import Model
from ..recurrent import States
from ..require import require_counts

CPU_BLOCKS = 512  # of an engine that is not told how many, where memory is shared with everything else
SHARE = 0.5  # of a GPU's free memory; passes, their results and captures need some, too


def bytes_per_block(model: Model, block_size: int, hidden_layers: Sequence[int] = ()) -> int:
    """Keys and values of `block_size` tokens, in every layer, and their hidden states after some."""
    c = model.config
    numbers = 2 * c.attention_layers * c.num_kv_heads * c.head_dim + len(set(hidden_layers)) * c.hidden_size
    return numbers * block_size * model.dtype.itemsize


def blocks_that_fit(model: Model, block_size: int, sequences: int, hidden_layers: Sequence[int] = ()) -> int:
    """How many blocks to take: a share of what is free on the GPU now that the weights are there, and no more than so
    many sequences of full length can fill."""
    require_counts(block_size=block_size, max_num_seqs=sequences)
    device = model.device
    if device.type != "cuda":
        return CPU_BLOCKS
    free, _ = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # torch holds it, but unused
    useful = sequences * -(-model.config.max_length // block_size)
    return max(1, min(useful, int(SHARE * free) // bytes_per_block(model, block_size, hidden_layers)))


def split(flat: Tensor, counts: Sequence[int]) -> list[Tensor]:
    """Logits, hidden states or tokens of a flattened pass [1, N, …], split by sequence: [n_i, …] each."""
    return list(flat[0].split(list(counts)))


class PagedKVCache:
    """Keys and values of every layer, and the residual stream after each of `hidden_layers`, in `num_blocks` blocks of
    `block_size` slots that any sequence may be given."""

    def __init__(
        self, config, num_blocks: int, block_size: int = 16, *, hidden_layers=(), device="cpu", dtype=torch.float32
    ):
        require_counts(num_blocks=num_blocks, block_size=block_size)
        shape = (config.attention_layers, num_blocks, block_size, config.num_kv_heads, config.head_dim)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)  # [L, blocks, block_size, Hkv, D]
        self.values = torch.zeros(shape, device=device, dtype=dtype)
        self.hidden_layers = tuple(dict.fromkeys(hidden_layers))
        shape = (len(self.hidden_layers), num_blocks, block_size, config.hidden_size)
        self.states = torch.zeros(shape, device=device, dtype=dtype)  # [n, blocks, block_size, d]
        memories = (self.keys, self.values, self.states) if self.hidden_layers else (self.keys, self.values)
        self.memories = [memory.flatten(1, 2) for memory in memories]  # [layers, slots, …]: what a slot holds
        self.num_blocks, self.block_size = num_blocks, block_size
        self.groups = config.num_heads // config.num_kv_heads
        self.recurrent = States(config.delta) if config.delta else None  # under each sequence's first block

    def open(
        self,
        tables: Sequence[Sequence[int]],  # block numbers of each sequence, in order; spare ones at the end are ignored
        lengths: Sequence[int],  # how many tokens of each sequence are cached already
        counts: Sequence[int],  # how many new tokens each sequence brings, at least one
        masks: Sequence[Tensor | None] | None = None,  # [n_i, n_i], which new token attends to which; None: causal
    ) -> PagedPass:
        """A pass over a ragged batch: give it to the model as its cache, with the new tokens laid end to end."""
        masks = [None] * len(counts) if masks is None else masks
        if not len(tables) == len(lengths) == len(counts) == len(masks) or not counts:
            sizes = f"{len(tables)} tables, {len(lengths)} lengths, {len(counts)} counts, {len(masks)} masks"
            raise ValueError(f"{sizes}: give one of each for every sequence, and at least one sequence")
        writer: dict[int, int] = {}  # sequences may share a block, but if two wrote to it one would overwrite the other
        for row, (table, length, count, mask) in enumerate(zip(tables, lengths, counts, masks, strict=True)):
            if count < 1 or length < 0:
                raise ValueError(f"sequence {row}: length={length}, count={count}; leave it out without new tokens")
            if mask is not None and (mask.shape != (count, count) or mask.dtype != torch.bool):
                raise ValueError(f"sequence {row}: its mask is {mask.dtype} {tuple(mask.shape)}; give bool [n, n]")
            for block in table[length // self.block_size : -(-(length + count) // self.block_size)]:
                if block in writer:
                    raise ValueError(f"sequences {writer[block]} and {row} both write to block {block}; copy it before")
                writer[block] = row
        table = self._table(tables, [length + count for length, count in zip(lengths, counts, strict=True)])
        return PagedPass(self, table, lengths, counts, masks)

    def gather(self, tables: Sequence[Sequence[int]], starts: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """Move each sequence's positions start + path to start, start + 1, …: a tree's accepted path becomes a chain.
        Source and target overlap, so all is copied before anything is stored; and whoever runs out of memory has moved
        nothing."""
        moves, ends = [], []
        for row, (start, path) in enumerate(zip(starts, paths, strict=True)):
            if start < 0 or any(node <= before for before, node in pairwise([-1, *path])):
                raise ValueError(f"sequence {row}: start={start}, path={list(path)}; give ascending nodes, from 0 on")
            moves += [(row, start + node, start + at) for at, node in enumerate(path) if node != at]
            ends.append(start + path[-1] + 1 if path else 0)
        table = self._table(tables, ends)
        if not moves:  # chains are in place already
            return
        rows, source, target = torch.tensor(moves, device=table.device).unbind(1)
        source, target = self.slots(table, rows, source), self.slots(table, rows, target)
        moved = [memory[:, source] for memory in self.memories]
        for memory, fresh in zip(self.memories, moved, strict=True):
            memory[:, target] = fresh

    def store(self, slots: Tensor, hidden: dict[int, Tensor]) -> None:
        """The hidden states of a pass, layer → [B, T, d], go to its tokens' slots [B · T]."""
        for n, states in zip(self.hidden_layers, self.states.flatten(1, 2), strict=True):
            states.index_copy_(0, slots, hidden[n].flatten(0, 1))

    def show(self, sequences: Sequence, tables: Sequence[Sequence[int]]) -> None:
        """To each sequence the states of all processed positions that its drafter has not seen, by one index."""
        size, slots = self.block_size, []
        for sequence, table in zip(sequences, tables, strict=True):
            unseen = range(sequence.seen, len(sequence.tokens) - 1)  # the last token is not processed yet
            slots.append([table[p // size] * size + p % size for p in unseen])
        index = torch.tensor([slot for some in slots for slot in some], dtype=torch.long)
        states = self.states.flatten(1, 2)[:, index.to(self.states.device, non_blocking=True)]  # [n, N, d]
        for sequence, part in zip(sequences, states.split(list(map(len, slots)), 1), strict=True):
            sequence.unseen = [dict(zip(self.hidden_layers, part, strict=True))]

    def slots(self, table: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
        """The slots of these positions of these rows of `table` [B, blocks]; the shapes broadcast."""
        block = torch.div(positions, self.block_size, rounding_mode="floor")
        return table[rows, block] * self.block_size + positions % self.block_size

    def _table(self, tables: Sequence[Sequence[int]], ends: Sequence[int]) -> Tensor:
        """The tables as one tensor [B, blocks], each cut to its first `end` positions and padded with 0."""
        used = []
        for row, (table, end) in enumerate(zip(tables, ends, strict=True)):
            blocks = list(table[: -(-end // self.block_size)])
            if len(blocks) * self.block_size < end:
                room = f"table of {len(table)} blocks of {self.block_size}"
                raise ValueError(f"sequence {row}: {end} tokens do not fit its {room}; allocate blocks before the pass")
            if blocks and not 0 <= min(blocks) <= max(blocks) < self.num_blocks:
                raise ValueError(f"sequence {row}: its table {blocks} leaves the blocks 0 … {self.num_blocks - 1}")
            used.append(blocks)
        width = max(map(len, used), default=0)
        return torch.tensor([blocks + [0] * (width - len(blocks)) for blocks in used], device=self.keys.device)


class Group(NamedTuple):
    """Sequences with equally many new tokens, T: their attention is one call. The longest has S positions then."""

    tokens: slice | Tensor  # which of the pass's N tokens are theirs, [n·T]
    shape: tuple[int, int]  # n, T
    end: int  # S
    blocks: Tensor  # their blocks, as many for each as S positions fill: [n·W]
    unused: Tensor  # which slots of these blocks are past their sequence's last token, [m]
    rows: list[int]  # which sequences of the pass they are
    attend: Callable[[Tensor, Tensor, Tensor], Tensor]  # q [n, H, T, D], k and v [n, Hkv, S, D] → [n, H, T, D]


class PagedPass:
    """One forward pass over a ragged batch, given to the model as its cache: `transformer.body(flat_tokens, this)`. All
    that depends on the block tables is computed once, by `begin`. Each layer then stores, gathers and attends."""

    def __init__(self, cache: PagedKVCache, table: Tensor, lengths, counts, masks):
        self.cache, self.device, self.table = cache, table.device, table
        self.lengths, self.counts, self.masks = lengths, counts, masks
        firsts = [0, *accumulate(counts)]  # where each sequence begins among the N tokens, and N
        self.count = firsts.pop()
        start, count, first = torch.tensor([list(lengths), list(counts), firsts], device=self.device)  # [B] each
        rows = torch.repeat_interleave(count, output_size=self.count)  # [N]
        positions = (start - first)[rows] + torch.arange(self.count, device=self.device)  # [N]
        self.positions = positions[None]  # [1, N]
        self.slots, self.firsts = cache.slots(table, rows, positions), firsts  # [N]
        self.keys, self.values = cache.keys, cache.values

    def places(self, count: int, mask: Tensor | None) -> Places:
        """For the compiled pass of a CPU, which follows the tables itself; as KVCache.places."""
        self.reserve(count, mask)
        _, block, slot, head, _ = self.keys.stride()
        masks = None if all(mask is None for mask in self.masks) else self.masks
        return Places(self.table, self.cache.block_size, (block, head, slot), self.lengths, self.counts, masks)

    def reserve(self, count: int, mask: Tensor | None = None) -> tuple[Tensor, int]:
        """The positions [1, N] of the new tokens, and how many there are."""
        if count != self.count:
            raise ValueError(f"{count} tokens in a pass that was opened for {self.count}; lay all sequences end to end")
        if mask is not None:
            raise ValueError("mask: a paged pass takes one mask per sequence, when it is opened")
        return self.positions, self.count

    def begin(self, count: int, mask: Tensor | None = None) -> tuple[Tensor, Attend]:
        """The positions [1, N] of the new tokens, and the attention of the layers; as KVCache.begin."""
        self.reserve(count, mask)
        members: dict[tuple[int, int | None], list[int]] = {}
        for row, (length, count) in enumerate(zip(self.lengths, self.counts, strict=True)):
            # Long chunks share a call only after pasts of one length, because then it needs no mask.
            members.setdefault((count, length if count > TILE else None), []).append(row)
        self.groups = [self._group(rows, T) for (T, _), rows in members.items()]
        # Room for what is gathered, the same for all layers and groups: new memory costs a CPU more than the copying.
        most = max(len(group.blocks) for group in self.groups)
        self.room = self.keys.new_empty(2, most, *self.keys.shape[2:])  # [2, n·W, block_size, Hkv, D]
        return self.positions, self._attend

    def _group(self, members: list[int], T: int) -> Group:
        lengths, masks, firsts = self.lengths, self.masks, self.firsts
        rows = torch.tensor(members, device=self.device)[:, None]  # [n, 1]
        start = torch.tensor([[lengths[row]] for row in members], device=self.device)  # [n, 1]
        new, size = torch.arange(T, device=self.device), self.cache.block_size  # [T]
        end = max(lengths[row] for row in members) + T  # S
        # Whole blocks are gathered: far fewer and longer pieces than single slots. Where a shorter sequence has no
        # block, its first one stands in. No token attends to that, nor to unused slots, but attention multiplies what
        # is masked by zero, and 0 · NaN is NaN: so unused slots, which may hold anything, are cleared.
        block = torch.arange(-(-end // size), device=self.device)  # [W]
        block = torch.where(block <= (start + T - 1) // size, block, 0)  # [n, W]
        position = block[..., None] * size + torch.arange(size, device=self.device)  # [n, W, block_size]
        unused = (position >= (start + T)[..., None]).flatten().nonzero()[:, 0]
        tree = None
        if any(masks[row] is not None for row in members):
            causal = new <= new[:, None]
            tree = torch.stack([causal if (m := masks[row]) is None else m.to(self.device) for row in members])
        attend = attention_of_pass(start + new, end, tree, self.cache.groups, self.keys.dtype)
        if members[-1] - members[0] + 1 == len(members):  # neighbours: a slice is a view, an index a copy
            tokens = slice(firsts[members[0]], firsts[members[-1]] + T)
        else:
            tokens = torch.cat([firsts[row] + new for row in members])
        return Group(tokens, (len(members), T), end, self.table[rows, block].flatten(), unused, members, attend)

    def advance(self, counts: int | Tensor) -> None:
        """Nothing to do: the owner of the block tables decides how many of the new tokens are kept."""

    def recall(self, at: int, layer, *inputs: Tensor) -> Tensor:
        """What a recurrent layer makes of its inputs [1, N, …], each sequence from its own state."""
        out = None
        for group in self.groups:
            names, lengths = [int(self.table[row, 0]) for row in group.rows], [self.lengths[row] for row in group.rows]
            given = [x[0, group.tokens].unflatten(0, group.shape) for x in inputs]
            o = self.cache.recurrent.recall(names, lengths, [group.shape[1]] * len(names), at, layer, *given)
            out = o.new_empty(1, self.count, *o.shape[2:]) if out is None else out
            out[0, group.tokens] = o.flatten(0, 1)
        return out

    def _attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [1, H, N, D] over all cached tokens of its own sequence; k, v [1, Hkv, N, D] are stored first."""
        memory = self.keys[layer], self.values[layer]  # [blocks, block_size, Hkv, D] each
        for stored, fresh in zip(memory, (k, v), strict=True):
            stored.flatten(0, 1).index_copy_(0, self.slots, fresh[0].transpose(0, 1))
        q = q[0].transpose(0, 1)  # [N, H, D]
        out = torch.empty_like(q)
        for tokens, shape, end, blocks, unused, _, attend in self.groups:
            room = self.room[:, : len(blocks)]
            for stored, gathered in zip(memory, room, strict=True):
                torch.index_select(stored, 0, blocks, out=gathered)
            room.flatten(1, 2).index_fill_(1, unused, 0)
            past = room.unflatten(1, (shape[0], -1)).flatten(2, 3)[:, :, :end].transpose(2, 3)  # [2, n, Hkv, S, D]
            queries = q[tokens].unflatten(0, shape).transpose(1, 2)  # [n, H, T, D]
            out[tokens] = attend(queries, *past).transpose(1, 2).flatten(0, 1)
        return out.transpose(0, 1)[None]  # [1, H, N, D]
