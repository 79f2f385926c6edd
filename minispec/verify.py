"""The rejection sampler: draft tokens in, tokens out that follow the target's distribution exactly. No model in sight.

p is the target's distribution after temperature and truncation, q the one a draft token was *really sampled from*.
Accept a draft token d with probability min(1, p(d)/q(d)); after a rejection emit from the residual, norm([p − q]₊).
What comes out follows

    q(x)·min(1, p(x)/q(x))  +  P(reject)·[p − q]₊(x) / Σ[p − q]₊  =  min(p, q)(x) + [p − q]₊(x)  =  p(x),

because P(reject) = 1 − Σ min(p, q) = Σ [p − q]₊. exact.py computes that distribution instead of believing it, at one
position and for whole programs.

A `generator` is a torch.Generator, or the random numbers in [0, 1) themselves: one per row of p.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .sampling import argmax, distributions, pick, uniforms, widest
from .tree import Draft, ancestors, check_parents, children, depths, path_to

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


def greedy(best: Sequence[int], tokens: Sequence[int], parents: Sequence[int] | None = None) -> Verdict:
    """Where nothing is sampled only the target's best tokens pass: best [n+1] at the root and at every node."""
    if parents is None:
        accepted = next((i for i, token in enumerate(tokens) if token != best[i]), len(tokens))
        return Verdict(list(range(accepted)), best[accepted])
    below, node, path = children(parents), -1, []
    while (node := next((child for child in below[node] if tokens[child] == best[node + 1]), None)) is not None:
        path.append(node)
    return Verdict(path, best[path[-1] + 1 if path else 0])


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
    emitted = residual(p[rows, accepted], torch.where(rejected, q_last, 0.0))
    return accepted, pick(emitted, u.gather(1, lengths[:, None]).squeeze(1))


