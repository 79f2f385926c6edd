"""Block verification: accept a *prefix* of the draft by its joint ratio, not token by token (Sun et al., 2025,
arXiv:2403.10444). Lossless like `verify.chain`, and never fewer accepted tokens on average.

A surplus of the target at one position can pay for a deficit at an earlier one. Let d₁ … d_k be the draft, sampled from
q₁ … q_k, and p₁ … p_{k+1} the target's distributions at the same positions. A prefix of i tokens has the weight

    w₀ = 1,    w_i = min(1, w_{i−1} · p_i(d_i) / q_i(d_i)).

We want P(at least i tokens are accepted | d₁ … d_i) = w_i. Look at what follows such a prefix. The mass that i + 1 or
more tokens are accepted with is S = Σ_x q(x)·min(1, w·p(x)/q(x)) = Σ min(w·p, q), where w = w_i, p = p_{i+1} and
q = q_{i+1}. So the rest, R = Σ [w·p − q]₊ = w − S, must come from stopping at exactly i, which happens with probability
h whenever nothing longer was accepted:

    S + (1 − S)·h = w    ⇒    h_i = R / (R + 1 − w).

At i = k nothing follows: q = 0, so R = w and h_k = w_k; and h₀ = 1. The accepted length is the largest i whose own coin
says yes, and the token after it is sampled from norm([w·p − q]₊). Where w = 1 and p = q, h is 0/0. Exact numbers never
lead there, because then w_{i+1} = 1 and a longer prefix was kept; with rounding they do, about once in 10⁷ cycles of
float32 if draft model and target agree. Then the prefix is kept (h = 1) and the token comes from p.

**Lossless.** A prefix d₁ … d_i is drafted and kept with probability Πq · w. The next token is x either because d_{i+1}
is x and kept too, or because the cycle stopped at i and x was sampled:

    Πq · min(w·p(x), q(x))  +  Πq · (1 − S)·h · [w·p(x) − q(x)]₊ / R  =  Πq · w · p(x),

since (1 − S)·h = w − S = R. So after whatever is kept, the next token follows p, and the next cycle starts from the
target as it is: nothing has to be remembered. (The paper's *greedy* variant accepts more in one cycle and pays for it
with a changed target in the next; this is not that one.)

**Never worse.** Token by token a prefix is kept with probability Π min(1, p_j/q_j). By induction that is at most w_i,
because min(1, w·r) ≥ w·min(1, r). It is strictly less where a token with p < q comes before one with p > q.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..sampling import pick
from .shared import Verdict, at, checked_uniforms, one_hot, residual


def prefix_weights(p: Tensor, q: Tensor, drafted: Tensor) -> Tensor:
    """w₀ … w_k [..., k+1] of drafted tokens [..., k]; p and q are [..., k, V] or longer."""
    ratio = at(p[..., : drafted.shape[-1], :], drafted) / at(q[..., : drafted.shape[-1], :], drafted)  # [..., k]
    weights = [torch.ones_like(p[..., 0, 0])]
    for i in range(drafted.shape[-1]):
        weights.append((weights[-1] * ratio[..., i]).clamp(max=1))
    return torch.stack(weights, -1)


def stop_probability(p: Tensor, q: Tensor, weights: Tensor) -> Tensor:
    """h [..., k+1]: stop after exactly i tokens, if no longer prefix was accepted. q is zero where nothing follows."""
    rest = (weights[..., None] * p - q).clamp(min=0).sum(-1)  # R
    below = rest + (1 - weights)  # in this order a small R is not rounded away, and w = 1 gives h = 1
    return torch.where(below > 0, rest / below, 1.0)


def block(p: Tensor, q: Tensor | None, drafted, generator) -> Verdict:
    """Verify one chain: p [k+1, V], q [k, V] (None: deterministic drafts), drafted [k]. Called like `verify.chain`."""
    drafted = torch.as_tensor(drafted, dtype=torch.long)
    u = checked_uniforms(generator, p, q, (len(drafted),))
    if q is None:
        q = torch.stack([one_hot(d, like=p[0]) for d in drafted.tolist()]) if len(drafted) else p[:0]
    q = F.pad(q, (0, 0, 0, 1))  # [k+1, V]: after the last draft token nothing was drafted
    w = prefix_weights(p, q, drafted)
    h = stop_probability(p, q, w)
    a = next((i for i in range(len(drafted), 0, -1) if u[i - 1] < float(h[i])), 0)  # the longest that its coin keeps
    return Verdict(list(range(a)), pick(residual(w[a] * p[a], q[a]), u[-1]))


def block_batch(
    p: Tensor, q: Tensor | None, drafted: Tensor, lengths: Tensor | None, generator, *, pick=pick
) -> tuple[Tensor, Tensor]:
    """`block` for all rows at once, called like `verify.chain_batch`: p [B, k+1, V], q [B, k, V] or None, drafted
    [B, k] → accepted [B], token [B]. The same random numbers give the same verdicts as `block`, row by row."""
    B, K = drafted.shape
    u = checked_uniforms(generator, p, q, (B, K))
    lengths = torch.full((B,), K, device=p.device) if lengths is None else lengths
    q = F.one_hot(drafted, p.shape[-1]).to(p.dtype) if q is None else q.to(p.dtype)
    place = torch.arange(K + 1, device=p.device)  # 0 … k: tokens accepted
    q = torch.where((place < lengths[:, None])[..., None], F.pad(q, (0, 0, 0, 1)), 0.0)  # [B, k+1, V], padding is zero
    w = prefix_weights(p, q, drafted)  # [B, k+1]
    kept = (u[:, :-1] < stop_probability(p, q, w)[:, 1:]) & (place[1:] <= lengths[:, None])  # [B, k]
    accepted = torch.where(kept, place[1:], 0).amax(-1) if K else drafted.new_zeros(B)  # the longest that is kept
    rows = torch.arange(B, device=p.device)
    emitted = residual(w[rows, accepted, None] * p[rows, accepted], q[rows, accepted])  # [B, V]
    return accepted, pick(emitted, u.gather(1, lengths[:, None]).squeeze(1))
