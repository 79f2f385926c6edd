"""The drafter race on two machines: the speed-ups just measured here, beside those recorded on an H200."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from minispec.load.registry import BENCHMARKS
from minispec_course.labs.race import PLAIN

from . import light as go
from .light import make_subplots
from .race import Race
from .style import GREY, PALETTE, TEMPLATE

H200 = BENCHMARKS / "drafters.json"
# What the benchmark calls the drafters of the lessons.
NAMES = {
    "n-gram": "ngram",
    "suffix": "suffix",
    "small model": "model",
    "early exit": "early-exit",
    "int8 copy": "quantized",
    "staged": "cascade",
    "lookahead": "lookahead",
    "Medusa tree": "medusa",
    "EAGLE tree": "eagle",
    "DFlash tree": "dflash",
}
Gains = Mapping[str, Mapping[str, float]]  # kind of text → drafter → speed-up over plain decoding


def drafter_speedups(race: Race, file: Path = H200) -> go.Figure:
    """Speed-ups over plain decoding: left as this race measured them, right as `python -m benchmarks drafters` recorded them.

    A drafter that was not recorded has no bars on the right.
    """
    names = [name for name in next(iter(race.runners.values())) if name != PLAIN]
    here = {kind: {name: race.gain(kind, name, "seconds") for name in names} for kind in race.runners}
    there, told = recorded_speedups(names, file)
    figure = make_subplots(
        1,
        2,
        shared_yaxes=True,
        horizontal_spacing=0.04,
        subplot_titles=(f"this machine, measured just now ({race.target})", told),
    )
    kinds = list(dict.fromkeys([*here, *there]))
    colours = {kind: PALETTE[i % len(PALETTE)] for i, kind in enumerate(kinds)}
    for column, gains in enumerate((here, there), start=1):
        _bars(figure, gains, names, colours, column, told_before=here if column == 2 else ())
        figure.add_hline(y=1, line=dict(color=GREY, dash="dash", width=1), row=1, col=column)
    figure.update_annotations(font_size=13)
    figure.update_xaxes(categoryorder="array", categoryarray=names, tickangle=-35)
    figure.update_yaxes(title="speed-up over plain decoding", rangemode="tozero", row=1, col=1)
    figure.update_layout(template=TEMPLATE, barmode="group", height=430, legend=dict(orientation="h", y=-0.35))
    return figure


def recorded_speedups(names: Sequence[str], file: Path = H200) -> tuple[Gains, str]:
    """Median speed-ups of these drafters by kind of text, and what to write above them."""
    result = json.loads(Path(file).read_text(encoding="utf-8"))
    gains = {
        kind: {name: table[NAMES[name]]["speedup"]["median"] for name in names if NAMES.get(name) in table}
        for kind, table in result["results"].items()
    }
    gpu = result["machine"]["gpus"][0]["name"].removeprefix("NVIDIA ")
    return gains, f"{gpu}, recorded {result['date']} ({result['target']})"


def _bars(figure, gains: Gains, names: Sequence[str], colours: Mapping[str, str], column: int, told_before) -> None:
    for kind, of_it in gains.items():
        figure.add_bar(
            x=list(names),
            y=[of_it.get(name) for name in names],
            name=kind,
            marker=dict(color=colours[kind]),
            legendgroup=kind,
            showlegend=kind not in told_before,
            hovertemplate=f"%{{x}}, {kind}: %{{y:.2f}} ×<extra></extra>",
            row=1,
            col=column,
        )
