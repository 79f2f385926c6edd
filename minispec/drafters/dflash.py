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

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..linear import linear
from ..load.heads_dflash import read_dflash
from ..load.model import Model
from ..model import Attention, Config, Layer, Linear, RMSNorm, Transformer, rope_at, rotate
from ..require import require, require_counts
from ..sequence import Sequence
from .base import Draft
from .cache import StateCache
from .growth import Expand, grow_batch, likeliest_tokens, tree_size
from .trained import HeadDrafter, StoredHead, with_noise


class DFlashHead(StoredHead):
    """The drafter's own weights: `config` is the target's, with the drafter's number of layers and MLP width.

    Embedding and LM head are the target's. Only the tokens `head_ids` are scored, with `own_head` by rows of its own.
    Drafters that ship norm the target's streams before fc, and a context once more in each layer, and learn the vector
    of a blank. Published ones (`public`) do none of it: a blank is the embedding of a mask token.
    """

    kind, published, borrows = "dflash", staticmethod(read_dflash), False
    first = 1  # the first place of a block that proposes a token: 0 if the last token's own proposes the one after it

    def __init__(
        self,
        config: Config,
        head_ids: Tensor,
        hidden_layers: list[int],
        block: int = 8,
        own_head: bool = False,
        public: bool = False,
    ):
        require(block >= 2, "2 or more: the last token and at least one blank", block=block)
        require(len(hidden_layers) > 0, "at least one depth of the target", hidden_layers=hidden_layers)
        super().__init__()
        d, eps = config.hidden_size, config.norm_eps
        self.config, self.hidden_layers, self.block, self.public = config, tuple(hidden_layers), block, public
        self.fc = Linear(len(self.hidden_layers) * d, d, bias=False)
        self.context_norm = RMSNorm(d, eps)
        if public:
            self.register_buffer("mask", torch.zeros(d), persistent=False)  # the target's, see blank_is
        else:
            self.mask = nn.Parameter(torch.zeros(d))
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(d, eps)
        self.lm_head = Linear(d, len(head_ids), bias=False) if own_head else None
        self.register_buffer("head_ids", head_ids.clone())

    def blank_is(self, token: int, target: Transformer) -> None:
        """The published form: a blank is the target's embedding of this token."""
        self.mask_token_id = token
        self.mask.copy_(target.embed_tokens.weight[token])

    def context(self, hidden: dict[int, Tensor], positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Keys and values [B, Hkv, T, D] for every layer, of positions [B, T] with the target's streams [B, T, d]."""
        streams = [hidden[n].to(self.dtype) for n in self.hidden_layers]
        if not self.public:  # late streams are far larger than early ones: so each counts when fc begins to learn
            streams = [F.rms_norm(h, self.norm.weight.shape, eps=self.config.norm_eps) for h in streams]
        context = self.context_norm(self.fc(torch.cat(streams, -1)).to(self.dtype))  # [B, T, d]
        rope = rope_at(self.config, positions, self.dtype)
        given = [context if self.public else layer.input_layernorm(context) for layer in self.layers]
        return [keys_values(layer.self_attn, x, rope) for layer, x in zip(self.layers, given, strict=True)]

    def forward(self, last: Tensor, positions: Tensor, attend) -> Tensor:
        """Process blocks side by side: embedded last tokens [n, A, d], positions [n, A·B] → normed states [n, A, B, d].

        `attend(layer, q, k, v)` decides what a position attends to: its context, and its own block.
        """
        (n, A, _), B = last.shape, positions.shape[1] // last.shape[1]
        blanks = self.mask.expand(n, A, B - 1, -1)  # [n, A, B − 1, d]
        x = torch.cat([last[:, :, None].to(self.dtype), blanks], 2).flatten(1, 2)  # [n, A·B, d]
        rope = rope_at(self.config, positions, self.dtype)
        for i, layer in enumerate(self.layers):
            x = layer(x, rope, partial(attend, i))
        return self.norm(x).unflatten(1, (A, B))

    def head_rows(self, target: Transformer) -> Tensor:
        """Rows of an LM head for the tokens `head_ids`, [v, d]: logits are states @ rowsᵀ."""
        return target.lm_head.weight[self.head_ids].to(self.dtype) if self.lm_head is None else self.lm_head.weight

    @property
    def shape(self) -> dict:
        own = {"block": self.block, "hidden_layers": list(self.hidden_layers), "own_head": self.lm_head is not None}
        own |= {"layers": len(self.layers), "mlp": self.config.intermediate_size, "head_vocab": len(self.head_ids)}
        return own | {"mask_token_id": self.mask_token_id} if self.public else own

    @classmethod
    def options(cls, settings: dict) -> dict:
        """Of a subclass: what else it is made of."""
        return {}

    @classmethod
    def made(cls, target: Model, settings: dict) -> "DFlashHead":
        ids, blank = torch.zeros(settings["head_vocab"], dtype=torch.long), settings.get("mask_token_id")
        public = blank is not None  # in the published form
        sizes = dict(num_layers=settings["layers"], intermediate_size=settings["mlp"], delta=None)
        config = replace(target.config, qk_norm=target.config.qk_norm or public, **sizes)
        chosen = (settings[key] for key in ("hidden_layers", "block", "own_head"))
        head = cls(config, ids, *chosen, public, **cls.options(settings))
        if public:
            head.blank_is(blank, target.transformer)
        return head


def keys_values(attn: Attention, x: Tensor, rope) -> tuple[Tensor, Tensor]:
    """A layer's keys and values of normed streams [B, T, d]: [B, Hkv, T, D] each."""
    heads = (-1, attn.head_dim)
    k = attn.k_norm(attn.k_proj(x).unflatten(-1, heads)).transpose(1, 2)
    return rotate(k, *rope), attn.v_proj(x).unflatten(-1, heads).transpose(1, 2)


class DFlash(HeadDrafter):
    """Draft a block at once. `heads` is a stored drafter's folder or hub id, a DFlashHead, or None: the one that ships.

    With `tree` (the default), the `nodes` likeliest prefixes of the block (None: what suits the device, growth.NODES)
    go to the target together, as a token tree, which costs the drafter nothing: one pass has scored every blank.
    Without, it drafts a chain: the likeliest token of each blank. Nothing is sampled, so q is one-hot even where the
    target samples.
    """

    head = DFlashHead

    def __init__(
        self, target: Model, heads: DFlashHead | str | Path | None = None, tree: bool = True, nodes: int | None = None
    ):
        nodes = tree_size(nodes, target.device)
        require_counts(nodes=nodes)
        self.tree, self.nodes, self.heads = tree, nodes, self.head.load(target, heads)
        super().__init__(target, self.heads.config.hidden_size, self.heads.hidden_layers)
        self.block = self.heads.block
        self.head_rows = self.heads.head_rows(target.transformer)
        self.memory = StateCache(self.heads.config, target.device, self.heads.dtype)

    def max_tree_nodes(self, k: int) -> int:
        return self.nodes if self.tree else min(k, self.block - self.heads.first)

    def ready(self, sequence: Sequence) -> bool:
        return True  # the last token alone will do

    def draft(self, sequences: list[Sequence], k: int) -> list[Draft]:
        states = self.states(sequences)[:, :k]  # [b, min(k, B − 1), d]
        logits, last = linear(states, self.head_rows), self.last(sequences)[:, 0]  # [b, min(k, B − 1), v], [b]
        budgets = [c.allowed_nodes(self.max_tree_nodes(k)) for c in sequences]
        return self.filled(logits, states, last, sequences, budgets)

    def filled(self, logits: Tensor, states: Tensor, last: Tensor, sequences, budgets: list[int]) -> list[Draft]:
        """The drafts, of logits [b, depths, v] and states [b, depths, d] of the blanks, and the tokens [b] before."""
        logits = with_noise(sequences, logits, self.heads.head_ids, range(logits.shape[1]))
        expand = self.fillings(logits, states, last)
        if self.tree:
            return grow_batch(expand, logits.shape[1], self.nodes, budgets)
        path, tokens = [], None  # the likeliest token of each blank after the one before
        for depth in range(logits.shape[1]):
            below, log_q = expand(depth, tokens, None)  # [b, 1, m] each
            tokens = below.gather(2, log_q.argmax(2, keepdim=True))[:, 0]  # [b, 1]
            path.append(tokens)
        chains = torch.cat(path, 1).tolist()
        return [Draft(tokens[:n]) for tokens, n in zip(chains, budgets, strict=True)]

    def fillings(self, logits: Tensor, states: Tensor, last: Tensor, likeliest_tokens=likeliest_tokens) -> Expand:
        """What may fill each blank, of logits [b, depths, v]: the same whatever was put into the blanks before it, so
        P(d₁ … d_j) = Π q_i(d_i). A path among the n likeliest has its parent among them and fewer than n rivals there:
        n paths per depth and n candidates per blank leave none out. (`states` [b, depths, d] and the `last` tokens [b]
        are for subclasses, whose candidates depend on the token before.)"""
        tokens, log_q = likeliest_tokens(logits, self.heads.head_ids, self.candidates)
        return lambda depth, *_: (tokens[:, depth, None], log_q[:, depth, None])  # [b, 1, m]

    @property
    def candidates(self) -> int:
        """How many tokens are tried in every blank."""
        return min(self.nodes if self.tree else 1, len(self.heads.head_ids))

    def last(self, sequences: list[Sequence]) -> Tensor:
        return torch.tensor([[c.tokens[-1]] for c in sequences], device=self.target.device)  # [b, 1]

    @torch.inference_mode()
    def states(self, sequences: list[Sequence]) -> Tensor:
        """Add what the target has processed since the last call, then process every block: normed states of its blanks
        [b, B − 1, d]."""
        head, device = self.heads, self.target.device
        hidden, counts = self.memory.take(sequences, self.hidden_layers, self.block)  # [b, T, d] each
        cache = self.memory.cache
        slots, end = cache.reserve(max(counts))
        for layer, (keys, values) in enumerate(head.context(hidden, slots)):
            cache.extend(layer, slots, end, keys, values)
        cache.advance(torch.tensor(counts, device=device))

        whole_block = torch.ones(self.block, self.block, dtype=torch.bool, device=device)
        slots, attend = cache.begin(self.block, whole_block)
        last = self.target.transformer.embed_tokens(self.last(sequences))  # [b, 1, d]
        return head(last, slots, attend)[:, 0, head.first :]
