"""Lesson 15's pictures: what their numbers are, and that one budget is never worth less than a fixed length."""

from __future__ import annotations

import pytest

pytest.importorskip("plotly")

import torch
from mutants.patching import rewrite

import minispec as ms
from minispec import verify
from minispec.serving.budget import best_lengths, survival
from minispec_course import viz
from minispec_course.labs import family
from minispec_course.viz import frontier

P = torch.tensor([1 / 3, 2 / 3], dtype=torch.float64)


def check_drafts() -> None:
    """Block verification gains with A, B and loses with A, A; on average it gains a ninth of a token."""
    token, block = (viz.accepted_by_draft(P, P.flip(0), 2, rule) for rule in (verify.chain, verify.block))
    drafts = [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert list(token) == list(block) == drafts
    assert [token[draft][1] for draft in drafts] == pytest.approx([0.75, 1, 1.5, 2])
    assert [block[draft][1] for draft in drafts] == pytest.approx([0.5, 2, 1.5, 2])
    for found, ninths in ((token, 10), (block, 11)):
        assert sum(weight for weight, _ in found.values()) == pytest.approx(1)
        assert sum(weight * tokens for weight, tokens in found.values()) == pytest.approx(ninths / 9)


def test_drafts_by_rule(monkeypatch):
    check_drafts()
    bars = viz.drafts_figure(P, P.flip(0), 2, {"token": verify.chain, "block": verify.block}, "AB").data
    assert [bar.y[-1] for bar in bars] == pytest.approx([10 / 9, 11 / 9])
    assert [label.partition("<")[0] for label in bars[0].x] == ["A, A", "A, B", "B, A", "B, B", "average"]
    rewrite(monkeypatch, frontier, "accepted_by_draft", "float(q[d])", "float(p[d])")
    monkeypatch.setattr(viz, "accepted_by_draft", frontier.accepted_by_draft)
    with pytest.raises(AssertionError):
        check_drafts()


def test_speedups():
    figure = viz.speedups_figure({"a": [1, 2], "b": [2, 1]}, (1, 4), "title")
    assert [list(line.y) for line in figure.data] == [[1, 2], [2, 1]] and figure.layout.shapes[0].y0 == 1


def test_only_shared_tokens_have_a_bar():
    m, p = torch.tensor([0.4, 0.6]), torch.tensor([0.5, 0.3, 0.2])
    before, after, target = viz.shared_figure(["a", "b"], m, ["c", "b", "d"], p).data
    pieces = list(after.x)
    assert dict(zip(pieces, after.y, strict=True)) == pytest.approx({"c": 0, "b": 1.0, "d": 0, "a": 0})
    assert dict(zip(pieces, before.y, strict=True)) == pytest.approx({"c": 0, "b": 0.6, "d": 0, "a": 0.4})
    assert dict(zip(pieces, target.y, strict=True)) == pytest.approx({"c": 0.5, "b": 0.3, "d": 0.2, "a": 0})


def test_the_slots_that_are_taken_are_filled():
    confidences = [[0.9, 0.9], [0.5, 0.9]]
    lengths = best_lengths([survival(row) for row in confidences], 3)
    for row, n in zip(viz.slots_figure(confidences, 3).data, lengths, strict=True):
        filled = [colour for colour in row.marker.color if colour.startswith("#")]
        assert len(filled) == n


def test_rates():
    rates = viz.batch_rates((0.9, 0.3), 3, lambda tokens: max(1.0, tokens / 16), (1, 8, 64))
    assert rates["off"] == pytest.approx([1, 8, 16])
    for fixed, best, budget in zip(rates["k = 3 for all"], rates["best fixed k"], rates["one budget"], strict=True):
        assert fixed <= best <= budget + 1e-12
    assert rates["one budget"][1] > rates["best fixed k"][1]
    assert len(viz.budget_figure((0.9, 0.3), 2, lambda tokens: 1.0, (1, 2)).data) == 4


# ---------------------------------------------------------------- mixtures of experts, and the family of drafters


def test_experts_are_drawn_by_the_formula_and_as_counted():
    figure = viz.experts_figure(8, 2, {1: 2.0, 5: 7.0}, 1.47e9, 5.6e9, alpha=0.8, c=0.02, batches=(1, 64))
    lines = {line.name: line for line in figure.data}
    assert list(lines["2 of 8, if tokens choose independently"].y)[:2] == pytest.approx([25.0, 43.75])
    assert list(lines["2 of 16, counted on text"].y) == pytest.approx([12.5, 43.75])
    one, many, dense = (list(lines[name].y) for name in ("2 of 8, batch of 1", "2 of 8, batch of 64", "dense"))
    assert all(a < b <= c + 1e-9 for a, b, c in zip(one, many, dense, strict=True))
    sizes = list(lines["2 of 8, batch of 64"].marker.size)
    assert many[sizes.index(max(sizes))] == max(many)  # the large dot is the best k


@pytest.fixture(scope="module")
def micro():
    return ms.load("micro", device="cpu", dtype=torch.float64)


@pytest.mark.slow
def test_what_the_family_tree_says_is_what_the_drafters_do(micro):
    """Runs are counted in the code, and positions that are said not to know the token before them do not."""
    ids = micro.encode("Once upon a time")
    made = [one for one in family.FAMILY if one.make]
    assert len(made) == 7 and {one.line for one in family.FAMILY} == set(family.LINES)
    for one in made:
        drafter = one.make(micro)
        for k in (2, 4):
            assert family.count_runs(micro, drafter, ids, k) == one.runs(k), one.name
        assert ("three" in one.given or "several" in one.given or "EAGLE-3" in one.given) == (
            len(drafter.hidden_layers) == 3
        ), one.name
    table = family.family_table(micro, ids, 4)
    assert table.count("(counted)") == 7 and len(table.splitlines()) == 1 + len(family.FAMILY)


def test_a_wrong_count_is_noticed(micro):
    """The count can fail: a drafter that runs its layer once more than it needs."""
    drafter = next(one for one in family.FAMILY if one.name == "MTP").make(micro)
    ids, propose = micro.encode("Once upon a time"), drafter._propose
    drafter._propose = lambda ready, k: [drafter.forget(0), propose(ready, k), drafter.forget(0), propose(ready, k)][-1]
    assert family.count_runs(micro, drafter, ids, 4) == 8


def test_the_tree_shows_every_member_and_its_runs():
    drawing = viz.family_tree(5)
    svg = drawing._repr_svg_()
    assert all(f">{one.name}<" in svg for one in family.FAMILY)
    assert svg.count(">5 runs<") == sum(one.runs(5) == 5 for one in family.FAMILY)
    assert svg.count(">1 run<") == sum(one.runs(5) == 1 for one in family.FAMILY)
    assert all(f"{one.name} ({one.year})" in drawing.words for one in family.FAMILY)
