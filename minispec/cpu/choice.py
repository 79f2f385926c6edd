"""Whose product a CPU computes: torch's, or ours for up to eight tokens in float32.

Ours keeps W in a second layout (panels.py) and multiplies it by a compiled function (gemm.py); a whole forward pass of
so few tokens becomes one such function (fused.py).

MINISPEC_LINEAR=torch or =numba decides by hand; auto, the default, takes ours where it is possible, repays loading
numba, and was faster when both were tried on this machine. MINISPEC_BATCH_INVARIANT=1 takes ours for every number of
tokens, in groups of eight, so that a token's bits do not depend on its company (invariant.py).
"""

import math

import torch
from torch import Tensor

from . import invariant, machine, trials
from .panels import GROUP, fits, multiply, panels_of

REPAYS_CALLING = 2**16  # numbers: once numba is loaded, smaller matrices follow, until the call is most of the work


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    """x Wᵀ + b for x [..., K], weight [N, K], bias [N]: [..., N]; None: torch is to compute it."""
    M = math.prod(x.shape[:-1])
    # No version tells whether a weight that was made in inference mode has changed.
    if M == 0 or not fits(x, weight) or weight.is_inference():
        return None
    if M > GROUP:
        if not invariant.wanted():
            return None
        parts = [product(part, weight, bias) for part in x.reshape(M, -1).split(GROUP)]
        return None if any(part is None for part in parts) else torch.cat(parts).view(*x.shape[:-1], len(weight))
    panels = panels_of(weight) if ours(weight.numel(), M) else None
    if panels is None:
        return None
    y = multiply(x.detach().reshape(M, -1), panels, trials.threads_for(weight.nbytes))
    y = y.view(*x.shape[:-1], weight.shape[0])
    return y if bias is None else y + bias


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
