"""The speed-up surface: S = E[N] / (k·c + v) over α and k, the best k for every α, and dots that were measured."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from html import escape
from itertools import pairwise
from math import cos, pi, sin
from pathlib import Path

import numpy as np

from minispec import theory
from minispec.load.registry import BENCHMARKS

from ..demo import Result
from ..labs.slower import Case
from . import light as go
from .axes import Axes, ticks
from .drawing import SOFT, Canvas
from .light import make_subplots
from .panel import Panel, choice, slider
from .style import GREY, PALETTE, TEMPLATE

H200 = BENCHMARKS / "speculate.json"
LONGEST = 16
ALPHAS = [i / 50 for i in range(50)]  # 0 … 0.98
MOST = 4.0  # the colour scale's end
# Blue where speculation loses, orange where it gains, and the neutral grey at 1, where it is worth nothing.
SCALE = [[0, "#1f83c4"], [1 / MOST, "#9aa3ad"], [1, "#d9641c"]]
BLACK = "#000000"
HEIGHT, MAP, CUT = 402, (62, 66, 300, 270), (478, 66, 268, 270)  # of the drawing: where its names begin, its two charts
_PLUS = ((-0.35, -1), (0.35, -1), (0.35, -0.35), (1, -0.35), (1, 0.35), (0.35, 0.35))
_PLUS += tuple((-x, -y) for x, y in _PLUS)
SHAPES = {
    "diamond": ((0, -1.2), (1.2, 0), (0, 1.2), (-1.2, 0)),
    "square": ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    "cross": _PLUS,
    "x": tuple((0.75 * (x - y), 0.75 * (x + y)) for x, y in _PLUS),
    "star": tuple((r * sin(pi * i / 5), -r * cos(pi * i / 5)) for i in range(10) for r in [0.45 if i % 2 else 1]),
}


@dataclass(frozen=True)
class Dot:
    """A run: what was measured on the way, and the speed-up that came out."""

    name: str
    alpha: float
    k: int
    c: float
    v: float
    measured: float

    @property
    def predicted(self) -> float:
        return theory.speedup(self.alpha, self.k, self.c, self.v)

    @classmethod
    def of(cls, run: Result | Case, name: str | None = None) -> Dot:
        """From `demo.demo`, which measures here and now, or from a case of the debugging lab."""
        if isinstance(run, Result):
            name = name or f"this machine, just now ({run.model})"
            return cls(name, run.out.trace.acceptance_rate, run.k, run.c, run.v, run.measured)
        return cls(name or run.name, run.alpha, run.k, run.c, run.v, run.measured)

    @classmethod
    def recorded(cls, file: Path = H200) -> Dot:
        """From the result of `python -m benchmarks speculate`."""
        result = json.loads(Path(file).read_text(encoding="utf-8"))
        where = result["machine"]["gpus"][0]["name"] if result["machine"]["gpus"] else result["machine"]["cpu"]
        numbers = (result[key] for key in ("acceptance", "k", "c", "v", "speedup"))
        return cls(f"{where.removeprefix('NVIDIA ')}, recorded {result['date']} ({result['shape']} shape)", *numbers)


def verify_cost(v: float, grows: bool) -> Callable[[int], float]:
    """v(k): the same for every k, or a straight line from 1 through v at k = 4."""
    return lambda k: max(1.0, 1 + (v - 1) * k / 4) if grows else v


@cache
def _expected() -> list[list[float]]:
    """E[N] for every α and k of the picture: c and v change nothing about it."""
    return [[theory.expected_tokens(a, k) for k in range(1, LONGEST + 1)] for a in ALPHAS]


@lru_cache(4)
def _lines(c: float, costs: tuple[float, ...]) -> tuple[list, list, list]:
    """The speed-ups by α and k, (k, α) where nothing is gained or lost, and (best k, α): all that α does not move."""
    grid = np.array(_expected()) / (c * np.arange(1, LONGEST + 1) + costs)  # theory.cycle_speedup
    edge = [(k, theory.break_even(k, c, v)) for k, v in enumerate(costs, start=1)]
    best = [(int(row.argmax()) + 1, a) for row, a in zip(grid, ALPHAS, strict=True) if row.max() > 1]  # theory.best_k
    return grid.tolist(), [(k, a) for k, a in edge if a <= 1], best


def surface_figure(
    alpha: float = 0.7, c: float = 0.1, v: float | Callable[[int], float] = 1.0, dots: Sequence[Dot] = ()
) -> go.Figure:
    """Left: the speed-up over k and α at this c and v, where it is 1, and the best k. Right: the cut at `alpha`.

    v is one number, or a function of k such as `measure.Report.v`. Dots show their own measured speed-up as colour.
    """
    cost = v if callable(v) else lambda k: v
    lengths = list(range(1, LONGEST + 1))
    grid, edge, best = _lines(c, tuple(cost(k) for k in lengths))
    figure = make_subplots(1, 2, column_widths=[0.56, 0.44], horizontal_spacing=0.22)
    figure.add_heatmap(
        x=lengths,
        y=ALPHAS,
        z=grid,
        zmin=0,
        zmax=MOST,
        colorscale=SCALE,
        colorbar=dict(x=0.44, thickness=12, tickvals=[0, 1, 2, 3, 4]),
        hovertemplate="k = %{x}<br>α = %{y:.2f}<br>speed-up %{z:.2f}<extra></extra>",
        name="speed-up",
    )
    figure.add_scatter(
        x=[k for k, _ in edge],
        y=[a for _, a in edge],
        mode="lines",
        name="no gain, no loss",
        line=dict(color="white", width=2, dash="dot"),
        showlegend=False,
        hoverinfo="skip",
    )
    figure.add_scatter(
        x=[k for k, _ in best],
        y=[a for _, a in best],
        mode="lines",
        name="best k",
        line=dict(color="black", width=2, shape="vh"),
        showlegend=False,
        hoverinfo="skip",
    )
    names = [(*edge[len(edge) // 3], "no gain, no loss", "white")] if edge else []
    names += [(*best[len(best) // 2], "best k", "black")] if best else []
    figure.add_scatter(
        x=[x for x, *_ in names],
        y=[y for _, y, *_ in names],
        text=[text for *_, text, _ in names],
        mode="text",
        textfont=dict(color=[colour for *_, colour in names]),
        textposition="bottom right",
        showlegend=False,
        hoverinfo="skip",
        name="names",
    )
    figure.add_scatter(
        x=[1, LONGEST],
        y=[alpha, alpha],
        mode="lines",
        line=dict(color=GREY, width=1, dash="dash"),
        name="the cut",
        showlegend=False,
        hoverinfo="skip",
    )

    cut = [theory.speedup(alpha, k, c, cost(k)) for k in lengths]
    figure.add_scatter(
        x=lengths,
        y=cut,
        mode="lines+markers",
        marker=dict(size=5),
        line=dict(color=PALETTE[0], width=2),
        name="at this α, c, v",
        showlegend=False,
        hovertemplate="k = %{x}<br>speed-up %{y:.2f}<extra></extra>",
        row=1,
        col=2,
    )
    if k := theory.best_k(alpha, c, cost, LONGEST):
        figure.add_scatter(
            x=[k],
            y=[cut[k - 1]],
            mode="markers+text",
            text=[f"best: k = {k}"],
            textposition="bottom center",
            marker=dict(symbol="star", size=15, color=PALETTE[5]),
            name="best",
            showlegend=False,
            hoverinfo="skip",
            row=1,
            col=2,
        )
    figure.add_hline(y=1, line=dict(color=GREY, width=1, dash="dot"), row=1, col=2)
    for i, dot in enumerate(dots):
        symbol = ("circle", "diamond", "square", "cross", "x")[i % 5]
        seen = f"{dot.name}<br>α = {dot.alpha:.2f}, c = {dot.c:.2f}, v = {dot.v:.2f}<br>predicted {dot.predicted:.2f}"
        look = dict(symbol=symbol, size=14, line=dict(color="white", width=2))
        figure.add_scatter(
            x=[dot.k],
            y=[dot.alpha],
            mode="markers",
            name=f"{dot.name}, measured",
            customdata=[dot.measured],
            marker=look | dict(color=[dot.measured], cmin=0, cmax=MOST, colorscale=SCALE, showscale=False),
            hovertemplate=f"{seen}<br>measured %{{customdata:.2f}}<extra></extra>",
        )
        figure.add_scatter(
            x=[dot.k, dot.k],
            y=[dot.predicted, dot.measured],
            customdata=["predicted", "measured"],
            mode="markers",
            name=f"{dot.name}, both",
            marker=dict(symbol=[f"{symbol}-open", symbol], size=11, color=PALETTE[1], line=dict(width=2)),
            showlegend=False,
            hovertemplate=f"{seen}<br>%{{customdata}} %{{y:.2f}}<extra></extra>",
            row=1,
            col=2,
        )
    figure.update_layout(
        template=TEMPLATE,
        height=430,
        margin=dict(l=60, r=20, t=70, b=60),
        title=f"Speed-up at c = {c:.2f} and v = {cost(4):.2f} for k = 4",
        legend=dict(orientation="h", y=-0.22, x=0, yanchor="top"),
    )
    figure.update_xaxes(title="k, draft tokens per cycle", tickvals=[1, 4, 8, 12, 16], range=[0.5, LONGEST + 0.5])
    figure.update_yaxes(title="acceptance α", range=[0, 1], row=1, col=1)
    most = max([1.2, *cut, *(max(dot.predicted, dot.measured) for dot in dots)])
    figure.update_yaxes(title=f"speed-up at α = {alpha:.2f}", range=[0, 1.15 * most], row=1, col=2)
    return figure


def colours(gains) -> np.ndarray:
    """SCALE's colours of speed-ups: [..., 3], uint8."""
    ends = [[int(shade[i : i + 2], 16) for _, shade in SCALE] for i in (1, 3, 5)]
    mixed = [np.interp(np.asarray(gains) / MOST, [place for place, _ in SCALE], shades) for shades in ends]
    return np.stack(mixed, -1).round().astype(np.uint8)


