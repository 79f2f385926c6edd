"""Pictures of lesson 15: drafts under two rules, tokens that two vocabularies share, slots of one budget, experts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product

from torch import Tensor

from minispec.exact import exact_distribution
from minispec.serving.budget import best_lengths, expected_tokens, fastest, survival
from minispec.verify import Verdict

from . import light as go
from .style import GREY, LEGEND_ABOVE, PALETTE, TEMPLATE, TEXT

Rule = Callable[..., Verdict]  # as verify.chain: (p [k+1, V], q [k, V], drafted, uniforms)


def accepted_by_draft(p: Tensor, q: Tensor, k: int, rule: Rule) -> dict[tuple[int, ...], tuple[float, float]]:
    """Every draft of k tokens of two models that ignore the context, p [V] and q [V]: how often it is drafted, and how
    many of its tokens a rule accepts on average. Exact: the rule is run down every branch."""
    found = {}
    for draft in product(range(len(q)), repeat=k):
        lengths = exact_distribution(
            lambda random, draft=draft: (
                rule(p.expand(k + 1, -1), q.expand(k, -1), draft, [random() for _ in range(k + 1)]).accepted
            )
        )
        drafted = math.prod(float(q[d]) for d in draft)
        found[draft] = drafted, sum(length * probability for length, probability in lengths.items())
    return found


def drafts_figure(p: Tensor, q: Tensor, k: int, rules: dict[str, Rule], names: str) -> go.Figure:
    """Every draft with the tokens that each rule accepts of it, and the average over the drafts."""
    figure = go.Figure()
    for (rule, function), colour in zip(rules.items(), PALETTE, strict=False):
        found = accepted_by_draft(p, q, k, function)
        labels = [
            f"{', '.join(names[d] for d in draft)}<br>{weight:.0%} of drafts" for draft, (weight, _) in found.items()
        ]
        heights = [tokens for _, tokens in found.values()]
        mean = sum(weight * tokens for weight, tokens in found.values())
        figure.add_bar(
            name=rule,
            x=[*labels, "average"],
            y=[*heights, mean],
            marker_color=colour,
            text=[f"{y:.2f}" for y in (*heights, mean)],
            textposition="outside",
        )
    figure.update_layout(
        template=TEMPLATE,
        barmode="group",
        height=380,
        legend=LEGEND_ABOVE,
        margin_t=90,
        title=dict(text="Block verification gains with some drafts and loses with others", y=0.97),
        yaxis=dict(title="draft tokens accepted", range=[0, 1.15 * k]),
        xaxis_title="draft",
    )
    return figure


def shared_figure(own: Sequence[str], probs: Tensor, theirs: Sequence[str], p: Tensor) -> go.Figure:
    """The draft model's distribution before and after it is restricted to what both vocabularies have, beside p."""
    pieces = list(dict.fromkeys([*theirs, *own]))
    shared = [piece in own and piece in theirs for piece in pieces]
    before = [float(probs[own.index(piece)]) if piece in own else 0.0 for piece in pieces]
    mass = sum(x for x, both in zip(before, shared, strict=True) if both)
    after = [x / mass if both else 0.0 for x, both in zip(before, shared, strict=True)]
    figure = go.Figure()
    bars = (
        ("draft model, its own tokens", before, GREY),
        ("q: shared tokens, renormalised", after, PALETTE[1]),
        ("p: the target", [float(p[theirs.index(piece)]) if piece in theirs else 0.0 for piece in pieces], PALETTE[0]),
    )
    for name, heights, colour in bars:
        figure.add_bar(name=name, x=pieces, y=heights, marker_color=colour)
    figure.update_layout(
        template=TEMPLATE,
        title=dict(text="Only shared tokens can be drafted", y=0.97),
        height=360,
        legend=LEGEND_ABOVE,
        margin_t=90,
        barmode="group",
        yaxis_title="probability",
        xaxis_title="token",
    )
    return figure


