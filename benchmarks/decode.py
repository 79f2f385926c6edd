"""Plain decoding against the machine's bandwidth: one token is one read of all weights, so that is the floor.

A model of the given shape with random weights writes after a context, all ways in turn: one launch a token (the launch
alone, then the whole of `generate`), minispec's eager reference, and transformers with the same weights.
"""

from __future__ import annotations

import textwrap
from dataclasses import asdict

from minispec.cli import options
from minispec.generate import generate
from minispec.gpu.backend import Backend
from minispec.gpu.decode import FastDecoder
from minispec.load.handle import Model
from minispec.measure import interleaved_times, place
from minispec_course.labs import pairs

from . import peers

WITHOUT_MODEL = True
LAUNCH, WHOLE, REFERENCE = "launch", "fast.generate", "generate"  # as stored results name them


def run(args) -> dict:
    config = pairs.check(args, args.tokens)
    target, draft = pairs.random_pair(config, args.device, seed=args.seed)
    prompt = pairs.prompt_of(config, args.context, args.seed)
    result = pairs.facts(args, "decode", target) | {"new_tokens": args.tokens}
    target.backend = Backend(target, **pairs.fast_options(args))
    theirs, skipped = peers.transformers_peers(args.peers, target, draft, prompt, args.tokens, 4, 0.0, args.seed)
    decoder = FastDecoder(target.backend.reserve(args.context + args.tokens))
    reference = Model(target.name, target.transformer)  # without a backend
    rest = {
        WHOLE: lambda: generate(target, prompt, args.tokens),
        REFERENCE: lambda: generate(reference, prompt, args.tokens),
        **theirs,
    }
    decoder.start([prompt])
    calls = {LAUNCH: lambda: decoder.launch(pairs.LAUNCHES), **rest}
    times = interleaved_times(calls, args.repeat, 2, args.device, reset=lambda: decoder.start([prompt]))
    floor = pairs.floor_seconds(result, config, args.context)
    result |= {"predicted_seconds": floor, "skipped": skipped, "results": {}}
    for name, timing in times.items():
        tokens = pairs.LAUNCHES if name == LAUNCH else args.tokens
        seconds = {key: value / tokens if key != "n" else value for key, value in asdict(timing).items()}
        result["results"][name] = {
            "seconds_per_token": seconds,
            "fraction_of_bandwidth": floor / seconds["median"],
            "times_launch": seconds["median"] / times[LAUNCH].median * pairs.LAUNCHES,
        }
    return result


def text(result: dict) -> str:
    """The table for a terminal, 80 columns."""
    lines = textwrap.wrap(
        f"{result['shape']} in {result['dtype']}, {result['weight_bytes'] / 1e9:.3g} GB of weights per token, after "
        f"{result['context']} tokens; medians of {result['repeat']} rounds (quartiles) on {place(result['machine'])}; "
        f"{result['bandwidth']['median'] / 1e9:,.0f} GB/s read, so {1e3 * result['predicted_seconds']:.3g} ms at best",
        80,
    )
    lines += ["", f"{'':<24}{'ms per token':>24}{'of bandwidth':>15}{'× launch':>12}"]
    for name, row in result["results"].items():
        lines.append(
            f"{name:<24}{pairs.spread(row['seconds_per_token']):>24}{row['fraction_of_bandwidth']:>15.0%}"
            f"{row['times_launch']:>12.2f}"
        )
    for name, reason in result["skipped"].items():
        lines += textwrap.wrap(f"without {name}: {reason}", 80)
    return "\n".join(lines)


def add_arguments(parser) -> None:
    pairs.add_arguments(parser)
    peers.add_arguments(parser, ("eager", "static"))
    options.add_tokens(parser, 64)
