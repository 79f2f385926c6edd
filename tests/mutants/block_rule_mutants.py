"""Wrong block verifiers, with the signature of `verify.block`."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from minispec import verify
from minispec.verify import Verdict, one_hot, pick, residual


def parts(p, q, drafted):
    drafted = torch.as_tensor(drafted, dtype=torch.long)
    if q is None:
        q = torch.stack([one_hot(d, like=p[0]) for d in drafted.tolist()]) if len(drafted) else p[:0]
    q = F.pad(q, (0, 0, 0, 1))
    w = verify.prefix_weights(p, q, drafted)
    return q, w, verify.stop_probability(p, q, w)


def residual_without_weight(p, q, drafted, generator):
    """Samples the token after the accepted prefix from norm([p − q]₊), the residual of the other rule."""
    told, _, h = parts(p, q, drafted)
    a = next((i for i in range(len(drafted), 0, -1) if generator[i - 1] < float(h[i])), 0)
    return Verdict(list(range(a)), pick(residual(p[a], told[a]), generator[-1]))


def weight_as_coin(p, q, drafted, generator):
    """Stops at i with probability w_i instead of h_i: prefixes that a longer one has covered are counted twice."""
    told, w, _ = parts(p, q, drafted)
    a = next((i for i in range(len(drafted), 0, -1) if generator[i - 1] < float(w[i])), 0)
    return Verdict(list(range(a)), pick(residual(w[a] * p[a], told[a]), generator[-1]))


def first_refusal_ends(p, q, drafted, generator):
    """Stops at the first coin that says no, as token by token: longer prefixes never get their chance."""
    told, w, h = parts(p, q, drafted)
    a = next((i for i in range(len(drafted)) if generator[i] >= float(h[i + 1])), len(drafted))
    return Verdict(list(range(a)), pick(residual(w[a] * p[a], told[a]), generator[-1]))


def weight_not_capped(p, q, drafted, generator):
    """Forgets the min(1, …): a surplus is saved for later, and a weight above one is no probability."""
    told, _, _ = parts(p, q, drafted)
    w = [p.new_ones(())]
    for i, d in enumerate(torch.as_tensor(drafted, dtype=torch.long).tolist()):
        w.append(w[-1] * p[i, d] / told[i, d])
    w = torch.stack(w)
    h = verify.stop_probability(p, told, w)
    a = next((i for i in range(len(drafted), 0, -1) if generator[i - 1] < float(h[i])), 0)
    return Verdict(list(range(a)), pick(residual(w[a] * p[a], told[a]), generator[-1]))


def one_coin(p, q, drafted, generator):
    """Decides about all prefixes with one random number."""
    return verify.block(p, q, drafted, [generator[0]] * len(drafted) + [generator[-1]])


def nothing_over_nothing(p, q, drafted, generator):
    """Computes h = R / (R + 1 − w) also where that is 0/0: no random number is below NaN, so the prefix is given up."""
    told, w, _ = parts(p, q, drafted)
    rest = (w[:, None] * p - told).clamp(min=0).sum(-1)
    h = rest / (rest + (1 - w))
    a = next((i for i in range(len(drafted), 0, -1) if generator[i - 1] < float(h[i])), 0)
    return Verdict(list(range(a)), pick(residual(w[a] * p[a], told[a]), generator[-1]))


def empty_residual(p, q, drafted, generator):
    """Samples from [w·p − q]₊ / R also where R = 0."""
    told, w, h = parts(p, q, drafted)
    a = next((i for i in range(len(drafted), 0, -1) if generator[i - 1] < float(h[i])), 0)
    missing = (w[a] * p[a] - told[a]).clamp(min=0)
    return Verdict(list(range(a)), pick(missing / missing.sum(), generator[-1]))


def token_by_token(p, q, drafted, generator):
    """The other rule: lossless too, but it accepts less."""
    return verify.chain(p, q, drafted, generator)


MUTANTS = {  # and the check that catches it
    residual_without_weight: "cycles",
    weight_as_coin: "cycles",
    first_refusal_ends: "cycles",
    weight_not_capped: "cycles",
    one_coin: "cycles",
    nothing_over_nothing: "rounding",
    empty_residual: "rounding",
    token_by_token: "length",
}
