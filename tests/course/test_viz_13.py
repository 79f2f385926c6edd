"""The timeline draws what was recorded, the sweeps their own rates, and the steps their shares."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest

pytest.importorskip("plotly")

from minispec_course.viz.kernel_timeline import DEVICE, HOST, LANES, REST, Recording, in_words, kind_of
from minispec_course.viz.tile_sizes import ATTENTION, PRODUCT

from minispec_course import viz
from minispec_course.build.pictures import figure_words
from minispec_course.labs import ladder, pairs
from minispec_course.labs.timeline import Event, Timeline

RESULT = viz.stored_limit()
LAUNCHES = [Event("cudaLaunchKernel", 0.0, 1.0), Event("cudaLaunchKernel", 5.0, 1.0)]
KERNELS = [Event("gemvx", 2.0, 4.0), Event("add", 8.0, 2.0)]
MADE_UP = Recording("m", "a machine", True, {ladder.EAGER: Timeline(KERNELS, LAUNCHES)})


# ---------------------------------------------------------------- timelines


@pytest.mark.parametrize("recording", viz.recorded_timelines(), ids=str)
def test_what_is_recorded_could_have_happened(recording):
    assert set(recording.timelines) == set(ladder.DRAWN)
    for step, timeline in recording.timelines.items():
        counted = RESULT["models"][recording.model]["steps"][step]
        assert len(timeline.kernels) == counted["kernels_per_token"]
        assert len(timeline.launches) == counted["launches_per_token"]
        assert timeline.busy > 0 and min(e.start for lane in timeline for e in lane) == 0
        assert [e.start for e in timeline.kernels] == sorted(e.start for e in timeline.kernels)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gemvx", "product"),
        ("nvjet_tst_64x8", "product"),
        ("_product", "product"),
        ("bmm", "product"),
        ("_attend_split", "attention"),
        ("_merge_splits", "attention"),
        ("_softmax", "attention"),
        ("Memcpy DtoD (Device -> Device)", "copy"),
        ("index_copy_", "copy"),
        ("add", REST),
        ("_add_norm", REST),
    ],
)
def test_kernels_have_the_colour_of_what_they_are_for(name, kind):
    assert kind_of(name) == kind


def events_drawn(figure) -> list[tuple[str, float, float]]:
    """(lane, start, duration) of every rectangle."""
    found = []
    for trace in figure.data:
        if trace.fill == "toself":
            for x, y in zip(np.reshape(trace.x, (-1, 4)), np.reshape(trace.y, (-1, 4)), strict=True):
                assert list(x) == [x[0], x[0], x[2], x[2]] and list(y) == [y[0], y[1], y[1], y[0]]
                found.append((LANES[round((y[0] + y[1]) / 2)], x[0], x[2] - x[0]))
    return sorted(found)


def test_the_picture_draws_every_event_once():
    figure = viz.kernel_timeline_figure(MADE_UP.timelines[ladder.EAGER])
    assert events_drawn(figure) == sorted(
        [(HOST, e.start, e.duration) for e in LAUNCHES] + [(DEVICE, e.start, e.duration) for e in KERNELS]
    )


def test_the_pointer_finds_every_event():
    """In its lane, between its start and its end; a long one at more than one point."""
    found = []
    for trace in viz.kernel_timeline_figure(MADE_UP.timelines[ladder.EAGER]).data:
        if trace.customdata:
            found += zip(trace.x, (LANES[int(y)] for y in trace.y), trace.customdata, strict=True)
    for lane, events in ((HOST, LAUNCHES), (DEVICE, KERNELS)):
        assert {tuple(about) for _, at, about in found if at == lane} == {tuple(e) for e in events}
    assert all(start < x < start + duration for x, _, (_, start, duration) in found) and len(found) > 4


def test_a_token_of_a_thousand_kernels_is_a_handful_of_elements():
    """One for each bar took plotly half a second."""
    timeline = max(
        (t for one in viz.recorded_timelines() for t in one.timelines.values()), key=lambda t: len(t.kernels)
    )
    figure = viz.kernel_timeline_figure(timeline)
    assert len(timeline.kernels) > 300 and len(events_drawn(figure)) == len(timeline.kernels) + len(timeline.launches)
    assert {(trace.type, trace.mode) for trace in figure.data} == {("scatter", "none")} and len(figure.data) < 10


def test_a_window_shows_what_lies_in_it():
    figure = viz.kernel_timeline_figure(MADE_UP.timelines[ladder.EAGER], 0.0, 3.0)
    assert tuple(figure.layout.xaxis.range) == (0, 3)
    assert len(events_drawn(figure)) == 2  # a launch and a kernel


def test_the_words_count():
    words = in_words(MADE_UP.timelines[ladder.EAGER])
    assert "2 kernels by 2 launches in 8 µs" in words and "idle for 25%" in words and "2.0 µs" in words
    assert "run for 6 µs of it (67% of that for products)" in words  # 4 of 6
    assert "0 kernels" in in_words(Timeline([], []))


@pytest.mark.slow
def test_the_widget_goes_through_steps_and_machines():
    panel = viz.kernel_timeline(MADE_UP)
    seen = set()
    for recording in (value for _, value in panel.controls["recording"].options):
        for step in panel.controls["step"].options:
            panel.controls["recording"].value, panel.controls["step"].value = recording, step
            seen.add(panel.words)
            if recording == len(viz.recorded_timelines()) and step != ladder.EAGER:
                assert "no timeline" in panel.words
    assert len(seen) == len(panel.controls["recording"].options) * len(panel.controls["step"].options)
    panel.controls["recording"].value, panel.controls["step"].value = 0, ladder.EAGER
    panel.controls["window"].value, panel.controls["position"].value = 100, 100
    left, right = panel.picture.layout.xaxis.range
    assert right - left == pytest.approx(100) and left > 0


@pytest.mark.slow
def test_live_timelines_are_of_the_model_given():
    target, _ = pairs.random_pair(pairs.SHAPES["toy"], "cpu")
    live = viz.live_timelines(target, [1, 2, 3])
    assert set(live.timelines) == set(ladder.DRAWN) and not live.on_gpu
    assert all(timeline.kernels for timeline in live.timelines.values())


# ---------------------------------------------------------------- sweeps


def swept() -> dict:
    result = copy.deepcopy(RESULT)
    row = {"warps": 2, "stages": 4, "shared_bytes": 1, "seconds": {}}
    result["tiles"] |= {
        "interpreted": False,
        "multiprocessors": 132,
        "results": [
            row | {"rows": 16, "wide": 64, "programs": 256, "bytes_per_second": 3e12},
            row | {"rows": 128, "wide": 64, "programs": 32, "bytes_per_second": 1e12},
        ],
    }
    result["bandwidth"] = {"median": 4e12}
    return result


def test_tiles_are_drawn_at_their_rates():
    result = swept()
    curve, own, roof = viz.tile_sizes_figure(result["tiles"], 4e12).data
    assert (list(curve.x), list(curve.y)) == ([16, 128], [3000, 1000])
    assert set(roof.y) == {4000} and set(own.y) == {result["tiles"]["torch"]["bytes_per_second"] / 1e9}


def test_the_tile_widget_says_programs_and_share():
    panel = viz.tile_sizes(recorded=swept())
    assert panel.controls["kernel"].value == PRODUCT
    assert "256 programs for 132 multiprocessors" in panel.words and "75%" in panel.words
    panel.controls["rows"].value = 128
    assert "32 programs" in panel.words and "25%" in panel.words and "16 × 64" in panel.words
    panel.controls["kernel"].value = ATTENTION
    assert f"{RESULT['splits']['context']:,}" in panel.words


def test_the_tile_widget_shows_a_live_result_too_and_survives_a_machine_without_kernels():
    live = swept()
    live["tiles"] |= {"results": [], "unavailable": "no GPU"}
    panel = viz.tile_sizes(live, recorded=swept())
    panel.controls["machine"].value = "this machine, measured now"
    assert "no GPU" in panel.words


# ---------------------------------------------------------------- steps


def test_the_shipped_result_says_its_machine():
    assert RESULT["date"] in viz.machine_of(RESULT)
    gpus = RESULT["machine"]["gpus"]
    assert bool(gpus) == RESULT["recorded"]
    assert (gpus[0]["name"].removeprefix("NVIDIA ") if gpus else RESULT["machine"]["cpu"]) in viz.machine_of(RESULT)


def test_steps_are_shown_with_their_shares():
    [climbed, *_] = RESULT["models"].values()
    table = viz.steps_table(climbed)
    assert all(step in table for step in climbed["steps"])
    assert f"{climbed['steps'][ladder.EAGER]['fraction_of_bandwidth']:.1%}" in table
    uncounted = {
        "steps": {
            ladder.EAGER: {
                key: value
                for key, value in climbed["steps"][ladder.EAGER].items()
                if "per_token" not in key or "seconds" in key
            }
        }
    }
    assert "–" in viz.steps_table(uncounted)
    [bars] = viz.limit_steps_figure({"a": climbed}).data
    assert list(bars.x) == list(ladder.STEPS)
    assert bars.y[0] == pytest.approx(100 * climbed["steps"][ladder.EAGER]["fraction_of_bandwidth"])


def timed(**milliseconds: float) -> dict:
    """A result in which a token reads for 1 ms."""
    steps = {
        name: {"seconds_per_token": {"median": ms / 1e3}, "fraction_of_bandwidth": 1 / ms}
        for name, ms in milliseconds.items()
    }
    return {"steps": {name.replace("_", "-"): row for name, row in steps.items()}}


def test_a_step_is_compared_with_the_one_before_it_and_the_eager_cycle_with_none():
    climbed = timed(eager=10, graph=4, cycle=3)
    climbed["steps"][ladder.EAGER_CYCLE] = climbed["steps"][ladder.GRAPH]
    _, *lines = viz.steps_table(climbed).splitlines()
    assert [line[14:].split()[1] for line in lines] == ["–", "60%", "25%", "–"]


def test_the_figure_says_its_numbers_to_those_who_cannot_see_it():
    runs = {"a, there": timed(eager=200, split_K=2, cycle=0.5), "b, here": timed(eager=5)}
    words = figure_words(viz.limit_steps_figure(runs).plotly().to_plotly_json())
    assert words == "eager, split-K, cycle: a 0.5, 50, 200 %; b 20 %: share of the read bandwidth, %."


def test_other_files_are_refused(tmp_path):
    file = tmp_path / "other.json"
    file.write_text(json.dumps({"benchmark": "decode"}), encoding="utf-8")
    for path in (file, tmp_path / "nowhere.json"):
        with pytest.raises(ValueError, match="bench limit"):
            viz.stored_limit(path)
