"""What a full batch does to speculation: the roofline at a batch size, and recorded batches with and without drafts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from minispec import theory
from minispec.load.registry import BENCHMARKS
from minispec.model import Config

from . import presets

LONGEST = 8  # the longest draft that is tried where k is free
RECORDED = BENCHMARKS / "speculation.json"


def verify_cost(
    hardware: theory.Hardware, config: Config, k: int, batch: int, bytes_per_weight=2.0, context=0
) -> float:
    """`theory.verify_cost` of a model that is known by its shape."""
    weights, (kept, width) = presets.weights_read(config), presets.attention(config, bytes_per_weight)
    shape = dict(bytes_per_weight=bytes_per_weight, kv_bytes=kept, attention_width=width)
    return theory.verify_cost(hardware, weights, k, batch, context=context, **shape)


class Load(NamedTuple):
    """What the roofline says about one batch size and context."""

    gigabytes: float  # parameters of target and draft, and the caches of both
    c: float
    v: float
    speedup: float
    best_k: int
    best_speedup: float


def roofline_at(
    batch: int, context=0, *, k=4, alpha=0.7, c=None, target="Llama-3-8B", draft="Llama-3.2-1B", hardware=theory.H200
) -> Load:
    """Speculation for `batch` requests of `context` cached tokens each, in bf16.

    The matrix products of a pass and its attention are bounded separately and added (`theory.pass_time`). Without `c`:
    that of the draft model, whose pass and cache are counted like the target's.
    """
    shapes = [presets.SHAPES[name] for name in (target, draft)]
    stored = sum(2 * presets.weights(s) + batch * context * presets.attention(s)[0] for s in shapes)
    if c is None:
        whole, small = (presets.seconds(hardware, shape, 2, batch, 1, context) for shape in shapes)
        c = small / whole

    def v(k: int) -> float:
        return verify_cost(hardware, shapes[0], k, batch, 2, context)

    best = theory.best_k(alpha, c, v, LONGEST), theory.best_speedup(alpha, c, v, LONGEST)
    return Load(stored / 1e9, c, v(k), theory.speedup(alpha, k, c, v(k)), *best)


@dataclass(frozen=True)
class BatchDot:
    """A full batch, once with drafts and once without: what was measured."""

    batch: int
    k: int
    alpha: float
    c: float  # one drafted token, in plain steps
    v: float  # a verifying step without its drafting, in plain steps
    measured: float  # speed-up, the median of the rounds
    range: tuple[float, float] | None = None  # of the rounds, where there were several

    @property
    def predicted(self) -> float:
        """By the formula, which assumes that all draft tokens are accepted alike, independently of one another."""
        return theory.speedup(self.alpha, self.k, self.c, self.v)

    @classmethod
    def recorded(cls, file: Path = RECORDED) -> list[BatchDot]:
        """From the result of `python -m benchmarks batch`; without a file: an 8B shape on an H200, after 500 tokens."""
        result, dots = json.loads(Path(file).read_text(encoding="utf-8")), []
        for row in result["speculation"]["results"]:
            gain = row["speedup"]
            numbers = (row["acceptance"], row["c"], row["v"], gain["median"], (gain["low"], gain["high"]))
            dots.append(cls(row["batch"], result["k"], *numbers))
        return dots


def batch_table(dots: Sequence[BatchDot]) -> str:
    """Measurements as a table, one line per batch size."""
    lines = ["batch      α      c      v   formula   measured"]
    for dot in dots:
        spread = "" if dot.range is None else f" ({dot.range[0]:.2f} to {dot.range[1]:.2f})"
        numbers = f"{dot.alpha:6.2f} {dot.c:6.2f} {dot.v:6.2f} {dot.predicted:9.2f} {dot.measured:10.2f}"
        lines.append(f"{dot.batch:5d} {numbers}{spread}")
    return "\n".join(lines)
