"""Figures without controls, drawn with plotly: bars and lines of what was measured or computed."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product

import plotly.graph_objects as go
from llguidance import LLTokenizer
from tokenizers import Tokenizer, decoders, models
from torch import Tensor

from minispec import theory
from minispec.exact import exact_distribution
from minispec.measure import Timing
from minispec.processors.constraint import Guided, any_spelling
from minispec.serving.budget import best_lengths, expected_tokens, fastest, survival
from minispec.verify import Verdict

from ..labs import presets
from ..labs.drafting import PLAIN
from ..labs.passes import Here
from .style import GREY, KINDS, PALETTE, TEMPLATE, TEXT, shades

Rule = Callable[..., Verdict]  # as verify.chain: (p [k+1, V], q [k, V], drafted, uniforms)
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "pentagon")
OUTSIDE, FORBIDDEN, ALLOWED, DRAFTED, REJECTED = range(5)  # what a mask says of a token, and whether it was drafted
MASK_LOOKS = {
    OUTSIDE: (GREY, "left the automaton"),
    FORBIDDEN: ("#f2f2f2", "forbidden"),
    ALLOWED: (KINDS["accepted"], "allowed"),
    DRAFTED: (KINDS["bonus"], "drafted, allowed"),
    REJECTED: (KINDS["corrected"], "drafted, forbidden"),
}


def _figure(traces: Sequence = (), title: str = "", height: int = 400, **layout) -> go.Figure:
    """Our look, with the legend above the axes, where no title or tick of theirs can meet it."""
    legend = dict(orientation="h", x=0, xanchor="left", y=1.02, yanchor="bottom")
    shape = dict(template=TEMPLATE, title=dict(text=title, y=0.97), height=height, legend=legend, margin_t=90)
    return go.Figure(list(traces), layout=shape | layout)


def _lines(xs: Sequence, curves: Mapping[str, Sequence[float]], colours: Sequence[str]) -> list[go.Scatter]:
    return [
        go.Scatter(x=list(xs), y=list(ys), name=name, mode="lines+markers", line_color=colour)
        for (name, ys), colour in zip(curves.items(), colours, strict=False)
    ]


# ---- measured --------------------------------------------------------------------------------------------------------


def acceptance_by_temperature(result: dict) -> go.Figure:
    """One line for each temperature of the target, over the draft's. A ring marks each line's best draft temperature.

    `result` is what `labs.drafting.temperature_grid` returns.
    """
    xs, targets, traces = result["draft_temperatures"], result["target_temperatures"], []
    for i, (T, row, colour) in enumerate(zip(targets, result["acceptance"], shades(len(targets)), strict=True)):
        best, name = [j for j, y in enumerate(row) if y == max(row)], "0 (greedy)" if T == 0 else f"{T:g}"
        line = dict(mode="lines+markers", line=dict(color=colour), marker=dict(symbol=SYMBOLS[i % 8], size=7))
        ring = dict(symbol="circle-open", size=16, color=colour, line=dict(width=2))
        traces.append(go.Scatter(x=xs, y=row, name=name, **line))
        at = dict(x=[xs[j] for j in best], y=[row[j] for j in best])
        traces.append(go.Scatter(**at, mode="markers", marker=ring, showlegend=False, hoverinfo="skip"))
    title = f"How often {result['target']} accepts a token of {result['draft']}, by the target's temperature"
    yaxis = dict(title="acceptance Σ min(p, q)", range=[0, 1.03])
    return _figure(traces, title, xaxis_title="draft's temperature (0: greedy)", yaxis=yaxis)


def drafter_speedups(race: dict) -> go.Figure:
    """Speed-ups over plain decoding, as `labs.drafting.race` measured them: a group of bars per drafter, a colour per
    kind of text."""
    bars = []
    for (kind, rows), colour in zip(race["results"].items(), PALETTE, strict=False):
        gains = {name: row["speedup"]["median"] for name, row in rows.items() if name != PLAIN}
        bars.append(go.Bar(x=list(gains), y=list(gains.values()), name=kind, marker_color=colour))
    yaxis = dict(title="speed-up over plain decoding", rangemode="tozero")
    figure = _figure(bars, f"{race['target']} on this machine, measured just now", yaxis=yaxis)
    return figure.add_hline(y=1, line=dict(color=GREY, dash="dash", width=1))


def two_rooflines_figure(curves: Mapping[str, tuple[Mapping[int, float], Mapping[int, Timing]]]) -> go.Figure:
    """Milliseconds against tokens per pass: a line at best, dots with quartiles where it was measured."""
    traces = []
    for (weights, (best, measured)), colour in zip(curves.items(), PALETTE, strict=False):
        line = dict(mode="lines", line=dict(color=colour, width=3), name=f"roofline: {weights} weights")
        traces.append(go.Scatter(x=list(best), y=[1e3 * t for t in best.values()], **line))
        times = [(1e3 * t.low, 1e3 * t.median, 1e3 * t.high) for t in measured.values()]
        spread = dict(array=[high - at for _, at, high in times], arrayminus=[at - low for low, at, _ in times])
        dots = dict(mode="markers", marker=dict(size=9, color=colour), name=f"measured: {weights} weights (quartiles)")
        traces.append(go.Scatter(x=list(measured), y=[at for _, at, _ in times], error_y=spread, **dots))
    yaxis = dict(title="ms per forward pass", rangemode="tozero")
    return _figure(traces, height=430, xaxis_title="M, tokens per forward pass", yaxis=yaxis)


def two_rooflines(
    hardware: theory.Hardware, config, tokens=(1, 2, 3, 4, 5, 6, 8), context=64, measured: Sequence[Here] = ()
):
    """Weights → (seconds of a pass at best, as measured), by the number of tokens, for float32 and int8.

    Both read the weights once and compute as much; int8 reads a quarter, so it meets its ridge point at a quarter as
    many tokens, and a verify pass costs more plain passes although it takes less time.
    """
    curves = {}
    for name, size in (("float32", 4), ("int8", 1)):
        best = {m: presets.seconds(hardware, config, size, 1, m, context) for m in tokens}
        timed = {p.tokens: p.time for here in measured if here.bytes_per_weight == size for p in here.curve}
        curves[name] = best, timed
    return curves


# ---- lesson 15: drafts under two rules, shared vocabularies, one budget of slots, masks ------------------------------


def drafts_figure(p: Tensor, q: Tensor, k: int, rules: dict[str, Rule], names: str) -> go.Figure:
    """Every draft with the tokens that each rule accepts of it, and the average over the drafts."""
    bars = []
    for rule, function in rules.items():
        found = accepted_by_draft(p, q, k, function)
        mean = sum(weight * tokens for weight, tokens in found.values())
        labels = [
            f"{', '.join(names[d] for d in draft)}<br>{weight:.0%} of drafts" for draft, (weight, _) in found.items()
        ]
        heights = [*(tokens for _, tokens in found.values()), mean]
        text = dict(text=[f"{y:.2f}" for y in heights], textposition="outside")
        bars.append(go.Bar(name=rule, x=[*labels, "average"], y=heights, **text))
    yaxis = dict(title="draft tokens accepted", range=[0, 1.15 * k])
    title = "Block verification gains with some drafts and loses with others"
    return _figure(bars, title, 380, yaxis=yaxis, xaxis_title="draft")


def accepted_by_draft(p: Tensor, q: Tensor, k: int, rule: Rule) -> dict[tuple[int, ...], tuple[float, float]]:
    """Every draft of k tokens of two models that ignore the context, p [V] and q [V]: how often it is drafted, and how
    many of its tokens a rule accepts on average. Exact: the rule is run down every branch."""
    found = {}
    for draft in product(range(len(q)), repeat=k):

        def accepted(random, draft=draft) -> int:
            return rule(p.expand(k + 1, -1), q.expand(k, -1), draft, [random() for _ in range(k + 1)]).accepted

        mean = sum(length * probability for length, probability in exact_distribution(accepted).items())
        found[draft] = math.prod(float(q[d]) for d in draft), mean
    return found


def slots_figure(confidences: Sequence[Sequence[float]], budget: int, names: Sequence[str] = ()) -> go.Figure:
    """Every draft token of a batch with its probability to survive; those that the budget takes are filled."""
    survivals = [survival(row) for row in confidences]
    lengths, squares = best_lengths(survivals, budget), []
    for s, (probs, n) in enumerate(zip(survivals, lengths, strict=True)):
        fill = [PALETTE[2] if j < n else "rgba(0,0,0,0)" for j in range(len(probs))]
        marker = dict(symbol="square", size=44, color=fill, line=dict(color=GREY, width=1))
        font = dict(size=12, color=["#111111" if j < n else TEXT for j in range(len(probs))])
        look = dict(mode="markers+text", showlegend=False, marker=marker, textfont=font)
        name = names[s] if names else f"sequence {s + 1}"
        at = dict(x=list(range(1, len(probs) + 1)), y=[name] * len(probs))
        squares.append(go.Scatter(**at, text=[f"{x:.2f}" for x in probs], **look))
    title = f"{budget} draft tokens for the whole batch: {sum(lengths)} taken (green)"
    xaxis = dict(title="draft token; the number is its probability to survive", dtick=1, showgrid=False)
    yaxis = dict(autorange="reversed", showgrid=False)
    return _figure(squares, title, 120 + 62 * len(survivals), xaxis=xaxis, yaxis=yaxis, margin_t=60)


def budget_figure(
    alphas: Sequence[float], k: int, cost: Callable[[int], float], batches: Sequence[int] = (2, 4, 8, 16, 32, 64, 128)
) -> go.Figure:
    """The speed-up over plain decoding against the batch size. Fewer sequences than `alphas` would not be a mix."""
    rates = batch_rates(alphas, k, cost, batches)
    curves = {name: [a / b for a, b in zip(some, rates["off"], strict=True)] for name, some in rates.items()}
    over = [100 * (a / b - 1) for a, b in zip(rates["one budget"], rates["best fixed k"], strict=True)]
    title = f"One budget gains up to {max(over):.0f} % over the best fixed k, at batch {batches[over.index(max(over))]}"
    axes = dict(xaxis=dict(title="batch size", type="log", tickvals=list(batches)))
    traces = _lines(batches, curves, (GREY, PALETTE[1], PALETTE[0], PALETTE[2]))
    return _figure(traces, title, yaxis_title="speed-up over plain decoding", **axes)


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


def speedups_figure(speedups: dict[str, Sequence[float]], batches: Sequence[int], title: str) -> go.Figure:
    """Speed-ups of several models against the batch size, with the line below which speculation costs time."""
    xaxis = dict(title="batch size", type="log", tickvals=list(batches))
    yaxis = dict(title="speed-up over plain decoding", rangemode="tozero")
    figure = _figure(_lines(batches, speedups, (GREY, *PALETTE)), title, xaxis=xaxis, yaxis=yaxis)
    return figure.add_hline(y=1, line=dict(color=GREY, dash="dot"))


def prefix_masks_figure(pattern: str, pieces: Sequence[str], draft: Sequence[str], emitted: str = "") -> go.Figure:
    """One line for each position of a draft: its prefix, and every token of the vocabulary, allowed or forbidden there.
    The drafted token is marked. Below a forbidden one no prefix can be completed any more."""
    lines, names = prefix_masks(pattern, pieces, draft, emitted)
    looks = MASK_LOOKS.values()
    scale = [pair for i, (colour, _) in enumerate(looks) for pair in ([i / 5, colour], [(i + 1) / 5, colour])]
    told = [[MASK_LOOKS[cell][1] for cell in line] for line in lines]
    look = dict(zmin=-0.5, zmax=4.5, colorscale=scale, xgap=2, ygap=2, showscale=False, customdata=told)
    columns = [*(f"“{piece}”" for piece in pieces), "end"]
    hover = "%{y} %{x}: %{customdata}<extra></extra>"
    traces = [go.Heatmap(z=lines, x=columns, y=names, hovertemplate=hover, **look)]
    for colour, word in looks:  # the colours in a legend above, where no width of the page cuts its words
        mark = dict(symbol="square", size=12, color=colour, line=dict(color=GREY, width=1))
        traces.append(go.Scatter(x=[None], y=[None], mode="markers", name=word, marker=mark))
    yaxis = dict(title="position: prefix", autorange="reversed", type="category")
    title = "Every position of the draft has a mask of its own"
    return _figure(traces, title, 150 + 44 * len(lines), xaxis_title="token", yaxis=yaxis)


def prefix_masks(pattern: str, pieces: Sequence[str], draft: Sequence[str], emitted: str = "") -> tuple[list, list]:
    """What the mask of each position says of every token and of the end, and the positions with their prefixes."""
    constraint, prefix, lines, names = _constraint(pattern, pieces), [], [], []
    while (rest := emitted[len("".join(prefix)) :]) != "":  # as tokens, the longest that fits first
        prefix.append(max((piece for piece in pieces if rest.startswith(piece)), key=len))
    for piece in [*draft, None]:
        mask = constraint.allowed([pieces.index(part) for part in prefix])
        line = [OUTSIDE] * (len(pieces) + 1) if mask is None else [ALLOWED if ok else FORBIDDEN for ok in mask]
        lines.append(line)
        names.append(f"{len(names)}: “{''.join(prefix)}”")
        if piece is not None:
            at, prefix = pieces.index(piece), [*prefix, piece]
            line[at] = DRAFTED if line[at] == ALLOWED else REJECTED
    return lines, names


def _constraint(pattern: str, pieces: Sequence[str]) -> Guided:
    """A pattern over a toy vocabulary: these pieces of text, and an end token."""
    end = len(pieces)
    tokenizer = Tokenizer(models.WordLevel({piece: token for token, piece in enumerate([*pieces, "<end>"])}, "<end>"))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    guide = LLTokenizer(tokenizer.to_str(), n_vocab=end + 1, eos_token=end)
    return Guided(guide, any_spelling(pattern), [end], f"pattern={pattern!r}")
