"""Medusa: extra heads on the target's last state guess several tokens ahead at once, without a draft model.

(Cai et al., 2024, arXiv:2401.10774.) The LM head takes the state h of position t and predicts token t + 1. Head k takes
the same h and predicts token t + 1 + k:

    z = h + SiLU(W₁h + b)        logits = W₂z

W₂ is the target's own LM head, or the rows of it that a reduced vocabulary keeps, so a head is one small matrix W₁.
Published heads may have several such blocks one after the other, and each a W₂ of its own. At the start W₁ = 0 and
b = 0, and every head predicts what the LM head predicts.

No head is conditioned on what another one chose: head 2 has one prediction, whichever candidate of head 1 comes before
it. So several candidates of each are tried together, as a tree. Its shape is fixed beforehand, from how often candidate
i of head k was right on held-out sequences.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..linear import linear
from ..load.heads_medusa import read_medusa
from ..load.model import Model
from ..require import require, require_counts
from ..sequence import Sequence
from ..tree import Choice, Tree, best_tree, from_candidates
from .base import Draft
from .growth import tree_size
from .trained import HeadDrafter, StoredHead, with_noise

CANDIDATES = 10  # of each head, for which accuracies are kept


class MedusaHeads(StoredHead):
    """`count` heads for a target. `head_ids` are the tokens they can propose, sorted (None: all).

    W₂ is borrowed and stays as it is; with `own_head` it is a copy to train, one for all heads, or with "each" one for
    each of them. With "map" each head has W₂ (1 + A), with a matrix A [d, d] of its own. `blocks` is how often
    z = z + SiLU(W₁z + b) is computed, with other weights.
    `accuracy[k][i]` says how often candidate i of head k + 1 is right, given that everything before it was. Until it is
    measured, a guess stands there: each candidate half as good as the one before.
    """

    kind, published = "medusa", staticmethod(read_medusa)
    borrows = property(lambda self: self.own_head in (False, "map"))

    def __init__(
        self,
        target: Model,
        count: int = 4,
        head_ids: Tensor | None = None,
        own_head: bool | str = False,
        blocks: int = 1,
    ):
        super().__init__()
        require_counts(count=count)
        self.count, self.own_head, d = count, own_head, target.config.hidden_size
        self.weight = nn.Parameter(torch.zeros(count * d, d))  # W₁ of all heads, one below the other
        self.bias = nn.Parameter(torch.zeros(count * d))
        self.more = nn.ParameterList()  # W₁ [K, d, d] and b [K, d] of every further block
        for _ in range(blocks - 1):
            self.more.extend([nn.Parameter(torch.zeros(count, d, d)), nn.Parameter(torch.zeros(count, d))])
        self.map = nn.Parameter(torch.zeros(count, d, d)) if own_head == "map" else None  # A of every head
        self.register_buffer("head_ids", None if head_ids is None else head_ids.long())
        self.borrow(target)  # W₂ [v, d]
        if not self.borrows:
            copies = (count,) if own_head == "each" else ()
            self.head = nn.Parameter(self.head.expand(*copies, -1, -1).clone())
        self.to(target.device, target.dtype)
        self.guess(CANDIDATES)

    def guess(self, candidates: int) -> None:
        """Accuracies of so many candidates of each head that nobody has measured yet."""
        size = min(candidates, self.head.shape[-2])
        self.accuracy = [[0.5 ** (i + 1) for i in range(size)] for _ in range(self.count)]

    @property
    def blocks(self) -> int:
        return 1 + len(self.more) // 2

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

    def candidates(self, h: Tensor, noisy: Callable | None = None) -> Tensor:
        """The likeliest tokens of every head, best first: [..., K, m], as many as have accuracies. `noisy` adds to
        logits [B, K, v] of these tokens, so many positions ahead, the noise of coupled sequences."""
        logits = self(h)
        if noisy:
            ids = torch.arange(logits.shape[-1], device=h.device) if self.head_ids is None else self.head_ids
            logits = noisy(logits, ids, torch.arange(self.count, device=h.device))
        best = logits.topk(len(self.accuracy[0])).indices
        return best if self.head_ids is None else self.head_ids[best]

    @property
    def shape(self) -> dict:
        vocab = None if self.head_ids is None else len(self.head_ids)
        return {"heads": self.count, "head_vocab": vocab, "own_head": self.own_head, "blocks": self.blocks}

    @classmethod
    def made(cls, target: Model, settings: dict) -> "MedusaHeads":
        some = settings["head_vocab"] and torch.arange(settings["head_vocab"])
        return cls(target, settings["heads"], some, settings["own_head"], settings.get("blocks", 1))


def by_head(z: Tensor, weight: Tensor) -> Tensor:
    """Every head's own product: z [..., K, d] and weights [K, n, d] give [..., K, n]."""
    return torch.einsum("...kd,knd->...kn", z, weight)


