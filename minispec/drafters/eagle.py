"""EAGLE-3: one decoder layer drafts on the target's own features, token by token, as a tree.

A draft model has to understand the text from scratch. EAGLE does not: at every token the target has read, its residual
streams (a low, a middle and a high one) already hold what it makes of the text. They are fused to one feature,

    g_t = fc([h_low; h_mid; h_high]) at position t

and a single layer, which also sees the token that came next, says what follows that token:

    f_t = layer([norm(emb(x_{t+1})); norm(g_t)])        q(x_{t+2}) = softmax(head(norm(f_t)))

To draft on, f_t takes the place of g_{t+1}, which only the target could compute: entry t + 1 reads the drafted token
and f_t, and so on. The head was trained on such features of its own (train/eagle.py), so it bears them for a few steps.

Bookkeeping. Entry t of the head's cache belongs to (g_t, x_{t+1}). `propose` first reads the entries of all tokens that
were verified since, with the target's true features; what it adds while it drafts is forgotten afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ..cache import Attend, KVCache, attention, per_query_head, visible_slots
from ..files.handle import Model as Handle
from ..files.heads import fill, find_heads, heads_for, save_heads
from ..generate import pad
from ..model import MLP, Attention, Layer, RMSNorm, rope_at
from ..sampling import Sampling, distributions, pick, uniforms
from .base import Context, Draft, Drafter


class EagleHead(nn.Module):
    """The drafting layer for a target. `head_ids` are the tokens it can propose, sorted.

    `hidden_layers` are the streams it reads (three by default), `layers` its decoder layers (the first is EAGLE's, more
    are ordinary ones), `mlp` the neurons of each. The embedding and the LM head's rows are the target's, and are not
    stored; with `own_head` the rows are a copy to train. All other weights are zero: `load` a head, or train a
    train.eagle.new_head.
    """

    def __init__(
        self,
        target: Handle,
        head_ids: Tensor,
        hidden_layers: Sequence[int] | None = None,
        layers: int = 1,
        mlp: int | None = None,
        own_head: bool = False,
    ):
        super().__init__()
        c = target.config
        mlp = c.intermediate_size if mlp is None else mlp
        for name, value in (("layers", layers), ("mlp", mlp)):
            if not (isinstance(value, int) and value >= 1):
                raise ValueError(f"{name}={value!r}: give a whole number ≥ 1")
        self.hidden_layers = tuple(spread(c.num_layers) if hidden_layers is None else hidden_layers)
        if not self.hidden_layers or not all(0 <= n <= c.num_layers for n in self.hidden_layers):
            raise ValueError(
                f"hidden_layers={self.hidden_layers}: the target has {c.num_layers} layers, "
                f"so give numbers from 0 (its embedding) to {c.num_layers}"
            )
        self.own_head, self.accuracy = own_head, []  # accuracy: measured by train.eagle.calibrate
        self.config = c = replace(c, num_layers=layers, intermediate_size=mlp)
        d = c.hidden_size
        with torch.random.fork_rng(devices=[]):  # torch fills new layers from its global generator: give that back
            self.fc = nn.Linear(len(self.hidden_layers) * d, d, bias=False)
            self.embed_norm, self.feature_norm = RMSNorm(d, c.norm_eps), RMSNorm(d, c.norm_eps)
            self.embed_proj = nn.Linear(d, d, bias=False)
            self.self_attn = Attention(replace(c, hidden_size=2 * d))  # reads both halves …
            self.self_attn.o_proj = nn.Linear(c.num_heads * c.head_dim, d, bias=c.out_bias)  # … and writes a feature
            self.mlp_norm, self.mlp = RMSNorm(d, c.norm_eps), MLP(c)
            self.more = nn.ModuleList(Layer(c) for _ in range(layers - 1))
            self.norm = RMSNorm(d, c.norm_eps)
        self.to(target.device, target.dtype)
        for weight in self.parameters():
            nn.init.zeros_(weight)
        self.register_buffer("head_ids", head_ids.long().to(target.device))
        self.borrow(target)

    def borrow(self, target: Handle) -> None:
        """Take the target's embedding, and the rows of its LM head that `head_ids` name."""
        self.embed = partial(F.embedding, weight=target.transformer.embed_tokens.weight)  # no part of this module
        rows = target.transformer.lm_head.weight.detach()[self.head_ids].to(self.norm.weight.dtype)  # [v, d]
        if self.own_head:
            self.head = nn.Parameter(rows)
        else:
            self.register_buffer("head", rows, persistent=False)  # moves with the module, but is not stored

    @property
    def dtype(self) -> torch.dtype:
        return self.norm.weight.dtype

    def fuse(self, streams: Sequence[Tensor]) -> Tensor:
        """The target's residual streams [..., d] to one feature g [..., d].

        Each is normed first: streams grow by orders of magnitude from layer to layer, and at some tokens far more.
        """
        streams = [F.rms_norm(h.to(self.dtype), h.shape[-1:], eps=self.config.norm_eps) for h in streams]
        return self.fc(torch.cat(streams, -1)).to(self.dtype)

    def forward(self, tokens: Tensor, g: Tensor, rope, attend: Attend) -> Tensor:
        """Tokens [B, T] and the features before them [B, T, d] → features of these tokens [B, T, d]."""
        e = self.embed_norm(self.embed(tokens).to(self.dtype))
        # Beside attention, the token has a way of its own into the stream: with few key/value heads it would
        # otherwise have to squeeze through Hkv · D numbers.
        x = g + self.embed_proj(e)
        x = x + self.self_attn(torch.cat([e, self.feature_norm(g)], -1), rope, partial(attend, 0))
        x = x + self.mlp(self.mlp_norm(x))
        for n, layer in enumerate(self.more, start=1):
            x = layer(x, rope, partial(attend, n))
        return x

    def logits(self, feature: Tensor) -> Tensor:
        """Features [..., d] to logits of the tokens `head_ids`, [..., v]."""
        return F.linear(self.norm(feature), self.head)

    def rope(self, positions: Tensor):
        return rope_at(self.config, positions, self.dtype)

    @property
    def shape(self) -> dict:
        """What makes another head like this one."""
        return {"hidden_layers": list(self.hidden_layers), "layers": self.config.num_layers,
                "mlp": self.config.intermediate_size, "head_vocab": len(self.head_ids),
                "own_head": self.own_head}  # fmt: skip

    def save(self, target: Handle, folder: str | Path, bits: int | None = 8) -> None:
        save_heads(self, folder, heads_for(target, "eagle") | self.shape | {"accuracy": self.accuracy}, bits)

    @classmethod
    def load(cls, target: Handle, folder: str | Path | None = None) -> EagleHead:
        """A stored head; None: the one that ships with minispec."""
        folder, settings = find_heads(target, "eagle", folder)
        head = cls(target, torch.arange(settings["head_vocab"]),
                   *(settings[key] for key in ("hidden_layers", "layers", "mlp", "own_head")))  # fmt: skip
        fill(head, folder)
        if not head.own_head:
            head.borrow(target)  # only now it is known which rows
        head.accuracy = settings["accuracy"]
        return head


