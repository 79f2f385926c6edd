"""Expert parallelism: every rank holds one expert, and tokens travel to theirs and back.

All experts of a mixture (experts.py) have to be in memory, but a token needs the weights of a few only. So each rank
keeps one expert and its own share of the tokens. Two all-to-alls a layer: tokens go out to their experts, results come
home. How many go where only the router knows, so the counts travel first. A popular expert makes all other ranks wait.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..experts import Experts, Mixture, route
from ..model import Config, mixture
from ..require import require
from .tensor import launch


def random_mixture(experts: int = 2, per_token: int = 1, hidden: int = 64, seed: int = 0) -> Mixture:
    """A layer to try it on, in float64."""
    generator, shape = torch.Generator().manual_seed(seed), Experts(experts, per_token, size=2 * hidden)
    layer = mixture(Config(1, hidden, 1, 1, 1, 1, 1, 1, experts=shape)).double()  # whatever the rest of the model is
    for weight in layer.requires_grad_(False).parameters():
        nn.init.normal_(weight, std=weight.shape[-1] ** -0.5, generator=generator)
    return layer


@torch.inference_mode()
def parallel_mixture(layer: Mixture, x: Tensor) -> tuple[Tensor, list[int]]:
    """What the layer makes of this rank's tokens x [n, d], with only this rank's expert: y, and how many went where."""
    (n, d), k, rank, ranks = x.shape, layer.shape.per_token, dist.get_rank(), dist.get_world_size()
    gates, chosen = route(layer.gate(x), k, layer.shape.renormalise)  # [n, k] each
    order = chosen.flatten().argsort(stable=True)  # tokens for the same expert side by side
    send = torch.bincount(chosen.flatten(), minlength=ranks)  # [t] tokens that go to each rank
    receive = torch.empty_like(send)
    dist.all_to_all_single(receive, send)  # the counts first: the receivers have to make room
    to, fro = send.tolist(), receive.tolist()

    visitors = x.new_empty(sum(fro), d)
    dist.all_to_all_single(visitors, x.repeat_interleave(k, 0)[order], fro, to)
    home = x.new_empty(n * k, d)
    dist.all_to_all_single(home, layer.experts[rank](visitors), to, fro)
    y = torch.empty_like(home)
    y[order] = home
    return (gates[..., None] * y.view(n, k, d)).sum(1), to


def my_share(layer: Mixture, x: Tensor) -> tuple[Tensor, list[int]]:
    return parallel_mixture(layer, x.tensor_split(dist.get_world_size())[dist.get_rank()])


def run(layer: Mixture, x: Tensor, ranks: int = 2) -> tuple[Tensor, list[list[int]]]:
    """The layer on fresh processes, one for each expert: y [n, d], and who sent how many tokens to whom."""
    require(ranks == layer.shape.count, f"one rank for each of the {layer.shape.count} experts", ranks=ranks)
    require(len(x) >= ranks, "at least one for each rank", tokens=len(x))
    y, sent = zip(*launch(my_share, ranks, layer, x), strict=True)
    return torch.cat(y), list(sent)
