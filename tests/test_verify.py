"""Verification of drafts: the rules, chains (token by token and by blocks), trees, and batches of both.

Distributions are exact: every branch of the random numbers is followed, through the functions of verify.py themselves.
A test that a mutant has to fail takes the function under test as an argument; mutants/verify_mutants.py has the
mutants, and the end of each section says which test notices which.
"""

from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from exact_distributions import (
    EXACT,
    ancestor_mask,
    assert_cycles_follow,
    assert_same,
    propose_best_tree,
    propose_cascade,
    propose_greedy,
    propose_tree,
    propose_until_unlikely,
    propose_until_unsure,
    random_distributions,
    random_pairs,
    toy_model,
    tree_distribution,
)
from loop_checks import greedy_pair
from mutants import assert_noticed, verify_mutants

import minispec as ms
from minispec import exact, verify
from minispec.exact import exact_distribution
from minispec.verify import accept_probability, chain, chain_batch, pick, residual, tree, typical
from minispec_course.labs import verifiers

ALMOST_ONE = 1 - 2.0**-53  # the largest random number
RULES = pytest.mark.parametrize("verifier", [verify.chain, verify.block])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=generator(seed), dtype=torch.float64)


def probs(*probabilities: float) -> torch.Tensor:
    return torch.tensor(probabilities, dtype=torch.float64)


def one_hot(tokens: list[int], V: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(tokens), V).double()


# ---- the rules, at one position --------------------------------------------------------------------------------------


def test_rules_by_hand():
    p, q = probs(0.5, 0.3, 0.2), probs(0.2, 0.2, 0.6)
    assert [float(accept_probability(p, q, d)) for d in range(3)] == pytest.approx([1, 1, 1 / 3])
    assert residual(p, q).tolist() == pytest.approx([0.75, 0.25, 0])
    assert residual(p, p).tolist() == p.tolist()  # nothing uncovered, nothing rejected, no NaN
    assert residual(p, torch.zeros(3)).tolist() == pytest.approx(p.tolist())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pick_is_the_inverse_of_the_running_total(dtype):
    some = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0], dtype=dtype)
    u = [0.0, 0.2499, 0.25, 0.5, 0.7499, 0.75, ALMOST_ONE]
    assert [pick(some, number) for number in u] == [1, 1, 3, 3, 3, 4, 4]
    assert pick(some.expand(7, 6), torch.tensor(u, dtype=torch.float64)).tolist() == [1, 1, 3, 3, 3, 4, 4]


def test_the_residual_is_a_distribution_over_tokens_that_the_draft_does_not_cover():
    for p, q in random_pairs(500):
        r = residual(p, q)
        assert abs(float(r.sum()) - 1) <= EXACT and bool((r >= 0).all()), f"p={p.tolist()}, q={q.tolist()}"
        assert exact.total_variation(p, q) == 0 or not bool(r[p <= q].any()), f"p={p.tolist()}, q={q.tolist()}"


@pytest.mark.slow
def test_a_token_after_one_draft_or_several_siblings_follows_p():
    """For the three ways to draft siblings."""
    for i, (p, q) in enumerate(random_pairs(300)):
        siblings = (exact.iid, exact.distinct, exact.best)[i % 3]
        for m in (1, 3 if len(p) <= 5 else 2):
            found = exact.emitted_distribution(p, q, m=m, siblings=siblings)
            assert_same(found, p, f"{m} × {siblings.__name__}, p={p.tolist()}, q={q.tolist()}")


@pytest.mark.slow
@RULES
def test_a_token_follows_p_through_the_verifier(verifier, pairs: int = 60):
    for p, q in random_pairs(pairs):
        cycle = exact.chain_distribution(lambda c: p, lambda c: q, 1, verify=verifier)  # noqa: B023
        first = exact.joint_distribution(lambda c: cycle, 1)  # noqa: B023
        assert_same(first, exact.plain_distribution(lambda c: p), f"p={p.tolist()}, q={q.tolist()}")  # noqa: B023


