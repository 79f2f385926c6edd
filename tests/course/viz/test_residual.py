"""The residual explorer draws what `labs.verifiers` computes, and follows its menus and bars."""

import pytest

from minispec_course import viz
from minispec_course.labs.verifiers import VERIFIERS, Sampled, explore, toy_place
from minispec_course.viz.residual import DistributionEditor, residual_svg, words


def test_the_picture_says_what_was_composed():
    place, wrong = toy_place([0.5, 0.3, 0.2], [0.15, 0.25, 0.6]), VERIFIERS["wrong: replace from p"]
    found, sampled = explore(place, wrong, k=1), Sampled(place, wrong, 1).upto(200)
    svg = residual_svg(found, sampled)
    for number in (found.one_place, found.two_places, found.accepted):
        assert f"{number:.3f}" in svg
    for got in found.joint.values():
        assert f"{got:.4f}" in svg
    assert f"{found.one_place:.3f}" in words(found, sampled) and "200" in words(found, sampled)


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
