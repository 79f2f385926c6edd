"""The roofline explorer and the timing widget show what theory.py computes and what was measured, and nothing else."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest

pytest.importorskip("plotly")

import minispec as ms
from minispec import theory
from minispec.bench import measure
from minispec.bench.measure import Point, Rate, Timing
from minispec.course import viz
from minispec.course.viz import presets
from minispec.model import Transformer

timing_module = sys.modules["minispec.course.viz.timing"]  # viz.timing is the widget
LLAMA, SMALL = presets.SHAPES["Llama-3-8B"], presets.SHAPES["40M"]
HERE = timing_module.Here(
    theory.Hardware("this machine, float32, measured now", 1e10, 5e10),
    SMALL,
    4,
    64,
    tuple(Point(m, Timing(0.02 * r, 0.018 * r, 0.03 * r, 3), r) for m, r in ((1, 1.0), (4, 1.5), (5, 2.0), (64, 9.0))),
)


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


@pytest.mark.parametrize("hardware", [theory.H200, theory.NEOVERSE_N1])
def test_the_roof_is_theorys_and_bends_at_the_balance_point(hardware):
    roof = trace(viz.roofline_figure(LLAMA, hardware), "roof")
    assert list(roof.y) == [theory.attainable_flops(x, hardware) for x in roof.x]
    assert roof.x[1] == theory.balance_point(hardware) and roof.y[1] == roof.y[2] == hardware.flops


@pytest.mark.parametrize(("stored", "batch", "tokens"), [(2, 1, 5), (4, 8, 3), (0.5, 2, 512)])
def test_passes_lie_on_the_roof_at_their_intensity(stored, batch, tokens):
    figure = viz.roofline_figure(LLAMA, theory.H200, stored, batch, tokens)
    for name, count in (("decode", 1), ("prefill", 512), ("your pass", tokens)):
        mark = trace(figure, name)
        assert list(mark.x) == pytest.approx([theory.arithmetic_intensity(batch, count, stored)])
        assert list(mark.y) == [theory.attainable_flops(mark.x[0], theory.H200)]


def test_cached_tokens_are_read_and_scored_too():
    width = LLAMA.num_layers * LLAMA.num_heads * LLAMA.head_dim
    weights = presets.weights_read(LLAMA)
    flops, read = presets.work(LLAMA, 2, batch=4, tokens=5, context=1000)
    assert flops == theory.pass_flops(weights, 4, 5, 1000, width)
    assert read == weights * 2 + 4 * 1000 * theory.kv_bytes_per_token(32, 8, 128)
    mark = trace(viz.roofline_figure(LLAMA, theory.H200, 2, 4, 5, 1000), "your pass")
    assert mark.x[0] == flops / read


def test_measured_passes_are_their_flops_over_their_time():
    figure = viz.roofline_figure(SMALL, HERE.hardware, 4, measured=[HERE])
    dots = trace(figure, "just now")
    for x, y, point in zip(dots.x, dots.y, HERE.curve, strict=True):
        flops, read = presets.work(SMALL, 4, 1, point.tokens, 64)
        assert (x, y) == (flops / read, flops / point.time.median)


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
    assert HERE.hardware.name in panel.picture.layout.title.text
    for value in options(panel.controls["machine"]):
        panel.controls["machine"].value = value
        for run in (HERE, there):
            dots = trace(panel.picture, run.what)
            work = [presets.work(run.config, run.bytes_per_weight, 1, p.tokens, run.context) for p in run.curve]
            assert list(dots.x) == [flops / read for flops, read in work]
            assert list(dots.y) == [f / p.time.median for (f, _), p in zip(work, run.curve, strict=True)]
        low, high = (10**edge for edge in panel.picture.layout.yaxis.range)
        assert low < HERE.hardware.flops < theory.H200.flops < high  # both fit
    assert not [t for t in viz.roofline().picture.data if "just now" in t.name]  # nothing was measured here


def test_another_machines_roof_is_theorys_too():
    figure = viz.roofline_figure(SMALL, theory.A100, 4, measured=[HERE])
    roof = trace(figure, "roof of this machine")
    assert list(roof.y) == [theory.attainable_flops(x, HERE.hardware) for x in roof.x]
    assert not [t for t in viz.roofline_figure(SMALL, HERE.hardware, 4, measured=[HERE]).data if "roof of" in t.name]


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
    """A large batch in few bits lies far to the right, a long context far to the left: the axis follows."""
    panel = viz.roofline()
    for settings in (dict(tokens=2048, batch=256, stored=0.5), dict(tokens=1, batch=1, stored=4, context=131_072)):
        for name, value in settings.items():
            panel.controls[name].value = value
        figure = panel.picture
        low, high = (10**edge for edge in figure.layout.xaxis.range)
        for mark in figure.data[-3:]:
            assert low < mark.x[0] < high
        assert figure.layout.legend.yanchor == "bottom" and figure.layout.legend.y > 1  # above the axes
