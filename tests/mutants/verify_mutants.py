"""Wrong ways to verify a draft: parts of a `distribution_checks.Scheme`, with the signatures of what they replace."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import exact_trees
import torch
from distribution_checks import Scheme, propose_cascade
from pytest import MonkeyPatch

from minispec import Sampling, exact, verify
from minispec.tree import children, path_to
from minispec.verify import Verdict, accept_probability, one_hot, pick, residual

from .patching import rewrite

# ---- the rules: accept, replace ------------------------------------------------------------------------------------


def resample_from_p(p, q):
    """After a rejection draws from p itself: tokens the draft likes were already given their share, and get more."""
    return p


def resample_from_q(p, q):
    """After a rejection asks the draft again: tokens the draft neglects never get what they lack."""
    return q


def argmax_of_residual(p, q):
    """Takes the likeliest token of the residual instead of drawing from it."""
    return one_hot(int(residual(p, q).argmax()), like=p)


def unguarded_residual(p, q):
    """Divides by Σ[p − q]₊ without looking: NaN where p = q."""
    uncovered = (p - q).clamp(min=0)
    return uncovered / uncovered.sum(-1, keepdim=True)


def unnormalised_residual(p, q):
    """Forgets to renormalise: a draw does not notice, but the next sibling is compared with too small a law."""
    uncovered = (p - q).clamp(min=0)
    return uncovered if bool(uncovered.any()) else p


def accept_always(p, q, token):
    """Trusts the draft: the output follows q."""
    return torch.ones(())


def accept_if_likelier(p, q, token):
    """Accepts exactly when p(d) ≥ q(d): a threshold instead of a coin."""
    return (accept_probability(p, q, token) >= 1).double()


# ---- chain verifiers -----------------------------------------------------------------------------------------------


def told_laws(p, q, drafted):
    return [one_hot(d, like=p[0]) for d in drafted] if q is None else q


def forget_the_bonus(p, q, drafted, generator, **rules):
    """Emits nothing after a draft that was accepted to its end. No law bends, but a token of such a cycle is lost."""
    verdict = verify.chain(p, q, drafted, generator, **rules)
    if verdict.accepted < len(drafted):
        return verdict
    return Verdict(verdict.path[:-1], drafted[-1])  # the last draft is the last token


def keep_accepting(p, q, drafted, generator, *, accept, replace):
    """Leaves a rejected draft out and goes on with the next, whose law was computed after the rejected one."""
    path, law = [], p[-1]
    for i, (d, q_i) in enumerate(zip(drafted, told_laws(p, q, drafted), strict=True)):
        if generator[i] < float(accept(p[i], q_i, d)):
            path.append(i)
        else:
            law = replace(p[i], q_i)
    return Verdict(path, pick(law, generator[-1]))


def p_off_by_one(p, q, drafted, generator, **rules):
    """Compares d_i with p_{i+1}, the law of the token after it."""
    return verify.chain(torch.cat([p[1:], p[-1:]]), q, drafted, generator, **rules)


def bonus_off_by_one(p, q, drafted, generator, **rules):
    """Draws the bonus from p_γ instead of p_{γ+1}."""
    return verify.chain(torch.cat([p[:-1], p[-2:-1]]) if len(p) > 1 else p, q, drafted, generator, **rules)


def one_random_number(p, q, drafted, generator, **rules):
    """Decides all places with the same random number: who passed once is likelier to pass again."""
    return verify.chain(p, q, drafted, [generator[0]] * len(drafted) + [generator[-1]], **rules)


def correct_with_the_rejecting_number(p, q, drafted, generator, *, accept, replace):
    """Draws the correction with the number that rejected: it is known to be large, so late tokens are favoured."""
    for i, (d, q_i) in enumerate(zip(drafted, told_laws(p, q, drafted), strict=True)):
        if generator[i] >= float(accept(p[i], q_i, d)):
            return Verdict(list(range(i)), pick(replace(p[i], q_i), generator[i]))
    return Verdict(list(range(len(drafted))), pick(p[-1], generator[-1]))


def batch_ignores_lengths(p, q, drafted, lengths, generator):
    """Verifies the padding of rows that drafted less than the longest."""
    return verify.chain_batch(p, q, drafted, None, generator)


def batch_counts_all_passes(p, q, drafted, lengths, generator):
    """Counts every passing draft of a row instead of those before the first rejection."""
    B, K = drafted.shape
    lengths = torch.full((B,), K) if lengths is None else lengths
    passes = generator[:, :-1] < accept_probability(p[:, :-1], torch.ones_like(p[:, :-1]) if q is None else q, drafted)
    accepted = (passes & (torch.arange(K) < lengths[:, None])).sum(-1)
    return accepted, verify.chain_batch(p, q, drafted, lengths, generator)[1]


# ---- proposals: what was drawn, and what the verifier is told ------------------------------------------------------


def q_before_top_p(draft, context, gamma, random):
    """Draws after top-p, but reports q as it was before."""
    truncated = Sampling(temperature=1.0, top_p=0.7)
    drafted, _ = exact.propose_chain(lambda text: truncated.probs(draft(text).log()), context, gamma, random)
    return drafted, torch.stack([draft(context + drafted[:i]) for i in range(gamma)])


def soft_q_for_greedy_draft(draft, context, gamma, random):
    """Drafts by argmax, but reports the soft q: the argmax was certain, not likely."""
    drafted = ()
    for _ in range(gamma):
        drafted += (int(draft(context + drafted).argmax()),)
    return drafted, torch.stack([draft(context + drafted[:i]) for i in range(gamma)])


def drop_unlikely_draft(draft, context, gamma, random):
    """Stops drafting when the token just drawn was unlikely, and throws it away. What is left was selected."""
    drafted, laws = (), []
    for _ in range(gamma):
        q = draft(context + drafted)
        d = pick(q, random())
        if float(q[d]) < 0.35:
            break
        drafted, laws = (*drafted, d), [*laws, q]
    return drafted, torch.stack(laws) if laws else None


def cascade_tells_the_tiny_law(draft, context, gamma, random, *, middle):
    """Reports the tiny drafter's law for tokens that follow the middle model's."""
    drafted, _ = propose_cascade(draft, context, gamma, random, middle=middle)
    return drafted, torch.stack([draft(context + drafted[:i]) for i in range(gamma)])


def cascade_corrects_from_the_middle(draft, context, gamma, random, *, middle):
    """The middle model replaces what it rejects by a plain draw from its own law, so its output has another law."""
    sloppy = partial(verify.chain, replace=resample_from_p)
    return propose_cascade(draft, context, gamma, random, middle=middle, verifier=sloppy)


# ---- trees ---------------------------------------------------------------------------------------------------------


def stale_q_for_distinct_siblings(draft, context, widths, random, *, siblings):
    """Draws siblings without replacement, but reports the full q for each."""
    tokens, parents, laws = exact_trees.propose_tree(draft, context, widths, random, siblings=siblings)
    if siblings is not exact.distinct:
        return tokens, parents, laws
    texts = {-1: context}
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        texts[node] = (*texts[parent], token)
    return tokens, parents, torch.stack([draft(texts[parent]) for parent in parents])


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


def typical_as_lossless(p, q, tokens, parents, generator, **rules):
    """Medusa's typical acceptance, sold as exact."""
    return verify.typical(p, tokens, parents, generator)


