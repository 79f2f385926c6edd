"""The memory map and the batching chart show what the engine's own books say, step by step."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

pytest.importorskip("plotly")

from minispec_course.viz.recorder import Ask, DryEngine, Frame, example_asks, snapshot, watch

import minispec as ms
from minispec.serving.blocks import BlockPool
from minispec_course.labs.memory import ContiguousPool
from minispec_course.viz import recorder
from minispec_course.viz.gantt import (
    DECODE,
    LEFT,
    PREEMPTED,
    PREFILL,
    WAITING,
    Run,
    bars,
    gantt,
    gantt_svg,
    in_words,
    record,
)
from minispec_course.viz.memory_map import SLOT, AnnouncedPool, memory_map, memory_map_html

SVG = "{http://www.w3.org/2000/svg}"
TOLD = r"request (\w): (\w+), steps (\d+) to (\d+), (\d+) tokens processed"
ASKS = [
    Ask((1, 2, 3, 4, 5, 6, 7), 6),
    Ask((1, 2, 3, 4, 9), 3),
    Ask((8, 8), 9, arrival=1),
    Ask((1, 2, 3, 4, 5, 6), 4, arrival=3),
]


def books(frame: Frame) -> tuple:
    """All that a frame says of the memory and the queues, without the times."""
    rows = [(row.id, row.phase, row.tokens) for row in frame.record.rows]
    return frame.holdings, frame.cached, frame.waiting, frame.stats, rows, frame.record.finished


# ---- the recorder ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"policy": "static"}, {"max_chunk": 3}], ids=str)
def test_an_engine_without_a_model_keeps_the_same_books(tiny, options):
    engine = ms.Engine(recorder.endless(tiny), num_blocks=6, block_size=4, max_num_seqs=3, **options)
    dry = DryEngine(BlockPool(6, 4), 3, **options)
    real, without = watch(engine, ASKS), watch(dry, ASKS)
    assert [books(frame) for frame in real] == [books(frame) for frame in without]
    assert all(frame.seconds > 0 for frame in real) and without[0].seconds is None
    assert any(frame.stats.shared_blocks for frame in real) or options


def test_requests_come_when_they_come():
    frames = watch(DryEngine(BlockPool(64, 4)), ASKS)
    came = {id: step for step, frame in enumerate(frames) for id in frame.record.admitted}
    assert came == {id: ask.arrival for id, ask in enumerate(ASKS)}
    late = watch(DryEngine(BlockPool(64, 4)), [Ask((1,), 1), Ask((1,), 1, arrival=5)])  # nobody is there in between
    assert [len(frame.record.rows) for frame in late] == [1, 0, 0, 0, 0, 1]
    with pytest.raises(ValueError, match="asks"):
        watch(DryEngine(BlockPool(64, 4)), [])


def test_a_snapshot_knows_owners_and_gaps():
    pool = BlockPool(6, 4)
    pool.start(0, [1, 2, 3, 4, 5, 6])
    pool.commit(0, [1, 2, 3, 4, 5, 6])
    pool.fork(0, 1)
    frame = snapshot(pool)
    assert frame.owners() == {0: [0, 1], 1: [0, 1]} and frame.widest_gap == 4 * 4
    pool.allocate(1, 7)
    assert snapshot(pool).owners() == {0: [0, 1], 1: [0], 2: [1]} and frame.owners()[1] == [0, 1]  # a frame stays


# ---- the memory map --------------------------------------------------------------------------------------------------


def solid_slots(html: str) -> float:
    """The area of what is drawn as holding a token, in slots."""
    rects = re.findall(r'width="([\d.]+)" height="([\d.]+)" fill="[^"]*"/>', html)  # the pale ones have an opacity
    return sum(float(width) * float(height) for width, height in rects) / SLOT / 18


@pytest.mark.parametrize(
    "pool",
    [BlockPool(40, 4), BlockPool(40, 4, False), ContiguousPool(160, 1, 20), AnnouncedPool(160, 1, ASKS)],
    ids=["sharing", "paged", "contiguous", "announced"],
)
def test_the_map_fills_as_many_slots_as_hold_tokens(pool):
    for frame in watch(DryEngine(pool), ASKS):
        html = memory_map_html({"map": frame})
        assert solid_slots(html) == pytest.approx(frame.stats.tokens_stored, abs=0.01)
        assert f">{frame.stats.waste_fraction:.0%}</b>" in html
        assert len(re.findall(r">×\d+</text>", html)) == frame.stats.shared_blocks
        assert len(re.findall("free, but cached", html)) == frame.stats.cached_blocks


def test_announced_runs_are_as_long_as_announced():
    asks = [Ask((1,) * 5, 3, limit=9), Ask((1,) * 4, 6)]
    frame = watch(DryEngine(AnnouncedPool(32, 1, asks)), asks)[0]
    assert [len(holding.blocks) for holding in frame.holdings.values()] == [13, 9]


def test_titles_are_escaped_and_no_map_is_refused():
    frame = snapshot(BlockPool(4, 4))
    assert "<script>" not in memory_map_html({"<script>": frame})
    with pytest.raises(ValueError, match="frames"):
        memory_map_html({})


def test_the_map_follows_its_controls():
    panel = memory_map()
    step = panel.controls["step"]
    seen = {panel.picture}
    for name, value in (("step", step.value + 1), ("reserve", "announced"), ("block", 16), ("share", False)):
        panel.controls[name].value = value
        seen.add(panel.picture)
    assert len(seen) == 5
    step.value = step.max
    assert len(re.findall("All 14 were served in", panel.words)) == 2


def test_a_request_can_be_chosen_and_its_table_is_read_out():
    """The table in words is the pool's; every block in use offers its request to a click."""
    panel = memory_map(block_sizes=(4,))
    frames = watch(DryEngine(BlockPool(80, 4)), example_asks(longest=96))
    frame = frames[panel.controls["step"].value]
    id, holding = max(frame.holdings.items(), key=lambda item: len(item[1].blocks))
    panel.controls["request"].value = id
    last = holding.tokens - 1
    assert f"block table [{', '.join(map(str, holding.blocks[:10]))}" in panel.words
    assert f"block {holding.blocks[last // 4]}, slot {holding.blocks[last // 4] * 4 + last % 4}." in panel.words
    offered = re.findall(r"data-choose='\{\"request\": (\d+)\}'", memory_map_html({"paged": frame}))
    assert {int(one) for one in offered} == set(frame.holdings)
    assert len(offered) == sum(len(one.blocks) for one in frame.holdings.values())