def colour(gain: float) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colours(gain))


def _image(x: float, y: float, width: float, height: float, pixels: np.ndarray) -> str:
    """Pixels [rows, columns, 3] as an image in an SVG: one element, where a page would need long for 800 cells."""
    rows, columns, _ = pixels.shape
    lines = b"".join(b"\0" + line.tobytes() for line in np.ascontiguousarray(pixels))
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(lines)),
        (b"IEND", b""),
    )
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    place = f'x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" preserveAspectRatio="none"'
    coded = base64.b64encode(png).decode()
    return f'<image {place} style="image-rendering:pixelated" href="data:image/png;base64,{coded}"/>'


@lru_cache(4)
def _cells(c: float, costs: tuple[float, ...]) -> str:
    """The map: a cell for each k and α, the numbers of every fifth α for the pointer, and what the colours mean."""
    canvas = Canvas(HEIGHT)
    chart, (grid, _, _) = Axes(canvas, MAP, (0.5, LONGEST + 0.5), (0, 1)), _lines(c, costs)
    left, top, width, height = MAP
    halves = np.repeat(colours(grid)[::-1], 2, axis=0)[:-1]  # a cell reaches half a step about its α, the lowest from 0
    ceiling = chart.at(1, ALPHAS[-1] + ALPHAS[1] / 2)[1]
    bar = colours(np.linspace(MOST, 0, 81)[1::2, None])
    canvas.parts += [_image(left, ceiling, width, top + height - ceiling, halves)]
    canvas.parts += [_image(left + width + 12, top, 12, height, bar)]
    told = [*range(0, len(ALPHAS), 5), len(ALPHAS) - 1]
    ends = [0, *((ALPHAS[i] + ALPHAS[j]) / 2 for i, j in pairwise(told)), 1]
    for i, (low, high) in zip(told, pairwise(ends), strict=True):
        for k, gain in enumerate(grid[i], start=1):
            (x, y), (_, bottom) = chart.at(k - 0.5, high), chart.at(k, low)
            said = f"k = {k}, α = {ALPHAS[i]:.2f}: speed-up {gain:.2f}"
            canvas.rect(x, y, width / LONGEST, bottom - y, "transparent", None, round=0, title=said)
    return "".join(canvas.parts)


