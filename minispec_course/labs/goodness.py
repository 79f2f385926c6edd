"""Goodness of fit: do counts follow a distribution, and how many would it take to notice that they do not."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from minispec.exact import as_distribution, total_variation


def claim(says: str, found, wanted) -> None:
    """Print whether a distribution is the one that a claim says it is, and how far it is from that one."""
    off = total_variation(found, wanted)
    print(f"{'holds' if off < 1e-12 else 'FAILS'}   {says:52s} TV = {off:.4f}")


def chi_square(counts: Sequence[int], probs) -> float:
    """How often counts that do follow the distribution would look at least this odd: the p-value of Pearson's χ² test.

    Tokens expected fewer than five times are counted together. A token of probability 0 gives 0.
    """
    probs, counts = as_distribution("probs", probs), torch.as_tensor(counts, dtype=torch.float64)
    if probs.shape != counts.shape:
        raise ValueError(
            f"counts has {len(counts)} entries and the distribution {len(probs)}: give one count per token"
        )
    expected = probs * counts.sum()
    if bool(counts[probs == 0].any()):
        return 0.0
    rare = expected < 5
    seen = torch.cat([counts[~rare], counts[rare].sum()[None]])
    wanted = torch.cat([expected[~rare], expected[rare].sum()[None]])
    if wanted[-1] < 5:  # too few to be a bin of their own
        seen, wanted = seen[:-1], wanted[:-1]
    if len(wanted) < 2:
        return 1.0  # nothing to compare yet
    statistic = float(((seen - wanted) ** 2 / wanted).sum())
    return _survival(statistic, len(wanted) - 1)


def samples_needed(probs, other, power: float = 0.95, level: float = 0.001) -> int:
    """How many samples from `other` until a χ² test at this level tells it from `probs` with this probability.

    The statistic of n samples is then a non-central χ² with non-centrality n·Σ `(other − probs)²/probs`.
    """
    probs, other = as_distribution("probs", probs), as_distribution("other", other)
    for name, value in (("power", power), ("level", level)):
        if not 0 < value < 1:
            raise ValueError(f"{name}={value!r}: give a probability between 0 and 1")
    per_sample = float(((other - probs) ** 2 / probs)[probs > 0].sum())
    if per_sample == 0:
        raise ValueError("the two distributions are equal: no number of samples can tell them apart")
    degrees = int((probs > 0).sum()) - 1
    edge = _bisect(lambda x: _survival(x, degrees) > level)
    return int(_bisect(lambda shift: _shifted_survival(edge, degrees, shift) < power) / per_sample) + 1


def _survival(x: float, degrees: float) -> float:
    """P(χ² > x)."""
    half = torch.tensor([degrees / 2, x / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def _shifted_survival(x: float, degrees: int, shift: float) -> float:
    """The same for a non-central χ²: a Poisson mixture of central ones with two degrees more each."""
    j = torch.arange(int(shift / 2 + 12 * (shift / 2 + 1) ** 0.5) + 1, dtype=torch.float64)
    weight = torch.exp(j * torch.log(torch.tensor(shift / 2 + 1e-300)) - shift / 2 - torch.lgamma(j + 1))
    tail = torch.special.gammaincc(degrees / 2 + j, torch.full_like(j, x / 2))
    return float((weight * tail).sum())


def _bisect(too_low) -> float:
    """The border of a condition that holds for small numbers and no longer for large ones."""
    low, high = 0.0, 1.0
    while too_low(high):
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if too_low(middle) else (low, middle)
    return high
