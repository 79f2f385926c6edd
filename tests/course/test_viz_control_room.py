"""The control room serves a real load: its counts add up, its latencies are those of the benchmark, and it invents no
recording."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("plotly")

import minispec as ms
from minispec_course import viz
from minispec_course.labs.load import Answer, arrivals, latencies
from minispec_course.viz.control_room import (
    LONG,
    NO_RECORDING,
    Moment,
    Shift,
    control_room_figure,
    in_words,
    make_load,
    recorded_servers,
    run_shift,
)


@pytest.fixture
def drafter(tiny_draft):
    return ms.drafters.Model(tiny_draft)


@pytest.mark.slow
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


def by_hand(moments, answers) -> Shift:
    return Shift(
        [Moment(0.0, 0, 0, 0, batch, seconds) for batch, seconds in moments],
        [Answer(sent, arrivals=arrivals, tokens=5) for sent, arrivals in answers],
        64,
    )


def test_the_batch_is_averaged_over_time_as_littles_law_wants():
    """Two requests, 0 to 4 s and 3 to 7 s, nothing to do until 10 s, one more to 12 s: 4 + 4 + 2 request-seconds in
    12 s. The mean over the four steps, 5/4, knows neither how long they took nor of the pause."""
    shift = by_hand([(1, 3.0), (2, 1.0), (1, 3.0), (1, 2.0)], [(0.0, [1, 4.0]), (3.0, [4, 7.0]), (10.0, [11, 12.0])])
    spent = sum(answer.arrivals[-1] - answer.sent for answer in shift.answers)
    assert shift.mean_batch == pytest.approx(spent / 12.0) == pytest.approx(10 / 12)  # rate · time in the server


def test_little_holds_for_a_real_load(tiny, drafter):
    """There is a place for each request, so it waits only for the step under way when it arrives."""
    shift = run_shift(tiny, drafter, 200, 3, max_num_seqs=12, count=12)
    spent = sum(answer.arrivals[-1] - answer.sent for answer in shift.answers)
    held = shift.mean_batch * shift.end
    longest = max(moment.seconds for moment in shift.moments)
    assert held <= spent + 1e-9 and spent - held <= 12 * longest
    assert all(moment.batch >= moment.running for moment in shift.moments)  # some end with the step


def test_the_words_say_max_of_few_requests_and_how_many_still_waited():
    few = by_hand([(1, 1.0)], [(0.0, [0.5, 1.0]), (0.2, [0.9, 1.3]), (0.8, [1.0, 2.2])])
    assert few.tail == "max" and few.left_waiting == 1  # the second has its first token only after the third came
    assert few.figures()["ttft_ms"]["max"] == pytest.approx(700) and few.figures()["tpot_ms"]["max"] == pytest.approx(
        300
    )
    assert "max 700 ms" in in_words(few) and "TTFT p99" not in in_words(few) and "1 others still" in in_words(few)
    many = by_hand([(1, 1.0)], [(0.0, [0.5, 1.0])] * 100)
    assert many.tail == "p99" and "p99 500 ms" in in_words(many) and "max" not in in_words(many)


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_panel_serves_anew_at_every_change(tiny, drafter):
    panel = viz.control_room(tiny, drafter, count=5)
    first = panel.words
    assert "k = 4" in first and "Before that" not in first
    panel.controls["k"].value = 0
    assert "no speculation" in panel.words and first in panel.words
    panel.controls["max_num_seqs"].value = 1
    [running] = [trace.y for trace in panel.picture.data if trace.name == "running"]
    assert max(running) == 1


@pytest.mark.slow
def test_the_table_has_a_line_for_each_rate(tiny, drafter):
    assert len(viz.rate_table(tiny, drafter, rates=(5, 50), count=3).splitlines()) == 4
