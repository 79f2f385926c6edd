"""Why a full batch gains less from speculation: the speed-up against the batch size, from the roofline and measured."""

import itertools
import json
from collections.abc import Callable, Container, Mapping, Sequence
from functools import lru_cache

import numpy as np

from minispec import theory
from minispec.model import Config

from ..labs import presets
from ..labs.passes import LONGEST, RECORDED, BatchDot, verify_cost
from .drawing import Axes, Canvas
from .panel import Panel, choice, slider, stops
from .style import PALETTE

BATCHES = tuple(sorted({*range(1, 17), *range(20, 65, 4), *range(72, 257, 8), *range(272, 513, 16)}))

# ---- theory ----------------------------------------------------------------------------------------------------------


@lru_cache(16)
def _costs(hardware: theory.Hardware, config: Config, bytes_per_weight: float, context: int) -> np.ndarray:
    """`verify_cost` for k = 1 … LONGEST and every batch up to BATCHES[-1] at once: [k, batch]."""
    weights, (kept, width) = presets.weights_read(config), presets.attention(config, bytes_per_weight)
    batch = np.arange(1, BATCHES[-1] + 1)

    def seconds(tokens: int) -> np.ndarray:
        """`theory.pass_time`."""
        read, computed = weights * bytes_per_weight, 2.0 * weights * batch * tokens
        products = np.maximum(read / hardware.bandwidth, computed / hardware.flops)
        read, computed = 1.0 * batch * context * kept, 4.0 * batch * tokens * context * width
        return products + np.maximum(read / hardware.bandwidth, computed / hardware.flops)

    return np.stack([seconds(k + 1) for k in range(1, LONGEST + 1)]) / seconds(1)


@lru_cache(4)
def _gains(hardware, config, alpha: float, c: float, bytes_per_weight: float, context: int) -> tuple[np.ndarray, ...]:
    """For every batch: the speed-up at each k [k, batch], and at the best k [batch], with that k; 0 where none gains.

    A small model's c hardly depends on the batch: both passes grow.
    """
    v = _costs(hardware, config, bytes_per_weight, context)
    gains = np.stack([theory.expected_tokens(alpha, k) / (k * c + v[k - 1]) for k in range(1, LONGEST + 1)])
    most = gains.max(0)
    return gains, np.maximum(1.0, most), np.where(most > 1, gains.argmax(0) + 1, 0)


# ---- measuring -------------------------------------------------------------------------------------------------------


# ---- the picture -----------------------------------------------------------------------------------------------------


def batch_speedup_svg(
    hardware: theory.Hardware,
    config: Config,
    alpha=0.7,
    k=4,
    c=0.05,
    bytes_per_weight=2,
    context=0,
    dots=None,
    words="",
) -> str:
    """Left: speed-up against batch size, at this k and at the best k of each batch. Right: v, and the best k.

    `dots` were measured, by where that was: filled as measured, open as the formula predicts from their own α, c, v.
    """
    dots: Mapping[str, Sequence[BatchDot]] = {where: some for where, some in (dots or {}).items() if some}
    shape, shown = (bytes_per_weight, context), np.array(BATCHES) - 1
    gains, most, longest = (some[..., shown].tolist() for some in _gains(hardware, config, alpha, c, *shape))
    fixed, cost = gains[k - 1], _costs(hardware, config, *shape)[k - 1, shown].tolist()
    every = [dot for some in dots.values() for dot in some]
    top = 1.1 * max([1.2, *most, *(max(d.measured, d.predicted) for d in every)])
    highest = 1.08 * max([LONGEST, *cost, *(d.v for d in every)])

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
    for i, ((place, some), colour) in enumerate(
        zip(dots.items(), itertools.cycle((PALETTE[1], PALETTE[4])), strict=False)
    ):
        for dot in some:
            about = f"α = {dot.alpha:.2f}, c = {dot.c:.2f}, v = {dot.v:.2f}, k = {dot.k}"
            said = f"{place}, batch of {dot.batch}: "
            left.dot(dot.batch, dot.measured, colour, f"measured {said}{dot.measured:.2f} ×; {about}")
            formula = f"by the formula {said}{dot.predicted:.2f} ×; {about}"
            left.dot(dot.batch, dot.predicted, colour, formula, "open circle")
            right.dot(dot.batch, dot.v, colour, f"measured {said}v = {dot.v:.2f}")
        key = [("circle", colour, f"measured {place}"), ("open circle", colour, f"by the formula {place}")]
        canvas.key(66, 428 + 24 * i, key)
    return canvas.svg(words)


