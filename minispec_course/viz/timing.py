"""Memory-bound timing: what a pass over M tokens should cost, and what it does cost, on this machine and elsewhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from minispec import measure, theory
from minispec.cpu import machine
from minispec.load.folder import usable_device
from minispec.load.handle import Model
from minispec.load.registry import BENCHMARKS
from minispec.model import Config

from ..labs.pairs import SHAPES as BENCH_SHAPES
from ..labs.pairs import random_pair
from . import light as go
from . import presets
from .panel import Panel, choice
from .style import GREY, LEGEND_ABOVE, PALETTE, TEMPLATE

CURVE = (1, 2, 3, 4, 5, 6, 8, 16, 32, 64, 128)
LINE = (*range(1, 17), *(2**n for n in range(5, 9)), 24, 48, 96, 192)
COLOURS = (PALETTE[1], PALETTE[0])  # this machine, and another
NOW = "this machine, measured just now"
ROOMY = 8 * 2**30  # bytes of a GPU that has room for a model of a billion parameters and what is recorded for it


@dataclass(frozen=True)
class Here:
    """A machine: its roofline, and what passes of one model really took on it."""

    hardware: theory.Hardware
    config: Config
    bytes_per_weight: int
    context: int  # cached tokens under the curve
    curve: tuple[measure.Point, ...]
    label: str = NOW

    @property
    def model(self) -> str:
        """The measured model, as the menus call it."""
        read = presets.weights_read(self.config)
        return next((name for name, shape in presets.SHAPES.items() if presets.weights_read(shape) == read), "a model")

    @property
    def what(self) -> str:
        return f"{self.label} ({self.model} in {presets.name_of(self.bytes_per_weight)})"

    def fits(self, config: Config, bytes_per_weight: float) -> bool:
        same = presets.weights_read(config) == presets.weights_read(self.config)
        return same and bytes_per_weight == self.bytes_per_weight

    def measured(self, config: Config, bytes_per_weight: float, batch: int) -> tuple[measure.Point, ...]:
        """The curve, where it was measured for just that; else nothing."""
        return self.curve if self.fits(config, bytes_per_weight) and batch == 1 else ()


def measure_here(
    model: Model | None = None,
    tokens: Sequence[int] = CURVE,
    context: int = 64,
    seconds: float = 6.0,
    device=None,
    **options,
) -> Here:
    """Measure bandwidth, arithmetic and the verify curve, in about `seconds`.

    Without a model, one with random weights is made on the device (None: `ms.device()`): what a pass costs does not
    depend on what the weights say. `options` are those of `measure.interleaved_times`.
    """
    model = random_model(device) if model is None else model
    dtype = str(model.dtype).removeprefix("torch.")
    hardware = theory.Hardware(
        f"this machine, {dtype}, measured just now",
        measure.read_bandwidth(model.device, seconds=seconds / 6, **options).median,
        measure.flops(model.device, model.dtype, seconds=seconds / 6, **options).median,
    )
    curve = measure.verify_curve(model, tokens, context, repeat=25, warmup=1, seconds=seconds * 2 / 3, **options)
    return Here(hardware, model.config, 1 if model.weights else model.dtype.itemsize, context, tuple(curve))


def random_model(device=None) -> Model:
    """A model so large that its pass is reading rather than overhead: "40M" on a CPU, "Llama-3.2-1B" on a GPU."""
    device = usable_device(device)
    roomy = device.type == "cuda" and torch.cuda.get_device_properties(device).total_memory >= ROOMY
    model, _ = random_pair(presets.SHAPES["Llama-3.2-1B" if roomy else "40M"], device)
    if device.type == "cuda":
        model.accelerate()  # passes as `ms.load` would give them on a GPU: recorded
    else:
        machine.compiled()  # else these passes would be torch's: for a small model numba is loaded late, or never
    return model


def recorded() -> list[Here]:
    """The results of `python -m benchmarks verify` that come with the package, each with its date and machine."""
    results = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(BENCHMARKS.glob("*.json"))]
    return [_read(result) for result in results if result.get("benchmark") == "verify"]


def _read(result: dict) -> Here:
    """A recorded curve. The roof over it is that of theory.py, which was measured on the same kind of machine."""
    gpus = result["machine"]["gpus"]
    name = gpus[0]["name"].removeprefix("NVIDIA ") if gpus else result["machine"]["cpu"]
    points = [measure.Point(r["tokens"], measure.Timing(**r["seconds"]), r["ratio"]) for r in result["results"]]
    size = getattr(torch, result["dtype"]).itemsize
    shape, label = BENCH_SHAPES[result["shape"]], f"{name}, recorded {result['date']}"
    return Here(theory.H200, shape, size, result["context"], tuple(points), label)


def predicted_ratio(
    hardware: theory.Hardware,
    config: Config,
    tokens: int,
    bytes_per_weight: float = 2,
    batch: int = 1,
    context: int = 64,
) -> float:
    """v = t(M) / t(1) by the roofline alone."""
    many, one = (presets.seconds(hardware, config, bytes_per_weight, batch, m, context) for m in (tokens, 1))
    return many / one


def timing_figure(
    config: Config,
    machines: Sequence[theory.Hardware],
    bytes_per_weight: float = 2,
    batch: int = 1,
    tokens: int = 5,
    context: int = 64,
    measured: Sequence[Here] = (),
) -> go.Figure:
    """t(M)/t(1) against M: a line per machine by the roofline, dots where it was measured, a mark at `tokens`.

    Dots are filled where they are of this model and format, else open: a ratio may stand beside another one's.
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
    for run in measured if batch == 1 else ():
        one = next(p.time.median for p in run.curve if p.tokens == 1)
        ours = run.label == NOW
        symbol = ("circle" if ours else "square") + ("" if run.fits(config, bytes_per_weight) else "-open")
        figure.add_trace(
            go.Scatter(
                x=[p.tokens for p in run.curve],
                y=[p.ratio for p in run.curve],
                error_y=dict(
                    type="data",
                    symmetric=False,
                    array=[(p.time.high - p.time.median) / one for p in run.curve],
                    arrayminus=[(p.time.median - p.time.low) / one for p in run.curve],
                ),
                name=run.what,
                mode="markers",
                marker=dict(size=8, symbol=symbol, color=COLOURS[0 if ours else 1]),
            )
        )
    figure.update_traces(hovertemplate=hover)
    figure.update_layout(
        title=dict(text="What a forward pass over M tokens per sequence costs, in passes over one", y=0.97),
        xaxis=dict(title="M, tokens per sequence in the pass", type="log", tickvals=[2**n for n in range(9)]),
        yaxis=dict(title="t(M) / t(1)", type="log", tickvals=[2**n for n in range(9)], range=[-0.25, 2.45]),
        legend=LEGEND_ABOVE,
        margin=dict(t=150, b=55),
        height=510,
    )
    return figure


