"""The rejection sampler: drafted tokens in, tokens out that follow the target's law exactly. No model in sight.

p is the target's law after temperature and truncation, q the law a draft was *really drawn from*. Accept a draft d with
probability min(1, p(d)/q(d)); after a rejection emit from the residual, norm([p − q]₊). What comes out follows

    q(x)·min(1, p(x)/q(x))  +  P(reject)·[p − q]₊(x) / Σ[p − q]₊  =  min(p, q)(x) + [p − q]₊(x)  =  p(x),

because P(reject) = 1 − Σ min(p, q) = Σ [p − q]₊. `emitted_distribution` at the end of this file computes that
distribution instead of believing it; exact.py does the same for whole programs.

A `generator` is a torch.Generator, or the random numbers in [0, 1) themselves: one per row of p.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .tree import check_parents, children, depths, path_to

Context = tuple[int, ...]
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}  # how far from one a law may sum; half precision: 0.02


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
    """min(1, p(d)/q(d)) for laws [..., V] and tokens [...]. A token that q cannot draw is for `check_draft` to find."""
    p_d, q_d = at(p, token), at(q, token)
    return torch.where(p_d < q_d, p_d / q_d, 1.0)


def at(law: Tensor, token: int | Tensor) -> Tensor:
    """law(token): one number of every law [..., V], for one token or for tokens [...]."""
    return law[..., token] if isinstance(token, int) else law.gather(-1, token[..., None]).squeeze(-1)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """norm([p − q]₊), [..., V]: what the draft left uncovered. Where p = q nothing is, nor is anything rejected: p."""
    uncovered = (p - q).clamp(min=0)
    total = uncovered.sum(-1, keepdim=True)
    return torch.where(total > 0, uncovered / total, p)


def pick(law: Tensor, u) -> int | Tensor:
    """The token at which the running total of a law passes u: one number draws one token. law [..., V], u [...]."""
    total = law.double().cumsum(-1)
    total = total / total[..., -1:]  # ends at exactly 1 > u, so a token of probability 0 is never picked
    if isinstance(u, Tensor):
        return torch.searchsorted(total, u[..., None].contiguous(), right=True).squeeze(-1)
    return bisect_right(total.cpu().numpy(), u)


def one_hot(token: int, like: Tensor) -> Tensor:
    """The law of a drafter that could not have said anything else, [V]."""
    law = torch.zeros_like(like)
    law[token] = 1.0
    return law


# ---- verifiers -----------------------------------------------------------------------------------------------------


def chain(p: Tensor, q: Tensor | None, drafted, generator, *, accept=accept_probability, replace=residual) -> Verdict:
    """Verify one row: p [γ+1, V], q [γ, V] (None: deterministic drafts), drafted [γ]. Lossless.

    Another `accept` or `replace` rule may be plugged in, to see what breaks.
    """
    drafted = torch.as_tensor(drafted, dtype=torch.long).tolist()
    _check_shapes(p, q, (len(drafted),))
    u = _uniforms(generator, (len(p),), p.device)
    for i, d in enumerate(drafted):
        q_i = one_hot(d, like=p[i]) if q is None else q[i]
        if u[i] >= float(accept(p[i], q_i, d)):
            return Verdict(list(range(i)), pick(replace(p[i], q_i), u[-1]))  # the correction
    return Verdict(list(range(len(drafted))), pick(p[-1], u[-1]))  # the bonus


def greedy(best: Sequence[int], drafted: Sequence[int]) -> Verdict:
    """`chain` where neither side draws: only the target's likeliest tokens pass, best [γ+1]."""
    accepted = next((i for i, token in enumerate(drafted) if token != best[i]), len(drafted))
    return Verdict(list(range(accepted)), best[accepted])


def chain_batch(
    p: Tensor, q: Tensor | None, drafted: Tensor, lengths: Tensor | None, generator, *, pick=pick
) -> tuple[Tensor, Tensor]:
    """`chain` for all rows at once: p [B, γ+1, V], q [B, γ, V] or None, drafted [B, γ] → accepted [B], token [B].

    A row may have drafted fewer than γ, lengths [B]; its bonus then comes from p[lengths]. What pads `drafted` may be
    any token id, what pads q any number. The same random numbers give the same verdicts as `chain`, row by row.
    Another way to `pick` may be faster on some device.
    """
    B, K = drafted.shape
    _check_shapes(p, q, (B, K))
    u = _uniforms(generator, (B, K + 1), p.device)
    if K == 0:
        return drafted.new_zeros(B), pick(p[:, 0], u[:, 0])
    lengths = torch.full((B,), K, device=p.device) if lengths is None else lengths
    # A deterministic draft has q(d) = 1, which leaves p(d).
    accept = at(p[:, :-1], drafted) if q is None else accept_probability(p[:, :-1], q, drafted)  # [B, γ]
    passed = (u[:, :-1] < accept) & (torch.arange(K, device=p.device) < lengths[:, None])
    accepted = passed.long().cumprod(-1).sum(-1)  # [B], up to the first rejection
    rows, rejected = torch.arange(B, device=p.device), (accepted < lengths)[:, None]  # [B], [B, 1]
    last = accepted.clamp(max=K - 1)  # the draft at which each row stopped
    d_last = drafted[rows, last][:, None]  # [B, 1]
    q_last = torch.zeros_like(p[:, 0]).scatter_(1, d_last, 1.0) if q is None else q[rows, last]  # [B, V]
    # No rejection, no q: the residual of p against 0 is p itself, and that is the bonus.
    law = residual(p[rows, accepted], torch.where(rejected, q_last, 0.0))
    return accepted, pick(law, u.gather(1, lengths[:, None]).squeeze(1))


