"""The tree viewer shows the cycle's own tree: its mask, its positions, the accepted path, the expected tokens."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest

pytest.importorskip("plotly")

from minispec import tree
from minispec.drafters import Draft, MedusaHeads
from minispec.speculate import view
from minispec.trace import Cycle
from minispec_course import viz
from minispec_course.viz.style import KINDS, PALETTE
from minispec_course.viz.tree import reaches, rows_of, tree_svg

PARENTS = [-1, -1, 0, 0, 1, 2]
ACCEPTED, CHOSEN = KINDS["accepted"], PALETTE[1]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def cycle() -> Cycle:
    return Cycle(
        drafted=[10, 11, 12, 13, 14, 15],
        parents=PARENTS,
        p=[],
        q=[],
        path=[0, 3],
        token=9,
        bonus=True,
        kept=3,
        committed=21,
    )


def show(cycle, node=0, reach=None, say=lambda token: f" t{token}"):
    return viz.tree_svg(cycle, say, " root", node, reach)


def parts(svg: str) -> tuple[list, list, list]:
    """The nodes, the lines of the mask, and the lines of the tree as (colour, where it ends)."""
    root = ElementTree.fromstring(svg)
    groups = [group for group in root.iter(f"{SVG}g") if "data-choose" in group.attrib]
    nodes = [group for group in groups if group.find(f"{SVG}circle") is not None]
    lines = [(line.get("stroke"), (line.get("x2"), line.get("y2"))) for line in root.iter(f"{SVG}line")]
    return nodes, groups[len(nodes) :], lines


def place(node) -> tuple[str, str]:
    circle = node.find(f"{SVG}circle")
    return circle.get("cx"), circle.get("cy")


def columns(path) -> set[str]:
    """The left edges of a path's cells."""
    return set(re.findall(r"M([\d.]+) ", path.get("d")))


@pytest.mark.parametrize("node", range(7))
def test_the_mask_is_the_one_the_target_gets(cycle, node):
    _, rows, _ = parts(show(cycle, node)[0])
    mask, offsets = view(Draft(cycle.drafted, None, cycle.parents), 7)
    every = sorted(set.union(*(columns(path) for row in rows for path in row.iter(f"{SVG}path"))), key=float)
    assert len(every) == 8  # the first is the cached text
    for line, row in enumerate(rows):
        unseen, seen = row.iter(f"{SVG}path")
        assert [x in columns(seen) for x in every] == [True, *mask[line].tolist()]
        assert columns(unseen) == set(every) - columns(seen)
        assert (seen.get("fill") == CHOSEN) == (line == node)
        label = row.find(f"{SVG}text")
        assert int(label.text.split("@")[1]) == 20 + int(offsets[line])
        assert ("font-weight" in label.attrib) == (line == node)


def test_paths_have_their_colours(cycle):
    nodes, _, lines = parts(show(cycle, node=6)[0])
    colours = [[circle.get("fill") for circle in node.iter(f"{SVG}circle")] for node in nodes]
    assert [n for n, fills in enumerate(colours) if fills[-1] == ACCEPTED] == [0, 1, 4]
    assert [n for n, fills in enumerate(colours) if fills[0] == CHOSEN] == [0, 1, 3, 6]
    at = {place(node): n for n, node in enumerate(nodes)}
    ends = lambda colour: {at[end] for of, end in lines if of == colour and end in at}  # noqa: E731
    assert ends(ACCEPTED) == {1, 4} and ends(CHOSEN) == {1, 3, 6}
    assert nodes[6].find(f"{SVG}title").text == "␣t10 ␣t12 ␣t15"


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
    nodes, _, _ = parts(show(cycle, say=lambda token: "<b>&\n")[0])
    assert all(node.find(f"{SVG}text").text == "<b>&\\n" for node in nodes[1:])


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
        assert (panel.picture, panel.words) != (before, said) and panel.values[name] == value
    assert panel.controls["node"].max == 8
    panel.controls["nodes"].value = 2  # what is looked at has gone: the last node instead
    assert panel.values["node"] == 2 and "over 3 tokens" in panel.words


def test_a_click_on_a_node_or_its_line_of_the_mask_names_it():
    """A node and its line of the mask carry its number; Tab stops at nodes only. All trees have one height."""
    heights = set()
    for parents in ([-1], [-1, -1, 0, 0, 1, 2]):
        count = len(parents)
        cycle = Cycle(list(range(count)), parents, [0.5] * count, [0.5] * count, [], 1, False, 1, 8)
        svg, _ = tree_svg(cycle, lambda token: f"a long word {token}", "last")
        nodes, rows, _ = parts(svg)
        for groups, tab in ((nodes, "0"), (rows, "-1")):
            assert [json.loads(group.get("data-choose")) for group in groups] == [{"node": n} for n in range(count + 1)]
            assert {group.get("tabindex") for group in groups} == {tab}
        assert max(len(node.find(f"{SVG}text").text) for node in nodes) <= 9
        heights.add(ElementTree.fromstring(svg).get("height"))
    assert len(heights) == 1
