"""`minispec measure`: a model on this machine, in numbers that a terminal shows and that JSON keeps."""

import json
import textwrap
from dataclasses import asdict, dataclass, replace

import torch

from minispec import theory
from minispec.load.model import Model
from minispec.measure import (
    CURVE,
    WATCHES,
    Point,
    Rate,
    flops,
    machine,
    plain_speed,
    read_bandwidth,
    verify_curve,
    warning,
    watched,
    weight_bytes,
)

QUICK = (1, 2, 3, 4, 5, 8, 16, 32)  # tokens per pass


@dataclass(frozen=True)
class Report:
    """What `measure` found: a model on a machine."""

    machine: dict
    model: str
    parameters: int
    device: str
    dtype: str
    weight_bytes: int  # read per token
    bandwidth: Rate  # bytes/s
    flops: Rate  # FLOP/s in the model's dtype
    plain: Rate  # tokens/s
    context: int  # cached tokens under the curve
    curve: list[Point]
    warning: str | None = None  # why the times are not to be trusted
    weights: str | None = None  # "int8": so the matrices are stored; None: in `dtype`

    @property
    def achieved(self) -> float:
        """Fraction of the bandwidth that plain decoding turns into weights read: bytes a token · tokens/s / bytes/s."""
        return self.weight_bytes * self.plain.median / self.bandwidth.median

    @property
    def free_tokens(self) -> float:
        """Tokens a pass at which computing should begin to take longer than reading (theory.free_tokens)."""
        hardware = theory.Hardware("this machine", self.bandwidth.median, self.flops.median)
        return theory.free_tokens(hardware, bytes_per_weight=getattr(torch, self.weights or self.dtype).itemsize)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2)

    def text(self) -> str:
        """The report for a terminal, 80 columns, no colour needed."""
        m, device, reads = self.machine, torch.device(self.device), self.weight_bytes * self.plain.median
        gpu = m["gpus"][device.index or 0]["name"] if device.type == "cuda" else None
        where = gpu or f"{m['cpu']}, {m['cores']} cores ({m['threads']} used)"
        cached = device.type == "cpu" and self.weight_bytes < (m["cache_bytes"] or 0)
        about = {
            "machine": f"{where}, {m['system']}, torch {m['torch']}",
            "model": f"{self.model}, {_short(self.parameters)} parameters, {self.dtype} on {self.device}; "
            f"a token reads {_short(self.weight_bytes)}B of weights",
            "bandwidth": f"{_spread(self.bandwidth, 'B/s')} read from memory",
            "compute": f"{_spread(self.flops, 'FLOP/s')} in {self.dtype}: "
            f"passes should be memory-bound up to {self.free_tokens:.0f} tokens",
            "plain": f"{_spread(self.plain, 'tokens/s')}, so {_short(reads)}B/s of weights: {self.achieved:.0%} of the "
            "bandwidth" + (" (so few weights may stay in the CPU's cache)" if cached else ""),
            "warning": self.warning,
        }
        lines, beside = [], dict(width=80, subsequent_indent=" " * 11, break_on_hyphens=False)
        for label, sentence in about.items():
            lines += textwrap.wrap(sentence, initial_indent=f"{label:<11}", **beside) if sentence else []
        lines += ["", f"One pass over M new tokens after {self.context} cached ones (quartiles; ratio to M = 1)", ""]
        lines += [f"{'M':>4} {'ms':>8} {'(quartiles)':>15} {'ratio':>6}"]
        largest = max(p.ratio for p in self.curve)
        for p in self.curve:
            median, low, high = (_digits(1e3 * x) for x in (p.time.median, p.time.low, p.time.high))
            row = f"{p.tokens:>4} {median:>8} {f'({low}–{high})':>15} {p.ratio:>6.2f}  "
            lines.append(row + "█" * max(1, round(p.ratio / largest * (80 - len(row)))))
        if v := next((p.ratio for p in self.curve if p.tokens == 5), None):
            pays = theory.break_even(4, 0.0, v)
            verdict = "even a free draft cannot pay" if pays > 1 else f"a free draft pays once α exceeds {pays:.2f}"
            doubt = ["The machine was not quiet while this was measured."] if self.warning else []
            lines += ["", f"Verifying 4 draft tokens costs v = {v:.2f} plain passes:", f"{verdict}.", *doubt]
        return "\n".join(lines)


def _digits(x: float) -> str:
    return f"{x:.{2 if x < 10 else 1 if x < 100 else 0}f}"


def _short(x: float) -> str:
    """1234567 -> "1.23 M"."""
    for prefix in ("", "k", "M", "G", "T", "P"):
        if x < 999.5 or prefix == "P":
            return f"{_digits(x)} {prefix}" if prefix or x % 1 else f"{x:.0f} "
        x /= 1000


def _spread(rate: Rate, unit: str) -> str:
    return f"{_short(rate.median)}{unit} ({_short(rate.low).strip()} – {_short(rate.high).strip()})"


@watched(say=False)  # the report does
def measure(model: Model, quick: bool = False) -> Report:
    """Bandwidth, compute, plain speed and verify curve of a model where it lives. About 10 s; `quick`: about 4."""
    length, seconds = model.config.max_length, 1.5 if quick else 5.0
    tokens = [m for m in (QUICK if quick else CURVE) if m <= max(1, length // 2)]
    context, watch = min(256, length - max(tokens)), WATCHES[-1]
    report = Report(
        machine=machine(),
        model=model.label,
        parameters=model.num_parameters,
        device=str(model.device),
        dtype=str(model.dtype).removeprefix("torch."),
        weight_bytes=weight_bytes(model),
        bandwidth=read_bandwidth(model.device, seconds=seconds / 3),
        flops=flops(model.device, model.dtype, seconds=seconds / 3),
        plain=plain_speed(model, new_tokens=min(16, length - 1), repeat=15, seconds=seconds / 2),
        context=context,
        curve=verify_curve(model, tokens, context, repeat=9 if quick else 25, warmup=1, seconds=seconds),
        weights=model.weights,
    )
    timings = {"the plain speed": report.plain, **{f"M = {p.tokens}": p.time for p in report.curve}}
    spreads = {name: (t.high - t.low) / t.median for name, t in timings.items()}
    return replace(report, warning=warning(watch.others(), spreads))
