"""The residual explorer shows exact laws: of the real verifier, of every wrong one, of edited and of real places."""

from __future__ import annotations

import re
from functools import partial
from random import Random

import numpy as np
import pytest
import torch

pytest.importorskip("plotly")

from minispec_course.viz.distribution_editor import DistributionEditor

import minispec as ms
from minispec import drafters, exact, theory
from minispec_course import viz
from minispec_course.viz import goodness, places, residual, wrong_verifiers
from minispec_course.viz.wrong_verifiers import COUNT, NOTHING, ONE, RIGHT, TWO, VERIFIERS

P, Q = [0.5, 0.3, 0.2], [0.15, 0.25, 0.6]
PLACE = places.toy_place(P, Q)
every_verifier = pytest.mark.parametrize("name", VERIFIERS)
WRONG_P = "wrong: replace from p"


# ---- the numbers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [1, 2])
def test_the_real_verifier_is_exact_and_splits_as_the_proof_does(gamma):
    found = residual.explore(PLACE, gamma=gamma)
    p, q = torch.tensor(P, dtype=torch.float64), torch.tensor(Q, dtype=torch.float64)
    assert torch.allclose(found.parts["accepted"], torch.minimum(p, q))
    assert torch.allclose(found.parts["corrected"], (p - q).clamp(min=0))
    assert found.one_place < 1e-12 and found.two_places < 1e-12
    assert found.accepted == pytest.approx(theory.acceptance(P, Q))
    assert found.tokens == pytest.approx(theory.expected_tokens(theory.acceptance(P, Q), gamma))
    assert found.right_tokens == pytest.approx(found.tokens)


@every_verifier
def test_every_verifier_bends_what_it_says_it_bends(name):
    gamma = 1 if "bonus from" in name else 2
    found = residual.explore(PLACE, name, gamma)
    right_one, right_two = found.one_place < 1e-12, found.two_places < 1e-12
    expected = {NOTHING: (True, True), COUNT: (True, True), TWO: (True, False), ONE: (False, False)}
    assert (right_one, right_two) == expected[found.verifier.bends]
    assert name.startswith("right") == (found.verifier.bends == NOTHING)
    if found.verifier.bends == COUNT:
        assert found.tokens < found.right_tokens - 0.1
    assert found.emitted.sum() == pytest.approx(1) and sum(found.joint.values()) == pytest.approx(1)


@every_verifier
def test_one_draft_is_enough_for_the_cycles_that_follow(name):
    """`explore` composes later cycles with one draft, because only their first token is asked for."""
    verifier = VERIFIERS[name]
    toy = places.toy_place([0.7, 0.3], [0.4, 0.6])

    def whole(context):
        return exact.exact_distribution(
            lambda random: wrong_verifiers.cycle(toy.target, toy.draft, context, 2, random, verifier)[1]
        )

    assert exact.total_variation(residual.explore(toy, verifier).joint, exact.joint_distribution(whole, 2)) < 1e-12


def test_rules_that_can_be_plugged_in_give_the_law_of_verify():
    for name, rules in {
        WRONG_P: dict(replace=lambda p, q: p),
        "wrong: accept always": dict(accept=lambda p, q, token: 1.0),
        "wrong: replace from q": dict(replace=lambda p, q: q),
    }.items():
        expected = exact.emitted_distribution(P, Q, **rules)
        assert torch.allclose(residual.explore(PLACE, name).emitted, expected)


def test_the_toy_turns_with_what_was_said_and_keeps_its_acceptance():
    assert PLACE.target((1,)).tolist() == pytest.approx([0.3, 0.2, 0.5])  # turned by two
    for context in ((), (0,), (2, 1)):
        accept = theory.acceptance(PLACE.target(context).tolist(), PLACE.draft(context).tolist())
        assert accept == pytest.approx(theory.acceptance(P, Q))
    swapped = PLACE.edited(Q, P)
    assert swapped.target(()).tolist() == Q and swapped.draft((0,)).tolist() == pytest.approx([0.2, 0.5, 0.3])


