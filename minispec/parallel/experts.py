"""Expert parallelism: every rank holds one expert, and tokens travel to theirs and back.

All experts of a mixture (experts.py) have to be in memory, but a token needs the weights of a few only. So each rank
keeps one expert and its own share of the tokens. Two all-to-alls a layer: tokens go out to their experts, results come
home. How many go where only the router knows, so the counts travel first. A popular expert makes all other ranks wait.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from ..experts import Mixture, route


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
