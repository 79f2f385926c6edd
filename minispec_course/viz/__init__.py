"""Figures and widgets, drawn from traces and results, never from made-up numbers. Loaded when first asked for.

A widget is a `Panel` over a plain function that draws: `name_svg` (drawing.py); figures.py holds the plotly ones.
"""
# ruff: noqa: F401

from .. import require_extra

require_extra()

from .batch_speedup import BatchDot, batch_speedup, batch_table, measure_batches, roofline_at
from .cache_size import cache_size
from .compute_optimal import compute_optimal
from .control_room import control_room, rate_table
from .cycles import CycleParts, cycle_over_steps, cycle_stepper, cycle_words, measure_cycle, two_lanes
from .diagnose import diagnose
from .drafting_steps import drafting_steps
from .figures import (
    acceptance_by_temperature,
    budget_figure,
    cache_race_figure,
    drafter_speedups,
    drafts_figure,
    limit_steps_figure,
    prefix_masks_figure,
    shared_figure,
    slots_figure,
    speedups_figure,
    two_rooflines,
    two_rooflines_figure,
)
from .gantt import gantt
from .limit import (
    kernel_timeline,
    live_timelines,
    machine_of,
    recorded_timelines,
    steps_table,
    stored_limit,
    tile_sizes,
)
from .memory_map import memory_map, memory_snapshot
from .online_softmax import merge_states, online_softmax, online_softmax_tiles, read_attention
from .parallel_timelines import parallel_timelines
from .pictures import (
    block_arrows,
    cache_grid,
    cut_products,
    family_tree,
    four_drafters,
    judge_arrows,
    overlap,
    parallel_products,
    static_holes,
)
from .places import real_places
from .positions import measure_positions, positions
from .predict import predict
from .quantisation import effects_of, error_of, quantisation
from .race import cache_race, drafter_race, measure_race, run_race
from .residual import residual_explorer
from .roofline import roofline
from .scheduler_steps import engine_step, scheduler_steps
from .surface import Dot, surface
from .timing import measure_both, measure_here, random_model, timing
from .timing import recorded as recorded_curves
from .tree import tree_and_mask, tree_viewer
from .weights_stream import pass_rows, weights_stream