WRONG_ACCEPT = [verifiers.always, verifiers.if_likelier, verifiers.by_p_alone, verifiers.upside_down]
WRONG_REPLACE = [verifiers.from_p, verifiers.from_q, verifiers.not_normalised, verifiers.argmax_of_residual]
WRONG_RULES = [dict(accept=rule) for rule in WRONG_ACCEPT] + [dict(replace=rule) for rule in WRONG_REPLACE]


@pytest.mark.parametrize("rules", WRONG_RULES, ids=lambda rules: "".join(rule.__name__ for rule in rules.values()))
def test_wrong_rules_are_noticed(rules):
    assert_noticed(test_a_token_follows_p_through_the_verifier, partial(chain, **rules))


# ---- chains: the joint distribution of whole cycles ------------------------------------------------------------------


@pytest.mark.slow
@RULES
@pytest.mark.parametrize("propose", [exact.propose_chain, propose_greedy, propose_until_unsure, propose_until_unlikely])
@pytest.mark.parametrize("V, k, n", [(3, 2, 3), (2, 3, 3), (5, 1, 2)])
def test_cycles_follow_the_targets_joint_distribution(verifier, propose, V, k, n):
    """Repeated cycles do, and so does one cycle that plain decoding continues: nothing has to be remembered after a
    partial acceptance. Drafts are sampled, deterministic, or end early, by a rule that drops no token it has seen."""
    for sparse in (False, True):
        target, draft = toy_model(V, 1, sparse=sparse), toy_model(V, 2, sparse=sparse, sharpness=1.5)
        cycle = partial(exact.chain_distribution, target, draft, k, propose=propose, verify=verifier)
        assert_cycles_follow(target, cycle, n, f"sparse={sparse}")
        plain = partial(exact.plain_distribution, target)
        assert_cycles_follow(target, lambda c: plain(c) if c else cycle(c), k + 1, "one cycle")  # noqa: B023


def check_cycles(verifier) -> None:
    test_cycles_follow_the_targets_joint_distribution(verifier, exact.propose_chain, 3, 2, 3)


@pytest.mark.parametrize("propose", [propose_until_unsure, propose_until_unlikely])
def test_stopping_rules_really_stop_some_drafts(propose):
    draft = toy_model(3, 2, sharpness=1.5)
    starts = [((), u) for u in np.linspace(0, 0.99, 20)] + [((x,), u) for x in range(3) for u in (0.1, 0.5, 0.9)]
    assert len({len(propose(draft, context, 2, iter([u, u]).__next__)[0]) for context, u in starts}) > 1


@pytest.mark.slow
def test_cascades_follow_the_targets_distribution():
    """A middle model verifies the draft, and the target verifies what comes out: one token, and several cycles."""
    every = [some for pair in random_pairs(300) for some in pair]
    for i, (p, q) in enumerate(random_pairs(300)):
        middle = next(some for some in every[i:] + every if len(some) == len(p))
        assert_same(exact.cascade_distribution(p, middle, q), p, f"p={p.tolist()}, q={q.tolist()}")
    target, middle, draft = (toy_model(2, seed) for seed in (1, 2, 3))
    propose = partial(propose_cascade, middle=middle)
    assert_cycles_follow(target, partial(exact.chain_distribution, target, draft, 2, propose=propose), 3, "cascade")


def mean_length(verifier, target, draft, k: int) -> float:
    """Tokens that a cycle emits on average: the accepted ones and one more."""
    cycle = exact.chain_distribution(target, draft, k, verify=verifier)
    assert abs(sum(cycle.values()) - 1) <= EXACT
    return sum(len(run) * probability for run, probability in cycle.items())


def formula_length(weight, target, draft, k: int) -> float:
    """1 + Σ over prefixes of P(drafted) · P(accepted | drafted). `weight` extends the latter by one token."""
    reached, length = {(): (1.0, 1.0)}, 1.0
    for _ in range(k):
        step = {}
        for prefix, (drafted, accepted) in reached.items():
            for x, (p, q) in enumerate(zip(target(prefix).tolist(), draft(prefix).tolist(), strict=True)):
                if q > 0:
                    step[(*prefix, x)] = drafted * q, weight(accepted, p / q)
        reached = step
        length += sum(drafted * accepted for drafted, accepted in reached.values())
    return length