class Medusa(HeadDrafter):
    """Draft a static tree of the heads' best tokens.

    `heads` are MedusaHeads, their folder or hub id, or None for those that ship. `tree` is "best" (the `nodes` nodes
    with the most expected tokens, by the heads' accuracies; None: what suits the device, growth.NODES) or "chain" (the
    best token of each head).

    With `lossless=False` drafts are judged by typical acceptance: longer runs, but NOT LOSSLESS. When sampling, the
    output no longer follows the target's distribution; greedy output stays the same.
    """

    def __init__(
        self,
        target: Model,
        heads: MedusaHeads | str | Path | None = None,
        nodes: int | None = None,
        tree: str = "best",
        lossless: bool = True,
    ):
        nodes = tree_size(nodes, target.device)
        require_counts(nodes=nodes)
        require(tree in ("best", "chain"), '"best" or "chain"', tree=tree)
        self.nodes, self.tree, self.lossless = nodes, tree == "best", lossless
        self.heads = MedusaHeads.load(target, heads)
        super().__init__(target, self.heads.weight.shape[1], (target.config.num_layers,))
        depths, accuracy = range(1, self.heads.count + 1), self.heads.accuracy
        if self.tree:  # the nodes of a tree at most k deep, best first
            self.choices = {k: best_tree(accuracy[:k], nodes) for k in depths}
        else:
            self.choices = {k: [(0,) * depth for depth in depths[:k]] for k in depths}
        self.shapes = {k: self._shape(choices) for k, choices in self.choices.items()}

    def max_tree_nodes(self, k: int) -> int:
        return len(self.shapes[min(k, self.heads.count)].tokens)

    def __repr__(self) -> str:
        nodes = len(self.shapes[self.heads.count].parents)
        what = f"tree of {nodes} nodes" if self.tree else f"chain of {nodes}"
        return f"Medusa({self.target.name}, {what}{'' if self.lossless else ', typical acceptance: not lossless'})"

    def _shape(self, choices: list[Choice]) -> Tree:
        """The tree of these nodes. Its "tokens" are where they will be in the table of candidates [K · m]."""
        m = len(self.heads.accuracy[0])
        return from_candidates([range(head * m, (head + 1) * m) for head in range(self.heads.count)], choices)

    def tree_of(self, depth: int, nodes: int) -> Tree:
        """At most so many nodes, those that are accepted most often, none deeper than this."""
        return self._shape(self.choices[min(depth, self.heads.count)][:nodes] if depth else [])

    def draft(self, sequences: list[Sequence], k: int) -> list[Draft]:
        (layers,) = self.hidden_layers
        newest = torch.stack([c.hidden[layers][-1] for c in sequences])  # [B, d], those that predicted the last tokens
        table = self.table(newest, partial(with_noise, sequences)).tolist()  # [B, K · m]
        shapes = [self.tree_of(k, c.allowed_nodes(self.max_tree_nodes(k))) for c in sequences]
        filled = [[row[i] for i in shape.tokens] for row, shape in zip(table, shapes, strict=True)]
        parents = [shape.parents if shape.tokens and self.tree else None for shape in shapes]
        return [Draft(tokens, None, above) for tokens, above in zip(filled, parents, strict=True)]

    def table(self, newest: Tensor, noisy: Callable | None = None) -> Tensor:
        """The candidates of all heads after these hidden states [B, d]: [B, K · m]."""
        h = self.target.transformer.norm(newest).to(self.heads.weight.dtype)
        return self.heads.candidates(h, noisy).flatten(1)
