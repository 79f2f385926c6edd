"""Memory-bound timing: what a pass over M tokens should cost, and what it does cost, on this machine and elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from minispec import theory
from minispec.model import Config

from ..labs import presets
from ..labs.passes import CURVE, NOW, Here, predicted_ratio, recorded
from .drawing import RULE, Axes, Canvas
from .panel import Panel, choice, stops
from .style import PALETTE

LINE = (*range(1, 17), *(2**n for n in range(5, 9)), 24, 48, 96, 192)
COLOURS = (PALETTE[1], PALETTE[0])  # this machine, and another


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
