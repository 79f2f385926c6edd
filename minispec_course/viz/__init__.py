"""Figures and widgets, drawn from traces and results, never from made-up numbers. Loaded when first asked for.

A widget is a `Panel` over a plain function that draws, `name_svg` (drawing.py); figures.py holds the plotly ones. What
is measured or computed for them lies in labs/, which draws nothing.
"""
# ruff: noqa: F401

from .. import require_extra

require_extra()

from ..labs.cycles import CycleParts
from ..labs.passes import BatchDot, measure_both, measure_here, random_model, roofline_at
from ..labs.passes import recorded as recorded_curves
from .control_room import control_room, under_load
from .cycles import cycle_over_steps, cycle_stepper
from .dashboard import dashboard
from .diagnose import diagnose
from .drafting_steps import drafting_steps
from .figures import acceptance_by_position, drafter_speedups, real_and_random
from .gantt import gantt
from .loop import loop_picture
from .memory_map import memory_map
from .pictures import (
    attention_grid,
    block_arrows,
    busy_bars,
    cache_grid,
    cut_products,
    family_tree,
    judge_arrows,
    launch_lanes,
    overlap,
    static_holes,
)
from .predict import predict
from .quantisation import quantisation
from .race import race
from .residual import drag_overlap, residual_explorer
from .roofline import roof
from .scheduler_steps import engine_step
from .surface import Dot, surface
from .tree import tree_and_mask, tree_viewer
from .weights_stream import weights_stream