def token_weight(accepted: float, ratio: float) -> float:
    return accepted * min(1.0, ratio)


def block_weight(accepted: float, ratio: float) -> float:
    return min(1.0, accepted * ratio)


@pytest.mark.slow
@pytest.mark.parametrize("verifier, weight", [(verify.chain, token_weight), (verify.block, block_weight)])
def test_a_cycle_emits_as_many_tokens_as_the_formula_says(verifier, weight, seeds: int = 9):
    for seed in range(seeds):
        V, k = ((3, 3), (2, 4), (4, 2))[seed % 3]
        pair = toy_model(V, 2 * seed, sparse=seed % 2 == 1), toy_model(V, 2 * seed + 1)
        found, expected = mean_length(verifier, *pair, k), formula_length(weight, *pair, k)
        assert abs(found - expected) <= EXACT, f"seed {seed}: {found} instead of {expected}"
        assert expected >= formula_length(token_weight, *pair, k) - EXACT  # blocks are never worse


def check_length(verifier) -> None:
    test_a_cycle_emits_as_many_tokens_as_the_formula_says(verifier, token_weight, seeds=1)


def test_the_papers_example_of_what_blocks_gain():
    p = probs(1 / 3, 2 / 3)
    means = [mean_length(rule, lambda c: p, lambda c: p.flip(0), 2) for rule in (verify.chain, verify.block)]
    assert np.allclose(means, [1 + 10 / 9, 1 + 11 / 9], atol=EXACT)


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong, tests",
    [
        (verify_mutants.forget_the_bonus, [check_length]),
        (verify_mutants.one_random_number, [check_cycles, check_length]),
        (verify_mutants.correct_with_the_rejecting_number, [check_cycles]),
    ],
)
def test_wrong_chains_are_noticed(wrong, tests):
    for test in tests:
        assert_noticed(test, wrong)


# ---- chains: edges and rounding --------------------------------------------------------------------------------------


def test_a_greedy_target_accepts_exactly_the_argmax():
    best = [2, 0, 1, 2]
    q = random_distributions((3, 3), generator())
    for drafted, accepted in [([2, 0, 1], 3), ([2, 0, 0], 2), ([2, 1, 1], 1), ([0, 0, 1], 0)]:
        for told in (q, None):
            for u in ([0.0] * 4, [0.5] * 4, [ALMOST_ONE] * 4):
                assert chain(one_hot(best, 3), told, drafted, u).run(drafted) == tuple(best[: accepted + 1])


@RULES
def test_without_a_draft_it_is_plain_decoding(verifier):
    p = probs(0, 1, 0)[None]
    for q in (None, p[:0]):
        assert verifier(p, q, [], [0.5]) == ([], 1)


@RULES
def test_where_p_is_q_every_token_is_accepted(verifier):
    same = torch.full((4, 3), 1 / 3)
    for u in (0.0, 0.5, ALMOST_ONE):
        assert verifier(same, same[:3], [0, 1, 2], [u] * 4).accepted == 3


