"""How large a model should be for its compute: the bowls of equal compute, their minima, and where some models lie.

For a fixed compute C a larger model sees fewer tokens, so the loss over the size N is a bowl. Its minimum slides to
larger models as C grows. The rule of r tokens per parameter is one point on each bowl: N = √(C / 6r), D = r·N.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from minispec import theory

from . import light as go
from .panel import Panel, choice, slider
from .presets import figures
from .style import GREY, LEGEND_ABOVE, PALETTE, TEMPLATE

SIZES = (7.5, 12.5)  # log10 of the parameters shown
LOSSES = (-1.4, 0.6)  # log10 of the loss above E, in nats per token
BUDGETS = tuple(10.0**power for power in range(19, 27))  # of the faint bowls
# L(N, D) = E + A / N^a + B / D^b as Besiroglu et al. (2024, arXiv:2404.10102) fitted it to Chinchilla's runs.
E, A, B, POWER_N, POWER_D = 1.8172, 482.01, 2085.43, 0.3478, 0.3658


@dataclass(frozen=True)
class Trained:
    """A model that exists: parameters, and tokens it was trained on, as its makers say."""

    name: str
    parameters: float
    tokens: float
    label: str = "top center"  # where its name stands

    @property
    def flops(self) -> float:
        return theory.training_flops(self.parameters, self.tokens)


KNOWN = (
    Trained("GPT-3", 175e9, 300e9, "top left"),
    Trained("Gopher", 280e9, 300e9, "top right"),
    Trained("Chinchilla", 70e9, 1.4e12, "bottom left"),
    Trained("LLaMA-2-7B", 6.7e9, 2e12, "top left"),
    Trained("Llama-3-8B", 8.0e9, 15e12, "bottom left"),
)


def short(x: float) -> str:
    """51.2 B, 1.02 T: as such numbers are quoted."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if x >= 0.9995 * size:
            return f"{figures(x / size)} {unit}"
    return figures(x)


def excess(parameters: float, tokens: float) -> float:
    """Loss above the floor E, in nats per token, of a model of this size after that many tokens: by the fit."""
    return A / parameters**POWER_N + B / tokens**POWER_D


def lowest(flops: float) -> tuple[float, float]:
    """The minimum of a bowl, (N, D): where the derivative of excess(N, C / 6N) is 0."""
    n = (POWER_N * A / (POWER_D * B)) ** (1 / (POWER_N + POWER_D)) * (flops / 6) ** (POWER_D / (POWER_N + POWER_D))
    return n, flops / 6 / n


def bowl(flops: float, count: int = 61) -> tuple[list[float], list[float]]:
    """Sizes and losses of all models of this compute that the axes have room for."""
    sizes = [10 ** (SIZES[0] + (SIZES[1] - SIZES[0]) * i / (count - 1)) for i in range(count)]
    points = [(n, excess(n, flops / 6 / n)) for n in sizes]
    inside = [(n, height) for n, height in points if height <= 10 ** LOSSES[1]]
    return [n for n, _ in inside], [height for _, height in inside]


@cache
def _valley() -> list[tuple[float, float]]:
    """The minima of the faint bowls, (N, loss)."""
    return [(lowest(budget)[0], excess(*lowest(budget))) for budget in BUDGETS]


@cache
def _faint() -> list[tuple[float | None, float | None]]:
    """The faint bowls one after the other, with a gap after each: one trace for all."""
    return [point for budget in BUDGETS for point in (*zip(*bowl(budget), strict=True), (None, None))]


