"""Near the machine's limit (lesson 13): one token, kernel by kernel."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from ..labs import ladder
from ..labs.limit import REST, Recording, in_words, kind_of, recorded_timelines
from ..labs.timeline import Event, Timeline
from .drawing import Axes, Canvas
from .panel import Panel, choice, slider
from .style import GREY, PALETTE

COLOURS = {"product": PALETTE[0], "attention": PALETTE[2], "copy": PALETTE[4], REST: PALETTE[1]}


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
