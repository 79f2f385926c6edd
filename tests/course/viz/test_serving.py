"""Pictures of serving say what the engine's own books say."""

import re
from importlib import import_module
from itertools import pairwise

import pytest

import minispec as ms
from minispec.serving.blocks import BlockPool
from minispec_course import viz
from minispec_course.labs.batching import Ask, Frame, endless, example_asks, snapshot, watch
from minispec_course.labs.load import DRAFT, READ, make_load, run_shift, simulated
from minispec_course.labs.memory import ContiguousPool, DryEngine

# The functions of viz have their modules' names.
gantt, memory_map = (import_module(f"minispec_course.viz.{name}") for name in ("gantt", "memory_map"))
ASKS = [Ask((1, 2, 3, 4, 5, 6, 7), 6), Ask((1, 2, 3, 4, 9), 3), Ask((8, 8), 9, 1), Ask((1, 2, 3, 4, 5, 6), 4, 3)]


def books(frame: Frame) -> tuple:
    """All that a frame says of the memory and the queues, without the times."""
    rows = [(row.id, row.phase, row.tokens) for row in frame.record.rows]
    return frame.holdings, frame.cached, frame.waiting, frame.stats, rows, frame.record.finished


def test_an_engine_without_a_model_keeps_the_same_books(tiny):
    for options in ({}, {"policy": "static"}, {"max_chunk": 3}):
        engine = ms.Engine(endless(tiny), num_blocks=6, block_size=4, max_num_seqs=3, **options)
        real, without = watch(engine, ASKS), watch(DryEngine(BlockPool(6, 4), 3, **options), ASKS)
        assert [books(frame) for frame in real] == [books(frame) for frame in without], options
        assert any(frame.stats.shared_blocks for frame in real) or options


def test_requests_come_when_they_come_and_a_frame_stays_as_it_was():
    frames = watch(DryEngine(BlockPool(64, 4)), ASKS)
    came = {id: step for step, frame in enumerate(frames) for id in frame.record.admitted}
    assert came == {id: ask.arrival for id, ask in enumerate(ASKS)}
    late = watch(DryEngine(BlockPool(64, 4)), [Ask((1,), 1), Ask((1,), 1, arrival=5)])  # nothing to do in between
    assert [len(frame.record.rows) for frame in late] == [1, 0, 0, 0, 0, 1]
    pool = BlockPool(6, 4)
    for request in range(2):  # the second finds the first one's full block
        pool.start(request, [1, 2, 3, 4, 5, 6])
        pool.commit(request, [1, 2, 3, 4, 5, 6])
    frame = snapshot(pool)
    pool.allocate(1, 9)
    assert frame.owners() == {0: [0, 1], 1: [0], 2: [1]} and frame.widest_gap == 3 * 4
    assert snapshot(pool).owners() == {0: [0, 1], 1: [0], 2: [1], 3: [1]}


# ---- the memory map --------------------------------------------------------------------------------------------------


