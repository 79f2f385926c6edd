"""Medusa's heads: what medusa.py describes, as a module."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..kernels import linear
from ..load.handle import Model
from ..load.heads import fill, find_heads, heads_for, save_heads

CANDIDATES = 10  # of each head, for which accuracies are kept


class MedusaHeads(nn.Module):
    """`count` heads for a target. `head_ids` are the tokens they can propose, sorted (None: all).

    W₂ is borrowed and stays as it is; with `own_head` it is a copy to train, one for all heads, or with "each" one for
    each of them. With "map" each head has W₂ (1 + A), with a matrix A [d, d] of its own: an LM head for each head that
    takes as little room as another W₁. `blocks` is how often z = z + SiLU(W₁z + b) is computed, each time with other
    weights.
    `accuracy[k][i]` says how often candidate i of head k + 1 is right, given that everything before it was. Until it is
    measured (recipes.medusa.calibrate), a guess stands there: each candidate half as good as the one before.
    """

    def __init__(
        self,
        target: Model,
        count: int = 4,
        head_ids: Tensor | None = None,
        own_head: bool | str = False,
        blocks: int = 1,
    ):
        super().__init__()
        if not (isinstance(count, int) and count >= 1):
            raise ValueError(f"count={count!r}: give the number of heads, a whole number ≥ 1")
        self.count, self.own_head, d = count, own_head, target.config.hidden_size
        self.weight = nn.Parameter(torch.zeros(count * d, d))  # W₁ of all heads, one below the other
        self.bias = nn.Parameter(torch.zeros(count * d))
        self.more = nn.ParameterList()  # W₁ [K, d, d] and b [K, d] of every further block
        for _ in range(blocks - 1):
            self.more.extend([nn.Parameter(torch.zeros(count, d, d)), nn.Parameter(torch.zeros(count, d))])
        self.map = nn.Parameter(torch.zeros(count, d, d)) if own_head == "map" else None  # A of every head
        self.register_buffer("head_ids", None if head_ids is None else head_ids.long())
        rows = chosen_rows(target, self.head_ids)  # W₂ [v, d]
        if own_head in (True, "each"):
            self.head = nn.Parameter(rows.expand(count, *rows.shape).clone() if own_head == "each" else rows.clone())
        else:
            self.register_buffer("head", rows, persistent=False)  # moves with the module, but is not stored
        self.to(target.device, target.dtype)
        self.guess(CANDIDATES)

    def guess(self, candidates: int) -> None:
        """Accuracies of so many candidates of each head that nobody has measured yet."""
        size = min(candidates, self.head.shape[-2])
        self.accuracy = [[0.5 ** (i + 1) for i in range(size)] for _ in range(self.count)]

    @property
    def blocks(self) -> int:
        return 1 + len(self.more) // 2

    @property
    def borrows(self) -> bool:
        """Whether the rows of W₂ are the target's own, so that more tokens cost no weights."""
        return self.own_head in (False, "map")

    def features(self, h: Tensor) -> Tensor:
        """The features z of every head [..., K, d], from the target's normed states [..., d]; with maps (1 + A) z."""
        z = h[..., None, :] + F.silu(linear(h, self.weight, self.bias)).unflatten(-1, (self.count, -1))
        for weight, bias in zip(self.more[::2], self.more[1::2], strict=True):
            z = z + F.silu(by_head(z, weight) + bias)
        return z if self.map is None else z + by_head(z, self.map)

    def forward(self, h: Tensor) -> Tensor:
        """Logits of every head on the reduced vocabulary, [..., K, v]."""
        z = self.features(h)
        return linear(z, self.head) if self.head.ndim == 2 else by_head(z, self.head)

    def candidates(self, h: Tensor) -> Tensor:
        """The likeliest tokens of every head, best first: [..., K, m], as many as have accuracies."""
        best = self(h).topk(len(self.accuracy[0])).indices
        return best if self.head_ids is None else self.head_ids[best]

    def save(self, target: Model, folder: str | Path, bits: int | None = 8) -> None:
        settings = {
            "heads": self.count,
            "head_vocab": None if self.head_ids is None else len(self.head_ids),
            "own_head": self.own_head,
            "blocks": self.blocks,
            "accuracy": self.accuracy,
        }
        save_heads(self, folder, heads_for(target, "medusa") | settings, bits)

    @classmethod
    def load(cls, target: Model, folder: str | Path | None = None) -> MedusaHeads:
        """Stored heads of ours; None: those that ship with minispec."""
        folder, settings = find_heads(target, "medusa", folder)
        some = settings["head_vocab"] and torch.arange(settings["head_vocab"])
        heads = cls(target, settings["heads"], some, settings["own_head"], settings.get("blocks", 1))
        fill(heads, folder)
        if heads.borrows:
            heads.head = chosen_rows(target, heads.head_ids)  # only now it is known which
        heads.accuracy = settings["accuracy"]
        return heads


def by_head(z: Tensor, weight: Tensor) -> Tensor:
    """Every head's own product: z [..., K, d] and weights [K, n, d] give [..., K, n]."""
    return torch.einsum("...kd,knd->...kn", z, weight)


def chosen_rows(target: Model, head_ids: Tensor | None) -> Tensor:
    """The LM head's rows for these tokens [v, d]."""
    weight = target.transformer.lm_head.weight.detach()
    return weight if head_ids is None else weight[head_ids.to(weight.device)]