def almost_equal(dtype: torch.dtype, count: int = 60):
    """(p [k+1, V], q [k, V], drafted [k]) whose p and q agree but for the last bit of some numbers."""
    some = generator()
    for V, k in ((2, 1), (3, 2), (5, 4)) * (count // 3):
        p = random_distributions((k + 1, V), some).to(dtype)
        step = torch.randint(-1, 2, (k, V), generator=some).to(dtype)
        q = torch.where(step == 0, p[:k], torch.nextafter(p[:k], step.sign() * 2))
        yield p, q, torch.multinomial(p[:k], 1, generator=some).flatten().tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_blocks_survive_rounding(dtype):
    """Where p = q up to rounding, R and 1 − w are 0 or nearly: the verdict stays one that p allows. Above all if only
    the last draft token has p < q, by one bit: it may be rejected, and then all before it are kept."""
    for p, q, drafted in almost_equal(dtype):
        for u in (0.0, 0.5, ALMOST_ONE):
            path, token = verify.block(p, q, drafted, [u] * len(p))
            assert token < p.shape[-1] and float(p[len(path), token]) > 0, (p, q, drafted, u)
    for k in (1, 2, 4):
        q = torch.full((k, 4), 0.25, dtype=dtype)
        p = torch.cat([q, q[:1]])
        p[k - 1, 2] = torch.nextafter(p[k - 1, 2], p.new_zeros(()))
        assert verify.block(p, q, [2] * k, [ALMOST_ONE] * k + [0.6]) == ([*range(k - 1)], 2)


# ---- batches of chains -----------------------------------------------------------------------------------------------


def block_batch(*arguments):
    return chain_batch(*arguments, rule="block")


@pytest.mark.slow
@pytest.mark.parametrize("batch, one, rows", [(chain_batch, chain, 400), (block_batch, verify.block, 60)])
def test_a_batch_of_chains_gives_what_one_chain_at_a_time_gives(batch, one, rows):
    """On the same random numbers, also for drafts of different lengths, whatever pads them."""
    some = generator()
    for V, k, sparse in [(2, 1, False), (8, 4, False), (8, 4, True), (5, 3, True)]:
        p, q = (random_distributions((rows, k + extra, V), some, sparse) for extra in (1, 0))
        drafted = torch.multinomial(q.flatten(0, 1), 1, generator=some).view(rows, k)
        lengths = torch.randint(0, k + 1, (rows,), generator=some)
        u = torch.rand(rows, k + 1, generator=some, dtype=torch.float64)
        u[::7], u[3::7] = 0.0, ALMOST_ONE  # the two ends of [0, 1)
        padding = (torch.arange(k) >= lengths[:, None])[..., None]
        for told, long in [(q.masked_fill(padding, torch.nan), lengths), (None, lengths), (q, None), (None, None)]:
            accepted, token = batch(p, told, drafted, long, u)
            for b in range(rows):
                n = k if long is None else int(long[b])
                expected = one(p[b, : n + 1], None if told is None else told[b, :n], drafted[b, :n], u[b, : n + 1])
                assert (int(accepted[b]), int(token[b])) == (expected.accepted, expected.token), f"row {b}, {n} drafts"
                assert float(p[b, expected.accepted, expected.token]) > 0, "emitted a token of probability 0"


@pytest.mark.parametrize("rule", ["token", "block"])
def test_a_batch_without_drafts_and_one_where_p_is_q(rule):
    p = random_distributions((3, 1, 4), generator())
    accepted, token = chain_batch(p, None, torch.zeros(3, 0, dtype=torch.long), None, numbers(3, 1), rule=rule)
    assert accepted.tolist() == [0, 0, 0] and token.tolist() == pick(p[:, 0], numbers(3, 1)[:, 0]).tolist()
    p, q, drafted = torch.full((2, 3, 4), 0.25), torch.full((2, 2, 4), 0.25), torch.zeros(2, 2, dtype=torch.long)
    accepted, _ = chain_batch(p, q, drafted, torch.tensor([2, 1]), numbers(2, 3), rule=rule)
    assert accepted.tolist() == [2, 1]  # nothing is rejected, and a row ends where its own draft does


def check_batch(batch) -> None:
    test_a_batch_of_chains_gives_what_one_chain_at_a_time_gives(batch, chain, rows=60)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [verify_mutants.ignore_lengths, verify_mutants.count_all_passes])
def test_wrong_batches_of_chains_are_noticed(wrong):
    assert_noticed(check_batch, wrong)


