"""The same model in float32 and in int8: what a forward pass over M tokens should cost, and what it did cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minispec import measure, theory
from minispec.drafters.quantized import quantized_copy
from minispec.load.handle import Model
from minispec.load.quantize import to_int8
from minispec.model import Config

from . import light as go
from . import presets
from .style import PALETTE, TEMPLATE
from .timing import Here, measure_here

TOKENS = (1, 2, 3, 4, 5, 6, 8)
KINDS = {"float32": 4, "int8": 1}  # bytes of a weight


@dataclass(frozen=True)
class Curve:
    """Seconds of a pass by its number of tokens, for one kind of weights."""

    weights: str  # "float32" or "int8"
    roofline: dict[int, float]  # at best: the slower of reading and computing
    measured: dict[int, measure.Timing]  # empty: nothing was measured


def two_rooflines(
    hardware: theory.Hardware,
    config: Config,
    tokens: Sequence[int] = TOKENS,
    context: int = 64,
    measured: Sequence[Here] = (),
) -> list[Curve]:
    """The two curves. Both read the weights once and compute as much; int8 reads a quarter, so it meets its ridge point
    at a quarter as many tokens, and a verify pass costs more plain passes although it takes less time."""
    found = []
    for name, size in KINDS.items():
        best = {m: presets.seconds(hardware, config, size, 1, m, context) for m in tokens}
        points = [p for here in measured if here.bytes_per_weight == size for p in here.curve]
        found.append(Curve(name, best, {p.tokens: p.time for p in points}))
    return found


def measure_both(model: Model, tokens: Sequence[int] = TOKENS, context: int = 64, **options) -> list[Here]:
    """A float32 model on a CPU and the same model in int8, measured one after the other (timing.measure_here)."""
    if model.device.type != "cpu" or model.weights:
        raise ValueError(f"model={model!r}: give a float32 model on a CPU, the int8 one is made of it")
    small = quantized_copy(model)
    if not small.weights:  # a small model
        to_int8(small.transformer)
    return [measure_here(each, tokens, context, **options) for each in (model, small)]


def two_rooflines_figure(curves: Sequence[Curve]) -> go.Figure:
    """Milliseconds against tokens per pass: a line at best, dots with quartiles where it was measured."""
    figure = go.Figure(layout=dict(template=TEMPLATE))
    for curve, colour in zip(curves, PALETTE, strict=False):
        figure.add_trace(
            go.Scatter(
                x=list(curve.roofline),
                y=[1e3 * t for t in curve.roofline.values()],
                name=f"roofline: {curve.weights} weights",
                mode="lines",
                line=dict(color=colour, width=3),
            )
        )
        if times := curve.measured:
            figure.add_trace(
                go.Scatter(
                    x=list(times),
                    y=[1e3 * t.median for t in times.values()],
                    error_y=dict(
                        type="data",
                        symmetric=False,
                        array=[1e3 * (t.high - t.median) for t in times.values()],
                        arrayminus=[1e3 * (t.median - t.low) for t in times.values()],
                    ),
                    name=f"measured: {curve.weights} weights (quartiles)",
                    mode="markers",
                    marker=dict(size=9, color=colour),
                )
            )
    figure.update_traces(hovertemplate="M = %{x}<br>%{y:.3g} ms")
    figure.update_layout(
        xaxis=dict(title="M, tokens per forward pass"),
        yaxis=dict(title="ms per forward pass", rangemode="tozero"),
        legend=dict(orientation="h", y=-0.22),
        height=430,
    )
    return figure