@pytest.mark.slow
def test_cycles_are_drawn_through_the_verifier_and_go_on_where_they_stopped():
    once = residual.Drawn(PLACE, RIGHT, 2).upto(400)
    twice = residual.Drawn(PLACE, RIGHT, 2).upto(150).upto(400)
    assert once.counts.tolist() == twice.counts.tolist() and once.tokens == twice.tokens
    random, count = Random(0).random, torch.zeros(3, dtype=torch.long)
    for _ in range(400):
        count[exact.chain_cycle(PLACE.target, PLACE.draft, (), 2, random)[0]] += 1
    assert once.counts.tolist() == count.tolist() and once.cycles == count.sum() == 400
    assert once.p_value(PLACE.target(())) > 0.001
    assert residual.Drawn(PLACE, VERIFIERS["wrong: accept always"], 1).upto(400).p_value(PLACE.target(())) < 1e-6


# ---- statistics ----------------------------------------------------------------------------------------------------


def test_chi_square_is_the_textbooks():
    """The expected numbers are scipy's: chisquare, and chi2.sf for the merged bins."""
    assert goodness.chi_square([480, 330, 190], [0.5, 0.3, 0.2]) == pytest.approx(0.11648415777349701)
    rare = goodness.chi_square([480, 330, 189, 1, 0], [0.5, 0.3, 0.198, 0.001, 0.001])  # the last two are no bin
    assert rare == pytest.approx(0.12190107125574584)
    assert goodness.chi_square([10, 1], [1.0, 0.0]) == 0.0 and goodness.chi_square([3, 0], [0.5, 0.5]) == 1.0


def test_the_number_of_draws_has_the_power_it_promises():
    """By scipy's non-central χ², 1694 draws have a power just below 0.95 and 1695 just above."""
    p, e = [0.4, 0.25, 0.2, 0.1, 0.05], [0.45, 0.25, 0.15, 0.1, 0.05]
    assert goodness.samples_needed(p, e, power=0.95, level=0.001) == 1695
    counts = np.random.default_rng(0).multinomial(1695, e, size=300)
    assert 0.92 <= np.mean([goodness.chi_square(row, p) < 0.001 for row in counts]) <= 0.98


def test_bad_statistics_are_refused():
    with pytest.raises(ValueError, match="equal"):
        goodness.samples_needed(P, P)
    with pytest.raises(ValueError, match="power=1"):
        goodness.samples_needed(P, Q, power=1)
    with pytest.raises(ValueError, match="one count per token"):
        goodness.chi_square([1, 2], P)


# ---- the picture ---------------------------------------------------------------------------------------------------


def test_the_picture_says_what_was_composed():
    html, words = residual.residual_html(PLACE, WRONG_P, gamma=1, draws=200)
    found = residual.explore(PLACE, WRONG_P, gamma=1)
    law = re.search(r'aria-label="distribution of the emitted token: ([^"]*); wanted: ([^"]*)"', html)
    assert [float(x.split()[-1]) for x in law[1].split(",")] == pytest.approx(found.emitted.tolist(), abs=5e-4)
    assert [float(x) for x in law[2].split(",")] == pytest.approx(P, abs=5e-4)
    assert f"off by {found.one_place:.3f}" in html and f"off by {found.two_places:.3f}" in html
    assert "200 cycles" in html and f"{found.tokens:.3f}" in words and f"{found.one_place:.3f}" in words
    right, _ = residual.residual_html(PLACE)
    assert right.count("✓ exact") == 2 and "✗" not in right and "sampled" not in right


def test_bars_are_as_high_as_their_probabilities():
    html, _ = residual.residual_html(PLACE)
    card = html.split("emitted token against p")[1].split("</svg>")[0]
    heights = [float(h) for h in re.findall(r'<rect [^>]*height="([\d.]+)"', card)]
    parts = [x for pair in zip(*residual.explore(PLACE).parts.values(), strict=True) for x in pair if x > 0]
    assert np.array(heights) / sum(heights) == pytest.approx([float(x) for x in parts], abs=2e-3)


