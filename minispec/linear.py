"""The product y = x Wᵀ, by whatever computes it fastest: the one seam between the model and the CPU it runs on.

A pass of M tokens costs little more than a pass of one if W is read from memory once, and meets all M tokens while it
is at hand. General matrix libraries are made for large M: some repack W at every call. So for up to eight tokens in
float32 on a CPU, W is kept in a second layout (cpu/panels.py), and multiplied by a compiled function of our own
(cpu/gemm.py); a whole forward pass of so few tokens becomes one such function (cpu/fused.py).

MINISPEC_LINEAR=torch or =numba decides by hand; auto, the default, takes ours where it is possible, repays loading
numba, and was faster when both were tried on this machine. MINISPEC_BATCH_INVARIANT=1 takes ours for every number of
tokens, in groups of eight, so that a token's bits do not depend on its company (cpu/invariant.py).
"""

import math
from collections.abc import Callable
from functools import wraps

import torch
import torch.nn.functional as F
from torch import Tensor

from .cpu import invariant, machine, trials
from .cpu.panels import GROUP, fits, multiply, panels_of

SMALL = 2**23  # parameters of a model whose passes gain nothing from a second thread
REPAYS_CALLING = 2**16  # numbers: once numba is loaded, smaller matrices follow, until the call is most of the work


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b for x [..., K], weight [N, K], bias [N]: [..., N]."""
    M = math.prod(x.shape[:-1])
    # No version tells whether a weight that was made in inference mode has changed.
    possible = M > 0 and fits(x, weight) and not weight.is_inference()
    if possible and M > GROUP and invariant.wanted():
        parts = [linear(part, weight, bias) for part in x.reshape(M, -1).split(GROUP)]
        return torch.cat(parts).view(*x.shape[:-1], len(weight))
    panels = panels_of(weight) if possible and M <= GROUP and ours(weight.numel(), M) else None
    if panels is None:
        return by_torch(x, weight, bias)
    y = multiply(x.detach().reshape(M, -1), panels, trials.threads_for(weight.nbytes))
    y = y.view(*x.shape[:-1], weight.shape[0])
    return y if bias is None else y + bias


def few_threads(method: Callable) -> Callable:
    """For a method of a model: a small one on a CPU computes on one thread. To wake a second one and wait for it takes
    as long as it saves, and ten times as long where another program wants that core."""

    @wraps(method)
    def run(model, *args, **options):
        if not model.small or model.device.type != "cpu" or (allowed := torch.get_num_threads()) == 1:
            return method(model, *args, **options)
        torch.set_num_threads(1)
        try:
            return method(model, *args, **options)
        finally:
            torch.set_num_threads(allowed)

    return run


def by_torch(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """F.linear. On a CPU without instructions for bfloat16 torch falls back on a loop that takes ten to a hundred times
    as long as the product in float32, rounded once at the end, as those instructions round it."""
    if x.dtype == torch.bfloat16 and x.device.type == "cpu" and not has_bfloat16():
        return F.linear(x.float(), weight.float(), None if bias is None else bias.float()).bfloat16()
    return F.linear(x, weight, bias)


def has_bfloat16() -> bool:
    """Whether torch multiplies bfloat16 matrices by instructions made for it here. It has no public name for that."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def ours(numbers: int, tokens: int = GROUP) -> bool:
    """Whether a weight of so many numbers is multiplied with so many tokens by our product."""
    if (decided := machine.decided()) is not None:
        return decided
    small = numbers < machine.REPAYS_LOADING
    if small and (tokens == 1 or numbers < REPAYS_CALLING or not machine.is_loaded()):
        return False  # one token: torch reads every weight once, too, and its call takes less time
    if machine.compiled() is None:
        return False
    return trials.trials()["ours"] <= trials.trials()["torch"]
