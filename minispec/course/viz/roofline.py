"""The roofline explorer: where prefill, decoding and verification lie, for any model on any machine."""

from __future__ import annotations

from collections.abc import Sequence
from math import log10

from ... import theory
from ...model import Config
from . import light as go
from . import presets
from .panel import Panel, choice
from .style import GREY, LEGEND_ABOVE, PALETTE, TEMPLATE
from .timing import NOW, Here, recorded, shown_first

PROMPT = 512  # tokens of the prompt whose prefill is marked
LEFT, RIGHT = 0.1, 20_000  # FLOP per byte
MACHINES = (theory.H200, theory.H100, theory.A100, theory.NEOVERSE_N1)


def place(
    hardware: theory.Hardware, config: Config, bytes_per_weight: float = 2, batch: int = 1, tokens: int = 1,
    context: int = 0,
) -> tuple[float, float]:  # fmt: skip
    """(FLOP per byte, FLOP/s at best) of a pass: a point on the roof."""
    flops, read = presets.work(config, bytes_per_weight, batch, tokens, context)
    return flops / read, theory.attainable_flops(flops / read, hardware)


def roofline_figure(
    config: Config, hardware: theory.Hardware, bytes_per_weight: float = 2, batch: int = 1, tokens: int = 1,
    context: int = 0, measured: Sequence[Here] = (),
) -> go.Figure:  # fmt: skip
    """FLOP/s against FLOP per byte: the roof of a machine, and on it a decode pass, a prefill and a pass of your own.

    `measured` are timed passes, each of its own model on its own machine; a roof of another machine is dotted.
    The number beside each is its M.
    """
    shape = dict(bytes_per_weight=bytes_per_weight, batch=batch, context=context)
    ridge = theory.balance_point(hardware)
    ours = [place(hardware, config, tokens=count, **shape)[0] for count in (1, PROMPT, tokens)]
    left, right = min(LEFT, *(x / 2 for x in ours)), max(RIGHT, *(2 * x for x in ours))  # every mark is on the axis
    corners = [left, ridge, right]
    figure = go.Figure(layout=dict(template=TEMPLATE))
    figure.add_trace(
        go.Scatter(
            x=corners,
            y=[theory.attainable_flops(x, hardware) for x in corners],
            name="the roof",
            mode="lines",
            line=dict(color=GREY, width=3),
        )
    )
    for run in measured:
        own, colour = run.label == NOW, PALETTE[1 if run.label == NOW else 0]
        if run.hardware != hardware:
            other = [left, theory.balance_point(run.hardware), right]
            figure.add_trace(
                go.Scatter(
                    x=other,
                    y=[theory.attainable_flops(x, run.hardware) for x in other],
                    name=f"roof of {run.label.split(',')[0]}",
                    mode="lines",
                    line=dict(color=colour, width=2, dash="dot"),
                    showlegend=False,
                )
            )
        passes = [presets.work(run.config, run.bytes_per_weight, 1, p.tokens, run.context) for p in run.curve]
        figure.add_trace(
            go.Scatter(
                x=[flops / read for flops, read in passes],
                y=[flops / p.time.median for (flops, _), p in zip(passes, run.curve, strict=True)],
                text=[f"{p.tokens:g}" for p in run.curve],
                textposition="bottom right",
                name=run.what,
                mode="markers+text",
                marker=dict(size=8, symbol="circle" if own else "square", color=colour),
            )
        )
    marks = (
        ("decode, 1 token per sequence", 1, dict(symbol="circle-open", size=17, color=PALETTE[0], line=dict(width=3))),
        (
            f"prefill, {PROMPT} per sequence",
            PROMPT,
            dict(symbol="diamond-open", size=17, color=PALETTE[2], line=dict(width=3)),
        ),
        (f"your pass, {tokens:,} per sequence", tokens, dict(symbol="circle", size=10, color=PALETTE[3])),
    )
    for name, count, marker in marks:
        x, y = place(hardware, config, tokens=count, **shape)
        figure.add_trace(go.Scatter(x=[x], y=[y], name=name, mode="markers", marker=marker))
    figure.update_traces(hovertemplate="%{x:.3g} FLOP per byte<br>%{y:.3s}FLOP/s")
    figure.add_vline(x=ridge, line=dict(color=GREY, width=1, dash="dot"))
    for text, x, anchor in (("memory-bound ", ridge / 1.2, "right"), (" compute-bound", ridge * 1.2, "left")):
        figure.add_annotation(
            x=log10(x), y=1.0, yref="paper", yanchor="bottom", xanchor=anchor, text=text, showarrow=False
        )
    every = [hardware, *(run.hardware for run in measured)]
    low, high = left * min(h.bandwidth for h in every), max(h.flops for h in every)
    figure.update_layout(
        title=dict(text=f"{hardware.name}: ridge at {ridge:.3g} FLOP per byte", y=0.97),
        xaxis=dict(title="arithmetic intensity, FLOP per byte", type="log", range=[log10(left), log10(right)], dtick=1),
        yaxis=dict(
            title="arithmetic, at best",
            type="log",
            range=[log10(low), log10(high * 2)],
            tickvals=[10.0**n for n in range(6, 17)],
            ticktext=[presets.si(10.0**n, "FLOP/s") for n in range(6, 17)],
        ),
        legend=LEGEND_ABOVE | dict(y=1.07),
        margin=dict(t=205, b=55),
        height=590,
    )
    return figure


def roofline(here: Here | None = None) -> Panel:
    """The explorer, with the passes that were recorded on an H200. `here`, from `measure_here`, adds this machine and
    the passes timed on it."""
    runs = [*([here] if here else []), *recorded()]
    machines = ([here.hardware] if here else []) + list(MACHINES)
    names = {hardware.name: index for index, hardware in enumerate(machines)}

    def draw(tokens: int, batch: int, context: int, model: str, stored: float, machine: int):
        config, hardware = presets.SHAPES[model], machines[machine]
        figure = roofline_figure(config, hardware, stored, batch, tokens, context, runs)
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
        return figure, words

    controls = {
        "tokens": presets.stops("tokens per sequence", (1, 2, 3, 4, 5, 6, 8, 16, 32, 64, 128, 256, 512, 2048), 1),
        "batch": presets.stops("batch size", (1, 2, 4, 8, 16, 32, 64, 128, 256), 1),
        "context": presets.stops("cached tokens per sequence", (0, 256, 1024, 4096, 16_384, 131_072), 0),
        "model": choice("model", list(presets.SHAPES), shown_first(here)),
        "stored": choice("weights in", presets.STORED, here.bytes_per_weight if here else 2),
        "machine": choice("machine", names),
    }
    return Panel(draw, controls)