def in_words(hardware, config, alpha: float, k: int, c: float, bytes_per_weight: float, context: int) -> str:
    gains, _, longest = _gains(hardware, config, alpha, c, bytes_per_weight, context)
    said = [f"{gains[k - 1, batch - 1]:.2f} × at batch {batch}" for batch in (1, 32, 128)]
    words = f"With k = {k}, α = {alpha:.2f}, c = {c:.2f} the roofline predicts a speed-up of {', '.join(said)}. "
    loses = next((batch for batch, gain in enumerate(gains[k - 1], start=1) if gain < 1), None)
    words += f"Speculation is slower from batch {loses} on" if loses else f"It gains up to batch {BATCHES[-1]}"
    stop = next((batch for batch, best in enumerate(longest, start=1) if best == 0), None)
    return words + (f"; from batch {stop} on no k gains anything." if stop else "; some k always gains.")


def compared(dots: Mapping[str, Sequence], cost: Callable[[int, int], float], same: Container[str] = ()) -> str:
    """In words, the largest batch of each run. `cost(k, batch)` is the line's v, `same` names the runs whose machine
    and model are those of the line.

    There a dot is held against the roofline with the dot's own k, α and c, so that only v differs. Elsewhere the line
    says nothing about it, and it is held against the formula with its own v.
    """
    said = ""
    for where, some in dots.items():
        if not some:
            continue
        dot = max(some, key=lambda one: one.batch)
        said += f" Measured {where}, batch {dot.batch}: {dot.measured:.2f} ×"
        own = f"its own α = {dot.alpha:.2f}"
        if where in same:
            v = cost(dot.k, dot.batch)
            gain = theory.speedup(dot.alpha, dot.k, dot.c, v)
            said += f", with v = {dot.v:.2f}; {own} and c = {dot.c:.2f} with the roofline's v = {v:.2f} would give "
            said += f"{gain:.2f} ×."
        else:
            said += f", and {dot.predicted:.2f} × by the formula with {own}, c = {dot.c:.2f} and v = {dot.v:.2f}. "
            said += "The line is that of another machine and model."
    return said


def batch_speedup(dots: Sequence[BatchDot] = ()) -> Panel:
    """Sliders for α, k and c; a machine, a model, its format and its context.

    `dots` come from `measure_batches`. An 8B model in 16 bits on an H200 is shown with what was measured for it.
    """
    machines = {machine.name: machine for machine in presets.MACHINES}
    there, recorded = (theory.H200.name, "Llama-3-8B", 2), BatchDot.recorded()
    on_gpu = f"on an H200, recorded {json.loads(RECORDED.read_text(encoding='utf-8'))['date']}"

    def draw(alpha: float, k: int, c: float, machine: str, model: str, stored: float, context: int) -> tuple[str, str]:
        hardware, config = machines[machine], presets.SHAPES[model]
        shown = recorded if (machine, model, stored) == there else ()
        measured = {"on this machine, just now": dots, on_gpu: shown}
        cost = lambda k, batch: verify_cost(hardware, config, k, batch, stored, context)  # noqa: E731
        words = in_words(hardware, config, alpha, k, c, stored, context) + compared(measured, cost, {on_gpu})
        return batch_speedup_svg(hardware, config, alpha, k, c, stored, context, measured, words), words

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