def test_pairs_carry_emitted_and_wanted():
    html, _ = residual.residual_html(PLACE, "wrong: goes on past a rejection")
    found = residual.explore(PLACE, "wrong: goes on past a rejection")
    cells = re.findall(r"<title>(\w) (\w): emitted ([\d.]+), wanted ([\d.]+)</title>", html)
    assert len(cells) == 9
    for first, second, got, wanted in cells:
        pair = "abc".index(first), "abc".index(second)
        assert float(got) == pytest.approx(found.joint[pair], abs=6e-5)
        assert float(wanted) == pytest.approx(found.wanted[pair], abs=6e-5)


def test_labels_are_escaped():
    html, _ = residual.residual_html(places.toy_place(P, Q, labels=["<b>", "x", "&"]))
    assert "<b>" not in html.split("residual = ")[1].replace("<b>—</b>", "") and "&lt;b&gt;" in html


def test_bad_places_and_verifiers_are_refused():
    for arguments, match in (
        (([0.5, 0.6], [0.5, 0.5]), "p sums to 1.1"),
        (([1.0], [0.5, 0.5]), "same tokens"),
        (([0.5, 0.5], [0.5, 0.5], "x", ["a"]), "labels"),
    ):
        with pytest.raises(ValueError, match=match):
            places.toy_place(*arguments)
    with pytest.raises(ValueError, match="verifier='none'"):
        residual.explore(PLACE, "none")
    with pytest.raises(ValueError, match="gamma=3"):
        residual.explore(PLACE, gamma=3)


# ---- real places ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_real_places_carry_the_laws_of_the_run(tiny, tiny_draft):
    prompt, settings = [5, 9, 2], dict(temperature=1.0, top_k=3, seed=0)
    found = places.real_places(tiny, tiny_draft, prompt, count=4)
    out = ms.speculate(tiny, prompt, drafters.Model(tiny_draft), k=2, max_new_tokens=64, **settings)
    tested = [
        (c.drafted[i], c.p[i], c.q[i], "accepted" if i < c.accepted else "rejected")
        for c in out.trace.cycles
        for i in range(min(c.accepted + 1, len(c.drafted)))
    ]
    assert len(found) == 4
    for place in found:
        p, q = place.target(()), place.draft(())
        token, fate = re.search(r"→ “(\d+)” (\w+)", place.name).groups()
        here = [(pd, qd) for d, pd, qd, how in tested if (str(d), how) == (token, fate)]
        assert any(
            pd == pytest.approx(float(p[int(token)])) and qd == pytest.approx(float(q[int(token)])) for pd, qd in here
        )
        assert set(place.shown) == set((p + q).nonzero().flatten().tolist()) and len(place.shown) <= 6
    laws_of = residual.explore(found[0], gamma=1)
    assert laws_of.one_place < 1e-9 and laws_of.two_places < 1e-9
    edited = found[0].edited([1.0] + [0.0] * (len(found[0].shown) - 1), found[0].laws["q"])
    assert float(edited.target(())[found[0].shown[0]]) == 1 and edited.target((1,)) is found[0].target((1,))
    with pytest.raises(ValueError, match="top_k=0"):
        places.real_places(tiny, tiny_draft, prompt, top_k=0)


# ---- the widget ----------------------------------------------------------------------------------------------------


@pytest.fixture
def explorer():
    return residual.residual_explorer([places.toy_place(P, Q, "mine")])


@pytest.mark.slow
def test_every_control_changes_the_picture(explorer):
    shown = {explorer.picture}
    for name, value in {
        "place": explorer.controls["place"].options[1][1],
        "verifier": VERIFIERS[WRONG_P],
        "gamma": 1,
        "laws": {"p": [0.9, 0.1, 0, 0, 0], "q": [0.2] * 5},
        "draws": 100,
    }.items():
        explorer.controls[name].value = value
        assert explorer.picture not in shown, name
        shown.add(explorer.picture)
    assert explorer.drawn.cycles == 100 and explorer.found.p.tolist() == pytest.approx([0.9, 0.1, 0, 0, 0])


