"""How large a model should be for its compute: N = √(C / 6r) parameters on D = r·N tokens; and how large some are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from ... import theory
from .panel import Panel, choice, slider
from .style import GREY, PALETTE, TEMPLATE

SIZES = (8.5, 12.5)  # log10 of the parameters shown
DATA = (9.0, 14.0)  # and of the tokens


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
    Trained("GPT-3", 175e9, 300e9, "bottom left"),
    Trained("Gopher", 280e9, 300e9, "bottom right"),
    Trained("Chinchilla", 70e9, 1.4e12, "top left"),
    Trained("LLaMA-2-7B", 6.7e9, 2e12),
    Trained("Llama-3-8B", 8.0e9, 15e12),
)


def short(x: float) -> str:
    """51.2 B, 1.02 T: as such numbers are quoted."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if x >= 0.9995 * size:
            return f"{x / size:,.3g} {unit}"
    return f"{x:,.3g}"


def compute_optimal_figure(flops: float, tokens_per_parameter: float = 20, models: Sequence[Trained] = KNOWN):
    """Parameters against tokens, both in powers of ten: all models of this compute, and the one that uses it best."""
    n, d = theory.compute_optimal(flops, tokens_per_parameter)
    ends = [10 ** SIZES[0], 10 ** SIZES[1]]
    figure = go.Figure(layout=dict(template=TEMPLATE))
    figure.add_scatter(x=ends, y=[flops / 6 / x for x in ends], mode="lines", name=f"C = 6·N·D = {flops:.2g} FLOP",
                       line=dict(color=PALETTE[0], width=3), hoverinfo="skip")  # fmt: skip
    figure.add_scatter(x=ends, y=[tokens_per_parameter * x for x in ends], mode="lines", hoverinfo="skip",
                       name=f"D = {tokens_per_parameter:g}·N", line=dict(color=GREY, width=2, dash="dash"))  # fmt: skip
    figure.add_scatter(x=[n], y=[d], mode="markers", name="the optimum",
                       marker=dict(symbol="star", size=18, color=PALETTE[5]),
                       hovertemplate=f"{short(n)} parameters<br>{short(d)} tokens<extra></extra>")  # fmt: skip
    figure.add_scatter(
        x=[model.parameters for model in models], y=[model.tokens for model in models], mode="markers+text",
        text=[model.name for model in models], textposition=[model.label for model in models], name="trained so",
        marker=dict(size=10, color=PALETTE[1]), customdata=[f"{model.flops:.2g}" for model in models],
        hovertemplate="%{text}: %{x:.3s} parameters, %{y:.3s} tokens<br>%{customdata} FLOP<extra></extra>",
    )  # fmt: skip
    ticks = dict(type="log", exponentformat="none", showgrid=True)
    sizes, data = ([10.0**p for p in range(math.ceil(low), int(high) + 1)] for low, high in (SIZES, DATA))
    figure.update_layout(
        height=460, title=f"{short(n)} parameters on {short(d)} tokens", margin=dict(l=70, r=20, t=50, b=60),
        xaxis=ticks | dict(title="parameters N", range=SIZES, tickvals=sizes, ticktext=[short(x) for x in sizes]),
        yaxis=ticks | dict(title="training tokens D", range=DATA, tickvals=data, ticktext=[short(x) for x in data]),
        legend=dict(orientation="h", y=-0.18, x=0, yanchor="top"),
    )  # fmt: skip
    return figure


def in_words(flops: float, tokens_per_parameter: float, model: Trained | None = None) -> str:
    n, d = theory.compute_optimal(flops, tokens_per_parameter)
    ratio = f"{tokens_per_parameter:g} tokens per parameter"
    said = f"{flops:.3g} FLOP at {ratio}: {short(n)} parameters on {short(d)} tokens."
    if model:
        ratio = model.tokens / model.parameters
        said += (
            f" {model.name} has {short(model.parameters)} on {short(model.tokens)}, {ratio:.3g} tokens per parameter:"
        )
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

    def move(change: dict) -> None:
        if model := change["new"]:
            controls["power"].value = round(math.log10(model.flops) / 0.05) * 0.05

    controls["model"].observe(move, names="value")
    return panel
