"""Two distributions over the same tokens, as bars over each other: what they share, and what each has more of."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from minispec.exact import as_distribution

from . import light as go
from .style import GREY, KINDS, TEMPLATE


def overlap_figure(p, q, labels: Sequence[str] = ()) -> go.Figure:
    """The picture of the proof: min(p, q), and on top of it [p − q]₊ or [q − p]₊.

    A bar reaches up to the larger of p and q. Its lower part is what accepted draft tokens contribute, its upper part
    either what the residual has to add, or what rejections have to remove. The two upper parts have the same total.
    """
    p, q = as_distribution("p", p), as_distribution("q", q)
    if p.shape != q.shape:
        raise ValueError(f"p has {len(p)} tokens and q has {len(q)}: give two distributions over the same tokens")
    names = list(labels) or [f"token {i}" for i in range(len(p))]
    below = dict(orientation="h", y=-0.2)
    figure = go.Figure(layout=dict(template=TEMPLATE, barmode="stack", height=320, legend=below))
    parts = (
        ("min(p, q): drafted and accepted", torch.minimum(p, q), KINDS["accepted"], ""),
        ("[p − q]₊: added by the residual", (p - q).clamp(min=0), KINDS["corrected"], ""),
        ("[q − p]₊: drafted too often, rejected", (q - p).clamp(min=0), GREY, "/"),
    )
    for name, heights, colour, hatching in parts:
        figure.add_bar(
            name=name,
            x=names,
            y=[round(float(height), 6) for height in heights],
            marker=dict(color=colour, pattern=dict(shape=hatching)),
            hovertemplate="%{y:.3f}",
        )
    return figure.update_layout(yaxis_title="probability")
