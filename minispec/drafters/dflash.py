"""DFlash: a whole block of tokens in one forward pass, by filling in blanks.

The drafter processes [last token, MASK, …, MASK] and predicts a distribution for every MASK at once: B − 1 draft tokens
for one pass of a few layers, where a model that drafts token by token needs B − 1 passes. It cannot condition its third
token on its own second one, so the likeliest combinations are tried together, as a tree. To make up for that, it is
given much: residual streams from several depths of the target, at every position the target has processed, are keys and
values in each layer of the drafter.

    context          c_t = norm(fc [h_t from several depths])   for the positions t < n that the target has processed
    block            x_n, MASK, …, MASK                         at the positions n, n + 1, …, n + B − 1
    attention        each position of the block attends to the whole context and, in both directions, to the whole block
    distributions    q_j = softmax head(state at n + j)         j = 1 … B − 1

The target has not processed x_n yet, so the context ends one position before it. A context never changes, so its keys
and values are kept, and a cycle adds only the positions that were verified since the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..cache import KVCache
from ..kernels import linear
from ..load.handle import Model
from ..load.heads import fill, find_heads, heads_folder, is_public
from ..load.read_dflash import read_dflash
from .base import Context, Draft, Drafter
from .dflash_head import DFlashHead, keys_values
from .growth import Expand, grow_batch, likeliest_tokens, tree_size

__all__ = ["DFlash", "DFlashHead", "keys_values", "load_head"]


def load_head(target: Model, folder: str | Path | None = None) -> DFlashHead:
    """A stored drafter, on the target's device and in its precision: a folder or a hub id, of ours or published; None:
    the one that ships."""
    folder = heads_folder(folder)
    if is_public(folder):
        return read_dflash(target, folder)
    folder, settings = find_heads(target, "dflash", folder)
    config, blank = target.config, settings.get("mask_token_id")  # of a drafter in the published form
    config = replace(
        config,
        num_layers=settings["layers"],
        intermediate_size=settings["mlp"],
        qk_norm=config.qk_norm or blank is not None,
    )
    head_ids, shape = torch.zeros(settings["head_vocab"], dtype=torch.long), ("hidden_layers", "block", "own_head")
    head = DFlashHead(config, head_ids, *(settings[key] for key in shape), public=blank is not None)
    head = head.to(target.device, target.dtype)
    fill(head, folder)
    if blank is not None:
        head.blank_is(blank, target.transformer)
    return head


class DFlash(Drafter):
    """Draft a block at once. `heads` is a stored drafter's folder or hub id, a DFlashHead, or None: the one
    that ships.

    `block` may be shorter than the one it was trained for, for a cheaper pass. With `tree` (the default), the
    `nodes` likeliest prefixes of the block (None: what suits the device, growth.NODES) go to the target together,
    as a token tree. It costs the drafter nothing, since one pass has scored every blank; with more nodes slightly
    more tokens are accepted, and the target's pass is wider. Without, it drafts a chain: the likeliest token of
    each blank. Nothing is sampled, so q is one-hot even where the target samples.
    """

    def __init__(
        self,
        target: Model,
        heads: DFlashHead | str | Path | None = None,
        block: int | None = None,
        tree: bool = True,
        nodes: int | None = None,
    ):
        nodes = tree_size(nodes, target.device, 32)
        if not (isinstance(nodes, int) and nodes >= 1):
            raise ValueError(f"nodes={nodes!r}: give the size of the tree, a whole number ≥ 1")
        self.target, self.tree, self.nodes = target, tree, nodes
        self.heads = heads if isinstance(heads, DFlashHead) else load_head(target, heads)
        if max(self.heads.hidden_layers) > target.config.num_layers:
            raise ValueError(
                f"heads need layer {max(self.heads.hidden_layers)}, but the target has "
                f"{target.config.num_layers}: they were made for another one"
            )
        self.block = self.heads.block if block is None else block
        if not 2 <= self.block <= self.heads.block:
            raise ValueError(f"block={block}: the heads were trained for {self.heads.block}, so give 2 to that many")
        self.head_rows = self.heads.head_rows(target.transformer)
        self.hidden_layers = self.heads.hidden_layers
        self.vocab_size = target.config.vocab_size
        self.cache: KVCache | None = None
        self.order: list[int] = []  # the sequence in each row of the cache
        self.held: dict[int, range] = {}  # the positions of each living sequence that the cache holds

    def max_tree_nodes(self, k: int) -> int:
        """The most nodes of a draft of depth k."""
        return self.nodes if self.tree else min(k, self.block - 1)

    @property
    def extra_slots(self) -> int:
        return self.max_tree_nodes(1) - 1

    @torch.inference_mode()
    def propose(self, contexts: Sequence[Context], k: int) -> list[Draft]:
        if self.recorded:
            return self.recorded.propose(contexts, k)
        logits = self.score(contexts)[:, :k]  # [b, min(k, B − 1), v]
        budgets = [c.allowed_nodes(self.max_tree_nodes(k)) for c in contexts]
        if self.tree:
            return self._tree(logits, budgets)
        chains = self.heads.head_ids[logits.argmax(-1)].tolist()
        return [Draft(tokens[:n]) for tokens, n in zip(chains, budgets, strict=True)]

    def _tree(self, logits: Tensor, budgets: Sequence[int]) -> list[Draft]:
        """The likeliest prefixes of the block, each blank filled on its own: P(d₁ … d_j) = Π q_i(d_i).

        A path among the n likeliest has its parent among them and fewer than n rivals there, so n paths per depth and n
        candidates per blank leave none out.
        """
        grown = grow_batch(self.fillings(logits), logits.shape[1], self.nodes, budgets)
        return [Draft(tokens, None, parents) if tokens else Draft([]) for tokens, parents in grown]

    def fillings(self, logits: Tensor, likeliest_tokens=likeliest_tokens) -> Expand:
        """What may fill each blank, of logits [b, depths, v]: the same whatever was put into the blanks before it."""
        tokens, log_q = likeliest_tokens(logits, self.heads.head_ids, min(self.nodes, logits.shape[-1]))
        return lambda depth, *_: (tokens[:, depth, None], log_q[:, depth, None])  # [b, 1, m]

    @torch.inference_mode()
    def score(self, contexts: Sequence[Context]) -> Tensor:
        """Add what the target has processed since the last call, then process every block: logits [b, B − 1, v]."""
        head, device = self.heads, self.target.device
        nothing = self.head_rows[:0]  # [0, d]: of a prompt of one token, nothing has been processed
        fresh = [{n: c.hidden.get(n, nothing).to(head.dtype) for n in self.hidden_layers} for c in contexts]
        counts = [len(states[self.hidden_layers[0]]) for states in fresh]
        for c, count in zip(contexts, counts, strict=True):
            self._resume(c.row, len(c.tokens) - 1 - count)
        self._make_room([c.row for c in contexts], max(counts) + self.block)
        slot_of = {row: i for i, row in enumerate(self.order)}
        slot = torch.tensor([slot_of[c.row] for c in contexts], device=device)  # [b]

        # Sequences that are not asked about ride along: what lands after their length is never attended to.
        def everyone(values: Tensor) -> Tensor:
            return values.new_zeros(len(self.order), *values.shape[1:]).index_copy_(0, slot, values)

        first = torch.tensor([self.held[row].start for row in self.order], device=device)[:, None]  # [B, 1]
        padded = {n: pad_sequence([states[n] for states in fresh], batch_first=True) for n in head.hidden_layers}
        hidden = {n: everyone(states) for n, states in padded.items()}  # [B, T, d] each
        slots, end = self.cache.reserve(max(counts))
        for layer, (keys, values) in enumerate(head.context(hidden, first + slots)):
            self.cache.extend(layer, slots, end, keys, values)
        self.cache.advance(everyone(torch.tensor(counts, device=device)))
        for c in contexts:
            self.held[c.row] = range(self.held[c.row].start, len(c.tokens) - 1)

        whole_block = torch.ones(self.block, self.block, dtype=torch.bool, device=device)
        slots, attend = self.cache.begin(self.block, whole_block)
        last = self.target.transformer.embed_tokens(torch.tensor([c.tokens[-1] for c in contexts], device=device))
        states = head(everyone(last)[:, None], first + slots, attend)[slot, 0, 1:]  # [b, B − 1, d]
        return linear(states, self.head_rows)

    def record(self) -> None:
        if not self.held:  # sequences that are under way stay where they are
            super().record()

    def forget(self, row: int) -> None:
        if self.recorded:
            self.recorded.forget(row)
        self.held.pop(row, None)
        if not self.held:
            self.cache, self.order = None, []

    def _resume(self, row: int, start: int) -> None:
        """The next states are those of position `start`: keep what is held before it, if that reaches so far."""
        held = self.held.get(row, range(start, start))
        # With a gap between (states that were not handed over), the context begins anew after it.
        self.held[row] = range(held.start, start) if held.start <= start <= held.stop else range(start, start)

    def _make_room(self, rows: Sequence[int], width: int) -> None:
        """A cache row for every living sequence, with `width` slots after what it holds."""
        old = {row: i for i, row in enumerate(self.order)}
        order = [row for row in self.order if row in self.held] + [row for row in rows if row not in old]
        longest = max(map(len, self.held.values())) + width
        if self.cache is None:
            self.cache = KVCache(
                self.heads.config, len(order), 2 * longest, device=self.target.device, dtype=self.heads.dtype
            )
        elif order != self.order or longest > self.cache.capacity:
            capacity = self.cache.capacity if longest <= self.cache.capacity else 2 * longest
            self.cache = self.cache.rows([old.get(row, -1) for row in order], capacity)
        self.order = order
        self.cache.lengths = torch.tensor([len(self.held[row]) for row in order], device=self.target.device)
