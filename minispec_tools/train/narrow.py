"""Cut neurons out of trained MLPs, and let those that stay say what the others said.

An MLP ends with y = A W: activations A [n, m] of its m neurons, and what each of them says, W [m, d]. Neurons S that
stay should give the same y, by weights V. For a given S that is least squares, and needs of A only its Gram matrix:

    V = argmin ‖A_S V − A W‖² = (G_SS)⁻¹ G_S W                 G = Aᵀ A

Without neuron i of S the best possible error would grow by ‖V_i‖² / [(G_SS)⁻¹]_ii (the optimal brain surgeon). So the
cheapest go first, a few at a time, and the rest take over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from minispec.model import MLP

AT_ONCE = 64  # neurons that go before the others are weighed again


def survivors(gram: Tensor, weight: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Which `count` neurons stay, and what they say then: G [m, m], W [m, d] → S [count], V [count, d]."""
    gram, weight = gram.double(), weight.double()
    gram = gram + 1e-4 * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    kept = torch.arange(len(gram), device=gram.device)
    while True:
        inverse = torch.linalg.inv(gram[kept][:, kept])
        said = inverse @ gram[kept] @ weight  # V
        surplus = len(kept) - count
        if surplus <= 0:
            return kept, said
        price = said.square().sum(1) / inverse.diagonal()
        kept = kept[price.argsort()[min(AT_ONCE, surplus) :].sort().values]


@torch.no_grad()
def narrow(mlps: Sequence[MLP], count: int, use: Callable[[], object]) -> list[dict[str, Tensor]]:
    """The weights of MLPs with `count` neurons each that do what these do while `use` runs, as nearly as can be."""
    grams = [mlp.down_proj.weight.new_zeros(2 * [mlp.down_proj.in_features], dtype=torch.float32) for mlp in mlps]

    def look(gram: Tensor, module, given) -> None:
        a = given[0].flatten(0, -2).float()  # [n, m]
        gram.add_(a.T @ a)

    both = zip(mlps, grams, strict=True)
    watching = [mlp.down_proj.register_forward_pre_hook(partial(look, gram)) for mlp, gram in both]
    use()
    for hook in watching:
        hook.remove()
    states = []
    for mlp, gram in zip(mlps, grams, strict=True):
        kept, said = survivors(gram, mlp.down_proj.weight.T, count)
        state = {name: tensor if "down" in name else tensor[kept] for name, tensor in mlp.state_dict().items()}
        states.append(state | {"down_proj.weight": said.T.to(mlp.down_proj.weight.dtype)})
    return states