# ---- trees -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_tree_cycles_follow_the_targets_joint_distribution(verifier=tree):
    drafts = [partial(propose_tree, siblings=s) for s in (exact.iid, exact.distinct, exact.best)]
    for V, widths, n in ((3, (2,), 1), (3, (3,), 1), (2, (2, 2), 2), (3, (2, 1), 2)):
        target, draft = toy_model(V, 1), toy_model(V, 2)
        for propose in [*drafts, propose_best_tree]:
            cycle = partial(tree_distribution, target, draft, widths, propose=propose, verify=verifier)
            assert_cycles_follow(target, cycle, n, f"V={V}, widths={widths}, {propose}")


def test_deterministic_trees_of_merged_branches_follow_the_targets_joint_distribution():
    """A trie of deterministic branches (n-grams, lookahead): the same rule with one-hot q, unequal depths included."""
    from minispec.drafters.lookahead import merge

    def propose(draft, context, widths, random):
        return *merge([[0, 1], [0, 2], [2], [1, 1, 0]]), None

    target = toy_model(3, 1)
    assert_cycles_follow(
        target, partial(tree_distribution, target, target, None, propose=propose), 3, "merged branches"
    )


@pytest.mark.slow
@pytest.mark.parametrize("mistake", verify_mutants.TREE_MISTAKES)
def test_wrong_trees_are_noticed(mistake):
    wrong = partial(verify_mutants.wrong_tree, mistake=mistake)
    assert_noticed(test_tree_cycles_follow_the_targets_joint_distribution, wrong)


def test_a_tree_without_branches_is_a_chain():
    p, q = (random_distributions((n, 5), generator(n)) for n in (4, 3))
    for seed in range(50):
        drafted = torch.multinomial(q, 1, generator=generator(seed)).flatten()
        for told in (q, None):
            u = numbers(4, seed=seed)
            assert tree(p, told, drafted, [-1, 0, 1], u) == chain(p, told, drafted, u)


def test_a_greedy_tree_follows_the_argmax_as_far_as_it_goes():
    tokens, parents = [1, 2, 0, 1, 2, 2], [-1, -1, 1, 1, 3, 0]  # 1 → 2;  2 → {0, 1 → 2}
    best = [2, 0, 1, 0, 0, 0, 0]  # at the root 2 (node 1), there 1 (node 3), there 0: no such child
    assert tree(one_hot(best, 3), None, tokens, parents, numbers(7)) == ([1, 3], 0)
    assert verify.greedy(best, tokens, parents) == ([1, 3], 0)


# ---- batches of trees ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_batch_of_trees_gives_what_one_tree_at_a_time_gives(tree_batch=verify.tree_batch, rows=120):
    """On the same random numbers: any shape, siblings of the same token, different sizes, tokens that are certain and
    tokens that are impossible. What pads a row counts for nothing."""
    some, seen = generator(), Counter()
    below = lambda most, *shape: torch.randint(0, most, shape, generator=some)  # noqa: E731
    for V, n, sparse in [(2, 1, False), (3, 7, False), (8, 9, False), (8, 9, True), (4, 6, True), (5, 0, False)]:
        p = random_distributions((rows, n + 1, V), some, sparse)
        p[::9] = torch.nn.functional.one_hot(below(V, len(p[::9]), n + 1), V).double()  # certain
        tokens, lengths = below(V, rows, n), below(n + 1, rows)
        parents = torch.stack([below(node + 1, rows) - 1 for node in range(n)], 1) if n else tokens
        above = torch.stack([ancestor_mask(row) for row in parents.tolist()])
        u = torch.rand(rows, n + 1, generator=some, dtype=torch.float64)
        u[::7], u[3::7] = 0.0, 1 - 2.0**-40  # ends of [0, 1): what is left of 1 is not rounded as a residual is
        for long in (None, lengths):
            accepted, token = tree_batch(p, tokens, parents, above, long, u)
            for b, size in enumerate([n] * rows if long is None else long.tolist()):
                nodes = tokens[b, :size].tolist(), parents[b, :size].tolist()
                expected = tree(p[b, : size + 1], None, *nodes, u[b, : size + 1])
                path = accepted[b].nonzero().flatten().tolist()
                assert (path, int(token[b])) == (expected.path, expected.token), f"row {b}, {size} nodes"
                seen[len(path)] += 1
                assert float(p[b, ([-1, *path])[-1] + 1, expected.token]) > 0, "emitted a token of probability 0"
    assert all(seen[length] > 5 for length in range(4)), f"accepted paths are too much alike: {seen}"