def surface_svg(
    alpha: float = 0.7,
    c: float = 0.1,
    v: float | Callable[[int], float] = 1.0,
    dots: Sequence[Dot] = (),
    words: str = "",
    room: int = 2,
) -> str:
    """`surface_figure` as an SVG, which a page shows sooner. `room`: below it, for the names of so many dots."""
    cost = v if callable(v) else lambda k: v
    lengths = list(range(1, LONGEST + 1))
    costs = tuple(cost(k) for k in lengths)
    _, edge, best = _lines(c, costs)
    cut = [theory.speedup(alpha, k, c, paid) for k, paid in zip(lengths, costs, strict=True)]
    high = 1.15 * max([1.2, *cut, *(max(dot.predicted, dot.measured) for dot in dots)])
    left, top, wide, tall = MAP
    canvas = Canvas(HEIGHT + 24 * max(room, len(dots)))
    canvas.text(10, 24, f"Speed-up at c = {c:.2f} and v = {cost(4):.2f} for k = 4", 15)
    around, k_title, marked = (0.5, LONGEST + 0.5), "k, draft tokens per cycle", (1, 4, 8, 12, 16)
    map_ = Axes(canvas, MAP, around, (0, 1))
    map_.frame("colour: speed-up", k_title, "acceptance α", marked, ticks(0, 1))
    canvas.parts.append(_cells(c, costs))
    for gain in range(int(MOST) + 1):
        canvas.text(left + wide + 30, top + tall * (1 - gain / MOST) + 4, str(gain), 12, colour=SOFT)
    if edge:
        map_.line(*zip(*edge, strict=True), "#ffffff", 2, "2 3")
    if best:
        corners = [best[0], *(point for a, b in pairwise(best) for point in ((a[0], b[1]), b))]
        map_.line(*zip(*corners, strict=True), BLACK)
    map_.line((1, LONGEST), (alpha, alpha), BLACK, 1, "7 5")
    _names(map_, edge, best)

    chart = Axes(canvas, CUT, around, (0, high))
    k = theory.best_k(alpha, c, cost, LONGEST)
    title = f"cut at α = {alpha:.2f}, " + (f"★ best: k = {k}" if k else "no k gains")
    chart.frame(title, k_title, f"speed-up at α = {alpha:.2f}", marked, ticks(0, high))
    _, y = chart.at(1, 1)
    canvas.line(CUT[0], y, CUT[0] + CUT[2], y, SOFT, 1, "2 3")
    chart.line(lengths, cut, PALETTE[0])
    for n, gain in zip(lengths, cut, strict=True):
        chart.dot(n, gain, 3, PALETTE[0], f"k = {n}: speed-up {gain:.2f}")
    if k:
        _mark(canvas, "star", *chart.at(k, cut[k - 1]), 9, f'fill="{PALETTE[5]}"', f"best: k = {k}")
    for i, dot in enumerate(dots):
        shape = ("circle", "diamond", "square", "cross", "x")[i % 5]
        seen = f"{dot.name}: α = {dot.alpha:.2f}, c = {dot.c:.2f}, v = {dot.v:.2f}, "
        filled, opened = f'fill="{PALETTE[1]}"', f'fill="none" stroke="{PALETTE[1]}" stroke-width="2"'
        measured, predicted = f"measured {dot.measured:.2f}", f"predicted {dot.predicted:.2f}"
        own = f'fill="{colour(dot.measured)}" stroke="white" stroke-width="2"'
        _mark(canvas, shape, *map_.at(dot.k, dot.alpha), 7.5, own, f"{seen}{predicted}, {measured}")
        _mark(canvas, shape, *chart.at(dot.k, dot.predicted), 6, opened, f"{seen}{predicted}")
        _mark(canvas, shape, *chart.at(dot.k, dot.measured), 6, filled, f"{seen}{measured}")
        y = HEIGHT + 24 * i
        _mark(canvas, shape, left + 6, y - 4, 6, filled)
        _mark(canvas, shape, left + 24, y - 4, 6, opened)
        canvas.text(left + 40, y, f"{dot.name}: measured (filled), predicted (open)", 12.5)
    return canvas.svg(words)


