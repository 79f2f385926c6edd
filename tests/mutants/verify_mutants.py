"""Wrong ways to verify a draft, each with the arguments of the function of verify.py that it stands for.

test_verify.py says which of its tests notices which. The rules that lesson 06 breaks are in labs/verifiers.py.
"""

import torch

from minispec import verify
from minispec.sampling import pick
from minispec.verify import Verdict, accept_probability, at, one_hot, residual

# ---- chains --------------------------------------------------------------------------------------------------------


def forget_the_bonus(p, q, drafted, u) -> Verdict:
    """Emits nothing after a fully accepted draft. The distribution stays right, but such a cycle is a token short."""
    verdict = verify.chain(p, q, drafted, u)
    whole = verdict.accepted == len(drafted)
    return Verdict(verdict.path[:-1], drafted[-1]) if whole else verdict


def one_random_number(p, q, drafted, u) -> Verdict:
    """Decides about all positions with the same number: where one token was accepted, the next is likelier to be."""
    return verify.chain(p, q, drafted, [u[0]] * len(drafted) + [u[-1]])


def correct_with_the_rejecting_number(p, q, drafted, u) -> Verdict:
    """Samples the correction with the number that rejected. That number is known to be large, so late tokens gain."""
    path, token = verify.chain(p, q, drafted, u)
    if (i := len(path)) < len(drafted):
        token = pick(residual(p[i], one_hot(drafted[i], like=p[i]) if q is None else q[i]), u[i])
    return Verdict(path, token)


# ---- batches of chains ---------------------------------------------------------------------------------------------


def ignore_lengths(p, q, drafted, lengths, u, rule="token"):
    """Verifies the padding of sequences that drafted less than the longest."""
    return verify.chain_batch(p, q, drafted, None, u, rule=rule)


def count_all_passes(p, q, drafted, lengths, u):
    """Counts every draft token that passes, instead of those before the first rejection."""
    _, token = verify.chain_batch(p, q, drafted, lengths, u)
    accept = at(p[:, :-1], drafted) if q is None else accept_probability(p[:, :-1], q, drafted)
    real = torch.arange(drafted.shape[1]) < (drafted.shape[1] if lengths is None else lengths[:, None])
    return ((u[:, :-1] < accept) & real).sum(-1), token


# ---- trees ---------------------------------------------------------------------------------------------------------

TREE_MISTAKES = {
    "each sibling against p": "compares every sibling with the full p, as if its elder siblings had not been tried",
    "emit from p": "after the last rejected sibling it samples from p, not from what the siblings left uncovered",
    "likeliest first": "tries the likeliest child first, although q of a child holds only given its elder siblings",
}


def wrong_tree(p, q, tokens, parents, u, mistake: str | None = None) -> Verdict:
    """`verify.tree` with one mistake."""
    order = list(range(len(tokens)))
    if mistake == "likeliest first":
        depth = {-1: 0}
        for node, parent in enumerate(parents):
            depth[node] = depth[parent] + 1
        order.sort(key=lambda node: (depth[node], -float(p[parents[node] + 1, tokens[node]])))
    path, last, r = [], -1, p[0]
    for node in order:
        if parents[node] != last:
            continue
        q_i = one_hot(tokens[node], like=r) if q is None else q[node]
        wanted = p[last + 1] if mistake == "each sibling against p" else r
        if u[node] < float(accept_probability(wanted, q_i, tokens[node])):
            path.append(node)
            last, r = node, p[node + 1]
        else:
            r = residual(r, q_i)
    return Verdict(path, pick(p[last + 1] if mistake == "emit from p" else r, u[-1]))


# ---- batches of trees ----------------------------------------------------------------------------------------------

TREE_BATCH_MISTAKES = {
    "each sibling against p": "as in one tree",
    "a token twice": "takes the mass of a token away once for each elder sibling that has it",
    "any sibling": "accepts all siblings that would pass, instead of the eldest",
    "orphans": "accepts nodes whose parent was rejected",
    "ignore lengths": "verifies what pads a smaller tree",
    "padding rejects": "takes away the mass of the tokens that pad a smaller tree",
    "emit from p": "as in one tree",
    "last number": "samples the last token with the number that belongs to the last node of the largest tree",
}


def wrong_tree_batch(p, tokens, parents, ancestry, lengths, u, mistake: str | None = None):
    """`verify.tree_batch` with one mistake."""
    B, n, V = p.shape[0], p.shape[1] - 1, p.shape[2]
    node = torch.arange(n)
    real = node.expand(B, n) < (n if lengths is None or mistake == "ignore lengths" else lengths[:, None])  # [B, n]
    elder = (parents[:, :, None] == parents[:, None]) & (node < node[:, None])  # [B, n, n]
    given = p.flatten(1).gather(1, (parents + 1) * V + tokens)  # [B, n]
    again = (elder & (tokens[:, :, None] == tokens[:, None])).any(-1)
    given = given.masked_fill(~real if mistake == "a token twice" else again | ~real, 0)
    left = 1 if mistake == "each sibling against p" else 1 - (elder * given[:, None]).sum(-1)
    passed = (u[:, :n] * left < given) & real
    if mistake != "any sibling":
        passed &= ~(elder & passed[:, None]).any(-1)
    accepted = passed if mistake == "orphans" else (passed[:, None] | ~ancestry).all(-1)
    end = torch.where(accepted, node, -1).amax(-1) if n else torch.full((B,), -1)
    r = p[torch.arange(B), end + 1]  # [B, V]
    children = parents == end[:, None]
    children = children if mistake == "padding rejects" else children & real
    refused = torch.zeros_like(r).scatter_add(1, tokens, children.to(r.dtype))
    uncovered = r if mistake == "emit from p" else r.masked_fill(refused > 0, 0)
    uncovered = torch.where(uncovered.sum(-1, keepdim=True) > 0, uncovered, r)
    last = u[:, -1] if lengths is None or mistake == "last number" else u.gather(1, lengths[:, None])[:, 0]
    return accepted, pick(uncovered, last)
