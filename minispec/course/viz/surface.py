"""The speed-up surface: S = E[N] / (k·c + v) over α and k, the best k for every α, and dots that were measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import numpy as np

from ... import theory
from ...bench.slower import Case
from ...files.registry import BENCHMARKS
from ..demo import Result
from . import light as go
from .light import make_subplots
from .panel import Panel, choice, slider
from .style import GREY, PALETTE, TEMPLATE

H200 = BENCHMARKS / "speculate.json"
LONGEST = 16
ALPHAS = [i / 50 for i in range(50)]  # 0 … 0.98
MOST = 4.0  # the colour scale's end
# Blue where speculation loses, orange where it gains, and the neutral grey at 1, where it is worth nothing.
SCALE = [[0, "#1f83c4"], [1 / MOST, "#9aa3ad"], [1, "#d9641c"]]


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
        """From the result of `minispec bench speculate`."""
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
        x=lengths, y=ALPHAS, z=grid, zmin=0, zmax=MOST, colorscale=SCALE,
        colorbar=dict(x=0.44, thickness=12, tickvals=[0, 1, 2, 3, 4]),
        hovertemplate="k = %{x}<br>α = %{y:.2f}<br>speed-up %{z:.2f}<extra></extra>", name="speed-up",
    )  # fmt: skip
    figure.add_scatter(
        x=[k for k, _ in edge], y=[a for _, a in edge], mode="lines", name="no gain, no loss",
        line=dict(color="white", width=2, dash="dot"), showlegend=False, hoverinfo="skip",
    )  # fmt: skip
    figure.add_scatter(
        x=[k for k, _ in best], y=[a for _, a in best], mode="lines", name="best k",
        line=dict(color="black", width=2, shape="vh"), showlegend=False, hoverinfo="skip",
    )  # fmt: skip
    names = [(*edge[len(edge) // 3], "no gain, no loss", "white")] if edge else []
    names += [(*best[len(best) // 2], "best k", "black")] if best else []
    figure.add_scatter(
        x=[x for x, *_ in names], y=[y for _, y, *_ in names], text=[text for *_, text, _ in names], mode="text",
        textfont=dict(color=[colour for *_, colour in names]), textposition="bottom right", showlegend=False,
        hoverinfo="skip", name="names",
    )  # fmt: skip
    figure.add_scatter(
        x=[1, LONGEST], y=[alpha, alpha], mode="lines", line=dict(color=GREY, width=1, dash="dash"),
        name="the cut", showlegend=False, hoverinfo="skip",
    )  # fmt: skip

    cut = [theory.speedup(alpha, k, c, cost(k)) for k in lengths]
    figure.add_scatter(
        x=lengths, y=cut, mode="lines+markers", marker=dict(size=5), line=dict(color=PALETTE[0], width=2),
        name="at this α, c, v", showlegend=False, hovertemplate="k = %{x}<br>speed-up %{y:.2f}<extra></extra>",
        row=1, col=2,
    )  # fmt: skip
    if k := theory.best_k(alpha, c, cost, LONGEST):
        figure.add_scatter(
            x=[k], y=[cut[k - 1]], mode="markers+text", text=[f"best: k = {k}"], textposition="bottom center",
            marker=dict(symbol="star", size=15, color=PALETTE[5]), name="best", showlegend=False, hoverinfo="skip",
            row=1, col=2,
        )  # fmt: skip
    figure.add_hline(y=1, line=dict(color=GREY, width=1, dash="dot"), row=1, col=2)
    for i, dot in enumerate(dots):
        symbol = ("circle", "diamond", "square", "cross", "x")[i % 5]
        seen = f"{dot.name}<br>α = {dot.alpha:.2f}, c = {dot.c:.2f}, v = {dot.v:.2f}<br>predicted {dot.predicted:.2f}"
        look = dict(symbol=symbol, size=14, line=dict(color="white", width=2))
        figure.add_scatter(
            x=[dot.k], y=[dot.alpha], mode="markers", name=f"{dot.name}, measured", customdata=[dot.measured],
            marker=look | dict(color=[dot.measured], cmin=0, cmax=MOST, colorscale=SCALE, showscale=False),
            hovertemplate=f"{seen}<br>measured %{{customdata:.2f}}<extra></extra>",
        )  # fmt: skip
        figure.add_scatter(
            x=[dot.k, dot.k], y=[dot.predicted, dot.measured], customdata=["predicted", "measured"], mode="markers",
            name=f"{dot.name}, both", marker=dict(symbol=[f"{symbol}-open", symbol], size=11, color=PALETTE[1],
            line=dict(width=2)), showlegend=False, hovertemplate=f"{seen}<br>%{{customdata}} %{{y:.2f}}<extra></extra>",
            row=1, col=2,
        )  # fmt: skip
    figure.update_layout(
        template=TEMPLATE, height=430, margin=dict(l=60, r=20, t=70, b=60),
        title=f"Speed-up at c = {c:.2f} and v = {cost(4):.2f} for k = 4",
        legend=dict(orientation="h", y=-0.22, x=0, yanchor="top"),
    )  # fmt: skip
    figure.update_xaxes(title="k, draft tokens per cycle", tickvals=[1, 4, 8, 12, 16], range=[0.5, LONGEST + 0.5])
    figure.update_yaxes(title="acceptance α", range=[0, 1], row=1, col=1)
    most = max([1.2, *cut, *(max(dot.predicted, dot.measured) for dot in dots)])
    figure.update_yaxes(title=f"speed-up at α = {alpha:.2f}", range=[0, 1.15 * most], row=1, col=2)
    return figure


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

    def draw(alpha: float, c: float, v: float, cost: str, dot: Dot | str) -> tuple[go.Figure, str]:
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
        return surface_figure(alpha, c, paid, [dot] if dot else dots), words

    panel = Panel(draw, controls)

    def move(dot: Dot | str) -> None:
        if dot:
            for name in ("alpha", "c", "v"):
                controls[name].value = getattr(dot, name)

    panel.lead("dot", move)
    return panel
