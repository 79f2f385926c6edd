"""Medusa, EAGLE and DFlash where nobody looks at a number: their drafts as a part of a recorded cycle.

The weights and the arithmetic are those of the drafters. What differs is memory of a fixed size, over which attention
looks under a mask, and that what was verified is handed on inside the device:

    start      the prompt is processed: these are the target's hidden states
    propose    n tokens and their parents, [B, n] each
    settle     the cycle is over: hidden states of the whole verify pass, and which places of it count
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cache import KVCache
from ..drafters.base import Drafter
from ..drafters.dflash import DFlash
from ..drafters.eagle import Eagle
from ..drafters.growth import grow_tensors
from ..drafters.medusa import Medusa
from .fused import FastTransformer, best_attention


class DeviceDrafter:
    """The protocol. A drafter says by its `on_device` which class drafts in its place."""

    nodes: int  # of every draft

    def __init__(self, drafter: Drafter, target: FastTransformer, k: int):
        self.hidden_layers: Sequence[int] = drafter.hidden_layers

    @classmethod
    def takes(cls, drafter: Drafter) -> bool:
        """Whether it drafts what this drafter would: a tree of likeliest tokens, judged without loss."""
        return bool(drafter.lossless and drafter.tree)

    def state(self) -> list[Tensor]:
        """What a cycle changes, apart from memory past the lengths."""
        raise NotImplementedError

    def start(self, tokens: Tensor, hidden: dict[int, Tensor], counts: Tensor) -> None:
        """Hidden states [B, T, d] of the first `counts` [B] tokens, all but a prompt's last; `tokens` [B, T] are those
        that came after each."""
        raise NotImplementedError

    def propose(self, text: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens and parents [B, n] to follow the `count` [B] tokens of text [B, S]."""
        raise NotImplementedError

    def settle(self, hidden: dict[int, Tensor], verified: Tensor, run: Tensor, kept: Tensor) -> None:
        """The first `kept` [B] of the places `verified` [B, k + 1] of the pass count, with hidden states [B, n + 1, d];
        `run` [B, k + 1] are the tokens after each."""
        raise NotImplementedError


def at_places(states: Tensor, places: Tensor) -> Tensor:
    """states [B, T, d] at places [B, m]: [B, m, d]."""
    return states.take_along_dim(places[..., None], 1)


