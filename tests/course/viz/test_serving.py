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
                assert [slot // frame.block_size for slot, *_ in found if frame.block_size > 1] in (
                    [],
                    list(holding.blocks),
                )
            svg = memory_map.memory_map_svg({"map": frame})
            offered = re.findall(r"data-choose='\{\"request\": (\d+)\}'", svg)
            assert {int(one) for one in offered} == set(frame.holdings)
            assert f"{frame.stats.waste_fraction:.0%} of allocated slots" in svg
            assert len(re.findall(r">×\d+</text>", svg)) == frame.stats.shared_blocks


@pytest.mark.slow
def test_the_map_reads_out_a_table_and_says_when_gaps_are_too_narrow():
    panel = viz.memory_map()
    frame = watch(DryEngine(BlockPool(80, 4)), example_asks(longest=96))[panel.controls["step"].value]
    id, holding = max(frame.holdings.items(), key=lambda item: len(item[1].blocks))
    panel.controls["request"].value = id
    last = holding.tokens - 1
    assert f"block table [{', '.join(map(str, holding.blocks[:10]))}" in panel.words
    assert f"block {holding.blocks[last // 4]}, slot {holding.blocks[last // 4] * 4 + last % 4}." in panel.words
    panel.controls["reserve"].value = "announced"
    said = []
    for step in range(panel.controls["step"].max + 1):
        panel.controls["step"].value = step
        said.append(panel.words)
    assert any("the widest gap is" in words for words in said)
    assert len(re.findall("All 14 were served in", panel.words)) == 2
    assert max(map(len, said)) <= len(panel.view.longest)


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
    svg = gantt.gantt_svg(runs, gantt.SEATS, 3, "")
    told = re.findall(r"request (\w): (\w+), steps (\d+) to (\d+), (\d+) tokens processed", svg)
    assert {phase for _, phase, *_ in told} == {"prefill", "decode"}  # who waits has no seat


def test_little_memory_preempts_and_computes_again():
    asks = gantt.few_long_asks()
    run = gantt.record(asks, 4, "continuous", num_blocks=15)
    assert run.preemptions and run.tokens_processed > gantt.least_processed(asks)
    words = gantt.in_words({"continuous": run}, 5)
    assert f"{run.tokens_processed - gantt.least_processed(asks)} tokens computed again" in words


# ---- an engine step, and tables -------------------------------------------------------------------------------------


def test_an_engine_step_gives_back_what_was_rejected():
    words = viz.engine_step(prompt=6, k=4, accepted=1, block_size=4).words
    assert "6 tokens cached in blocks [0, 1]" in words and "4 lookahead slots, blocks [0, 1, 2]" in words
    assert "After 1 of 4 draft tokens are accepted: 8 tokens cached, blocks [0, 1]" in words


def test_block_arrows_name_the_tables():
    words = viz.block_arrows({"A": ([4, 1], 6), "B": ([3], 3)}, num_blocks=6, block_size=4).words
    assert "A has 6 tokens in blocks 4, 1" in words and "3 blocks are free" in words


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
    assert "no drafts: 3.6 ms and 8" in viz.under_load({"no drafts": {8: (3.6, 7.6)}}).words
