"""Acceptance against temperature, from the result of `python -m benchmarks temperature`."""

from __future__ import annotations

from . import light as go
from .style import TEMPLATE, shades

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "pentagon")


def acceptance_by_temperature(result: dict) -> go.Figure:
    """One line for each temperature of the target, over the draft's. A ring marks each line's best draft temperature.

    `result` is what `bench.temperature.measure` returns, or its JSON read back.
    """
    if result.get("benchmark") != "temperature":
        raise ValueError(
            "result is not from the temperature benchmark: make one with `python -m benchmarks temperature`"
        )
    figure = go.Figure(layout=dict(template=TEMPLATE))
    x, targets = result["draft_temperatures"], result["target_temperatures"]
    for i, (T, row, colour) in enumerate(zip(targets, result["acceptance"], shades(len(targets)), strict=True)):
        best = [j for j, y in enumerate(row) if y == max(row)]
        line = go.Scatter(
            x=x,
            y=row,
            name="0 (greedy)" if T == 0 else f"{T:g}",
            mode="lines+markers",
            line=dict(color=colour, width=2),
            marker=dict(symbol=SYMBOLS[i % len(SYMBOLS)], size=7),
            hovertemplate=f"target T = {T:g}<br>draft T = %{{x:g}}<br>acceptance %{{y:.3f}}<extra></extra>",
        )
        ring = go.Scatter(
            x=[x[j] for j in best],
            y=[row[j] for j in best],
            mode="markers",
            marker=dict(symbol="circle-open", size=16, color=colour, line=dict(width=2)),
            showlegend=False,
            hoverinfo="skip",
        )
        figure.add_traces([line, ring])
    figure.update_layout(
        title=f"How often {result['target']} accepts a token of {result['draft']}",
        xaxis_title="draft's temperature (0: greedy)",
        yaxis_title="acceptance Σ min(p, q)",
        yaxis_range=[0, 1.03],
        legend_title="target's temperature",
    )
    return figure
