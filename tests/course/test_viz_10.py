"""Acceptance by position shows what the traces say, for chains and trees."""

from __future__ import annotations

import pytest

pytest.importorskip("plotly")

import minispec as ms
from minispec.course import viz
from minispec.course.viz.positions import reached
from minispec.trace import Cycle, Trace


def cycle(drafted: int, path: list[int], bonus: bool, parents: list[int] | None = None) -> Cycle:
    return Cycle([7] * drafted, parents, [], [], path, 8, bonus, len(path) + 1, 0)


CHAIN = Trace([cycle(2, [0, 1], True), cycle(2, [0], False), cycle(2, [], False), cycle(2, [0, 1], True)])
# In a tree a path may end in a leaf before the deepest place: that is no rejection.
TREE = Trace([cycle(4, [1], True, [-1, -1, 0, 2]), cycle(4, [0, 2, 3], True, [-1, -1, 0, 2]),
              cycle(4, [0], False, [-1, -1, 0, 2])])  # fmt: skip
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


def parts(figure) -> tuple[dict, dict]:
    """The lines, and the bars as (length, text, opacity), by drafter."""
    [bars] = [trace for trace in figure.data if trace.type == "bar"]
    bar = zip(bars.x, bars.text, bars.marker.opacity, strict=True)
    return {t.name: t for t in figure.data if t.type == "scatter"}, dict(zip(bars.y, bar, strict=True))


def test_lines_and_bars_are_the_traces():
    lines, bars = parts(viz.positions_figure(RUNS, "tale", 0.0)[0])
    for name, trace in (("chain", CHAIN), ("tree", TREE)):
        assert list(lines[name].y) == trace.acceptance_by_position and list(lines[name].customdata) == reached(trace)
        assert bars[name][0] == trace.tokens_per_cycle
        assert list(lines[name].marker.size) == sorted(lines[name].marker.size, reverse=True)  # fewer came to the later
    assert bars["tree"][1].startswith(f"{TREE.tokens_per_cycle:.2f} written, 4 drafted")


def test_one_drafter_is_brought_out():
    figure, words = viz.positions_figure(RUNS, "tale", 0.0, "chain")
    lines, bars = parts(figure)
    assert lines["chain"].opacity == bars["chain"][2] == 1
    assert lines["tree"].opacity == bars["tree"][2] < 1
    assert "tree emits most" in words and "0.75, 0.67; 2.25 tokens per pass, 2.0 drafted, over 4 passes" in words


def test_every_control_moves_the_picture():
    panel = viz.positions(RUNS)
    assert panel.values == {"drafter": "", "temperature": 0.0, "text": "tale"}
    for name, value in (("drafter", "chain"), ("temperature", 1.0), ("text", "song")):
        before = panel.picture.to_json()
        panel.controls[name].value = value
        assert panel.picture.to_json() != before and panel.words


def test_bad_arguments(tiny32):
    with pytest.raises(ValueError, match="'poem'"):
        viz.positions_figure(RUNS, "poem", 0.0)
    with pytest.raises(ValueError, match="'owl'"):
        viz.positions_figure(RUNS, "tale", 0.0, "owl")
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
