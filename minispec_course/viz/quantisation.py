"""Quantisation error: a real weight matrix on its grid, and what rounding all of them does to the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from minispec.load.handle import Model
from minispec.load.quantize import dequantize, quantize
from minispec.theory import quantized_bytes

from .axes import Axes, ticks
from .drawing import SOFT, Canvas
from .panel import Panel, choice, slider
from .style import PALETTE, shades

BITS = (2, 3, 4, 5, 6, 7, 8)
SCALES = ("tensor", "channel", 96, 32)  # a number: that many neighbouring inputs of a channel share a scale


def scale_name(scale: str | int) -> str:
    return f"one per group of {scale}" if isinstance(scale, int) else f"one per {scale}"


def round_trip(weight: Tensor, bits: int, scale: str | int) -> tuple[Tensor, Tensor]:
    """s · round(W / s) [out, in], and the scales: [1, 1], [out, 1] or [out, groups]."""
    if scale not in ("tensor", "channel") and not isinstance(scale, int):
        raise ValueError(f'scale={scale!r}: give "tensor", "channel" or the size of a group')
    rows = weight.reshape(1, -1) if scale == "tensor" else weight  # a tensor is one long channel
    integers, scales = quantize(rows, bits, scale if isinstance(scale, int) else None)
    return dequantize(integers, scales).view_as(weight), scales


@dataclass(frozen=True)
class Error:
    """How far a rounded matrix is from the real one."""

    largest: float  # max |W̃ − W|
    relative: float  # ‖W̃ − W‖ / ‖W‖
    snr: float  # signal to noise, 20·log₁₀(‖W‖ / ‖W̃ − W‖) dB; infinite without an error
    bits_per_weight: float  # with 16-bit scales


def error_of(weight: Tensor, bits: int, scale: str | int) -> Error:
    return _error(weight, *round_trip(weight, bits, scale), bits)


def _error(weight: Tensor, rounded: Tensor, scales: Tensor, bits: int) -> Error:
    difference = (rounded - weight).double()
    relative = float(difference.norm() / weight.double().norm())
    # Below float32's own rounding there is no error to speak of: the weights were on this grid before.
    snr = math.inf if relative < 1e-6 else -20 * math.log10(relative)
    stored = 8 * quantized_bytes(weight.numel(), bits, weight.numel() // scales.numel()) / weight.numel()
    return Error(float(difference.abs().max()), relative, snr, stored)


@dataclass(frozen=True)
class Effect:
    """What rounding every linear layer does to a model that reads a text."""

    perplexity: float
    logits: float  # root mean square of the change of a logit
    overlap: float  # mean Σ min(p, q) with the unrounded model: its acceptance, if this one drafted


@torch.inference_mode()
def effects_of(
    model: Model, text: str | Sequence[int], bits: Sequence[int] = BITS, scales: Sequence[str | int] = SCALES
) -> dict[tuple[int, str | int], Effect]:
    """Every number of bits with every kind of scale: {(bits, scale): Effect}; (16, "none") is the model as it is."""
    ids = torch.tensor([model.encode(text)], device=model.device)
    linear = {f"{n}.weight": m.weight for n, m in model.transformer.named_modules() if isinstance(m, nn.Linear)}

    def read(weights: dict[str, Tensor]) -> Tensor:
        # The embedding stays as it is, also where the head is tied to it: a lookup reads one row a token.
        out = functional_call(model.transformer, weights, (ids,), tie_weights=False)
        return out.logits[0, :-1].double()  # [n, V]

    plain = read({})
    p = plain.softmax(-1)

    def judge(logits: Tensor) -> Effect:
        surprise = -logits.log_softmax(-1).gather(1, ids[0, 1:, None]).mean()
        moved = (logits - plain).square().mean().sqrt()
        return Effect(float(surprise.exp()), float(moved), float(torch.minimum(p, logits.softmax(-1)).sum(-1).mean()))

    effects = {(16, "none"): judge(plain)}
    for scale in scales:
        for b in bits:
            rounded = {name: round_trip(weight, b, scale)[0].to(weight) for name, weight in linear.items()}
            effects[b, scale] = judge(read(rounded))
    return effects


def matrices(model: Model) -> dict[str, Tensor]:
    """The weights of the linear layers, by name."""
    modules = model.transformer.named_modules()
    return {name: module.weight.detach() for name, module in modules if isinstance(module, nn.Linear)}


def quantisation_svg(
    name: str,
    weight: Tensor,
    bits: int,
    scale: str | int,
    effects: dict[tuple[int, str | int], Effect],
    loudest: bool = False,
) -> tuple[str, str]:
    """A channel's weights on its grid, the matrix's error, and the whole model's loss, at these bits and scales.

    The channel is the one with the smallest largest weight: it suffers most from a scale it shares with others. Or the
    one with the greatest.
    """
    if (bits, scale) not in effects:
        raise ValueError(f"bits={bits}, scale={scale!r} is not among the effects: compute them with effects_of")
    rounded, scales = round_trip(weight, bits, scale)
    reach = weight.abs().amax(1)
    channel = int(reach.argmax() if loudest else reach.argmin())
    row = weight[channel][: scale if isinstance(scale, int) else None].numpy()  # of groups, the first
    step = float(scales[0 if scale == "tensor" else channel, 0])
    error, effect, plain = _error(weight, rounded, scales, bits), effects[bits, scale], effects[16, "none"]

    canvas = Canvas(640)
    canvas.text(10, 24, f"{name}, {bits} bits, scales: {scale_name(scale)}", 15)
    edge = 1.08 * float(np.abs(row).max())
    counts, edges = np.histogram(row, bins=41, range=(-edge, edge))
    most = int(counts.max())
    chart = Axes(canvas, (66, 70, 290, 185), (-edge, edge), (-0.11 * most, 1.05 * most))
    title = f"channel {channel}: its weights, its grid ({_levels(row, step)} values in reach)"
    chart.frame(title, "weight", "weights", ticks(-edge, edge, 5), ticks(0, most, 5))
    _histogram(chart, edges, counts, PALETTE[0], "weight {:.3f}: {} of them")
    last = int(edge / step)
    for i in range(-last, last + 1):
        x, y = chart.at(i * step, -0.02 * most)
        canvas.line(x, y, x, chart.at(0, -0.09 * most)[1], PALETTE[1], 2)
    width = max(error.largest, 1e-9)
    counts, edges = np.histogram((rounded - weight).flatten().numpy(), bins=51, range=(-width, width))
    chart = Axes(canvas, (450, 70, 290, 185), (-width, width), (0, 1.05 * int(counts.max())))
    title = "error of every weight of the matrix"
    chart.frame(title, "error", "weights", ticks(-width, width, 4), ticks(0, int(counts.max()), 5))
    _histogram(chart, edges, counts, PALETTE[3], "error {:.4f}: {} weights")
    known = list(dict.fromkeys(s for _, s in effects if s != "none"))
    every = sorted({b for b, s in effects if s != "none"})
    losses = [one.perplexity for one in effects.values() if math.isfinite(one.perplexity)]
    low, high = 10 ** (math.log10(min(losses)) - 0.15), 10 ** (math.log10(max(losses)) + 0.15)
    powers = [10.0**n for n in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
    across = (every[0] - 0.4, every[-1] + 0.4)
    left = Axes(canvas, (66, 350, 290, 185), across, (0, 1.05))
    left.frame("acceptance, if the rounded model drafted", "bits", "Σ min(p, q)", every, ticks(0, 1, 5))
    right = Axes(canvas, (450, 350, 290, 185), across, (low, high), log="y")
    right.frame("perplexity of the rounded model", "bits", "perplexity", every, powers)
    (x, y), (end, _) = right.at(across[0], plain.perplexity), right.at(across[1], plain.perplexity)
    canvas.line(x, y, end, y, SOFT, 1, "5 4")
    for colour, other in zip(shades(len(known)), known, strict=True):
        at = sorted(b for b, s in effects if s == other)
        for chart, attribute in ((left, "overlap"), (right, "perplexity")):
            values = [min(getattr(effects[b, other], attribute), chart.ys[1]) for b in at]
            chart.line(at, values, colour)
            for b, value in zip(at, values, strict=True):
                chart.dot(b, value, 3, colour, f"{scale_name(other)}, {b} bits: {value:,.3f}")
    for chart, here in ((left, effect.overlap), (right, effect.perplexity)):
        chart.dot(bits, min(here, chart.ys[1]), 8, PALETTE[1], ring=3)
    canvas.key(66, 612, [(colour, scale_name(s)) for colour, s in zip(shades(len(known)), known, strict=True)])
    ratio = (
        "no error at all: the weights were on this grid"
        if math.isinf(error.snr)
        else (
            f"error at most {error.largest:.4f}, {error.relative:.1%} of the matrix (signal to noise {error.snr:.0f} dB)"
        )
    )
    words = (
        f"{name} in {bits} bits, scales {scale_name(scale)} ({error.bits_per_weight:.2f} bits a weight with them): "
        f"{ratio}. All layers so: logits move by {effect.logits:.2f}, perplexity {effect.perplexity:,.1f} instead of "
        f"{plain.perplexity:.1f}, acceptance as a draft {effect.overlap:.2f}."
    )
    return canvas.svg(words), words


def _histogram(chart: Axes, edges: np.ndarray, counts: np.ndarray, colour: str, told: str) -> None:
    for left, right, count in zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True):
        if count:
            chart.bar(left, right, count, colour, told.format((left + right) / 2, count))


def _levels(row: np.ndarray, step: float) -> int:
    """How many values of the grid lie between the smallest and the largest weight."""
    return 2 * round(float(np.abs(row).max()) / step) + 1


def quantisation(
    model: Model, text: str | Sequence[int], effects: dict[tuple[int, str | int], Effect] | None = None
) -> Panel:
    """Choose bits, scales and a matrix. `effects` saves the few seconds of computing them (`effects_of`)."""
    effects = effects_of(model, text) if effects is None else effects
    scales = list(dict.fromkeys(scale for _, scale in effects if scale != "none"))
    bits = sorted({b for b, scale in effects if scale != "none"})
    weights = matrices(model)

    def draw(bits: int, scale: str | int, name: str, loudest: bool):
        return quantisation_svg(name, weights[name], bits, scale, effects, loudest)

    controls = {
        "bits": slider("bits", 4, bits[0], bits[-1]),
        "scale": choice("scales", {scale_name(scale): scale for scale in scales}),
        "name": choice("matrix", list(weights)),
        "loudest": choice("channel", {"with the smallest weights": False, "with the largest": True}),
    }
    return Panel(draw, controls)