def spread(layers: int) -> tuple[int, int, int]:
    """A low, a middle and a high residual stream of a target with so many layers."""
    return layers // 3, 2 * layers // 3, layers


class Eagle(Drafter):
    """Draft with EAGLE-3's head: an EagleHead, its folder, or None for the one that ships.

    With `tree` (the default) a dynamic tree: at each of k depths the `width` likeliest nodes are expanded, `width`
    children each, and the `nodes` likeliest of all go to the target. Nothing is drawn, so q is one-hot even where the
    target samples. A depth costs one pass of the head over `width` tokens. More nodes accept a little more and cost the
    target a wider pass. k = 5 or 6 goes with the defaults.

    Without, a chain of k tokens: the likeliest ones if the target is greedy, otherwise drawn from the head's law under
    `sampling` (None: the target's own).
    """

    def __init__(
        self,
        target: Handle,
        heads: EagleHead | str | Path | None = None,
        tree: bool = True,
        width: int = 8,
        nodes: int = 32,
        sampling: Sampling | None = None,
    ):
        for name, value in (("width", width), ("nodes", nodes)):
            if not (isinstance(value, int) and value >= 1):
                raise ValueError(f"{name}={value!r}: give a whole number ≥ 1")
        self.target, self.tree, self.nodes, self.sampling = target, tree, nodes, sampling
        self.head = heads if isinstance(heads, EagleHead) else EagleHead.load(target, heads)
        if self.head.config.hidden_size != target.config.hidden_size:
            raise ValueError(f"heads read states of {self.head.config.hidden_size} numbers, target={target.name!r} has "
                             f"{target.config.hidden_size}: make them for this target")  # fmt: skip
        self.width = min(width, len(self.head.head_ids))
        self.vocab_size = target.config.vocab_size
        self.hidden_layers = self.head.hidden_layers
        self.extra_slots = nodes if tree else 0
        self.cache: KVCache | None = None
        self.order: list[int] = []  # the row that sits in each row of the cache
        self.read: dict[int, int] = {}  # how many entries of each living row the cache holds
        self.seen: dict[int, int] = {}  # and up to which place of its text they go

    @torch.inference_mode()
    def propose(self, contexts: Sequence[Context], k: int) -> list[Draft]:
        ready = [c for c in contexts if len(c.hidden.get(self.hidden_layers[0], ()))]  # a prompt of one token has none
        if k < 1 or not ready:
            return [Draft([]) for _ in contexts]
        feature = self._read(ready, (k - 1) * self.width if self.tree else k - 1)  # [R, d]
        made = iter(self._tree(feature, len(ready), k) if self.tree else self._chain(feature, ready, k))
        chosen = {c.row for c in ready}
        return [next(made) if c.row in chosen else Draft([]) for c in contexts]

    def forget(self, row: int) -> None:
        self.read.pop(row, None)
        self.seen.pop(row, None)
        if not self.read:
            self.cache, self.order = None, []

    def _read(self, contexts: Sequence[Context], drafts: int) -> Tensor:
        """Read the newly verified tokens with their true features: the newest f of every row of the cache [R, d].

        The rows asked for come first. Others only ride along: what is computed for them is never looked at.
        """
        counts = [len(c.hidden[self.hidden_layers[0]]) for c in contexts]
        for c, count in zip(contexts, counts, strict=True):
            if self.seen.get(c.row) != len(c.tokens) - 1 - count:
                # A new row, or one with a gap. Start where its features start: RoPE sees distances alone, so that the
                # cache's places need not be those of the text.
                self.read[c.row] = 0
        self._make_room([c.row for c in contexts], max(counts) + drafts)
        idle = [[]] * (len(self.order) - len(contexts))
        tokens, lengths = pad([c.tokens[-n:] for c, n in zip(contexts, counts, strict=True)] + idle, self.target.device)
        streams = [pad_sequence([c.hidden[n] for c in contexts], batch_first=True) for n in self.hidden_layers]
        g = self.head.fuse([F.pad(h, (0, 0, 0, 0, 0, len(idle))) for h in streams])  # [R, T, d]
        slots, attend = self.cache.begin(tokens.shape[1])
        f = self.head(tokens, g, self.head.rope(slots), attend)
        self.cache.advance(lengths)
        for c, count in zip(contexts, counts, strict=True):
            self.read[c.row] += count
            self.seen[c.row] = len(c.tokens) - 1
        return f[torch.arange(len(f), device=f.device), (lengths - 1).clamp(min=0)]

    def _chain(self, feature: Tensor, contexts: Sequence[Context], k: int) -> list[Draft]:
        """One token after the other, [B] at a time."""
        B, ids = len(contexts), self.head.head_ids
        samplings = [self.sampling or context.sampling for context in contexts]
        greedy = all(sampling.greedy for sampling in samplings)
        u = None if greedy else uniforms([context.generator for context in contexts], k, feature.device)  # [B, k]
        tokens, probs = [], []
        for step in range(k):
            logits = self.head.logits(feature)  # [R, v]
            if greedy:
                tokens.append(ids[logits.argmax(-1)])  # [R]
            else:
                everywhere = logits.new_full((B, self.vocab_size), -torch.inf).index_copy_(1, ids, logits[:B])
                probs.append(distributions(everywhere, samplings))  # [B, V]
                drawn = pick(probs[-1], u[:, step])
                tokens.append(F.pad(drawn, (0, len(feature) - B)))
            if step < k - 1:
                slots, attend = self.cache.begin(1)
                feature = self.head(tokens[-1][:, None], feature[:, None], self.head.rope(slots), attend)[:, 0]
                self.cache.advance(1)
        drafted = torch.stack(tokens, 1)[:B].tolist()
        sampled_from = [None] * B if greedy else torch.stack(probs, 1)  # [B, k, V]
        return [Draft(row, q) for row, q in zip(drafted, sampled_from, strict=True)]

    def _tree(self, feature: Tensor, count: int, k: int) -> list[Draft]:
        """tree.grow for all rows at once: the same tree, from one pass of the head a depth.

        A *level* is the nodes of one depth, [R, n]. Those of them that are expanded become *entries* of the cache.
        """
        (R, _), w, device = feature.shape, self.width, feature.device
        start = self.cache.lengths.clone()  # [R] the first draft entry
        token, score = self._best(feature)  # [R, w] the first level
        levels = [(token, score, torch.full_like(token, -1))]  # tokens, summed log-probabilities, parents
        parent_feature, parent_entry = feature[:, None], None
        ancestors = torch.zeros(R, 0, 0, dtype=torch.bool, device=device)  # [R, E, E] which entry sees which
        grown = 0  # nodes before the newest level
        for depth in range(1, k):
            token, score, _ = levels[-1]
            chosen = likeliest(score, w)  # [R, w]
            from_parent = chosen // w  # each expanded node had w children, in order; the root had the first w
            g = parent_feature[torch.arange(R, device=device)[:, None], from_parent]  # [R, w, d]
            E = ancestors.shape[1]
            ancestors = F.pad(ancestors, (0, w, 0, w))
            if parent_entry is not None:
                above = (parent_entry + from_parent)[..., None].expand(R, w, E + w)
                ancestors[:, E:] = ancestors.gather(1, above)
            ancestors |= torch.eye(E + w, dtype=torch.bool, device=device)
            f = self._expand(token.gather(1, chosen), g, start, ancestors, depth)  # [R, w, d]
            below, log_q = self._best(f)  # [R, w, w]
            scores = score.gather(1, chosen)[..., None] + log_q
            parents = (grown + chosen)[..., None].expand_as(below)
            grown += token.shape[1]
            levels.append((below.flatten(1), scores.flatten(1), parents.flatten(1)))
            parent_feature, parent_entry = f, E
        tokens, scores, parents = (torch.cat(parts, 1) for parts in zip(*levels, strict=True))  # [R, N]
        kept = likeliest(scores, self.nodes).contiguous()  # [R, n]
        old = parents.gather(1, kept)
        new = torch.where(old < 0, -1, torch.searchsorted(kept, old))  # a kept node's parent is kept, too
        pairs = zip(tokens.gather(1, kept)[:count].tolist(), new[:count].tolist(), strict=True)
        return [Draft(row, None, above) for row, above in pairs]

    def _best(self, feature: Tensor) -> tuple[Tensor, Tensor]:
        """The likeliest next tokens after features [..., d] and their log-probabilities, [..., w] each, best first."""
        logits = self.head.logits(feature)
        log_q, best = logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32)).topk(self.width)
        return self.head.head_ids[best], log_q

    def _expand(self, tokens: Tensor, g: Tensor, start: Tensor, ancestors: Tensor, depth: int) -> Tensor:
        """Read w nodes of one depth [R, w]; each sees the committed entries, its ancestors and itself."""
        (R, w), E = tokens.shape, ancestors.shape[1]
        slots, end = self.cache.reserve(w)
        entries = start[:, None] + torch.arange(E, device=start.device)  # [R, E] where all draft entries so far are
        seen = per_query_head(visible_slots(entries, end, ancestors)[:, -w:], self.cache.groups)
        attend = lambda layer, q, k, v: attention(q, *self.cache.extend(layer, slots, end, k, v), seen)  # noqa: E731
        f = self.head(tokens, g, self.head.rope((start[:, None] + depth - 1).expand(R, w)), attend)
        self.cache.advance(w)
        return f

    def _make_room(self, rows: list[int], entries: int) -> None:
        """The asked rows in front, every living row somewhere, and space for so many more entries each."""
        order = list(dict.fromkeys([*rows, *self.read]))
        longest = max(self.read.values()) + entries
        if self.cache is None or order != self.order or longest > self.cache.capacity:
            place = {row: i for i, row in enumerate(self.order)}
            if self.cache is None:
                self.cache = KVCache(self.head.config, len(order), 2 * longest, device=self.target.device,
                                     dtype=self.head.dtype)  # fmt: skip
            else:
                self.cache.lengths.zero_()  # they are set below; what rejected drafts left need not fit
                capacity = self.cache.capacity if longest <= self.cache.capacity else 2 * longest
                self.cache = self.cache.rows([place.get(row, -1) for row in order], capacity)
            self.order = order
        self.cache.lengths = torch.tensor([self.read[row] for row in order], device=self.target.device)


def likeliest(scores: Tensor, count: int) -> Tensor:
    """Places of the `count` highest scores [R, N], in ascending order: parents first, as of equals the first stay."""
    return scores.sort(dim=1, descending=True, stable=True).indices[:, :count].sort(1).values
