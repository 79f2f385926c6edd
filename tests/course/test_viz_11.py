"""The scheduler stepper shows an engine's own plans and verdicts; the batch curve is theory.py's, its dots add up."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

pytest.importorskip("plotly")

from minispec_course.viz.batch_why import compared
from minispec_course.viz.recorder import Ask, DryEngine, endless

import minispec as ms
from minispec import theory
from minispec.load.registry import BENCHMARKS
from minispec.serving.blocks import BlockPool
from minispec_course import viz
from minispec_course.viz import presets
from minispec_course.viz.batch_speedup import (
    LONGEST,
    MACHINES,
    ROWS,
    BatchDot,
    _costs,
    batch_speedup_svg,
    best,
    gain,
    verify_cost,
)
from minispec_course.viz.scheduler_steps import MOMENTS, record, scheduler_steps, scheduler_steps_html, slots_of
from minispec_course.viz.style import PALETTE

ASKS = [Ask((1, 2, 3, 4, 5, 6, 7), 8), Ask((1, 2, 3), 5), Ask((8, 8), 7, arrival=2)]


@pytest.fixture
def drafter(tiny_draft):
    return ms.drafters.Model(tiny_draft)


# ---------------------------------------------------------------- the stepper


@pytest.fixture
def run(tiny, drafter):
    engine = ms.Engine(endless(tiny), drafter, num_blocks=24, block_size=4, k=3, enable_prefix_caching=False)
    return engine, record(engine, ASKS)


def test_the_parts_add_up_to_what_the_engine_counted(run):
    engine, moments = run
    totals = engine.metrics()["totals"]
    parts = [part for moment in moments for part in moment.parts]
    assert sum(len(part.drafted) for part in parts) == totals["drafted"] > 0
    assert sum(part.accepted for part in parts) == totals["accepted"]
    assert sum(moment.read for moment in moments) == totals["read"]
    assert sum(len(part.emitted) for part in parts) == sum(ask.new for ask in ASKS)
    assert len(moments) == totals["steps"] and all(moment.scheduled <= moment.budget for moment in moments)
    assert "listen" not in engine.scheduler.update.__name__  # nothing of us is left in the engine


def test_blocks_taken_and_given_back_balance(run):
    _, moments = run
    held: dict[int, int] = {}
    for moment in moments:
        for part in moment.parts:
            assert part.blocks_before == held.get(part.id, 0) <= part.blocks_planned
            assert part.blocks_planned == -(-(part.start + part.count + part.lookahead) // 4)
            assert part.blocks_after == (0 if part.ended else -(-part.kept // 4))
            held[part.id] = part.blocks_after
        assert sum(part.blocks_after for part in moment.parts) == moment.frame.record.used_blocks
    assert any(part.given_back and not part.ended for moment in moments for part in moment.parts)  # a rolled back block


def test_slots_say_what_became_of_every_token(run):
    for moment in run[1]:
        for part in moment.parts:
            plan, verdict, after = (slots_of(part, show) for show in MOMENTS)
            assert len(plan) == len(verdict) and plan.count("lookahead") == part.lookahead
            assert verdict.count("accepted") == part.accepted
            assert verdict.count("accepted") + verdict.count("refused") == len(part.drafted)
            if not part.ended:
                assert len(after) == part.start + part.count + part.accepted


def test_the_picture_draws_them(run):
    moment = next(m for m in run[1] if any(0 < len(p.drafted) > p.accepted for p in m.parts))
    plan, verdict, after = (scheduler_steps_html(moment, show) for show in MOMENTS)
    ahead = sum(part.lookahead for part in moment.parts)
    refused = sum(len(part.drafted) - part.accepted for part in moment.parts)
    assert len(re.findall(r'stroke-dasharray:3 2"', plan)) == ahead
    assert verdict.count("<line ") == verdict.count("line-through") == refused > 0 and "<line " not in after
    assert all(html.count('role="img"') == len(moment.parts) for html in (plan, verdict, after))
    with pytest.raises(ValueError, match="show"):
        scheduler_steps_html(moment, "later")


def test_tokens_are_escaped(run):
    moment = next(m for m in run[1] if any(p.emitted for p in m.parts))
    assert "<b>x" not in scheduler_steps_html(moment, "verify", decode=lambda token: "<b>x")


def test_it_works_without_a_model_too():
    moments = record(DryEngine(BlockPool(16, 4)), ASKS)
    assert sum(len(part.emitted) for moment in moments for part in moment.parts) == sum(ask.new for ask in ASKS)
    assert not any(part.lookahead for moment in moments for part in moment.parts)


def test_the_panel_walks_through_every_engine(tiny, drafter):
    panel = scheduler_steps(tiny, drafter, ASKS)
    assert isinstance(panel, viz.Panel)
    place, engine = panel.controls["moment"], panel.controls["engine"]
    pictures = set()
    for moment in range(6, 12):
        place.value = moment
        pictures.add((panel.picture, panel.words))
    assert len(pictures) == 6
    for name in engine.options:
        engine.value, place.value = name, place.max
        assert f"All {len(ASKS)} were served" in panel.words


# ---------------------------------------------------------------- speed-up against batch size

LLAMA = presets.SHAPES["Llama-3-8B"]


SVG = "{http://www.w3.org/2000/svg}"
LEFT, RIGHT = (66, 370), (510, 235)  # the two charts: where they begin, and their widths


class Seen:
    """What a drawing shows: what it tells the pointer, and its lines and dots in the units of their axes."""

    def __init__(self, svg: str) -> None:
        self.root = ElementTree.fromstring(svg)
        self.texts = [text.text for text in self.root.iter(f"{SVG}text")]
        self.height = self.root.get("height")

    def told(self, kind: str) -> list[str]:
        return [shape.findtext(f"{SVG}title") for shape in self.root.iter(SVG + kind) if len(shape)]

    def unit(self, chart: tuple[int, int]) -> float:
        """Pixels of 1 on the y axis, from its first two labels."""
        low, high = self.labels(chart)[:2]
        return (low[1] - high[1]) / (high[0] - low[0])

    def labels(self, chart: tuple[int, int]) -> list[tuple[float, float]]:
        found = [t for t in self.root.iter(f"{SVG}text") if t.get("x") == str(chart[0] - 6)]
        return [(float(t.text), float(t.get("y")) - 4) for t in found]

    def at(self, chart: tuple[int, int], x: float, y: float) -> tuple[float, float]:
        """(batch, value) of a point on the canvas."""
        left, width = chart
        return 0.85 * (1.18 * ROWS[-1] / 0.85) ** ((x - left) / width), (340 - y) / self.unit(chart)

    def line(self, chart: tuple[int, int], colour: str) -> list[tuple[float, float]]:
        """The first line of this colour in the chart."""
        for path in self.root.iter(f"{SVG}path"):
            numbers = list(map(float, re.findall(r"[\d.]+", path.get("d"))))
            if path.get("stroke") == colour and chart[0] <= numbers[0] <= sum(chart):
                return [self.at(chart, x, y) for x, y in zip(numbers[::2], numbers[1::2], strict=True)]
        return []

    def dots(self, chart: tuple[int, int], about: str) -> list[tuple[float, float]]:
        """Those that say they are this."""
        found = [c for c in self.root.iter(f"{SVG}circle") if (c.findtext(f"{SVG}title") or "").startswith(about)]
        places = [(float(c.get("cx")), float(c.get("cy"))) for c in found]
        return [self.at(chart, x, y) for x, y in places if chart[0] <= x <= sum(chart)]


def near(found: list[tuple[float, float]], wanted: list[tuple[float, float]]) -> bool:
    """The same points, as far as a tenth of a pixel tells."""
    flat = lambda pairs: [value for pair in pairs for value in pair]  # noqa: E731
    return len(found) == len(wanted) and flat(found) == pytest.approx(flat(wanted), rel=0.005, abs=0.02)


def test_the_lines_are_the_formula():
    seen = Seen(batch_speedup_svg(theory.H200, LLAMA, 0.7, 4, 0.05))
    weights = presets.weights_read(LLAMA)
    costs = [theory.verify_cost(theory.H200, weights, 4, rows) for rows in ROWS]
    gains = [theory.speedup(0.7, 4, 0.05, v) for v in costs]
    assert near(seen.line(LEFT, PALETTE[0]), list(zip(ROWS, gains, strict=True)))
    assert near(seen.line(RIGHT, PALETTE[3]), list(zip(ROWS, costs, strict=True)))
    tried = [[gain(theory.H200, LLAMA, 0.7, k, 0.05, rows) for k in range(1, LONGEST + 1)] for rows in ROWS]
    most = [max(1, *row) for row in tried]
    longest = [row.index(max(row)) + 1 if max(row) > 1 else 0 for row in tried]
    assert near(seen.line(LEFT, PALETTE[2]), list(zip(ROWS, most, strict=True)))
    steps = [(n, k) for pair, k in zip(pairwise(ROWS), longest, strict=False) for n in pair] + [(ROWS[-1], longest[-1])]
    assert near(seen.line(RIGHT, PALETTE[2]), steps) and longest[0] > longest[-1] == 0
    told = seen.told("rect")
    assert told == [
        f"batch of {n}: {one:.2f} × with k = 4, {free:.2f} × with k = {k}"
        for n, one, free, k in zip(ROWS, gains, most, longest, strict=True)
    ] + [f"batch of {n}: v = {v:.2f}; the best k is {k}" for n, v, k in zip(ROWS, costs, longest, strict=True)]


def test_a_long_context_brings_the_gain_back():
    """It comes near what one request gains, and does not reach it: the products stay compute-bound."""
    assert best(theory.H200, LLAMA, 0.7, 0.05, 256) == (1, 0)
    alone = best(theory.H200, LLAMA, 0.7, 0.05, 1)[0]
    gains = [best(theory.H200, LLAMA, 0.7, 0.05, 256, context=n)[0] for n in (1024, 16_384, 131_072)]
    assert 1 < gains[0] < gains[1] < gains[2] < alone and gains[2] > 0.95 * alone


def test_a_load_is_what_the_formulas_say():
    light, full = viz.roofline_at(1, c=0.05), viz.roofline_at(256, c=0.05)
    assert light.v == 1 and light.speedup == pytest.approx(theory.speedup(0.7, 4, 0.05))
    assert full.v == 5 and full.best_k == 0 and full.best_speedup == 1  # compute-bound with and without drafts
    long = viz.roofline_at(128, 4000)
    small, large = 2 * 16 * 8 * 64 * 2, 2 * 32 * 8 * 128 * 2  # bytes of a token in the two caches
    assert long.gigabytes - viz.roofline_at(128).gigabytes == pytest.approx(128 * 4000 * (small + large) / 1e9)
    assert viz.roofline_at(1).c == pytest.approx(1_235_814_400 / 7_504_924_672)  # bytes of both, no cache
    assert viz.roofline_at(1).c < long.c < small / large


def test_a_load_with_a_cache_adds_the_bounds_of_products_and_attention():
    """By hand, in gigabytes of reading: 15.0 of weights (3.4 times that for 640 tokens), 67.1 of cache, a quarter of it
    in the draft model."""
    weights, cache = 2 * 7.504924672, 128 * 4000 * 2**17 / 1e9
    products = 640 / theory.balance_point(theory.H200) * weights  # compute-bound
    found = viz.roofline_at(128, 4000)
    assert found.v == pytest.approx((products + cache) / (weights + cache)) and round(found.v, 2) == 1.44
    assert found.c == pytest.approx((2 * 1.2358144 + cache / 4) / (weights + cache))
    v = (384 / theory.balance_point(theory.H200) * weights + cache) / (weights + cache)  # k = 2
    assert (found.best_k, found.best_speedup) == (2, pytest.approx(theory.speedup(0.7, 2, found.c, v)))


def test_dots_are_drawn_where_they_were_measured():
    dots = [BatchDot(1, 4, 0.7, 0.1, 1.0, 1.8), BatchDot(8, 4, 0.7, 0.1, 2.5, 0.9)]
    assert [round(dot.predicted, 2) for dot in dots] == [1.98, 0.96]
    seen = Seen(batch_speedup_svg(theory.H200, LLAMA, dots={"here": dots, "there": []}))
    assert near(seen.dots(LEFT, "measured here"), [(1, 1.8), (8, 0.9)])
    assert near(seen.dots(LEFT, "by the formula here"), [(dot.batch, dot.predicted) for dot in dots])
    assert near(seen.dots(RIGHT, "measured here"), [(1, 1.0), (8, 2.5)])
    assert {"measured here", "by the formula here"} <= set(seen.texts) and not any("there" in t for t in seen.texts)
    rings = [c for c in seen.root.iter(f"{SVG}circle") if c.get("fill") == "none"]
    assert [c.findtext(f"{SVG}title", "").startswith("by the formula") for c in rings] == [True, True, False]  # its key


@pytest.mark.slow
def test_an_h200_is_shown_with_what_was_measured_there_and_nothing_else_is():
    result = json.loads((BENCHMARKS / "speculation.json").read_text())
    rows = result["speculation"]["results"]
    assert [(dot.batch, dot.measured, dot.v) for dot in BatchDot.recorded()] == [
        (row["batch"], row["speedup"]["median"], row["v"]) for row in rows
    ]
    for dot, row in zip(BatchDot.recorded(), rows, strict=True):
        assert dot.predicted == pytest.approx(row["predicted_speedup"])
    panel = viz.batch_speedup()
    there = f"measured on an H200, recorded {result['date']}"
    seen = Seen(panel.picture)
    assert there in seen.texts and not [text for text in seen.texts if "just now" in text]
    assert near(seen.dots(LEFT, there), [(row["batch"], row["speedup"]["median"]) for row in rows])
    for name, value in dict(machine=MACHINES[1].name, model="Llama-2-70B", stored=0.5).items():
        panel = viz.batch_speedup()
        panel.controls[name].value = value
        other = Seen(panel.picture)
        assert there not in other.texts and not other.dots(LEFT, there) and other.height == seen.height


def test_a_perfect_draft_is_measured_as_one(tiny):
    [dot] = viz.measure_batches(tiny, ms.drafters.Model(tiny), [2], k=2, new=10, repeat=1, prompt=[1, 2, 3])
    assert (dot.batch, dot.k) == (2, 2) and dot.alpha > 0.99
    assert dot.c > 0 and dot.v > 0
    # Every full step but the last writes k + 1 tokens a row, so the ratio of speeds is that of the formula.
    assert dot.measured == pytest.approx(dot.predicted, rel=0.2)


@pytest.mark.slow
def test_moving_a_control_changes_the_curve():
    panel = viz.batch_speedup()
    seen = {panel.picture}
    moves = dict(alpha=0.9, k=3, c=0.1, context=1024, stored=0.5, model="Llama-2-70B", machine=MACHINES[-1].name)
    for name, value in moves.items():
        panel.controls[name].value = value
        seen.add(panel.picture)
    assert len(seen) == 1 + len(moves)


def test_a_dot_is_compared_with_a_line_of_its_own():
    """On the line's machine: the roofline's v with the dot's α, c and k. Elsewhere: the formula with its own v."""
    dot = BatchDot(batch=32, k=3, alpha=0.6, c=0.1, v=2.0, measured=0.9)
    dots = {"there": [BatchDot(1, 3, 0.9, 0.1, 1.0, 3.0), dot], "nowhere": []}
    told = compared(dots, lambda k, batch: {(3, 32): 1.5}[k, batch], {"there"})
    line, own = (1 + 0.6 + 0.36 + 0.216) / (0.3 + 1.5), (1 + 0.6 + 0.36 + 0.216) / (0.3 + 2.0)
    assert "there, batch 32: 0.90 ×, with v = 2.00; its own α = 0.60 and c = 0.10" in told and "nowhere" not in told
    assert f"v = 1.50 would give {line:.2f} ×" in told and "another machine" not in told
    told = compared(dots, lambda k, batch: 1 / 0)  # the line is not asked
    assert f"{own:.2f} × by the formula with its own" in told and "another machine and model" in told