def each_sibling_against_p(p, q, tokens, parents, generator, *, accept, replace):
    """Compares every sibling with the full p, as if its elder siblings had not been tried, then emits the residual."""
    node, path, below = -1, [], children(parents)
    while True:
        r = p[node + 1]
        for child in below[node]:
            q_i = one_hot(tokens[child], like=r) if q is None else q[child]
            if generator[child] < float(accept(p[node + 1], q_i, tokens[child])):
                path, node = [*path, child], child
                break
            r = replace(r, q_i)
        else:
            return Verdict(path, pick(r, generator[-1]))


def emit_from_p_after_all_siblings(p, q, tokens, parents, generator, **rules):
    """When no child is accepted, draws from p at that node instead of from what the children left uncovered."""
    verdict = verify.tree(p, q, tokens, parents, generator, **rules)
    end = verdict.path[-1] if verdict.path else -1
    return Verdict(verdict.path, pick(p[end + 1], generator[-1]))


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


def children_by_likelihood(p, q, tokens, parents, generator, **rules):
    """Tries the likeliest child first. The order was part of the draw: q_i holds only given the elder siblings."""
    order = sorted(range(len(tokens)), key=lambda node: -float(p[parents[node] + 1, tokens[node]]))
    below, ranked = children(parents), {}
    for siblings in below.values():  # same nodes, same places, siblings permuted within their parent
        ranked |= dict(zip(siblings, sorted(siblings, key=order.index), strict=True))
    return _tree_in_order(p, q, tokens, parents, generator, ranked, **rules)