class MedusaOnDevice(DeviceDrafter):
    """The static tree of the heads' best tokens, after the newest hidden state."""

    def __init__(self, drafter: Medusa, target: FastTransformer, k: int):
        super().__init__(drafter, target, k)
        (self.layer,) = self.hidden_layers
        shape = drafter.shapes[min(k, drafter.heads.count)]
        self.heads, self.norm, self.nodes = drafter.heads, drafter.target.transformer.norm, len(shape.tokens)
        self.places = torch.tensor(shape.tokens, device=target.device)  # [n], in the table of candidates
        self.parents = torch.tensor(shape.parents, device=target.device).repeat(target.batch, 1)
        self.newest = torch.zeros(target.batch, target.config.hidden_size, dtype=target.dtype, device=target.device)

    def state(self) -> list[Tensor]:
        return [self.newest]

    def start(self, tokens: Tensor, hidden: dict[int, Tensor], counts: Tensor) -> None:
        states = F.pad(hidden[self.layer], (0, 0, 1, 0))  # zeros before a prompt of one token: any draft will do
        self.newest.copy_(at_places(states, counts[:, None])[:, 0])

    def propose(self, text: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        table = self.heads.candidates(self.norm(self.newest).to(self.heads.weight.dtype))  # [B, K, m]
        return table.flatten(1)[:, self.places], self.parents

    def settle(self, hidden: dict[int, Tensor], verified: Tensor, run: Tensor, kept: Tensor) -> None:
        last = verified.gather(1, kept[:, None] - 1)
        self.newest.copy_(at_places(hidden[self.layer], last)[:, 0])


class EagleOnDevice(DeviceDrafter):
    """EAGLE's dynamic tree. Entry t of the cache belongs to (g_t, x_{t+1}); those that were verified since the last
    draft wait in `unread`."""

    def __init__(self, drafter: Eagle, target: FastTransformer, k: int):
        super().__init__(drafter, target, k)
        self.drafter, self.head, self.k = drafter, drafter.head, k
        self.nodes = drafter.max_tree_nodes(k)
        B, d, new = target.batch, target.config.hidden_size, dict(dtype=self.head.dtype, device=target.device)
        capacity = target.capacity + k * drafter.width
        self.cache = KVCache(self.head.config, B, -(-capacity // 64) * 64, **new)
        self.places = torch.arange(self.cache.capacity, device=target.device)
        self.rows = torch.arange(B, device=target.device)[:, None]
        self.attend = best_attention(target.device, self.head.dtype)
        self.unread = torch.zeros(B, k + 1, dtype=torch.long, device=target.device)  # tokens, and
        self.features = torch.zeros(B, k + 1, d, **new)  # the features before them
        self.fresh = torch.zeros(B, dtype=torch.long, device=target.device)  # how many of them count

    def state(self) -> list[Tensor]:
        return [self.unread, self.features, self.fresh, self.cache.lengths]

    def start(self, tokens: Tensor, hidden: dict[int, Tensor], counts: Tensor) -> None:
        g = self.head.fuse([hidden[n] for n in self.hidden_layers])  # [B, T, d]
        self.cache.lengths.zero_()
        if tokens.shape[1] > 1:
            self.read(tokens, g)
        # The newest entry is read again with the draft, which needs its feature.
        newest = (counts - 1).clamp(min=0)[:, None]
        self.cache.lengths.copy_(newest[:, 0])
        self.fresh.copy_(counts.clamp(max=1))
        if tokens.shape[1]:
            self.unread[:, :1] = tokens.gather(1, newest)
            self.features[:, :1] = at_places(g, newest)

    def read(self, tokens: Tensor, g: Tensor, sees: Tensor | None = None, start: Tensor | None = None,
             depth: Tensor | None = None) -> Tensor:  # fmt: skip
        """Process entries: tokens [B, T] and the features before them → theirs, [B, T, d]. Draft entries come after
        `start`, and the newest T of E attend to those that they see [B, E, E]."""
        T, cache = tokens.shape[1], self.cache
        slots = cache.lengths[:, None] + self.places[:T]  # [B, T]
        first = cache.lengths if sees is None else start
        E = T if sees is None else sees.shape[1]
        look = self.attend(first, first[:, None] + self.places[:E], cache.capacity, cache.groups, sees)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            cache.keys[layer][self.rows, :, slots] = k.transpose(1, 2)
            cache.values[layer][self.rows, :, slots] = v.transpose(1, 2)
            # The mask is square, so the older draft entries have a row, too: nobody asks what they attend to.
            return look(F.pad(q, (0, 0, E - T, 0)), cache.keys[layer], cache.values[layer])[:, :, E - T :]

        positions = slots if depth is None else depth
        return self.head(tokens, g, self.head.rope(positions), attend)

    def propose(self, text: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        f = self.read(self.unread, self.features)  # [B, k + 1, d]
        self.cache.advance(self.fresh)
        start, B = self.cache.lengths.clone(), len(f)
        f = at_places(f, (self.fresh - 1).clamp(min=0)[:, None])  # [B, 1, d]
        f = torch.where(self.fresh[:, None, None] > 0, f, 0)  # a prompt of one token has no feature yet
        sees = torch.zeros(B, 0, 0, dtype=torch.bool, device=f.device)  # [B, E, E], all draft entries so far

        def expand(depth: int, tokens: Tensor | None, parents: Tensor | None) -> tuple[Tensor, Tensor]:
            nonlocal f, sees
            if depth > 0:
                w, E = parents.shape[1], sees.shape[1]
                before = sees[:, -self.last :] if E else sees.new_zeros(B, 1, 0)  # of the nodes expanded before
                itself = torch.eye(w, dtype=torch.bool, device=f.device).expand(B, w, w)
                new = torch.cat([before.take_along_dim(parents[..., None], 1), itself], 2)  # [B, w, E + w]
                sees = torch.cat([F.pad(sees, (0, w)), new], 1)
                f = self.read(tokens, at_places(f, parents), sees, start, (start[:, None] + depth - 1).expand(B, w))
                self.cache.advance(w)
                self.last = w
            return self.drafter.best_tokens(f)

        tokens, parents = grow_tensors(expand, self.k, self.drafter.width, self.nodes)
        self.cache.lengths.copy_(start)
        return tokens, parents

    def settle(self, hidden: dict[int, Tensor], verified: Tensor, run: Tensor, kept: Tensor) -> None:
        self.features.copy_(self.head.fuse([at_places(hidden[n], verified) for n in self.hidden_layers]))
        self.unread.copy_(run)
        self.fresh.copy_(kept)


class DFlashOnDevice(DeviceDrafter):
    """DFlash's block, and the likeliest prefixes of it. The context of what was verified is added at once."""

    def __init__(self, drafter: DFlash, target: FastTransformer, k: int):
        super().__init__(drafter, target, k)
        self.drafter, self.head, self.depth = drafter, drafter.heads, min(k, drafter.block - 1)
        self.embedding, self.block = target.embedding, drafter.block
        B, new = target.batch, dict(dtype=self.head.dtype, device=target.device)
        grown, level = 0, 1
        for _ in range(self.depth):
            level = min(drafter.nodes, level * min(drafter.nodes, len(self.head.head_ids)))
            grown += level
        self.nodes = min(drafter.nodes, grown)
        capacity = target.capacity + k + 1 + drafter.block
        self.cache = KVCache(self.head.config, B, -(-capacity // 64) * 64, **new)
        self.places = torch.arange(self.cache.capacity, device=target.device)
        self.rows = torch.arange(B, device=target.device)[:, None]
        self.attend = best_attention(target.device, self.head.dtype)
        self.whole = torch.ones(B, drafter.block, drafter.block, dtype=torch.bool, device=target.device)

    def state(self) -> list[Tensor]:
        return [self.cache.lengths]

    def start(self, tokens: Tensor, hidden: dict[int, Tensor], counts: Tensor) -> None:
        self.cache.lengths.zero_()
        if tokens.shape[1]:
            self.add(hidden, counts)

    def add(self, hidden: dict[int, Tensor], counts: Tensor) -> None:
        """The context of positions with these hidden states [B, T, d], of which the first `counts` [B] count."""
        T = next(iter(hidden.values())).shape[1]
        slots = self.cache.lengths[:, None] + self.places[:T]
        for layer, (keys, values) in enumerate(self.head.context(hidden, slots)):
            self._store(layer, slots, keys, values)
        self.cache.advance(counts)

    def propose(self, text: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        slots = self.cache.lengths[:, None] + self.places[: self.block]  # [B, block]
        look = self.attend(self.cache.lengths, slots, self.cache.capacity, self.cache.groups, self.whole)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self._store(layer, slots, k, v)
            return look(q, self.cache.keys[layer], self.cache.values[layer])

        last = F.embedding(text.gather(1, count[:, None] - 1), self.embedding)  # [B, 1, d]
        states = self.head(last, slots, attend)[:, 0, 1 : self.depth + 1]  # [B, depths, d]
        logits = states @ self.drafter.head_rows.T
        return grow_tensors(self.drafter.fillings(logits), self.depth, self.drafter.nodes, self.nodes)

    def settle(self, hidden: dict[int, Tensor], verified: Tensor, run: Tensor, kept: Tensor) -> None:
        self.add({n: at_places(hidden[n], verified) for n in self.hidden_layers}, kept)

    def _store(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        self.cache.keys[layer][self.rows, :, slots] = k.transpose(1, 2)
        self.cache.values[layer][self.rows, :, slots] = v.transpose(1, 2)


# Handed in here: a drafter knows of no device.
Medusa.on_device, Eagle.on_device, DFlash.on_device = MedusaOnDevice, EagleOnDevice, DFlashOnDevice