def test_the_map_says_when_gaps_are_too_narrow():
    panel = memory_map()
    said = {"longest": 0, "announced": 0}
    for reserve in said:
        panel.controls["reserve"].value = reserve
        for step in range(30, 60):
            panel.controls["step"].value = step
            found = re.search(r"needs (\d+) slots in a row; (\d+) are free, but the widest gap is (\d+)", panel.words)
            if found:
                need, free, gap = map(int, found.groups())
                assert gap < need <= free
                said[reserve] += 1
    assert said["longest"] == 0 < said["announced"]  # equal runs leave no odd gaps


def test_block_sizes_must_fill_a_line():
    with pytest.raises(ValueError, match="block_sizes"):
        memory_map(block_sizes=(5,))


# ---- the batching chart ----------------------------------------------------------------------------------------------


def dry_run(asks, batch: int, policy: str, num_blocks: int = 99, **options) -> Run:
    pool = BlockPool(num_blocks, 4, enable_prefix_caching=False)
    return Run(asks, watch(DryEngine(pool, batch, policy=policy, **options), asks), batch)


def test_steps_and_latencies_of_an_example_by_hand():
    asks = [Ask((1,), new) for new in (3, 1, 2)]  # two places: aaa / bcc, or, without joining, aaa / b and then cc
    continuous, static = dry_run(asks, 2, "continuous"), dry_run(asks, 2, "static")
    assert (len(continuous.frames), continuous.latencies) == (3, [3, 1, 3])
    assert (len(static.frames), static.latencies) == (5, [3, 1, 5])
    phases = [(bar.id, bar.phase, bar.start, bar.stop, bar.place) for bar in bars(static)]
    assert phases == [
        (0, PREFILL, 0, 1, 0),
        (0, DECODE, 1, 3, 0),
        (1, PREFILL, 0, 1, 1),
        (2, WAITING, 0, 3, None),
        (2, PREFILL, 3, 4, 0),
        (2, DECODE, 4, 5, 0),
    ]


