"""EAGLE-3: one decoder layer drafts on the target's own features, token by token, as a tree.

A draft model has to understand the sequence from scratch. EAGLE (Li et al., 2025, arXiv:2503.01840) does not: at every
token that the target has processed, its residual streams (a low, a middle and a high one) already hold what the target
makes of it. They are fused to one feature, and a single layer, which also sees the token that came next, predicts what
follows that token:

    g_t = fc([h_low; h_mid; h_high])         e = norm(emb(x_{t+1}))
    x   = g_t + attention([e; norm(g_t)])    f_t = x + mlp(norm(x))     q(x_{t+2}) = softmax(head(norm(f_t)))

To draft on, f_t stands in for g_{t+1}, which only the target could compute: entry t + 1 is made of the draft token and
f_t, and so on. The head was trained on such features of its own, so they carry it for a few steps.
What differs between the forms that were published, and ours, is small, and `Form` names it.

Bookkeeping. Entry t of the head's cache belongs to (g_t, x_{t+1}). `propose` first makes the entries of all tokens that
were verified since, from the target's true features; the entries it adds while drafting are dropped afterwards.
"""

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..cache import Attend
from ..linear import linear
from ..load.heads_eagle import Form, read_eagle
from ..load.model import Model
from ..model import MLP, Attention, Config, Layer, Linear, RMSNorm, at_once, rope_at
from ..require import require, require_counts
from ..sampling import Sampling, pad
from ..sequence import Sequence
from ..tree import cut
from .base import Draft
from .cache import StateCache
from .growth import EAGLE_NODES, LEAST, grow_batch, likeliest_tokens, tree_size
from .model import sample_chains
from .trained import HeadDrafter, StoredHead, with_noise


class Head(StoredHead):
    """What `Eagle` drafts with: a few layers over (token, feature before it). EagleHead and MTPHead.

    A subclass has `fuse`, which makes a feature of the target's streams after its `hidden_layers`; `enter`, which says
    where the residual path starts and what the first layer attends with; `blocks`, the parts of each layer (norm,
    attention, norm, MLP), which `at_once` reads, too; and `norm`.
    """

    norm_output = False  # whether norm(f) is handed to the next step, not f

    def adopt(self, target: Model) -> None:
        """To the target's device and precision, all weights zero, with the target's embedding."""
        self.to(target.device, target.dtype)
        for weight in self.parameters():
            nn.init.zeros_(weight)
        self.embed = partial(F.embedding, weight=target.transformer.embed_tokens.weight)  # no part of this module
        self.accuracy = []  # measured by minispec_tools.train.eagle.calibrate

    def forward(self, tokens: Tensor, g: Tensor, rope, attend: Attend, at_once=None) -> Tensor:
        """Tokens [B, T] and the features before them [B, T, d] → features of these tokens [B, T, d]."""
        x, given = self.enter(tokens, g)
        if at_once:  # all layers by one call
            x = at_once(x, rope=rope, given=given)[0]
        else:
            for n, (norm, attention, mlp_norm, mlp) in enumerate(self.blocks):
                x = x + attention(given if norm is None else norm(x), rope, partial(attend, n))
                x = x + mlp(mlp_norm(x))
        return self.norm(x) if self.norm_output else x

    def logits(self, feature: Tensor) -> Tensor:
        """Features [..., d] to logits of the tokens `head_ids`, [..., v]."""
        return linear(feature if self.norm_output else self.norm(feature), self.head.to(self.dtype))

    def rope(self, positions: Tensor):
        return rope_at(self.config, positions, self.dtype)