def test_the_map_has_the_slots_that_the_pool_holds():
    contiguous = [ContiguousPool(160, 1, 20), memory_map.AnnouncedPool(160, 1, ASKS)]
    for pool in [BlockPool(40, 4), BlockPool(40, 4, False), *contiguous]:
        for frame in watch(DryEngine(pool), ASKS):
            for id, holding in frame.holdings.items():
                found = list(memory_map.pieces(frame, id))
                assert sum(count for _, count, _ in found) == len(holding.blocks) * frame.block_size
                assert sum(full for *_, full in found) == holding.tokens
                if frame.block_size > 1:
                    assert [slot // frame.block_size for slot, *_ in found] == list(holding.blocks)
            svg = memory_map.memory_map_svg({"map": frame})
            offered = re.findall(r"data-choose='\{\"request\": (\d+)\}'", svg)
            assert {int(one) for one in offered} == set(frame.holdings)
            assert f"{frame.stats.waste_fraction:.0%}" in svg
            assert len(re.findall(r">×\d+</text>", svg)) == frame.stats.shared_blocks


@pytest.mark.slow
def test_the_map_reads_out_a_table():
    panel = viz.memory_map()
    frame = watch(DryEngine(BlockPool(80, 4)), example_asks(longest=96))[panel.controls["step"].value]
    id, holding = max(frame.holdings.items(), key=lambda item: len(item[1].blocks))
    panel.controls["request"].value = id
    assert str(list(holding.blocks[:10]))[1:-1] in panel.words
    last = holding.tokens - 1
    assert re.search(rf"\b{holding.blocks[last // 4]}\b.*\b{holding.blocks[last // 4] * 4 + last % 4}\.", panel.words)


# ---- which request runs when -----------------------------------------------------------------------------------------


def test_the_bars_are_the_engines_steps():
    runs = {policy: gantt.record(ASKS, 2, policy, num_blocks=64) for policy in gantt.POLICIES}
    for policy, run in runs.items():
        bars = gantt.bars(run)
        assert sum(bar.tokens for bar in bars) == run.tokens_processed == gantt.least_processed(ASKS), policy
        for step, frame in enumerate(run.frames):
            inside = {bar.id: bar for bar in bars if bar.start <= step < bar.stop}
            running = {id for id, bar in inside.items() if bar.phase in (gantt.PREFILL, gantt.DECODE)}
            assert running == {row.id for row in frame.record.rows}
            places = [bar.place for bar in inside.values() if bar.place is not None]
            assert len(places) == len(set(places)) <= 2
        assert run.latencies == [run.ends[id] - ask.arrival for id, ask in enumerate(ASKS)]
    assert len(runs["continuous"].frames) < len(runs["static"].frames)
    told = re.findall(r"request \w: (\w+), steps", gantt.gantt_svg(runs, gantt.SEATS, 3, ""))
    assert set(told) == {"prefill", "decode"}  # a request that waits has no seat


def test_little_memory_preempts_and_computes_again():
    asks = gantt.few_long_asks()
    run = gantt.record(asks, 4, "continuous", num_blocks=15)
    again = run.tokens_processed - gantt.least_processed(asks)
    assert run.preemptions and again > 0 and re.search(rf"\b{again}\b", gantt.in_words({"continuous": run}, 5))


def test_an_engine_step_gives_back_what_was_rejected():
    words = viz.engine_step(prompt=6, k=4, accepted=1, block_size=4).words
    tables = re.findall(r"(\d+) (?:tokens cached|lookahead slots).*?blocks \[([\d, ]*)\]", words)
    assert tables == [("6", "0, 1"), ("4", "0, 1, 2"), ("8", "0, 1")]


# ---- the control room ------------------------------------------------------------------------------------------------


def test_a_shift_serves_every_request(tiny, tiny_draft):
    for k in (0, 2):
        shift = run_shift(tiny, ms.drafters.Model(tiny_draft), rate=50, k=k, count=6)
        load = make_load(tiny, 6)
        assert [answer.tokens for answer in shift.answers] == [new for _, new in load]
        assert all(answer.sent <= answer.arrivals[0] <= answer.arrivals[-1] <= shift.end for answer in shift.answers)
        times = [moment.time for moment in shift.moments]
        assert times == sorted(times) and all(0 <= moment.blocks <= shift.num_blocks for moment in shift.moments)
        assert shift.figures()["ttft_ms"]["max"] >= shift.figures()["ttft_ms"]["p50"]


def test_a_simulated_server_is_the_roofline_where_users_are_alone():
    for k in (0, 3):
        answers = simulated(0.01, lambda B, k=k: k, count=20)
        assert all(32 <= sum(tokens for _, tokens in log) <= 96 for _, log in answers)
        gaps = [after - before for _, log in answers for (before, _), (after, _) in pairwise(log)]
        assert gaps == pytest.approx([READ + k * DRAFT] * len(gaps))
