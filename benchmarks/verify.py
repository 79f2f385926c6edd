"""What a pass of M tokens costs, relative to one: the v of every speed-up formula.

Recorded passes over a fixed context, all sizes in turn. While reading the weights takes longer than multiplying with
them, M tokens should cost what one does.
"""

from __future__ import annotations

import textwrap
from dataclasses import asdict

from minispec import theory
from minispec.cli import options
from minispec.gpu.fused import FastTransformer
from minispec.measure import flops, interleaved_times, place
from minispec_course.labs import pairs

WITHOUT_MODEL = True


def run(args) -> dict:
    sizes = sorted({1, *args.sizes})
    if sizes[0] < 1:
        raise ValueError(f"sizes={args.sizes}: give numbers of tokens ≥ 1")
    config = pairs.check(args, max(sizes))
    target, _ = pairs.random_pair(config, args.device, seed=args.seed)
    result = pairs.facts(args, "verify", target)
    quick = FastTransformer(target.transformer, 1, args.context + max(sizes), **pairs.fast_options(args))
    prompt = pairs.prompt_of(config, args.context, args.seed)
    ids = quick.places.new_tensor([prompt])
    quick.prefill(ids, quick.places.new_tensor([len(prompt)]))
    calls = {m: pairs.several(pairs.recorded_pass(quick, m, args.seed)) for m in sizes}
    times = interleaved_times(calls, args.repeat, 2, args.device)
    hardware = theory.Hardware("measured", result["bandwidth"]["median"], flops(args.device, target.dtype).median)
    weights = result["weight_bytes"] / target.dtype.itemsize
    predicted = {
        m: theory.pass_time(hardware, weights, tokens=m, bytes_per_weight=target.dtype.itemsize) for m in sizes
    }
    result |= {"flops": hardware.flops, "predicted_seconds": pairs.floor_seconds(result, config, args.context)}
    result["results"] = [
        {
            "tokens": m,
            "seconds": {key: value / pairs.LAUNCHES if key != "n" else value for key, value in asdict(timing).items()},
            "ratio": timing.median / times[1].median,
            "predicted_ratio": predicted[m] / predicted[1],
        }
        for m, timing in times.items()
    ]
    return result


def text(result: dict) -> str:
    """The table for a terminal, 80 columns."""
    lines = textwrap.wrap(
        f"{result['shape']} in {result['dtype']}, one pass over M new tokens after {result['context']}; medians of "
        f"{result['repeat']} rounds (quartiles) on {place(result['machine'])}",
        80,
    )
    lines += ["", f"{'M':>4}{'ms':>26}{'t(M)/t(1)':>12}{'predicted':>12}"]
    for row in result["results"]:
        lines.append(
            f"{row['tokens']:>4}{pairs.spread(row['seconds'], digits=3):>26}{row['ratio']:>12.2f}"
            f"{row['predicted_ratio']:>12.2f}"
        )
    return "\n".join(lines)


def add_arguments(parser) -> None:
    pairs.add_arguments(parser)
    parser.add_argument(
        "--sizes",
        type=options.count,
        nargs="+",
        metavar="M",
        default=[1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32],
        help="tokens per pass",
    )
