"""Acceptance by position shows what the traces say, for chains and trees."""

from __future__ import annotations

import re
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

pytest.importorskip("plotly")

import minispec as ms
from minispec.trace import Cycle, Trace
from minispec_course import viz
from minispec_course.viz.drawing import text_width
from minispec_course.viz.positions import reached

SVG = "{http://www.w3.org/2000/svg}"


def cycle(drafted: int, path: list[int], bonus: bool, parents: list[int] | None = None) -> Cycle:
    return Cycle([7] * drafted, parents, [], [], path, 8, bonus, len(path) + 1, 0)


CHAIN = Trace([cycle(2, [0, 1], True), cycle(2, [0], False), cycle(2, [], False), cycle(2, [0, 1], True)])
# In a tree a path may end in a leaf before the deepest place: that is no rejection.
TREE = Trace(
    [
        cycle(4, [1], True, [-1, -1, 0, 2]),
        cycle(4, [0, 2, 3], True, [-1, -1, 0, 2]),
        cycle(4, [0], False, [-1, -1, 0, 2]),
    ]
)
RUNS = {
    ("tale", 0.0, "chain"): CHAIN,
    ("tale", 0.0, "tree"): TREE,
    ("tale", 1.0, "chain"): Trace(CHAIN.cycles[1:]),
    ("tale", 1.0, "tree"): Trace(TREE.cycles[:2]),
    ("song", 0.0, "chain"): Trace(CHAIN.cycles[:1]),
    ("song", 0.0, "tree"): Trace(TREE.cycles[1:]),
    ("song", 1.0, "chain"): Trace(CHAIN.cycles[2:]),
    ("song", 1.0, "tree"): Trace(TREE.cycles[2:]),
}


def test_who_came_how_far():
    assert reached(CHAIN) == [4, 3] and CHAIN.acceptance_by_position == pytest.approx([3 / 4, 2 / 3])
    assert reached(TREE) == [3, 2, 1] and TREE.acceptance_by_position == pytest.approx([1, 1 / 2, 1])
    assert reached(Trace()) == []


class Drawn(NamedTuple):
    """What belongs to one drafter: its marks as (position, acceptance, cycles, where, size), its line, its bar."""

    marks: list[tuple[int, float, int, tuple[float, float], float]]
    line: list[float]  # x, y, x, y, …
    bar: float  # its length in pixels
    told: float  # … and in tokens
    text: str
    opacity: float


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?[\d.]+", text)]


def parts(svg: str) -> dict[str, Drawn]:
    root = ElementTree.fromstring(svg)
    texts, drawn = [text.text or "" for text in root.iter(f"{SVG}text")], {}
    for group in root.iter(f"{SVG}g"):
        if "opacity" not in group.attrib:
            continue
        bar, (line, *paths) = group.find(f"{SVG}rect"), group.findall(f"{SVG}path")
        name, told = bar.findtext(f"{SVG}title").split(": ")
        marks = []
        for path in paths:
            x, y, size = numbers(path.get("transform"))
            position, rate, count = numbers(path.findtext(f"{SVG}title").removeprefix(name))
            marks.append((int(position), rate, int(count), (x, y), size))
        [text] = [text for text in texts if text.startswith(f"{name}: ")]
        length, [value] = float(bar.get("width")), numbers(told)
        drawn[name] = Drawn(marks, numbers(line.get("d")), length, value, text, float(group.get("opacity")))
    return drawn


def test_lines_and_bars_are_the_traces():
    drawn = parts(viz.positions_svg(RUNS, "tale", 0.0)[0])
    for name, trace in (("chain", CHAIN), ("tree", TREE)):
        marks, line, _, told, text, _ = drawn[name]
        assert [mark[0] for mark in marks] == list(range(1, len(marks) + 1))
        assert [mark[1] for mark in marks] == pytest.approx(trace.acceptance_by_position, abs=0.005)
        assert [mark[2] for mark in marks] == reached(trace)
        assert line == [xy for mark in marks for xy in mark[3]]  # through its marks
        sizes = [mark[4] for mark in marks]
        assert sizes == sorted(sizes, reverse=True) and sizes[0] > sizes[-1]  # fewer came to the later
        assert told == pytest.approx(trace.tokens_per_cycle, abs=0.005)
        assert f"{trace.tokens_per_cycle:.2f} emitted, {trace.drafted_per_cycle:.0f} drafted" in text
    chain, tree = drawn["chain"], drawn["tree"]
    assert chain.bar / tree.bar == pytest.approx(CHAIN.tokens_per_cycle / TREE.tokens_per_cycle, rel=0.01)
    heights = {rate: xy[1] for _, rate, _, xy, _ in chain.marks + tree.marks}
    assert heights[1] < heights[0.75] < heights[0.5]
    assert (heights[0.5] - heights[0.75]) == pytest.approx(heights[0.75] - heights[1], abs=0.2)


