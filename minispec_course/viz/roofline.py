"""The roofline, drawn from a function `roofline(bytes, flops, bandwidth, peak)`: the learner's own in lesson 01."""

from collections.abc import Callable

from minispec import theory

from ..labs import presets
from ..labs.passes import Here, recorded
from .drawing import SOFT, Axes, Canvas, Drawing
from .style import PALETTE

LEFT, RIGHT, READ = 0.4, 4000.0, 1e9  # FLOP per byte; the bytes of the passes that make up a roof


def roof(roofline: Callable, here: Here | None = None) -> Drawing:
    """The roofs of an H200 and of the machine `here` (`measure_here`), and below them the passes that were timed."""
    runs = [*recorded(), *([here] if here else [])]
    high = 2 * max(run.hardware.flops for run in runs)
    low = LEFT / 4 * min(run.hardware.bandwidth for run in runs)
    canvas = Canvas(430)
    names = dict(x="arithmetic intensity, FLOP per byte", y="FLOP per second", room=98)
    chart = Axes(
        canvas, (112, 70, 632, 300), (LEFT, RIGHT), (low, high), "xy", **names, y_name=lambda y: presets.si(y, "FLOP/s")
    )
    words = []
    for number, run in enumerate(runs):
        colour = PALETTE[1] if run is here else PALETTE[0]
        canvas.key(14, 24 + 22 * number, [("line", colour, f"roof of {run.label}"), ("circle", colour, passes_of(run))])
        chart.line(*zip(*roof_of(roofline, run.hardware), strict=True), colour, 2.5, title=f"roof of {run.label}")
        x, _ = chart.at(theory.balance_point(run.hardware), low)
        ridge = presets.figures(theory.balance_point(run.hardware))
        canvas.line(x, 70, x, 370, colour, 1, "2 3").text(x + 4, 363, f"ridge {ridge}", 12, colour=SOFT)
        words.append(f"{run.label}: ridge at {ridge} FLOP per byte")
        for point in run.curve:
            flops, read = presets.work(run.config, run.bytes_per_weight, 1, point.tokens, run.context)
            told = f"M = {point.tokens}: {presets.si(flops / point.time.median, 'FLOP/s')}"
            chart.dot(flops / read, flops / point.time.median, colour, told, r=4.5)
    words = f"Rooflines and timed passes. {'; '.join(words)}."
    return Drawing(canvas.svg(words), words)


def roof_of(roofline: Callable, machine: theory.Hardware) -> list[tuple[float, float]]:
    """(FLOP per byte, FLOP/s) along a roof, by the time that the function gives for a pass."""
    steps = sorted([LEFT * (RIGHT / LEFT) ** (i / 60) for i in range(61)] + [theory.balance_point(machine)])
    return [(x, x * READ / roofline(READ, x * READ, machine.bandwidth, machine.flops)[0]) for x in steps]


def passes_of(run: Here) -> str:
    return f"its passes, M = 1 to {run.curve[-1].tokens} ({run.model})"
