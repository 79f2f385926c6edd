"""The speed-up surface and the debugging lab: what they show is the formula, or a run."""

from __future__ import annotations

import base64
import json
import re
import struct
import sys
import zlib
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest

import minispec as ms
from benchmarks import report
from minispec import theory
from minispec.speculate import speculate
from minispec_course import viz
from minispec_course.labs import slower
from minispec_course.viz import Dot, cycle_parts, diagnose, diagnose_html, surface, surface_figure, surface_svg
from minispec_course.viz.diagnose import suspects, verdict
from minispec_course.viz.drawing import text_width
from minispec_course.viz.style import PALETTE
from minispec_course.viz.surface import ALPHAS, BLACK, CUT, LONGEST, MAP, MOST, SCALE, colour, verify_cost

CASES = slower.cases()
SOUND = CASES[slower.SOUND]
DOT = Dot("a run", 0.6, 3, 0.2, 1.4, 1.1)


surface_module = sys.modules["minispec_course.viz.surface"]
SVG = "{http://www.w3.org/2000/svg}"


def trace(figure, name):
    [found] = [trace for trace in figure.data if trace.name == name]
    return found


class Seen:
    """The map and the cut of a drawing, in the units of their axes."""

    def __init__(self, svg: str) -> None:
        self.root = ElementTree.fromstring(svg)
        self.texts = [text.text for text in self.root.iter(f"{SVG}text")]
        ends = {
            float(t.text): float(t.get("y")) - 4 for t in self.root.iter(f"{SVG}text") if t.get("x") == str(CUT[0] - 6)
        }
        low, high = sorted(ends)[:2]
        self.unit = (ends[low] - ends[high]) / (high - low)  # pixels of 1 on the cut's y axis

    def at(self, x: float, y: float) -> tuple[float, float]:
        left, top, width, height = MAP if x < CUT[0] else CUT
        unit = height if x < CUT[0] else self.unit
        return 0.5 + LONGEST * (x - left) / width, (top + height - y) / unit

    def told(self) -> dict[str, ElementTree.Element]:
        return {one.findtext(f"{SVG}title"): one for one in self.root.iter() if one.find(f"{SVG}title") is not None}

    def images(self) -> list[tuple[tuple, np.ndarray]]:
        """Where each is, and its pixels."""
        found = []
        for one in self.root.iter(f"{SVG}image"):
            png = base64.b64decode(one.get("href").partition(",")[2])
            columns, rows = struct.unpack(">II", png[16:24])
            size = struct.unpack(">I", png[33:37])[0]
            lines = np.frombuffer(zlib.decompress(png[41 : 41 + size]), np.uint8).reshape(rows, 1 + 3 * columns)
            place = tuple(float(one.get(name)) for name in ("x", "y", "width", "height"))
            found.append((place, lines[:, 1:].reshape(rows, columns, 3)))
        return found

    def line(self, colour: str, dash: str | None = None) -> list[tuple[float, float]]:
        for path in self.root.iter(f"{SVG}path"):
            if path.get("stroke") == colour and path.get("stroke-dasharray") == dash:
                numbers = list(map(float, re.findall(r"[\d.]+", path.get("d"))))
                return [self.at(x, y) for x, y in zip(numbers[::2], numbers[1::2], strict=True)]
        return []

    def marks(self, about: str) -> list[tuple[float, float, ElementTree.Element]]:
        """Circles that say this: (x, y, the circle)."""
        found = [one for told, one in self.told().items() if about in told and one.tag == f"{SVG}circle"]
        return [(*self.at(float(one.get("cx")), float(one.get("cy"))), one) for one in found]


def near(found, wanted) -> bool:
    """The same points, as far as a tenth of a pixel tells."""
    flat = lambda pairs: [value for pair in pairs for value in pair]  # noqa: E731
    return len(found) == len(wanted) and flat(found) == pytest.approx(flat(wanted), abs=0.012)


# ---------------------------------------------------------------- the surface


