"""Where the time goes: one draft–verify cycle as a stacked bar, here and on an H200, in plain decoding steps."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from minispec.drafters import Drafter
from minispec.generate import generate
from minispec.load.handle import Model
from minispec.load.registry import BENCHMARKS
from minispec.speculate import speculate

from . import light as go
from .style import GREY, PALETTE, TEMPLATE

H200 = BENCHMARKS / "speculate.json"
PARTS = {"drafting, k times": "draft", "verify pass": "verify", "sampling": "sample", "host and rest": "host"}


@dataclass(frozen=True)
class CycleParts:
    """Seconds of one cycle, by what they were spent on, and of one plain decoding step."""

    name: str
    k: int
    tokens: float  # emitted per cycle
    plain: float
    draft: float  # of the whole draft, k tokens
    verify: float
    sample: float
    host: float  # the rest of the cycle: Python, and waiting

    @property
    def cycle(self) -> float:
        return self.draft + self.verify + self.sample + self.host

    @property
    def speedup(self) -> float:
        """As many tokens by plain decoding, over the cycle."""
        return self.tokens * self.plain / self.cycle

    @classmethod
    def recorded(cls, file: Path = H200) -> CycleParts:
        """From the result of `python -m benchmarks speculate`, whose cycle is one launch: its sampling is in the rest."""
        result = json.loads(Path(file).read_text(encoding="utf-8"))
        took = {name: timing["median"] for name, timing in result["seconds"].items()}
        draft, verify = result["k"] * took["draft, a token"], took["verify pass"]
        where = result["machine"]["gpus"][0]["name"].removeprefix("NVIDIA ")
        return cls(
            f"{where}, recorded {result['date']} ({result['shape']} shape)",
            result["k"],
            result["tokens_per_cycle"],
            took["plain token"],
            draft,
            verify,
            0.0,
            max(0.0, took["whole cycle"] - draft - verify),
        )


def measure_cycle(
    target: Model, drafter: Drafter, prompt, k: int = 4, new_tokens: int = 48, repeat: int = 5, **options
) -> CycleParts:
    """Time cycles of real runs, here and now: the median of `repeat` of them, in turn with plain decoding.

    A cycle lasts from one call of `on_cycle` to the next, so the prompt is left out. Draft, verify and sampling come
    from the trace, and what they leave of the cycle is the host. `options` are those of `speculate`.
    """
    options = dict(ignore_eos=True) | options
    rows, plain = [], []
    for turn in range(repeat + 1):
        stamps: list[float] = []
        note = lambda _, stamps=stamps: stamps.append(time.perf_counter())  # noqa: E731
        out = speculate(target, prompt, drafter, k, new_tokens, on_cycle=note, **options)
        step = plain_step(target, prompt, new_tokens, options)
        if turn and len(stamps) > 1:  # the first turn compiles and records
            timed = out.trace.cycles[1:]
            parts = [fmean(getattr(c, f"{part}_seconds") for c in timed) for part in ("draft", "verify", "sample")]
            whole = (stamps[-1] - stamps[0]) / len(timed)
            rows.append((out.trace.tokens_per_cycle, *parts, max(0.0, whole - sum(parts))))
            plain.append(step)
    if not rows:
        raise ValueError(f"new_tokens={new_tokens} took one cycle: ask for more, a cycle is timed from the one before")
    tokens, *parts = (median(column) for column in zip(*rows, strict=True))
    return CycleParts(f"this machine, measured just now ({target.label})", k, tokens, median(plain), *parts)


def plain_step(target: Model, prompt, new_tokens: int, options: dict) -> float:
    """Seconds of a plain decoding step: what a longer output takes more than one of a single token."""
    long, short = (generate(target, prompt, n, **options).seconds for n in (new_tokens, 1))
    return (long - short) / (new_tokens - 1)


def cycle_figure(runs: Sequence[CycleParts]) -> go.Figure:
    """A bar for each machine, in units of its own plain decoding step, so that both have one axis.

    The mark is what plain decoding takes for as many tokens: the further it lies to the right, the larger the gain.
    """
    figure = go.Figure(layout=dict(template=TEMPLATE))
    names = [run.name for run in runs]
    for (label, part), colour in zip(PARTS.items(), (PALETTE[5], PALETTE[0], PALETTE[2], GREY), strict=True):
        seconds = [getattr(run, part) for run in runs]
        figure.add_bar(
            y=names,
            x=[s / run.plain for s, run in zip(seconds, runs, strict=True)],
            orientation="h",
            name=label,
            marker=dict(color=colour),
            customdata=[1e3 * s for s in seconds],
            hovertemplate=f"{label}: %{{x:.2f}} plain steps, %{{customdata:.3g}} ms<extra></extra>",
        )
    figure.add_scatter(
        y=names,
        x=[run.tokens for run in runs],
        mode="markers",
        name="plain decoding of as many tokens",
        marker=dict(symbol="line-ns", size=34, color=PALETTE[1], line=dict(width=4, color=PALETTE[1])),
        hovertemplate="%{x:.2f} plain steps<extra></extra>",
    )
    figure.update_layout(
        title="One cycle, in plain decoding steps of the same machine",
        barmode="stack",
        height=300,
        xaxis=dict(title="time, in plain decoding steps", rangemode="tozero"),
        yaxis=dict(autorange="reversed"),
        legend=dict(orientation="h", y=-0.35, traceorder="normal"),
        margin=dict(l=20, b=90),
    )
    return figure


def cycle_words(runs: Sequence[CycleParts]) -> str:
    """The same in words, a line per machine."""
    lines = []
    for run in runs:
        shares = ", ".join(f"{label} {getattr(run, part) / run.cycle:.0%}" for label, part in PARTS.items())
        lines.append(f"{run.name}, k = {run.k}: {1e3 * run.cycle:.2f} ms per cycle ({shares})")
        lines.append(f"  {run.tokens:.2f} tokens per cycle, plain {1e3 * run.plain:.2f} ms each: {run.speedup:.2f} ×")
    return "\n".join(lines)
