"""Figures without controls, drawn with plotly: bars and lines of what was measured."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from minispec.measure import machine, where
from minispec.trace import Trace

from ..labs.drafting import PLAIN
from .style import GREY, PALETTE, TEMPLATE

NAMES = {"model:4": "small model, k = 4", "ngram:10": "n-gram, k = 10", "suffix:16": "suffix, k = 16"}
NAMES |= dict(medusa="Medusa", eagle="EAGLE-3", dflash="DFlash", dflash2="DFlash 2", dspark="DSpark")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "pentagon")


def _figure(traces: Sequence = (), title: str = "", height: int = 400, **layout) -> go.Figure:
    """Our look, with the legend above the axes, where no title or tick of theirs can meet it."""
    legend = dict(orientation="h", x=0, xanchor="left", y=1.02, yanchor="bottom")
    shape = dict(template=TEMPLATE, title=dict(text=title, y=0.97), height=height, legend=legend, margin_t=90)
    return go.Figure(list(traces), layout=shape | layout)


def acceptance_by_position(traces: Mapping[str, Trace]) -> go.Figure:
    """How often a draft token is accepted at each position if all before it were, one line for each drafter.

    The fewer cycles reached a position, the smaller its mark. Of a tree, any of several siblings may be accepted.
    """
    lines = []
    for i, (name, trace) in enumerate(traces.items()):
        rates, tested = trace.acceptance_by_position, [cycle.accepted + (not cycle.bonus) for cycle in trace.cycles]
        came = [sum(count > place for count in tested) for place in range(len(rates))]
        marker = dict(symbol=SYMBOLS[i % 8], size=[5 + 9 * (n / came[0]) ** 0.5 for n in came])
        hover = dict(customdata=came, hovertemplate="%{y:.2f} of %{customdata} cycles")
        at = dict(x=list(range(1, len(rates) + 1)), y=rates, mode="lines+markers")
        lines.append(go.Scatter(**at, name=name, line_color=PALETTE[i % 6], marker=marker, **hover))
    axes = dict(xaxis=dict(title="position in the draft", dtick=1), yaxis=dict(title="accepted", range=[0, 1.03]))
    told = "; ".join(f"{line.name}: {', '.join(f'{rate:.2f}' for rate in line.y)}" for line in lines)
    axes["meta"] = f"How often a draft token is accepted at position 1, 2, … if all before it were. {told}."
    return _figure(lines, "Acceptance at each position, given that all before it were accepted", **axes)


def real_and_random(result: dict) -> go.Figure:
    """Tokens per pass by length of real prompts and of random tokens, and along outputs: `benchmarks acceptance`."""
    lines, told = [], []
    for i, (name, parts) in enumerate(result["along"].items()):
        panels = [{int(length): of[name] for length, of in rows.items()} for rows in result["lengths"].values()]
        look = dict(line=dict(color=PALETTE[i % 6], dash="dot" if i > 5 else "solid"), mode="lines+markers")
        look |= dict(name=NAMES.get(name, name), legendgroup=name, marker=dict(symbol=SYMBOLS[i % 8], size=8))
        for j, rows in enumerate([*panels, {row["from"]: row for row in parts}], 1):
            figures = [row["tokens_per_pass"] for row in rows.values()]
            lines.append(go.Scatter(x=list(rows), y=figures, xaxis=f"x{j}", showlegend=j == 1, **look))
        told.append(f"{look['name']}: {', '.join(f'{line.y[0]:.2f} to {line.y[-1]:.2f}' for line in lines[-3:])}")
    titles = {"tokens of a real prompt": [0, 0.29], "random tokens": [0.34, 0.63], "position in the output": [0.68, 1]}
    axes = {f"xaxis{j}": dict(title=t, domain=at, anchor="y") for j, (t, at) in enumerate(titles.items(), 1)}
    axes["yaxis"] = dict(title="tokens per pass", rangemode="tozero")
    axes["meta"] = "Tokens per pass from the shortest to the longest real prompt, the same for random tokens, and from "
    axes["meta"] += f"the first to the last eighth of long outputs. {'; '.join(told)}."
    return _figure(lines, f"After real prompts, after random tokens and along outputs: {result['target']}", **axes)


def drafter_speedups(race: dict) -> go.Figure:
    """Speed-ups over plain decoding, as `labs.drafting.race` measured them: bars by drafter, a colour per text."""
    bars, fastest = [], []
    for (kind, rows), colour in zip(race["results"].items(), PALETTE, strict=False):
        gains = {name: row["speedup"]["median"] for name, row in rows.items() if name != PLAIN}
        fastest.append(f"{kind}: {max(gains, key=gains.get)}, {max(gains.values()):.2f}")
        bars.append(go.Bar(x=list(gains), y=list(gains.values()), name=kind, marker_color=colour))
    yaxis = dict(title="speed-up over plain decoding", rangemode="tozero")
    told = f"Each drafter beside plain decoding. The fastest by kind of text: {'; '.join(fastest)} times as fast."
    figure = _figure(bars, f"{race['target']} on {where(machine())}", yaxis=yaxis, meta=told)
    return figure.add_hline(y=1, line=dict(color=GREY, dash="dash", width=1))
