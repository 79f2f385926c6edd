"""The control room serves a real load: its counts add up, its latencies are those of the benchmark, and it invents no
recording."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("plotly")

import minispec as ms
from minispec.bench.serve import arrivals, latencies
from minispec.course import viz
from minispec.course.viz.control_room import (
    LONG,
    NO_RECORDING,
    control_room_figure,
    make_load,
    recorded_servers,
    run_shift,
)


@pytest.fixture
def drafter(tiny_draft):
    return ms.drafters.Model(tiny_draft)


@pytest.mark.parametrize("k", [0, 3])
def test_every_request_is_served_and_noted(tiny, drafter, k):
    load = make_load(tiny, 9)
    shift = run_shift(tiny, drafter, 50, k, max_num_seqs=3, max_chunk=16, count=9)
    assert [answer.tokens for answer in shift.answers] == [new for _, new in load]
    assert [answer.sent for answer in shift.answers] == arrivals(9, 50, 1.0, 0)
    assert [answer.prompt_tokens for answer in shift.answers] == [len(prompt) for prompt, _ in load]
    assert sorted({len(prompt) for prompt, _ in load})[-1] == LONG
    for answer in shift.answers:
        assert answer.sent <= answer.arrivals[0] and answer.arrivals == sorted(answer.arrivals)
        assert (len(answer.arrivals) == answer.tokens) if k == 0 else (len(answer.arrivals) <= answer.tokens)
    assert max(moment.running for moment in shift.moments) == 3 and max(moment.waiting for moment in shift.moments) > 0
    assert max(moment.blocks for moment in shift.moments) <= shift.num_blocks
    last = shift.moments[-1]
    assert (last.waiting, last.running, last.blocks) == (0, 0, 0)
    assert shift.figures()["completed"] == 9


def test_a_chunk_bounds_what_a_step_processes(tiny):
    """A long prompt takes as many steps as it has chunks, and its first token comes after the last of them."""
    steps = {chunk: len(run_shift(tiny, None, 1e-6, 0, max_chunk=chunk, count=4).moments) for chunk in (16, 256)}
    new = sum(new for _, new in make_load(tiny, 4))
    assert steps == {256: new, 16: new + -(-LONG // 16) - 1}  # one at a time: nobody shares a step


def test_the_figure_shows_the_shift(tiny):
    shift = run_shift(tiny, None, 50, 0, count=6)
    figure = control_room_figure(shift)
    traces = {trace.name: trace for trace in figure.data}
    assert list(traces["waiting"].y) == [moment.waiting for moment in shift.moments]
    assert list(traces["blocks"].y) == [moment.blocks for moment in shift.moments]
    assert list(traces["TTFT"].y) == pytest.approx([1000 * latencies(answer)["ttft"] for answer in shift.answers])
    assert any(NO_RECORDING in (note.text or "") for note in figure.layout.annotations)


def test_a_recording_is_shown_and_none_is_invented(tiny, tmp_path):
    assert recorded_servers(tmp_path) == {}
    row = {"rate": 4.0, "tpot_ms": {"p99": 9.5}}
    server = {"server": "8b:model", "results": [row, row | {"rate": None}, row | {"tpot_ms": None}]}
    result = {"benchmark": "serve", "machine": {"gpus": [{"name": "H200"}]}, "servers": [server]}
    (tmp_path / "serve.json").write_text(json.dumps(result))
    (tmp_path / "serve_cpu.json").write_text(json.dumps(result | {"machine": {"gpus": []}}))
    assert recorded_servers(tmp_path) == {"8b:model": [(4.0, 9.5)]}
    figure = control_room_figure(run_shift(tiny, None, 50, 0, count=2), recorded_servers(tmp_path))
    [curve] = [trace for trace in figure.data if trace.name == "8b:model"]
    assert (list(curve.x), list(curve.y)) == ([4.0], [9.5])
    assert not any(NO_RECORDING in (note.text or "") for note in figure.layout.annotations)


def test_the_panel_serves_anew_at_every_change(tiny, drafter):
    panel = viz.control_room(tiny, drafter, count=5)
    first = panel.words
    assert "k = 4" in first and "Before that" not in first
    panel.controls["k"].value = 0
    assert "no speculation" in panel.words and first in panel.words
    panel.controls["max_num_seqs"].value = 1
    [running] = [trace.y for trace in panel.picture.data if trace.name == "running"]
    assert max(running) == 1


def test_the_table_has_a_line_for_each_rate(tiny, drafter):
    assert len(viz.rate_table(tiny, drafter, rates=(5, 50), count=3).splitlines()) == 4
