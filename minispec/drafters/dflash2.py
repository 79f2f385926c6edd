"""DFlash 2: pair scores choose the path through what DFlash put into the blanks.

(Inco AI, August 2026, inco.ai/blog/dflash2.) A blank of DFlash's does not know what was put into the blank before it,
so of two good sentences it may begin the one and end the other; yet the right token is nearly always among its first
16. So the 16 likeliest of every blank stay, and a score for every pair of neighbours says which of them go together:

    u_j(b)      = log softmax of DFlash's logits at blank j
    s_j(a, b)   = ⟨A(a) ⊙ H h_j, B(b)⟩               token a before b; h_j is the state of the blank, all of rank r
    q_j(b | a)  ∝ exp(u_j(b) + s_j(a, b))            for the 16; any other token has the score 0

The drafter's pass is DFlash's; what is new costs a few small products. A path of the tree then has the probability
Π q_j(d_j | d_{j−1}), of which DFlash only knew the marginals.

Published drafters store A(a) and B(b) of every token. Ours make both of the target's own rows for the token, which a
model of 135 M parameters can ship: B is a linear map of its row of the LM head, A an MLP of its embedding.
"""

from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..model import Config, Layer, Linear
from ..require import require
from .dflash import DFlash, DFlashHead
from .growth import Expand, likeliest_tokens


class PairScores(nn.Module):
    """s(a, b) = ⟨A(a) ⊙ g, B(b)⟩. The gate g: H h ("product"), σ(W [h; A(a)] + c) ("sigmoid"), or 1 ("none"). With
    `neurons` A and B are made of the target's rows, of its embedding and of its LM head; without, they are tables of V
    and v rows."""

    def __init__(self, d: int, rank: int, gate: str, neurons: int | None, V: int, v: int):
        super().__init__()
        self.form, self.rank, self.neurons = gate, rank, neurons
        if neurons:
            self.up, self.down = Linear(d, neurons, bias=False), Linear(neurons, rank, bias=False)  # A
            self.second = Linear(d, rank, bias=False)  # B
        else:
            self.first, self.second = nn.Embedding(V, rank), nn.Embedding(v, rank)
        if gate != "none":
            self.gate = Linear(d, rank, bias=False) if gate == "product" else Linear(d + rank, rank)

    def before(self, tokens: Tensor, embedding: Tensor) -> Tensor:
        """A of tokens [...]: [..., r]."""
        if not self.neurons:
            return self.first(tokens)
        rows = embedding[tokens].to(self.up.weight.dtype)
        return self.down(F.silu(self.up(F.rms_norm(rows, rows.shape[-1:]))))

    def after(self, places: Tensor, rows: Tensor) -> Tensor:
        """B of the tokens at these places [...] of the v that are scored, whose rows of an LM head are [v, d]."""
        return self.second(rows[places]) if self.neurons else self.second(places)

    def gated(self, codes: Tensor, states: Tensor) -> Tensor:
        """A(a) ⊙ g, of codes A(a) [..., r] and the states of the blanks after them [..., d]."""
        if self.form == "none":
            return codes
        if self.form == "product":
            return codes * self.gate(states)
        return codes * self.gate(torch.cat([states, codes], -1)).sigmoid()


