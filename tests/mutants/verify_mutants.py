"""Wrong ways to verify a draft: one piece of a function of verify.py changed, and the checks that catch each.

Those that lesson 06 shows stand in labs/verifiers.py, with what each of them bends (test_residual.py).
"""

from dataclasses import dataclass

from distribution_checks import Scheme

from minispec import verify

from .patching import variant


@dataclass(frozen=True)
class Mutant:
    scheme: Scheme
    caught_by: tuple[str, ...]  # names in distribution_checks.CHECKS


MUTANTS: dict[str, Mutant] = {}

# Name, function of verify, what it says, what the mutant says, who notices.
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
