"""Near the limit: recorded and live timelines of kernels, and the steps of the ladder as a table."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import NamedTuple

from minispec.load.handle import Model
from minispec.load.registry import BENCHMARKS
from minispec.measure import where

from . import ladder
from .timeline import Timeline, record, unpacked

# What a kernel is for, by its name; the first that fits. Names are those of cuBLAS, torch and our own kernels.
KINDS = {
    "product": r"gemm|gemv|gemvx|nvjet|cutlass|cublas|splitk|dot_kernel|_product|^(add|b)?mm$|linear|matmul",
    "attention": r"_attend|_merge_splits|flash|softmax|attention",
    "copy": r"memcpy|memset|copy|cat|index|gather|scatter|embedding|select|slice|clone|fill|arange",
}
REST = "norm, RoPE, SwiGLU, sums and the like"


def stored_limit(file: Path | None = None) -> dict:
    """What `python -m benchmarks limit` recorded and the package ships, or a result of your own."""
    result = json.loads(Path(file or BENCHMARKS / "limit.json").read_text(encoding="utf-8"))
    if result.get("benchmark") != "limit":
        raise ValueError(f"file={str(file)!r} holds no result of python -m benchmarks limit: make one with --json")
    return result


def machine_of(result: Mapping) -> str:
    """The device in a few words, and the day."""
    return f"{where(result['machine'])}, recorded {result['date']}"


def steps_table(climbed: Mapping, steps: Sequence[str] | None = None) -> str:
    """What ladder.climb measured, a line per step; "saved" is what a step takes off the time of the one before it."""
    head = (
        f"{'step':<14}{'ms/token':>10}{'saved':>8}{'of the bandwidth':>18}{'kernels/token':>15}{'launches/token':>16}"
    )
    lines, before = [head], None
    for name in steps or climbed["steps"]:
        row = climbed["steps"][name]
        counts = [row.get(key) for key in ("kernels_per_token", "launches_per_token")]
        kernels, launches = ("–" if n is None else format(n, ",.1f" if n < 1 else ",.0f") for n in counts)
        seconds, share = row["seconds_per_token"]["median"], row["fraction_of_bandwidth"]
        saved = "–" if before is None or name not in ladder.STEPS else f"{1 - seconds / before:.0%}"
        lines.append(f"{name:<14}{1e3 * seconds:>10.3f}{saved:>8}{share:>18.1%}{kernels:>15}{launches:>16}")
        before = seconds
    return "\n".join(lines)


class Recording(NamedTuple):
    """Timelines of one model on one machine, by step."""

    model: str
    machine: str
    on_gpu: bool
    timelines: Mapping[str, Timeline]


@cache
def kind_of(name: str) -> str:
    return next((kind for kind, names in KINDS.items() if re.search(names, name, re.IGNORECASE)), REST)


def recorded_timelines(result: Mapping | None = None) -> list[Recording]:
    """Those in a result of `python -m benchmarks limit`; without one, in what the package ships."""
    result = stored_limit() if result is None else result
    about = machine_of(result), result["recorded"]
    return [
        Recording(name, *about, {step: unpacked(packed) for step, packed in model["timelines"].items()})
        for name, model in result["models"].items()
    ]


def live_timelines(model: Model, prompt: Sequence[int], steps: Sequence[str] = ladder.DRAWN) -> Recording:
    """The same of a model where it lives, profiled now."""
    every, timelines, device = ladder.ways(model, None, prompt, 1, len(prompt) + 64), {}, model.device.type
    for step in steps:
        for _ in range(2):  # what is compiled and captured once
            every[step].launch()
        timelines[step] = record(every[step].launch, model.device)
    return Recording(model.name, f"this machine ({device}), profiled now", device == "cuda", timelines)


def in_words(timeline: Timeline) -> str:
    """What the picture shows: counts, and how much of the time the device ran something."""
    gap, kernel = (median(some) if some else 0.0 for some in (timeline.gaps, [e.duration for e in timeline.kernels]))
    idle = 1 - timeline.busy / timeline.span if timeline.span else 0.0
    products = sum(e.duration for e in timeline.kernels if kind_of(e.name) == "product") / (timeline.busy or 1.0)
    return (
        f"{len(timeline.kernels)} kernels by {len(timeline.launches)} launches in {timeline.span:,.0f} µs. Kernels "
        f"run for {timeline.busy:,.0f} µs of it ({products:.0%} of that for products), so the device is idle for "
        f"{max(0.0, idle):.0%}. The median kernel takes {kernel:.1f} µs, the median gap between two {gap:.1f} µs."
    )