def timing(here: Here | None = None) -> Panel:
    """The verify curve under sliders, with what was recorded on an H200. `here` is what `measure_here` found."""
    machines = [here.hardware] if here else []
    machines.append(theory.H200)
    context = here.context if here else 64
    runs = [*([here] if here else []), *recorded()]

    def draw(tokens: int, model: str, stored: float, batch: int):
        config = presets.SHAPES[model]
        figure = timing_figure(config, machines, stored, batch, tokens, context, runs)
        words = f"{model}, weights in {presets.name_of(stored)}, {batch} × {tokens} tokens."
        for hardware in machines:
            ratio = predicted_ratio(hardware, config, tokens, stored, batch, context)
            least = presets.duration(presets.seconds(hardware, config, stored, batch, tokens, context))
            words += f" {hardware.name}: {ratio:.2f} × a pass of one, {least} at best;"
        for run in runs:
            if at := next((p for p in run.measured(config, stored, batch) if p.tokens == tokens), None):
                words += f" {run.label}: {at.ratio:.2f} ×, {presets.duration(at.time.median)};"
        return figure, words.rstrip(";").removesuffix(".") + "."

    controls = {
        "tokens": presets.stops("M, tokens per sequence", CURVE, 5),
        "model": choice("model", list(presets.SHAPES), shown_first(here)),
        "stored": choice("weights in", presets.STORED, here.bytes_per_weight if here else 2),
        "batch": presets.stops("batch size", (1, 2, 4, 8, 16, 32, 64, 128), 1),
    }
    return Panel(draw, controls)


def shown_first(here: Here | None) -> str:
    """The model that a widget shows at first: the measured one."""
    return here.model if here and here.model in presets.SHAPES else "Llama-3-8B"
