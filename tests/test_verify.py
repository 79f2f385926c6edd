"""The rejection sampler: exact laws of the rules and of the verifiers' own code, then shapes and guards."""

from functools import partial

import distribution_checks
import exact_trees
import numpy as np
import pytest
import torch
from distribution_checks import CHECKS, Scheme, assert_same, target_law, toy_model

from minispec import exact, verify
from minispec.exact import exact_distribution
from minispec.verify import accept_probability, chain, chain_batch, pick, residual, tree, typical


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=generator(seed), dtype=torch.float64)


def law(*probabilities: float) -> torch.Tensor:
    return torch.tensor(probabilities, dtype=torch.float64)


@pytest.mark.parametrize("check", CHECKS)
def test_lossless(check):
    CHECKS[check](Scheme())


# ---- the rules -----------------------------------------------------------------------------------------------------


def test_rules_by_hand():
    p, q = law(0.5, 0.3, 0.2), law(0.2, 0.2, 0.6)
    assert [float(accept_probability(p, q, d)) for d in range(3)] == pytest.approx([1, 1, 1 / 3])
    assert residual(p, q).tolist() == pytest.approx([0.75, 0.25, 0])
    assert residual(p, p).tolist() == p.tolist()  # nothing uncovered, nothing rejected, no NaN
    assert residual(p, torch.zeros(3)).tolist() == pytest.approx(p.tolist())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pick_is_the_inverse_of_the_running_total(dtype):
    probs = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0], dtype=dtype)
    numbers = [0.0, 0.2499, 0.25, 0.5, 0.7499, 0.75, 1 - 2.0**-53]
    assert [pick(probs, u) for u in numbers] == [1, 1, 3, 3, 3, 4, 4]
    assert pick(probs.expand(7, 6), torch.tensor(numbers, dtype=torch.float64)).tolist() == [1, 1, 3, 3, 3, 4, 4]


# ---- chains --------------------------------------------------------------------------------------------------------


def test_greedy_target_accepts_exactly_the_argmax():
    best = [2, 0, 1, 2]
    p = torch.nn.functional.one_hot(torch.tensor(best), 3).double()
    q = distribution_checks._random_laws((3, 3), generator(), sparse=False)
    for drafted, accepted in [([2, 0, 1], 3), ([2, 0, 0], 2), ([2, 1, 1], 1), ([0, 0, 1], 0)]:
        for told in (q, None):
            for u in ([0.0] * 4, [0.5] * 4, [1 - 2.0**-53] * 4):
                assert chain(p, told, drafted, u).run(drafted) == tuple(best[: accepted + 1])


@pytest.mark.parametrize(
    "propose", [distribution_checks.propose_until_unsure, distribution_checks.propose_until_unlikely]
)
def test_honest_stopping_rules_are_lossless(propose):
    target, draft = toy_model(3, 1), toy_model(3, 2, sharpness=1.5)
    joint = exact.joint_distribution(lambda c: exact.chain_distribution(target, draft, 2, c, propose=propose), 3)
    assert_same(joint, target_law(target, 3), propose.__name__)
    lengths = {len(propose(draft, (), 2, iter([u, u]).__next__)[0]) for u in np.linspace(0, 0.99, 20)}
    lengths |= {len(propose(draft, (x,), 2, iter([u, u]).__next__)[0]) for x in range(3) for u in (0.1, 0.5, 0.9)}
    assert len(lengths) > 1  # the rule does stop some drafts early


def test_batch_edges():
    p = distribution_checks._random_laws((3, 1, 4), generator(), sparse=False)
    accepted, token = chain_batch(p, None, torch.zeros(3, 0, dtype=torch.long), None, numbers(3, 1))  # nothing drafted
    assert accepted.tolist() == [0, 0, 0] and token.shape == (3,)
    p32, q32 = torch.full((2, 3, 4), 0.25), torch.full((2, 2, 4), 0.25)
    accepted, token = chain_batch(p32, q32, torch.zeros(2, 2, dtype=torch.long), torch.tensor([2, 1]), numbers(2, 3))
    assert accepted.tolist() == [2, 1]  # p = q never rejects, and a row ends where its own draft does


# ---- trees ---------------------------------------------------------------------------------------------------------


def test_a_tree_without_branches_is_a_chain():
    p, q = (distribution_checks._random_laws((n, 5), generator(n), sparse=False) for n in (4, 3))
    for seed in range(50):
        drafted = torch.multinomial(q, 1, generator=generator(seed)).flatten()
        for told in (q, None):
            u = numbers(4, seed=seed)
            assert tree(p, told, drafted, [-1, 0, 1], u) == chain(p, told, drafted, u)


