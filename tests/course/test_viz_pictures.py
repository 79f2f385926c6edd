"""Each diagram of the lessons tells a fact that is computed again here, stays on its card, and is the same twice."""

from __future__ import annotations

import re

import pytest
import torch

pytest.importorskip("ipywidgets")

from minispec_course.viz.cycle_parts import CycleParts
from minispec_course.viz.pictures_system import cut_matrices
from test_viz_drawing import inside, texts

import minispec as ms
from minispec import theory, tree, verify
from minispec.cache import KVCache
from minispec.serving.blocks import BlockPool
from minispec_course import viz
from minispec_course.viz import cycles
from minispec_course.viz.drafting_steps import first_draft

LENGTHS = [6, 48, 5, 10, 22, 4, 8, 30, 5, 12, 7, 3]


@pytest.fixture(scope="module")
def pool() -> BlockPool:
    pool = BlockPool(num_blocks=6, block_size=4)
    pool.start("A", list(range(6)))
    pool.start("B", [100, 101, 102])
    pool.commit("A", list(range(6)))
    pool.commit("B", [100, 101, 102])
    pool.allocate("A", total=9)
    pool.commit("A", list(range(9)))
    return pool


@pytest.fixture(scope="module")
def run(tiny, tiny_draft):
    return ms.speculate(tiny, [5, 9, 33, 17], ms.drafters.Model(tiny_draft), 3, 24, temperature=0.7, seed=2)


@pytest.mark.slow
def test_all_of_them_stay_on_their_card_and_are_the_same_twice(pool, run):
    show = lambda ids: f"w{ids[0]}"  # noqa: E731
    for make in (
        viz.cache_grid,
        lambda: viz.block_arrows(pool),
        lambda: viz.static_holes(LENGTHS),
        viz.memory_snapshot,
        lambda: viz.two_lanes(run, show),
        lambda: viz.judge_arrows(" Lily", [" was", " a", " girl"], [" was", " a", " kind", " who"]),
        lambda: viz.overlap([0.6, 0.3, 0.1], [0.3, 0.2, 0.5]),
        viz.cycle_over_steps,
        lambda: viz.tree_and_mask([11, 12, 13, 14, 15, 16], [-1, -1, 0, 0, 1, 2]),
        viz.four_drafters,
        viz.engine_step,
        *(lambda ranks=ranks: viz.parallel_products(ranks) for ranks in (1, 2, 8)),
    ):
        first = make()
        inside(first.svg)
        assert first.svg == make().svg and len(first.svg) < 60_000


def test_the_cache_moves_one_number(tiny):
    """What the diagram says of 7 + 4 tokens is what the real cache does."""
    said = viz.cache_grid(kept=7, rejected=4, new=2, slots=14).words
    cache: KVCache = tiny.transformer.new_cache(capacity=14)
    tiny.transformer(torch.arange(11)[None], cache)
    before = cache.keys.clone()
    cache.rewind(7)
    assert torch.equal(before, cache.keys) and int(cache.lengths[0]) == 7
    assert "holds 11 tokens" in said and "the length, to 7; no cell changes" in said
    with pytest.raises(ValueError, match="slots"):
        viz.cache_grid(kept=12, rejected=4)


def test_arrows_go_where_the_tables_point(pool):
    drawn = viz.block_arrows(pool)
    assert f"A: table {list(pool.table('A'))}" in texts(drawn.svg)
    assert f"A has 9 tokens in blocks {', '.join(map(str, pool.table('A')))}" in drawn.words
    assert drawn.svg.count("<polygon") == len(pool.table("A")) + len(pool.table("B"))


def test_the_holes_are_the_formulas():
    drawn = viz.static_holes(LENGTHS, 4)
    for first in (0, 4, 8):
        assert f"{theory.static_batch_idle(LENGTHS[first : first + 4]):.0%} empty" in drawn.words
    assert drawn.svg.count('stroke-dasharray="2 3"') == 9  # of twelve, one in each batch is the longest


def test_the_snapshot_is_the_memory_maps():
    panel, drawn = viz.memory_map(), viz.memory_snapshot()
    running = re.findall(r"(\d+) running, (\d+) waiting; \d+ of \d+ slots in use are empty \((\d+)%", panel.words)
    shown = re.findall(r"(\d+) requests running, (\d+) waiting, (\d+)%", drawn.words)
    assert len(running) == 2 and running == shown


def test_the_lanes_end_when_the_clock_says(run):
    clock = cycles.recorded_clock()
    drawn = viz.two_lanes(run, lambda ids: "w", clock, tokens=12)
    seen, count = 0, 0
    for cycle in run.trace.cycles:
        if count and count + cycle.kept > 12:
            break
        seen, count = seen + 1, count + cycle.kept
    took = sum(sum(clock.times(cycle)) for cycle in run.trace.cycles[:seen])
    assert (
        f"{count * clock.plain / took:.2f} times as fast" in drawn.words
        and f"takes {seen} target passes" in drawn.words
    )


@pytest.mark.parametrize(("drafted", "accepted"), [("abcd", 4), ("abxd", 2), ("xbcd", 0)])
def test_a_choice_judges_the_token_after_it(drafted, accepted):
    drawn = viz.judge_arrows("last", list(drafted), list("abcde"))
    chain = verify.chain(
        torch.eye(30, dtype=torch.float64)[[ord(c) - 97 for c in "abcde"]],
        torch.eye(30, dtype=torch.float64)[[ord(c) - 97 for c in drafted]],
        [ord(c) - 97 for c in drafted],
        [0.5] * 5,
    )
    assert chain.accepted == accepted and f"{accepted} of 4 are equal" in drawn.words
    assert texts(drawn.svg).count("✓") == accepted and texts(drawn.svg).count("✗") == (accepted < 4)
    with pytest.raises(ValueError, match="choices"):
        viz.judge_arrows("last", ["a"], ["a"])


