"""The control room: what a load of requests does to a real engine with the settings of your choice."""

from collections.abc import Mapping, Sequence

from minispec.drafters import Drafter
from minispec.load.handle import Model

from ..labs.load import RATES, REQUESTS, Shift, latencies, recorded_servers, run_shift
from .drawing import Axes, Canvas
from .panel import Panel, choice
from .style import PALETTE

# ---- the picture -----------------------------------------------------------------------------------------------------


def control_room_svg(shift: Shift, recorded: Mapping[str, Sequence[tuple[float, float]]], words: str = "") -> str:
    """Left: queue and batch, and blocks, over time. Right: TTFT and TPOT of every request, and the recorded curve."""
    canvas, end = Canvas(620), max(shift.end, 1e-3)
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
    chart = Axes(canvas, (440, 66, 300, 180), (0, end), (0.7 * min(every), 1.4 * max(every)), "y", **names)
    for (name, some), colour, symbol in zip(dots.items(), (PALETTE[3], PALETTE[5]), ("circle", "diamond"), strict=True):
        for sent, ms in some:
            chart.dot(sent, ms, colour, f"{name.upper()} {ms:.1f} ms, arrived after {sent:.2f} s", symbol, 4)
    curves = [(name, curve, colour) for (name, curve), colour in zip(recorded.items(), PALETTE, strict=False)]
    rates, slowest = ([point[i] for _, curve, _ in curves for point in curve] for i in (0, 1))
    names = dict(title="a recorded server: TPOT p99 by rate, ms", x="requests per second")
    far = (0.8 * min(rates), 1.2 * max(rates))
    chart = Axes(canvas, (440, 340, 300, 180), far, (0, 1.1 * max(slowest)), "x", **names)
    for name, curve, colour in curves:
        chart.line(*zip(*curve, strict=True), colour, dash="6 4" if ":" in name else "", title=name)
    key = [("line", PALETTE[1], "waiting"), ("line", PALETTE[0], "running"), ("circle", PALETTE[3], "TTFT")]
    canvas.key(14, 24, [*key, ("diamond", PALETTE[5], "TPOT")])
    canvas.key(14, 578, [("dash" if ":" in name else "line", colour, name) for name, _, colour in curves], 12)
    return canvas.svg(words)


def in_words(shift: Shift) -> str:
    figures = shift.figures()
    ttft, tpot, itl = (figures[f"{name}_ms"] for name in ("ttft", "tpot", "itl"))
    return (
        f"TTFT {ttft['p50']:.0f} ms at the median, max {ttft['max']:.0f} ms; TPOT {tpot['p50']:.1f} ms, max "
        f"{tpot['max']:.1f} ms; ITL p99 {itl['p99']:.1f} ms; {figures['tokens_per_second']:.0f} tokens/s; "
        f"{shift.mean_batch:.1f} requests in the batch on average over time. When the last request arrived, "
        f"{shift.left_waiting} others still had no token."
    )


def control_room(target: Model, drafter: Drafter, count: int = REQUESTS) -> Panel:
    """Rate, speculation, batch limit and chunk size; every change serves the load anew, on this machine. The sentence
    below compares it with the run before."""
    recorded, before = recorded_servers(), []
    for k in (0, 4):
        run_shift(target, drafter, 100, k, count=4)  # warms up

    def draw(rate: float, k: int, max_num_seqs: int, max_chunk: int) -> tuple[str, str]:
        shift = run_shift(target, drafter, rate, k, max_num_seqs, max_chunk, count)
        words = f"{count} requests at {rate:g}/s, {f'k = {k}' if k else 'no speculation'}: {in_words(shift)}"
        said = words + (f" Before that: {before[-1]}" if before else "")
        before[:] = [words]
        return control_room_svg(shift, recorded, said), said

    controls = {
        "rate": choice("requests per second", RATES),
        "k": choice("speculation", {"off": 0, "k = 2": 2, "k = 4": 4}, 4),
        "max_num_seqs": choice("max_num_seqs", (1, 4, 8, 16), 8),
        "max_chunk": choice("max_chunk", (16, 64, 256), 64),
    }
    return Panel(draw, controls)