def test_greedy_tree_follows_the_argmax_as_far_as_it_goes():
    tokens, parents = [1, 2, 0, 1, 2, 2], [-1, -1, 1, 1, 3, 0]  # 1 → 2;  2 → {0, 1 → 2}
    best = [2, 0, 1, 0, 0, 0, 0]  # at the root 2 (node 1), there 1 (node 3), there 0: no such child
    p = torch.nn.functional.one_hot(torch.tensor(best), 3).double()
    assert tree(p, None, tokens, parents, numbers(7)) == ([1, 3], 0)


def test_deterministic_trees_of_merged_branches_are_lossless():
    """A trie of deterministic branches (n-grams, lookahead): the same rule with one-hot q, unequal depths included."""
    from minispec.drafters.lookahead import merge

    def propose(draft, context, widths, random):
        return *merge([[0, 1], [0, 2], [2], [1, 1, 0]]), None

    target = toy_model(3, 1)
    merged = partial(exact_trees.tree_distribution, target, target, None, propose=propose)
    joint = exact.joint_distribution(merged, 3)
    assert_same(joint, target_law(target, 3), "merged branches")


# ---- typical acceptance: lossy -------------------------------------------------------------------------------------


def test_typical_accepts_by_entropy_and_takes_the_longest_path():
    flat, peaked = torch.full((20,), 0.05, dtype=torch.float64), law(0.96, 0.02, 0.02, *[0.0] * 17)
    # flat: δ·exp(−H) = 0.3/20 = 0.015 < 0.05, everything passes. peaked: H = 0.196, min(0.09, 0.247) = 0.09.
    p = torch.stack([flat, peaked, peaked, flat, flat])
    tokens, parents = [3, 5, 1, 0], [-1, -1, 0, 1]  # 3 → 1 (0.02, refused);  5 → 0 (0.96, passes)
    assert typical(p, tokens, parents, numbers(5)).path == [1, 3]
    assert typical(p, tokens, parents, numbers(5), epsilon=0.01).path == [0, 2]  # all pass: the earlier of equals
    assert typical(p[:4], tokens[:3], parents[:3], numbers(4), epsilon=0.9, delta=1.1).path == []  # 0.055: none


def test_typical_is_greedy_on_a_greedy_target_and_biased_otherwise():
    p = torch.nn.functional.one_hot(torch.tensor([2, 1, 0]), 3).double()
    assert typical(p, [2, 1], [-1, 0], numbers(3)) == ([0, 1], 0)
    assert typical(p, [1, 1], [-1, 0], numbers(3)) == ([], 2)
    target = toy_model(3, 1)
    lossy = partial(
        exact_trees.tree_distribution, target, toy_model(3, 2), (2,), propose=distribution_checks.propose_best_tree
    )
    verdicts = lossy(verify=lambda p, q, *rest: typical(p, *rest))
    first = exact.joint_distribution(lambda c: verdicts, 1)
    assert exact.total_variation(first, exact.plain_distribution(target)) > 0.1


# ---- the exact-law machine -----------------------------------------------------------------------------------------


def test_exact_law_runs_every_branch_once():
    calls = []

    def program(random):
        calls.append(1)
        first, second = random(), random()
        return "a" if first < 0.3 else ("b" if second < 0.5 else "c")

    assert exact_distribution(program) == pytest.approx({"a": 0.3, "b": 0.35, "c": 0.35})
    assert len(calls) == 3


def test_exact_law_remembers_what_is_known_of_a_number():
    def reused(random):
        u = random()
        return u < 0.6, u < 0.3, u >= 0.6

    assert exact_distribution(reused) == pytest.approx(
        {(True, True, False): 0.3, (True, False, False): 0.3, (False, False, True): 0.4}
    )


# ---- guards --------------------------------------------------------------------------------------------------------

Q = torch.tensor([[0.2, 0.8], [1.0, 0.0]])


def test_good_drafts_pass():
    verify.check_sampled(torch.tensor([1, 0]), Q)
    verify.check_sampled(torch.zeros(0, dtype=torch.long), torch.zeros(0, 2))
    padded = torch.stack([Q, torch.stack([Q[0], torch.zeros(2)])])  # the second row drafted one token only
    verify.check_sampled(torch.tensor([[1, 0], [1, 0]]), padded, torch.tensor([2, 1]))
    with pytest.raises(ValueError, match="sums to 0"):
        verify.check_sampled(torch.tensor([[1, 0], [1, 0]]), padded)
    logits = torch.randn(3, 50_000, generator=generator())
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        verify.check_distribution("q", logits.to(dtype).softmax(-1))
