"""What all verifiers share: verdicts, the acceptance rule and the residual (verify.py proves them), and guards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..sampling import widest
from ..tree import check_parents

Context = tuple[int, ...]
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}  # how far from one the sum may be; half precision: 0.02


class Verdict(NamedTuple):
    path: list[int]  # indices of the accepted drafts: 0, 1, … of a chain, a way down from the root of a tree
    token: int  # the one token more that every cycle emits: the correction, or the bonus if nothing was rejected

    @property
    def accepted(self) -> int:
        return len(self.path)

    def run(self, drafted: Sequence[int]) -> Context:
        """All tokens of the cycle."""
        return (*(drafted[i] for i in self.path), self.token)


# ---- the two rules -------------------------------------------------------------------------------------------------


def accept_probability(p: Tensor, q: Tensor, token: int | Tensor) -> Tensor:
    """min(1, p(d)/q(d)) for distributions [..., V] and tokens [...]. `check_draft` finds a token with q(d) = 0."""
    p_d, q_d = at(p, token), at(q, token)
    return torch.where(p_d < q_d, p_d / q_d, 1.0)


def at(probs: Tensor, token: int | Tensor) -> Tensor:
    """probs(token): one number of every distribution [..., V], for one token or for tokens [...]."""
    return probs[..., token] if isinstance(token, int) else probs.gather(-1, token[..., None]).squeeze(-1)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """norm([p − q]₊), [..., V]: what the draft left uncovered. Where p = q nothing is, nor is anything rejected: p."""
    uncovered = (p - q).clamp(min=0)
    total = uncovered.sum(-1, keepdim=True)
    return torch.where(total > 0, uncovered / total, p)


def one_hot(token: int, like: Tensor) -> Tensor:
    """The distribution of a drafter that could have proposed nothing else, [V]."""
    probs = torch.zeros_like(like)
    probs[token] = 1.0
    return probs


# ---- guards --------------------------------------------------------------------------------------------------------


def check_distribution(name: str, probs: Tensor) -> None:
    """Every distribution of [..., V] is non-negative and sums to one, within what its dtype can hold."""
    total = probs.sum(-1, dtype=torch.float64 if probs.dtype == torch.float64 else torch.float32)
    wrong = ~((total - 1).abs() <= TOLERANCE.get(probs.dtype, 0.02))  # the negation catches NaN too
    if bool(wrong.any() | (probs.amin() < 0)):
        found = f"sums to {total[wrong][0]:.6g}" if bool(wrong.any()) else f"holds {probs.amin():.6g}"
        raise ValueError(f"{name} {found}: give probabilities (≥ 0, sum 1), e.g. from Sampling.probs")


def check_draft(tokens: Tensor, q: Tensor | None, vocab_size: int, lengths: Tensor | None = None) -> None:
    """Refuse a draft that could not have been sampled: once a cycle, for all tokens [..., γ] together."""
    check_q_shape(q, (*tokens.shape, vocab_size))
    if lengths is not None:  # look at no padding
        real = torch.arange(tokens.shape[-1], device=tokens.device) < lengths[..., None]
        tokens, q = tokens[real], None if q is None else q[real]
    if tokens.numel() == 0:
        return
    if bool((outside := (tokens < 0) | (tokens >= vocab_size)).any()):
        named = f"drafted token {int(tokens[outside][0])} is outside the target's vocabulary of {vocab_size}"
        raise ValueError(f"{named}: draft and target need the same tokenizer")
    if q is not None:
        check_distribution("q", q)
        if bool((never := at(q, tokens) == 0).any()):
            named = f"drafted token {int(tokens[never][0])} has probability 0 under q"
            raise ValueError(f"{named}: q must be what it was really sampled from (None if it was not sampled at all)")


def check_q_shape(q: Tensor | None, needed: tuple[int, ...]) -> None:
    if q is not None and q.shape != needed:
        raise ValueError(f"q has shape {tuple(q.shape)}, not {needed}: one distribution over the target's vocabulary")


def checked_nodes(tokens, parents) -> tuple[list[int], list[int]]:
    """A token tree as two lists, checked."""
    tokens, parents = torch.as_tensor(tokens, dtype=torch.long).tolist(), torch.as_tensor(parents).tolist()
    if len(tokens) != len(parents):
        raise ValueError(f"tokens has {len(tokens)} nodes and parents {len(parents)}: give one parent per node")
    check_parents(parents)
    return tokens, parents


def checked_uniforms(generator, p: Tensor, q: Tensor | None, drafted: tuple[int, ...]) -> Tensor | Sequence[float]:
    """Check the shapes of a verifier's call with so many draft tokens, [γ] or [B, γ], and get its random numbers: as
    many as distributions, however the call ends, so that runs stay comparable."""
    *rows, n = drafted
    shape = (*rows, n + 1)
    if p.shape[:-1] != shape:
        raise ValueError(f"p has shape {tuple(p.shape)}: {drafted} draft tokens need {shape} distributions, one more")
    check_q_shape(q, (*drafted, p.shape[-1]))
    if isinstance(generator, torch.Generator):
        generator = torch.rand(shape, generator=generator, dtype=widest(generator.device), device=generator.device)
    given = tuple(generator.shape) if isinstance(generator, Tensor) else (len(generator or ()),)
    if given != shape:
        raise ValueError(f"generator={generator!r}: give a torch.Generator, or numbers in [0, 1) of shape {shape}")
    if isinstance(generator, Tensor):
        return generator.tolist() if len(shape) == 1 else generator.to(p.device, widest(p.device))
    return generator