@pytest.mark.slow
def test_a_batch_of_trees_follows_the_targets_joint_distribution():
    """All thresholds are multiples of 1/24. So the midpoints of a lattice of random numbers are every way it can turn
    out, each with the same probability."""
    twelfths = {(): (3, 4, 5), (1,): (6, 3, 3), (2,): (8, 1, 3), (1, 0): (2, 6, 4), (0,): (5, 5, 2)}
    target = lambda context: torch.tensor(twelfths[context], dtype=torch.float64) / 12  # noqa: E731
    tokens, parents, prefixes = [1, 2, 0], [-1, -1, 0], [(), (1,), (2,), (1, 0)]
    line = (torch.arange(24, dtype=torch.float64) + 0.5) / 24
    u = torch.cartesian_prod(*[line] * 4)  # [24⁴, 4]
    p = torch.stack([target(prefix) for prefix in prefixes])
    every = lambda x: torch.as_tensor(x).expand(len(u), *torch.as_tensor(x).shape)  # noqa: E731
    accepted, token = verify.tree_batch(every(p), every(tokens), every(parents), every(ancestor_mask(parents)), None, u)
    code = accepted.long() @ torch.tensor([1, 2, 4]) * 3 + token  # one number for a path and its end
    cycle = {}
    for number, count in zip(*(part.tolist() for part in code.unique(return_counts=True)), strict=True):
        path = [node for node in range(3) if number // 3 >> node & 1]
        cycle[(*(tokens[node] for node in path), number % 3)] = count / len(u)
    plain = partial(exact.plain_distribution, target)
    assert_cycles_follow(target, lambda context: plain(context) if context else cycle, 2, "a batch of trees")


def check_tree_batch(tree_batch) -> None:
    test_a_batch_of_trees_gives_what_one_tree_at_a_time_gives(tree_batch, rows=60)


@pytest.mark.slow
@pytest.mark.parametrize("mistake", verify_mutants.TREE_BATCH_MISTAKES)
def test_wrong_batches_of_trees_are_noticed(mistake):
    assert_noticed(check_tree_batch, partial(verify_mutants.wrong_tree_batch, mistake=mistake))


@pytest.mark.slow
def test_mutants_without_their_mistake_are_right():
    """So what is noticed is the mistake."""
    test_tree_cycles_follow_the_targets_joint_distribution(verify_mutants.wrong_tree)
    check_tree_batch(verify_mutants.wrong_tree_batch)


# ---- typical acceptance: lossy ---------------------------------------------------------------------------------------


def test_typical_accepts_by_entropy_and_takes_the_longest_path():
    flat, peaked = torch.full((20,), 0.05, dtype=torch.float64), probs(0.96, 0.02, 0.02, *[0.0] * 17)
    # flat: δ·exp(−H) = 0.3/20 = 0.015 < 0.05, everything passes. peaked: H = 0.196, min(0.09, 0.247) = 0.09.
    p = torch.stack([flat, peaked, peaked, flat, flat])
    tokens, parents = [3, 5, 1, 0], [-1, -1, 0, 1]  # 3 → 1 (0.02, rejected);  5 → 0 (0.96, passes)
    assert typical(p, tokens, parents, numbers(5)).path == [1, 3]
    assert typical(p, tokens, parents, numbers(5), epsilon=0.01).path == [0, 2]  # all pass: the earlier of equals
    assert typical(p[:4], tokens[:3], parents[:3], numbers(4), epsilon=0.9, delta=1.1).path == []  # 0.055: none


def test_typical_is_greedy_on_a_greedy_target_and_biased_otherwise():
    p = one_hot([2, 1, 0], 3)
    assert typical(p, [2, 1], [-1, 0], numbers(3)) == ([0, 1], 0)
    assert typical(p, [1, 1], [-1, 0], numbers(3)) == ([], 2)
    lossy = lambda p, q, *rest: typical(p, *rest)  # noqa: E731
    target, draft = toy_model(3, 1), toy_model(3, 2)
    cycle = tree_distribution(target, draft, (2,), propose=propose_best_tree, verify=lossy)
    first = exact.joint_distribution(lambda context: cycle, 1)
    assert exact.total_variation(first, exact.plain_distribution(target)) > 0.1


# ---- exact distributions of programs ---------------------------------------------------------------------------------


def test_every_branch_of_a_program_runs_once():
    calls = []

    def program(random):
        calls.append(1)
        first, second = random(), random()
        return "a" if first < 0.3 else ("b" if second < 0.5 else "c")

    assert exact_distribution(program) == pytest.approx({"a": 0.3, "b": 0.35, "c": 0.35})
    assert len(calls) == 3


def test_what_is_known_of_a_random_number_is_remembered():
    def reused(random):
        u = random()
        return u < 0.6, u < 0.3, u >= 0.6

    expected = {(True, True, False): 0.3, (True, False, False): 0.3, (False, False, True): 0.4}
    assert exact_distribution(reused) == pytest.approx(expected)


# ---- which rule runs, and what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["token", "block"])
def test_loop_and_engine_really_use_the_rule_they_are_given(rule, monkeypatch):
    """Both rules are lossless, so no distribution would show it."""
    calls = Counter()

    def counting(*arguments, rule):
        calls[rule] += 1
        return chain_batch(*arguments, rule=rule)

    monkeypatch.setattr(verify, "chain_batch", counting)
    target, draft = greedy_pair()
    out = ms.speculate(target, [1, 2], ms.drafters.Model(draft), 3, 8, rule=rule, temperature=1.0, seed=0)
    assert calls == {rule: len(out.trace.cycles)}
    engine = ms.Engine(target, ms.drafters.Model(draft), k=3, rule=rule)
    engine.generate([[1, 2]], ms.SamplingParams(max_new_tokens=8, temperature=1.0, seed=0), progress=False)
    assert calls.keys() == {rule} and calls[rule] > len(out.trace.cycles)


def test_blocks_are_refused_for_trees_and_lossy_drafters():
    target, draft = greedy_pair()
    chains, lossy, trees = (ms.drafters.Model(draft) for _ in range(3))
    lossy.lossless = False
    trees.tree = True
    for drafter, rule, words in ((lossy, "block", "trees"), (trees, "block", "trees"), (chains, "blocks", "rule=")):
        with pytest.raises(ValueError, match=words):
            ms.speculate(target, [1, 2], drafter, 2, 4, rule=rule)
        with pytest.raises(ValueError, match=words):
            ms.Engine(target, drafter, k=2, rule=rule)
    unexpected = ms.drafters.Draft([1, 2], None, [-1, -1])  # from a drafter that said it makes chains
    with pytest.raises(ValueError, match="trees"):
        verify.judge(torch.zeros(1, 3, 64), [None], [unexpected], rule="block")


def test_check_sampled_takes_good_drafts_and_looks_at_no_padding():
    q = torch.tensor([[0.2, 0.8], [1.0, 0.0]])
    verify.check_sampled(torch.tensor([1, 0]), q)
    verify.check_sampled(torch.zeros(0, dtype=torch.long), torch.zeros(0, 2))
    padded = torch.stack([q, torch.stack([q[0], torch.zeros(2)])])  # the second row drafted one token only
    verify.check_sampled(torch.tensor([[1, 0], [1, 0]]), padded, torch.tensor([2, 1]))
    with pytest.raises(ValueError, match="sums to 0"):
        verify.check_sampled(torch.tensor([[1, 0], [1, 0]]), padded)
    logits = torch.randn(3, 50_000, generator=generator())
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        verify.check_distribution("q", logits.to(dtype).softmax(-1))
