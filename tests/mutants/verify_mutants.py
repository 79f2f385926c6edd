"""Wrong ways to verify a draft: parts of a `distribution_checks.Scheme`, and the checks that catch each.

Those that lesson 06 shows stand in labs/verifiers.py, with what each of them bends (test_residual.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import exact_trees
import torch
from distribution_checks import Scheme, propose_cascade

from minispec import exact, verify
from minispec.tree import path_to
from minispec.verify import Verdict

from .patching import variant


@dataclass(frozen=True)
class Mutant:
    scheme: Scheme
    caught_by: tuple[str, ...]  # names in distribution_checks.CHECKS


MUTANTS: dict[str, Mutant] = {}


def caught(part: str, *by: str) -> Callable:
    """Notes a function as a wrong `part` of a Scheme, with the signature of what it replaces."""

    def note(function: Callable) -> Callable:
        MUTANTS[function.__name__] = Mutant(Scheme(**{part: function}), by)
        return function

    return note


# ---- what replaces a rejected token --------------------------------------------------------------------------------


@caught("replace", "position", "joint", "siblings", "cascade", "tree")
def resample_from_p(p, q):
    """After a rejection draws from p itself: tokens the draft likes were already given their share, and get more."""
    return p


@caught("replace", "residual")
def unguarded_residual(p, q):
    """Divides by Σ[p − q]₊ without looking: NaN where p = q."""
    uncovered = (p - q).clamp(min=0)
    return uncovered / uncovered.sum(-1, keepdim=True)


@caught("replace", "residual", "siblings", "tree")
def unnormalised_residual(p, q):
    """Forgets to renormalise: a draw does not notice, but the next sibling is compared with too small a law."""
    uncovered = (p - q).clamp(min=0)
    return uncovered if bool(uncovered.any()) else p


# ---- what the verifier is told -------------------------------------------------------------------------------------


@caught("propose_cascade", "cascade")
def cascade_tells_the_tiny_law(draft, context, gamma, random, *, middle):
    """Reports the tiny drafter's law for tokens that follow the middle model's."""
    drafted, _ = propose_cascade(draft, context, gamma, random, middle=middle)
    return drafted, torch.stack([draft(context + drafted[:i]) for i in range(gamma)])


@caught("propose_cascade", "cascade")
def cascade_corrects_from_the_middle(draft, context, gamma, random, *, middle):
    """The middle model replaces what it rejects by a plain draw from its own law, so its output has another law."""
    sloppy = partial(verify.chain, replace=resample_from_p)
    return propose_cascade(draft, context, gamma, random, middle=middle, verifier=sloppy)


# ---- trees ---------------------------------------------------------------------------------------------------------


@caught("propose_tree", "tree")
def stale_q_for_distinct_siblings(draft, context, widths, random, *, siblings):
    """Draws siblings without replacement, but reports the full q for each."""
    tokens, parents, laws = exact_trees.propose_tree(draft, context, widths, random, siblings=siblings)
    if siblings is not exact.distinct:
        return tokens, parents, laws
    texts = {-1: context}
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        texts[node] = (*texts[parent], token)
    return tokens, parents, torch.stack([draft(texts[parent]) for parent in parents])


@caught("propose_tree", "tree")
def merged_duplicates(draft, context, widths, random, *, siblings):
    """Merges equal siblings that were drawn independently into one node: their second chance is lost."""
    tokens, parents, laws = exact_trees.propose_tree(draft, context, widths, random, siblings=siblings)
    number, kept, seen = {-1: -1}, [], {}
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        place = (number[parent], token)
        if place not in seen:
            seen[place] = len(kept)
            kept.append(node)
        number[node] = seen[place]
    return [tokens[node] for node in kept], [number[parents[node]] for node in kept], laws[kept]


@caught("tree", "tree")
def typical_as_lossless(p, q, tokens, parents, generator, **rules):
    """Medusa's typical acceptance, sold as exact."""
    return verify.typical(p, tokens, parents, generator)


