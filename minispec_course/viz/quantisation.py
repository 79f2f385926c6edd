"""Quantisation error: a real weight matrix on its grid, and what rounding all of them does to the model."""

import math

import numpy as np
from torch import Tensor

from minispec.load.handle import Model

from ..labs.numerics import Effects, _error, matrices, round_trip, scale_name
from .drawing import Axes, Canvas, ticks
from .panel import Panel, choice, slider
from .style import PALETTE, shades


def quantisation_svg(name: str, weight: Tensor, bits: int, scale: str | int, effects: Effects, loudest=False):
    """A channel's weights on its grid, the matrix's error, and the whole model's loss: as SVG, and in words.

    The channel is the one with the smallest largest weight: it suffers most from a scale it shares with others. Or the
    one with the greatest.
    """
    rounded, scales = round_trip(weight, bits, scale)
    reach = weight.abs().amax(1)
    channel = int(reach.argmax() if loudest else reach.argmin())
    row = weight[channel][: scale if isinstance(scale, int) else None].numpy()  # of groups, the first
    step = float(scales[0 if scale == "tensor" else channel, 0])
    error, effect, plain = _error(weight, rounded, scales, bits), effects[bits, scale], effects[16, "none"]

    canvas = Canvas(640).text(10, 24, f"{name}, {bits} bits, scales: {scale_name(scale)}", 15)
    edge, largest = 1.08 * float(np.abs(row).max()), max(error.largest, 1e-9)
    title = (
        f"channel {channel}: its weights, its grid ({2 * round(float(np.abs(row).max()) / step) + 1} values in reach)"
    )
    chart, most = _histogram(canvas, (66, 70, 290, 185), row, edge, PALETTE[0], title, "weight")
    for i in range(-int(edge / step), int(edge / step) + 1):
        x, y = chart.at(i * step, -0.02 * most)
        canvas.line(x, y, x, chart.at(0, -0.09 * most)[1], PALETTE[1], 2)
    errors, title = (rounded - weight).flatten().numpy(), "error of every weight of the matrix"
    _histogram(canvas, (450, 70, 290, 185), errors, largest, PALETTE[3], title, "error")
    known = list(dict.fromkeys(s for _, s in effects if s != "none"))
    every = sorted({b for b, s in effects if s != "none"})
    losses = [one.perplexity for one in effects.values() if math.isfinite(one.perplexity)]
    across = (every[0] - 0.4, every[-1] + 0.4)
    names = dict(title="acceptance, if the rounded model drafted", x="bits", y="Σ min(p, q)", x_ticks=every)
    left = Axes(canvas, (66, 350, 290, 185), across, (0, 1.05), **names)
    names |= dict(title="perplexity of the rounded model", y="perplexity")
    right = Axes(canvas, (450, 350, 290, 185), across, (min(losses) / 1.4, max(losses) * 1.4), "y", **names)
    right.level(plain.perplexity, dash="5 4")
    colours = dict(zip(known, shades(len(known)), strict=True))
    for chart, attribute in ((left, "overlap"), (right, "perplexity")):
        for other, colour in colours.items():
            values = {
                b: min(getattr(effects[b, other], attribute), chart.ys[1]) for b in every if (b, other) in effects
            }
            chart.line(list(values), list(values.values()), colour)
            for b, value in values.items():
                chart.dot(b, value, colour, f"{scale_name(other)}, {b} bits: {value:,.3f}", r=3)
        chart.dot(bits, getattr(effect, attribute), PALETTE[1], "", "open circle", 8)
    canvas.key(66, 612, [(colour, scale_name(s)) for s, colour in colours.items()])
    ratio = "no error at all: the weights were on this grid"
    if not math.isinf(error.snr):
        ratio = f"error at most {error.largest:.4f}, {error.relative:.1%} of the matrix "
        ratio += f"(signal to noise {error.snr:.0f} dB)"
    words = (
        f"{name} in {bits} bits, scales {scale_name(scale)} ({error.bits_per_weight:.2f} bits per weight with them): "
        f"{ratio}. All layers so: logits move by {effect.logits:.2f}, perplexity {effect.perplexity:,.1f} instead of "
        f"{plain.perplexity:.1f}, acceptance as a draft {effect.overlap:.2f}."
    )
    return canvas.svg(words), words


def _histogram(canvas: Canvas, box, values: np.ndarray, edge: float, colour: str, title: str, name: str):
    """How often each value comes, from −edge to edge: the chart, and the most frequent one's count."""
    counts, edges = np.histogram(values, bins=45, range=(-edge, edge))
    most = int(counts.max())
    up = dict(y_ticks=ticks(0, most, 5), x_ticks=ticks(-edge, edge, 4))
    chart = Axes(canvas, box, (-edge, edge), (-0.11 * most, 1.05 * most), title=title, x=name, y="weights", **up)
    for left, right, count in zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True):
        if count:
            chart.bar(left, right, count, colour, f"{name} {(left + right) / 2:.4f}: {count} of them")
    return chart, most


def quantisation(model: Model, effects: Effects) -> Panel:
    """Choose bits, scales and a matrix; `effects` are those that `effects_of` computed for a text."""
    scales = list(dict.fromkeys(scale for _, scale in effects if scale != "none"))
    bits = sorted({b for b, scale in effects if scale != "none"})
    weights = matrices(model)

    def draw(bits: int, scale: str | int, name: str, loudest: bool) -> tuple[str, str]:
        return quantisation_svg(name, weights[name], bits, scale, effects, loudest)

    controls = {
        "bits": slider("bits", 4, bits[0], bits[-1]),
        "scale": choice("scales", {scale_name(scale): scale for scale in scales}),
        "name": choice("matrix", list(weights)),
        "loudest": choice("channel", {"with the smallest weights": False, "with the largest": True}),
    }
    return Panel(draw, controls)