def slots_figure(confidences: Sequence[Sequence[float]], budget: int, names: Sequence[str] = ()) -> go.Figure:
    """Every draft token of a batch with its probability to survive; those that the budget takes are filled."""
    survivals = [survival(row) for row in confidences]
    lengths = best_lengths(survivals, budget)
    figure = go.Figure()
    for s, (probs, n) in enumerate(zip(survivals, lengths, strict=True)):
        name = names[s] if names else f"sequence {s + 1}"
        colours = [PALETTE[2] if j < n else "rgba(0,0,0,0)" for j in range(len(probs))]
        figure.add_scatter(
            x=list(range(1, len(probs) + 1)),
            y=[name] * len(probs),
            mode="markers+text",
            showlegend=False,
            marker=dict(symbol="square", size=44, color=colours, line=dict(color=GREY, width=1)),
            text=[f"{x:.2f}" for x in probs],
            textfont=dict(size=12, color=["#111111" if j < n else TEXT for j in range(len(probs))]),
        )
    figure.update_layout(
        template=TEMPLATE,
        height=120 + 62 * len(survivals),
        yaxis=dict(autorange="reversed", showgrid=False),
        title=f"{budget} draft tokens for the whole batch: {sum(lengths)} taken (green)",
        xaxis=dict(title="draft token; the number is its probability to survive", dtick=1, showgrid=False),
    )
    return figure


def batch_rates(
    alphas: Sequence[float], k: int, cost: Callable[[int], float], batches: Sequence[int]
) -> dict[str, list[float]]:
    """Tokens per unit of time at every batch size, where sequences take their α from `alphas` in turn: without drafts,
    with k for all, with the best fixed k for all, and with the best set of draft tokens."""
    rates: dict[str, list[float]] = {"off": [], f"k = {k} for all": [], "best fixed k": [], "one budget": []}
    for batch in batches:
        survivals = [survival([alphas[i % len(alphas)]] * k) for i in range(batch)]
        fixed = [expected_tokens(survivals, [n] * batch) / cost(batch * (n + 1)) for n in range(k + 1)]
        for name, rate in zip(rates, (fixed[0], fixed[k], max(fixed), fastest(survivals, cost)[1]), strict=True):
            rates[name].append(rate)
    return rates


def budget_figure(
    alphas: Sequence[float], k: int, cost: Callable[[int], float], batches: Sequence[int] = (2, 4, 8, 16, 32, 64, 128)
) -> go.Figure:
    """The speed-up over plain decoding against the batch size. Fewer sequences than `alphas` would not be a mix."""
    rates = batch_rates(alphas, k, cost, batches)
    figure = go.Figure()
    for (name, values), colour in zip(rates.items(), (GREY, PALETTE[1], PALETTE[0], PALETTE[2]), strict=True):
        figure.add_scatter(
            x=list(batches),
            y=[a / b for a, b in zip(values, rates["off"], strict=True)],
            name=name,
            mode="lines+markers",
            line_color=colour,
        )
    over = [100 * (a / b - 1) for a, b in zip(rates["one budget"], rates["best fixed k"], strict=True)]
    title = f"One budget gains up to {max(over):.0f} % over the best fixed k, at batch {batches[over.index(max(over))]}"
    figure.update_layout(
        template=TEMPLATE,
        title=dict(text=title, y=0.97),
        legend=LEGEND_ABOVE,
        margin_t=90,
        xaxis_type="log",
        xaxis=dict(title="batch size", tickvals=list(batches)),
        yaxis_title="speed-up over plain decoding",
    )
    return figure


def speedups_figure(speedups: dict[str, Sequence[float]], batches: Sequence[int], title: str) -> go.Figure:
    """Speed-ups of several models against the batch size, with the line below which speculation costs time."""
    figure = go.Figure()
    for (name, values), colour in zip(speedups.items(), (GREY, *PALETTE), strict=False):
        figure.add_scatter(x=list(batches), y=list(values), name=name, mode="lines+markers", line_color=colour)
    figure.add_hline(y=1, line=dict(color=GREY, dash="dot"))
    figure.update_layout(
        template=TEMPLATE,
        title=dict(text=title, y=0.97),
        legend=LEGEND_ABOVE,
        margin_t=90,
        xaxis=dict(title="batch size", type="log", tickvals=list(batches)),
        yaxis=dict(title="speed-up over plain decoding", rangemode="tozero"),
    )
    return figure
