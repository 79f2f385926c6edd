"""Why a full batch gains less from speculation: the speed-up against the batch size, from the roofline and measured."""

import json
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from minispec import theory
from minispec.model import Config

from ..labs import presets
from ..labs.passes import LONGEST, SPECULATION, BatchDot, verify_cost
from .drawing import Axes, Canvas
from .panel import Panel, choice, slider, stops
from .style import PALETTE

RECORDED = f"on an H200, recorded {json.loads(SPECULATION.read_text(encoding='utf-8'))['date']}"
BATCHES = tuple(sorted({*range(1, 17), *range(20, 65, 4), *range(72, 257, 8), *range(272, 513, 16)}))

# ---- theory ----------------------------------------------------------------------------------------------------------


@lru_cache(16)
def _costs(hardware: theory.Hardware, config: Config, bytes_per_weight: float, context: int) -> np.ndarray:
    """`verify_cost` for k = 1 … LONGEST and every batch up to BATCHES[-1]: [k, batch]."""
    ks, batches = range(1, LONGEST + 1), range(1, BATCHES[-1] + 1)
    return np.array([[verify_cost(hardware, config, k, n, bytes_per_weight, context) for n in batches] for k in ks])


@lru_cache(4)
def _gains(hardware, config, alpha: float, c: float, bytes_per_weight: float, context: int) -> tuple[np.ndarray, ...]:
    """For every batch: the speed-up at each k [k, batch], and at the best k [batch], with that k; 0 where none gains.

    A small model's c hardly depends on the batch: both passes grow.
    """
    v = _costs(hardware, config, bytes_per_weight, context)
    gains = np.stack([theory.expected_tokens(alpha, k) / (k * c + v[k - 1]) for k in range(1, LONGEST + 1)])
    most = gains.max(0)
    return gains, np.maximum(1.0, most), np.where(most > 1, gains.argmax(0) + 1, 0)


# ---- the picture -----------------------------------------------------------------------------------------------------


def batch_speedup_svg(
    hardware: theory.Hardware,
    config: Config,
    alpha=0.7,
    k=4,
    c=0.05,
    bytes_per_weight=2,
    context=0,
    dots: Sequence[BatchDot] = (),
    words="",
) -> str:
    """Left: speed-up against batch size, at this k and at the best k of each batch. Right: v, and the best k.

    `dots` were recorded on an H200: filled as measured, open as the formula predicts from their own α, c and v.
    """
    shape, shown = (bytes_per_weight, context), np.array(BATCHES) - 1
    gains, most, longest = (some[..., shown].tolist() for some in _gains(hardware, config, alpha, c, *shape))
    fixed, cost = gains[k - 1], _costs(hardware, config, *shape)[k - 1, shown].tolist()
    top = 1.1 * max([1.2, *most, *(max(d.measured, d.predicted) for d in dots)])
    highest = 1.08 * max([LONGEST, *cost, *(d.v for d in dots)])

    canvas = Canvas(470).text(10, 24, hardware.name, 15)
    far, sizes = (0.85, 1.18 * BATCHES[-1]), dict(x="batch size", x_ticks=[4**n for n in range(5)])
    names = dict(title="speed-up against plain decoding", y="speed-up", **sizes)
    left = Axes(canvas, (66, 70, 370, 270), far, (0, top), "x", **names).level(1)
    names = dict(title=f"v, cost of verifying {k}, and the best k", y="v, and the best k", **sizes)
    right = Axes(canvas, (510, 70, 235, 270), far, (0, highest), "x", **names)
    left.line(BATCHES, fixed, PALETTE[0], 3).line(BATCHES, most, PALETTE[2], dash="6 4")
    right.line(BATCHES, cost, PALETTE[3], 3).steps(BATCHES, longest, PALETTE[2], dash="6 4")
    told = zip(BATCHES, fixed, longest, most, strict=True)
    left.strips(
        BATCHES, [f"batch of {n}: {one:.2f} × with k = {k}, {free:.2f} × with k = {b}" for n, one, b, free in told]
    )
    told = zip(BATCHES, cost, longest, strict=True)
    right.strips(BATCHES, [f"batch of {n}: v = {v:.2f}; the best k is {best}" for n, v, best in told])
    marks = [("line", PALETTE[0], f"k = {k}"), ("dash", PALETTE[2], "the best k for each batch")]
    canvas.key(66, 404, [*marks, ("line", PALETTE[3], f"v, cost of verifying {k}")])
    for dot in dots:
        about = f"α = {dot.alpha:.2f}, c = {dot.c:.2f}, v = {dot.v:.2f}, k = {dot.k}"
        said = f"{RECORDED}, batch of {dot.batch}: "
        left.dot(dot.batch, dot.measured, PALETTE[1], f"measured {said}{dot.measured:.2f} ×; {about}")
        formula = f"by the formula {said}{dot.predicted:.2f} ×; {about}"
        left.dot(dot.batch, dot.predicted, PALETTE[1], formula, "open circle")
        right.dot(dot.batch, dot.v, PALETTE[1], f"measured {said}v = {dot.v:.2f}")
    key = [("circle", f"measured {RECORDED}"), ("open circle", f"by the formula {RECORDED}")] if dots else []
    canvas.key(66, 428, [(mark, PALETTE[1], name) for mark, name in key])
    return canvas.svg(words)


def in_words(hardware, config, alpha: float, k: int, c: float, bytes_per_weight: float, context: int) -> str:
    gains, _, longest = _gains(hardware, config, alpha, c, bytes_per_weight, context)
    said = [f"{gains[k - 1, batch - 1]:.2f} × at batch {batch}" for batch in (1, 32, 128)]
    words = f"With k = {k}, α = {alpha:.2f}, c = {c:.2f} the roofline predicts a speed-up of {', '.join(said)}. "
    loses = next((batch for batch, gain in enumerate(gains[k - 1], start=1) if gain < 1), None)
    words += f"Speculation is slower from batch {loses} on" if loses else f"It gains up to batch {BATCHES[-1]}"
    stop = next((batch for batch, best in enumerate(longest, start=1) if best == 0), None)
    return words + (f"; from batch {stop} on no k gains anything." if stop else "; some k always gains.")


def batch_speedup() -> Panel:
    """Sliders for α, k and c; a machine, a model, its format and its context. An 8B model in 16 bits on an H200 is
    shown with what was measured for it."""
    machines = {machine.name: machine for machine in presets.MACHINES}
    there, recorded = (theory.H200.name, "Llama-3-8B", 2), BatchDot.recorded()

    def draw(alpha: float, k: int, c: float, machine: str, model: str, stored: float, context: int) -> tuple[str, str]:
        hardware, config = machines[machine], presets.SHAPES[model]
        words, dots = in_words(hardware, config, alpha, k, c, stored, context), ()
        if (machine, model, stored) == there:
            dots = recorded
        return batch_speedup_svg(hardware, config, alpha, k, c, stored, context, dots, words), words

    controls = {
        "alpha": slider("α", 0.7, 0.0, 0.98, 0.02),
        "k": slider("k", 4, 1, LONGEST),
        "c": slider("c", 0.05, 0.0, 0.5, 0.01),
        "machine": choice("machine", list(machines)),
        "model": choice("model", list(presets.SHAPES), "Llama-3-8B"),
        "stored": choice("weights in", presets.STORED, 2),
        "context": stops("cached tokens per sequence", (0, 256, 1024, 4096, 16_384), 0),
    }
    return Panel(draw, controls)
