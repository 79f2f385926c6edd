"""The control room: what a load of requests does to a real engine with the settings of your choice."""

from collections.abc import Mapping

from minispec.drafters import Drafter
from minispec.load.model import Model

from ..labs.load import RATES, REQUESTS, Shift, latencies, run_shift
from .drawing import Axes, Canvas, Drawing
from .panel import Panel, choice
from .style import PALETTE

# ---- the picture -----------------------------------------------------------------------------------------------------


def control_room_svg(shift: Shift, words: str = "") -> str:
    """Left: queue and batch, and blocks, over time. Right: TTFT and TPOT of every request."""
    canvas, end = Canvas(570), max(shift.end, 1e-3)
    times = [0.0, *(moment.time for moment in shift.moments)]
    counts = {
        name: [0, *(getattr(moment, name) for moment in shift.moments)] for name in ("waiting", "running", "blocks")
    }
    most = max(*counts["waiting"], *counts["running"], 1)
    chart = Axes(canvas, (50, 66, 300, 180), (0, end), (0, 1.1 * most), title="requests", x="seconds")
    chart.steps(times, counts["waiting"], PALETTE[1]).steps(times, counts["running"], PALETTE[0])
    chart = Axes(canvas, (50, 340, 300, 180), (0, end), (0, 1.1 * shift.num_blocks), title="blocks held", x="seconds")
    chart.steps(times, counts["blocks"], PALETTE[2]).level(shift.num_blocks)
    found = [(answer.sent, latencies(answer)) for answer in shift.answers]
    dots = {name: [(sent, 1000 * one[name]) for sent, one in found if one[name]] for name in ("ttft", "tpot")}
    every = [ms for some in dots.values() for _, ms in some]
    names = dict(title="latency by arrival, ms", x="arrival, seconds")
    low, high = 0.7 * min(every), 1.4 * max(every)
    powers = [10.0**n for n in range(-3, 7) if low <= 10.0**n <= high]
    chart = Axes(canvas, (440, 66, 300, 454), (0, max(1e-3, found[-1][0])), (low, high), "y", y_ticks=powers, **names)
    for (name, some), colour, symbol in zip(dots.items(), (PALETTE[3], PALETTE[5]), ("circle", "diamond"), strict=True):
        for sent, ms in some:
            chart.dot(sent, ms, colour, f"{name.upper()} {ms:.1f} ms, arrived after {sent:.2f} s", symbol, 4)
    canvas.key(50, 28, [("line", PALETTE[1], "in the queue"), ("line", PALETTE[0], "in the batch")])
    canvas.key(440, 28, [("circle", PALETTE[3], "TTFT"), ("diamond", PALETTE[5], "TPOT")])
    return canvas.svg(words)


def under_load(curves: Mapping[str, Mapping[float, tuple[float, float]]]) -> Drawing:
    """Two charts by rate: TPOT in ms, and goodput. `curves`: a way to choose k → rate → both."""
    canvas, rates = Canvas(330), sorted({rate for curve in curves.values() for rate in curve})
    names = ("median TPOT, ms", "goodput, requests per second")
    for i, (left, name) in enumerate(zip((50, 430), names, strict=True)):
        top = max(found[i] for curve in curves.values() for found in curve.values())
        chart = Axes(
            canvas, (left, 66, 300, 200), (0, 1.05 * rates[-1]), (0, 1.1 * top), title=name, x="requests per second"
        )
        for curve, colour, dash in zip(curves.values(), PALETTE, ("6 4", "2 3", ""), strict=False):
            chart.line(list(curve), [found[i] for found in curve.values()], colour, 2.5, dash)
    canvas.key(50, 28, [("line" if n > 1 else "dash", PALETTE[n], name) for n, name in enumerate(curves)])
    said = {name: [f"{tpot:.1f} ms and {good:.0f}" for tpot, good in curve.values()] for name, curve in curves.items()}
    told = "; ".join(f"{name}: {', '.join(words)}" for name, words in said.items())
    return canvas.drawing(f"Median TPOT and goodput at {', '.join(map(str, rates))} requests per second. {told}.")


def in_words(shift: Shift) -> str:
    figures = shift.figures()
    ttft, tpot, itl = (figures[f"{name}_ms"] for name in ("ttft", "tpot", "itl"))
    return (
        f"TTFT {ttft['p50']:.0f} ms at the median, max {ttft['max']:.0f} ms; TPOT {tpot['p50']:.1f} ms, max "
        f"{tpot['max']:.1f} ms; ITL p99 {itl['p99']:.1f} ms; {figures['tokens_per_second']:.0f} tokens/s; "
        f"{shift.mean_batch:.1f} requests in the batch on average over time. When the last request arrived, "
        f"{shift.left_waiting} others were still waiting for their first token."
    )


def control_room(target: Model, drafter: Drafter, count: int = REQUESTS) -> Panel:
    """Rate, speculation, batch limit and chunk size; every change serves the load anew, on this machine. The sentence
    below compares it with the run before."""
    before = []
    for k in (0, 4):
        run_shift(target, drafter, 100, k, count=4)  # warms up

    def draw(rate: float, k: int, max_num_seqs: int, max_chunk: int) -> tuple[str, str]:
        shift = run_shift(target, drafter, rate, k, max_num_seqs, max_chunk, count)
        words = f"{count} requests at {rate:g}/s, {f'k = {k}' if k else 'no speculation'}: {in_words(shift)}"
        said = words + (f" Before that: {before[-1]}" if before else "")
        before[:] = [words]
        return control_room_svg(shift, said), said

    controls = {
        "rate": choice("requests per second", RATES, 20),
        "k": choice("speculation", {"off": 0, "k = 2": 2, "k = 4": 4}, 4),
        "max_num_seqs": choice("max_num_seqs", (1, 4, 8, 16), 8),
        "max_chunk": choice("max_chunk", (16, 64, 256), 64),
    }
    return Panel(draw, controls)