def test_the_surface_is_the_formula():
    seen = Seen(surface_svg(0.7, 0.1, 1.3))
    (x, y, width, height), pixels = seen.images()[0]
    assert (x, width, y + height) == (MAP[0], MAP[2], MAP[1] + MAP[3]) and pixels.shape == (
        2 * len(ALPHAS) - 1,
        LONGEST,
        3,
    )
    for a in (ALPHAS[0], ALPHAS[20], ALPHAS[49]):
        row = int(((1 - a) * MAP[3] + MAP[1] - y) / height * len(pixels) - 1e-6)
        for k in (1, 4, LONGEST):
            shade = colour(theory.speedup(a, k, 0.1, 1.3))
            assert "#{:02x}{:02x}{:02x}".format(*pixels[row, k - 1]) == shade
    told = {text: one for text, one in seen.told().items() if text.startswith("k = ") and "α" in text}
    assert len(told) == 11 * LONGEST
    for a in (0.0, 0.5, 0.98):
        for k in (1, 4, LONGEST):
            cell = told[f"k = {k}, α = {a:.2f}: speed-up {theory.speedup(a, k, 0.1, 1.3):.2f}"]
            x, y, width, height = (float(cell.get(name)) for name in ("x", "y", "width", "height"))
            assert seen.at(x + width / 2, y)[0] == pytest.approx(k, abs=0.01)
            assert seen.at(x, y + height)[1] - 0.001 <= a <= seen.at(x, y)[1]
    cut = [theory.speedup(0.7, k, 0.1, 1.3) for k in range(1, LONGEST + 1)]
    assert near(seen.line(PALETTE[0]), list(enumerate(cut, start=1)))
    best = theory.best_k(0.7, 0.1, 1.3)
    star = [float(n) for n in seen.told()[f"best: k = {best}"].get("points").replace(",", " ").split()]
    x, top = seen.at(star[0], star[1] + 9)
    assert (x, top) == pytest.approx((best, max(cut)), abs=0.01) and any(f"best: k = {best}" in t for t in seen.texts)


def test_colours_mean_what_the_scale_beside_them_says():
    assert [colour(x) for x in (0, 1, MOST, 2 * MOST)] == [SCALE[0][1], SCALE[1][1], SCALE[2][1], SCALE[2][1]]
    (_, y, _, height), bar = Seen(surface_svg()).images()[1]
    shades = ["#{:02x}{:02x}{:02x}".format(*one) for one in bar[:, 0]]
    assert shades == [colour(MOST * (39.5 - i) / 40) for i in range(40)]  # more is higher up
    assert (y, height) == (MAP[1], MAP[3])


def test_the_lines_on_it_are_the_best_k_and_the_break_even():
    seen = Seen(surface_svg(0.7, 0.1))
    edge = [(k, theory.break_even(k, 0.1)) for k in range(1, LONGEST + 1)]
    assert near(seen.line("#ffffff", "2 3"), [(k, a) for k, a in edge if a <= 1])
    best = [(theory.best_k(a, 0.1, longest=LONGEST), a) for a in ALPHAS]
    best = [(k, a) for k, a in best if k]
    steps = seen.line(BLACK)
    assert near(steps[::2], best) and near(steps[1::2], [(a[0], b[1]) for a, b in pairwise(best)])  # up, then right
    assert near(seen.line(BLACK, "7 5"), [(1, 0.7), (LONGEST, 0.7)])
    assert {"best k", "no gain, no loss"} <= set(seen.texts)
    nothing = Seen(surface_svg(0.7, 0.9, 9.0))  # nothing gains: no line
    assert not nothing.line(BLACK) and "best k" not in nothing.texts
    assert not [told for told in Seen(surface_svg(0.1, 0.9)).told() if told.startswith("best")]


@pytest.mark.parametrize("v", (1.0, 1.4, 3.0))
@pytest.mark.parametrize("c", (0.0, 0.1, 0.5, 0.9))
def test_names_on_the_map_stay_on_it(c, v):
    """They are black: off the map a dark page would hide them. All of its colours bear black."""
    for svg in (surface_svg(0.7, c, v), surface_svg(0.7, c, verify_cost(v, grows=True))):
        for text in ElementTree.fromstring(svg).iter(f"{SVG}text"):
            if text.get("fill") == BLACK:
                width, x, y = text_width(text.text, 12.5), float(text.get("x")), float(text.get("y"))
                x -= width if text.get("text-anchor") == "end" else 0
                assert MAP[0] <= x and x + width <= MAP[0] + MAP[2] and MAP[1] + 12 <= y <= MAP[1] + MAP[3] - 3


def test_a_cost_that_grows_is_used_at_every_k():
    grows = verify_cost(2.0, grows=True)
    assert (grows(4), grows(8), verify_cost(2.0, grows=False)(8)) == (2.0, 3.0, 2.0)
    cut = Seen(surface_svg(0.7, 0.1, grows)).line(PALETTE[0])
    assert cut[7] == pytest.approx((8, theory.speedup(0.7, 8, 0.1, 3.0)), abs=0.01)


