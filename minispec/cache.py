"""KVCache: what attention remembers, kept contiguous, preallocated and rewindable.

Every position a model has read leaves one key and one value vector in each layer. Keeping them turns the attention
of a new token from O(n²) into O(n), and the linear layers from O(n) into O(1).

A row's memory is `capacity` slots; `lengths[row]` says how many of them count. Slots past the length may hold
anything: they are never attended to and are overwritten by the next pass. So *rewinding*, the operation that
speculative decoding lives on, is a change of one number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # layer, q [B, H, T, D], k and v [B, Hkv, T, D] → [B, H, T, D]


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """softmax(q kᵀ / √D + mask) v for q [B, H, T, D] over k, v [B, Hkv, S, D]; the mask as `per_query_head` makes it.

    The G = H / Hkv query heads of one key/value head are just more queries: folded into T, so K and V are read once.
    """
    B, H, T, D = q.shape
    Hkv = k.shape[1]
    o = F.scaled_dot_product_attention(q.reshape(B, Hkv, H // Hkv * T, D), k, v, attn_mask=mask)  # [B, Hkv, G·T, D]
    return o.reshape(B, H, T, D)


def per_query_head(visible: Tensor, groups: int) -> Tensor:
    """What each new token sees, [B, T, S], for every query head of a group: [B, 1, G·T, S]."""
    return visible.repeat(1, groups, 1)[:, None]


def visible_slots(slots: Tensor, end: int, mask: Tensor | None) -> Tensor:
    """Which of the first `end` slots each new token sees, [B, T, S]: the committed prefix, then what `mask` allows."""
    B, T = slots.shape
    slot = torch.arange(end, device=slots.device)  # [S]
    if mask is None:
        return slot <= slots[..., None]
    new = slot - slots[:, :1]  # [B, S]: which new token sits in a slot; negative: the prefix
    among_new = mask.expand(B, T, T).gather(2, new.clamp(0, T - 1)[:, None].expand(B, T, end))
    return torch.where(((new >= 0) & (new < T))[:, None], among_new, (new < 0)[:, None])


class KVCache:
    """Keys and values of every layer for a batch of rows of different lengths."""

    def __init__(self, config, batch: int = 1, capacity: int | None = None, *, device="cpu", dtype=torch.float32):
        capacity = config.max_length if capacity is None else capacity
        if batch < 1 or capacity < 1:
            raise ValueError(f"batch={batch}, capacity={capacity}: a cache needs at least one row and one slot")
        shape = (config.num_layers, batch, config.num_kv_heads, capacity, config.head_dim)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)  # [L, B, Hkv, S, D]
        self.values = torch.zeros(shape, device=device, dtype=dtype)  # [L, B, Hkv, S, D]
        self.lengths = torch.zeros(batch, device=device, dtype=torch.long)  # [B]
        self.groups = config.num_heads // config.num_kv_heads
        # Fixed shapes: attend over every slot instead of the filled ones. A CUDA graph needs it.
        self.static = False

    @property
    def batch(self) -> int:
        return self.keys.shape[1]

    @property
    def capacity(self) -> int:
        return self.keys.shape[3]

    @property
    def bytes_per_token(self) -> int:
        """2 · layers · kv_heads · head_dim · bytes: what one more token costs one row."""
        layers, _, heads, _, dim = self.keys.shape
        return 2 * layers * heads * dim * self.keys.element_size()

    def begin(self, count: int, mask: Tensor | None = None) -> tuple[Tensor, Attend]:
        """A pass of `count` new tokens a row begins: their slots [B, T], and the attention of its layers.

        `mask` [T, T] or [B, T, T] says which new token sees which; None: each sees those before it.
        """
        slots, end = self.reserve(count)
        # One token after its own past sees everything there is; any other pass needs to be told.
        alone = self.batch == 1 and count == 1 and not self.static
        seen = None if alone else per_query_head(visible_slots(slots, end, mask), self.groups)
        return slots, partial(self._attend, slots, end, seen)

    def _attend(self, slots: Tensor, end: int, seen: Tensor | None, layer: int, q: Tensor, k: Tensor, v: Tensor):
        return attention(q, *self.extend(layer, slots, end, k, v), seen)

    def reserve(self, count: int) -> tuple[Tensor, int]:
        """Where the next `count` tokens of every row go, [B, T], and how many leading slots a pass then reads."""
        if self.static:  # no look at the lengths: on a GPU that would wait for the device
            end = self.capacity
        elif (end := int(self.lengths.max()) + count) > self.capacity:
            raise ValueError(
                f"the cache holds {self.capacity} tokens a row: {end - count} are there and {count} more do not fit; "
                "make it with a larger capacity"
            )
        return self.lengths[:, None] + torch.arange(count, device=self.lengths.device), end

    def extend(self, layer: int, slots: Tensor, end: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write one layer's fresh keys and values [B, Hkv, T, D] into `slots` [B, T]; return the first `end` slots."""
        if self.batch == 1 and not self.static:  # one row is one contiguous copy
            self.keys[layer, :, :, end - slots.shape[1] : end] = keys
            self.values[layer, :, :, end - slots.shape[1] : end] = values
        else:
            rows = torch.arange(self.batch, device=slots.device)[:, None]  # [B, 1]
            # Two index tensors around a slice come out in front, hence [B, T, Hkv, D].
            self.keys[layer][rows, :, slots] = keys.transpose(1, 2)
            self.values[layer][rows, :, slots] = values.transpose(1, 2)
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]

    def advance(self, counts: int | Tensor) -> None:
        """The pass is over: `counts` of its tokens (one number, or one per row) are kept."""
        self.lengths += counts

    def rewind(self, length: int | Tensor) -> None:
        """Forget everything after the first `length` tokens (one number for all rows, or [B])."""
        length = torch.as_tensor(length, device=self.lengths.device).expand_as(self.lengths)
        if bool((length < 0).any()) or bool((length > self.lengths).any()):
            raise ValueError(
                f"cannot rewind to length {length.tolist()}: the rows hold {self.lengths.tolist()} tokens; "
                "a rewind goes to a length between 0 and that"
            )
        self.lengths.copy_(length)

    def gather(self, path: Tensor, start: Tensor) -> None:
        """Move the slots `start + path` [B, n] to `start …` [B], in order: a tree's accepted path becomes a chain.

        The caller then rewinds to start + n. Paths ascend, so reading everything before writing is all it takes.
        """
        rows = torch.arange(self.batch, device=path.device)[:, None]
        source = start[:, None] + path  # [B, n]
        target = start[:, None] + torch.arange(path.shape[1], device=path.device)
        for memory in (self.keys, self.values):
            memory[:, rows, :, target] = memory[:, rows, :, source].clone()

    def rows(self, keep: Sequence[int], capacity: int | None = None) -> KVCache:
        """A cache of the chosen rows, in that order; −1 is a fresh, empty row. Rows join, leave and grow this way."""
        source = torch.as_tensor(keep, device=self.lengths.device)
        old = source >= 0
        chosen = object.__new__(KVCache)
        layers, _, heads, slots, dim = self.keys.shape
        shape = (layers, len(keep), heads, capacity or slots, dim)
        chosen.static, chosen.groups = self.static, self.groups
        chosen.lengths = torch.where(old, self.lengths[source], 0)
        end = min(slots, shape[3])
        if old.any() and int(chosen.lengths.max()) > end:
            raise ValueError(f"capacity={capacity}: the longest row holds {int(chosen.lengths.max())} tokens")
        chosen.keys, chosen.values = self.keys.new_zeros(shape), self.values.new_zeros(shape)
        chosen.keys[:, old, :, :end] = self.keys[:, source[old], :, :end]
        chosen.values[:, old, :, :end] = self.values[:, source[old], :, :end]
        return chosen