def test_a_place_brings_its_laws_and_labels(explorer):
    explorer.controls["draws"].value = 100
    explorer.controls["place"].value = dict(explorer.controls["place"].options)["mine"]
    editor = explorer.controls["laws"]
    assert editor.labels == ["a", "b", "c"] and editor.value["p"] == pytest.approx(P)
    assert explorer.controls["draws"].value == 0, "counting starts anew"
    assert explorer.found.q.tolist() == pytest.approx(Q)


def test_the_play_button_moves_the_count(explorer):
    explorer.controls["play"].value = 200
    assert explorer.drawn.cycles == 200 and "200 cycles" in explorer.words
    explorer.controls["draws"].value = 100  # back: drawn again from the beginning
    assert explorer.drawn.cycles == 100


@pytest.mark.slow
def test_every_verifier_can_be_chosen_and_drawn_from():
    explorer = residual.residual_explorer()
    explorer.controls["laws"].value = {"p": [0.5, 0.5, 0, 0, 0], "q": [0.9, 0, 0.1, 0, 0]}
    for verifier in VERIFIERS.values():
        explorer.controls["verifier"].value = verifier
        explorer.controls["draws"].value = 20
        assert explorer.found.verifier is verifier and explorer.drawn.counts.sum() == 20
        assert f"{explorer.found.tokens:.3f}" in explorer.words


def test_every_preset_is_exact_with_the_real_verifier():
    for name, (p, q) in places.PRESETS.items():
        found = residual.explore(places.toy_place(p, q, name), gamma=1)
        assert found.one_place < 1e-12 and found.two_places < 1e-12, name


def test_the_editor_keeps_laws_laws():
    editor = DistributionEditor(labels=["a", "b"], value={"p": [1, 3], "q": [0.5, 0.5]})
    assert editor.value == {"p": [0.25, 0.75], "q": [0.5, 0.5]}
    for bad in ({"p": [0, 0], "q": [1, 0]}, {"p": [1, 0], "q": [1]}, {"p": [1, -1], "q": [1, 0]}, {"p": [1, 0]}):
        with pytest.raises(ValueError, match="as many numbers"):
            editor.value = bad
    assert "http" not in editor._css and editor._esm.count("http") == 1  # the name of SVG, which nobody fetches


def test_plain_decoding_is_what_is_wanted():
    plain = exact.joint_distribution(partial(exact.plain_distribution, PLACE.target), 2)
    assert residual.explore(PLACE, WRONG_P).wanted == plain


# ---------------------------------------------------------------- the picture of the proof


def test_the_bars_of_the_proof_add_up_to_both_distributions():
    shared, added, rejected = (torch.tensor(bar.y, dtype=torch.float64) for bar in viz.overlap_figure(P, Q).data)
    assert torch.allclose(shared + added, torch.tensor(P, dtype=torch.float64))
    assert torch.allclose(shared + rejected, torch.tensor(Q, dtype=torch.float64))
    assert added.sum() == pytest.approx(float(rejected.sum()))  # the step of the proof where the normaliser cancels
    with pytest.raises(ValueError, match="p has 3 tokens and q has 2"):
        viz.overlap_figure(P, [0.5, 0.5])


def test_a_claim_says_whether_it_holds(capsys):
    goodness.claim("same", P, P)
    goodness.claim("other", P, Q)
    same, other = capsys.readouterr().out.splitlines()
    assert same.startswith("holds") and other.startswith("FAILS") and "0.4000" in other
    assert goodness.first_token({(1, 2): 0.25, (1,): 0.25, (0, 5, 1): 0.5}) == {(1,): 0.5, (0,): 0.5}
    assert goodness.first_token({1: 0.25, 0: 0.75}) == {(1,): 0.25, (0,): 0.75}
