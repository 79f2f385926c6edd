"""Memory-bound timing: what a pass over M tokens should cost, and what it does cost, on this machine and elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
import torch

from ... import theory
from ...bench import measure
from ...bench.pairs import random_pair
from ...cpu import machine
from ...files.handle import Model
from ...files.registry import BENCHMARKS
from ...model import Config
from . import presets
from .panel import Panel, choice
from .style import GREY, PALETTE, TEMPLATE

CURVE = (1, 2, 3, 4, 5, 6, 8, 16, 32, 64, 128)
LINE = (*range(1, 17), *(2**n for n in range(5, 9)), 24, 48, 96, 192)
COLOURS = (PALETTE[1], PALETTE[0])  # this machine, and another


@dataclass(frozen=True)
class Here:
    """This machine: its roofline, and what passes of one model really took on it."""

    hardware: theory.Hardware
    config: Config
    bytes_per_weight: int
    context: int  # cached tokens under the curve
    curve: tuple[measure.Point, ...]

    def measured(self, config: Config, bytes_per_weight: float, batch: int) -> tuple[measure.Point, ...]:
        """The curve, where it was measured for just that; else nothing."""
        same = presets.weights_read(config) == presets.weights_read(self.config)
        return self.curve if same and bytes_per_weight == self.bytes_per_weight and batch == 1 else ()


def measure_here(
    model: Model | None = None, tokens: Sequence[int] = CURVE, context: int = 64, seconds: float = 6.0, **options
) -> Here:
    """Measure bandwidth, arithmetic and the verify curve, in about `seconds`.

    Without a model, one of the shape "40M" with random weights is made on the spot: what a pass costs does not depend
    on what the weights say. `options` are those of `measure.interleaved_times`.
    """
    if model is None:
        model, _ = random_pair(presets.SHAPES["40M"], "cpu")
        machine.compiled()  # else these passes would be torch's: for a small model numba is loaded late, or never
    dtype = str(model.dtype).removeprefix("torch.")
    hardware = theory.Hardware(
        f"this machine, {dtype}, measured now",
        measure.read_bandwidth(model.device, seconds=seconds / 6, **options).median,
        measure.flops(model.device, model.dtype, seconds=seconds / 6, **options).median,
    )
    curve = measure.verify_curve(model, tokens, context, repeat=25, warmup=1, seconds=seconds * 2 / 3, **options)
    return Here(hardware, model.config, 1 if model.weights else model.dtype.itemsize, context, tuple(curve))


def recorded() -> list[dict]:
    """The results of `minispec bench verify` that come with the package."""
    results = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(BENCHMARKS.glob("*.json"))]
    return [result for result in results if result.get("benchmark") == "verify"]


def predicted_ratio(
    hardware: theory.Hardware, config: Config, tokens: int, bytes_per_weight: float = 2, batch: int = 1,
    context: int = 64,
) -> float:  # fmt: skip
    """v = t(M) / t(1) by the roofline alone."""
    return _seconds(hardware, config, tokens, bytes_per_weight, batch, context) / _seconds(
        hardware, config, 1, bytes_per_weight, batch, context
    )


def _seconds(hardware, config, tokens, bytes_per_weight, batch, context) -> float:
    flops, read = presets.work(config, bytes_per_weight, batch, tokens, context)
    return theory.roofline_time(read, flops, hardware)


def timing_figure(
    config: Config, machines: Sequence[theory.Hardware], bytes_per_weight: float = 2, batch: int = 1, tokens: int = 5,
    context: int = 64, measured: Sequence[measure.Point] = (), records: Sequence[Mapping] = (),
) -> go.Figure:  # fmt: skip
    """t(M)/t(1) against M: a line per machine by the roofline, dots where it was measured, a mark at `tokens`.

    `measured` belongs to the first machine; `records` are results of `bench verify` for this shape and format.
    """
    if not machines:
        raise ValueError("machines is empty: give one theory.Hardware at least, such as theory.H200")
    figure = go.Figure(layout=dict(template=TEMPLATE))
    xs = sorted({*LINE, tokens})
    hover = "M = %{x}<br>%{y:.2f} × a pass of one token"
    alone = go.Scatter(
        x=xs,
        y=xs,
        name="each token in its own pass",
        mode="lines",
        line=dict(color=GREY, width=1.5, dash="dot"),
        hoverinfo="skip",
    )
    figure.add_trace(alone)
    # This machine comes last and on top: the lines lie on one another wherever both passes are free.
    for hardware, colour, size in reversed([*zip(machines, COLOURS, (2, 6), strict=False)]):
        ratios = [predicted_ratio(hardware, config, m, bytes_per_weight, batch, context) for m in xs]
        line = go.Scatter(
            x=xs, y=ratios, name=f"roofline: {hardware.name}", mode="lines", line=dict(color=colour, width=size)
        )
        mark = go.Scatter(
            x=[tokens],
            y=[ratios[xs.index(tokens)]],
            name="your M",
            mode="markers",
            marker=dict(symbol="circle-open", size=12 + 2 * size, color=colour, line=dict(width=3)),
            showlegend=False,
        )
        figure.add_traces([line, mark])
    if measured:
        one = next(p.time.median for p in measured if p.tokens == 1)
        figure.add_trace(
            go.Scatter(
                x=[p.tokens for p in measured],
                y=[p.ratio for p in measured],
                error_y=dict(
                    type="data",
                    symmetric=False,
                    array=[(p.time.high - p.time.median) / one for p in measured],
                    arrayminus=[(p.time.median - p.time.low) / one for p in measured],
                ),
                name="measured: this machine (quartiles)",
                mode="markers",
                marker=dict(size=8, color=COLOURS[0]),
            )
        )
    for record in records:
        figure.add_trace(
            go.Scatter(
                x=[row["tokens"] for row in record["results"]],
                y=[row["ratio"] for row in record["results"]],
                name=f"measured: {_place(record)}",
                mode="markers",
                marker=dict(size=8, symbol="square", color=COLOURS[1]),
            )
        )
    figure.update_traces(hovertemplate=hover)
    figure.update_layout(
        title="What a forward pass over M tokens per sequence costs, in passes over one",
        xaxis=dict(title="M, tokens per sequence in the pass", type="log", tickvals=[2**n for n in range(9)]),
        yaxis=dict(title="t(M) / t(1)", type="log", tickvals=[2**n for n in range(9)], range=[-0.25, 2.45]),
        legend=dict(orientation="h", y=-0.22),
        margin=dict(b=110),
        height=430,
    )
    return figure


def _place(record: Mapping) -> str:
    gpus = record["machine"]["gpus"]
    return gpus[0]["name"] if gpus else record["machine"]["cpu"]


def timing(here: Here | None = None) -> Panel:
    """The verify curve under sliders. `here` is what `measure_here` found; without it only rooflines are shown."""
    machines = [here.hardware] if here else []
    machines.append(theory.H200)
    context = here.context if here else 64
    records = recorded()

    def draw(tokens: int, model: str, stored: float, batch: int):
        config = presets.SHAPES[model]
        points = here.measured(config, stored, batch) if here else ()
        fitting = [r for r in records if batch == 1 and _fits(r, config, stored)]
        figure = timing_figure(config, machines, stored, batch, tokens, context, points, fitting)
        words = f"{model}, weights in {presets.name_of(stored)}, {batch} × {tokens} tokens."
        for hardware in machines:
            ratio = predicted_ratio(hardware, config, tokens, stored, batch, context)
            least = presets.duration(_seconds(hardware, config, tokens, stored, batch, context))
            words += f" {hardware.name}: {ratio:.2f} × a pass of one, {least} at best;"
        if at := next((p for p in points if p.tokens == tokens), None):
            words += f" measured here {at.ratio:.2f} ×, {presets.duration(at.time.median)}."
        return figure, words.rstrip(";").removesuffix(".") + "."

    controls = {
        "tokens": presets.stops("M, tokens per sequence", CURVE, 5),
        "model": choice("model", list(presets.SHAPES), "40M" if here else "Llama-3-8B"),
        "stored": choice("weights in", presets.STORED, here.bytes_per_weight if here else 2),
        "batch": presets.stops("batch size", (1, 2, 4, 8, 16, 32, 64, 128), 1),
    }
    return Panel(draw, controls)


def _fits(record: Mapping, config: Config, bytes_per_weight: float) -> bool:
    size = getattr(torch, record["dtype"]).itemsize
    return size == bytes_per_weight and record["weight_bytes"] == size * presets.weights_read(config)
