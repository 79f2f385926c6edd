"""A mixture of experts in formulas: how many experts M tokens touch, and what that does to verification.

If every token chooses k of E experts, uniformly and independently of the others, an expert stays untouched by one token
with probability 1 − k/E. So M tokens touch

    E · (1 − (1 − k/E)^M)

of them. Real routers prefer some experts, and trained ones often choose alike for neighbours (lesson 15); both make the
number smaller. A pass reads the weights that it touches, so while reading decides, a verify pass over
K + 1 tokens costs v = bytes(K + 1) / bytes(1), which is 1 for a dense model and well above it here.
"""

from __future__ import annotations

from ..theory import _count, _positive


def experts_touched(experts: int, per_token: int, tokens: int) -> float:
    """How many of the experts a pass over so many tokens reads, if each token chooses uniformly and alone.

    >>> experts_touched(8, 2, 1)
    2.0
    >>> round(experts_touched(8, 2, 5), 2)
    6.1
    >>> round(experts_touched(128, 8, 5), 1)
    35.3
    """
    _count(experts=experts, per_token=per_token, tokens=tokens)
    if per_token > experts:
        raise ValueError(f"per_token={per_token}: a token cannot choose more than all {experts} experts")
    return experts * (1 - (1 - per_token / experts) ** tokens)


def weights_read(always: float, expert: float, experts: int, per_token: int, tokens: int, touched=None) -> float:
    """Parameters that a pass over so many tokens reads: `always` of them (attention, LM head, shared experts, routers;
    of the input embedding only a row per token) and those of the experts touched, `expert` each, over all layers.
    `touched` replaces the uniform estimate with a measured number.

    >>> round(weights_read(1.47e9, 32 * 176.2e6, 8, 2, 1) / 1e9, 1)  # Mixtral-8x7B, one token
    12.7
    """
    _positive(always=always, expert=expert)
    touched = experts_touched(experts, per_token, tokens) if touched is None else touched
    return always + touched * expert


def verify_cost_of_experts(always: float, expert: float, experts: int, per_token: int, k: int, batch: int = 1) -> float:
    """v = bytes(K + 1) / bytes(1) for a batch of B sequences, as long as reading the weights decides.

    >>> round(verify_cost_of_experts(1.47e9, 32 * 176.2e6, 8, 2, 4), 2)
    2.81
    >>> round(verify_cost_of_experts(1.47e9, 32 * 176.2e6, 8, 2, 4, batch=32), 2)
    1.0
    """
    _count(0, k=k)
    _count(batch=batch)
    shape = (always, expert, experts, per_token)
    return weights_read(*shape, batch * (k + 1)) / weights_read(*shape, batch)
