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

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..model import Config, Linear, Transformer
from .dflash import DFlash, DFlashHead
from .growth import Expand, likeliest_tokens

TOP = 16  # candidates of every blank


class PairScores(nn.Module):
    """s(a, b) = ⟨A(a) ⊙ g, B(b)⟩. The gate g: H h ("product"), σ(W [h; A(a)] + c) ("sigmoid"), or 1 ("none")."""

    def __init__(self, d: int, rank: int, gate: str, neurons: int):
        super().__init__()
        self.form, self.rank, self.neurons = gate, rank, neurons
        self.up, self.down = Linear(d, neurons, bias=False), Linear(neurons, rank, bias=False)  # A
        self.second = Linear(d, rank, bias=False)  # B
        if gate != "none":
            self.gate = Linear(d, rank, bias=False) if gate == "product" else Linear(d + rank, rank)

    def before(self, rows: Tensor) -> Tensor:
        """A of tokens with these rows of the target's embedding, [..., d] → [..., r]."""
        return self.down(F.silu(self.up(F.rms_norm(rows, rows.shape[-1:]).to(self.up.weight.dtype))))

    def gated(self, codes: Tensor, states: Tensor) -> Tensor:
        """A(a) ⊙ g, of codes A(a) [..., r] and the states of the blanks after them [..., d]."""
        if self.form == "none":
            return codes
        if self.form == "product":
            return codes * self.gate(states)
        both = torch.cat([states.expand(*codes.shape[:-1], -1), codes], -1)
        return codes * self.gate(both).sigmoid()


class PairHead(DFlashHead):
    """A DFlash drafter, `backbone`, with pair scores. Stored with the name of the backbone's folder (as seen from its
    own), and then without its weights; or with all of them."""

    gate = "product"
    published = None

    def __init__(
        self, config: Config, head_ids: Tensor, *args, rank: int = 256, neurons: int = 1024, backbone: str | None = None
    ):
        super().__init__(config, head_ids, *args)
        self.pairs, self.backbone = PairScores(config.hidden_size, rank, self.gate, neurons), backbone

    @property
    def own(self) -> tuple[str, ...]:
        return ("pairs.", "confidence.") if self.backbone else ("",)

    @property
    def shape(self) -> dict:
        of_pairs = {"rank": self.pairs.rank, "neurons": self.pairs.neurons}
        return of_pairs | ({"backbone": self.backbone} if self.backbone else super().shape)

    @classmethod
    def options(cls, settings: dict) -> dict:
        return {key: settings.get(key) for key in ("rank", "neurons", "backbone")}

    def before(self, tokens: Tensor, target: Transformer) -> Tensor:
        return self.pairs.before(target.embed_tokens.weight[tokens])  # [..., r]

    def after(self, tokens: Tensor, target: Transformer) -> Tensor:
        return self.pairs.second(target.lm_head.weight[tokens].to(self.dtype))  # [..., r]


class DFlash2Head(PairHead):
    kind = "dflash2"


class DFlash2(DFlash):
    """Draft a block by DFlash, and choose a path through it, or a tree, by pair scores. The options are DFlash's."""

    head = DFlash2Head

    def fillings(self, logits: Tensor, states: Tensor, last: Tensor, likeliest_tokens=likeliest_tokens) -> Expand:
        """What may fill each blank, given the token before it."""
        pairs, target = self.heads.pairs, self.target.transformer
        tokens, u = likeliest_tokens(logits, self.heads.head_ids, self.candidates)  # [b, depths, m] each
        rest = (1 - u.exp().sum(-1, keepdim=True)).clamp(min=0).log()  # [b, depths, 1], of all other tokens
        after = self.heads.after(tokens, target).mT  # [b, depths, r, m]

        def expand(depth: int, newest: Tensor | None, _) -> tuple[Tensor, Tensor]:
            codes = self.heads.before(last[:, None] if newest is None else newest, target)  # [b, w, r]
            scores = pairs.gated(codes, states[:, depth, None]) @ after[:, depth]  # [b, w, m]
            scores = u[:, depth, None] + scores
            log_z = torch.logaddexp(scores.logsumexp(-1, keepdim=True), rest[:, depth, None])
            return tokens[:, depth, None].expand_as(scores), scores - log_z

        return expand

    @property
    def candidates(self) -> int:
        return min(TOP, len(self.heads.head_ids))