@pytest.mark.parametrize("policy", ["static", "continuous"])
@pytest.mark.parametrize("num_blocks, preempts", [(99, False), (4, True)], ids=["roomy", "tight"])
def test_bars_are_the_engines_steps(policy, num_blocks, preempts):
    run = dry_run(ASKS, 3, policy, num_blocks)
    found = bars(run)
    assert bool(run.preemptions) == preempts == any(bar.phase == PREEMPTED for bar in found)
    assert sum(bar.tokens for bar in found) == run.tokens_read
    worked = {(row.id, step) for step, frame in enumerate(run.frames) for row in frame.record.rows}
    drawn = {(bar.id, step) for bar in found if bar.phase in (PREFILL, DECODE) for step in range(bar.start, bar.stop)}
    assert drawn == worked
    for id, ask in enumerate(ASKS):  # without a hole from arrival to end
        own = [bar for bar in found if bar.id == id]
        assert own[0].start == ask.arrival and own[-1].stop == run.ends[id]
        assert sum(bar.stop - bar.start for bar in own) == run.latencies[id]
        assert all(one.stop == two.start for one, two in pairwise(own))
    taken = [(bar.place, step) for bar in found if bar.place is not None for step in range(bar.start, bar.stop)]
    assert len(set(taken)) == len(taken) and {place for place, _ in taken} <= set(range(3))


def test_the_chart_draws_every_step_on_either_axis(tiny):
    """A bar lies where its steps are, says what it is, and is pale exactly if it comes after the step shown."""
    runs = {policy: record(tiny, ASKS, 2, policy, num_blocks=32, block_size=4) for policy in ("static", "continuous")}
    for rows, axis, now in (("requests", "steps", None), ("places", "seconds", 4), ("places", "steps", 0)):
        charts = [g for g in ElementTree.fromstring(gantt_svg(runs, rows, axis, now)).iter(f"{SVG}g")]
        scales = set()
        for chart, run in zip(charts, runs.values(), strict=True):
            time = run.clock if axis == "seconds" else range(len(run.frames) + 1)
            drawn, seen = set(), []
            for rect in chart.iter(f"{SVG}rect"):
                id, phase, first, last, _ = re.fullmatch(TOLD, rect.find(f"{SVG}title").text).groups()
                first, stop = int(first), int(last) + 1
                left, width = float(rect.get("x")) - LEFT, float(rect.get("width"))
                scales.add(round(width / (time[stop] - time[first]), 0))
                assert left == pytest.approx(time[first] * width / (time[stop] - time[first]), abs=0.5, rel=0.02)
                pale = "fill-opacity" in rect.attrib
                assert pale == (now is not None and first >= now) and (pale or now is None or stop <= now)
                drawn |= {(ord(id) - ord("A"), phase, step) for step in range(first, stop)}
                seen.append(pale)
            assert any(seen) == (now is not None) and all(seen) == (now == 0)
            known = [bar for bar in bars(run) if rows == "requests" or bar.place is not None]
            assert drawn == {(bar.id, bar.phase, step) for bar in known for step in range(bar.start, bar.stop)}
        assert axis == "seconds" or len(scales) == 1  # both charts over one axis


def test_the_charts_words_are_the_runs():
    runs = {policy: dry_run(ASKS, 3, policy, num_blocks=4) for policy in ("static", "continuous")}
    for name, said in zip(runs, re.findall(r"\w+: .*?computed again", in_words(runs, "steps", 6)), strict=True):
        run, numbers = runs[name], [float(number) for number in re.findall(r"[\d.]+", said)]
        done = sum(end <= 6 for end in run.ends.values())
        least = sum(len(ask.prompt) + ask.new - 1 for ask in ASKS)
        mean = round(sum(run.latencies) / 4, 1)
        assert numbers == [done, 4, 6, len(run.frames), mean, run.preemptions, run.tokens_read - least]


def test_charts_of_nothing_are_refused():
    run = dry_run(ASKS, 2, "static")
    for bad in ({"rows": "letters"}, {"axis": "minutes"}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            gantt_svg({"static": run}, **bad)
    with pytest.raises(ValueError, match="runs"):
        gantt_svg({})


@pytest.mark.slow
def test_the_chart_follows_its_controls(tiny):
    panel = gantt(tiny, ASKS, batches=(3, 2))
    seen = {panel.picture + panel.words}
    changes = [
        ("step", 2),
        ("engine", "little memory"),
        ("engine", "prompts in chunks of 4"),
        ("batch", 2),
        ("rows", "places"),
        ("axis", "seconds"),
    ]
    for name, value in changes:
        panel.controls[name].value = value
        seen.add(panel.picture + panel.words)
    assert len(seen) == 1 + len(changes)
    longest = max(len(dry_run(ASKS, 2, "static", max_chunk=4).frames), len(dry_run(ASKS, 2, "static", 5).frames))
    assert panel.controls["step"].max == longest
