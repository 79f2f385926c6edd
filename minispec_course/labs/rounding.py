"""Quantisation error: of a weight matrix on its grid, and what rounding all of them does to the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from minispec.load.handle import Model
from minispec.load.quantize import dequantize, quantize
from minispec.theory import quantized_bytes

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
    """What rounding every linear layer does to a model that runs on a text."""

    perplexity: float
    logits: float  # root mean square of the change of a logit
    overlap: float  # mean Σ min(p, q) with the unrounded model: its acceptance, if this one drafted


Effects = dict[tuple[int, "str | int"], Effect]  # by bits and scale


@torch.inference_mode()
def effects_of(
    model: Model, text: str | Sequence[int], bits: Sequence[int] = BITS, scales: Sequence = SCALES
) -> Effects:
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