def tree(
    p: Tensor, q: Tensor | None, tokens, parents, generator, *, accept=accept_probability, replace=residual
) -> Verdict:
    """Verify one token tree: p [n+1, V] (row 0 at the root, row i+1 at node i), tokens [n], parents [n]. Lossless.

    q [n, V] is the law each node was drawn from *given its elder siblings*: the same q for independent draws, q without
    the elder siblings for distinct draws; None where nothing was drawn (best tokens, merged branches).
    """
    tokens, parents = torch.as_tensor(tokens, dtype=torch.long).tolist(), torch.as_tensor(parents).tolist()
    _check_tree(p, q, tokens, parents)
    u = _uniforms(generator, (len(p),), p.device)
    below, node, path = children(parents), -1, []
    while True:
        r = p[node + 1]
        for child in below[node]:
            q_i = one_hot(tokens[child], like=r) if q is None else q[child]
            if u[child] < float(accept(r, q_i, tokens[child])):
                path.append(child)
                node = child
                break
            r = replace(r, q_i)  # what this sibling left uncovered is the next one's target
        else:  # no child was accepted, or there is none
            return Verdict(path, pick(r, u[-1]))


def typical(p: Tensor, tokens, parents, generator, *, epsilon: float = 0.09, delta: float = 0.3) -> Verdict:
    """Medusa's typical acceptance: faster, and LOSSY. The output does not follow the target's law.

    A node passes when p(x) > min(ε, δ·exp(−H(p))): likely enough for how undecided the target is. The longest path of
    passing nodes wins (the earlier one of equals), and the token after it is drawn from p.
    """
    tokens, parents = torch.as_tensor(tokens, dtype=torch.long).tolist(), torch.as_tensor(parents).tolist()
    _check_tree(p, None, tokens, parents)
    entropy = torch.special.entr(p).sum(-1)  # [n+1]
    threshold = (delta * torch.exp(-entropy)).clamp(max=epsilon)
    alive = {-1}
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        if parent in alive and bool(p[parent + 1, token] > threshold[parent + 1]):
            alive.add(node)
    depth = [*depths(parents), 0]  # depth[-1] is the root's
    end = max(sorted(alive), key=lambda node: depth[node])
    return Verdict(path_to(parents, end), pick(p[end + 1], _uniforms(generator, (len(p),), p.device)[-1]))


# ---- guards --------------------------------------------------------------------------------------------------------


def check_distribution(name: str, law: Tensor) -> None:
    """Every law of [..., V] is non-negative and sums to one, within what its dtype can hold."""
    total = law.sum(-1, dtype=torch.float64 if law.dtype == torch.float64 else torch.float32)
    wrong = ~((total - 1).abs() <= TOLERANCE.get(law.dtype, 0.02))  # the negation catches NaN too
    if bool(wrong.any() | (law.amin() < 0)):
        found = f"sums to {total[wrong][0]:.6g}" if bool(wrong.any()) else f"holds {law.amin():.6g}"
        raise ValueError(f"{name} {found}: give probabilities (≥ 0, sum 1), e.g. from Sampling.probs")


def check_draft(tokens: Tensor, q: Tensor | None, vocab_size: int, lengths: Tensor | None = None) -> None:
    """Refuse a draft that could not have been drawn: once a cycle, before the target's pass. tokens [..., γ]."""
    if q is not None and q.shape != (needed := (*tokens.shape, vocab_size)):
        raise ValueError(f"q has shape {tuple(q.shape)}: give one law over the target's vocabulary per draft, {needed}")
    if lengths is not None:  # look at no padding
        real = torch.arange(tokens.shape[-1], device=tokens.device) < lengths[..., None]
        tokens, q = tokens[real], None if q is None else q[real]
    if tokens.numel() == 0:
        return
    if bool((outside := (tokens < 0) | (tokens >= vocab_size)).any()):
        raise ValueError(
            f"drafted token {int(tokens[outside][0])} is outside the target's vocabulary of {vocab_size}: "
            "draft and target need the same tokenizer"
        )
    if q is not None:
        check_distribution("q", q)
        if bool((never := at(q, tokens) == 0).any()):
            raise ValueError(
                f"drafted token {int(tokens[never][0])} has probability 0 under q: "
                "q must be the law the token was really drawn from (None if it was not drawn at all)"
            )


