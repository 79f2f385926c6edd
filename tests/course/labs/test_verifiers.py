"""The verifiers of lessons 06 and 14: the real one is exact, every wrong one biases what it says it biases."""

from random import Random

import pytest
import torch

from minispec import exact, theory
from minispec_course import formulas
from minispec_course.labs import verifiers
from minispec_course.labs.verifiers import COUNT, NOTHING, ONE, RIGHT, TWO, VERIFIERS, Sampled, explore, toy_place

P, Q = [0.5, 0.3, 0.2], [0.15, 0.25, 0.6]
PLACE = toy_place(P, Q)


def test_the_real_verifier_is_exact_and_splits_as_the_proof_does():
    p, q = torch.tensor(P, dtype=torch.float64), torch.tensor(Q, dtype=torch.float64)
    for k in (1, 2):
        found = explore(PLACE, k=k)
        assert torch.allclose(found.parts["accepted"], torch.minimum(p, q))
        assert torch.allclose(found.parts["corrected"], (p - q).clamp(min=0))
        assert found.one_place < 1e-12 and found.two_places < 1e-12
        assert found.accepted == pytest.approx(formulas.acceptance(P, Q))
        assert found.tokens == pytest.approx(theory.expected_tokens(formulas.acceptance(P, Q), k)) == found.right_tokens


def test_every_verifier_biases_what_it_says_it_biases():
    expected = {NOTHING: (True, True), COUNT: (True, True), TWO: (True, False), ONE: (False, False)}
    for name, verifier in VERIFIERS.items():
        found = explore(PLACE, name, k=1 if "bonus from" in name else 2)
        assert (found.one_place < 1e-12, found.two_places < 1e-12) == expected[verifier.bends], name
        assert name.startswith("right") == (verifier.bends == NOTHING)
        assert verifier.bends != COUNT or found.tokens < found.right_tokens - 0.1
        assert found.emitted.sum() == pytest.approx(1) and sum(found.joint.values()) == pytest.approx(1)


@pytest.mark.slow
def test_one_draft_is_enough_for_the_cycles_that_follow():
    """`explore` composes later cycles with one draft, because only their first token is asked for."""
    toy = toy_place([0.7, 0.3], [0.4, 0.6])
    for name, verifier in VERIFIERS.items():

        def whole(context, verifier=verifier):
            one = lambda random: verifiers.cycle(toy.target, toy.draft, context, 2, random, verifier)[1]  # noqa: E731
            return exact.exact_distribution(one)

        assert exact.total_variation(explore(toy, verifier).joint, exact.joint_distribution(whole, 2)) < 1e-12, name


@pytest.mark.slow
def test_cycles_are_sampled_through_the_verifier_and_go_on_where_they_stopped():
    once, twice = Sampled(PLACE, RIGHT, 2).upto(400), Sampled(PLACE, RIGHT, 2).upto(150).upto(400)
    random, count = Random(0).random, torch.zeros(3, dtype=torch.long)
    for _ in range(400):
        count[exact.chain_cycle(PLACE.target, PLACE.draft, (), 2, random)[0]] += 1
    assert once.counts.tolist() == twice.counts.tolist() == count.tolist() and once.tokens == twice.tokens
    assert once.p_value(PLACE.target(())) > 0.001
    assert Sampled(PLACE, VERIFIERS["wrong: accept always"], 1).upto(400).p_value(PLACE.target(())) < 1e-6


def test_chi_square_is_the_textbooks():
    """The expected numbers are scipy's: chisquare, and chi2.sf for the merged bins."""
    assert verifiers.chi_square([480, 330, 190], [0.5, 0.3, 0.2]) == pytest.approx(0.11648415777349701)
    rare = verifiers.chi_square([480, 330, 189, 1, 0], [0.5, 0.3, 0.198, 0.001, 0.001])  # the last two are no bin
    assert rare == pytest.approx(0.12190107125574584)
    assert verifiers.chi_square([10, 1], [1.0, 0.0]) == 0.0 and verifiers.chi_square([3, 0], [0.5, 0.5]) == 1.0
