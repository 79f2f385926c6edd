"""What a mixture of experts does to a verify pass: experts touched against tokens, and the speedup that is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minispec.theory import experts_touched, verify_cost_of_experts
from minispec.theory import cycle_speedup, expected_tokens

from . import light as go
from .light import make_subplots
from .style import GREY, PALETTE, TEMPLATE


def experts_figure(
    experts: int,
    per_token: int,
    counted: Mapping[int, float],
    always: float,
    expert: float,
    alpha: float,
    c: float,
    counted_of: tuple[int, int] = (16, 2),
    batches: Sequence[int] = (1, 4, 16, 64),
    longest: int = 16,
) -> go.Figure:
    """Left: the share of a layer's experts that a pass reads, by the formula and as counted ({tokens: experts}, of a
    mixture of shape `counted_of`). Right: the speedup against k for some batch sizes, with each best k marked; a pass
    costs what it reads."""
    figure = make_subplots(1, 2, subplot_titles=("experts that a pass reads", f"speedup, α = {alpha}, c = {c}"))
    tokens = list(range(1, 34))
    shapes = {(experts, per_token): PALETTE[0], counted_of: PALETTE[1]}
    for (E, k), colour in shapes.items():
        figure.add_scatter(
            x=tokens,
            y=[100 * experts_touched(E, k, m) / E for m in tokens],
            line_color=colour,
            name=f"{k} of {E}, if tokens choose independently",
            row=1,
            col=1,
        )
    figure.add_scatter(
        x=list(counted),
        y=[100 * n / counted_of[0] for n in counted.values()],
        mode="markers",
        marker=dict(color=PALETTE[1], size=9, symbol="diamond"),
        row=1,
        col=1,
        name=f"{counted_of[1]} of {counted_of[0]}, counted on text",
    )
    lengths = list(range(1, longest + 1))
    for batch, colour in zip(batches, (PALETTE[0], PALETTE[4], PALETTE[2], PALETTE[3]), strict=False):
        cost = [verify_cost_of_experts(always, expert, experts, per_token, k, batch) for k in lengths]
        gain = [cycle_speedup(expected_tokens(alpha, k), k, c, v) for k, v in zip(lengths, cost, strict=True)]
        best = gain.index(max(gain))
        figure.add_scatter(
            x=lengths,
            y=gain,
            line_color=colour,
            name=f"{per_token} of {experts}, batch of {batch}",
            mode="lines+markers",
            row=1,
            col=2,
            marker=dict(size=[11 if i == best else 4 for i in range(longest)]),
        )
    figure.add_scatter(
        x=lengths,
        y=[cycle_speedup(expected_tokens(alpha, k), k, c) for k in lengths],
        name="dense",
        line=dict(color=GREY, dash="dash", width=3),
        mode="lines",
        row=1,
        col=2,
    )
    figure.update_xaxes(title_text="tokens of the pass", row=1, col=1)
    figure.update_xaxes(title_text="k (the large dot is the best)", row=1, col=2)
    figure.update_yaxes(title_text="share of the experts, %", range=[0, 104], row=1, col=1)
    figure.update_yaxes(title_text="tokens per time, over plain decoding", row=1, col=2)
    figure.add_hline(y=1, line=dict(color=GREY, width=1, dash="dot"), row=1, col=2)
    figure.update_layout(
        template=TEMPLATE,
        height=470,
        margin=dict(t=50, b=150),
        legend=dict(orientation="h", x=0, y=-0.24, yanchor="top"),
    )
    return figure