def test_dots_show_what_was_measured_beside_what_was_predicted():
    seen = Seen(surface_svg(dots=[replace(DOT, measured=0.8)]))
    on_map, predicted, measured = seen.marks("a run: α = 0.60, c = 0.20, v = 1.40")
    assert on_map[:2] == pytest.approx((3, 0.6), abs=0.01) and on_map[2].get("fill") == colour(0.8)
    assert predicted[:2] == pytest.approx((3, DOT.predicted), abs=0.012) and predicted[2].get("fill") == "none"
    assert measured[:2] == pytest.approx((3, 0.8), abs=0.012) and measured[2].get("fill") == PALETTE[1]
    assert DOT.predicted == theory.speedup(0.6, 3, 0.2, 1.4) and any(t.startswith("a run: ") for t in seen.texts)


def test_the_sites_figure_shows_what_the_drawing_shows():
    """The page computes with a figure's traces: they are the drawing's cells, lines and dots."""
    figure, seen = surface_figure(0.7, 0.1, 1.3, [DOT]), Seen(surface_svg(0.7, 0.1, 1.3, [DOT]))
    heat, best, edge, cut = (trace(figure, n) for n in ("speed-up", "best k", "no gain, no loss", "at this α, c, v"))
    told = {
        f"k = {k}, α = {a:.2f}: speed-up {z:.2f}"
        for a, row in zip(heat.y, heat.z, strict=True)
        for k, z in zip(heat.x, row, strict=True)
    }
    some = {text for text in seen.told() if text.startswith("k = ") and "α" in text}
    assert some < told and (seen.images()[0][1][::-2] == surface_module.colours(heat.z)).all()
    assert near(seen.line(BLACK)[::2], list(zip(best.x, best.y, strict=True)))
    assert near(seen.line("#ffffff", "2 3"), list(zip(edge.x, edge.y, strict=True)))
    assert near(seen.line(PALETTE[0]), list(zip(cut.x, cut.y, strict=True)))
    both, star = trace(figure, "a run, both"), trace(figure, "best")
    assert near([mark[:2] for mark in seen.marks("a run")[1:]], list(zip(both.x, both.y, strict=True)))
    assert star.text[0] in seen.told()


def test_dots_come_from_records():
    h200 = Dot.recorded()
    result = json.loads((report.SHIPPED / "speculate.json").read_text(encoding="utf-8"))
    assert (h200.alpha, h200.k, h200.measured) == (result["acceptance"], 4, result["speedup"])
    assert h200.predicted == pytest.approx(result["predicted_speedup"], rel=0.03) and "H200" in h200.name
    dot = Dot.of(SOUND, "sound")
    assert (dot.alpha, dot.k, dot.measured) == (SOUND.alpha, SOUND.k, SOUND.measured)


def test_moving_a_control_moves_the_picture():
    panel = surface([DOT], curve=lambda k: 1 + k / 10)
    cut = lambda: [y for _, y in Seen(panel.picture).line(PALETTE[0])]  # noqa: E731
    height = Seen(panel.picture).root.get("height")
    assert next(iter(panel.controls)) == "alpha"
    for name, value in (("alpha", 0.8), ("c", 0.3), ("v", 2.0), ("cost", "grows"), ("cost", "here")):
        before, said = cut(), panel.words
        panel.controls[name].value = value
        assert cut() != before and panel.words != said, name
    assert cut()[9] == pytest.approx(theory.speedup(0.8, 10, 0.3, 2.0), abs=0.01)  # 1 + 10/10
    panel.controls["dot"].value = DOT
    assert [panel.values[name] for name in ("alpha", "c", "v")] == pytest.approx([0.6, 0.2, 1.4])
    assert "measured 1.10" in panel.words and f"predicted {DOT.predicted:.2f}" in panel.words
    assert "k = 0" in surface_words(panel, alpha=0.0, c=1.0)
    assert Seen(panel.picture).root.get("height") == height
    figure, words = panel.draw(**panel.values, figure=True)  # for the site
    assert trace(figure, "the cut").y == [0.0, 0.0] and words == panel.words


def surface_words(panel, **values) -> str:
    for name, value in values.items():
        panel.controls[name].value = value
    return panel.words


# ---------------------------------------------------------------- the lab


def test_the_numbers_convict_exactly_the_right_fault():
    for name, case in CASES.items():
        guilty = [fault for fault, suspect in suspects(case, SOUND).items() if suspect.guilty]
        assert guilty == ([] if name == slower.SOUND else [name])


def test_mending_the_fault_makes_it_pay_again():
    for name in slower.FAULTS:
        suspect = suspects(CASES[name], SOUND)[name]
        assert suspect.mended > 1.05 > 1 > CASES[name].predicted, name
    case = CASES["launch overhead"]
    mended = suspects(case, SOUND)["launch overhead"].mended
    assert mended == pytest.approx(theory.speedup(case.alpha, case.k, SOUND.c, case.v))