class Convolution(nn.Module):
    """y_i = Σ_t (base_t + δ_{i,t}) x_{i−t} within a block, once before a part of a layer and once after it. The δ of
    position i are a linear map of x_i, one for `group` channels."""

    def __init__(self, d: int, taps: int, group: int):
        super().__init__()
        self.group, self.base_kernel = group, nn.Parameter(torch.zeros(2, taps, d))
        self.kernel_projection = Linear(d, 2 * taps * (d // group), bias=False)

    def forward(self, x: Tensor, part) -> Tensor:
        _, taps, d = self.base_kernel.shape
        deltas = self.kernel_projection(x).unflatten(-1, (2, taps, d // self.group))  # [b, B, 2, taps, groups]
        kernels = self.base_kernel + deltas.repeat_interleave(self.group, -1)  # [b, B, 2, taps, d]
        for way in (0, 1):
            shifted = [F.pad(x, (0, 0, t, 0))[:, : x.shape[1]] for t in range(taps)]
            x = sum(kernels[:, :, way, t] * back for t, back in enumerate(shifted))
            x = part(x) if way == 0 else x
        return x


class ConvolvedLayer(Layer):
    """A layer whose two parts see convolved streams: so a blank knows of those before it without attending to them."""

    def __init__(self, config: Config, taps: int, group: int):
        super().__init__(config)
        d = config.hidden_size
        self.attention_conv, self.mlp_conv = Convolution(d, taps, group), Convolution(d, taps, group)

    def forward(self, x: Tensor, rope, attend) -> Tensor:
        x = x + self.attention_conv(self.input_layernorm(x), lambda y: self.self_attn(y, rope, attend))
        return x + self.mlp_conv(self.post_attention_layernorm(x), self.mlp)


class PairHead(DFlashHead):
    """A DFlash drafter, `backbone`, with pair scores. Stored with the name of the backbone's folder (as seen from its
    own), and then without its weights; or with all of them. Published ones have tables, and some convolve: `taps`."""

    gate = "product"

    def __init__(
        self,
        config: Config,
        head_ids: Tensor,
        *args,
        rank: int = 256,
        neurons: int | None = None,
        gate: str | None = None,
        taps: int = 0,
        group: int = 16,
        top: int = 16,
        first: int = 1,
        backbone: str | None = None,
    ):
        super().__init__(config, head_ids, *args)
        self.own_shape = dict(rank=rank, neurons=neurons, gate=gate or self.gate, taps=taps, group=group, top=top)
        self.own_shape |= dict(first=first, backbone=backbone)
        self.gate, self.taps, self.top, self.first, self.backbone = gate or self.gate, taps, top, first, backbone
        self.pairs = PairScores(config.hidden_size, rank, self.gate, neurons, config.vocab_size, len(head_ids))
        if taps:
            self.layers = nn.ModuleList(ConvolvedLayer(config, taps, group) for _ in self.layers)

    @property
    def own(self) -> tuple[str, ...]:
        return ("pairs.", "confidence.") if self.backbone else ("",)

    @property
    def shape(self) -> dict:
        return self.own_shape | {"backbone": self.backbone} | ({} if self.backbone else super().shape)

    @classmethod
    def options(cls, settings: dict) -> dict:
        return {
            key: settings[key] for key in "rank neurons gate taps group top first backbone".split() if key in settings
        }

    def forward(self, last: Tensor, positions: Tensor, attend) -> Tensor:
        require(not self.taps or last.shape[1] == 1, "one block in a row, for a convolution", blocks=last.shape[1])
        return super().forward(last, positions, attend)


class DFlash2Head(PairHead):
    kind = "dflash2"


class DFlash2(DFlash):
    """Draft a block by DFlash, and choose a path through it, or a tree, by pair scores. The options are DFlash's."""

    head = DFlash2Head

    def fillings(self, logits: Tensor, states: Tensor, last: Tensor, likeliest_tokens=likeliest_tokens) -> Expand:
        """What may fill each blank, given the token before it."""
        pairs, embedding = self.heads.pairs, self.target.transformer.embed_tokens.weight
        tokens, u = likeliest_tokens(logits, self.heads.head_ids, self.candidates)  # [b, depths, m] each
        rest = (1 - u.exp().sum(-1, keepdim=True)).clamp(min=0).log()  # [b, depths, 1], of all other tokens
        after = pairs.after(self.places[tokens], self.head_rows).mT  # [b, depths, r, m]

        def expand(depth: int, newest: Tensor | None, _) -> tuple[Tensor, Tensor]:
            codes = pairs.before(last[:, None] if newest is None else newest, embedding)  # [b, w, r]
            h = states[:, depth, None].expand(-1, codes.shape[1], -1)  # [b, w, d]
            scores = pairs.gated(codes, h) @ after[:, depth]  # [b, w, m]
            scores = u[:, depth, None] + scores
            log_z = torch.logaddexp(scores.logsumexp(-1, keepdim=True), rest[:, depth, None])
            return tokens[:, depth, None].expand_as(scores), scores - log_z

        return expand

    @cached_property
    def places(self) -> Tensor:
        """Of every token of the target, its place among those that are scored [V]."""
        ids = self.heads.head_ids
        return ids.new_zeros(self.target.config.vocab_size).index_copy_(
            0, ids, torch.arange(len(ids), device=ids.device)
        )

    @property
    def candidates(self) -> int:
        return min(self.heads.top, len(self.heads.head_ids))
