"""Plain decoding against the machine's bandwidth: one token is one read of all weights, so that is the floor.

A model of the given shape with random weights generates after a context, all ways in turn: one launch per token (the
launch alone, then the whole of `generate`), minispec's eager reference, and transformers with the same weights.
"""

from dataclasses import asdict

from minispec.generate import generate
from minispec.gpu.backend import Backend
from minispec.gpu.decode import FastDecoder
from minispec.load.model import Model
from minispec.measure import interleaved_times, where

from ..cli import options
from . import peers, shapes
from .page import Headline, Section, Table, each, ratio, spread, without

WITHOUT_MODEL = True
LAUNCH, WHOLE, REFERENCE = "launch", "fast.generate", "generate"  # as stored results name them


def run(args) -> dict:
    config = shapes.check(args, args.tokens)
    target, draft = shapes.random_pair(config, args.device, seed=args.seed)
    prompt = shapes.prompt_of(config, args.context, args.seed)
    result = shapes.facts(args, "decode", target) | {"new_tokens": args.tokens}
    target.backend = Backend(target)
    theirs, skipped = peers.transformers_peers(args.peers, target, draft, prompt, args.tokens, 4, 0.0, args.seed)
    decoder = FastDecoder(target.backend.reserve(args.context + args.tokens))
    reference = Model(target.name, target.transformer)  # without a backend
    decoder.start([prompt])
    calls = {
        LAUNCH: lambda: decoder.launch(shapes.LAUNCHES),
        WHOLE: lambda: generate(target, prompt, args.tokens),
        REFERENCE: lambda: generate(reference, prompt, args.tokens),
        **theirs,
    }
    times = interleaved_times(calls, args.repeat, 2, args.device, reset=lambda: decoder.start([prompt]))
    floor = shapes.floor_seconds(result, config, args.context)
    result |= {"predicted_seconds": floor, "skipped": skipped, "results": {}}
    for name, timing in times.items():
        seconds = each(asdict(timing), shapes.LAUNCHES if name == LAUNCH else args.tokens)
        result["results"][name] = {
            "seconds_per_token": seconds,
            "fraction_of_bandwidth": floor / seconds["median"],
            "times_launch": seconds["median"] / times[LAUNCH].median * shapes.LAUNCHES,
        }
    return result


def section(result: dict) -> Section:
    floor, rows = shapes.floor_seconds(result, shapes.SHAPES[result["shape"]], result["context"]), []
    for name, row in result["results"].items():
        seconds, median = row["seconds_per_token"], row["seconds_per_token"]["median"]
        bound = [f"{1e3 * floor:.2f}", ratio(median, floor), f"{floor / median:.0%}"]
        rows.append([name, spread(seconds), *bound, f"{row['times_launch']:.2f}"])
    best = min(row["seconds_per_token"]["median"] for row in result["results"].values())
    return Section(
        f"Plain decoding, {result['shape']} on {where(result['machine'])}",
        f"Generating one token reads all {result['weight_bytes'] / 1e9:.3g} GB of weights once, and the keys and "
        f"values of {result['context']} tokens. Those bytes divided by the bandwidth are the least time that a token "
        "can take.",
        [Table(["", "ms per token", "predicted", "measured / predicted", "of the bandwidth", "× launch"], rows)],
        Headline("a plain token, ms", 1e3 * best, 1e3 * floor),
        without(result["skipped"]),
    )


def add_arguments(parser) -> None:
    shapes.add_arguments(parser)
    peers.add_arguments(parser, ("eager", "static"))
    options.add_tokens(parser, 64)
