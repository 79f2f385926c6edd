"""The steps of lesson 13 beside one another: share of the bandwidth, recorded and measured here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from minispec.load.registry import BENCHMARKS
from minispec.measure import where

from ..labs import ladder
from . import light as go
from .style import PALETTE, TEMPLATE

RECORDED = BENCHMARKS / "limit.json"


def stored_limit(file: Path | None = None) -> dict:
    """What `python -m benchmarks limit` recorded and the package ships, or a result of your own."""
    try:
        result = json.loads(Path(file or RECORDED).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"file={str(file)!r} cannot be read ({error}): give what python -m benchmarks limit --json wrote"
        ) from None
    if result.get("benchmark") != "limit":
        raise ValueError(f"file={str(file)!r} holds no result of python -m benchmarks limit: make one with --json")
    return result


def machine_of(result: Mapping) -> str:
    """The device in a few words, and the day."""
    return f"{where(result['machine'])}, recorded {result['date']}"


def steps_table(climbed: Mapping, steps: Sequence[str] | None = None) -> str:
    """What ladder.climb measured, a line per step; "saved" is what a step takes off the time of the one before it."""
    lines = [
        f"{'step':<14}{'ms/token':>10}{'saved':>8}{'of the bandwidth':>18}{'kernels/token':>15}{'launches/token':>16}"
    ]
    before = None
    for name in steps or climbed["steps"]:
        row = climbed["steps"][name]
        counts = [row.get(key) for key in ("kernels_per_token", "launches_per_token")]
        kernels, launches = ("–" if n is None else format(n, ",.1f" if n < 1 else ",.0f") for n in counts)
        seconds, share = row["seconds_per_token"]["median"], row["fraction_of_bandwidth"]
        saved = "–" if before is None or name not in ladder.STEPS else f"{1 - seconds / before:.0%}"
        lines.append(f"{name:<14}{1e3 * seconds:>10.3f}{saved:>8}{share:>18.1%}{kernels:>15}{launches:>16}")
        before = seconds
    return "\n".join(lines)


def _shares(climbed: Mapping, steps: Sequence[str]) -> str:
    """ "0.3, 9, 22": percentages of the bandwidth."""
    shares = [100 * climbed["steps"][step]["fraction_of_bandwidth"] for step in steps if step in climbed["steps"]]
    return ", ".join(f"{share:.1f}" if share < 1 else f"{share:.0f}" for share in shares)


def limit_steps_figure(runs: Mapping[str, Mapping], steps: Sequence[str] = ladder.STEPS) -> go.Figure:
    """The share of the read bandwidth that each step reaches, in %: a group of bars per step, a colour per run.

    `runs` are results of ladder.climb by what they are called. A cycle emits several tokens for one reading of the
    weights, so it can pass 100 %. The title has the numbers, for those too who cannot see the bars.
    """
    figure = go.Figure(layout=dict(template=TEMPLATE))
    for (name, climbed), colour in zip(runs.items(), PALETTE, strict=False):
        there = [step for step in steps if step in climbed["steps"]]
        shares = [100 * climbed["steps"][step]["fraction_of_bandwidth"] for step in there]
        figure.add_trace(
            go.Bar(
                x=there,
                y=shares,
                name=name,
                marker=dict(color=colour),
                text=[f"{s:.0f}" for s in shares],
                textangle=0,
                hovertemplate="%{x}: %{y:.1f} %",
            )
        )
    figure.add_hline(y=100, line=dict(color=PALETTE[1], dash="dot"))
    ends = [step for step in (ladder.EAGER, ladder.SPLIT, ladder.CYCLE) if step in steps]
    said = [f"{name.split(',')[0]} {_shares(climbed, ends)} %" for name, climbed in runs.items()]
    figure.update_layout(
        title=dict(text=f"{', '.join(ends)}: {'; '.join(said)}", font=dict(size=14)),
        yaxis=dict(title="share of the read bandwidth, %", rangemode="tozero"),
        legend=dict(orientation="h", y=-0.15),
        barmode="group",
    )
    return figure
