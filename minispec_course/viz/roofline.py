"""The roofline explorer: where prefill, decoding and verification lie, for any model on any machine."""

import json
from collections.abc import Sequence

from minispec import theory
from minispec.model import Config

from ..labs import presets
from ..labs.passes import NOW, Here, recorded
from .drawing import SOFT, Axes, Canvas
from .panel import Panel, choice, stops
from .style import PALETTE

PROMPT = 512  # tokens of the prompt whose prefill is marked
LEFT, RIGHT = 0.3, 4e6  # FLOP per byte: every pass that the controls can make is between them


def place(hardware: theory.Hardware, config: Config, bytes_per_weight=2, batch=1, tokens=1, context=0):
    """(FLOP per byte, FLOP/s at best) of a pass: a point on the roof."""
    flops, read = presets.work(config, bytes_per_weight, batch, tokens, context)
    return flops / read, flops / theory.roofline_time(read, flops, hardware)


def roofline_svg(
    config: Config, hardware: theory.Hardware, bytes_per_weight=2, batch=1, tokens=1, context=0, measured=(), words=""
) -> str:
    """FLOP/s against FLOP per byte: the roof of a machine, and on it a decode pass, a prefill and a pass of your own.

    `measured` are timed passes, each of its own model on its own machine; a roof of another machine is dotted.
    """
    ridge, machines = theory.balance_point(hardware), [hardware, *(run.hardware for run in measured)]
    high = 2 * max(h.flops for h in machines)
    low = min(high / 1000, LEFT / 2 * min(h.bandwidth for h in machines))
    marks = {
        "decode, 1 token per sequence": ("open circle", PALETTE[0], 1),
        f"prefill, {PROMPT} per sequence": ("open diamond", PALETTE[2], PROMPT),
        f"your pass, {tokens:,} per sequence": ("circle", PALETTE[3], tokens),
    }
    looks = {run.what: ("circle", PALETTE[1]) if run.label == NOW else ("square", PALETTE[0]) for run in measured}
    canvas = Canvas(510)
    canvas.text(10, 24, f"{hardware.name}: ridge at {ridge:.3g} FLOP per byte", 15)
    key = {"the roof": ("line", SOFT)} | looks | {name: look[:2] for name, look in marks.items()}
    canvas.key(14, 52, [(*look, name) for name, look in key.items()])
    names = dict(x="arithmetic intensity, FLOP per byte", y="arithmetic, at best", room=98)
    named = lambda y: presets.si(y, "FLOP/s")  # noqa: E731
    chart = Axes(canvas, (112, 136, 632, 320), (LEFT, RIGHT), (low, high), "xy", **names, y_name=named)
    x, _ = chart.at(ridge, high)
    canvas.line(x, 136, x, 456, SOFT, 1, "2 3")
    canvas.text(x - 8, 128, "memory-bound", 12.5, "end").text(x + 8, 128, "compute-bound", 12.5)
    _roof(chart, hardware, SOFT, 3, "the roof")
    for run in measured:
        symbol, colour = looks[run.what]
        if run.hardware != hardware:
            _roof(chart, run.hardware, colour, 2, f"roof of {run.label.split(',')[0]}", "2 4")
        for point in run.curve:
            flops, read = presets.work(run.config, run.bytes_per_weight, 1, point.tokens, run.context)
            flow = flops / point.time.median
            told = f"{run.what}, M = {point.tokens:g}: {_told(flops / read, flow)}"
            chart.dot(flops / read, flow, colour, told, symbol, 4.5)
    facts = {"box": chart.box, "xs": chart.xs, "ys": chart.ys}  # for the web page, which moves the marks itself
    with canvas.group(f"data-chart='{json.dumps(facts)}'"):
        for name, (symbol, colour, count) in marks.items():
            x, y = place(hardware, config, bytes_per_weight, batch, count, context)
            chart.dot(x, y, colour, f"{name}: {_told(x, y)}", symbol, 8 if symbol.startswith("open") else 5)
    return canvas.svg(words)


def _told(x: float, y: float) -> str:
    return f"{presets.figures(x)} FLOP per byte, {presets.si(y, 'FLOP/s')}"


def _roof(chart: Axes, hardware: theory.Hardware, colour: str, thick: float, name: str, dash: str = "") -> None:
    corners = [LEFT, theory.balance_point(hardware), RIGHT]
    chart.line(corners, [x / theory.roofline_time(1, x, hardware) for x in corners], colour, thick, dash, name)


def roofline(here: Here | None = None) -> Panel:
    """The explorer, with the passes that were recorded on an H200. `here`, from `measure_here`, adds this machine and
    the passes timed on it."""
    runs: Sequence[Here] = [*([here] if here else []), *recorded()]
    machines = ([here.hardware] if here else []) + list(presets.MACHINES)
    shown = here.model if here and here.model in presets.SHAPES else "Llama-3-8B"

    def draw(tokens: int, batch: int, context: int, model: str, stored: float, machine: int) -> tuple[str, str]:
        config, hardware = presets.SHAPES[model], machines[machine]
        flops, read = presets.work(config, stored, batch, tokens, context)
        seconds, ridge = theory.roofline_time(read, flops, hardware), theory.balance_point(hardware)
        limit = "memory" if flops / read < ridge else "compute"
        words = (
            f"{model}, weights in {presets.name_of(stored)}, {batch:,} × {tokens:,} tokens after {context:,} cached: "
            f"{presets.si(flops, 'FLOP')} for {presets.si(read, 'B')} read, {presets.figures(flops / read)} FLOP "
            f"per byte. The ridge is at {presets.figures(ridge)}, so the pass is {limit}-bound: at best "
            f"{presets.duration(seconds)}, with {flops / seconds / hardware.flops:.1%} of the arithmetic in use."
        )
        return roofline_svg(config, hardware, stored, batch, tokens, context, runs, words), words

    controls = {
        "tokens": stops("tokens per sequence", (1, 2, 3, 4, 5, 6, 8, 16, 32, 64, 128, 256, 512, 2048), 1),
        "batch": stops("batch size", (1, 2, 4, 8, 16, 32, 64, 128, 256), 1),
        "context": stops("cached tokens per sequence", (0, 256, 1024, 4096, 16_384, 131_072), 0),
        "model": choice("model", list(presets.SHAPES), shown),
        "stored": choice("weights in", presets.STORED, here.bytes_per_weight if here else 2),
        "machine": choice("machine", {hardware.name: index for index, hardware in enumerate(machines)}),
    }
    return Panel(draw, controls)
