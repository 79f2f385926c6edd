"""The roofline explorer and the timing widget show what theory.py computes and what was measured, and nothing else."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from xml.etree import ElementTree

import pytest

pytest.importorskip("plotly")

import minispec as ms
from minispec import measure, theory
from minispec.measure import Point, Rate, Timing
from minispec.model import Transformer
from minispec_course import viz
from minispec_course.viz import presets
from minispec_course.viz.roofline import LEFT, RIGHT

timing_module = sys.modules["minispec_course.viz.timing"]  # viz.timing is the widget
LLAMA, SMALL = presets.SHAPES["Llama-3-8B"], presets.SHAPES["40M"]
HERE = timing_module.Here(
    theory.Hardware("this machine, float32, measured now", 1e10, 5e10),
    SMALL,
    4,
    64,
    tuple(Point(m, Timing(0.02 * r, 0.018 * r, 0.03 * r, 3), r) for m, r in ((1, 1.0), (4, 1.5), (5, 2.0), (64, 9.0))),
)


SVG = "{http://www.w3.org/2000/svg}"
UNITS = {"kFLOP/s": 1e3, "MFLOP/s": 1e6, "GFLOP/s": 1e9, "TFLOP/s": 1e12}
NEAR = 0.01  # a tenth of a pixel, of a decade's 50 or more


def number(text: str) -> float:
    value, _, unit = text.partition(" ")
    return float(value.replace(",", "")) * UNITS.get(unit, 1)


class Drawn:
    """A roofline read from its drawing: what is where is told by the numbers at its axes."""

    def __init__(self, svg: str) -> None:
        self.root = ElementTree.fromstring(svg)
        texts = [(float(t.get("x")), float(t.get("y")), t.text or "", t) for t in self.root.iter(f"{SVG}text")]
        self.texts = [text for _, _, text, _ in texts]
        across = [(number(text), x) for x, _, text, t in texts if re.fullmatch("10*(,000)*", text) and _soft(t)]
        up = [(number(text), y - 4) for _, y, text, _ in texts if text.endswith("FLOP/s")]
        self.x, self.y = (_scale(min(ticks), max(ticks)) for ticks in (across, up))
        self.labels = [(x, y, text) for x, y, text, t in texts if text.isdigit() and not _soft(t)]
        lines = [line for line in self.root.iter(f"{SVG}line") if "ms-rule-line" in line.get("class", "")]
        self.left, self.right = (
            edge([float(line.get(end)) for line in lines]) for edge, end in ((min, "x1"), (max, "x2"))
        )

    def marks(self, name: str) -> list[tuple[float, float, str]]:
        """(x, y, what it says) of each mark whose name has this in it."""
        found = []
        for group in self.root.iter(f"{SVG}g"):
            told = group.findtext(f"{SVG}title") or ""
            if name in told:
                x, y = map(float, group.get("transform")[len("translate(") : -1].split())
                found.append((self.x(x), self.y(y), told))
        return found

    def roofs(self, name: str) -> list[list[tuple[float, float]]]:
        paths = [
            p.get("d")[1:].split() for p in self.root.iter(f"{SVG}path") if name in (p.findtext(f"{SVG}title") or "")
        ]
        return [[(self.x(float(x)), self.y(float(y))) for x, y in zip(d[::2], d[1::2], strict=True)] for d in paths]


def _soft(text) -> bool:
    return text.get("class") == "ms-soft"


def _scale(low: tuple[float, float], high: tuple[float, float]) -> Callable[[float], float]:
    (a, at), (b, end) = low, high
    return lambda pixel: a * (b / a) ** ((pixel - at) / (end - at))


def trace(figure, name):
    [found] = [t for t in figure.data if name in t.name]
    return found


def options(control):
    return [option[1] if isinstance(option, tuple) else option for option in control.options]


# ---- what there is to choose from ----


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("smollm2", 134_515_008),
        ("Llama-3.2-1B", 1_235_814_400),
        ("Llama-2-7B", 6_738_415_616),
        ("Llama-3-8B", 8_030_261_248),
        ("Llama-2-70B", 68_976_648_192),
        ("Llama-3-70B", 70_553_706_496),
    ],
)
def test_the_shapes_are_those_of_the_models(name, published):
    assert presets.weights(presets.SHAPES[name]) == published


def test_weights_read_are_those_that_a_token_reads(make_model):
    for tied in (False, True):
        model = make_model(tie_embeddings=tied)
        assert presets.weights(model.config) == model.num_parameters
        assert presets.weights_read(model.config) * model.dtype.itemsize == measure.weight_bytes(model)
    assert presets.weights(presets.SHAPES["micro"]) == ms.load("micro", device="cpu").num_parameters


def test_numbers_are_written_with_three_figures():
    assert [presets.si(x, "B") for x in (0.5, 999, 1000, 4.2e12, 3e15)] == [
        "0.5 B",
        "999 B",
        "1 kB",
        "4.2 TB",
        "3,000 TB",
    ]
    assert [presets.duration(x) for x in (3.76e-5, 0.0204, 1.5)] == ["37.6 µs", "20.4 ms", "1.5 s"]


# ---- the roofline ----


def near(value: float):
    return pytest.approx(value, rel=NEAR)


def on_the_roof(points, hardware) -> bool:
    return all(y == near(theory.attainable_flops(x, hardware)) for x, y in points)


@pytest.mark.parametrize("hardware", [theory.H200, theory.NEOVERSE_N1])
def test_the_roof_is_theorys_and_bends_at_the_balance_point(hardware):
    drawn = Drawn(viz.roofline_svg(LLAMA, hardware))
    [roof] = drawn.roofs("the roof")
    assert on_the_roof(roof, hardware) and len(roof) == 3
    assert roof[1][0] == near(theory.balance_point(hardware)) and roof[1][1] == roof[2][1] == near(hardware.flops)
    assert (roof[0][0], roof[2][0]) == (near(drawn.x(drawn.left)), near(drawn.x(drawn.right)))  # all across


@pytest.mark.parametrize(("stored", "batch", "tokens"), [(2, 1, 5), (4, 8, 3), (0.5, 2, 512)])
def test_passes_lie_on_the_roof_at_their_intensity(stored, batch, tokens):
    drawn = Drawn(viz.roofline_svg(LLAMA, theory.H200, stored, batch, tokens))
    for name, count in (("decode", 1), ("prefill", 512), ("your pass", tokens)):
        [(x, y, told)] = drawn.marks(name)
        intensity = theory.arithmetic_intensity(batch, count, stored)
        assert x == near(intensity) and y == near(theory.attainable_flops(intensity, theory.H200))
        assert f"{presets.figures(intensity)} FLOP per byte" in told


def test_cached_tokens_are_read_and_scored_too():
    width = LLAMA.num_layers * LLAMA.num_heads * LLAMA.head_dim
    weights = presets.weights_read(LLAMA)
    flops, read = presets.work(LLAMA, 2, batch=4, tokens=5, context=1000)
    assert flops == theory.pass_flops(weights, 4, 5, 1000, width)
    assert read == weights * 2 + 4 * 1000 * theory.kv_bytes_per_token(32, 8, 128)
    [(x, _, _)] = Drawn(viz.roofline_svg(LLAMA, theory.H200, 2, 4, 5, 1000)).marks("your pass")
    assert x == near(flops / read)


def timed(run) -> list[tuple[float, float]]:
    """FLOP per byte and FLOP/s of the passes that were timed."""
    work = [presets.work(run.config, run.bytes_per_weight, 1, p.tokens, run.context) for p in run.curve]
    return [(near(f / read), near(f / p.time.median)) for (f, read), p in zip(work, run.curve, strict=True)]


def test_measured_passes_are_their_flops_over_their_time():
    drawn = Drawn(viz.roofline_svg(SMALL, HERE.hardware, 4, measured=[HERE]))
    dots = drawn.marks("just now")
    assert [(x, y) for x, y, _ in dots] == timed(HERE)
    assert [f"M = {p.tokens}:" in told for p, (*_, told) in zip(HERE.curve, dots, strict=True)] == [True] * 4


def test_the_explorer_moves_and_says_what_limits_a_pass():
    panel = viz.roofline()
    assert "memory-bound" in panel.words and "1 FLOP per byte" in panel.words and "0.5%" in panel.words
    seen = {panel.words}
    for value in options(panel.controls["tokens"])[1:]:
        before = panel.picture
        panel.controls["tokens"].value = value
        assert panel.picture is not before and panel.words not in seen
        seen.add(panel.words)
        assert ("compute-bound" in panel.words) == (value > theory.balance_point(theory.H200))
    for name in ("batch", "context", "model", "stored", "machine"):
        panel.controls[name].value = options(panel.controls[name])[-1]
        assert panel.words not in seen
        seen.add(panel.words)


def test_both_machines_points_are_on_the_same_axes_each_of_its_own_model():
    [there] = timing_module.recorded()
    assert there.label.startswith("H200, recorded 20") and there.model == "Llama-3-8B" and there.bytes_per_weight == 2
    panel = viz.roofline(HERE)
    assert any(HERE.hardware.name in text for text in Drawn(panel.picture).texts)
    for value in options(panel.controls["machine"]):
        panel.controls["machine"].value = value
        drawn = Drawn(panel.picture)
        for run in (HERE, there):
            assert [(x, y) for x, y, _ in drawn.marks(run.what)] == timed(run)
            assert run.what in drawn.texts  # the legend
        roofs = drawn.roofs("roof")
        assert {round(roof[2][1] / h.flops, 1) for h in (HERE.hardware, theory.H200) for roof in roofs} >= {1.0}
    assert not Drawn(viz.roofline().picture).marks("just now")  # nothing was measured here


def test_numbers_beside_measured_passes_do_not_touch():
    there = timing_module.recorded()
    for runs in (there, [HERE, *there]):
        labels = Drawn(viz.roofline_svg(LLAMA, theory.H200, measured=runs)).labels
        assert len(labels) > 6
        for i, (x, y, text) in enumerate(labels):
            for other, below, _ in labels[i + 1 :]:
                assert other >= x + 7 * len(text) or abs(below - y) > 9 or other < x


def test_another_machines_roof_is_theorys_too():
    [roof] = Drawn(viz.roofline_svg(SMALL, theory.A100, 4, measured=[HERE])).roofs("roof of this machine")
    assert on_the_roof(roof, HERE.hardware) and roof[1][0] == near(theory.balance_point(HERE.hardware))
    assert not Drawn(viz.roofline_svg(SMALL, HERE.hardware, 4, measured=[HERE])).roofs("roof of")


def test_every_machine_says_whether_it_was_measured():
    names = [label for label, _ in viz.roofline(HERE).controls["machine"].options]
    assert len(names) == 5 and all(("measured" in name) != ("data sheet" in name) for name in names)


# ---- the timing widget ----


@pytest.mark.parametrize(("stored", "batch"), [(2, 1), (2, 32), (0.5, 4)])
def test_lines_are_the_rooflines_ratio(stored, batch):
    line = trace(viz.timing_figure(LLAMA, [theory.H200], stored, batch, tokens=7, context=0), "roofline")
    assert 7 in line.x
    free = theory.free_tokens(theory.H200, batch, stored)
    for m, ratio in zip(line.x, line.y, strict=True):
        times = [theory.pass_time(theory.H200, presets.weights_read(LLAMA), batch, n, 0, stored) for n in (m, 1)]
        assert ratio == pytest.approx(times[0] / times[1])
        assert (ratio == pytest.approx(1)) == (m <= free)


def test_dots_are_the_measured_ratios_with_their_quartiles():
    dots = trace(viz.timing_figure(SMALL, [HERE.hardware], 4, measured=[HERE]), "just now (")
    assert list(dots.x) == [1, 4, 5, 64] and list(dots.y) == [1.0, 1.5, 2.0, 9.0]
    assert list(dots.error_y.array) == pytest.approx([0.5 * r for r in dots.y])
    assert list(dots.error_y.arrayminus) == pytest.approx([0.1 * r for r in dots.y])


def test_the_widget_speaks_of_this_machine_and_the_h200():
    panel = viz.timing(HERE)
    assert "just now: 2.00 ×" in panel.words and "H200" in panel.words  # M = 5 at first
    before, words = panel.picture, panel.words
    panel.controls["tokens"].index += 1
    assert panel.picture is not before and panel.words != words and "just now: 1.50 ×" not in panel.words
    for name, control in panel.controls.items():
        for value in options(control) if name != "tokens" else [1, 128]:
            control.value = value
            assert "at best" in panel.words
    names = [trace.name for trace in viz.timing().picture.data]  # each alone, the H200's line, the mark on it, its dots
    assert len(names) == 4 and names[3].startswith("H200, recorded 20")


def record(**changes) -> dict:
    times = dict(low=1.0, high=1.0, n=3)
    rows = [{"tokens": m, "seconds": dict(median=r, **times), "ratio": r} for m, r in ((1, 1.0), (5, 1.02))]
    machine = {"cpu": "a CPU", "gpus": [{"name": "NVIDIA H200"}]}
    known = dict(benchmark="verify", date="2026-01-02", shape="8b", dtype="bfloat16", context=500, machine=machine)
    return known | {"results": rows} | changes


def test_recorded_curves_are_told_from_those_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(timing_module, "BENCHMARKS", tmp_path)
    assert timing_module.recorded() == []
    (tmp_path / "a.json").write_text(json.dumps(record()))
    (tmp_path / "b.json").write_text(json.dumps({"benchmark": "memory"}))
    [there] = timing_module.recorded()
    assert (there.label, there.context) == ("H200, recorded 2026-01-02", 500)
    panel = viz.timing(HERE)
    dots = trace(panel.picture, "H200, recorded")
    assert list(dots.y) == [1.0, 1.02] and dots.marker.symbol == "square-open"  # of another model than the chosen one
    assert trace(panel.picture, "just now (").marker.symbol == "circle"
    panel.controls["model"].value, panel.controls["stored"].value = "Llama-3-8B", 2
    assert trace(panel.picture, "H200, recorded").marker.symbol == "square"
    assert trace(panel.picture, "just now (").marker.symbol == "circle-open"
    panel.controls["tokens"].value = 5
    assert "H200, recorded 2026-01-02: 1.02 ×" in panel.words
    panel.controls["batch"].value = 2  # one sequence was measured
    assert not [t for t in panel.picture.data if "recorded" in t.name or "just now (" in t.name]


def test_a_recorded_cpu_is_named_too(tmp_path, monkeypatch):
    monkeypatch.setattr(timing_module, "BENCHMARKS", tmp_path)
    (tmp_path / "a.json").write_text(json.dumps(record(machine={"cpu": "a CPU", "gpus": []})))
    assert [run.label for run in timing_module.recorded()] == ["a CPU, recorded 2026-01-02"]


def test_measure_here_measures_the_model_it_is_given(make_model, monkeypatch):
    model = make_model()
    monkeypatch.setattr(measure, "read_bandwidth", lambda device, **o: Rate(3e9, 2e9, 4e9, 5))
    monkeypatch.setattr(measure, "flops", lambda device, dtype, **o: Rate(7e9, 6e9, 8e9, 5))
    ticks = iter(range(10**6))
    here = viz.measure_here(model, tokens=(1, 3), context=8, clock=lambda: float(next(ticks)))
    assert (here.hardware.bandwidth, here.hardware.flops) == (3e9, 7e9)
    assert [(p.tokens, p.ratio) for p in here.curve] == [(1, 1.0), (3, 1.0)]
    assert here.measured(model.config, model.dtype.itemsize, 1) == here.curve
    assert here.measured(model.config, model.dtype.itemsize, 2) == ()
    assert here.measured(replace(model.config, num_layers=7), model.dtype.itemsize, 1) == ()


@pytest.mark.slow
def test_the_model_it_makes_on_a_cpu_is_the_40m():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "read_bandwidth", lambda device, **o: Rate(3e9, 2e9, 4e9, 5))
        patch.setattr(measure, "flops", lambda device, dtype, **o: Rate(7e9, 6e9, 8e9, 5))
        patch.setattr(measure, "verify_curve", lambda model, *a, **o: [Point(1, Timing(1, 1, 1, 1), model)])
        here = viz.measure_here(device="cpu")
    [point] = here.curve
    assert isinstance(point.ratio.transformer, Transformer) and point.ratio.config == SMALL
    assert here.model == "40M" and here.what == "this machine, measured just now (40M in float32)"


def test_a_figure_of_no_machine_is_refused():
    with pytest.raises(ValueError, match="machines"):
        viz.timing_figure(LLAMA, [])


def test_every_mark_of_the_roofline_is_on_its_axes():
    """A large batch in few bits lies far to the right, float32 far to the left: both are on the one axis there is."""
    panel, shapes = viz.roofline(), set()
    for settings in (dict(tokens=2048, batch=256, stored=0.5), dict(tokens=1, batch=1, stored=4, context=131_072)):
        for name, value in settings.items():
            panel.controls[name].value = value
        drawn = Drawn(panel.picture)
        shapes.add((drawn.root.get("height"), drawn.left, drawn.right, drawn.x(0), drawn.y(0)))
        for name, count in (("decode", 1), ("prefill", 512), ("your pass", settings["tokens"])):
            v = panel.values
            flops, read = presets.work(presets.SHAPES[v["model"]], v["stored"], v["batch"], count, v["context"])
            [(x, y, _)] = drawn.marks(name)
            assert x == near(flops / read) and on_the_roof([(x, y)], theory.H200)
            assert drawn.x(drawn.left) < x < drawn.x(drawn.right)
    assert len(shapes) == 1


def test_no_choice_leaves_the_axis():
    for shape, stored, batch, tokens, context in product(
        presets.SHAPES.values(), presets.STORED.values(), (1, 256), (1, 512, 2048), (0, 256, 131_072)
    ):
        flops, read = presets.work(shape, stored, batch, tokens, context)
        assert LEFT < flops / read < RIGHT
