"""Memory-bound timing: what a pass over M tokens should cost, and what it does cost, on this machine and elsewhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from minispec import measure, theory
from minispec.cpu import machine
from minispec.drafters.quantized import quantized_copy
from minispec.load.folder import usable_device
from minispec.load.handle import Model
from minispec.load.quantize import to_int8
from minispec.load.registry import BENCHMARKS
from minispec.model import Config

from ..labs.pairs import SHAPES as BENCH_SHAPES
from ..labs.pairs import random_pair
from . import presets
from .drawing import RULE, Axes, Canvas
from .panel import Panel, choice, stops
from .style import PALETTE

CURVE = (1, 2, 3, 4, 5, 6, 8, 16, 32, 64, 128)
LINE = (*range(1, 17), *(2**n for n in range(5, 9)), 24, 48, 96, 192)
COLOURS = (PALETTE[1], PALETTE[0])  # this machine, and another
NOW = "this machine, measured just now"
ROOMY = 8 * 2**30  # bytes of a GPU that has room for a model of a billion parameters and what is captured for it


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


def measure_here(
    model: Model | None = None, tokens: Sequence[int] = CURVE, context=64, seconds=6.0, device=None, **options
) -> Here:
    """Measure bandwidth, arithmetic and the verify curve, in about `seconds`.

    Without a model, one with random weights is made on the device (None: `ms.device()`): what a pass costs does not
    depend on what the weights say. `options` are those of `measure.interleaved_times`.
    """
    model = random_model(device) if model is None else model
    bandwidth = measure.read_bandwidth(model.device, seconds=seconds / 6, **options).median
    flops = measure.flops(model.device, model.dtype, seconds=seconds / 6, **options).median
    name = f"this machine, {str(model.dtype).removeprefix('torch.')}, measured just now"
    curve = measure.verify_curve(model, tokens, context, repeat=25, warmup=1, seconds=seconds * 2 / 3, **options)
    stored = 1 if model.weights else model.dtype.itemsize
    return Here(theory.Hardware(name, bandwidth, flops), model.config, stored, context, tuple(curve))


def random_model(device=None) -> Model:
    """A model so large that its pass is reading rather than overhead: "40M" on a CPU, "Llama-3.2-1B" on a GPU."""
    device = usable_device(device)
    roomy = device.type == "cuda" and torch.cuda.get_device_properties(device).total_memory >= ROOMY
    model, _ = random_pair(presets.SHAPES["Llama-3.2-1B" if roomy else "40M"], device)
    if device.type == "cuda":
        model.accelerate()  # passes as `ms.load` would give them on a GPU: captured
    else:
        machine.compiled()  # else these passes would be torch's: for a small model numba is loaded late, or never
    return model


def measure_both(model: Model, tokens: Sequence[int] = (1, 2, 3, 4, 5, 6, 8), context=64, **options) -> list[Here]:
    """A float32 model on a CPU and the same model in int8, measured one after the other."""
    if model.device.type != "cpu" or model.weights:
        raise ValueError(f"model={model!r}: give a float32 model on a CPU, the int8 one is made of it")
    small = quantized_copy(model)
    if not small.weights:  # a small model
        to_int8(small.transformer)
    return [measure_here(each, tokens, context, **options) for each in (model, small)]


def recorded() -> list[Here]:
    """The results of `python -m benchmarks verify` that come with the package, each with its date and machine."""
    results = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(BENCHMARKS.glob("*.json"))]
    return [_read(result) for result in results if result.get("benchmark") == "verify"]


def _read(result: dict) -> Here:
    """A recorded curve. The roof over it is that of theory.py, which was measured on the same kind of machine."""
    gpus = result["machine"]["gpus"]
    name = gpus[0]["name"].removeprefix("NVIDIA ") if gpus else result["machine"]["cpu"]
    points = [measure.Point(r["tokens"], measure.Timing(**r["seconds"]), r["ratio"]) for r in result["results"]]
    size, label = getattr(torch, result["dtype"]).itemsize, f"{name}, recorded {result['date']}"
    return Here(theory.H200, BENCH_SHAPES[result["shape"]], size, result["context"], tuple(points), label)


def predicted_ratio(hardware: theory.Hardware, config: Config, tokens: int, bytes_per_weight=2, batch=1, context=64):
    """v = t(M) / t(1) by the roofline alone."""
    many, one = (presets.seconds(hardware, config, bytes_per_weight, batch, m, context) for m in (tokens, 1))
    return many / one


def timing_svg(
    config: Config, machines: Sequence, bytes_per_weight=2, batch=1, tokens=5, context=64, measured=(), words=""
) -> str:
    """t(M)/t(1) against M: a line per machine by the roofline, dots where it was measured, a ring at `tokens`.

    Dots are filled where they are of this model and format, else open: a ratio may stand beside another one's.
    """
    xs, canvas, powers = sorted({*LINE, tokens}), Canvas(500), [2**n for n in range(9)]
    title = "what a forward pass over M tokens per sequence costs, in passes over one"
    names = dict(title=title, x="M, tokens per sequence in the pass", y="t(M) / t(1)")
    chart = Axes(canvas, (66, 130, 680, 310), (0.9, 280), (0.7, 280), "xy", **names, x_ticks=powers, y_ticks=powers)
    chart.line((1, 256), (1, 256), RULE, 1.5, "2 3")
    key = [("dash", RULE, "each token in its own pass")]
    for hardware, colour, thick in reversed([*zip(machines, COLOURS, (2, 6), strict=False)]):  # this one on top
        ratios = [predicted_ratio(hardware, config, m, bytes_per_weight, batch, context) for m in xs]
        chart.line(xs, ratios, colour, thick)
        at, told = ratios[xs.index(tokens)], f"{hardware.name}, M = {tokens}: "
        chart.dot(tokens, at, colour, f"{told}{at:.2f} × a pass of one token", "open circle", 6 + thick)
        key.append(("line", colour, f"roofline: {hardware.name}"))
    for run in measured if batch == 1 else ():
        one, ours = next(p.time.median for p in run.curve if p.tokens == 1), run.label == NOW
        symbol, colour = "circle" if ours else "square", COLOURS[not ours]
        symbol = symbol if run.fits(config, bytes_per_weight) else f"open {symbol}"
        for p in run.curve:
            told = f"{run.what}, M = {p.tokens:g}: {p.ratio:.2f} × a pass of one token"
            chart.dot(p.tokens, p.ratio, colour, told, symbol, 4, (p.time.low / one, p.time.high / one))
        key.append((symbol, colour, run.what))
    canvas.key(14, 24, key)
    return canvas.svg(words)


def timing(here: Here | None = None) -> Panel:
    """The verify curve under sliders, with what was recorded on an H200. `here` is what `measure_here` found."""
    machines = [*([here.hardware] if here else []), theory.H200]
    context, runs = here.context if here else 64, [*([here] if here else []), *recorded()]

    def draw(tokens: int, model: str, stored: float, batch: int) -> tuple[str, str]:
        config = presets.SHAPES[model]
        words = f"{model}, weights in {presets.name_of(stored)}, {batch} × {tokens} tokens."
        for hardware in machines:
            ratio = predicted_ratio(hardware, config, tokens, stored, batch, context)
            least = presets.duration(presets.seconds(hardware, config, stored, batch, tokens, context))
            words += f" {hardware.name}: {ratio:.2f} × a pass of one, {least} at best;"
        for run in runs:
            timed = [p for p in run.curve if p.tokens == tokens and batch == 1 and run.fits(config, stored)]
            words += "".join(f" {run.label}: {p.ratio:.2f} ×, {presets.duration(p.time.median)};" for p in timed)
        words = words.rstrip(";") + "."
        return timing_svg(config, machines, stored, batch, tokens, context, runs, words), words

    controls = {
        "tokens": stops("M, tokens per sequence", CURVE, 5),
        "model": choice("model", list(presets.SHAPES), shown_first(here)),
        "stored": choice("weights in", presets.STORED, here.bytes_per_weight if here else 2),
        "batch": stops("batch size", (1, 2, 4, 8, 16, 32, 64, 128), 1),
    }
    return Panel(draw, controls)


def shown_first(here: Here | None) -> str:
    """The model that a widget shows at first: the measured one."""
    return here.model if here and here.model in presets.SHAPES else "Llama-3-8B"
