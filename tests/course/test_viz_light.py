"""The course's own figures are plotly's: every module draws the same with light.py as with plotly, which checks it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("plotly")

import plotly.graph_objects as go
import plotly.io as pio
import test_viz
import test_viz_08
import test_viz_12
import test_viz_13
import torch
from minispec_course.viz.picture_view import as_json
from mutants.patching import rewrite
from plotly.subplots import make_subplots

import minispec as ms
from minispec import theory, verify
from minispec_course import viz
from minispec_course.site import grid
from minispec_course.stored import PLOTLY
from minispec_course.viz import light
from minispec_course.viz.control_room import run_shift
from minispec_course.viz.panel import Panel

race, model, effects = test_viz_08.race, test_viz_12.model, test_viz_12.effects
MOST = 12  # pictures of a widget: the ends of its sliders and its choices, as far as there is room
P = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
LIMIT = test_viz_13.RESULT["models"]


def here():
    """A machine as `measure_here` finds it, made of the recorded one."""
    [h200] = viz.recorded_curves()
    return type(h200)(theory.A100, h200.config, h200.bytes_per_weight, h200.context, h200.curve)


# The module that draws, and if need be which of its pictures → the panel, or the function that draws.
FIGURES: dict[str, Callable] = {
    "cache_race": lambda given: lambda: viz.cache_race_figure(given.measured),
    "cache_size": lambda given: viz.cache_size(),
    "compute_optimal": lambda given: viz.compute_optimal(),
    "control_room": lambda given: lambda: viz.control_room_figure(given.shift),
    "cycle_parts": lambda given: lambda: viz.cycle_figure([viz.CycleParts("here", 4, 2.5, 2.0, 1.0, 3.0, 0.5, 0.5)]),
    "experts": lambda given: lambda: viz.experts_figure(8, 2, {1: 2.0, 5: 7.0}, 1.6e9, 5.6e9, alpha=0.8, c=0.02),
    "frontier, drafts": lambda given: lambda: viz.drafts_figure(P, P.flip(0), 2, {"token": verify.chain}, "ABC"),
    "frontier, shared": lambda given: lambda: viz.shared_figure("abc", P, "cbd", P),
    "frontier, slots": lambda given: lambda: viz.slots_figure([[0.9, 0.9], [0.5, 0.9]], 3),
    "frontier, budget": lambda given: lambda: viz.budget_figure((0.9, 0.3), 2, lambda tokens: 1.0, (1, 2)),
    "frontier, speedups": lambda given: lambda: viz.speedups_figure({"a": [1, 2], "b": [2, 1]}, (1, 4), "title"),
    "kernel_timeline": lambda given: viz.kernel_timeline(test_viz_13.MADE_UP),
    "limit_steps": lambda given: lambda: viz.limit_steps_figure(LIMIT),
    "overlap": lambda given: lambda: viz.overlap_figure([0.6, 0.3, 0.1], [0.3, 0.2, 0.5], "abc"),
    "parallel_timelines": lambda given: viz.parallel_timelines(),
    "prefix_masks": lambda given: lambda: viz.prefix_masks_figure(r"\d\d", ["1", "2", "am"], ["2", "am"], "1"),
    "race": lambda given: lambda: viz.drafter_race_figure(given.race, "seconds"),
    "race_beside": lambda given: lambda: viz.drafter_speedups(given.race),
    "surface": lambda given: lambda: viz.surface_figure(0.7, 0.1, lambda k: 1 + k / 10, [viz.Dot.recorded()]),
    "surface, no gain": lambda given: lambda: viz.surface_figure(0.1, 0.9, 5.0),
    "temperature": lambda given: lambda: viz.acceptance_by_temperature(test_viz.RESULT),
    "tile_sizes": lambda given: viz.tile_sizes(recorded=test_viz_13.swept()),
    "timing": lambda given: viz.timing(),
    "timing, measured": lambda given: viz.timing(here()),
    "two_rooflines": lambda given: lambda: viz.two_rooflines_figure(viz.two_rooflines(theory.H200, given.model.config)),
}


@pytest.fixture
def given(tiny, tiny32, model, effects, race):
    """What the pictures are drawn of."""
    one = next(iter(race.runners))
    named = {one: {name if name == "plain" else "n-gram": run for name, run in race.runners[one].items()}}
    race = type(race)(race.target, race.k, race.pieces, named)
    measured = viz.measure_race(tiny, [1, 2, 3], new_tokens=4)
    heads, shift = ms.drafters.MedusaHeads(tiny32, count=3), run_shift(tiny, None, 50, 0, count=4)
    return SimpleNamespace(
        tiny=tiny, tiny32=tiny32, model=model, effects=effects, race=race, measured=measured, heads=heads, shift=shift
    )


def drawing() -> dict[str, object]:
    """The modules that draw with light.py, by name."""
    names = {file.stem: f"minispec_course.viz.{file.stem}" for file in Path(viz.__file__).parent.glob("*.py")}
    modules = {name: sys.modules[full] for name, full in names.items() if full in sys.modules}
    return {name: module for name, module in modules.items() if getattr(module, "go", None) is light}


def figure_of(drawn) -> light.Figure | go.Figure:
    return drawn[0] if isinstance(drawn, tuple) else drawn


def check(draw: Callable, module) -> None:
    """A module draws the same with both, and what plotly makes of ours is that again."""
    ours = figure_of(draw())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "go", go)
        patch.setattr(module, "make_subplots", make_subplots, raising=False)
        theirs = figure_of(draw())
    assert type(ours) is light.Figure and type(theirs) is go.Figure
    assert as_json(ours) == as_json(theirs) == as_json(ours.plotly())


def check_figure(name: str, given: SimpleNamespace) -> None:
    """Of a panel, the pictures over the values of its controls."""
    module, made = drawing()[name.partition(",")[0]], FIGURES[name](given)
    if not isinstance(made, Panel):
        return check(made, module)
    found = grid.knobs(made)
    for chosen in product(*grid.thinned(found, MOST)):
        values = {knob.name: knob.values[i] for knob, i in zip(found, chosen, strict=True)}
        check(lambda values=values: made.draw(**values), module)


def test_every_module_that_draws_is_here():
    assert {name.partition(",")[0] for name in FIGURES} == set(drawing()) and len(drawing()) > 15


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_plotly_draws_the_same_and_has_nothing_against_it(name, given):
    check_figure(name, given)


@pytest.mark.parametrize(
    ("name", "function", "old", "new"),
    [
        ("cache_size", "cache_size_figure", 'mode="markers"', 'modes="markers"'),  # a property that does not exist
        ("cache_size", "cache_size_figure", 'dash="solid"', 'dash="solidly"'),  # … a value
        ("overlap", "overlap_figure", 'barmode="stack"', 'barmode="stacks"'),
    ],
)
def test_a_misspelt_property_is_noticed(name, function, old, new, given, monkeypatch):
    rewrite(monkeypatch, drawing()[name], function, old, new)
    monkeypatch.setattr(viz, function, getattr(drawing()[name], function))
    with pytest.raises(ValueError, match="(?i)invalid"):
        check_figure(name, given)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "function", "old", "new", "name"),
    [
        (light.Node, "_put", 'value = {"text": value}', "pass", "cache_size"),
        (light.Figure, "add_vline", "{y} domain", "{y}", "parallel_timelines"),
        (light.Figure, "_axes", "self.grid if row is None else [self.grid[row - 1]]", "self.grid", "control_room"),
        (light.Figure, "to_dict", "convert_to_base64(whole)", "pass", "kernel_timeline"),
        (light, "make_subplots", "annotation.text = title", "pass", "experts"),
    ],
)
def test_what_light_does_otherwise_is_noticed(owner, function, old, new, name, given, monkeypatch):
    rewrite(monkeypatch, owner, function, old, new)
    if owner is light and hasattr(drawing()[name], function):
        monkeypatch.setattr(drawing()[name], function, getattr(light, function))
    with pytest.raises((AssertionError, ValueError)):
        check_figure(name, given)


# ---------------------------------------------------------------- what a figure is


def test_underscores_go_down_and_none_is_nothing():
    bar = light.Bar(y=[1], marker_line_color="red", marker=dict(line_width=2, color=None), error_y=dict(array=[1]))
    assert bar == {"type": "bar", "y": [1], "marker": {"line": {"color": "red", "width": 2}}, "error_y": {"array": [1]}}
    bar.update(marker_line_color=None, name="n")
    assert bar.marker.line == {"width": 2} and bar.name == "n" and bar.text is None
    layout = light.Figure(layout=dict(paper_bgcolor="red", title="t")).update_layout(title_x=0, xaxis_title="x").layout
    assert layout == {"paper_bgcolor": "red", "title": {"text": "t", "x": 0}, "xaxis": {"title": {"text": "x"}}}


def test_figures_share_no_lists_that_grow():
    one, two = (light.make_subplots(1, 2, subplot_titles=["a", "b"]) for _ in range(2))
    one.add_annotation(text="c").update_annotations(font_size=9)
    assert [note.text for note in two.layout.annotations] == ["a", "b"] and two.layout.annotations[0].font.size != 9


def test_a_cell_shows_plotlys_figure(monkeypatch):
    monkeypatch.setattr(pio.renderers, "default", "plotly_mimetype")
    figure = light.Figure(light.Bar(y=[1, 2]), layout=dict(title="bars", template=viz.style.TEMPLATE))
    assert figure._repr_mimebundle_()[PLOTLY] == figure.plotly()._repr_mimebundle_()[PLOTLY]
    assert figure.plotly().data[0].y == (1, 2) and "bars" in figure._repr_html_()
    figure.update_layout(template="plotly_dark")
    assert as_json(figure) == as_json(figure.plotly().update_layout(template="plotly_dark"))
    with pytest.raises(AttributeError, match="figure.plotly"):
        figure.add_vrect(x0=0, x1=1)
