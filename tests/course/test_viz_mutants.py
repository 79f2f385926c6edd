"""Pictures that would lie are noticed: each wrong variant fails the test that recomputes its fact."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

pytest.importorskip("ipywidgets")

import test_viz_01
import test_viz_07
import test_viz_10
import test_viz_11
import test_viz_16
import test_viz_drawing
import test_viz_pictures
from mutants.patching import rewrite

from minispec_course import viz

STEPS = sys.modules["minispec_course.viz.drafting_steps"]
# What is wrong: whose function is changed, from what to what, and the test that notices.
MUTANTS: dict[str, tuple[object, str, str, str, Callable[[], None]]] = {
    "the weights are read again for every token": (
        test_viz_drawing,
        "one_pass",
        "presets.weights_read(config) * bytes_per_weight",
        "presets.weights_read(config) * bytes_per_weight * tokens",
        test_viz_drawing.test_a_pass_reads_the_weights_once_whatever_its_tokens,
    ),
    "a choice judges the token before it": (
        viz,
        "judge_arrows",
        "zip(drafted, choices, strict=False)",
        "zip(drafted, choices[1:], strict=False)",
        lambda: test_viz_pictures.test_a_choice_judges_the_token_after_it("abxd", 2),
    ),
    "what both have is a product": (
        viz,
        "overlap",
        "torch.minimum(p, q), (p - q)",
        "p * q, (p - q)",
        test_viz_pictures.test_the_overlap_is_the_acceptance,
    ),
    "every batch has the holes of the whole queue": (
        viz,
        "static_holes",
        "theory.static_batch_idle(batch)",
        "theory.static_batch_idle(lengths)",
        test_viz_pictures.test_the_holes_are_the_formulas,
    ),
    "the correction counts as cached": (
        viz,
        "engine_step",
        'list(pool.table("A")), request.num_computed_tokens',
        'list(pool.table("A")), request.num_tokens',
        lambda: test_viz_pictures.test_an_engine_step_keeps_what_was_accepted(1),
    ),
    "every node attends to every other": (
        viz,
        "tree_and_mask",
        "mask = tree.verify_mask(parents)",
        "mask = tree.verify_mask(parents) | True",
        test_viz_pictures.test_the_mask_is_the_trees,
    ),
    "the state meets its own token": (
        STEPS,
        "_eagle",
        "token = words[-1] if s == 1",
        "token = words[-2] if s == 1",
        test_viz_pictures.test_the_state_belongs_to_the_position_before_the_token,
    ),
    "the bowl's minimum forgets the six": (
        test_viz_16,
        "lowest",
        "(flops / 6) **",
        "flops **",
        lambda: test_viz_16.test_the_bowls_minimum_is_one_and_slides_to_larger_models(21),
    ),
    "a dot is compared with itself": (
        test_viz_11,
        "compared",
        "v = cost(dot.k, dot.batch)",
        "v = dot.v",
        test_viz_11.test_a_dot_is_compared_with_a_line_of_its_own,
    ),
    "the best k changes one batch size too early": (
        test_viz_11,
        "batch_speedup_svg",
        "zip(pairwise(ROWS), longest,",
        "zip(pairwise(ROWS), longest[1:],",
        test_viz_11.test_the_lines_are_the_formula,
    ),
    "a dot is drawn where the formula puts it": (
        test_viz_11,
        "batch_speedup_svg",
        "left.dot(dot.batch, dot.measured,",
        "left.dot(dot.batch, dot.predicted,",
        test_viz_11.test_dots_are_drawn_where_they_were_measured,
    ),
    "batch sizes stand on a straight axis": (
        test_viz_11,
        "batch_speedup_svg",
        '(0, top), log="x"',
        "(0, top)",
        test_viz_11.test_the_lines_are_the_formula,
    ),
    "the map forgets what verifying costs": (
        test_viz_07,
        "surface_svg",
        "_cells(c, costs)",
        "_cells(c, (1.0,) * LONGEST)",
        test_viz_07.test_the_surface_is_the_formula,
    ),
    "the best k is a slanted line": (
        test_viz_07,
        "surface_svg",
        "((a[0], b[1]), b)",
        "(a, b)",
        test_viz_07.test_the_lines_on_it_are_the_best_k_and_the_break_even,
    ),
    "a prediction is drawn as measured": (
        test_viz_07,
        "surface_svg",
        "chart.at(dot.k, dot.measured)",
        "chart.at(dot.k, dot.predicted)",
        test_viz_07.test_dots_show_what_was_measured_beside_what_was_predicted,
    ),
    "a small gain has the colour of a great one": (
        test_viz_07.surface_module,
        "colours",
        "/ MOST",
        "/ 2",
        test_viz_07.test_colours_mean_what_the_scale_beside_them_says,
    ),
    "every pass is one over a single sequence": (
        viz,
        "roofline_svg",
        "batch=batch, context=context)",
        "batch=1, context=context)",
        lambda: test_viz_01.test_passes_lie_on_the_roof_at_their_intensity(4, 8, 3),
    ),
    "a measured pass took no longer than the roof allows": (
        viz,
        "roofline_svg",
        "flow, number = flops / point.time.median,",
        "flow, number = theory.attainable_flops(flops / read, run.hardware),",
        test_viz_01.test_measured_passes_are_their_flops_over_their_time,
    ),
    "another machine has the roof of the chosen one": (
        viz,
        "roofline_svg",
        "_roof(chart, run.hardware,",
        "_roof(chart, hardware,",
        test_viz_01.test_another_machines_roof_is_theorys_too,
    ),
    "every measured pass has its number, whatever is there": (
        viz,
        "roofline_svg",
        "if x + 6 > beside[0] or abs(y - beside[1]) > 11:",
        "if True:",
        test_viz_01.test_numbers_beside_measured_passes_do_not_touch,
    ),
    "a mark counts all cycles, not those that reached it": (
        viz,
        "positions_svg",
        "rates, came = trace.acceptance_by_position, reached(trace)",
        "rates, came = trace.acceptance_by_position, [len(trace.cycles)] * len(reached(trace))",
        test_viz_10.test_lines_and_bars_are_the_traces,
    ),
    "every bar is drawn to the same end": (
        viz,
        "positions_svg",
        "right.at(trace.tokens_per_cycle, i + 1)",
        "right.at(2, i + 1)",
        test_viz_10.test_lines_and_bars_are_the_traces,
    ),
    "the axes are those of one choice": (
        viz,
        "positions_svg",
        "trace in runs.values() for cycle",
        "trace in traces.values() for cycle",
        test_viz_10.test_the_axes_stay_and_hold_every_run,
    ),
    "the wrong drafter is brought out": (
        viz,
        "positions_svg",
        "1 if drafter in (None, name) else 0.25",
        "1 if drafter != name else 0.25",
        test_viz_10.test_one_drafter_is_brought_out,
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_picture_that_lies_is_noticed(name, monkeypatch):
    owner, function, old, new, check = MUTANTS[name]
    check()  # the true one passes
    rewrite(monkeypatch, owner, function, old, new)
    with pytest.raises((AssertionError, TypeError)):
        check()
        pytest.fail(f"nothing notices that {name}", pytrace=False)
