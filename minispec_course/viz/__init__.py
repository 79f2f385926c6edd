"""Figures and widgets, drawn from traces and results, never from made-up numbers. Loaded when first asked for.

`name_figure` functions return a figure and need no notebook; their widgets put controls on the same function.
"""

from .. import require_extra

require_extra()

from .batch_speedup import BatchDot, batch_speedup, batch_speedup_svg, batch_table, measure_batches, roofline_at
from .cache_race import cache_race, cache_race_figure, cache_race_html, measure_race
from .cache_size import cache_size, cache_size_figure
from .compute_optimal import compute_optimal, compute_optimal_figure
from .control_room import control_room, control_room_figure, rate_table
from .cycle_parts import CycleParts, cycle_figure, cycle_words, measure_cycle
from .cycles import cycle_stepper, cycle_stepper_html, distributions_along
from .diagnose import diagnose, diagnose_html
from .drafting_steps import drafting_steps, drafting_steps_svg
from .experts import experts_figure
from .frontier import (
    accepted_by_draft,
    batch_rates,
    budget_figure,
    drafts_figure,
    shared_figure,
    slots_figure,
    speedups_figure,
)
from .gantt import gantt, gantt_svg
from .kernel_timeline import kernel_timeline, kernel_timeline_figure, live_timelines, recorded_timelines
from .limit_steps import limit_steps_figure, machine_of, steps_table, stored_limit
from .memory_map import memory_map, memory_map_html
from .online_softmax import merge_states, online_softmax, online_softmax_svg, online_softmax_tiles, read_attention
from .overlap import overlap_figure
from .panel import Panel
from .parallel_timelines import parallel_timelines, parallel_timelines_figure, stored_timelines
from .pictures_cycle import cycle_over_steps, judge_arrows, overlap, two_lanes
from .pictures_draft import four_drafters, tree_and_mask
from .pictures_family import family_tree
from .pictures_memory import block_arrows, cache_grid, memory_snapshot, static_holes
from .pictures_system import cut_matrices, cut_products, engine_step, parallel_products
from .places import real_places, toy_place
from .positions import measure_positions, positions, positions_svg
from .predict import Prediction, predict
from .prefix_masks import prefix_masks_figure
from .quantisation import effects_of, error_of, quantisation, quantisation_svg
from .race import drafter_race, drafter_race_figure, drafter_race_html, run_race
from .race_beside import drafter_speedups
from .residual import residual_explorer, residual_html
from .roofline import roofline, roofline_svg
from .scheduler_steps import scheduler_steps, scheduler_steps_html
from .surface import Dot, surface, surface_figure, surface_svg
from .temperature import acceptance_by_temperature
from .tile_sizes import splits_figure, tile_sizes, tile_sizes_figure
from .timing import measure_here, random_model, timing, timing_figure
from .timing import recorded as recorded_curves
from .tree import tree_svg, tree_viewer
from .two_rooflines import measure_both, two_rooflines, two_rooflines_figure
from .weights_stream import one_pass, pass_rows, weights_stream, weights_stream_svg

__all__ = [
    "BatchDot",
    "CycleParts",
    "Dot",
    "Panel",
    "Prediction",
    "acceptance_by_temperature",
    "accepted_by_draft",
    "batch_rates",
    "batch_speedup",
    "batch_speedup_svg",
    "batch_table",
    "block_arrows",
    "budget_figure",
    "cache_grid",
    "cache_race",
    "cache_race_figure",
    "cache_race_html",
    "cache_size",
    "cache_size_figure",
    "compute_optimal",
    "compute_optimal_figure",
    "control_room",
    "control_room_figure",
    "cut_matrices",
    "cut_products",
    "cycle_figure",
    "cycle_over_steps",
    "cycle_stepper",
    "cycle_stepper_html",
    "cycle_words",
    "diagnose",
    "diagnose_html",
    "distributions_along",
    "drafter_race",
    "drafter_race_figure",
    "drafter_race_html",
    "drafter_speedups",
    "drafting_steps",
    "drafting_steps_svg",
    "drafts_figure",
    "effects_of",
    "engine_step",
    "error_of",
    "experts_figure",
    "family_tree",
    "four_drafters",
    "gantt",
    "gantt_svg",
    "judge_arrows",
    "kernel_timeline",
    "kernel_timeline_figure",
    "limit_steps_figure",
    "live_timelines",
    "machine_of",
    "measure_batches",
    "measure_both",
    "measure_cycle",
    "measure_here",
    "measure_positions",
    "measure_race",
    "memory_map",
    "memory_map_html",
    "memory_snapshot",
    "merge_states",
    "one_pass",
    "online_softmax",
    "online_softmax_svg",
    "online_softmax_tiles",
    "overlap",
    "overlap_figure",
    "parallel_products",
    "parallel_timelines",
    "parallel_timelines_figure",
    "pass_rows",
    "positions",
    "positions_svg",
    "predict",
    "prefix_masks_figure",
    "quantisation",
    "quantisation_svg",
    "random_model",
    "rate_table",
    "read_attention",
    "real_places",
    "recorded_curves",
    "recorded_timelines",
    "residual_explorer",
    "residual_html",
    "roofline",
    "roofline_at",
    "roofline_svg",
    "run_race",
    "scheduler_steps",
    "scheduler_steps_html",
    "shared_figure",
    "slots_figure",
    "speedups_figure",
    "splits_figure",
    "static_holes",
    "steps_table",
    "stored_limit",
    "stored_timelines",
    "surface",
    "surface_figure",
    "surface_svg",
    "tile_sizes",
    "tile_sizes_figure",
    "timing",
    "timing_figure",
    "toy_place",
    "tree_and_mask",
    "tree_svg",
    "tree_viewer",
    "two_lanes",
    "two_rooflines",
    "two_rooflines_figure",
    "weights_stream",
    "weights_stream_svg",
]
