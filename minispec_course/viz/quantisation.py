"""Quantisation error: a real weight matrix on its grid."""

import numpy as np
from torch import Tensor

from minispec.load.model import Model

from ..labs.numerics import BITS, SCALES, error_of, matrices, round_trip, scale_name
from .drawing import Axes, Canvas, ticks
from .panel import Panel, choice, slider
from .style import PALETTE


def quantisation_svg(name: str, weight: Tensor, bits: int, scale: str | int, loudest=False) -> tuple[str, str]:
    """A channel's weights on its grid, and the matrix's error: as SVG, and in words.

    The channel is the one with the smallest largest weight: it suffers most from a scale it shares with others. Or the
    one with the greatest.
    """
    rounded, scales = round_trip(weight, bits, scale)
    reach = weight.abs().amax(1)
    channel = int(reach.argmax() if loudest else reach.argmin())
    row = weight[channel][: scale if isinstance(scale, int) else None].numpy()  # of groups, the first
    step = float(scales[0 if scale == "tensor" else channel, 0])
    error = error_of(weight, bits, scale)

    canvas = Canvas(310).text(10, 24, f"{name}, {bits} bits, scales: {scale_name(scale)}", 15)
    far, largest = float(np.abs(row).max()), max(error.largest, 1e-9)
    points = round(far / step)  # of the grid, on either side of zero
    edge = 1.08 * max(far, points * step)
    title = f"channel {channel}: its weights, its grid ({2 * points + 1} values in range)"
    chart, most = _histogram(canvas, (66, 70, 290, 185), row, edge, PALETTE[0], title, "weight")
    for i in range(-points, points + 1):
        x, y = chart.at(i * step, -0.02 * most)
        canvas.line(x, y, x, chart.at(0, -0.09 * most)[1], PALETTE[1], 2)
    errors, title = (rounded - weight).flatten().numpy(), "error of every weight of the matrix"
    _histogram(canvas, (450, 70, 290, 185), errors, largest, PALETTE[3], title, "error")
    ratio = "no error at all: the weights were on this grid"
    if error.relative > 1e-6:  # more than float32's own rounding
        ratio = f"largest error {error.largest:.4f}; the norm of the error is {error.relative:.1%} of the matrix's"
    words = (
        f"{name} in {bits} bits, scales {scale_name(scale)} ({error.bits_per_weight:.2f} bits per weight with them): "
        f"{ratio}."
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


def quantisation(model: Model, matrix: str | None = None) -> Panel:
    """Choose bits, scales and a matrix; `matrix` is shown first."""
    weights = matrices(model)

    def draw(bits: int, scale: str | int, name: str, loudest: bool) -> tuple[str, str]:
        return quantisation_svg(name, weights[name], bits, scale, loudest)

    controls = {
        "bits": slider("bits", 4, BITS[0], BITS[-1]),
        "scale": choice("scales", {scale_name(scale): scale for scale in SCALES}),
        "name": choice("matrix", list(weights), matrix),
        "loudest": choice("channel", {"with the smallest weights": False, "with the largest": True}),
    }
    return Panel(draw, controls)