class EagleHead(Head):
    """EAGLE-3's drafting layer for a target, all weights zero: `load` a head, or train one (minispec_tools/train).

    `head_ids` are the tokens it can propose, `hidden_layers` the streams it is given (three by default), `layers` its
    decoder layers (the first is EAGLE's, more are ordinary ones), `mlp` the neurons of each. The LM head's rows are the
    target's; with `own_head` a copy to train. A published head may have other attention than its target: `config`.
    """

    kind = "eagle"
    published = staticmethod(read_eagle)
    borrows = property(lambda self: not self.own_head)

    def __init__(
        self,
        target: Model,
        head_ids: Tensor,
        hidden_layers: list[int] | None = None,
        layers: int = 1,
        mlp: int | None = None,
        own_head: bool = False,
        form: Form | None = None,
        config: Config | None = None,
    ):
        super().__init__()
        c, depth = config or target.config, target.config.num_layers
        mlp = c.intermediate_size if mlp is None else mlp
        require_counts(layers=layers, mlp=mlp)
        low_middle_high = depth // 3, 2 * depth // 3, depth
        self.hidden_layers = low_middle_high if hidden_layers is None else tuple(hidden_layers)
        fits = bool(self.hidden_layers) and all(0 <= n <= depth for n in self.hidden_layers)
        require(fits, f"numbers from 0 (the embedding) to {depth}", hidden_layers=self.hidden_layers)
        self.own_head, self.form = own_head, form or Form()
        self.norm_output = self.form.norm_output
        self.config = c = replace(c, num_layers=layers, intermediate_size=mlp, delta=None)
        d, n, norm = c.hidden_size, len(self.hidden_layers), partial(RMSNorm, eps=c.norm_eps)
        with torch.random.fork_rng(devices=[]):  # torch fills new layers from its global generator: give that back
            norms = {"each": lambda: nn.ModuleList(norm(d) for _ in range(n)), "joint": lambda: norm(n * d)}
            self.stream_norms = norms.get(self.form.stream_norm, lambda: None)()
            self.fc = Linear(n * d, d, bias=False)
            self.embed_norm, self.feature_norm = norm(d), norm(d)
            self.embed_proj = Linear(d, d, bias=False) if self.form.embed_proj else None
            self.self_attn = Attention(replace(c, hidden_size=2 * d))  # from both halves …
            self.self_attn.o_proj = Linear(c.num_heads * c.head_dim, d, bias=c.out_bias)  # … to one feature
            self.mlp_norm, self.mlp = norm(d), MLP(c)
            self.more = nn.ModuleList(Layer(c) for _ in range(layers - 1))
            self.norm = norm(d)
        self.adopt(target)
        self.register_buffer("head_ids", head_ids.long().to(target.device))
        self.borrow(target)
        if own_head:
            self.head = nn.Parameter(self.head)

    def side_by_side(self, streams: list[Tensor]) -> Tensor:
        """The target's residual streams [..., d] as fc takes them [..., n · d]. Late streams are far larger than early
        ones, so most forms norm them first."""
        streams = [h.to(self.dtype) for h in streams]
        if self.form.stream_norm == "plain":
            streams = [F.rms_norm(h, h.shape[-1:], eps=self.config.norm_eps) for h in streams]
        elif self.form.stream_norm == "each":
            streams = [norm(h) for norm, h in zip(self.stream_norms, streams, strict=True)]
        together = torch.cat(streams, -1)  # [..., n · d]
        return self.stream_norms(together) if self.form.stream_norm == "joint" else together

    def fuse(self, streams: list[Tensor]) -> Tensor:
        """The target's residual streams [..., d] to one feature [..., d]."""
        return self.fc(self.side_by_side(streams)).to(self.dtype)

    def enter(self, tokens: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        e, normed = self.embed_norm(self.embed(tokens).to(self.dtype)), self.feature_norm(g)
        x = normed if self.form.norm_before_residual else g
        if self.embed_proj is not None:  # with few key/value heads, attention lets only Hkv · D numbers through
            x = x + self.embed_proj(e)
        return x, torch.cat([e, normed], -1)  # [B, T, 2d]

    @property
    def blocks(self) -> list[tuple[nn.Module | None, ...]]:  # the first is given what it attends with: no norm
        return [(None, self.self_attn, self.mlp_norm, self.mlp), *(layer.parts for layer in self.more)]

    @property
    def shape(self) -> dict:
        own = {"hidden_layers": list(self.hidden_layers), "own_head": self.own_head, "head_vocab": len(self.head_ids)}
        same = own | {"layers": self.config.num_layers, "mlp": self.config.intermediate_size}
        return same if self.form == Form() else same | {"form": asdict(self.form)}

    def save(self, target: Model, folder: str | Path, bits: int | None = 8) -> None:
        same = dict(num_layers=1, intermediate_size=1, delta=None)
        if replace(self.config, **same) != replace(target.config, **same):
            raise ValueError("a head with attention of its own is stored by minispec_tools.export.write_eagle")
        super().save(target, folder, bits)

    @classmethod
    def made(cls, target: Model, settings: dict) -> "EagleHead":
        shape = [settings[key] for key in ("hidden_layers", "layers", "mlp", "own_head")]
        return cls(target, torch.arange(settings["head_vocab"]), *shape, Form(**settings.get("form", {})))


class Eagle(HeadDrafter):
    """Draft with EAGLE-3's head: an EagleHead, its folder or hub id, or None for the one that ships.

    Published heads are read as they are: EAGLE-3 and EAGLE-3.1, as their authors or speculators store them.

    With `tree` (the default) it drafts a dynamic tree: at each of k depths the `width` likeliest nodes are expanded,
    `width` children each, and the `nodes` likeliest of all go to the target (None: what suits the device, growth.py).
    Nothing is sampled, so q is one-hot even where the target samples. A depth costs one pass of the head over `width`
    tokens.

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
    ):
        self.least = LEAST if nodes is None and target.device.type == "cpu" else 0.0
        nodes = tree_size(nodes, target.device, EAGLE_NODES)
        width = (8 if nodes > 15 else 5) if width is None else width
        require_counts(width=width, nodes=nodes)
        self.tree, self.nodes, self.sampling = tree, nodes, sampling
        self.head = head = EagleHead.load(target, heads)
        super().__init__(target, head.config.hidden_size, head.hidden_layers)
        self.width = min(width, len(head.head_ids))
        self.memory = StateCache(head.config, target.device, head.dtype)

    def max_tree_nodes(self, k: int) -> int:
        """The most nodes of a draft of depth k: the root has `width` children, and so has each expanded node."""
        return min(self.nodes, self.width + (k - 1) * self.width**2) if self.tree else k

    def draft(self, sequences: list[Sequence], k: int) -> list[Draft]:
        return (self._trees if self.tree else self._chains)(sequences, k)

    def _catch_up(self, sequences: list[Sequence], extra: int) -> Tensor:
        """Process the newly verified tokens with their true features: the newest f of every sequence [B, d]. `extra`
        entries are to follow."""
        hidden, counts = self.memory.take(sequences, self.hidden_layers, extra)  # [B, T, d] each
        new = [c.tokens[-n:] for c, n in zip(sequences, counts, strict=True)]
        tokens, lengths = pad(new, self.target.device)  # [B, T], [B]
        f = self._forward(tokens, self.head.fuse([hidden[n] for n in self.hidden_layers]), lengths)
        return f[torch.arange(len(f), device=f.device), lengths - 1]

    def _chains(self, sequences: list[Sequence], k: int) -> list[Draft]:
        """One token after the other; tokens that the head does not score have probability 0."""
        f = self._catch_up(sequences, k - 1)  # [B, d]

        def score(newest: Tensor | None) -> Tensor:
            nonlocal f
            if newest is not None:
                f = self._forward(newest[:, None], f[:, None])[:, 0]
            logits = self.head.logits(f)  # [B, v]
            everywhere = logits.new_full((len(logits), self.target.config.vocab_size), -torch.inf)
            return everywhere.index_copy_(1, self.head.head_ids, logits)

        chains = sample_chains(score, sequences, k, self.sampling)
        return [cut(chain, c.allowed_nodes(k)) for chain, c in zip(chains, sequences, strict=True)]

    def _trees(self, sequences: list[Sequence], k: int) -> list[Draft]:
        """A tree for each sequence, from one pass of the head per depth. Expanded nodes become entries of the cache."""
        f = self._catch_up(sequences, (k - 1) * self.width)[:, None]  # [B, w, d] of the nodes expanded last: the root
        B, device, start = len(f), f.device, self.memory.cache.lengths[:, None].clone()  # [B, 1]: the first draft entry
        sees = torch.zeros(B, 1, 0, dtype=torch.bool, device=device)  # [B, w, E] the draft entries they attend to

        def expand(depth: int, tokens: Tensor | None, parents: Tensor | None) -> tuple[Tensor, Tensor]:
            nonlocal f, sees
            if depth > 0:
                parents, w = parents[..., None], parents.shape[1]  # [B, w, 1]
                itself = torch.eye(w, dtype=torch.bool, device=device).expand(B, w, w)
                sees = torch.cat([sees.take_along_dim(parents, 1), itself], 2)  # what its parent sees, and itself
                f = self._forward(tokens, f.take_along_dim(parents, 1), w, start + depth - 1, sees)
            ids = self.head.head_ids
            logits = with_noise(sequences, self.head.logits(f), ids, range(depth, depth + 1))
            return likeliest_tokens(logits, ids, self.width)

        return grow_batch(expand, k, self.width, [c.allowed_nodes(self.nodes) for c in sequences], self.least)

    def _forward(self, tokens: Tensor, g: Tensor, counts: int | Tensor = 1, positions=None, sees=None) -> Tensor:
        """Process new tokens [B, T] with the features before them [B, T, d], and keep the first `counts` entries. They
        come after everything in the cache; nodes of a tree have positions [B, 1], and attend to all committed entries
        and to the draft entries that each `sees` [B, T, E]."""
        cache, T = self.memory.cache, tokens.shape[1]
        slots, attend = cache.begin(T, sees)
        rope = self.head.rope(slots if positions is None else positions.expand_as(slots))
        run = at_once(self.head, cache, tokens)
        run = run and partial(run, cache=cache, mask=sees, order=range(self.head.config.num_layers))
        f = self.head(tokens, g, rope, attend, run)
        cache.advance(counts)
        return f
