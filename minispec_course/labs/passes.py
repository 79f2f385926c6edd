"""What forward passes cost on a machine: measured here and now, recorded elsewhere, and by the roofline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from minispec import measure, theory
from minispec.cpu import machine
from minispec.drafters.quantized import quantized_copy
from minispec.load.folder import usable_device
from minispec.load.model import Model
from minispec.load.quantize import to_int8
from minispec.load.registry import BENCHMARKS
from minispec.model import Config

from . import presets
from .pairs import SHAPES as BENCH_SHAPES
from .pairs import random_pair

# ---- passes ---------------------------------------------------------------------------------------------------------

CURVE = (1, 2, 3, 4, 5, 6, 8, 16, 32, 64, 128)
ROOMY = 8 * 2**30  # bytes of a GPU that has room for a model of a billion parameters and what is captured for it


@dataclass(frozen=True)
class Here:
    """A machine: its roofline, and what passes of one model really took on it."""

    hardware: theory.Hardware
    config: Config
    bytes_per_weight: int
    context: int  # cached tokens under the curve
    curve: tuple[measure.Point, ...]
    label: str

    @property
    def model(self) -> str:
        """The measured model, as the menus call it."""
        read = presets.weights_read(self.config)
        return next((name for name, shape in presets.SHAPES.items() if presets.weights_read(shape) == read), "a model")


@measure.watched()
def measure_here(
    model: Model | None = None, tokens: Sequence[int] = CURVE, context=64, seconds=6.0, device=None, **options
) -> Here:
    """Measure bandwidth, arithmetic (the best rate of a GEMM and the passes) and the verify curve, in about `seconds`.

    Without a model, one with random weights is made on the device (None: `ms.device()`): what a pass costs does not
    depend on what the weights say. `options` are those of `measure.interleaved_times`.
    """
    model = random_model(device) if model is None else model
    bandwidth = measure.read_bandwidth(model.device, seconds=seconds / 6, **options).median
    flops = measure.flops(model.device, model.dtype, seconds=seconds / 6, **options).median
    curve = measure.verify_curve(model, tokens, context, repeat=25, warmup=1, seconds=seconds * 2 / 3, **options)
    stored = 1 if model.weights else model.dtype.itemsize
    done = [presets.work(model.config, stored, 1, p.tokens, context)[0] / p.time.median for p in curve]
    busy = ", beside another program" if measure.warning(measure.WATCHES[-1].others()) else ""
    place = f"{measure.where(measure.machine())}{busy}"
    hardware = theory.Hardware(f"{place}, {str(model.dtype).removeprefix('torch.')}", bandwidth, max(flops, *done))
    return Here(hardware, model.config, stored, context, tuple(curve), place)


def random_model(device=None) -> Model:
    """A model so large that its pass is reading rather than overhead: "40M" on a CPU, "Llama-3.2-1B" on a GPU."""
    device = usable_device(device)
    roomy = device.type == "cuda" and torch.cuda.get_device_properties(device).total_memory >= ROOMY
    model, _ = random_pair(presets.SHAPES["Llama-3.2-1B" if roomy else "40M"], device)
    if device.type == "cuda":
        model.accelerate()  # passes as `ms.load` would give them on a GPU: captured
    else:
        machine.compiled()  # else these passes would be torch's: for a small model numba is loaded late, or never
    return model


def measure_both(model: Model, tokens: Sequence[int] = (1, 2, 3, 4, 5, 6, 8), context=64, **options) -> list[Here]:
    """A float32 model on a CPU and the same model in int8, measured one after the other."""
    if model.device.type != "cpu" or model.weights:
        raise ValueError(f"model={model!r}: give a float32 model on a CPU, the int8 one is made of it")
    small = quantized_copy(model)
    if not small.weights:  # a small model
        to_int8(small.transformer)
    return [measure_here(each, tokens, context, **options) for each in (model, small)]


def recorded() -> list[Here]:
    """The results of `minispec bench verify` that come with the package, each with its date and machine."""
    results = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(BENCHMARKS.glob("*.json"))]
    return [_read(result) for result in results if result.get("benchmark") == "verify"]


def _read(result: dict) -> Here:
    """A recorded curve. The roof over it is that of theory.py, which was measured on the same kind of machine."""
    gpus = result["machine"]["gpus"]
    name = gpus[0]["name"].removeprefix("NVIDIA ") if gpus else result["machine"]["cpu"]
    points = [measure.Point(r["tokens"], measure.Timing(**r["seconds"]), r["ratio"]) for r in result["results"]]
    size, label = getattr(torch, result["dtype"]).itemsize, f"{name}, recorded {result['date']}"
    return Here(theory.H200, BENCH_SHAPES[result["shape"]], size, result["context"], tuple(points), label)


# ---- full batches ---------------------------------------------------------------------------------------------------

LONGEST = 8  # the longest draft that is tried where k is free
SPECULATION = BENCHMARKS / "speculation.json"


def verify_cost(hardware: theory.Hardware, config: Config, k: int, batch: int, bytes_per_weight=2, context=0) -> float:
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


def roofline_at(batch: int, context=0, *, k=4, alpha=0.7, c=None) -> Load:
    """Speculation for `batch` requests of `context` cached tokens each: Llama-3-8B in bf16 on an H200, and
    Llama-3.2-1B drafts.

    The matrix products of a pass and its attention are bounded separately and added (`theory.pass_time`). Without `c`:
    that of the draft model, whose pass and cache are counted like the target's.
    """
    hardware, shapes = theory.H200, [presets.SHAPES[name] for name in ("Llama-3-8B", "Llama-3.2-1B")]
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
    range: tuple[float, float]  # of the rounds

    @property
    def predicted(self) -> float:
        """By the formula, which assumes that all draft tokens are accepted alike, independently of one another."""
        return theory.speedup(self.alpha, self.k, self.c, self.v)

    @classmethod
    def recorded(cls) -> list[BatchDot]:
        """From the result of `minispec bench batch` that ships: an 8B shape on an H200, after 500 tokens."""
        result, dots = json.loads(SPECULATION.read_text(encoding="utf-8")), []
        for row in result["speculation"]["results"]:
            gain = row["speedup"]
            numbers = (row["acceptance"], row["c"], row["v"], gain["median"], (gain["low"], gain["high"]))
            dots.append(cls(row["batch"], result["k"], *numbers))
        return dots
