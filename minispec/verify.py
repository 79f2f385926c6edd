"""The rejection sampler: draft tokens in, tokens out that follow the target's distribution exactly. No model in sight.

p is the target's distribution after temperature and truncation, q the one a draft token was *really sampled from*.
Accept a draft token d with probability min(1, p(d)/q(d)); after a rejection emit from the residual, norm([p − q]₊).
What comes out follows

    q(x)·min(1, p(x)/q(x))  +  P(reject)·[p − q]₊(x) / Σ[p − q]₊  =  min(p, q)(x) + [p − q]₊(x)  =  p(x),

because P(reject) = 1 − Σ min(p, q) = Σ [p − q]₊. exact.py computes that distribution instead of believing it, at one
position and for whole programs.

A verifier takes its random numbers u, uniform in [0, 1), as an argument: one for each distribution of p, however it
ends, so that runs stay comparable.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .processors.drafts import process
from .require import require
from .sampling import NOT_FINITE, best_tokens, coupled, distributions, noise_of, pad, pick, precise, uniforms
from .trace import Cycle
from .tree import Draft, ancestors, check_parents, depths, path_to, stack

RULES = ("token", "block", "coupled")  # of sampled drafts: by p/q; by its product; if they are the target's own choice
NO_BLOCKS = 'rule="block" is for lossless chains, and this drafter makes token trees or is lossy: use rule="token"'
LOSSY = 'rule="coupled" promises the target\'s own tokens, and this drafter is lossy: use rule="token"'
Context = tuple[int, ...]
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}  # how far from one the sum may be; half precision: 0.02


class Verdict(NamedTuple):
    path: list[int]  # indices of the accepted drafts: 0, 1, … of a chain, a way down from the root of a tree
    token: int  # the one token more that every cycle emits: the correction, or the bonus where the draft ended

    @property
    def accepted(self) -> int:
        return len(self.path)

    def run(self, drafted: Sequence[int]) -> Context:
        """All tokens of the cycle."""
        return (*(drafted[i] for i in self.path), self.token)


# ---- the two rules -------------------------------------------------------------------------------------------------


def accept_probability(p: Tensor, q: Tensor, token: int | Tensor) -> Tensor:
    """min(1, p(d)/q(d)) for distributions [..., V] and tokens [...]. `check_sampled` finds a token with q(d) = 0."""
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


# ---- verifiers of one draft ----------------------------------------------------------------------------------------


def chain(p: Tensor, q: Tensor | None, drafted, u, *, accept=accept_probability, replace=residual) -> Verdict:
    """Verify one chain: p [k+1, V], q [k, V] (None: deterministic drafts), drafted [k], u [k+1]. Lossless, unless
    another `accept` or `replace` rule is plugged in, to see what breaks. This is for reading, and the reference of
    `chain_batch`, which runs."""
    drafted, u = as_list(drafted), as_list(u)
    check_shapes(p, q, u, (len(drafted),))
    for i, d in enumerate(drafted):
        q_i = one_hot(d, like=p[i]) if q is None else q[i]
        if u[i] >= float(accept(p[i], q_i, d)):
            return Verdict(list(range(i)), pick(replace(p[i], q_i), u[-1]))  # the correction
    return Verdict(list(range(len(drafted))), pick(p[-1], u[-1]))  # the bonus


def greedy(best: Sequence[int], tokens: Sequence[int], parents: Sequence[int]) -> Verdict:
    """Only the target's own choices pass: best [n+1], at the root and at every node, are its likeliest tokens, or under
    rule="coupled" those that its noise makes the likeliest."""
    path, last = [], -1  # the last accepted node
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        if parent == last and token == best[last + 1]:
            path.append(node)
            last = node
    return Verdict(path, best[last + 1])


def tree(p: Tensor, q: Tensor | None, tokens, parents, u, *, accept=accept_probability, replace=residual) -> Verdict:
    """Verify one token tree: p [n+1, V] (row 0 at the root, row i+1 at node i), tokens, parents [n], u [n+1]. Lossless.

    q [n, V] is the distribution each node was sampled from *given its elder siblings*: the same q for independent
    samples, q without the elder siblings for distinct ones; None where nothing was sampled (best tokens, merged paths).
    """
    tokens, parents, u = as_list(tokens), as_list(parents), as_list(u)
    check_shapes(p, q, u, (len(tokens),))
    check_parents(parents, len(tokens))
    path, last, r = [], -1, p[0]  # the last accepted node, and the target's distribution after it
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        if parent != last:
            continue  # below a rejected node, or an accepted node's younger sibling
        q_i = one_hot(token, like=r) if q is None else q[node]
        if u[node] < float(accept(r, q_i, token)):
            path.append(node)
            last, r = node, p[node + 1]
        else:
            r = replace(r, q_i)  # what this node left uncovered is its next sibling's target
    return Verdict(path, pick(r, u[-1]))


def typical(p: Tensor, tokens, parents, u, *, epsilon: float = 0.09, delta: float = 0.3) -> Verdict:
    """Medusa's typical acceptance: faster, and LOSSY. The output does not follow the target's distribution.

    A node passes when p(x) > min(ε, δ·exp(−H(p))): likely enough for how undecided the target is. The longest path of
    passing nodes wins (the earlier one of equals), and the token after it is sampled from p.
    """
    tokens, parents, u = as_list(tokens), as_list(parents), as_list(u)
    check_shapes(p, None, u, (len(tokens),))
    check_parents(parents, len(tokens))
    threshold = (delta * torch.exp(-torch.special.entr(p).sum(-1))).clamp(max=epsilon)  # [n+1]
    slots = [parent + 1 for parent in parents]  # of p: where each node was guessed
    passes = (p[slots, tokens] > threshold[slots]).tolist()
    depth = {-1: 0}  # of the nodes that only passing nodes lead to
    for node, parent in enumerate(parents):
        if passes[node] and parent in depth:
            depth[node] = depth[parent] + 1
    end = max(depth, key=depth.get)
    return Verdict(path_to(parents, end), pick(p[end + 1], u[-1]))


# ---- block verification ----------------------------------------------------------------------------------------------
#
# Block verification: accept a *prefix* of the draft by its joint ratio, not token by token (Sun et al., 2025,
# arXiv:2403.10444). Lossless like `chain`, and never fewer accepted tokens on average.
#
# A surplus of the target at one position can pay for a deficit at an earlier one. Let d₁ … d_k be the draft, sampled
# from q₁ … q_k, and p₁ … p_{k+1} the target's distributions at the same positions. A prefix of i tokens has the weight
#
#     w₀ = 1,    w_i = min(1, w_{i−1} · p_i(d_i) / q_i(d_i)).
#
# We want P(at least i tokens are accepted | d₁ … d_i) = w_i. Look at what follows such a prefix. The mass that i + 1 or
# more tokens are accepted with is S = Σ_x q(x)·min(1, w·p(x)/q(x)) = Σ min(w·p, q), where w = w_i, p = p_{i+1} and q =
# q_{i+1}. So the rest, R = Σ [w·p − q]₊ = w − S, must come from stopping at exactly i, which happens with probability h
# whenever nothing longer was accepted:
#
#     S + (1 − S)·h = w    ⇒    h_i = R / (R + 1 − w).
#
# At i = k nothing follows: q = 0, so R = w and h_k = w_k; and h₀ = 1. The accepted length is the largest i whose own
# coin says yes, and the token after it is sampled from norm([w·p − q]₊). Where w = 1 and p = q, h is 0/0. Exact numbers
# never lead there, because then w_{i+1} = 1 and a longer prefix was kept; with rounding they do, about once in 10⁷
# cycles of float32 if draft model and target agree. Then the prefix is kept (h = 1) and the token comes from p.
#
# **Lossless.** A prefix d₁ … d_i is drafted and kept with probability Πq · w. The next token is x either because
# d_{i+1} is x and kept too, or because the cycle stopped at i and x was sampled:
#
#     Πq · min(w·p(x), q(x))  +  Πq · (1 − S)·h · [w·p(x) − q(x)]₊ / R  =  Πq · w · p(x),
#
# since (1 − S)·h = w − S = R. So after whatever is kept, the next token follows p, and the next cycle starts from the
# target as it is: nothing has to be remembered. (The paper's *greedy* variant accepts more in one cycle and pays for it
# with a changed target in the next; this is not that one.)
#
# **Never worse.** Token by token a prefix is kept with probability Π min(1, p_j/q_j). By induction that is at most w_i,
# because min(1, w·r) ≥ w·min(1, r). It is strictly less where a token with p < q comes before one with p > q.


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


def block(p: Tensor, q: Tensor | None, drafted, u) -> Verdict:
    """Verify one chain: p [k+1, V], q [k, V] (None: deterministic drafts), drafted [k], u [k+1]. The reference of
    `chain_batch` with rule="block"."""
    drafted, u = torch.as_tensor(drafted, dtype=torch.long), as_list(u)
    check_shapes(p, q, u, (len(drafted),))
    q = F.one_hot(drafted, p.shape[-1]).to(p.dtype) if q is None else q
    q = F.pad(q, (0, 0, 0, 1))  # [k+1, V]: after the last draft token nothing was drafted
    w = prefix_weights(p, q, drafted)
    h = stop_probability(p, q, w)
    a = next((i for i in range(len(drafted), 0, -1) if u[i - 1] < float(h[i])), 0)  # the longest that its coin keeps
    return Verdict(list(range(a)), pick(residual(w[a] * p[a], q[a]), u[-1]))


# ---- batches: the same verdicts from the same random numbers --------------------------------------------------------


def chain_batch(
    p: Tensor, q: Tensor | None, drafted: Tensor, lengths: Tensor | None, u: Tensor, *, rule="token", pick=pick
) -> tuple[Tensor, Tensor]:
    """`chain`, or with rule="block" `block`, for B sequences at once: p [B, k+1, V], q [B, k, V] or None, drafted
    [B, k], u [B, k+1] → accepted [B], token [B].

    A sequence may have drafted fewer than k, lengths [B]; its bonus then comes from p[lengths]. What pads `drafted` may
    be any token id, what pads q any number. The same random numbers give the same verdicts as one chain at a time.
    """
    (B, K), V = drafted.shape, p.shape[-1]
    check_shapes(p, q, u, (B, K))
    if K == 0:
        return drafted.new_zeros(B), pick(p[:, 0], u[:, 0])
    rows, node = torch.arange(B, device=p.device), torch.arange(K, device=p.device)
    lengths = torch.full_like(rows, K) if lengths is None else lengths
    real = node < lengths[:, None]  # [B, k]
    if rule == "token":
        # A deterministic draft has q(d) = 1, which leaves p(d).
        accept = at(p[:, :-1], drafted) if q is None else accept_probability(p[:, :-1], q, drafted)  # [B, k]
        accepted = ((u[:, :-1] < accept) & real).long().cumprod(-1).sum(-1)  # [B], up to the first rejection
        wanted, last = p[rows, accepted], accepted.clamp(max=K - 1)  # [B, V], and the draft at which each stopped
        q_last = torch.zeros_like(wanted).scatter_(1, drafted[rows, last, None], 1.0) if q is None else q[rows, last]
        # No rejection, no q: the residual of p against 0 is p itself, and that is the bonus.
        covered = torch.where((accepted < lengths)[:, None], q_last, 0.0)
    else:
        q = F.one_hot(drafted, V).to(p.dtype) if q is None else q.to(p.dtype)
        q = F.pad(torch.where(real[..., None], q, 0.0), (0, 0, 0, 1))  # [B, k+1, V], zero where nothing was drafted
        w = prefix_weights(p, q, drafted)  # [B, k+1]
        kept = (u[:, :-1] < stop_probability(p, q, w)[:, 1:]) & real  # [B, k]
        accepted = torch.where(kept, node + 1, 0).amax(-1)  # the longest prefix that its coin keeps
        wanted, covered = w[rows, accepted, None] * p[rows, accepted], q[rows, accepted]  # [B, V]
    return accepted, pick(residual(wanted, covered), u.gather(1, lengths[:, None]).squeeze(1))


def tree_batch(
    p: Tensor, tokens: Tensor, parents: Tensor, ancestry: Tensor, lengths: Tensor | None, u: Tensor, *, pick=pick
) -> tuple[Tensor, Tensor]:
    """`tree` for B trees at once, where nothing was sampled: p [B, n+1, V], tokens and parents [B, n], u [B, n+1], and
    `ancestry` [B, n, n], each node's ancestors and itself → which nodes are accepted [B, n], and the token after [B].

    Rejected siblings take their tokens' mass away and leave the rest in proportion. So a node is accepted with
    probability p(d) / (1 − Σ p(its elder siblings' tokens)), and no node has to wait for another's verdict. A tree may
    have fewer than n nodes, lengths [B].
    """
    B, n, V = p.shape[0], p.shape[1] - 1, p.shape[2]
    node = torch.arange(n, device=p.device)
    real = node.expand(B, n) < (n if lengths is None else lengths[:, None])  # [B, n]
    elder = (parents[:, :, None] == parents[:, None]) & (node < node[:, None])  # [B, n, n]: j is i's elder sibling
    given = p.flatten(1).gather(1, (parents + 1) * V + tokens)  # [B, n]: p of each, after its parent
    again = (elder & (tokens[:, :, None] == tokens[:, None])).any(-1)  # an elder sibling had the token
    given = given.masked_fill(again | ~real, 0)
    left = 1 - (elder * given[:, None]).sum(-1)
    passed = (u[:, :n] * left < given) & real
    passed &= ~(elder & passed[:, None]).any(-1)  # the eldest of the siblings that would pass
    accepted = (passed[:, None] | ~ancestry).all(-1)
    end = torch.where(accepted, node, -1).amax(-1) if n else torch.full((B,), -1, device=p.device)  # [B]
    r = p[torch.arange(B, device=p.device), end + 1]  # [B, V]
    refused = torch.zeros_like(r).scatter_add(1, tokens, ((parents == end[:, None]) & real).to(r.dtype))
    uncovered = r.masked_fill(refused > 0, 0)
    uncovered = torch.where(uncovered.sum(-1, keepdim=True) > 0, uncovered, r)  # nothing is left: only by rounding
    last = u[:, -1] if lengths is None else u.gather(1, lengths[:, None])[:, 0]
    return accepted, pick(uncovered, last)


def judge(
    logits: Tensor,
    sequences: list,
    drafts: Sequence[Draft],
    lossless: bool = True,
    best: Tensor | None = None,
    rule: str = "token",
) -> list[Cycle]:
    """The target's logits [B, n+1, V] against one draft for each sequence: what each draft came to.

    Draft tokens sit in the positions 1 … n of the pass. Logits of sequences with processors are changed in place.
    `best` [B, n+1] are the best tokens (−1: NaN), if somebody knows them already. `rule` is for sampled chains: accept
    token by token, or a whole "block" by its joint ratio. Sequences with noise of their own are coupled.
    """
    chains = lossless and all(draft.parents is None for draft in drafts)
    if rule == "block" and not chains:
        raise ValueError(NO_BLOCKS)
    changed = process(logits, sequences, drafts)
    all_greedy, has_noise = all(s.sampling.greedy for s in sequences), sequences[0].noise is not None
    if has_noise or (all_greedy and all(draft.probs is None for draft in drafts)):
        # The target's own choices are all there is to know, and the rest is done without the device.
        n = max(len(draft.tokens) for draft in drafts)
        if not all_greedy:
            p = distributions(logits[:, : n + 1], [sequence.sampling for sequence in sequences])
            best = own_choices(p, sequences, drafts)
        else:
            best = best_tokens(logits[:, : n + 1]) if changed or best is None else best[:, : n + 1]
        best = best.tolist()  # [B, n + 1]
        if any(-1 in tokens for tokens in best):
            raise ValueError(NOT_FINITE)
        each = zip(best, drafts, sequences, strict=True)
        return [greedy_cycle(b, draft, len(s.tokens), lossless) for b, draft, s in each]
    counts = [len(draft.tokens) for draft in drafts]
    drafted, lengths = pad([draft.tokens for draft in drafts], logits.device)  # [B, n], [B]
    p = distributions(logits[:, : drafted.shape[1] + 1], [sequence.sampling for sequence in sequences])  # [B, n + 1, V]
    q = stack(drafts, p)  # [B, n, V], or None
    if q is not None:
        check_sampled(drafted, q, lengths if len(set(counts)) > 1 else None)
    u = uniforms([sequence.coins for sequence in sequences], [count + 1 for count in counts], p.device)
    slots, _ = pad([[parent + 1 for parent in draft.node_parents] for draft in drafts], p.device)  # [B, n]
    p_drafted = p[torch.arange(len(drafts), device=p.device)[:, None], slots, drafted]  # each where it was guessed
    if chains:
        accepted, tokens = chain_batch(p, q, drafted, lengths, u, rule=rule)
        verdicts = [(list(range(n)), token) for n, token in zip(accepted.tolist(), tokens.tolist(), strict=True)]
    elif lossless and q is None:  # all at once: to ask node by node is to wait for the device at each
        accepted, tokens = tree_batch(p, drafted, slots - 1, ancestors(slots - 1), lengths, u)
        paths = [[node for node, passed in enumerate(nodes) if passed] for nodes in accepted.tolist()]
        verdicts = zip(paths, tokens.tolist(), strict=True)
    else:
        verdicts = []
        for draft, n, p_i, u_i in zip(drafts, counts, p, u, strict=True):
            shape, p_i, u_i = (draft.tokens, draft.node_parents), p_i[: n + 1], u_i[: n + 1]
            if (a := draft.accepted) is not None:
                verdicts.append(Verdict(list(range(a)), pick(p_i[a], u_i[-1])))
            else:
                verdicts.append(tree(p_i, draft.probs, *shape, u_i) if lossless else typical(p_i, *shape, u_i))
    q_drafted = [None] * len(drafts) if q is None else at(q, drafted).tolist()
    each = zip(drafts, verdicts, p_drafted.tolist(), q_drafted, sequences, strict=True)
    return [Cycle.of(draft, *verdict, p, q, len(s.tokens), lossless) for draft, verdict, p, q, s in each]


def own_choices(p: Tensor, sequences: list, drafts: Sequence[Draft]) -> Tensor:
    """What coupled sequences emit from p [B, n+1, V], after the last token and after every node: [B, n+1]."""
    ahead, _ = pad([[0, *depths(draft.node_parents)] for draft in drafts], p.device)
    return coupled(p, noise_of(sequences, ahead, p.device))


def greedy_cycle(best: Sequence[int], draft: Draft, committed: int, lossless: bool = True) -> Cycle:
    """What a draft comes to by the target's own choices alone, [n+1]: it gave each draft token 1 or 0."""
    p = [float(token == best[parent + 1]) for token, parent in zip(draft.tokens, draft.node_parents, strict=True)]
    a = draft.accepted
    verdict = greedy(best, draft.tokens, draft.node_parents) if a is None else Verdict(list(range(a)), best[a])
    return Cycle.of(draft, *verdict, p, None, committed, lossless)


# ---- guards --------------------------------------------------------------------------------------------------------


def check_rule(rule: str, drafter=None) -> None:
    require(rule in RULES, f"one of {', '.join(RULES)}", rule=rule)
    if rule == "block" and drafter is not None and (drafter.tree or not drafter.lossless):
        raise ValueError(NO_BLOCKS)
    if rule == "coupled" and drafter is not None and not drafter.lossless:
        raise ValueError(LOSSY)


def check_distribution(name: str, probs: Tensor) -> None:
    """Every distribution of [..., V] is non-negative and sums to one, within what its dtype can hold."""
    total = probs.sum(-1, dtype=precise(probs))
    wrong = ~((total - 1).abs() <= TOLERANCE.get(probs.dtype, 0.02))  # the negation catches NaN too
    if bool(wrong.any() | (probs.amin() < 0)):
        found = f"sums to {total[wrong][0]:.6g}" if bool(wrong.any()) else f"holds {probs.amin():.6g}"
        raise ValueError(f"{name} {found}: give probabilities (≥ 0, sum 1), e.g. from Sampling.probs")


def check_draft(draft: Draft, vocab_size: int) -> None:
    """Refuse a draft that no pass can process: a GPU would not survive embedding a token that is not there."""
    check_q_shape(draft.probs, (len(draft.tokens), vocab_size))
    for token in draft.tokens:
        if not 0 <= token < vocab_size:
            named = f"drafted token {token} is outside the target's vocabulary of {vocab_size}"
            raise ValueError(f"{named}: draft and target need the same tokenizer")


def check_sampled(tokens: Tensor, q: Tensor, lengths: Tensor | None = None) -> None:
    """Refuse tokens [B, n] that cannot have been sampled from q [B, n, V]: once a cycle, for all of them together."""
    if lengths is not None:  # look at no padding
        real = torch.arange(tokens.shape[-1], device=tokens.device) < lengths[..., None]
        tokens, q = tokens[real], q[real]
    if tokens.numel() == 0:
        return
    check_distribution("q", q)
    if bool((never := at(q, tokens) == 0).any()):
        named = f"drafted token {int(tokens[never][0])} has probability 0 under q"
        raise ValueError(f"{named}: q must be what it was really sampled from (None if it was not sampled at all)")


def check_q_shape(q: Tensor | None, needed: tuple[int, ...]) -> None:
    if q is not None and q.shape != needed:
        raise ValueError(f"q has shape {tuple(q.shape)}, not {needed}: one distribution over the target's vocabulary")


def check_shapes(p: Tensor, q: Tensor | None, u: Sequence[float] | Tensor, drafted: tuple[int, ...]) -> None:
    """What a verifier needs for draft tokens of shape [k] or [B, k]."""
    *rows, k = drafted
    shape, numbers = (*rows, k + 1), tuple(u.shape) if isinstance(u, Tensor) else (len(u),)
    if p.shape[:-1] != shape:
        raise ValueError(f"p has shape {tuple(p.shape)}: {drafted} draft tokens need {shape} distributions, one more")
    if numbers != shape:
        raise ValueError(f"u has shape {numbers}: give random numbers in [0, 1) of shape {shape}, one per distribution")
    check_q_shape(q, (*drafted, p.shape[-1]))


def as_list(numbers: Sequence | Tensor) -> list:
    return numbers.tolist() if isinstance(numbers, Tensor) else list(numbers)