def test_the_caption_holds_only_the_h200_against_the_h200s_line():
    here = BatchDot(32, 4, 0.9, 0.3, 2.9, 1.0)
    words = viz.batch_speedup([here]).words
    assert "just now, batch 32: 1.00 ×, and 1.00 × by the formula" in words and words.count("another machine") == 1
    there = BatchDot.recorded()[-1]
    gain = theory.speedup(there.alpha, there.k, there.c, viz.roofline_at(there.batch).v)
    assert f"would give {gain:.2f} ×" in words


def test_the_caption_names_the_batch_at_which_the_gain_is_gone():
    """Not the next size at which the curve is drawn: S = 1 where B (k + 1) = 188 (E[N] − kc), at k = 4 and at k = 1."""
    four, one = (
        int((theory.expected_tokens(0.7, k) - k * 0.05) * theory.free_tokens(theory.H200) / (k + 1)) + 1 for k in (4, 1)
    )
    assert (four, one) == (97, 156) and four not in ROWS and one not in ROWS
    assert f"slower from batch {four} on; from batch {one} on no k gains" in viz.batch_speedup().words


def test_a_v_that_no_pass_needs_is_not_passed_on_without_a_remark():
    fine, odd = BatchDot(4, 4, 0.9, 0.3, 5.0, 0.7), BatchDot(16, 4, 0.9, 0.3, 5.1, 0.7)
    assert "above k + 1" not in viz.batch_table([fine])
    assert "v above k + 1 at batch 16: " in viz.batch_table([fine, odd])


def test_all_batches_at_once_are_the_theory():
    """The panel computes them by arrays, because 4,608 calls took 72 ms; theory.py says what they are."""
    for config in (presets.SHAPES["Llama-3-8B"], presets.SHAPES["Llama-3.2-1B"]):
        for context in (0, 500, 8192):
            costs = _costs(theory.H200, config, 2, context)
            for k, batch in ((1, 1), (4, 32), (4, 128), (8, 512)):
                assert costs[k - 1, batch - 1] == verify_cost(theory.H200, config, k, batch, 2, context)
