"""KVCache: the keys and values of every token that a model has processed, contiguous, preallocated and rewindable.

Attention needs one key and one value vector of every earlier token, in each layer. These never change, so they are
computed once. A new token then costs O(n) in attention instead of O(n²), and the linear layers process it alone.

Each sequence of a batch has `capacity` slots; `lengths` says how many of them count. What is left in slots past the
length does no harm: no token attends to it, and later tokens overwrite it. So to *rewind* (transformers: crop; vLLM
lowers num_computed_tokens), as speculative decoding does after every rejection, is to change one number.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from copy import copy
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from .recurrent import States
from .require import require_counts

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # layer, q [B, H, T, D], k and v [B, Hkv, T, D] → [B, H, T, D]

TILE = 256  # A longer chunk after a cached past is processed in tiles of so many queries, each with a small mask.


def kernels_of(device: torch.device):
    """Which of torch's kernels may compute attention: on a GPU all but cuDNN's. That one makes a plan for every new
    shape, which took 65 ms on an H200, and prompts have lengths of their own."""
    if device.type != "cuda":
        return nullcontext()
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """softmax(q kᵀ / √D + mask) v for q [B, H, T, D] over k, v [B, Hkv, S, D]; the mask is `per_query_head`'s."""
    (B, H, T, D), Hkv = q.shape, k.shape[1]
    # The G = H / Hkv query heads that share a key/value head are folded into T, so that K and V are read once for all.
    with kernels_of(q.device):
        o = F.scaled_dot_product_attention(q.reshape(B, Hkv, H // Hkv * T, D), k, v, attn_mask=mask)
    return o.reshape(B, H, T, D)  # from [B, Hkv, G·T, D]


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of the last T of S positions, each to itself and to all before it: no mask [T, S] is ever stored."""
    (B, H, T, D), (Hkv, S) = q.shape, k.shape[1:3]
    if T == 1:
        return attention(q, k, v)
    if T == S:  # A whole prompt: torch's kernel skips what is above the diagonal. The G heads share k and v as a view.
        shared = (x.reshape(B * Hkv, 1, S, D).expand(-1, H // Hkv, -1, -1) for x in (k, v))
        with kernels_of(q.device):
            o = F.scaled_dot_product_attention(q.reshape(B * Hkv, H // Hkv, T, D), *shared, is_causal=True)
        return o.reshape(B, H, T, D)
    tiles, end = [], S - T
    for tile in q.split(TILE, 2):  # [B, H, n, D]
        n = tile.shape[2]
        end += n  # The last query of the tile attends to the first `end` positions, the one before it to one less, …
        visible = torch.ones(1, n, end, dtype=torch.bool, device=q.device).tril(end - n)
        tiles.append(attention(tile, k[:, :, :end], v[:, :, :end], per_query_head(visible, H // Hkv)))
    return torch.cat(tiles, 2)


def per_query_head(visible: Tensor, groups: int) -> Tensor:
    """What each new token attends to, [B, T, S], for every query head of a group: [B, 1, G·T, S]."""
    return visible.repeat(1, groups, 1)[:, None]


def visible_slots(slots: Tensor, end: int, mask: Tensor | None) -> Tensor:
    """Which of the first `end` slots each new token attends to, [B, T, S]: all of the past, then what `mask` allows.
    A mask [T, E] is that of the newest T of E entries, which begin at slots[:, 0]."""
    slot = torch.arange(end, device=slots.device)  # [S]
    if mask is None:
        return slot <= slots[..., None]
    B, (T, E) = len(slots), mask.shape[-2:]
    new = slot - slots[:, :1]  # [B, S]: which entry is in a slot; negative: a slot of the past
    among_new = mask.expand(B, T, E).gather(2, new.clamp(0, E - 1)[:, None].expand(B, T, end))
    return torch.where(((new >= 0) & (new < E))[:, None], among_new, (new < 0)[:, None])


def attention_of_pass(
    slots: Tensor, end: int, mask: Tensor | None, groups: int, dtype: torch.dtype
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """How each layer of a forward pass attends: q [B, H, T, D], k and v [B, Hkv, S, D] of the first `end` slots → as q.
    `slots` [B, T] are those of the new tokens, and the mask is that of `visible_slots`."""
    T = slots.shape[1]
    past = end - T  # tokens cached for the longest sequence
    same_past = past == 0 or len(slots) == 1 or int(slots[:, 0].min()) == past
    if mask is None and same_past and (past == 0 or T == 1 or T > TILE):
        return causal_attention
    visible = per_query_head(visible_slots(slots, end, mask), groups)  # [B, 1, G·T, S]
    bias = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return partial(attention, mask=bias.masked_fill_(~visible, -math.inf))  # as numbers, converted once for all layers


class Places(NamedTuple):
    """Where keys and values lie: slot s of sequence b is slot s mod size of block table[b, s // size]."""

    table: Tensor  # [B, W] blocks
    size: int  # slots of a block
    strides: tuple[int, int, int]  # numbers between two blocks, heads, slots
    lengths: Sequence[int]  # tokens that each sequence has cached
    counts: Sequence[int]  # how many more each brings
    masks: Sequence[Tensor | None] | None  # [T, s]: which of the last s slots each of these attends to; None: causal


class KVCache:
    """Keys and values of every layer for a batch of sequences of different lengths."""

    def __init__(self, config, batch: int = 1, capacity: int | None = None, *, device="cpu", dtype=torch.float32):
        capacity = config.max_length if capacity is None else capacity
        require_counts(batch=batch, capacity=capacity)
        shape = (config.attention_layers, batch, config.num_kv_heads, capacity, config.head_dim)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)  # [L, B, Hkv, S, D]
        self.values = torch.zeros(shape, device=device, dtype=dtype)  # [L, B, Hkv, S, D]
        self.lengths = torch.zeros(batch, device=device, dtype=torch.long)  # [B]
        self.groups = config.num_heads // config.num_kv_heads
        self.states = States(config.delta) if config.delta else None  # of recurrent layers, which have no keys

    @property
    def batch(self) -> int:
        return self.keys.shape[1]

    @property
    def capacity(self) -> int:
        return self.keys.shape[3]

    @property
    def bytes_per_token(self) -> int:
        """2 · layers · kv_heads · head_dim · bytes: what one more token of one sequence costs."""
        return 2 * self.keys[:, 0, :, 0].numel() * self.keys.element_size()

    def begin(self, count: int, mask: Tensor | None = None) -> tuple[Tensor, Attend]:
        """Begin a forward pass of T = `count` new tokens per sequence: their slots [B, T], and the layers' attention.
        `mask` [T, E] or [B, T, E] is True where a new token attends to one of the newest E = T or more entries, which
        end with the new tokens; None: to all up to itself."""
        slots, end = self.reserve(count)
        first = slots if mask is None else slots - (mask.shape[-1] - count)  # of the entries
        attend = attention_of_pass(first, end, mask, self.groups, self.keys.dtype)
        return slots, lambda layer, q, k, v: attend(q, *self.extend(layer, slots, end, k, v))

    def places(self, count: int, mask: Tensor | None) -> Places:
        """Where the compiled pass of a CPU finds everything: each sequence has one block, as long as it may get."""
        _, block, head, slot, _ = self.keys.stride()
        masks = None if mask is None else list(mask.bool().expand(self.batch, *mask.shape[-2:]))
        rows = torch.arange(self.batch)[:, None]
        return Places(rows, self.capacity, (block, head, slot), self.lengths.tolist(), [count] * self.batch, masks)

    def reserve(self, count: int) -> tuple[Tensor, int]:
        """The slots of the next `count` tokens per sequence, [B, T], and how many leading slots are in use then."""
        end = int(self.lengths.max()) + count
        if end > self.capacity:
            known = f"the longest sequence has {end - count} tokens cached, and {count} more come"
            raise ValueError(f"capacity={self.capacity}: give {end} or more: {known}")
        return self.lengths[:, None] + torch.arange(count, device=self.lengths.device), end

    def extend(self, layer: int, slots: Tensor, end: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store one layer's new keys and values [B, Hkv, T, D] in `slots` [B, T]; return the first `end` slots."""
        if self.batch == 1:  # one sequence is one contiguous copy
            self.keys[layer, :, :, end - slots.shape[1] : end] = keys
            self.values[layer, :, :, end - slots.shape[1] : end] = values
        else:
            rows = torch.arange(self.batch, device=slots.device)[:, None]  # [B, 1]
            # Two index tensors around a slice move their dimensions to the front, hence [B, T, Hkv, D].
            self.keys[layer][rows, :, slots] = keys.transpose(1, 2)
            self.values[layer][rows, :, slots] = values.transpose(1, 2)
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]

    def advance(self, counts: int | Tensor) -> None:
        """End the pass: keep the first `counts` of its tokens (one number, or one per sequence)."""
        self.lengths += counts

    def rewind(self, length: int | Tensor) -> None:
        """Discard everything after the first `length` tokens (one number for all sequences, or [B])."""
        length = torch.as_tensor(length, device=self.lengths.device).expand_as(self.lengths)
        if not bool(((length >= 0) & (length <= self.lengths)).all()):  # one host sync; the words would take two more
            raise ValueError(f"length={length.tolist()}: give 0 to what is cached, {self.lengths.tolist()}")
        self.lengths.copy_(length)

    def gather(self, path: Tensor, start: Tensor) -> None:
        """Move the slots `start + path` [B, n] to `start …` [B], in order: a tree's accepted path becomes a chain. The
        caller then rewinds to start + n."""
        rows = torch.arange(self.batch, device=path.device)[:, None]
        source = start[:, None] + path  # [B, n]
        target = start[:, None] + torch.arange(path.shape[1], device=path.device)
        for memory in (self.keys, self.values):
            if self.batch == 1:  # one index is several times as fast as two
                memory.index_copy_(3, target[0], memory.index_select(3, source[0]))
            else:
                memory[:, rows, :, target] = memory[:, rows, :, source].clone()  # they overlap

    def rows(self, keep: Sequence[int]) -> "KVCache":
        """A cache of the chosen sequences, in that order: the others leave."""
        chosen, index = copy(self), torch.as_tensor(keep, device=self.lengths.device)
        chosen.keys, chosen.values, chosen.lengths = self.keys[:, index], self.values[:, index], self.lengths[index]
        chosen.states = self.states and self.states.rows(keep)
        return chosen
