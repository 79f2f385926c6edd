"""EAGLE-3: one decoder layer drafts on the target's own features, token by token, as a tree.

A draft model has to understand the sequence from scratch. EAGLE (Li et al., 2025, arXiv:2503.01840) does not: at every
token that the target has processed, its residual streams (a low, a middle and a high one) already hold what the target
makes of it. They are fused to one feature,

    g_t = fc([h_low; h_mid; h_high]) at position t

and a single layer, which also sees the token that came next, predicts what follows that token:

    f_t = layer([norm(emb(x_{t+1})); norm(g_t)])        q(x_{t+2}) = softmax(head(norm(f_t)))

To draft on, f_t stands in for g_{t+1}, which only the target could compute: entry t + 1 is made of the draft token and
f_t, and so on. The head was trained on such features of its own (train/eagle.py), so they carry it for a few steps.

Bookkeeping. Entry t of the head's cache belongs to (g_t, x_{t+1}). `propose` first makes the entries of all tokens that
were verified since, from the target's true features; the entries it adds while drafting are dropped afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ..cache import KVCache, attention, per_query_head, visible_slots
from ..cpu.fused import fused
from ..generate import pad
from ..load.handle import Model
from ..load.heads import heads_folder, is_public
from ..load.read_eagle import read_eagle
from ..processors.drafts import process_next
from ..sampling import Sampling, distributions, largest, pick, uniforms
from .base import Context, Draft, Drafter
from .eagle_head import EagleHead, spread
from .growth import EAGLE_NODES, LEAST, grow_batch, likeliest_tokens, tree_size

__all__ = ["Eagle", "EagleHead", "spread"]


def load_head(target: Model, source: str | Path | None = None) -> nn.Module:
    """A stored head: a folder or a hub id, of ours or published; None: the one that ships."""
    folder = heads_folder(source)
    return read_eagle(target, folder) if is_public(folder) else EagleHead.load(target, folder)


class Eagle(Drafter):
    """Draft with EAGLE-3's head: an EagleHead, its folder or hub id, or None for the one that ships.

    Published heads are read as they are (read_eagle.py): EAGLE-1 to EAGLE-3.1, as their authors or speculators store
    them.

    With `tree` (the default) it drafts a dynamic tree: at each of k depths the `width` likeliest nodes are expanded,
    `width` children each, and the `nodes` likeliest of all go to the target. Nothing is sampled, so q is one-hot even
    where the target samples. A depth costs one pass of the head over `width` tokens. With more nodes slightly more
    tokens are accepted, and the target's pass is wider: None is what suits the device (growth.py). On a CPU, None
    also leaves out nodes that are reached with a probability below `least`.

    Without, it drafts a chain of k tokens: the likeliest ones if the target is greedy, otherwise sampled from the
    head's distribution under `sampling` (None: the target's own).
    """

    def __init__(
        self,
        target: Model,
        heads: nn.Module | str | Path | None = None,
        tree: bool = True,
        width: int | None = None,
        nodes: int | None = None,
        sampling: Sampling | None = None,
        least: float = LEAST,
    ):
        self.least = least if nodes is None and target.device.type == "cpu" else 0.0
        nodes = tree_size(nodes, target.device, 32, EAGLE_NODES)
        width = (8 if nodes > 15 else 5) if width is None else width
        for name, value in (("width", width), ("nodes", nodes)):
            if not (isinstance(value, int) and value >= 1):
                raise ValueError(f"{name}={value!r}: give a whole number ≥ 1")
        self.target, self.tree, self.nodes, self.sampling = target, tree, nodes, sampling
        self.head = heads if isinstance(heads, nn.Module) else load_head(target, heads)
        if self.head.config.hidden_size != target.config.hidden_size:
            raise ValueError(
                f"heads take states of {self.head.config.hidden_size} numbers, target={target.name!r} has "
                f"{target.config.hidden_size}: make them for this target"
            )
        self.width = min(width, len(self.head.head_ids))
        self.vocab_size, self.hidden_layers = target.config.vocab_size, self.head.hidden_layers
        self.cache: KVCache | None = None
        self.order: list[int] = []  # the sequence in each row of the cache
        self.read, self.seen = {}, {}  # how many entries of each living sequence it holds, up to which position

    def max_tree_nodes(self, k: int) -> int:
        """The most nodes of a draft of depth k: the root has `width` children, and so has each expanded node."""
        return min(self.nodes, self.width + (k - 1) * self.width**2) if self.tree else k

    @property
    def extra_slots(self) -> int:
        return max(self.max_tree_nodes(k) - k for k in range(1, self.nodes + 1))

    @torch.inference_mode()
    def propose(self, contexts: Sequence[Context], k: int) -> list[Draft]:
        ready = [c for c in contexts if len(c.hidden.get(self.hidden_layers[0], ()))]  # a prompt of one token has none
        if k < 1 or not ready:
            return [Draft([]) for _ in contexts]
        made = (self.recorded.propose if self.recorded else self._propose)(ready, k)
        draft_of = {c.row: draft for c, draft in zip(ready, made, strict=True)}
        return [draft_of.get(c.row, Draft([])) for c in contexts]

    def _propose(self, ready: Sequence[Context], k: int) -> list[Draft]:
        feature = self._read(ready, (k - 1) * self.width if self.tree else k - 1)  # [R, d]
        budgets = [c.allowed_nodes(self.nodes if self.tree else k) for c in ready]
        return self._tree(feature, budgets, k) if self.tree else self._chain(feature, ready, budgets, k)

    def record(self) -> None:
        if not self.read:  # sequences that are under way stay where they are
            super().record()

    def forget(self, row: int) -> None:
        if self.recorded:
            self.recorded.forget(row)
        self.read.pop(row, None)
        self.seen.pop(row, None)
        if not self.read:
            self.cache, self.order = None, []

    def _read(self, contexts: Sequence[Context], drafts: int) -> Tensor:
        """Process the newly verified tokens with their true features: the newest f of every row of the cache [R, d].

        The sequences asked for come first. Others only ride along: what is computed for them is not used.
        """
        counts = [len(c.hidden[self.hidden_layers[0]]) for c in contexts]
        for c, count in zip(contexts, counts, strict=True):
            if self.seen.get(c.row) != len(c.tokens) - 1 - count:
                # A new sequence, or one with a gap. Start where its features start: RoPE depends on distances alone, so
                # that positions in the cache need not be those in the sequence.
                self.read[c.row] = 0
        self._make_room([c.row for c in contexts], max(counts) + drafts)
        idle = [[]] * (len(self.order) - len(contexts))
        tokens, lengths = pad([c.tokens[-n:] for c, n in zip(contexts, counts, strict=True)] + idle, self.target.device)
        streams = [pad_sequence([c.hidden[n] for c in contexts], batch_first=True) for n in self.hidden_layers]
        g = self.head.fuse([F.pad(h, (0, 0, 0, 0, 0, len(idle))) for h in streams])  # [R, T, d]
        slots, attend = self.cache.begin(tokens.shape[1])
        f = self.head(tokens, g, self.head.rope(slots), attend, self._at_once(tokens))
        self.cache.advance(lengths)
        for c, count in zip(contexts, counts, strict=True):
            self.read[c.row] += count
            self.seen[c.row] = len(c.tokens) - 1
        return f[torch.arange(len(f), device=f.device), (lengths - 1).clamp(min=0)]

    def _chain(self, feature: Tensor, contexts: Sequence[Context], budgets: Sequence[int], k: int) -> list[Draft]:
        """One token after the other, [B] at a time."""
        B, ids, processed = len(contexts), self.head.head_ids, any(context.processed for context in contexts)
        samplings = [self.sampling or context.sampling for context in contexts]
        greedy = all(sampling.greedy for sampling in samplings)
        u = None if greedy else uniforms([context.generator for context in contexts], k, feature.device)  # [B, k]
        tokens, probs = [], []
        for step in range(k):
            logits = self.head.logits(feature)  # [R, v]
            if greedy and not processed:
                tokens.append(ids[logits.argmax(-1)])  # [R]
            else:
                everywhere = logits.new_full((B, self.vocab_size), -torch.inf).index_copy_(1, ids, logits[:B])
                if processed:
                    everywhere = process_next(everywhere, contexts, [new.tolist() for new in tokens])
                probs.append(distributions(everywhere, samplings))  # [B, V]
                chosen = largest(everywhere) if greedy else pick(probs[-1], u[:, step])
                tokens.append(F.pad(chosen, (0, len(feature) - B)))
            if step < k - 1:
                slots, attend = self.cache.begin(1)
                run = self._at_once(new := tokens[-1][:, None])
                feature = self.head(new, feature[:, None], self.head.rope(slots), attend, run)[:, 0]
                self.cache.advance(1)
        drafted = torch.stack(tokens, 1)[:B].tolist()
        sampled_from = [None] * B if greedy else torch.stack(probs, 1)  # [B, k, V]
        each = zip(drafted, sampled_from, budgets, strict=True)
        return [Draft(row[:n], None if q is None else q[:n]) for row, q, n in each]

    def _tree(self, feature: Tensor, budgets: Sequence[int], k: int) -> list[Draft]:
        """A tree for each sequence, from one pass of the head per depth. Expanded nodes become entries of the cache."""
        R, start, device = len(feature), self.cache.lengths.clone(), feature.device  # start [R]: the first draft entry
        f = feature[:, None]  # [R, w, d] of the nodes expanded last: at first the root
        sees = torch.zeros(R, 1, 0, dtype=torch.bool, device=device)  # [R, w, E] the draft entries they attend to

        def expand(depth: int, tokens: Tensor | None, parents: Tensor | None) -> tuple[Tensor, Tensor]:
            nonlocal f, sees
            if depth > 0:
                parents, w = parents[..., None], parents.shape[1]  # [R, w, 1]
                itself = torch.eye(w, dtype=torch.bool, device=device).expand(R, w, w)
                sees = torch.cat([sees.take_along_dim(parents, 1), itself], 2)  # what its parent sees, and itself
                f = self._expand(tokens, f.take_along_dim(parents, 1), start, sees, depth)
            return likeliest_tokens(self.head.logits(f), self.head.head_ids, self.width)

        idle = [0] * (R - len(budgets))  # sequences that only ride along
        grown = grow_batch(expand, k, self.width, [*budgets, *idle], self.least)[: len(budgets)]
        return [Draft(tokens, None, parents) if tokens else Draft([]) for tokens, parents in grown]

    def _expand(self, tokens: Tensor, g: Tensor, start: Tensor, sees: Tensor, depth: int) -> Tensor:
        """Process w nodes of one depth [R, w], after all committed entries and the draft entries that each `sees`."""
        (R, w, E), (slots, end) = sees.shape, self.cache.reserve(tokens.shape[1])
        entries = start[:, None] + torch.arange(E, device=start.device)  # [R, E] where all draft entries are
        visible = visible_slots(entries, end, F.pad(sees, (0, 0, E - w, 0)))[:, -w:]  # [R, w, S]
        mask = per_query_head(visible, self.cache.groups)
        attend = lambda layer, q, k, v: attention(q, *self.cache.extend(layer, slots, end, k, v), mask)  # noqa: E731
        positions, at_once = (start[:, None] + depth - 1).expand(R, w), self._at_once(tokens, sees)
        f = self.head(tokens, g, self.head.rope(positions), attend, at_once)
        self.cache.advance(w)
        return f

    def _at_once(self, tokens: Tensor, mask: Tensor | None = None):  # all layers as one call (cpu/fused.py), or None
        run, order = fused(self.head, self.cache, tokens), range(self.head.config.num_layers)
        return run and partial(run, cache=self.cache, mask=mask, order=order)

    def _make_room(self, rows: list[int], entries: int) -> None:
        """The sequences asked for in front, the other living ones after them, and space for so many entries more."""
        order = list(dict.fromkeys([*rows, *self.read]))
        longest = max(self.read.values()) + entries
        if self.cache is None or order != self.order or longest > self.cache.capacity:
            if self.cache is None:
                self.cache = KVCache(
                    self.head.config, len(order), 2 * longest, device=self.target.device, dtype=self.head.dtype
                )
            else:
                self.cache.lengths.zero_()  # they are set below; what rejected drafts left need not fit
                capacity = self.cache.capacity if longest <= self.cache.capacity else 2 * longest
                slot = {row: i for i, row in enumerate(self.order)}
                self.cache = self.cache.rows([slot.get(row, -1) for row in order], capacity)
            self.order = order
        self.cache.lengths = torch.tensor([self.read[row] for row in order], device=self.target.device)