def _names(chart: Axes, edge: list, best: list) -> None:
    """Beside the two lines of the map, in the black that all of its colours bear."""
    left, top, width, height = MAP
    if edge:
        x, y = chart.at(*edge[len(edge) // 3])
        if y + 18 > top + height:  # above the line's beginning, if there is no room below it
            at = (left + 4, y - 8, "start")
        else:
            at = (x - 8, y - 8, "end") if x > left + width - 110 else (x + 8, y + 16, "start")
        chart.canvas.text(*at[:2], "no gain, no loss", 12.5, at[2], colour=BLACK)
    if best:
        x, y = chart.at(*next((point for point in best if point[0] >= 8), best[-1]))
        at = (x - 6, max(y - 6, top + 14), "end") if x > left + 70 else (x + 8, y + 16, "start")
        chart.canvas.text(*at[:2], "best k", 12.5, at[2], colour=BLACK)


def _mark(canvas: Canvas, shape: str, x: float, y: float, r: float, look: str, told: str = "") -> None:
    """A circle, or a polygon of this radius about its middle."""
    about = f"<title>{escape(told)}</title>" if told else ""
    if shape == "circle":
        canvas.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}" {look}>{about}</circle>')
    else:
        corners = " ".join(f"{x + r * dx:.1f},{y + r * dy:.1f}" for dx, dy in SHAPES[shape])
        canvas.parts.append(f'<polygon points="{corners}" {look}>{about}</polygon>')


def surface(dots: Sequence[Dot | Result | Case] = (), curve: Callable[[int], float] | None = None) -> Panel:
    """Sliders for α, c and v. Choosing a dot puts them where it was measured; `curve` is v(k) of this machine."""
    dots = [dot if isinstance(dot, Dot) else Dot.of(dot) for dot in dots]
    names = {"by hand": ""} | {dot.name: dot for dot in dots}
    costs = {"the same for every k": "same", "grows with k": "grows"} | ({"as measured here": "here"} if curve else {})
    controls = {
        "alpha": slider("α", 0.7, 0.0, 0.98, 0.02),
        "c": slider("c", 0.1, 0.0, 1.0, 0.01),
        "v": slider("v", 1.0, 1.0, 5.0, 0.05),
        "cost": choice("verify cost", costs),
        "dot": choice("set-up", names),
    }

    def draw(alpha: float, c: float, v: float, cost: str, dot: Dot | str, figure: bool = False):
        """`figure`: for the site's page, which computes with its traces."""
        paid = curve if cost == "here" else verify_cost(v, cost == "grows")
        k = theory.best_k(alpha, c, paid, LONGEST)
        words = f"At α = {alpha:.2f} and c = {c:.2f} "
        words += (
            f"the best k is {k}: {theory.best_speedup(alpha, c, paid, LONGEST):.2f} times as fast as plain decoding. "
            if k
            else "no draft length gains anything: k = 0. "
        )
        words += f"No k could do better than {theory.token_ceiling(alpha):.2f}, the ceiling of this α."
        if dot:
            words += f" {dot.name}, k = {dot.k}: predicted {dot.predicted:.2f}, measured {dot.measured:.2f}."
        shown = (alpha, c, paid, [dot] if dot else dots)
        return surface_figure(*shown) if figure else surface_svg(*shown, words, len(dots)), words

    panel = Panel(draw, controls)

    def move(dot: Dot | str) -> None:
        if dot:
            for name in ("alpha", "c", "v"):
                controls[name].value = getattr(dot, name)

    panel.lead("dot", move)
    return panel
