"""What a CPU makes of few tokens: a plain token against the bandwidth, and the cost of a pass over M tokens.

With one thread and with as many as there are cores; on a quiet machine, and beside a process that keeps one core busy,
as a browser with JupyterLab in it often does. Bandwidth and FLOP/s are measured with as many threads, and on the quiet
machine: beside a neighbour, the question is what is left of it.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict

import torch

from minispec import theory
from minispec.load.load import load
from minispec.load.model import Model
from minispec.measure import Watch, flops, machine, read_bandwidth, verify_curve, warning, weight_bytes

from ..cli import options
from .page import Headline, Section, Table, ratio, spread

SIZES = (1, 2, 3, 4, 5, 6, 8)
WITHOUT_MODEL = True  # it takes no draft and no prompts


# Busy until its parent is gone, however that happened: a benchmark may be killed, too.
NEIGHBOUR = "import os\nwhile os.getppid() == {parent}: sum(range(1_000_000))"


@contextmanager
def busy_core() -> Iterator[None]:
    """Meanwhile another process keeps one core busy, as a browser tab may."""
    neighbour = subprocess.Popen([sys.executable, "-c", NEIGHBOUR.format(parent=os.getpid())])
    try:
        yield
    finally:
        neighbour.kill()
        neighbour.wait()


def run(args) -> dict:
    target, most = load(args.model, device="cpu"), torch.get_num_threads()
    ways = [(threads, busy) for busy in (False, True) for threads in sorted({1, most})]
    try:
        settings = [one_setting(target, *way, args.context, args.repeat) for way in ways]
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
    found["results"] = [{"tokens": one.tokens, "seconds": asdict(one.time), "ratio": one.ratio} for one in curve]
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


def section(result: dict) -> Section:
    settings, plains, passes = result["settings"], [], []
    one = {(setting["threads"], setting["busy"]): setting["results"][0]["seconds"] for setting in settings}
    for setting in settings:
        predicted, rows = predicted_seconds(result, setting), setting["results"]
        seconds, floor = rows[0]["seconds"], predicted(1)
        bound = [f"{1e3 * floor:.1f}", ratio(seconds["median"], floor), f"{floor / seconds['median']:.0%}"]
        plains.append([label(setting), spread(seconds, digits=1), *bound])
        passes.append([label(setting), *(f"{row['ratio']:.2f}" for row in rows[1:])])
        if not setting["busy"]:
            guesses = (predicted(row["tokens"]) / floor for row in rows[1:])
            passes.append([f"{label(setting)}, predicted", *(f"{v:.2f}" for v in guesses)])
    most = max(setting["threads"] for setting in settings)
    quiet = next(setting for setting in settings if setting["threads"] == most and not setting["busy"])
    notes = []
    if most > 1:
        share = one[most, True]["median"] / one[1, True]["median"]
        notes = [f"Beside a busy core, a plain token with {most} threads takes {share:.2f} times as long as with 1."]
    sizes = [f"M = {row['tokens']}" for row in settings[0]["results"][1:]]
    plain, floor = 1e3 * one[most, False]["median"], 1e3 * predicted_seconds(result, quiet)(1)
    return Section(
        f"A laptop's passes, {result['target']} on {result['machine']['cpu']}",
        f"Passes over M new tokens after {result['context']}, in {result['dtype']}, quiet and while another process "
        "keeps one core busy. Predicted is the roofline, with the bandwidth and FLOP/s measured with the same number "
        f"of threads: {result['weight_bytes'] / 1e6:,.0f} MB of weights once per pass, or the arithmetic of M tokens. "
        "t(M)/t(1) is the v of the speed-up formula.",
        [
            Table(["", "plain token, ms", "predicted", "measured / predicted", "of the bandwidth"], plains),
            Table(["t(M)/t(1)", *sizes], passes),
        ],
        Headline(f"a plain token, ms ({label(quiet)})", plain, floor, ".1f"),
        notes + disturbed(settings),
    )


def add_arguments(parser) -> None:
    options.add_model(parser, "smollm2")
    options.add(parser, "context", options.count, 256, "cached tokens before the pass")
    options.add_repeat(parser, 25)