@pytest.mark.parametrize("name", slower.FAULTS)
def test_every_diagnosis_gets_an_answer_with_numbers(name):
    case = CASES[name]
    for picked in slower.FAULTS:
        said = verdict(case, SOUND, picked)
        assert said.startswith("Yes" if picked == name else "No") and "." in said
        assert said in diagnose_html(case, SOUND, picked).replace("&#x27;", "'")
    assert "Pick" in verdict(case, SOUND, None)


def test_the_page_shows_the_numbers_of_the_trace_and_not_the_name():
    for name in slower.FAULTS:
        html = diagnose_html(CASES[name], SOUND, None, "set-up 1")
        assert name not in html and "aria-label" in html and "set-up 1" in html
        for value in CASES[name].numbers().values():
            assert (f"<b>{value}</b>" if isinstance(value, int) else f"<b>{value:.2f}</b>") in html


def test_the_lab_turns_pages_and_forgets_the_last_diagnosis():
    panel = diagnose()
    assert next(iter(panel.controls)) == "number"
    seen = set()
    for number in range(1, 6):
        panel.controls["number"].value = number
        assert panel.controls["picked"].value == ""
        panel.controls["picked"].value = "k too large"
        seen.add(panel.picture)
        assert f"Set-up {number} is slower" in panel.words
    assert len(seen) == 5 and sum("✓" in picture for picture in seen) == 1


def test_bad_arguments():
    with pytest.raises(ValueError, match="picked='bad luck'.*wrong kernel"):
        diagnose_html(SOUND, SOUND, "bad luck")
    with pytest.raises(ValueError, match="sound"):
        diagnose({"k too large": CASES["k too large"]})


# ---------------------------------------------------------------- where the time goes


def test_the_parts_of_a_cycle_are_those_of_the_trace_and_the_rest_is_the_host(tiny, monkeypatch):
    drafter, seen = ms.drafters.Model(tiny), []

    def watched(*args, on_cycle, **options):
        def note(cycle):
            seen.append(cycle)
            on_cycle(cycle)

        return speculate(*args, on_cycle=note, **options)

    monkeypatch.setattr(cycle_parts, "speculate", watched)
    ticks = iter(range(10**6))
    clock = SimpleNamespace(perf_counter=lambda: float(next(ticks)))  # a second from one cycle to the next
    monkeypatch.setattr(cycle_parts, "time", clock)
    parts = viz.measure_cycle(tiny, drafter, [1, 2, 3], k=2, new_tokens=9, repeat=1)
    assert (parts.k, parts.tokens) == (2, 3.0)  # its own draft: all accepted, and the bonus
    cycles = seen[len(seen) // 2 + 1 :]  # the second run, without its first cycle
    for part in ("draft", "verify", "sample"):
        mean = sum(getattr(cycle, f"{part}_seconds") for cycle in cycles) / len(cycles)
        assert getattr(parts, part) == pytest.approx(mean) and mean > 0
    assert parts.cycle == pytest.approx(1.0) and parts.speedup == pytest.approx(3 * parts.plain)


def test_the_recorded_cycle_adds_up():
    result = json.loads((report.SHIPPED / "speculate.json").read_text(encoding="utf-8"))
    there = viz.CycleParts.recorded()
    assert there.cycle == pytest.approx(result["seconds"]["whole cycle"]["median"])
    assert there.draft / there.plain / there.k == pytest.approx(result["c"], rel=1e-3)
    assert there.verify / there.plain == pytest.approx(result["v"], rel=1e-3)
    assert there.speedup == pytest.approx(result["speedup"], rel=1e-3)
    assert "H200" in there.name and result["date"] in there.name


def test_both_bars_are_in_plain_steps_of_their_own_machine():
    runs = [viz.CycleParts("here", 4, 2.5, 2.0, 1.0, 3.0, 0.5, 0.5), viz.CycleParts.recorded()]
    figure = viz.cycle_figure(runs)
    bars = [bar for bar in figure.data if bar.type == "bar"]
    assert [bar.x[0] for bar in bars] == [0.5, 1.5, 0.25, 0.25]
    assert sum(bar.x[1] for bar in bars) == pytest.approx(runs[1].cycle / runs[1].plain)
    [mark] = [t for t in figure.data if t.type == "scatter"]
    assert list(mark.x) == [run.tokens for run in runs] and figure.layout.barmode == "stack"
    words = viz.cycle_words(runs)
    assert "1.00 ×" in words and "60%" in words  # 2.5 tokens of 2 s in a cycle of 5 s, 3 of which verify


def test_one_cycle_is_not_enough_to_time_one(tiny):
    with pytest.raises(ValueError, match="new_tokens=2"):
        viz.measure_cycle(tiny, ms.drafters.Model(tiny), [1, 2, 3], k=4, new_tokens=2, repeat=1)
