"""Medusa, EAGLE and DFlash without a host sync: their drafts as a part of a captured cycle.

The weights and the arithmetic are those of the drafters. What differs is memory of a fixed size, over which attention
has a mask, and that what was verified is handed on inside the device (`DeviceDrafter.settle`).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..cache import KVCache
from ..drafters.base import Drafter, in_place_of
from ..drafters.dflash import DFlash
from ..drafters.dflash2 import DFlash2, PairHead
from ..drafters.dspark import DSpark
from ..drafters.eagle import Eagle, EagleHead
from ..drafters.growth import Expand, grow_tensors, numbers
from ..drafters.medusa import Medusa
from ..drafters.mtp import MTP, MTPHead
from ..model import Config
from . import trees
from .gemm import BY_KERNEL, BY_TORCH, HalfNormed, divided, fits, half_norm, skinny, wide
from .trees import Growing, at_places, likeliest_tokens
from .weights import (
    FastTransformer,
    Weights,
    best_attention,
    has_kernels,
    layer,
    rope_for,
    rope_table,
    weights,
    weights_of,
)


class DeviceDrafter:
    """The protocol. `ON_DEVICE` says which of them drafts in which drafter's place."""

    nodes: int  # of every draft
    budgets: Tensor | None = None  # [B], how many nodes of each draft count: tokens −1 follow (None: all of them)
    depths: Tensor | None = None  # [B], how deep each draft may be (None: k)
    pick: Callable | None = None  # (i, logits [B, v]) → the i-th token [B] of sampled chains (None: the best)
    with_noise: Callable | None = None  # to be added to logits: RowSamplings.with_noise (None: there is no noise)

    def __init__(self, drafter: Drafter, target: FastTransformer, k: int):
        self.hidden_layers: Sequence[int] = drafter.hidden_layers
        self.kernels = trees if has_kernels(target.device, target.dtype) else None

    @classmethod
    def takes(cls, drafter: Drafter) -> bool:
        """Whether it drafts what this drafter would, to be judged without loss."""
        return drafter.lossless

    @classmethod
    def samples(cls, drafter: Drafter) -> bool:
        """Whether drafts are sampled where requests sample. They are chains then."""
        return False

    def state(self) -> list[Tensor]:
        """What a cycle changes, apart from memory past the lengths."""
        raise NotImplementedError

    def start(self, tokens: Tensor, hidden: dict[int, Tensor], counts: Tensor) -> None:
        """The prompt is processed: hidden states [B, T, d] of the first `counts` [B] tokens, all but its last; `tokens`
        [B, T] are those that came after each."""
        raise NotImplementedError

    def propose(self, text: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens and parents [B, n] to follow the `count` [B] tokens of text [B, S]."""
        raise NotImplementedError

    def settle(self, hidden: dict[int, Tensor], verified: Tensor, run: Tensor, kept: Tensor) -> None:
        """The cycle is over: the first `kept` [B] of the places `verified` [B, k + 1] of the pass count, with hidden
        states [B, n + 1, d]; `run` [B, k + 1] are the tokens after each."""
        raise NotImplementedError


def cache_of(head: nn.Module, target: FastTransformer, more: int) -> KVCache:
    """Memory for a head's layers: the target's rows, of so many slots more."""
    capacity = -(-(target.capacity + more) // 64) * 64  # kernels like round numbers
    return KVCache(head.config, target.batch, capacity, device=target.device, dtype=head.dtype)


class LeanLayers:
    """Decoder layers of a drafter, by the products of a lean pass, over a cache of fixed size with one row for each
    sequence. `gains` are the norms after each layer."""

    def __init__(self, weights: Sequence[Weights], gains, cache: KVCache, config: Config, target: FastTransformer):
        self.weights, self.gains, self.cache, self.config = weights, gains, cache, config
        self.attend = best_attention(target.device, gains[0].dtype)
        self.between = BY_KERNEL if has_kernels(target.device, gains[0].dtype) else BY_TORCH
        self.places = torch.arange(cache.capacity, device=target.device)
        self.rows = torch.arange(cache.batch, device=target.device)[:, None]
        self.cos, self.sin = rope_table(config, self.places, gains[0].dtype)

    def product(self, x: Tensor | HalfNormed, weight: Tensor, bias: Tensor | None = None, **options):
        few = fits(x.x if isinstance(x, HalfNormed) else x, weight)
        way = skinny if few else partial(wide, between=self.between)
        return way(x, weight, bias, eps=self.config.norm_eps, **options)

    def __call__(self, half: Tensor | HalfNormed, x, positions, slots, start, mask=None) -> tuple[Tensor, HalfNormed]:
        """T new tokens of every row, in slots [B, T]. With a mask [B, T, E] they are the newest of E entries after
        `start` [B], and attend to those that it allows; without, to all up to themselves."""
        cache = self.cache
        look = self.attend(start, slots if mask is None else start[:, None], cache.capacity, cache.groups, mask)
        kernel = self.weights[0].q_norm is None and has_kernels(x.device, x.dtype)
        rope = rope_for(self.rows, slots, positions, self.cos, self.sin, self.config, kernel)
        for w, gain, keys, values in zip(self.weights, self.gains, cache.keys, cache.values, strict=True):
            rope_here, see = partial(rope, w=w, keys=keys, values=values), partial(look, k=keys, v=values)
            x, half = layer(self.product, w, half, x, rope_here, see, gain)
        return x, half


class MedusaOnDevice(DeviceDrafter):
    """The static tree or chain of the heads' best tokens, after the newest hidden state."""

    def __init__(self, drafter: Medusa, target: FastTransformer, k: int, cache: KVCache | None = None):
        super().__init__(drafter, target, k)
        (self.layer,) = self.hidden_layers
        self.table, self.nodes, k = drafter.table, drafter.max_tree_nodes(k), min(k, drafter.heads.count)
        # The tree of each depth and number of nodes: places in the table of candidates, whose every row is a head's m
        # (−1: no node), and parents.
        trees = [drafter.tree_of(depth, n) for depth in range(k + 1) for n in range(self.nodes + 1)]
        padded = [[[*row, *[-1] * (self.nodes - len(row))] for row in tree] for tree in trees]
        self.shapes = torch.tensor(padded, device=target.device).view(k + 1, self.nodes + 1, 2, self.nodes)
        self.candidates = len(drafter.heads.accuracy[0])  # m
        self.budgets = torch.full((target.batch,), self.nodes, device=target.device)
        self.depths = torch.full((target.batch,), k, device=target.device)
        self.newest = torch.zeros(target.batch, target.config.hidden_size, dtype=target.dtype, device=target.device)
        self.cache = self.new_cache(drafter, target, k) if cache is None else cache

    @staticmethod
    def new_cache(drafter: Medusa, target: FastTransformer, k: int) -> KVCache:
        """Of no layer: it keeps nothing."""
        return KVCache(replace(target.config, num_layers=0, delta=None), target.batch, 1, device=target.device)

    def state(self) -> list[Tensor]:
        return [self.newest]

    def start(self, tokens: Tensor, hidden: dict[int, Tensor], counts: Tensor) -> None:
        states = F.pad(hidden[self.layer], (0, 0, 1, 0))  # zeros before a prompt of one token: any draft will do
        self.newest.copy_(at_places(states, counts[:, None])[:, 0])

    def propose(self, text: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        deepest, most = len(self.shapes) - 1, self.shapes.shape[1] - 1
        # All trees are taken as deep as the deepest, and then each is cut to its own depth, as by tree.cut.
        depths = self.depths.amax().clamp(max=deepest).expand_as(self.budgets)
        shape = self.shapes[depths, self.budgets.clamp(0, most)]  # [B, 2, nodes]
        places, parents = shape[:, :, : self.nodes].unbind(1)
        none = (places < 0) | (places >= self.candidates * self.depths[:, None])
        tokens = self.table(self.newest, self.with_noise).gather(1, places.clamp(min=0))
        return tokens.masked_fill(none, -1), parents

    def settle(self, hidden: dict[int, Tensor], verified: Tensor, run: Tensor, kept: Tensor) -> None:
        last = verified.gather(1, kept[:, None].clamp(min=1) - 1)
        self.newest.copy_(at_places(hidden[self.layer], last)[:, 0])


class EagleOnDevice(DeviceDrafter):
    """EAGLE's dynamic tree, or its chain. Entry t of the cache belongs to (g_t, x_{t+1}); those that were verified
    since the last draft wait in `unread`."""

    def __init__(self, drafter: Eagle, target: FastTransformer, k: int, cache: KVCache | None = None):
        super().__init__(drafter, target, k)
        self.head, self.k, self.nodes = drafter.head, k, drafter.max_tree_nodes(k)
        self.width = drafter.width if drafter.tree else 1
        head, B, d = self.head, target.batch, target.config.hidden_size
        new = dict(dtype=head.dtype, device=target.device)
        self.cache = self.new_cache(drafter, target, k) if cache is None else cache
        self.layers = LeanLayers(*self.parts(head), self.cache, head.config, target)
        self.embedding = head.embed.keywords["weight"]  # the target's, or a published head's own
        self.enter = trees.enter if self.kernels else trees.enter_torch
        self.stream = trees.stream if self.kernels else trees.stream_torch
        self.unread = torch.zeros(B, k + 1, dtype=torch.long, device=target.device)  # tokens, and what the target made
        self.streams = torch.zeros(B, k + 1, len(self.hidden_layers) * d, **new)  # of those before them, normed
        self.fresh = torch.zeros(B, dtype=torch.long, device=target.device)  # how many of them count

    @staticmethod
    def new_cache(drafter: Eagle, target: FastTransformer, k: int) -> KVCache:
        return cache_of(drafter.head, target, k * drafter.width)

    @classmethod
    def samples(cls, drafter: Eagle) -> bool:
        return not drafter.tree

    def parts(self, head: EagleHead) -> tuple[list[Weights], list[Tensor]]:
        """The weights of the layers, and the gains of the norms after them."""
        self.gains = head.embed_norm.weight, head.feature_norm.weight  # of the norms of token and feature
        first, more = weights(None, head.self_attn, head.mlp_norm, head.mlp), list(head.more)
        gains = [*(each.input_layernorm.weight for each in more), head.norm.weight]
        return [first, *map(weights_of, more)], gains

    def state(self) -> list[Tensor]:
        return [self.unread, self.streams, self.fresh, self.cache.lengths]

    def start(self, tokens: Tensor, hidden: dict[int, Tensor], counts: Tensor) -> None:
        self.cache.lengths.zero_()
        if tokens.shape[1] > 1:
            g = self.head.fuse([hidden[n] for n in self.hidden_layers])  # [B, T, d]
            slots, attend = self.cache.begin(tokens.shape[1])
            self.head(tokens, g, self.head.rope(slots), attend)
        # The newest entry is read again with the draft, which needs its feature. A prompt of one token has none yet:
        # any draft will do, but it should depend on nothing that was there before.
        newest = (counts - 1).clamp(min=0)[:, None]
        self.cache.lengths.copy_(newest[:, 0])
        self.fresh.copy_(counts.clamp(max=1))
        self.unread.zero_()
        self.streams.zero_()
        if tokens.shape[1]:
            self.unread[:, :1] = tokens.gather(1, newest)
            self.keep(hidden, newest)

    def keep(self, hidden: dict[int, Tensor], places: Tensor) -> None:
        """Hidden states at places [B, m] of a pass become the first m of `streams`."""
        if self.head.form.stream_norm != "plain":  # the kernel norms without a gain: other forms by torch
            states = [at_places(hidden[n], places) for n in self.hidden_layers]
            self.streams[:, : places.shape[1]] = self.head.side_by_side(states)
            return
        for n, part in zip(self.hidden_layers, self.streams.chunk(len(self.hidden_layers), -1), strict=True):
            self.stream(hidden[n], places, part[:, : places.shape[1]], self.head.config.norm_eps)

    def read(self, tokens, features, parents, positions, slots, sees=None) -> tuple[Tensor, HalfNormed]:
        """Process entries: tokens [B, T] after these of the features → theirs [B, T, d], and these half-normed."""
        head, product = self.head, self.layers.product
        both, g = self.enter(tokens, self.embedding, features, parents, self.gains, head.config.norm_eps)
        e, normed = both.chunk(2, -1)
        x = normed if head.form.norm_before_residual else g
        if head.embed_proj is not None:
            x = product(e, head.embed_proj.weight, residual=x)
        f, half = self.layers(both, x, positions, slots, self.cache.lengths, sees)
        return head.norm(f) if head.form.norm_output else f, half

    def features(self) -> Tensor:
        """Of what is unread [B, k + 1, d]."""
        return self.layers.product(self.streams, self.head.fc.weight)

    def propose(self, text: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        lengths, places = self.cache.lengths, self.layers.places
        verified = lengths[:, None] + places[: self.k + 1]
        f, half = self.read(self.unread, self.features(), None, verified, verified)
        self.cache.advance(self.fresh)
        if self.pick is not None:
            return self.chain(f, half)
        width = min(self.width, self.nodes)  # no more children of one node can be kept
        trees = Growing(self.head.head_ids, width, self.nodes, self.kernels is not None)
        tokens, parents, sees = trees.add(self.logits(half, 0), self.fresh)
        # Draft entries come after what is verified. Nobody counts them, so the next cycle overwrites them.
        entries = range((min(self.k, self.nodes) - 1) * width)
        after = numbers((*entries, *(n // width for n in entries)), lengths.device).view(2, 1, len(entries))
        slots, positions = lengths[:, None] + after  # [B, E] each
        for first in range(0, len(entries), width):
            new = slice(first, first + width)
            f, half = self.read(tokens, f, parents, positions[:, new], slots[:, new], sees)
            tokens, parents, sees = trees.add(self.logits(half, 1 + first // width))
        return trees.prune(self.budgets, self.depths)

    def logits(self, half: Tensor | HalfNormed, depth: int) -> Tensor:
        """Of the nodes that were read last [B, w, v], whose children are at this depth."""
        logits, ids = self.layers.product(half, self.head.head), self.head.head_ids
        return logits if self.with_noise is None else self.with_noise(logits, ids, numbers((depth,), ids.device))

    def chain(self, f: Tensor, half: Tensor | HalfNormed) -> tuple[Tensor, Tensor]:
        """Sampled tokens, one after the other; f [B, k + 1, d] are the features of what was verified."""
        row = (self.fresh - 1).clamp(min=0)[:, None]  # [B, 1]: what is drafted after
        logits, tokens = at_places(self.layers.product(half, self.head.head), row), []
        for i in range(self.nodes):
            tokens.append(self.pick(i, logits[:, 0]))
            if i + 1 < self.nodes:
                slots = self.cache.lengths[:, None] + i
                f, half = self.read(tokens[i][:, None], f, None if i else row, slots, slots)
                logits = self.layers.product(half, self.head.head)
        return chain_of(torch.stack(tokens, 1), torch.minimum(self.budgets, self.depths))

    def settle(self, hidden: dict[int, Tensor], verified: Tensor, run: Tensor, kept: Tensor) -> None:
        self.keep(hidden, verified)
        self.unread.copy_(run)
        self.fresh.copy_(kept)


class MTPOnDevice(EagleOnDevice):
    """EAGLE's bookkeeping over a module that is one ordinary layer."""

    def parts(self, head: MTPHead) -> tuple[list[Weights], list[Tensor]]:
        self.gains = head.enorm.weight, head.hnorm.weight
        return [weights_of(head.layer)], [head.norm.weight]

    def keep(self, hidden: dict[int, Tensor], places: Tensor) -> None:
        states = [at_places(hidden[n], places) for n in self.hidden_layers]
        self.streams[:, : places.shape[1]] = self.head.fuse(states)

    def features(self) -> Tensor:
        return self.streams

    def read(self, tokens, features, parents, positions, slots, sees=None) -> tuple[Tensor, HalfNormed]:
        both, _ = self.enter(tokens, self.embedding, features, parents, self.gains, self.head.config.norm_eps)
        x = self.layers.product(both, self.head.eh_proj.weight)
        half = half_norm(x, self.layers.weights[0].attention_norm)
        return self.layers(half, x, positions, slots, self.cache.lengths, sees)


def chain_of(tokens: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """The first counts [B] of tokens [B, n], then −1; and their parents."""
    node = torch.arange(tokens.shape[1], device=tokens.device)
    return tokens.masked_fill(node >= counts[:, None], -1), (node - 1).expand_as(tokens)


class DFlashOnDevice(DeviceDrafter):
    """DFlash's block, and the likeliest prefixes of it, or one chain. The context of what was verified is added at
    once."""

    @classmethod
    def takes(cls, drafter: DFlash) -> bool:
        """Layers that convolve draft without a capture."""
        return super().takes(drafter) and not getattr(drafter.heads, "taps", 0)

    def __init__(self, drafter: DFlash, target: FastTransformer, k: int, cache: KVCache | None = None):
        super().__init__(drafter, target, k)
        self.drafter, self.head, self.depth = drafter, drafter.heads, min(k, drafter.block - drafter.heads.first)
        self.embedding, self.block = target.embedding, drafter.block
        self.most, grown, level = drafter.max_tree_nodes(k), 0, 1  # nodes
        for _ in range(self.depth):
            level = min(self.most, level * drafter.candidates)
            grown += level
        self.nodes = min(self.most, grown)
        self.cache = self.new_cache(drafter, target, k) if cache is None else cache
        layers = list(self.head.layers)
        gains = [*(each.input_layernorm.weight for each in layers[1:]), self.head.norm.weight]
        self.layers = LeanLayers([*map(weights_of, layers)], gains, self.cache, self.head.config, target)
        self.places, self.rows = self.layers.places, self.layers.rows
        shape = target.batch, drafter.block, drafter.block
        self.whole = torch.ones(shape, dtype=torch.bool, device=target.device)

    @staticmethod
    def new_cache(drafter: DFlash, target: FastTransformer, k: int) -> KVCache:
        return cache_of(drafter.heads, target, k + 1 + drafter.block)

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
        for n, (keys, values) in enumerate(self.head.context(hidden, slots)):
            self.cache.keys[n][self.rows, :, slots] = keys.transpose(1, 2)
            self.cache.values[n][self.rows, :, slots] = values.transpose(1, 2)
        self.cache.advance(counts)

    def enter(self, last: Tensor) -> tuple[Tensor, HalfNormed]:
        """The last tokens [B, 1] and the blanks after them, [B, block, d], and the same half-normed."""
        blanks = self.head.mask.expand(len(last), self.block - 1, -1)
        x = torch.cat([F.embedding(last, self.embedding).to(self.head.dtype), blanks], 1)
        return x, half_norm(x, self.layers.weights[0].attention_norm)

    def propose(self, text: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        lengths = self.cache.lengths
        last = text.gather(1, count[:, None] - 1)
        x, half = self.enter(last)
        slots = lengths[:, None] + self.places[: self.block]
        _, half = self.layers(half, x, slots, slots, lengths, self.whole)
        blanks = slice(self.head.first, self.head.first + self.depth)
        logits = self.layers.product(half, self.drafter.head_rows)[:, blanks]  # [B, depths, v]
        states = None
        if isinstance(self.head, PairHead):  # whose candidates depend on the state and the token before
            normed = divided(half, self.head.config.norm_eps, self.head.dtype) if isinstance(half, HalfNormed) else half
            states = normed[:, blanks]
        return self.filled(logits, states, last[:, 0])

    def filled(self, logits: Tensor, states: Tensor | None, last: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens and parents [B, n], of logits [B, depths, v] and states [B, depths, d], and the tokens [B] before."""
        if self.with_noise is not None:
            logits = self.with_noise(logits, self.head.head_ids, self.places[: self.depth])
        fillings = self.drafter.fillings(logits, states, last, likeliest_tokens)
        steps = dict(grow_level=self.kernels.level, prune=self.kernels.pruned) if self.kernels else {}
        sizes = (self.depth, self.most, self.nodes) if self.drafter.tree else (self.depth, 1, self.nodes)
        expand = fillings if self.drafter.tree else best_of_each(fillings)
        return grow_tensors(expand, *sizes, self.budgets, self.depths, **steps)

    def settle(self, hidden: dict[int, Tensor], verified: Tensor, run: Tensor, kept: Tensor) -> None:
        self.add({n: at_places(hidden[n], verified) for n in self.hidden_layers}, kept)


def best_of_each(expand: Expand) -> Expand:
    """Of each node's children the likeliest alone: a chain."""

    def best(depth: int, tokens: Tensor | None, parents: Tensor | None) -> tuple[Tensor, Tensor]:
        below, log_q = expand(depth, tokens, parents)  # [B, 1, m] each
        place = log_q.argmax(-1, keepdim=True)
        return below.gather(-1, place), log_q.gather(-1, place)

    return best


class DSparkOnDevice(DFlashOnDevice):
    """DSpark's chain: the likeliest token of each blank after the one before it, or a sampled one."""

    @classmethod
    def samples(cls, drafter: DSpark) -> bool:
        return True

    def filled(self, logits: Tensor, states: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        token, sure, tokens = last, 1.0, []
        for j in range(self.nodes):
            biased, c = self.drafter.step(logits[:, j], states[:, j], token)
            if self.with_noise is not None:
                biased = self.with_noise(biased[:, None], self.head.head_ids, self.places[j : j + 1])[:, 0]
            token = self.pick(j, biased) if self.pick else self.head.head_ids[biased.argmax(-1)]  # [B]
            sure = sure * c  # known before the token is: a draft that ends here is no less likely for it
            tokens.append(token)
            if self.budgets is not None:
                ends = (sure < self.drafter.confidence) | (torch.minimum(self.budgets, self.depths) <= j)
                tokens[j] = token.masked_fill(ends, -1)
        return torch.stack(tokens, 1), (self.places[: self.nodes] - 1).repeat(len(last), 1)


ON_DEVICE = {Medusa: MedusaOnDevice, Eagle: EagleOnDevice, MTP: MTPOnDevice}
ON_DEVICE |= {DFlash: DFlashOnDevice, DFlash2: DFlashOnDevice, DSpark: DSparkOnDevice}


def on_device(drafter: Drafter) -> type[DeviceDrafter] | None:
    """What drafts in this drafter's place inside a captured cycle; None: nothing does."""
    made = in_place_of(drafter, ON_DEVICE)
    return made if made is not None and made.takes(drafter) else None