def test_the_axes_stay_and_hold_every_run():
    """Two choices are compared by eye: then a position and a token must be as far apart in both pictures."""
    runs = RUNS | {("ode", 0.0, "chain"): Trace([cycle(7, [0, 1, 2, 3, 4, 5, 6], True)])}
    lengths, places, sizes = set(), {}, set()
    for text, T in (("tale", 0.0), ("tale", 1.0), ("song", 1.0), ("ode", 0.0)):
        svg, _ = viz.positions_svg(runs, text, T)
        sizes.add(ElementTree.fromstring(svg).get("height"))
        for name, drawn in parts(svg).items():
            lengths.add(round(drawn.bar / runs[text, T, name].tokens_per_cycle))
            assert drawn.bar < 300
            for position, _, _, (x, y), size in drawn.marks:
                assert places.setdefault(position, x) == x
                assert x - size > 66 and x + size < 406 and 50 < y <= 340  # the chart's box
    assert len(lengths) == len(sizes) == 1 and len(places) == 7


def test_one_drafter_is_brought_out():
    svg, words = viz.positions_svg(RUNS, "tale", 0.0, "chain")
    drawn = parts(svg)
    assert drawn["chain"].opacity == 1 > drawn["tree"].opacity
    assert {one.opacity for one in parts(viz.positions_svg(RUNS, "tale", 0.0)[0]).values()} == {1}
    assert "tree emits most" in words and "0.75, 0.67; 2.25 tokens per pass, 2.0 drafted, over 4 passes" in words


def test_drafters_differ_in_shape_as_well_as_in_colour_and_a_draft_may_be_empty():
    names = ("<a>", "b", "c", "d", "e", "f with a name that is far too long for its row")
    runs = {("tale", 0.0, name): CHAIN for name in names} | {("tale", 0.0, "b"): Trace([cycle(0, [], True)])}
    svg, _ = viz.positions_svg(runs, "tale", 0.0)
    looks = [
        (path.get("d"), path.get("fill"))
        for path in ElementTree.fromstring(svg).iter(f"{SVG}path")
        if path.get("transform") and path.find(f"{SVG}title") is None
    ]
    assert [len({look[i] for look in looks}) for i in (0, 1)] == [6, 6]
    texts = [text.text or "" for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    rows = [text for text in texts if "emitted" in text]
    assert rows[0].startswith("<a>: ") and "…: 2.25 emitted" in rows[-1] and text_width(rows[-1], 12.5) < 270


def test_every_control_moves_the_picture():
    panel = viz.positions(RUNS)
    assert panel.values == {"drafter": "", "temperature": 0.0, "text": "tale"}
    for name, value in (("drafter", "chain"), ("temperature", 1.0), ("text", "song")):
        before = panel.picture
        panel.controls[name].value = value
        assert panel.picture != before and panel.words


def test_bad_arguments(tiny32):
    with pytest.raises(ValueError, match="'poem'"):
        viz.positions_svg(RUNS, "poem", 0.0)
    with pytest.raises(ValueError, match="'owl'"):
        viz.positions_svg(RUNS, "tale", 0.0, "owl")
    with pytest.raises(ValueError, match="empty"):
        viz.positions({})
    with pytest.raises(ValueError, match="at least one"):
        viz.measure_positions(tiny32, {}, {"tale": [[5, 9]]})


def test_measured_runs_are_those_of_speculate(tiny32, tiny_draft):
    drafters = {"small": ms.drafters.Model(tiny_draft), "n-gram": ms.drafters.NGram()}
    texts = {"a": [[5, 9, 33, 17], [8, 8, 8]], "b": [[1, 2, 3]]}
    runs = viz.measure_positions(tiny32, drafters, texts, k=3, new_tokens=8, temperatures=(0.0, 1.0), seed=3)
    assert set(runs) == {(text, T, name) for text in texts for T in (0.0, 1.0) for name in drafters}
    outs = ms.speculate(tiny32, texts["a"], ms.drafters.NGram(), 3, 8, temperature=1.0, seed=3)
    expected = [c for out in outs for c in out.trace.cycles[:-1]]
    found = runs["a", 1.0, "n-gram"].cycles
    assert [(c.drafted, c.path, c.token) for c in found] == [(c.drafted, c.path, c.token) for c in expected]
