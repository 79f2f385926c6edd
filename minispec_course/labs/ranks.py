"""Lesson 16: the same decoding by one process, by replicas, and by tensor-parallel ranks, on this machine's CPU."""

import torch.distributed as dist

from minispec.generate import generate
from minispec.load.folder import load
from minispec.output import Output
from minispec_tools.parallel import tensor

PROMPTS = ["One day, a girl named Lily"] * 8  # the users of a rank


def three_ways(tokens: int) -> dict[str, Output]:
    """What one rank does: the first alone, then each by itself, then all as one model. Others wait at a barrier."""
    whole, share = load("micro", device="cpu"), tensor.load("micro")
    outs = {}
    for way, model in {"one rank": whole, "replicas": whole, "tensor parallel": share}.items():
        dist.barrier()
        if way != "one rank" or dist.get_rank() == 0:
            outs[way] = min((generate(model, PROMPTS, tokens)[0] for _ in range(3)), key=lambda out: out.seconds)
    return outs
