"""The timelines are those that were recorded, and add up; the calculator's star is theory.compute_optimal's."""

from __future__ import annotations

import math
from itertools import groupby, pairwise

import pytest

pytest.importorskip("plotly")

import torch

from minispec import theory
from minispec.load.folder import load
from minispec.parallel.experts import Mixture
from minispec_course import viz
from minispec_course.viz.compute_optimal import (
    BUDGETS,
    KNOWN,
    Trained,
    compute_optimal,
    compute_optimal_figure,
    excess,
    lowest,
    short,
)
from minispec_course.viz.parallel_timelines import (
    COMPUTE,
    TALK,
    WAIT,
    Recording,
    kind_of,
    parallel_timelines,
    parallel_timelines_figure,
    record_timelines,
    stored_timelines,
    with_favourite,
)

RUNS = {run.name: run for run in stored_timelines()}


def entry(rank: int, what: str, start: float, end: float) -> dict:
    return {"rank": rank, "what": what, "start": start, "end": end}


# ---------------------------------------------------------------- timelines


def test_a_recording_adds_up():
    entries = [
        entry(0, "compute 0", 0, 2),
        entry(1, "wait 0", 0, 2),
        entry(0, "compute 1", 2, 4),
        entry(1, "compute 0", 2, 4),
        entry(1, "wait 1", 4, 4.5),
        entry(1, "compute 1", 4.5, 8),
    ]
    run = Recording("pipeline", "pipeline", 2, "made up", entries, 2)
    assert run.seconds == 8
    assert (run.share(COMPUTE, 0), run.share(COMPUTE, 1), run.share(WAIT, 1)) == (4 / 8, 5.5 / 8, 2.5 / 8)
    assert run.idle == pytest.approx(1 - 9.5 / 16)
    assert run.at(1) == {0: "compute 0", 1: "wait 0"} and run.at(5) == {0: "nothing", 1: "compute 1"}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_what_is_stored_could_have_happened(run):
    for rank in range(run.ranks):
        own = [e for e in run.entries if e["rank"] == rank]
        assert all(e["start"] <= e["end"] for e in own)
        assert all(a["end"] <= b["start"] + 1e-6 for a, b in pairwise(own))  # one thing at a time
    assert 0 < run.idle < 1 and {kind_of(e) for e in run.entries} <= {COMPUTE, TALK, WAIT}


def test_the_stored_runs_have_the_shape_of_their_cut():
    layers = load("micro", device="cpu").config.num_layers
    tensor = RUNS["tensor parallel"]
    for rank in range(2):
        talks = [e["what"] for e in tensor.entries if e["rank"] == rank and kind_of(e) == TALK]
        assert talks == ["all-reduce"] * 2 * layers + ["gather"]
    for m in (1, 2, 4, 8):
        [run] = [run for run in RUNS.values() if run.cut == "pipeline" and run.microbatches == m]
        done = {(e["rank"], e["what"]): e for e in run.entries}
        assert len(done) == 3 * m  # one wait each on the second rank
        for i in range(m):  # nobody works on what is not there yet
            assert done[1, f"compute {i}"]["start"] >= done[0, f"compute {i}"]["end"] - 1e-6
    even, popular = RUNS["experts, even load"], RUNS["experts, one popular"]
    tokens = [[int(e["what"].split()[1]) for e in run.entries if "expert" in e["what"]] for run in (even, popular)]
    assert sum(tokens[0]) == sum(tokens[1]) and max(tokens[0]) < max(tokens[1])


def test_the_picture_draws_every_entry():
    run = RUNS["pipeline, 4 micro-batches"]
    bars = {trace.name: trace for trace in parallel_timelines_figure(run, run.seconds / 2).data}
    for kind in (COMPUTE, WAIT):
        some = [e for e in run.entries if kind_of(e) == kind]
        assert list(bars[kind].base) == [1e3 * e["start"] for e in some]
        assert list(bars[kind].x) == pytest.approx([1e3 * (e["end"] - e["start"]) for e in some])


def test_every_cut_can_be_chosen_and_walked_through():
    panel = parallel_timelines()
    for name in panel.controls["cut"].options:
        panel.controls["cut"].value = name
        before = panel.picture.to_json()
        panel.controls["moment"].value = 10 if panel.controls["moment"].value != 10 else 60
        assert panel.picture.to_json() != before and f"{1e3 * RUNS[name].seconds:.2f} ms" in panel.words
        if RUNS[name].cut == "pipeline":
            assert f"{theory.pipeline_bubble(2, RUNS[name].microbatches):.0%}" in panel.words


