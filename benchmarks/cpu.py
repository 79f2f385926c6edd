"""What a CPU makes of few tokens: a plain token against the bandwidth, and the cost of a pass over M tokens.

With one thread and with as many as there are cores; on a quiet machine, and beside a process that keeps one core busy,
as a browser with JupyterLab in it often does. Bandwidth and FLOP/s are measured with as many threads, and on the quiet
machine: beside a neighbour, the question is what is left of it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict

import torch

from minispec import theory
from minispec.cli import options
from minispec.gpu.backend import load
from minispec.load.handle import Model
from minispec.measure import flops, machine, place, read_bandwidth, verify_curve, weight_bytes
from minispec.quiet import Watch, busy_core, warning

SIZES = (1, 2, 3, 4, 5, 6, 8)
WITHOUT_MODEL = True  # it takes no draft and no prompts


def run(args) -> dict:
    target, most = load(args.model, device="cpu"), torch.get_num_threads()
    try:
        settings = [
            one_setting(target, threads, busy, args.context, args.repeat)
            for busy in (False, True)
            for threads in sorted({1, most})
        ]
    finally:
        torch.set_num_threads(most)
    return {
        "benchmark": "cpu",
        "target": target.name,
        "dtype": str(target.dtype).removeprefix("torch."),
        "context": args.context,
        "repeat": args.repeat,
        "weight_bytes": weight_bytes(target),
        "settings": settings,
        "machine": machine(),
    }


def one_setting(target: Model, threads: int, busy: bool, context: int, repeat: int) -> dict:
    """Passes with so many threads, quiet or beside a busy neighbour."""
    torch.set_num_threads(threads)
    found = {"threads": threads, "busy": busy}
    if not busy:
        found |= {"bandwidth": asdict(read_bandwidth("cpu")), "flops": asdict(flops("cpu", target.dtype))}
    with busy_core() if busy else nullcontext():
        watch = Watch()
        curve = verify_curve(target, SIZES, context, repeat)
        found["others"] = watch.others()
    found["results"] = [
        {"tokens": point.tokens, "seconds": asdict(point.time), "ratio": point.ratio} for point in curve
    ]
    return found


def predicted_seconds(result: dict, setting: dict) -> Callable[[int], float]:
    """M → seconds of a pass over M tokens, by the roofline of the quiet machine with as many threads."""
    quiet = next(one for one in result["settings"] if one["threads"] == setting["threads"] and not one["busy"])
    hardware = theory.Hardware("measured", quiet["bandwidth"]["median"], quiet["flops"]["median"])
    size = getattr(torch, result["dtype"]).itemsize
    weights = result["weight_bytes"] / size
    return lambda m: theory.pass_time(hardware, weights, tokens=m, bytes_per_weight=size)


def label(setting: dict) -> str:
    threads = f"{setting['threads']} thread{'s' * (setting['threads'] > 1)}"
    return f"{threads}, {'beside a busy core' if setting['busy'] else 'quiet'}"


def disturbed(settings: Sequence[dict]) -> list[str]:
    """What speaks against timings that were to be quiet ones."""
    found = []
    for setting in settings:
        if not setting["busy"]:
            seconds = [(row["tokens"], row["seconds"]) for row in setting["results"]]
            spreads = {f"M = {m}": (s["high"] - s["low"]) / s["median"] for m, s in seconds}
            if reason := warning(setting["others"], spreads):
                found.append(f"{label(setting)}: {reason}")
    return found


def text(result: dict) -> str:
    """The tables for a terminal, 80 columns."""
    lines = textwrap.wrap(
        f"{result['target']} in {result['dtype']}, passes over M new tokens after {result['context']}; medians of "
        f"{result['repeat']} rounds on {place(result['machine'])}",
        80,
    )
    lines += ["", f"{'':<29}{'plain, ms':>10}{'of bandw.':>10}" + "".join(f"{f'v({m})':>7}" for m in SIZES[1:])]
    for setting in result["settings"]:
        rows, floor = {row["tokens"]: row for row in setting["results"]}, predicted_seconds(result, setting)(1)
        plain = rows[1]["seconds"]["median"]
        lines.append(
            f"{label(setting):<29}{1e3 * plain:>10.1f}{floor / plain:>10.0%}"
            + "".join(f"{rows[m]['ratio']:>7.2f}" for m in SIZES[1:])
        )
    for reason in disturbed(result["settings"]):
        lines += ["", *textwrap.wrap(reason, 80)]
    return "\n".join(lines)


def add_arguments(parser) -> None:
    options.add_model(parser, "smollm2")
    parser.add_argument(
        "--context",
        type=options.count,
        default=256,
        metavar="N",
        help="cached tokens before the pass (default: %(default)s)",
    )
    options.add_repeat(parser, 25)
