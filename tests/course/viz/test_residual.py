"""The residual explorer composes what `verify` and `exact` say; every wrong verifier bends what it says it bends."""

from random import Random

import pytest
import torch

from minispec import exact, theory
from minispec_course import viz
from minispec_course.labs import verifiers
from minispec_course.labs.verifiers import COUNT, NOTHING, ONE, RIGHT, TWO, VERIFIERS, Sampled, explore, toy_place
from minispec_course.viz import residual
from minispec_course.viz.residual import DistributionEditor, residual_svg, words

P, Q = [0.5, 0.3, 0.2], [0.15, 0.25, 0.6]
PLACE = toy_place(P, Q)
WRONG_P = "wrong: replace from p"


def test_the_real_verifier_is_exact_and_splits_as_the_proof_does():
    p, q = torch.tensor(P, dtype=torch.float64), torch.tensor(Q, dtype=torch.float64)
    for k in (1, 2):
        found = explore(PLACE, k=k)
        assert torch.allclose(found.parts["accepted"], torch.minimum(p, q))
        assert torch.allclose(found.parts["corrected"], (p - q).clamp(min=0))
        assert found.one_place < 1e-12 and found.two_places < 1e-12
        assert found.accepted == pytest.approx(theory.acceptance(P, Q))
        assert found.tokens == pytest.approx(theory.expected_tokens(theory.acceptance(P, Q), k)) == found.right_tokens


def test_every_verifier_bends_what_it_says_it_bends():
    expected = {NOTHING: (True, True), COUNT: (True, True), TWO: (True, False), ONE: (False, False)}
    assert len(VERIFIERS) == 19
    for name, verifier in VERIFIERS.items():
        found = explore(PLACE, name, k=1 if "bonus from" in name else 2)
        assert (found.one_place < 1e-12, found.two_places < 1e-12) == expected[verifier.bends], name
        assert name.startswith("right") == (verifier.bends == NOTHING) and verifier.why.endswith((".", ")"))
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


def test_the_picture_says_what_was_composed():
    found, sampled = explore(PLACE, WRONG_P, k=1), Sampled(PLACE, VERIFIERS[WRONG_P], 1).upto(200)
    svg = residual_svg(found, sampled)
    assert f"off by {found.one_place:.3f}" in svg and f"off by {found.two_places:.3f}" in svg
    assert f"{found.accepted:.3f}" in svg and "200 cycles sampled" in svg
    for (x, y), got in found.joint.items():
        assert f"{'abc'[x]} {'abc'[y]}: emitted {got:.4f}, wanted {found.wanted[x, y]:.4f}" in svg
    assert f"{found.one_place:.3f} away" in words(found, sampled) and "After 200 cycles" in words(found, sampled)


@pytest.mark.slow
def test_the_explorer_follows_its_menus_and_starts_sampling_anew():
    panel = viz.residual_explorer()
    panel.controls["draws"].value = 300
    assert panel.sampled.cycles == 300
    panel.controls["verifier"].value = VERIFIERS["wrong: accept always"]
    assert panel.controls["draws"].value == 0 and panel.found.one_place > 0.1
    panel.controls["place"].label = "the target itself"
    assert panel.found.one_place < 1e-9 and panel.controls["probs"].value["p"] == panel.controls["probs"].value["q"]
    panel.controls["probs"].value = {"p": [1, 1, 1, 1, 0], "q": [1, 0, 0, 0, 0]}
    assert panel.found.p.tolist() == pytest.approx([0.25, 0.25, 0.25, 0.25, 0])


def test_the_editor_keeps_distributions():
    editor = DistributionEditor(labels=["a", "b"], value={"p": [1, 3], "q": [2, 2]})
    assert editor.value == {"p": [0.25, 0.75], "q": [0.5, 0.5]}
    for bad in ({"p": [1, 2], "q": [1]}, {"p": [-1, 2], "q": [1, 1]}, {"p": [0, 0], "q": [1, 1]}):
        with pytest.raises(ValueError, match="numbers ≥ 0"):
            editor.value = bad
    assert "minispec-distributions" in residual.ESM and "minispec-distributions" in residual.CSS