def compute_optimal_figure(flops: float, tokens_per_parameter: float = 20, models: Sequence[Trained] = KNOWN):
    """Loss against size: the bowl of this compute among those of other budgets, its minimum, the rule's choice."""
    n, d = theory.compute_optimal(flops, tokens_per_parameter)
    best, _ = lowest(flops)
    figure = go.Figure(layout=dict(template=TEMPLATE))
    sizes, heights = bowl(flops)
    figure.add_scatter(
        x=sizes,
        y=heights,
        mode="lines",
        name="all models of this compute",
        line=dict(color=PALETTE[0], width=4),
        hovertemplate="%{x:.3s} parameters: %{y:.3f} nats above the floor<extra></extra>",
    )
    valley, faint = _valley(), _faint()
    figure.add_scatter(
        x=[x for x, _ in valley],
        y=[y for _, y in valley],
        mode="lines",
        hoverinfo="skip",
        name="the minima",
        line=dict(color=GREY, width=2, dash="dash"),
    )
    figure.add_scatter(
        x=[n],
        y=[excess(n, d)],
        mode="markers",
        name=f"{tokens_per_parameter:g} tokens per parameter",
        marker=dict(symbol="star", size=17, color=PALETTE[5]),
        hovertemplate=f"{short(n)} parameters<br>{short(d)} tokens<extra></extra>",
    )
    figure.add_scatter(
        x=[model.parameters for model in models],
        y=[excess(model.parameters, model.tokens) for model in models],
        mode="markers+text",
        text=[model.name for model in models],
        textposition=[model.label for model in models],
        name="trained so",
        marker=dict(size=10, color=PALETTE[1]),
        customdata=[short(m.tokens) for m in models],
        hovertemplate="%{text}: %{x:.3s} parameters, %{customdata} tokens, %{y:.2f} above the floor<extra></extra>",
    )
    figure.add_scatter(
        x=[best],
        y=[excess(*lowest(flops))],
        mode="markers",
        name="the bowl's minimum",
        marker=dict(symbol="circle-open", size=15, color=PALETTE[0], line=dict(width=3)),
        hovertemplate=f"{short(best)} parameters<extra></extra>",
    )
    figure.add_scatter(
        x=[x for x, _ in faint],
        y=[y for _, y in faint],
        mode="lines",
        line=dict(color=GREY, width=1),
        opacity=0.5,
        showlegend=False,
        hoverinfo="skip",
    )
    figure.add_scatter(
        x=[x for x, _ in valley],
        y=[0.92 * y for _, y in valley],
        mode="text",
        text=[f"10<sup>{math.log10(budget):.0f}</sup>" for budget in BUDGETS],
        showlegend=False,
        textposition="bottom center",
        hoverinfo="skip",
    )
    ticks = [10.0**p for p in range(math.ceil(SIZES[0]), int(SIZES[1]) + 1)]
    figure.update_layout(
        height=480,
        title=dict(text=f"{_power(flops)} FLOP: {short(n)} parameters on {short(d)} tokens", y=0.97),
        margin=dict(l=70, r=20, t=110, b=60),
        legend=LEGEND_ABOVE,
        xaxis=dict(type="log", title="parameters N", range=SIZES, tickvals=ticks, ticktext=[short(x) for x in ticks]),
        yaxis=dict(
            type="log", title=f"loss above {E:.2f}, nats per token", range=LOSSES, tickvals=[0.1, 0.2, 0.5, 1, 2]
        ),
    )
    return figure


def _power(x: float) -> str:
    """3.16·10²³, as one says it."""
    power = math.floor(math.log10(x) + 1e-9)
    return f"{x / 10**power:.2f}·10" + "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in str(power))


def in_words(flops: float, tokens_per_parameter: float, model: Trained | None = None) -> str:
    n, d = theory.compute_optimal(flops, tokens_per_parameter)
    ratio = f"{tokens_per_parameter:g} tokens per parameter"
    said = f"{_power(flops)} FLOP at {ratio}: {short(n)} parameters on {short(d)} tokens."
    best = lowest(flops)
    lost = excess(n, d) - excess(*best)
    said += f" The bowl's minimum is at {short(best[0])}; the rule's choice loses {lost:.3f} nats to it."
    if model:
        ratio = model.tokens / model.parameters
        said += f" {model.name} has {short(model.parameters)} on {short(model.tokens)}, "
        said += f"{figures(ratio)} tokens per parameter:"
        said += f" {model.parameters / n:.2g} times the optimum's size, so serving a token costs that much, too."
    return said


def compute_optimal(models: Sequence[Trained] = KNOWN) -> Panel:
    """A slider for the compute, one for the tokens per parameter; choosing a model sets the compute to what it took."""
    names = {"by hand": ""} | {model.name: model for model in models}
    controls = {
        "power": slider("FLOP, 10 to the", 23.5, 19.0, 26.0, 0.05),
        "ratio": slider("tokens per parameter", 20, 1, 200),
        "model": choice("compute of", names),
    }

    def draw(power: float, ratio: int, model: Trained | str) -> tuple[go.Figure, str]:
        flops = 10**power
        if model and abs(math.log10(model.flops) - power) < 0.03:
            flops = model.flops  # the slider's stops are coarser than the model's compute
        else:
            model = ""
        return compute_optimal_figure(flops, ratio, models), in_words(flops, ratio, model or None)

    panel = Panel(draw, controls)

    def move(model: Trained | str) -> None:
        if model:
            controls["power"].value = round(math.log10(model.flops) / 0.05) * 0.05

    panel.lead("model", move)
    return panel
