"""Figures and widgets, drawn from traces and results, never from made-up numbers. Loaded when first asked for.

`name_figure` functions return a plotly figure and need no notebook; their widgets put controls on the same function.
"""

from .. import require_extra

require_extra()

from .batch_speedup import BatchDot, batch_speedup, batch_speedup_figure, batch_table, measure_batches, roofline_at
from .cache_race import cache_race, cache_race_figure, cache_race_html, measure_race
from .cache_size import cache_size, cache_size_figure
from .compute_optimal import compute_optimal, compute_optimal_figure
from .cycles import cycle_stepper, cycle_stepper_html, distributions_along
from .diagnose import diagnose, diagnose_html
from .gantt import gantt, gantt_figure
from .memory_map import memory_map, memory_map_html
from .online_softmax import merge_states, online_softmax, online_softmax_figure, online_softmax_tiles, read_attention
from .overlap import overlap_figure
from .panel import Panel
from .parallel_timelines import parallel_timelines, parallel_timelines_figure, stored_timelines
from .places import real_places, toy_place
from .positions import measure_positions, positions, positions_figure
from .predict import Prediction, predict
from .quantisation import effects_of, error_of, quantisation, quantisation_figure
from .race import drafter_race, drafter_race_figure, drafter_race_html, run_race
from .residual import residual_explorer, residual_html
from .roofline import roofline, roofline_figure
from .scheduler_steps import scheduler_steps, scheduler_steps_html
from .surface import Dot, surface, surface_figure
from .temperature import acceptance_by_temperature
from .timing import measure_here, timing, timing_figure
from .tree import tree_figure, tree_viewer
from .two_rooflines import measure_both, two_rooflines, two_rooflines_figure

__all__ = [
    "BatchDot",
    "Dot",
    "Panel",
    "Prediction",
    "acceptance_by_temperature",
    "batch_speedup",
    "batch_speedup_figure",
    "batch_table",
    "cache_race",
    "cache_race_figure",
    "cache_race_html",
    "cache_size",
    "cache_size_figure",
    "compute_optimal",
    "compute_optimal_figure",
    "cycle_stepper",
    "cycle_stepper_html",
    "diagnose",
    "diagnose_html",
    "distributions_along",
    "drafter_race",
    "drafter_race_figure",
    "drafter_race_html",
    "effects_of",
    "error_of",
    "gantt",
    "gantt_figure",
    "measure_batches",
    "measure_both",
    "measure_here",
    "measure_positions",
    "measure_race",
    "memory_map",
    "memory_map_html",
    "merge_states",
    "online_softmax",
    "online_softmax_figure",
    "online_softmax_tiles",
    "overlap_figure",
    "parallel_timelines",
    "parallel_timelines_figure",
    "positions",
    "positions_figure",
    "predict",
    "quantisation",
    "quantisation_figure",
    "read_attention",
    "real_places",
    "residual_explorer",
    "residual_html",
    "roofline",
    "roofline_at",
    "roofline_figure",
    "run_race",
    "scheduler_steps",
    "scheduler_steps_html",
    "stored_timelines",
    "surface",
    "surface_figure",
    "timing",
    "timing_figure",
    "toy_place",
    "tree_figure",
    "tree_viewer",
    "two_rooflines",
    "two_rooflines_figure",
]