def _tree_in_order(p, q, tokens, parents, generator, ranked, *, accept, replace):
    node, path, below = -1, [], children(parents)
    while True:
        r = p[node + 1]
        for child in (ranked[sibling] for sibling in below[node]):
            q_i = one_hot(tokens[child], like=r) if q is None else q[child]
            if generator[child] < float(accept(r, q_i, tokens[child])):
                path, node = [*path, child], child
                break
            r = replace(r, q_i)
        else:
            return Verdict(path, pick(r, generator[-1]))


# ---- trees of a batch ----------------------------------------------------------------------------------------------


def _tree_batch_with(old, new, *args, **options):
    """verify.tree_batch with one piece of its source changed."""
    with MonkeyPatch.context() as patch:
        rewrite(patch, verify, "tree_batch", old, new)
        return verify.tree_batch(*args, **options)


def tree_batch_each_against_p(*args):
    """Compares every sibling with the full p, as if its elder siblings had not been tried."""
    return _tree_batch_with("left = 1 - (elder * given[:, None]).sum(-1)", "left = 1", *args)


def tree_batch_counts_twice(*args):
    """Takes the mass of a token away once for each sibling that has it, and gives a refused token a second chance."""
    return _tree_batch_with("masked_fill(again | ~real, 0)", "masked_fill(~real, 0)", *args)


def tree_batch_any_sibling(*args):
    """Accepts all siblings that would pass instead of the eldest."""
    return _tree_batch_with("passed &= ~(elder & passed[:, None]).any(-1)", "pass", *args)


def tree_batch_orphans(*args):
    """Accepts nodes whose parent was rejected."""
    return _tree_batch_with("(passed[:, None] | ~ancestry).all(-1)", "passed", *args)


def tree_batch_ignores_lengths(p, tokens, parents, above, lengths, u):
    """Verifies the padding of smaller trees."""
    return verify.tree_batch(p, tokens, parents, above, None, u)


def tree_batch_padding_refuses(*args):
    """Lets padding take its token's mass away from what is emitted."""
    return _tree_batch_with("((parents == end[:, None]) & real)", "(parents == end[:, None])", *args)


def tree_batch_emits_from_p(*args):
    """When no child is accepted, samples from p at that node instead of from what the children left uncovered."""
    return _tree_batch_with("r.masked_fill(refused > 0, 0)", "r", *args)


def tree_batch_first_number(*args):
    """Samples the emitted token by the number of the last node of the largest tree."""
    return _tree_batch_with("u.gather(1, lengths[:, None])[:, 0]", "u[:, -1]", *args)


# ---- who catches whom ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mutant:
    scheme: Scheme
    caught_by: tuple[str, ...]  # names in distribution_checks.CHECKS