@caught("tree", "tree")
def longest_valid_path(p, q, tokens, parents, generator, *, accept, replace):
    """Verifies every path from root to leaf as a chain of its own and keeps the one that got furthest."""
    furthest = None
    for path in (path_to(parents, node) for node in range(len(parents)) if node not in parents):
        told = None if q is None else q[path]
        numbers = [generator[node] for node in path] + [generator[-1]]
        rows = p[[0, *(node + 1 for node in path)]]
        one = verify.chain(rows, told, [tokens[node] for node in path], numbers, accept=accept, replace=replace)
        if furthest is None or one.accepted > furthest.accepted:
            furthest = Verdict(path[: one.accepted], one.token)
    return furthest


# ---- one piece of the source changed: name, function of verify, what it says, what the mutant says, who notices ----

LIKELIEST = "sorted(enumerate(zip(tokens, parents)), key=lambda at: (len(path_to(parents, at[0])), -float(p["
LIKELIEST += "at[1][1] + 1, at[1][0]])))"

for name, part, old, new, *by in (
    # Emits nothing after a draft that was accepted to its end. No law bends, but a token of such a cycle is lost.
    ("forget_the_bonus", "chain", "(len(drafted))), pick(p[-1], u[-1]))", "(len(drafted) - 1)), drafted[-1])", "count"),
    # Decides all places with the same random number: who passed once is likelier to pass again.
    ("one_random_number", "chain", "if u[i] >= ", "if u[0] >= ", "joint", "count"),
    # Draws the correction with the number that rejected: it is known to be large, so late tokens are favoured.
    ("correct_with_the_rejecting_number", "chain", "q_i), u[-1])", "q_i), u[i])", "joint"),
    # Verifies the padding of rows that drafted less than the longest.
    ("batch_ignores_lengths", "chain_batch", "K) if lengths is None else lengths", "K)", "batch"),
    # Counts every passing draft of a row instead of those before the first rejection.
    ("batch_counts_all_passes", "chain_batch", ".cumprod(-1)", "", "batch"),
    # Compares every sibling with the full p, as if its elder siblings had not been tried, then emits the residual.
    ("each_sibling_against_p", "tree", "accept(r, q_i, token)", "accept(p[last + 1], q_i, token)", "tree"),
    # When no child is accepted, draws from p at that node instead of from what the children left uncovered.
    ("emit_from_p_after_all_siblings", "tree", "pick(r, u[-1])", "pick(p[last + 1], u[-1])", "tree"),
    # Tries the likeliest child first. The order was part of the draw: q_i holds only given the elder siblings.
    ("children_by_likelihood", "tree", "enumerate(zip(tokens, parents, strict=True))", LIKELIEST, "tree"),
    # The same mistakes for a batch of trees, and its own: mass that is taken away once for each sibling of a token, …
    ("tree_batch_each_against_p", "tree_batch", "1 - (elder * given[:, None]).sum(-1)", "1", "tree_batch"),
    ("tree_batch_counts_twice", "tree_batch", "masked_fill(again | ~real, 0)", "masked_fill(~real, 0)", "tree_batch"),
    # … all siblings that would pass instead of the eldest, nodes whose parent was rejected, …
    ("tree_batch_any_sibling", "tree_batch", "passed &= ~(elder & passed[:, None]).any(-1)", "pass", "tree_batch"),
    ("tree_batch_orphans", "tree_batch", "(passed[:, None] | ~ancestry).all(-1)", "passed", "tree_batch"),
    # … the padding of smaller trees, which is verified, or takes its token's mass away, …
    ("tree_batch_ignores_lengths", "tree_batch", "(n if lengths is None else lengths[:, None])", "n", "tree_batch"),
    ("tree_batch_padding_refuses", "tree_batch", "end[:, None]) & real", "end[:, None])", "tree_batch"),
    # … and the token after: from p, or by the number of the last node of the largest tree.
    ("tree_batch_emits_from_p", "tree_batch", "r.masked_fill(refused > 0, 0)", "r", "tree_batch"),
    ("tree_batch_first_number", "tree_batch", "u.gather(1, lengths[:, None])[:, 0]", "u[:, -1]", "tree_batch"),
):
    MUTANTS[name] = Mutant(Scheme(**{part: variant(getattr(verify, part), old, new)}), by)
