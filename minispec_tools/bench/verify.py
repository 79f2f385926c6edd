"""What a pass of M tokens costs, relative to one: the v of every speed-up formula.

Captured passes over a fixed context, all sizes in turn. While reading the weights takes longer than multiplying with
them, M tokens should cost what one does.
"""

from dataclasses import asdict

from minispec import theory
from minispec.gpu.weights import FastTransformer
from minispec.measure import flops, interleaved_times, where

from ..cli import options
from . import shapes
from .page import Headline, Section, Table, each, ratio, spread

WITHOUT_MODEL = True


def run(args) -> dict:
    sizes = sorted({1, *args.sizes})
    config = shapes.check(args, max(sizes))
    target, _ = shapes.random_pair(config, args.device, seed=args.seed)
    result = shapes.facts(args, "verify", target)
    quick = FastTransformer(target.transformer, 1, args.context + max(sizes), lean=result["lean"])
    prompt = shapes.prompt_of(config, args.context, args.seed)
    quick.prefill(quick.places.new_tensor([prompt]), quick.places.new_tensor([len(prompt)]))
    calls = {m: shapes.several(shapes.captured_pass(quick, m, args.seed)) for m in sizes}
    times = interleaved_times(calls, args.repeat, 2, args.device)
    result |= {"flops": flops(args.device, target.dtype).median}
    result |= {"predicted_seconds": shapes.floor_seconds(result, config, args.context)}
    predicted = ratios(result, sizes)
    result["results"] = [
        {
            "tokens": m,
            "seconds": each(asdict(timing), shapes.LAUNCHES),
            "ratio": timing.median / times[1].median,
            "predicted_ratio": predicted[m],
        }
        for m, timing in times.items()
    ]
    return result


def ratios(result: dict, sizes: list[int]) -> dict[int, float]:
    """M → t(M)/t(1) by the roofline with the measured bandwidth and FLOP/s."""
    hardware = theory.Hardware("measured", result["bandwidth"]["median"], result["flops"])
    size = shapes.itemsize(result)
    weights = result["weight_bytes"] / size
    times = {m: theory.pass_time(hardware, weights, tokens=m, bytes_per_weight=size) for m in sizes}
    return {m: seconds / times[1] for m, seconds in times.items()}


def section(result: dict) -> Section:
    measured = {row["tokens"]: row["ratio"] for row in result["results"]}
    predicted, rows = ratios(result, list(measured)), []
    for row in result["results"]:
        m, v, guess = row["tokens"], row["ratio"], predicted[row["tokens"]]
        rows.append([m, spread(row["seconds"], digits=3), f"{v:.3f}", f"{guess:.3f}", ratio(v, guess)])
    shown = max(m for m in measured if m <= 16)
    return Section(
        f"The verify pass, {result['shape']} on {where(result['machine'])}",
        f"One forward pass over M new tokens after {result['context']}. While reading the weights takes longer than "
        "multiplying by them, M tokens should take as long as one. t(M)/t(1) is the v of the speed-up formula.",
        [Table(["M", "ms", "t(M)/t(1)", "predicted", "measured / predicted"], rows)],
        Headline(f"t({shown})/t(1)", measured[shown], predicted[shown]),
    )


def add_arguments(parser) -> None:
    shapes.add_arguments(parser)
    sizes = [1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32]
    options.add(parser, "sizes", options.count, sizes, "tokens per pass", "M", nargs="+")
