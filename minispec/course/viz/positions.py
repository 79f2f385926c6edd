"""Acceptance by position, by drafter: how far down a draft each of them can see. From the traces of real runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from ...drafters import Drafter
from ...files.handle import Model
from ...speculate import speculate
from ...trace import Trace
from . import light as go
from .light import make_subplots
from .panel import Panel, choice
from .style import GREY, PALETTE, TEMPLATE

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x")


def reached(trace: Trace) -> list[int]:
    """How many cycles came to place 1, 2, …: those with a draft there, and every one before it accepted.

    So `trace.acceptance_by_position` is a share of these. Of a tree, any of several siblings may be the accepted one.
    """
    tested = [cycle.accepted + (not cycle.bonus) for cycle in trace.cycles]
    return [sum(count > i for count in tested) for i in range(max(tested, default=0))]


Runs = dict[tuple[str, float, str], Trace]  # text, temperature, drafter → all cycles of its prompts


def measure_positions(
    target: Model,
    drafters: Mapping[str, Drafter],
    texts: Mapping[str, Sequence],
    k: int = 5,
    new_tokens: int = 32,
    temperatures: Sequence[float] = (0.0, 1.0),
    seed: int = 0,
) -> Runs:
    """Let every drafter draft k deep for the same prompts, at each temperature of the target.

    `texts` has a list of prompts, as `speculate` takes them, for each kind of text.
    """
    if not drafters or not texts or not temperatures:
        raise ValueError(f"drafters={list(drafters)}, texts={list(texts)}, temperatures={list(temperatures)}: "
                         "give at least one of each")  # fmt: skip
    runs = {}
    for text, prompts in texts.items():
        for T in temperatures:
            for name, drafter in drafters.items():
                outs = speculate(target, list(prompts), drafter, k, new_tokens, temperature=T, seed=seed)
                # The last cycles of a text have no room for a whole draft: left out, where there are others.
                cycles = [cycle for out in outs for cycle in out.trace.cycles[:-1] or out.trace.cycles]
                runs[text, T, name] = Trace(cycles)
    return runs


def positions_figure(runs: Runs, text: str, temperature: float, drafter: str | None = None) -> tuple[go.Figure, str]:
    """Left the acceptance at every position, right tokens per forward pass and how many it processes.

    `drafter`: the one to highlight.

    The fewer cycles reached a position, the smaller its mark.
    """
    traces = {name: trace for (kind, T, name), trace in runs.items() if (kind, T) == (text, temperature)}
    if not traces:
        kinds, hot = sorted({kind for kind, _, _ in runs}), sorted({T for _, T, _ in runs})
        raise ValueError(f"text={text!r}, temperature={temperature!r} was not run: there are {kinds} at {hot}")
    if drafter is not None and drafter not in traces:
        raise ValueError(f"drafter={drafter!r} was not run: give one of {', '.join(traces)}, or None for all")
    figure = make_subplots(
        1, 2, column_widths=[0.6, 0.4], horizontal_spacing=0.16,
        subplot_titles=("accepted here, if all before were", "tokens per forward pass"),
    )  # fmt: skip
    figure.update_layout(template=TEMPLATE, height=430, legend=dict(orientation="h", y=-0.2), barmode="overlay")
    figure.update_annotations(font_size=14)
    for i, (name, trace) in enumerate(traces.items()):
        rates, came, colour = trace.acceptance_by_position, reached(trace), PALETTE[i % len(PALETTE)]
        bright = drafter in (None, name)
        figure.add_scatter(
            x=list(range(1, len(rates) + 1)),
            y=rates,
            customdata=came,
            name=name,
            mode="lines+markers",
            line=dict(color=colour, width=4 if drafter == name else 2),
            marker=dict(
                symbol=SYMBOLS[i % len(SYMBOLS)], size=[5 + 9 * (n / came[0]) ** 0.5 for n in came], line=dict(width=0)
            ),
            opacity=1 if bright else 0.25,
            hovertemplate=f"{escape(name)}<br>position %{{x}}: %{{y:.2f}} of %{{customdata}} cycles<extra></extra>",
            row=1,
            col=1,
        )
    figure.add_bar(
        y=list(traces),
        x=[trace.tokens_per_cycle for trace in traces.values()],
        orientation="h",
        text=[f"{one.tokens_per_cycle:.2f} written, {one.drafted_per_cycle:.0f} drafted" for one in traces.values()],
        textposition="outside",
        cliponaxis=False,
        marker=dict(
            color=[PALETTE[i % len(PALETTE)] for i in range(len(traces))],
            opacity=[1 if drafter in (None, name) else 0.25 for name in traces],  # the text beside a bar stays readable
        ),
        showlegend=False,
        hovertemplate="%{y}: %{x:.2f} tokens per pass<extra></extra>",
        row=1,
        col=2,
    )
    figure.update_xaxes(title="position in the draft", dtick=1, row=1, col=1)
    figure.update_yaxes(range=[0, 1.03], title="share of the cycles", row=1, col=1)
    most = max(trace.tokens_per_cycle for trace in traces.values())
    figure.update_xaxes(title="tokens per forward pass of the target", range=[0, 2.2 * most], row=1, col=2)
    figure.update_yaxes(autorange="reversed", row=1, col=2)
    figure.add_vline(x=1, line=dict(color=GREY, dash="dash", width=1), row=1, col=2)
    return figure, _words(traces, text, temperature, drafter)


def _words(traces: dict[str, Trace], text: str, temperature: float, drafter: str | None) -> str:
    best = max(traces, key=lambda name: traces[name].tokens_per_cycle)
    name = best if drafter is None else drafter
    trace = traces[name]
    rates = ", ".join(f"{rate:.2f}" for rate in trace.acceptance_by_position)
    return (
        f"{text}, temperature {temperature:g}: {best} emits most, {traces[best].tokens_per_cycle:.2f} tokens per pass. "
        f"{name}: accepted at position 1, 2, … {rates}; {trace.tokens_per_cycle:.2f} tokens per pass, "
        f"{trace.drafted_per_cycle:.1f} drafted, over {trace.target_passes} passes."
    )


def positions(runs: Runs) -> Panel:
    """Bring out one drafter, choose the temperature of the target and the kind of text."""
    if not runs:
        raise ValueError("runs is empty: make some with measure_positions")
    names, kinds = list(dict.fromkeys(name for *_, name in runs)), list(dict.fromkeys(kind for kind, *_ in runs))
    hot = {f"{T:g}" + (" (greedy)" if T == 0 else ""): T for _, T, _ in runs}
    controls = {
        "drafter": choice("bring out", {"all": ""} | {name: name for name in names}),
        "temperature": choice("temperature", hot),
        "text": choice("text", kinds),
    }
    return Panel(
        lambda drafter, temperature, text: positions_figure(runs, text, temperature, drafter or None), controls
    )