def _check_shapes(p: Tensor, q: Tensor | None, drafted: tuple[int, ...]) -> None:
    *rows, n = drafted
    if p.dim() != len(drafted) + 1 or p.shape[:-1] != (*rows, n + 1):
        raise ValueError(
            f"p has shape {tuple(p.shape)}, but {drafted} drafted tokens need {(*rows, n + 1)} laws: one more than "
            "drafts, for the token after the last"
        )
    if q is not None and q.shape != (*drafted, p.shape[-1]):
        raise ValueError(f"q has shape {tuple(q.shape)}: give one law per draft, {(*drafted, p.shape[-1])}, or None")


def _check_tree(p: Tensor, q: Tensor | None, tokens: list[int], parents: list[int]) -> None:
    if len(tokens) != len(parents):
        raise ValueError(f"tokens has {len(tokens)} nodes and parents {len(parents)}: give one parent per node")
    check_parents(parents)
    _check_shapes(p, q, (len(tokens),))


def _uniforms(generator, shape: tuple[int, ...], device) -> Tensor | Sequence[float]:
    """Random numbers of one call: as many as laws, however the call ends, so that runs stay comparable."""
    if isinstance(generator, torch.Generator):
        generator = torch.rand(shape, generator=generator, dtype=torch.float64, device=generator.device)
    given = tuple(generator.shape) if isinstance(generator, Tensor) else (len(generator or ()),)
    if given != shape:
        raise ValueError(f"generator={generator!r}: give a torch.Generator, or numbers in [0, 1) of shape {shape}")
    if isinstance(generator, Tensor):
        return generator.tolist() if len(shape) == 1 else generator.to(device, torch.float64)
    return generator


# ---- the exact law at one place ------------------------------------------------------------------------------------
# How the m children of one node are drafted is a function (q, elder siblings) → law of the next sibling.


def iid(q: Tensor, drawn: Sequence[int]) -> Tensor:
    """Independent draws: duplicates happen, and count."""
    return q


def distinct(q: Tensor, drawn: Sequence[int]) -> Tensor:
    """Draws without replacement: q without the elder siblings, renormalised (all zero once q is used up)."""
    rest = q.clone()
    rest[list(drawn)] = 0.0
    return rest / rest.sum().clamp(min=torch.finfo(q.dtype).tiny)


def best(q: Tensor, drawn: Sequence[int]) -> Tensor:
    """Nothing is drawn: the children are the m likeliest tokens of q."""
    if len(drawn) == len(q):
        return torch.zeros_like(q)
    return one_hot(int(q.argsort(descending=True, stable=True)[len(drawn)]), like=q)


def emitted_distribution(
    p, q, *, drawn_from=None, m: int = 1, siblings=iid, accept=accept_probability, replace=residual
) -> Tensor:
    """The exact law [V] of the token emitted at one place, with m drafted children there (m = 1: a chain).

    `drawn_from` is the law drafts really come from, where that is not the q the verifier is told. Plug in other rules
    and watch the law bend away from p.
    """
    p, q = as_distribution("p", p), as_distribution("q", q)
    drawn_from = q if drawn_from is None else as_distribution("drawn_from", drawn_from)

    def after(rejected: Context, r: Tensor) -> Tensor:  # the law, once these siblings were rejected
        source, told = siblings(drawn_from, rejected), siblings(q, rejected)
        if len(rejected) == m or not bool(source.any()):
            return r
        law, uncovered = torch.zeros_like(p), replace(r, told)
        for d in source.nonzero().flatten().tolist():
            a = float(accept(r, told, d))
            law[d] += source[d] * a
            if a < 1:
                law += source[d] * (1 - a) * after((*rejected, d), uncovered)
        return law

    return after((), p)


def cascade_distribution(p, middle, q, *, accept=accept_probability, replace=residual) -> Tensor:
    """The same where a middle model first corrects the drafter: its output is the draft, its law the target's q."""
    corrected = emitted_distribution(middle, q, accept=accept, replace=replace)
    return emitted_distribution(p, middle, drawn_from=corrected, accept=accept, replace=replace)


def as_distribution(name: str, law) -> Tensor:
    law = law if isinstance(law, Tensor) else torch.as_tensor(law, dtype=torch.float64)
    check_distribution(name, law)
    return law.double()