def test_a_favourite_gets_its_share():
    x = torch.randn(400, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x[:, 0] = 1
    for share in (0.5, 0.8):
        expert, _ = with_favourite(Mixture.random(2, 8, 16), x, share).route(x)
        assert (expert == 0).double().mean() == pytest.approx(share, abs=0.01)


@pytest.mark.slow
def test_they_can_be_recorded_anew():
    runs = record_timelines(rows=8, length=4, repeat=1)
    assert [run.name for run in runs] == list(RUNS)
    assert [len(run.entries) for run in runs] == [len(run.entries) for run in RUNS.values()]


# ---------------------------------------------------------------- the calculator


@pytest.mark.parametrize("ratio", [5, 20, 100])
@pytest.mark.parametrize("flops", [1e20, 3.15e23])
def test_the_star_lies_on_its_bowl_and_keeps_the_ratio(flops, ratio):
    figure = compute_optimal_figure(flops, ratio)
    same_compute, _, star, known, minimum = figure.data[:5]
    n, d = theory.compute_optimal(flops, ratio)
    assert star.x[0] == n and star.y[0] == excess(n, d)
    assert theory.training_flops(n, d) == pytest.approx(flops) and d == pytest.approx(ratio * n)
    for x, y in zip(same_compute.x, same_compute.y, strict=True):
        assert y == excess(x, flops / 6 / x) >= minimum.y[0]
    assert list(known.x) == [model.parameters for model in KNOWN]
    assert list(known.y) == [excess(model.parameters, model.tokens) for model in KNOWN]


def test_the_faint_bowls_are_one_trace_and_named_below_their_minima():
    """Eight traces and eight annotations made every step of the slider slower."""
    figure = compute_optimal_figure(1e22)
    faint, names = figure.data[5:]
    points = zip(faint.x, faint.y, strict=True)
    bowls = [list(some) for gap, some in groupby(points, lambda point: point[0] is None) if not gap]
    assert len(bowls) == len(BUDGETS) == len(names.text) and not figure.layout.annotations
    for budget, some, x, y, name in zip(BUDGETS, bowls, names.x, names.y, names.text, strict=True):
        n, loss = lowest(budget)[0], excess(*lowest(budget))
        assert all(height == excess(size, budget / 6 / size) >= loss for size, height in some)
        assert x == n and 0.9 * loss < y < loss and name == f"10<sup>{round(math.log10(budget))}</sup>"


@pytest.mark.parametrize("power", [19, 21, 23, 25])
def test_the_bowls_minimum_is_one_and_slides_to_larger_models(power):
    n, d = lowest(10.0**power)
    assert theory.training_flops(n, d) == pytest.approx(10.0**power)
    assert excess(n, d) < min(excess(n * 1.05, d / 1.05), excess(n / 1.05, d * 1.05))
    assert lowest(10.0 ** (power + 1))[0] > 3 * n
    assert 12 < lowest(5.76e23)[1] / lowest(5.76e23)[0] < 25  # near the rule of 20 at Gopher's budget


def test_choosing_a_model_takes_exactly_its_compute():
    panel = compute_optimal()
    assert isinstance(panel, viz.Panel)
    for model in KNOWN:
        panel.controls["model"].value = model
        n, d = theory.compute_optimal(model.flops)
        assert (panel.picture.data[2].x[0], panel.picture.data[2].y[0]) == pytest.approx((n, excess(n, d)))
        assert model.name in panel.words and short(n) in panel.words
    before = panel.words
    panel.controls["power"].value += 0.5  # by hand again: the model no longer fits
    assert panel.words != before and model.name not in panel.words
    assert panel.picture.data[2].x[0] == pytest.approx(theory.compute_optimal(10 ** panel.controls["power"].value)[0])


def test_gpt3s_compute_is_not_chinchillas():
    gpt3, gopher, chinchilla = KNOWN[:3]
    sizes = [theory.compute_optimal(model.flops)[0] / 1e9 for model in (gpt3, gopher, chinchilla)]
    assert [round(size) for size in sizes] == [51, 65, 70]


@pytest.mark.parametrize(("x", "text"), [(51.23e9, "51.2 B"), (1.02e12, "1.02 T"), (3e6, "3 M"), (999.9e9, "1 T")])
def test_numbers_are_quoted_as_people_do(x, text):
    assert short(x) == text


def test_every_known_model_is_inside_the_picture():
    figure = compute_optimal_figure(1e22, models=[Trained("one", 1e9, 2e10)])
    assert list(figure.data[3].text) == ["one"]
    (low, high), (least, most) = figure.layout.xaxis.range, figure.layout.yaxis.range
    for model in KNOWN:
        assert (
            low < math.log10(model.parameters) < high
            and least < math.log10(excess(model.parameters, model.tokens)) < most
        )
