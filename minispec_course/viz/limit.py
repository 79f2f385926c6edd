"""Near the machine's limit (lesson 13): one token kernel by kernel, the ladder's steps, how a kernel's work is cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from ..labs import ladder
from ..labs.limit import REST, Recording, in_words, kind_of, machine_of, recorded_timelines, stored_limit
from ..labs.presets import si
from ..labs.timeline import Event, Timeline
from .drawing import Axes, Canvas
from .panel import Panel, choice, slider
from .style import GREY, PALETTE

COLOURS = {"product": PALETTE[0], "attention": PALETTE[2], "copy": PALETTE[4], REST: PALETTE[1]}
PRODUCT, ATTENTION = "skinny product, by tile", "attention, by splits"


# ---- kernel by kernel ------------------------------------------------------------------------------------------------


def kernel_timeline_svg(timeline: Timeline, left: float, right: float, words: str = "") -> str:
    """Two lanes over µs: the host's launches above the device's kernels, in colours by what they are for, between
    `left` and `right`. A token has up to a thousand events, so all of a colour are one element."""
    canvas = Canvas(260)
    lanes = ["host: launches", "device: kernels"]
    shape = dict(ys=(2, 0), y_ticks=(0.5, 1.5), y_name=lambda y: lanes[int(y)], x="µs")
    chart = Axes(canvas, (112, 24, 634, 140), (left, max(right, left + 1e-9)), **shape)

    def shown(events: Sequence[Event]) -> list[Event]:
        return [e for e in events if e.end >= left and e.start <= right]

    def boxes(lane: int, events: Sequence[Event], colour: str) -> None:
        spans = [(chart.at(e.start, lane + 0.15), chart.at(e.end, lane + 0.85)) for e in events]
        canvas.cells([(x, y, max(end - x, 0.8), low - y) for (x, y), (end, low) in spans], colour)

    launches, kernels = shown(timeline.launches), shown(timeline.kernels)
    boxes(0, launches, GREY)
    for kind, colour in COLOURS.items():
        boxes(1, [e for e in kernels if kind_of(e.name) == kind], colour)
    for lane, events in enumerate((launches, kernels)):
        for e in events if len(events) <= 200 else ():  # more are too narrow to be pointed at
            (x, y), (end, low) = chart.at(e.start, lane + 0.15), chart.at(e.end, lane + 0.85)
            told = f"{e.name}, from {e.start:.1f} µs, {e.duration:.1f} µs long"
            canvas.rect(x, y, max(end - x, 0.8), low - y, "transparent", None, round=0, title=told)
    canvas.key(14, 222, [(GREY, "launch, by the host"), *((colour, kind) for kind, colour in COLOURS.items())], 12)
    return canvas.svg(words)


def kernel_timeline(*live: Recording, recorded: Sequence[Recording] | None = None) -> Panel:
    """The timelines to look at: `live` ones of this machine, from `live_timelines`, and the recorded ones."""
    recordings = [*(recorded_timelines() if recorded is None else recorded), *live]
    told = cache(lambda recording, step: in_words(recordings[recording].timelines[step]))

    def draw(recording: int, step: str, window: float, position: int) -> tuple[str, str]:
        chosen = recordings[recording]
        name = f"{chosen.model}, {chosen.machine}"
        timeline = chosen.timelines.get(step)
        if timeline is None:
            return kernel_timeline_svg(
                Timeline([], []), 0, 1
            ), f"{name} has no timeline of the step {step}: choose another."
        end = max(e.end for lane in timeline for e in lane)
        width = min(window or end, end)
        words, left = f"{name}, {step}: {told(recording, step)}", (end - width) * position / 100
        if not chosen.on_gpu:
            words += " This machine has no GPU, so nothing was captured as a graph: each bar is one of torch's "
            words += "operators, and the host itself runs it."
        return kernel_timeline_svg(timeline, left, left + width, words), words

    steps = [step for step in ladder.STEPS if any(step in one.timelines for one in recordings)]
    windows = {"the whole token": 0, "2,000 µs": 2000, "500 µs": 500, "100 µs": 100}
    controls = {
        "recording": choice("model and machine", {f"{r.model}, {r.machine}": i for i, r in enumerate(recordings)}),
        "step": choice("step", steps),
        "window": choice("show", windows, 500),  # all of a token is more bars than pixels, and looks busy
        "position": slider("from, %", 20, 0, 100),
    }
    return Panel(draw, controls)


# ---- tiles and splits ------------------------------------------------------------------------------------------------


def tile_sizes_svg(sweep: Mapping, bandwidth: float, chosen: int | None = None, words: str = "") -> str:
    """GB/s against the matrix rows per program, a line per strip width, or against the splits of attention.

    `sweep` is what labs.tiles measured, `bandwidth` the machine's; `chosen` rows are marked.
    """
    rows, by = sweep["results"], "splits" if sweep["results"] and "splits" in sweep["results"][0] else "rows"
    xs = [row[by] for row in rows] or [16, 128]
    levels = {
        "torch's own": (sweep["torch"]["bytes_per_second"], GREY),
        "read bandwidth, measured": (bandwidth, PALETTE[1]),
    }
    top = 1.1e-9 * max([*(row["bytes_per_second"] for row in rows), *(rate for rate, _ in levels.values())])
    canvas, title = Canvas(430), "matrix rows per program" if by == "rows" else "splits of the context"
    ends = (min(xs) / 1.2, max(xs) * 1.2), (0, top)
    names = dict(x=title, y="read, GB/s", x_ticks=sorted(set(xs)), room=56)
    chart = Axes(canvas, (76, 70, 670, 300), *ends, "x", **names)
    key = []
    for width, colour in zip(sorted({row.get("wide", 0) for row in rows}), PALETTE, strict=False):
        some = [row for row in rows if row.get("wide", 0) == width]
        chart.line([row[by] for row in some], [row["bytes_per_second"] / 1e9 for row in some], colour)
        for row in some:
            told = f"{row[by]} {by}: {row['bytes_per_second'] / 1e9:,.3g} GB/s, {row['programs']} programs"
            chart.dot(row[by], row["bytes_per_second"] / 1e9, colour, told, r=7 if row[by] == chosen else 4)
        key.append(("line", colour, f"strips of {width}" if width else "flash decoding"))
    for name, (rate, colour) in levels.items():
        chart.level(rate / 1e9, colour, "6 4", f"{name}: {rate / 1e9:,.3g} GB/s")
        key.append(("dash", colour, name))
    canvas.key(14, 24, key)
    return canvas.svg(words)


def tile_sizes(live: Mapping | None = None, recorded: Mapping | None = None) -> Panel:
    """The sweeps to look at. `live` is a result of this machine with "tiles", "splits" and "bandwidth", as
    `python -m benchmarks limit` makes it."""
    recorded = stored_limit() if recorded is None else recorded
    runs = {machine_of(recorded): recorded} | ({} if live is None else {"this machine, measured now": live})

    def draw(kernel: str, rows: int, machine: str) -> tuple[str, str]:
        bandwidth = runs[machine]["bandwidth"]["median"]
        sweep = runs[machine]["tiles" if kernel == PRODUCT else "splits"]
        if not sweep["results"]:
            words = f"Our kernels did not run there: {sweep['unavailable']}."
            return tile_sizes_svg(sweep, bandwidth, words=words), words
        speed = lambda row: row["bytes_per_second"]  # noqa: E731
        reached = lambda row: f"{si(speed(row), 'B/s')}, {speed(row) / bandwidth:.0%} of the read bandwidth"  # noqa: E731
        best = max(sweep["results"], key=speed)
        if kernel == ATTENTION:
            words = f"{machine}: attention of one token over {sweep['context']:,} cached ones reads "
            words += (
                f"{si(sweep['bytes'], 'B')}. It is fastest with {best['splits']} splits, {best['programs']} programs: "
            )
            words += f"{reached(best)}."
        else:
            best_here = max([row for row in sweep["results"] if row["rows"] == rows] or [best], key=speed)
            shared = f" for {sweep['multiprocessors']} SMs" if sweep["multiprocessors"] else ""
            words = f"{machine}: W is {sweep['shape'][0]:,} × {sweep['shape'][1]:,}, {si(sweep['bytes'], 'B')}. With "
            words += (
                f"{best_here['rows']} matrix rows per program there are {best_here['programs']} programs{shared}, and "
            )
            words += f"the best strip, {best_here['wide']} wide, reads {reached(best_here)}. The best tile of all is "
            words += f"{best['rows']} × {best['wide']}."
        if sweep["interpreted"]:
            words += " Triton's interpreter ran these kernels on a CPU: their results are right, but these speeds say "
            words += "nothing about a GPU."
        return tile_sizes_svg(sweep, bandwidth, rows if kernel == PRODUCT else None, words), words

    kernels = choice("kernel", [PRODUCT, ATTENTION])
    controls = {"kernel": kernels, "rows": choice("matrix rows per program", [16, 32, 64, 128])}
    return Panel(draw, controls | {"machine": choice("machine", list(runs))})
