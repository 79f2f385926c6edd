"""The tree viewer shows the cycle's own tree: its mask, its positions, the accepted path, the expected tokens."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("plotly")

from minispec import tree
from minispec.course import viz
from minispec.course.viz.style import KINDS, PALETTE
from minispec.course.viz.tree import reaches, rows_of, tree_figure
from minispec.drafters import Draft, MedusaHeads
from minispec.speculate import view
from minispec.trace import Cycle

PARENTS = [-1, -1, 0, 0, 1, 2]
ACCEPTED, CHOSEN = KINDS["accepted"], PALETTE[1]


@pytest.fixture
def cycle() -> Cycle:
    return Cycle(
        drafted=[10, 11, 12, 13, 14, 15], parents=PARENTS, p=[], q=[], path=[0, 3], token=9, bonus=True, kept=3,
        committed=21,
    )  # fmt: skip


def show(cycle, node=0, reach=None, say=lambda token: f" t{token}"):
    return viz.tree_figure(cycle, say, " root", node, reach)


def parts(figure):
    (heatmap,) = (trace for trace in figure.data if trace.type == "heatmap")
    *lines, dots = (trace for trace in figure.data if trace.type == "scatter")
    return heatmap, dots, lines


@pytest.mark.parametrize("node", range(7))
def test_the_mask_is_the_one_the_target_gets(cycle, node):
    heatmap, _, _ = parts(show(cycle, node)[0])
    shown = torch.tensor(heatmap.z)
    mask, offsets = view(Draft(cycle.drafted, None, cycle.parents), 7)
    assert torch.equal(shown[:, 1:] > 0, mask) and bool((shown[:, 0] > 0).all())  # the first column: the cached text
    assert [row for row in range(7) if 2 in heatmap.z[row]] == [node]
    labels = show(cycle, node)[0].layout.yaxis2.ticktext
    assert [int(label.split("@")[1].split("<")[0]) for label in labels] == (20 + offsets).tolist()
    assert [place for place, label in enumerate(labels) if "<b>" in label] == [node]


def test_paths_have_their_colours(cycle):
    _, dots, (_, accepted, chosen) = parts(show(cycle, node=6)[0])
    assert [place for place, colour in enumerate(dots.marker.color) if colour == ACCEPTED] == [0, 1, 4]
    assert [place for place, width in enumerate(dots.marker.line.width) if width] == [0, 1, 3, 6]
    ends = lambda line: {(line.x[i + 2], line.y[i + 2]) for i in range(0, len(line.x), 4)}  # noqa: E731
    rows = rows_of(PARENTS)
    assert ends(accepted) == {(1, rows[1]), (2, rows[4])} and accepted.line.color == ACCEPTED
    assert ends(chosen) == {(1, rows[1]), (2, rows[3]), (3, rows[6])} and chosen.line.color == CHOSEN
    assert dots.customdata[6][1] == "␣t10 ␣t12 ␣t15"


def test_no_two_nodes_lie_on_each_other():
    accuracies = [[0.5, 0.3, 0.1], [0.4, 0.2, 0.1], [0.3, 0.2, 0.1]]
    for nodes in (1, 5, 20, 32):
        parents = tree.from_candidates([range(3)] * 3, tree.best_tree(accuracies, nodes)).parents
        places = list(zip([0, *tree.depths(parents)], rows_of(parents), strict=True))
        assert len(set(places)) == len(places) == nodes + 1


def test_reaches_add_up_to_the_expected_tokens():
    accuracies = [[0.5, 0.3, 0.1], [0.4, 0.2, 0.1]]
    choices = tree.best_tree(accuracies, 7)
    found = reaches(accuracies, 7)
    assert 1 + sum(found) == pytest.approx(tree.expected_tokens(accuracies, choices))
    candidates = tree.from_candidates([range(3), range(10, 13)], choices)
    for node, reach in enumerate(found):  # in the order of the tree's nodes
        expected = 1.0
        for above in tree.path_to(candidates.parents, node):
            expected *= accuracies[candidates.tokens[above] // 10][candidates.tokens[above] % 10]
        assert reach == pytest.approx(expected)


def test_the_words_say_what_happened(cycle):
    words = show(cycle, node=3, reach=[0.4, 0.2, 0.1, 0.1, 0.05, 0.05])[1]
    assert "over 7 tokens" in words and "1.90 tokens" in words and "this pass wrote 3: ' t10 t13' accepted" in words
    assert "position 22" in words and "' t10' then ' t12'" in words and "3 of the 7" in words
    assert "with 2 others" in words
    assert "none accepted, a correction" in show(Cycle([1], None, [], [], [], 2, False, 1, 5))[1]


def test_text_of_the_model_is_escaped(cycle):
    _, dots, _ = parts(show(cycle, say=lambda token: "<b>&\n")[0])
    assert all("&lt;b&gt;&amp;\\n" in text for text in dots.text[1:])


def test_bad_arguments(cycle):
    with pytest.raises(ValueError, match="node=7"):
        show(cycle, node=7)
    with pytest.raises(ValueError, match="reach"):
        show(cycle, reach=[0.5])


def test_every_control_moves_the_picture(tiny32):
    heads = MedusaHeads(tiny32, count=3)
    panel = viz.tree_viewer(tiny32, [5, 9, 33, 17], heads, nodes=4, new_tokens=12)
    for name, value in (("nodes", 8), ("node", 8), ("cycle", 1 if panel.values["cycle"] > 1 else 2)):
        before, said = panel.picture, panel.words
        panel.controls[name].value = value
        assert (panel.picture.to_json(), panel.words) != (before.to_json(), said) and panel.values[name] == value
    assert panel.controls["node"].max == 8
    panel.controls["nodes"].value = 2  # what is looked at has gone: the last node instead
    assert panel.values["node"] == 2 and "over 3 tokens" in panel.words


def test_a_click_on_a_node_or_its_line_of_the_mask_names_it():
    """`layout.meta` names the control, and a point carries its node's number first. All trees have one height."""
    heights = set()
    for parents in ([-1], [-1, -1, 0, 0, 1, 2]):
        count = len(parents)
        cycle = Cycle(list(range(count)), parents, [0.5] * count, [0.5] * count, [], 1, False, 1, 8)
        figure, _ = tree_figure(cycle, lambda token: f"a long word {token}", "last")
        assert figure.layout.meta == {"choose": "node"}
        nodes, mask = figure.data[-2], figure.data[-1]
        assert [one[0] for one in nodes.customdata] == list(range(count + 1))
        assert [{cell[0] for cell in line} for line in mask.customdata] == [{i} for i in range(count + 1)]
        assert max(map(len, nodes.text)) <= 9 + len("<b></b>")
        heights.add(figure.layout.height)
    assert len(heights) == 1
