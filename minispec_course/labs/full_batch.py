"""What a full batch does to speculation: the roofline at a batch size, and batches served with and without drafts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

from minispec import theory
from minispec.drafters import Drafter
from minispec.load.handle import Model
from minispec.load.registry import BENCHMARKS
from minispec.model import Config
from minispec.serving.engine import Engine
from minispec.serving.metrics import StepRecord
from minispec.trace import Trace

from . import presets
from .batching import endless

LONGEST = 8  # the longest draft that is tried where k is free
BLOCK = 16  # tokens in a block of the engines that are measured
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


def measure_batches(
    target: Model, drafter: Drafter, batches=(1, 2, 4, 8, 16), k=4, new=24, repeat=3, prompt="Once upon a time"
) -> list[BatchDot]:
    """Serve `batch` equal requests with and without drafts, in turn, and time the steps in which all of them decode.

    The engine is told to draft k deep however full the batch is: here we want to see what that does.
    """
    target = endless(target)
    length = len(target.encode(prompt) if isinstance(prompt, str) else prompt)
    deep = dict(drafter=drafter, k=k, draft_budget=max(batches) * (drafter.max_tree_nodes(k) + drafter.scratch_slots))

    def engines(batch: int) -> list[Engine]:
        """Without drafts, and with them."""
        blocks, most = batch * -(-(length + new + k) // BLOCK), batch * (length + k + 1)
        shape = dict(block_size=BLOCK, max_num_seqs=batch, max_num_batched_tokens=most, enable_prefix_caching=False)
        return [Engine(target, num_blocks=blocks, **shape), Engine(target, num_blocks=blocks, **shape, **deep)]

    def serve(engine: Engine, batch: int, turn: int) -> tuple[list[StepRecord], Trace]:
        """The steps of a full batch that decodes, and what became of the draft tokens."""
        for row in range(batch):  # sampled, each with its own seed: equal outputs would have equal luck
            engine.add(prompt, new, temperature=0.8, seed=turn * batch + row)
        steps = []
        while engine.jobs:
            steps.append(engine.step())
        full = [s for s in steps if [row.phase != "prefill" for row in s.rows] == [True] * batch]
        return full, Trace.of(engine.take().values())

    def mean(steps: Sequence[StepRecord], *parts: str) -> float:
        """Seconds of a step, or of some parts of it."""
        return sum(s.seconds[part] for s in steps for part in parts or s.seconds) / len(steps)

    dots = []
    for engine in engines(1):  # whatever is compiled once
        serve(engine, 1, 0)
    for batch in batches:
        rounds, (plainly, deeply) = [], engines(batch)
        if target.device.type == "cuda":  # passes are captured when their shape first comes
            serve(plainly, batch, 0), serve(deeply, batch, 0)
        for turn in range(repeat):
            (plain, _), (spec, trace) = serve(plainly, batch, turn), serve(deeply, batch, turn)
            one, cycle, drafting = mean(plain), mean(spec), mean(spec, "drafting")
            tokens = sum(s.emitted for s in spec) / len(spec) / batch  # of a sequence
            rounds.append((trace.acceptance_rate, drafting / one / k, (cycle - drafting) / one, tokens * one / cycle))
        dots.append(BatchDot(batch, k, *(median(column) for column in zip(*rounds, strict=True))))
    return dots


def batch_table(dots: Sequence[BatchDot]) -> str:
    """Measurements as a table, one line per batch size."""
    lines = ["batch      α      c      v   formula   measured"]
    for dot in dots:
        spread = "" if dot.range is None else f" ({dot.range[0]:.2f} to {dot.range[1]:.2f})"
        numbers = f"{dot.alpha:6.2f} {dot.c:6.2f} {dot.v:6.2f} {dot.predicted:9.2f} {dot.measured:10.2f}"
        lines.append(f"{dot.batch:5d} {numbers}{spread}")
    if slow := [str(dot.batch) for dot in dots if dot.v > dot.k + 1]:
        said = (
            f"v above k + 1 at batch {', '.join(slow)}: more than the pass alone explains. Measure again on a machine "
        )
        lines.append(said + "that does nothing else.")
    return "\n".join(lines)
