"""One token, kernel by kernel: when the host asked for each, when the device ran it, and when it ran nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from statistics import median
from typing import NamedTuple

import numpy as np

from minispec.load.handle import Model

from ..labs import ladder
from ..labs.timeline import Event, Timeline, record, unpacked
from . import light as go
from .limit_steps import machine_of, stored_limit
from .panel import Panel, choice, slider
from .style import GREY, PALETTE, TEMPLATE

# What a kernel is for, by its name; the first that fits. Names are those of cuBLAS, torch and our own kernels.
KINDS = {
    "product": r"gemm|gemv|gemvx|nvjet|cutlass|cublas|splitk|dot_kernel|_product|^(add|b)?mm$|linear|matmul",
    "attention": r"_attend|_merge_splits|flash|softmax|attention",
    "copy": r"memcpy|memset|copy|cat|index|gather|scatter|embedding|select|slice|clone|fill|arange",
}
REST = "norm, RoPE, SwiGLU, sums and the like"
COLOURS = {"product": PALETTE[0], "attention": PALETTE[2], "copy": PALETTE[4], REST: PALETTE[1]}
LANES = DEVICE, HOST = "device: kernels", "host: launches"  # from below
PIXELS = 800  # about as many as the picture is wide


class Recording(NamedTuple):
    """Timelines of one model on one machine, by step."""

    model: str
    machine: str
    on_gpu: bool
    timelines: Mapping[str, Timeline]

    def __str__(self) -> str:
        return f"{self.model}, {self.machine}"


@cache
def kind_of(name: str) -> str:
    return next((kind for kind, names in KINDS.items() if re.search(names, name, re.IGNORECASE)), REST)


def recorded_timelines(result: Mapping | None = None) -> list[Recording]:
    """Those in a result of `python -m benchmarks limit`; without one, in what the package ships."""
    result = stored_limit() if result is None else result
    return [
        Recording(
            name,
            machine_of(result),
            result["recorded"],
            {step: unpacked(packed) for step, packed in model["timelines"].items()},
        )
        for name, model in result["models"].items()
    ]


def live_timelines(model: Model, prompt: Sequence[int], steps: Sequence[str] = ladder.DRAWN) -> Recording:
    """The same of a model where it lives, profiled now."""
    every = ladder.ways(model, None, prompt, 1, len(prompt) + 64)
    for step in steps:
        for _ in range(2):  # what is compiled and recorded once
            every[step].launch()
    timelines = {step: record(every[step].launch, model.device) for step in steps}
    return Recording(
        model.name, f"this machine ({model.device.type}), profiled now", model.device.type == "cuda", timelines
    )


def kernel_timeline_figure(timeline: Timeline, start: float = 0.0, width: float | None = None) -> go.Figure:
    """Two lanes over µs: the host's launches above the device's kernels, in colours by what they are for. Only events
    between `start` and `start + width` are shown.

    A token has up to a thousand events. As bars, each would be an element of the page; here all of a colour are one.
    """
    end = max((e.end for lane in timeline for e in lane), default=0.0)
    left, right = start, end if width is None else start + width
    figure = go.Figure(layout=dict(template=TEMPLATE))

    def rectangles(events: list[Event], lane: str, name: str, colour: str) -> None:
        starts, ends = (np.array(some, np.float32) for some in ([e.start for e in events], [e.end for e in events]))
        ends = np.maximum(ends, starts + (right - left) / PIXELS)  # what is shorter could not be seen
        x = np.stack([starts, starts, ends, ends], 1).ravel()  # to the next along the lower edge: no area
        y = np.tile(np.float32([-0.3, 0.3, 0.3, -0.3]), len(events)) + LANES.index(lane)
        figure.add_scatter(x=x, y=y, mode="none", fill="toself", fillcolor=colour, name=name, hoverinfo="skip")

    def told(events: list[Event], lane: str) -> None:
        """What the pointer finds: the middle of every event, and more of the long ones."""
        points = []
        for e in events:
            parts = 1 + int(20 * e.duration / ((right - left) or 1))
            points += [(e.start + (i + 0.5) * e.duration / parts, e) for i in range(parts)]
        figure.add_scatter(
            x=np.array([x for x, _ in points], np.float32),
            y=np.full(len(points), LANES.index(lane), np.float32),
            customdata=[[e.name, round(e.start, 1), round(e.duration, 1)] for _, e in points],
            mode="none",
            showlegend=False,
            hovertemplate="%{customdata[0]}<br>from %{customdata[1]} µs, %{customdata[2]} µs long<extra></extra>",
        )

    def shown(lane: list[Event]) -> list[Event]:
        return [e for e in lane if e.end >= left and e.start <= right]

    launches, kernels = shown(timeline.launches), shown(timeline.kernels)
    rectangles(launches, HOST, "launch, by the host", GREY)
    for kind, colour in COLOURS.items():
        rectangles([e for e in kernels if kind_of(e.name) == kind], DEVICE, kind, colour)
    told(launches, HOST)
    told(kernels, DEVICE)
    figure.update_layout(
        hovermode="closest",
        xaxis=dict(title="µs", range=[left, right]),
        yaxis=dict(
            tickvals=[0, 1], ticktext=list(LANES), range=[-0.5, 1.5], showgrid=False, zeroline=False, automargin=False
        ),
        legend=dict(orientation="h", y=-0.3),
        height=320,
        margin=dict(l=125, r=20, t=30, b=100),
    )
    return figure


def in_words(timeline: Timeline) -> str:
    """What the picture shows: counts, and how much of the time the device ran something."""
    gap, kernel = (median(some) if some else 0.0 for some in (timeline.gaps, [e.duration for e in timeline.kernels]))
    idle = 1 - timeline.busy / timeline.span if timeline.span else 0.0
    products = sum(e.duration for e in timeline.kernels if kind_of(e.name) == "product") / (timeline.busy or 1.0)
    return (
        f"{len(timeline.kernels)} kernels by {len(timeline.launches)} launches in {timeline.span:,.0f} µs. Kernels "
        f"run for {timeline.busy:,.0f} µs of it ({products:.0%} of that for products), so the device is idle for "
        f"{max(0.0, idle):.0%}. The median kernel takes {kernel:.1f} µs, the median gap between two {gap:.1f} µs."
    )


def kernel_timeline(*live: Recording, recorded: Sequence[Recording] | None = None) -> Panel:
    """The timelines to look at: `live` ones of this machine, from `live_timelines`, and the recorded ones."""
    recordings = [*(recorded_timelines() if recorded is None else recorded), *live]
    names = {str(recording): index for index, recording in enumerate(recordings)}
    steps = [step for step in ladder.STEPS if any(step in one.timelines for one in recordings)]

    @cache
    def told(recording: int, step: str) -> str:
        return in_words(recordings[recording].timelines[step])

    def draw(recording: int, step: str, window: float, position: int):
        chosen = recordings[recording]
        if step not in chosen.timelines:
            empty = Timeline([], [])
            return kernel_timeline_figure(empty), f"{chosen} has no timeline of the step {step}: choose another."
        timeline = chosen.timelines[step]
        end = max(e.end for lane in timeline for e in lane)
        width = end if window == 0 else min(window, end)
        words = f"{chosen}, {step}: {told(recording, step)}"
        if not chosen.on_gpu:
            words += (
                " This machine has no GPU, so nothing was recorded as a graph: each bar is one of torch's operators, "
                "and the host itself runs it."
            )
        return kernel_timeline_figure(timeline, (end - width) * position / 100, width), words

    windows = {"the whole token": 0, "2,000 µs": 2000, "500 µs": 500, "100 µs": 100}
    controls = {
        "recording": choice("model and machine", names),
        "step": choice("step", steps),
        "window": choice("show", windows, 500),  # all of a token is more bars than pixels, and looks busy
        "position": slider("from, %", 20, 0, 100),
    }
    return Panel(draw, controls)
