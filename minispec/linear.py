"""The product y = x Wᵀ + b: the one seam between the model and the machine that it runs on.

A pass over M tokens costs little more than a pass over one if W is read from memory once, and meets all M tokens while
it is at hand. General matrix libraries are made for large M: some repack W at every call. So on a CPU a product with up
to eight tokens goes through a compiled function of our own (cpu/choice.py).
"""

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

SMALL = 2**23  # parameters of a model whose passes gain nothing from a second thread


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b for x [..., K], weight [N, K], bias [N]: [..., N]."""
    if x.device.type == "cpu" and x.dtype == torch.float32 and (y := ours()(x, weight, bias)) is not None:
        return y
    return by_torch(x, weight, bias)


@functools.cache
def ours() -> Callable[..., Tensor | None]:
    """The product that is made for few tokens, imported when a CPU first multiplies; a GPU never asks for it."""
    from .cpu.choice import product

    return product


def by_torch(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """F.linear. On a CPU without instructions for bfloat16 torch falls back on a loop that takes ten to a hundred times
    as long as the product in float32, rounded once at the end, as those instructions round it."""
    if x.dtype == torch.bfloat16 and x.device.type == "cpu" and not has_bfloat16():
        return F.linear(x.float(), weight.float(), None if bias is None else bias.float()).bfloat16()
    return F.linear(x, weight, bias)


def has_bfloat16() -> bool:
    """Whether torch multiplies bfloat16 matrices by instructions made for it here. It has no public name for that."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def few_threads(method: Callable) -> Callable:
    """For a method of a model: a small one on a CPU computes on one thread. To wake a second one and wait for it takes
    as long as it saves, and ten times as long where another program wants that core."""

    @functools.wraps(method)
    def run(model, *args, **options):
        if not model.small or model.device.type != "cpu" or (allowed := torch.get_num_threads()) == 1:
            return method(model, *args, **options)
        torch.set_num_threads(1)
        try:
            return method(model, *args, **options)
        finally:
            torch.set_num_threads(allowed)

    return run
