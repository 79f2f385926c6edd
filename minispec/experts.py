"""A mixture of experts: many MLPs in a layer, of which each token uses a few (Shazeer et al., 2017, arXiv:1701.06538).

    g = softmax(R x)        E numbers, by the router R
    S = the k largest       renormalised to sum to 1 in some families (Mixtral), not in others (OLMoE)
    y = Σ_{e ∈ S} g_e · MLP_e(x)  +  σ(s · x) · MLP_shared(x)        the last where a family has a shared expert

A token reads k experts of E, so decoding one sequence reads few bytes. M tokens in one pass read the union of their
choices, each of these experts once: that is what makes verification more expensive here than in a dense model
(lesson 15b counts them), and `grouped` computes it that way.

Shapes: n tokens, d hidden size, E experts, k of them per token, f neurons of one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Experts:
    """The shape of a mixture, a part of a model's Config."""

    count: int  # E
    per_token: int  # k
    size: int  # f
    shared_size: int = 0  # neurons of the shared expert; 0: there is none
    renormalise: bool = True  # whether the k gates are scaled to sum to 1
    dense_layers: tuple[int, ...] = ()  # layers that have an ordinary MLP


def route(logits: Tensor, k: int, renormalise: bool) -> tuple[Tensor, Tensor]:
    """Router logits [n, E] → the gates of the k largest and which they are, [n, k] each."""
    probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)
    gates, chosen = probs.topk(k, dim=-1)
    if renormalise:
        gates = gates / gates.sum(-1, keepdim=True)
    return gates.to(logits.dtype), chosen


def grouped(x: Tensor, gates: Tensor, chosen: Tensor, experts: Sequence[nn.Module]) -> Tensor:
    """Σ gate · expert(x) for x [n, d]: a loop over the experts that some token chose, each with all of its tokens."""
    y = torch.zeros_like(x)
    for e in chosen.unique().tolist():
        token, choice = (chosen == e).nonzero(as_tuple=True)
        y.index_add_(0, token, gates[token, choice, None] * experts[e](x[token]))
    return y


class Mixture(nn.Module):
    """The MLP of a layer, as a mixture: parameters carry the names of Qwen's and OLMoE's checkpoints."""

    def __init__(self, shape: Experts, router: nn.Module, experts: Sequence[nn.Module], shared=None, shared_gate=None):
        super().__init__()
        self.shape, self.gate, self.experts = shape, router, nn.ModuleList(experts)
        self.shared_expert, self.shared_expert_gate = shared, shared_gate

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])  # [n, d]
        gates, chosen = route(self.gate(rows), self.shape.per_token, self.shape.renormalise)
        y = grouped(rows, gates, chosen, self.experts)
        if self.shared_expert is not None:
            y = y + self.shared_expert_gate(rows).sigmoid() * self.shared_expert(rows)
        return y.view(x.shape)
