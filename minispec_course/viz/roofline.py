"""The roofline explorer: where prefill, decoding and verification lie, for any model on any machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import ceil, floor, log10

from minispec import theory
from minispec.model import Config

from . import presets
from .axes import Axes
from .drawing import CARD, SOFT, THEME, Canvas, shorten, text_width
from .panel import Panel, choice
from .style import PALETTE
from .timing import NOW, Here, recorded, shown_first

PROMPT = 512  # tokens of the prompt whose prefill is marked
LEFT, RIGHT = 0.3, 4e6  # FLOP per byte: every pass that the controls can make is between them
HALO = "stroke:var({},{});stroke-width:4px".format(*THEME[CARD])
MACHINES = (theory.H200, theory.H100, theory.A100, theory.NEOVERSE_N1)


def place(
    hardware: theory.Hardware,
    config: Config,
    bytes_per_weight: float = 2,
    batch: int = 1,
    tokens: int = 1,
    context: int = 0,
) -> tuple[float, float]:
    """(FLOP per byte, FLOP/s at best) of a pass: a point on the roof."""
    flops, read = presets.work(config, bytes_per_weight, batch, tokens, context)
    return flops / read, theory.attainable_flops(flops / read, hardware)


def roofline_svg(
    config: Config,
    hardware: theory.Hardware,
    bytes_per_weight: float = 2,
    batch: int = 1,
    tokens: int = 1,
    context: int = 0,
    measured: Sequence[Here] = (),
    words: str = "",
) -> str:
    """FLOP/s against FLOP per byte: the roof of a machine, and on it a decode pass, a prefill and a pass of your own.

    `measured` are timed passes, each of its own model on its own machine; a roof of another machine is dotted.
    The number beside each is its M. `words`: what the picture shows, spoken.
    """
    shape = dict(bytes_per_weight=bytes_per_weight, batch=batch, context=context)
    ridge = theory.balance_point(hardware)
    every = [hardware, *(run.hardware for run in measured)]
    high = 2 * max(h.flops for h in every)
    low = min(high / 1000, LEFT / 2 * min(h.bandwidth for h in every))  # with room below the first mark's number
    marks = {
        "decode, 1 token per sequence": ("ring", PALETTE[0], 1),
        f"prefill, {PROMPT} per sequence": ("diamond", PALETTE[2], PROMPT),
        f"your pass, {tokens:,} per sequence": ("circle", PALETTE[3], tokens),
    }
    kinds = {run.what: ("circle", PALETTE[1]) if run.label == NOW else ("square", PALETTE[0]) for run in measured}
    key = {"the roof": ("roof", SOFT)} | kinds | {name: look[:2] for name, look in marks.items()}
    top = 72 + 22 * ((len(key) + 1) // 2)
    canvas = Canvas(top + 376)
    canvas.text(10, 24, f"{hardware.name}: ridge at {ridge:.3g} FLOP per byte", 15)
    for i, (name, (symbol, colour)) in enumerate(key.items()):
        x, y = 24 + 370 * (i % 2), 52 + 22 * (i // 2)
        _mark(canvas, x, y - 4, symbol, colour)
        canvas.text(x + 20, y, shorten(name, 340, 12.5), 12.5)

    chart = Axes(canvas, (112, top, 632, 330), (LEFT, RIGHT), (low, high), log="xy")
    powers = [10.0**n for n in range(ceil(log10(low)), floor(log10(high)) + 1)]
    across = [10.0**n for n in range(ceil(log10(LEFT)), floor(log10(RIGHT)) + 1)]
    title = "arithmetic intensity, FLOP per byte"
    chart.frame("", title, "arithmetic, at best", across, powers, lambda y: presets.si(y, "FLOP/s"), 98)
    x, _ = chart.at(ridge, high)
    canvas.line(x, top, x, top + 330, SOFT, 1, "2 3")
    canvas.text(x - 8, top - 8, "memory-bound", 12.5, "end").text(x + 8, top - 8, "compute-bound", 12.5)
    _roof(chart, hardware, SOFT, 3, "the roof")
    for run in measured:
        symbol, colour = kinds[run.what]
        if run.hardware != hardware:
            _roof(chart, run.hardware, colour, 2, f"roof of {run.label.split(',')[0]}", dash="2 4")
        beside = (0.0, 0.0)  # the end of the last number, which the next one may not touch
        for point in run.curve:
            flops, read = presets.work(run.config, run.bytes_per_weight, 1, point.tokens, run.context)
            flow, number = flops / point.time.median, f"{point.tokens:g}"
            x, y = chart.at(flops / read, flow)
            _mark(canvas, x, y, symbol, colour, f"{run.what}, M = {number}: {_told(flops / read, flow)}")
            if x + 6 > beside[0] or abs(y - beside[1]) > 11:
                canvas.parts.append(f'<g style="paint-order:stroke;{HALO}">')  # readable on another machine's roof
                canvas.text(x + 6, y + 15, number, 12).parts.append("</g>")
                beside = (x + 6 + text_width(number, 12), y)
    facts = {"box": chart.box, "xs": chart.xs, "ys": chart.ys}  # for the web page, which moves the marks itself
    canvas.parts.append(f"<g data-chart='{json.dumps(facts)}'>")
    for name, (symbol, colour, count) in marks.items():
        x, y = place(hardware, config, tokens=count, **shape)
        _mark(canvas, *chart.at(min(max(x, LEFT), RIGHT), y), symbol, colour, f"{name}: {_told(x, y)}")
    canvas.parts.append("</g>")
    return canvas.svg(words)


def _told(x: float, y: float) -> str:
    return f"{presets.figures(x)} FLOP per byte, {presets.si(y, 'FLOP/s')}"


def _roof(chart: Axes, hardware: theory.Hardware, colour: str, thick: float, name: str, dash: str = "") -> None:
    corners = [LEFT, theory.balance_point(hardware), RIGHT]
    chart.line(corners, [theory.attainable_flops(x, hardware) for x in corners], colour, thick, dash=dash, title=name)


def _mark(canvas: Canvas, x: float, y: float, symbol: str, colour: str, told: str = "") -> None:
    """A mark that can be moved as one; open ones are open to the eye and not to the pointer."""
    canvas.parts.append(f'<g transform="translate({x:.1f} {y:.1f})">' + (f"<title>{told}</title>" if told else ""))
    if symbol == "roof":
        canvas.line(-12, 0, 12, 0, colour, 3)
    elif symbol == "square":
        canvas.rect(-4, -4, 8, 8, colour, None, round=0)
    elif symbol == "diamond":
        canvas.path("M0 -10l10 10l-10 10l-10 -10z", colour, 3, "transparent")
    elif symbol == "ring":
        canvas.circle(0, 0, 8.5, "transparent", colour, thick=3)
    else:
        canvas.circle(0, 0, 4.5, colour)
    canvas.parts.append("</g>")


def roofline(here: Here | None = None) -> Panel:
    """The explorer, with the passes that were recorded on an H200. `here`, from `measure_here`, adds this machine and
    the passes timed on it."""
    runs = [*([here] if here else []), *recorded()]
    machines = ([here.hardware] if here else []) + list(MACHINES)
    names = {hardware.name: index for index, hardware in enumerate(machines)}

    def draw(tokens: int, batch: int, context: int, model: str, stored: float, machine: int):
        config, hardware = presets.SHAPES[model], machines[machine]
        flops, read = presets.work(config, stored, batch, tokens, context)
        seconds, ridge = theory.roofline_time(read, flops, hardware), theory.balance_point(hardware)
        limit = "memory" if flops / read < ridge else "compute"
        words = (
            f"{model}, weights in {presets.name_of(stored)}, {batch:,} × {tokens:,} tokens after {context:,} cached: "
            f"{presets.si(flops, 'FLOP')} for {presets.si(read, 'B')} read, {presets.figures(flops / read)} FLOP "
            "per byte. "
            f"The ridge is at {presets.figures(ridge)}, so the pass is {limit}-bound: "
            f"at best {presets.duration(seconds)}, "
            f"with {flops / seconds / hardware.flops:.1%} of the arithmetic in use."
        )
        return roofline_svg(config, hardware, stored, batch, tokens, context, runs, words), words

    controls = {
        "tokens": presets.stops("tokens per sequence", (1, 2, 3, 4, 5, 6, 8, 16, 32, 64, 128, 256, 512, 2048), 1),
        "batch": presets.stops("batch size", (1, 2, 4, 8, 16, 32, 64, 128, 256), 1),
        "context": presets.stops("cached tokens per sequence", (0, 256, 1024, 4096, 16_384, 131_072), 0),
        "model": choice("model", list(presets.SHAPES), shown_first(here)),
        "stored": choice("weights in", presets.STORED, here.bytes_per_weight if here else 2),
        "machine": choice("machine", names),
    }
    return Panel(draw, controls)
