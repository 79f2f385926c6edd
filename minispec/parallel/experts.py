"""Expert parallelism: every rank holds one expert, and tokens travel to theirs and back.

A mixture of experts has many MLPs and a router that sends each token to one of them:

    g = softmax(R x)        e = argmax g        y = g_e · MLP_e(x)

All experts have to be in memory, but a token needs the weights of one only. So each rank keeps one expert and its own
share of the tokens. Two all-to-alls a layer: tokens go out to their experts, results come home. How many go where only
the router knows, so the counts travel first. A popular expert makes all other ranks wait.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from .tensor import launch


@dataclass
class Mixture:
    """The weights of a layer with E experts."""

    router: Tensor  # [E, d]
    up: Tensor  # [E, f, d]
    down: Tensor  # [E, d, f]

    @classmethod
    def random(cls, experts: int = 2, hidden: int = 64, neurons: int = 128, seed: int = 0) -> Mixture:
        generator = torch.Generator().manual_seed(seed)
        shapes = ((experts, hidden), (experts, neurons, hidden), (experts, hidden, neurons))
        return cls(*(torch.randn(s, generator=generator, dtype=torch.float64) / s[-1] ** 0.5 for s in shapes))

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The expert of every token of x [n, d], and how much it has to say: [n] each."""
        gate, expert = (x @ self.router.T).softmax(-1).max(-1)
        return expert, gate

    def expert(self, e: int, x: Tensor) -> Tensor:
        """What expert e makes of x [n, d]: [n, d]."""
        return F.silu(x @ self.up[e].T) @ self.down[e].T


def mixture(weights: Mixture, x: Tensor) -> Tensor:
    """The layer on one device: x [n, d] → y [n, d]."""
    expert, gate = weights.route(x)
    y = torch.zeros_like(x)
    for e in range(len(weights.router)):
        y[expert == e] = weights.expert(e, x[expert == e])
    return gate[:, None] * y


@torch.inference_mode()
def parallel_mixture(weights: Mixture, x: Tensor) -> tuple[Tensor, list[int]]:
    """The same for this rank's tokens x [n, d], with only this rank's expert: y, and how many it sent to whom."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    expert, gate = weights.route(x)
    order = expert.argsort(stable=True)  # tokens for the same expert side by side
    send = torch.bincount(expert, minlength=ranks)  # [t] tokens that go to each rank
    receive = torch.empty_like(send)
    dist.all_to_all_single(receive, send)  # the counts first: the receivers have to make room
    to, fro = send.tolist(), receive.tolist()

    visitors = x.new_empty(sum(fro), x.shape[1])
    dist.all_to_all_single(visitors, x[order], fro, to)
    back = torch.empty_like(x)
    dist.all_to_all_single(back, weights.expert(rank, visitors), to, fro)
    y = torch.empty_like(x)
    y[order] = back
    return gate[:, None] * y, to


def my_share(weights: Mixture, x: Tensor) -> tuple[Tensor, list[int]]:
    return parallel_mixture(weights, x.tensor_split(dist.get_world_size())[dist.get_rank()])


def run(weights: Mixture, x: Tensor, ranks: int = 2) -> tuple[Tensor, list[list[int]]]:
    """The layer on fresh processes, one for each expert: y [n, d], and who sent how many tokens to whom."""
    if ranks != len(weights.router):
        raise ValueError(f"ranks={ranks} for {len(weights.router)} experts: give one rank for each")
    if len(x) < ranks:
        raise ValueError(f"{len(x)} tokens for {ranks} ranks: give each at least one")
    y, sent = zip(*launch(my_share, ranks, weights, x), strict=True)
    return torch.cat(y), list(sent)