MUTANTS = {
    "resample_from_p": Mutant(Scheme(replace=resample_from_p), ("position", "joint", "siblings", "cascade", "tree")),
    "resample_from_q": Mutant(Scheme(replace=resample_from_q), ("position", "joint", "siblings", "cascade", "tree")),
    "argmax_of_residual": Mutant(Scheme(replace=argmax_of_residual), ("position", "joint", "siblings", "tree")),
    "unguarded_residual": Mutant(Scheme(replace=unguarded_residual), ("residual",)),
    "unnormalised_residual": Mutant(Scheme(replace=unnormalised_residual), ("residual", "siblings", "tree")),
    "accept_always": Mutant(Scheme(accept=accept_always), ("position", "joint", "count", "tree")),
    "accept_if_likelier": Mutant(Scheme(accept=accept_if_likelier), ("position", "joint", "count", "tree")),
    "forget_the_bonus": Mutant(Scheme(chain=forget_the_bonus), ("count",)),
    "keep_accepting": Mutant(Scheme(chain=keep_accepting), ("joint", "count")),
    "p_off_by_one": Mutant(Scheme(chain=p_off_by_one), ("joint",)),
    "bonus_off_by_one": Mutant(Scheme(chain=bonus_off_by_one), ("joint",)),
    "one_random_number": Mutant(Scheme(chain=one_random_number), ("joint", "count")),
    "correct_with_the_rejecting_number": Mutant(Scheme(chain=correct_with_the_rejecting_number), ("joint",)),
    "batch_ignores_lengths": Mutant(Scheme(chain_batch=batch_ignores_lengths), ("batch",)),
    "batch_counts_all_passes": Mutant(Scheme(chain_batch=batch_counts_all_passes), ("batch",)),
    "tree_batch_each_against_p": Mutant(Scheme(tree_batch=tree_batch_each_against_p), ("tree_batch",)),
    "tree_batch_counts_twice": Mutant(Scheme(tree_batch=tree_batch_counts_twice), ("tree_batch",)),
    "tree_batch_any_sibling": Mutant(Scheme(tree_batch=tree_batch_any_sibling), ("tree_batch",)),
    "tree_batch_orphans": Mutant(Scheme(tree_batch=tree_batch_orphans), ("tree_batch",)),
    "tree_batch_ignores_lengths": Mutant(Scheme(tree_batch=tree_batch_ignores_lengths), ("tree_batch",)),
    "tree_batch_padding_refuses": Mutant(Scheme(tree_batch=tree_batch_padding_refuses), ("tree_batch",)),
    "tree_batch_emits_from_p": Mutant(Scheme(tree_batch=tree_batch_emits_from_p), ("tree_batch",)),
    "tree_batch_first_number": Mutant(Scheme(tree_batch=tree_batch_first_number), ("tree_batch",)),
    "q_before_top_p": Mutant(Scheme(propose=q_before_top_p), ("joint",)),
    "soft_q_for_greedy_draft": Mutant(Scheme(propose=soft_q_for_greedy_draft), ("joint",)),
    "drop_unlikely_draft": Mutant(Scheme(propose=drop_unlikely_draft), ("joint",)),
    "cascade_tells_the_tiny_law": Mutant(Scheme(propose_cascade=cascade_tells_the_tiny_law), ("cascade",)),
    "cascade_corrects_from_the_middle": Mutant(Scheme(propose_cascade=cascade_corrects_from_the_middle), ("cascade",)),
    "stale_q_for_distinct_siblings": Mutant(Scheme(propose_tree=stale_q_for_distinct_siblings), ("tree",)),
    "merged_duplicates": Mutant(Scheme(propose_tree=merged_duplicates), ("tree",)),
    "typical_as_lossless": Mutant(Scheme(tree=typical_as_lossless), ("tree",)),
    "each_sibling_against_p": Mutant(Scheme(tree=each_sibling_against_p), ("tree",)),
    "emit_from_p_after_all_siblings": Mutant(Scheme(tree=emit_from_p_after_all_siblings), ("tree",)),
    "longest_valid_path": Mutant(Scheme(tree=longest_valid_path), ("tree",)),
    "children_by_likelihood": Mutant(Scheme(tree=children_by_likelihood), ("tree",)),
}