def tree(
    p: Tensor, q: Tensor | None, tokens, parents, generator, *, accept=accept_probability, replace=residual
) -> Verdict:
    """Verify one token tree: p [n+1, V] (row 0 at the root, row i+1 at node i), tokens [n], parents [n]. Lossless.

    q [n, V] is the distribution each node was sampled from *given its elder siblings*: the same q for independent
    samples, q without the elder siblings for distinct ones; None where nothing was sampled (best tokens, merged
    branches).
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


def tree_batch(
    p: Tensor, tokens: Tensor, parents: Tensor, above: Tensor, lengths: Tensor | None, u: Tensor | None, *, pick=pick
) -> tuple[Tensor, Tensor]:
    """`tree` for all rows at once, where nothing was sampled: p [B, n+1, V], tokens and parents [B, n], and `above`,
    the nodes' ancestors and themselves [B, n, n] → which nodes are accepted [B, n], and the token after them [B].

    Rejected siblings take their tokens' mass away and leave the rest in proportion. So a node is accepted with
    probability p(d) / (1 − Σ p(its elder siblings' tokens)), and no node has to wait for another's verdict. A row may
    have fewer than n nodes, lengths [B]. Without u [B, n+1], p may be logits: only the best tokens are accepted.
    """
    B, n, V = p.shape[0], p.shape[1] - 1, p.shape[2]
    node = torch.arange(n, device=p.device)
    real = node.expand(B, n) < (n if lengths is None else lengths[:, None])  # [B, n]
    elder = (parents[:, :, None] == parents[:, None]) & (node < node[:, None])  # [B, n, n]: j is i's elder sibling
    if u is None:
        best = p.argmax(-1)  # [B, n+1]
        passed = tokens == best.gather(1, parents + 1)
    else:
        given = p.flatten(1).gather(1, (parents + 1) * V + tokens)  # [B, n]: p of each, after its parent
        again = (elder & (tokens[:, :, None] == tokens[:, None])).any(-1)  # an elder sibling had the token
        given = given.masked_fill(again | ~real, 0)
        left = 1 - (elder * given[:, None]).sum(-1)
        passed = u[:, :n] * left < given
    passed = passed & real
    passed = passed & ~(elder & passed[:, None]).any(-1)  # the eldest of the siblings that would pass
    accepted = (passed[:, None] | ~above).all(-1)
    end = torch.where(accepted, node, -1).amax(-1) if n else torch.full((B,), -1, device=p.device)  # [B]
    if u is None:
        return accepted, best.gather(1, end[:, None] + 1)[:, 0]
    r = p[torch.arange(B, device=p.device), end + 1]  # [B, V]
    refused = torch.zeros_like(r).scatter_add(1, tokens, ((parents == end[:, None]) & real).to(r.dtype))
    uncovered = r.masked_fill(refused > 0, 0)
    uncovered = torch.where(uncovered.sum(-1, keepdim=True) > 0, uncovered, r)
    last = u[:, -1] if lengths is None else u.gather(1, lengths[:, None])[:, 0]
    return accepted, pick(uncovered, last)


def typical(p: Tensor, tokens, parents, generator, *, epsilon: float = 0.09, delta: float = 0.3) -> Verdict:
    """Medusa's typical acceptance: faster, and LOSSY. The output does not follow the target's distribution.

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


# ---- a batch of drafts: logits in, verdicts out ----------------------------------------------------------------------


def judge(
    logits: Tensor, contexts: Sequence, drafts: Sequence[Draft], lossless: bool = True, best: Tensor | None = None
) -> tuple[list[Verdict], list[list[float]], list[list[float]] | None]:
    """The target's logits [B, n+1, V] against one draft for each sequence: verdicts, and what p and q gave each draft
    token, [B, n] (no q: nothing was sampled).

    A context knows its sequence's tokens, Sampling and generator. Draft tokens sit in the positions 1 … n of the pass.
    `best` [B, n+1] are the best tokens (−1: NaN), if somebody knows them already.
    """
    held = hold_back(logits, contexts, drafts)
    if all(c.sampling.greedy and draft.probs is None for c, draft in zip(contexts, drafts, strict=True)):
        # The best tokens are all there is to know, and the rest is done without the device.
        n = max(len(draft.tokens) for draft in drafts)
        best = argmax(logits[:, : n + 1], None if held or best is None else best[:, : n + 1])  # [B, n + 1]
        pairs = list(zip(best, drafts, strict=True))
        given = [
            [float(d == b[parent + 1]) for d, parent in zip(draft.tokens, draft.tree, strict=True)]
            for b, draft in pairs
        ]
        return [greedy(b, draft.tokens, draft.parents) for b, draft in pairs], given, None
    lengths = torch.tensor([len(draft.tokens) for draft in drafts], device=logits.device)  # [B]
    drafted = pad_sequence([torch.tensor(d.tokens, dtype=torch.long) for d in drafts], batch_first=True).to(
        logits.device
    )
    p = distributions(logits[:, : drafted.shape[1] + 1], [context.sampling for context in contexts])  # [B, n + 1, V]
    q = stack(drafts, p)  # [B, n, V], or None
    ragged = len({len(draft.tokens) for draft in drafts}) > 1
    check_draft(drafted, q, p.shape[-1], lengths if ragged else None)
    u = uniforms([context.generator for context in contexts], [len(draft.tokens) + 1 for draft in drafts], p.device)
    if lossless and all(draft.parents is None for draft in drafts):
        accepted, tokens = chain_batch(p, q, drafted, lengths, u)
        verdicts = [
            Verdict(list(range(count)), token) for count, token in zip(accepted.tolist(), tokens.tolist(), strict=True)
        ]
    elif lossless and q is None:
        parents = pad_sequence([torch.tensor(d.tree, dtype=torch.long) for d in drafts], batch_first=True)
        parents = parents.to(logits.device)
        accepted, tokens = tree_batch(p, drafted, parents, ancestors(parents), lengths, u)
        verdicts = [
            Verdict([node for node, passed in enumerate(row) if passed], token)
            for row, token in zip(accepted.tolist(), tokens.tolist(), strict=True)
        ]
    else:
        verdicts = []
        for i, draft in enumerate(drafts):
            own = slice(len(draft.tokens) + 1)
            if lossless:
                verdicts.append(tree(p[i, own], draft.probs, draft.tokens, draft.tree, u[i, own]))
            else:
                verdicts.append(typical(p[i, own], draft.tokens, draft.tree, u[i, own]))
    p_drafted = at(at_parents(p, drafts), drafted).tolist()
    return verdicts, p_drafted, None if q is None else at(q, drafted).tolist()


def hold_back(logits: Tensor, contexts: Sequence, drafts: Sequence[Draft]) -> bool:
    """Before `min_new_tokens` no token that would end the sequence has a chance, at no depth of the draft. Whether any
    logits were changed."""
    held = False
    for row, (context, draft) in enumerate(zip(contexts, drafts, strict=True)):
        if context.held_back and (left := context.held_until - len(context.tokens)) > 0:
            shallow = [i for i, depth in enumerate([0, *depths(draft.tree)]) if depth < left]
            logits[row, torch.tensor(shallow)[:, None], list(context.held_back)] = -torch.inf
            held = True
    return held


def stack(drafts: Sequence[Draft], p: Tensor) -> Tensor | None:
    """The distributions of all drafts as one tensor [B, n, V], zero after a short draft; None: nothing was sampled."""
    if all(draft.probs is None for draft in drafts):
        return None
    sampled = next(draft.probs for draft in drafts if draft.probs is not None)
    # In the draft's own precision: that is how close to one its distributions can sum, whatever the target's is.
    q = torch.zeros_like(p[:, :-1], dtype=torch.promote_types(sampled.dtype, torch.float32))
    for i, draft in enumerate(drafts):
        if draft.probs is not None:
            q[i, : len(draft.tokens)] = draft.probs
        else:  # not sampled: could have been nothing else
            q[i, range(len(draft.tokens)), draft.tokens] = 1.0
    return q


def at_parents(p: Tensor, drafts: Sequence[Draft]) -> Tensor:
    """The distribution that judges each draft token, [B, n, V]: the one after its parent."""
    if all(draft.parents is None for draft in drafts):
        return p[:, :-1]
    n = p.shape[1] - 1
    parents = [[parent + 1 for parent in draft.tree] + [0] * (n - len(draft.tokens)) for draft in drafts]
    rows = torch.arange(len(drafts), device=p.device)[:, None]
    return p[rows, torch.tensor(parents, dtype=torch.long, device=p.device)]


# ---- guards --------------------------------------------------------------------------------------------------------


def check_distribution(name: str, probs: Tensor) -> None:
    """Every distribution of [..., V] is non-negative and sums to one, within what its dtype can hold."""
    total = probs.sum(-1, dtype=torch.float64 if probs.dtype == torch.float64 else torch.float32)
    wrong = ~((total - 1).abs() <= TOLERANCE.get(probs.dtype, 0.02))  # the negation catches NaN too
    if bool(wrong.any() | (probs.amin() < 0)):
        found = f"sums to {total[wrong][0]:.6g}" if bool(wrong.any()) else f"holds {probs.amin():.6g}"
        raise ValueError(f"{name} {found}: give probabilities (≥ 0, sum 1), e.g. from Sampling.probs")


def check_draft(tokens: Tensor, q: Tensor | None, vocab_size: int, lengths: Tensor | None = None) -> None:
    """Refuse a draft that could not have been drawn: once a cycle, before the target's pass. tokens [..., γ]."""
    if q is not None and q.shape != (needed := (*tokens.shape, vocab_size)):
        raise ValueError(
            f"q has shape {tuple(q.shape)}: give one distribution over the target's vocabulary per token, {needed}"
        )
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
                "q must be the distribution the token was really sampled from (None if it was not sampled at all)"
            )


def _check_shapes(p: Tensor, q: Tensor | None, drafted: tuple[int, ...]) -> None:
    *rows, n = drafted
    if p.dim() != len(drafted) + 1 or p.shape[:-1] != (*rows, n + 1):
        raise ValueError(
            f"p has shape {tuple(p.shape)}, but {drafted} draft tokens need {(*rows, n + 1)} distributions: one "
            "more than drafts, for the token after the last"
        )
    if q is not None and q.shape != (*drafted, p.shape[-1]):
        raise ValueError(
            f"q has shape {tuple(q.shape)}: give one distribution per draft token, {(*drafted, p.shape[-1])}, or None"
        )


def _check_tree(p: Tensor, q: Tensor | None, tokens: list[int], parents: list[int]) -> None:
    if len(tokens) != len(parents):
        raise ValueError(f"tokens has {len(tokens)} nodes and parents {len(parents)}: give one parent per node")
    check_parents(parents)
    _check_shapes(p, q, (len(tokens),))


def _uniforms(generator, shape: tuple[int, ...], device) -> Tensor | Sequence[float]:
    """Random numbers of one call: as many as distributions, however the call ends, so that runs stay comparable."""
    if isinstance(generator, torch.Generator):
        generator = torch.rand(shape, generator=generator, dtype=widest(generator.device), device=generator.device)
    given = tuple(generator.shape) if isinstance(generator, Tensor) else (len(generator or ()),)
    if given != shape:
        raise ValueError(f"generator={generator!r}: give a torch.Generator, or numbers in [0, 1) of shape {shape}")
    if isinstance(generator, Tensor):
        return generator.tolist() if len(shape) == 1 else generator.to(device, widest(device))
    return generator