def test_the_overlap_is_the_acceptance():
    p, q = [0.6, 0.3, 0.1], [0.3, 0.2, 0.5]
    drawn = viz.overlap(p, q)
    accepted = theory.acceptance(p, q)
    assert (
        f"What both have, {accepted:.2f} in all" in drawn.words
        and f"{1 - accepted:.2f} in all, the residual" in drawn.words
    )
    with pytest.raises(ValueError, match="same tokens"):
        viz.overlap([1.0], [0.5, 0.5])


def test_the_cycle_is_the_recorded_one():
    parts = CycleParts.recorded()
    drawn = viz.cycle_over_steps(parts)
    assert f"{parts.speedup:.2f} times as fast" in drawn.words
    assert f"verify, v = {parts.verify / parts.plain:.2f}" in texts(drawn.svg)


def test_the_mask_is_the_trees():
    parents = [-1, -1, 0, 0, 1, 2]
    drawn = viz.tree_and_mask(range(6), parents, node=4)
    mask = tree.verify_mask(parents)
    assert (
        f"with {int(mask.sum())} filled cells" in drawn.words
        and "Node 4 attends to the last token, node 1, node 4" in drawn.words
    )
    cells = re.findall(r'fill-opacity="0.(?:85|55)"', drawn.svg)
    assert len(cells) == int(mask.sum())


def test_dflash_runs_once_and_the_others_k_times():
    counts = [text for text in texts(viz.four_drafters(k=5).svg) if text.startswith("sequential runs for 5 tokens")]
    assert [int(text.split()[-1]) for text in counts] == [5, 5, 1, 5]


@pytest.mark.parametrize("accepted", [0, 1, 4])
def test_an_engine_step_keeps_what_was_accepted(accepted):
    words = viz.engine_step(prompt=6, k=4, accepted=accepted).words
    assert f"{7 + accepted} tokens cached" in words and "4 lookahead slots" in words
    blocks = -(-(7 + accepted) // 4)
    assert len(re.findall(r"\d+", re.search(r"cached, blocks (\[.*?\])\.$", words)[1])) == blocks
    with pytest.raises(ValueError, match="accepted"):
        viz.engine_step(k=2, accepted=3)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_cut_products_add_up_and_send_what_a_ring_sends(ranks):
    x, up, down = torch.randn(2, 8), torch.randn(8, 16), torch.randn(16, 8)
    middles = [(x @ shard).relu() for shard in up.chunk(ranks, dim=1)]
    partial = [part @ shard for part, shard in zip(middles, down.chunk(ranks, dim=0), strict=True)]
    torch.testing.assert_close(sum(partial), (x @ up).relu() @ down)
    assert all(part.shape == (2, 8) for part in partial)
    svg, words = cut_matrices(ranks, stage=3)
    assert texts(svg).count(f"rank {ranks - 1}") == 2
    assert viz.presets.si(theory.all_reduce_bytes(8192, ranks), "B") + " to send" in words
    with pytest.raises(ValueError, match="stage"):
        cut_matrices(2, 4)


# ---------------------------------------------------------------- which state meets which token


@pytest.mark.parametrize("way", ["EAGLE", "DFlash"])
def test_drafts_are_filled_in_step_by_step_or_at_once(way):
    words, drafted = ["a", "b", "c"], ["d1", "d2", "d3", "d4"]
    filled = []
    for step in range(5 if way == "EAGLE" else 2):
        svg, said = viz.drafting_steps_svg(way, words, drafted, step)
        inside(svg)
        assert len(said) > 20
        filled.append(len({text for text in texts(svg) if text in drafted}))
    assert filled == ([0, 1, 2, 3, 4] if way == "EAGLE" else [0, 4])
    with pytest.raises(ValueError, match="step"):
        viz.drafting_steps_svg(way, words, drafted, 9)


def test_the_state_belongs_to_the_position_before_the_token():
    """In step 1 the newest feature of the target, of the position before the last token, meets that token."""
    svg, _ = viz.drafting_steps_svg("EAGLE", ["a", "b", "c"], ["d1", "d2", "d3"], 3)
    assert [text for text in texts(svg) if " + " in text] == ["g₋₁ + c", "f₁ + d1", "f₂ + d2"]


def test_the_drafts_are_those_of_the_drafter(tiny, tiny_draft):
    drafter = ms.drafters.Model(tiny_draft)
    draft = first_draft(tiny, drafter, [5, 9, 33, 17], 4)
    trace = ms.speculate(tiny, [5, 9, 33, 17], drafter, 4, 8, temperature=0, ignore_eos=True).trace
    assert draft == trace.cycles[0].drafted and len(draft) == 4


def test_ranks_and_stages_all_show_something_else():
    panel = viz.cut_products()
    seen = set()
    for ranks in (1, 2, 4, 8):
        panel.controls["ranks"].value = ranks
        for stage in range(4):
            panel.controls["stage"].value = stage
            inside(panel.picture)
            seen.add(panel.picture)
    assert len(seen) == 16
