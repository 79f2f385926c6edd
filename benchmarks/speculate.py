"""A whole speculative cycle as one launch: its time, its tokens, and whether the formula's speed-up comes true.

The target's first two layers draft (pairs.py says how that gives real rejections). Plain launches, cycles, and the
parts of a cycle are timed in turn, and transformers' assisted generation with the same weights beside them. With
c = t_draft / t_plain and v = t_verify / t_plain as measured, E[N] / (k·c + v) is what the cycle should gain.
"""

from __future__ import annotations

import textwrap
from dataclasses import asdict

from minispec import theory
from minispec.cli import options
from minispec.gpu.decode import FastDecoder, FastSpeculator
from minispec.gpu.fused import FastTransformer
from minispec.measure import interleaved_times, place
from minispec.sampling import Sampling
from minispec.trace import Trace
from minispec_course.labs import pairs

from . import peers

WITHOUT_MODEL = True
PLAIN, CYCLE, DRAFT, VERIFY = "plain token", "whole cycle", "draft, a token", "verify pass"


def run(args) -> dict:
    if args.k < 1 or args.cycles < 1 or args.tokens < 1:
        raise ValueError(f"k={args.k}, cycles={args.cycles}, tokens={args.tokens}: give whole numbers ≥ 1")
    most = max(args.tokens, max(args.cycles, pairs.LAUNCHES) * (args.k + 1))
    config = pairs.check(args, most)
    target, draft = pairs.random_pair(config, args.device, args.epsilon, args.seed)
    prompt, sampling = pairs.prompt_of(config, args.context, args.seed), Sampling(args.temperature)
    result = pairs.facts(args, "speculate", target)
    result |= {"k": args.k, "epsilon": args.epsilon, "temperature": args.temperature, "new_tokens": args.tokens}
    room, options = args.context + most, pairs.fast_options(args)
    big, small = (FastTransformer(model.transformer, 1, room, **options) for model in (target, draft))
    plain, cycles = FastDecoder(big, sampling), FastSpeculator(big, small, args.k, sampling)
    trace = acceptance(cycles, prompt, args.cycles, args.texts)
    theirs, skipped = peers.transformers_peers(
        args.peers, target, draft, prompt, args.tokens, args.k, args.temperature, args.seed
    )

    def restart() -> None:
        """All share the two memories, so each call begins with what the prompt left there."""
        plain.start([prompt], args.seed)
        cycles.start([prompt], args.seed)

    restart()
    calls = {
        PLAIN: lambda: plain.launch(pairs.LAUNCHES),
        CYCLE: lambda: cycles.launch(pairs.LAUNCHES),
        DRAFT: pairs.several(pairs.recorded_pass(small, 1, args.seed)),
        VERIFY: pairs.several(pairs.recorded_pass(big, args.k + 1, args.seed)),
        **theirs,
    }
    times = interleaved_times(calls, args.repeat, 2, args.device, reset=restart)
    seconds = {}
    for name, timing in times.items():
        count = args.tokens if name in theirs else pairs.LAUNCHES
        seconds[name] = {key: value / count if key != "n" else value for key, value in asdict(timing).items()}
    return result | {"skipped": skipped, "seconds": seconds} | summarise(seconds, trace, args.k)


def acceptance(decoder: FastSpeculator, prompt: list[int], cycles: int, texts: int) -> Trace:
    """What the draft is worth: the cycles of several texts, each with random numbers of its own."""
    trace = Trace()
    for seed in range(texts):
        decoder.start([prompt], seed)
        decoder.launch(cycles)
        decoder.fetch()
        trace.cycles += decoder.history()
    return trace


def summarise(seconds: dict, trace: Trace, k: int) -> dict:
    """Measured beside predicted."""
    plain, cycle, draft, verify = (seconds[name]["median"] for name in (PLAIN, CYCLE, DRAFT, VERIFY))
    tokens, alpha = trace.tokens_per_cycle, trace.acceptance_rate
    c, v = draft / plain, verify / plain
    measured, formula = tokens * plain / cycle, theory.cycle_speedup(tokens, k, c, v)
    return {
        "cycles": trace.target_passes,
        "acceptance": alpha,
        "acceptance_by_position": trace.acceptance_by_position,
        "tokens_per_cycle": tokens,
        "predicted_tokens_per_cycle": theory.expected_tokens(alpha, k),
        "c": c,
        "v": v,
        "predicted_cycle_seconds": k * draft + verify,
        "seconds_per_token": cycle / tokens,
        "speedup": measured,
        "predicted_speedup": formula,
        "of_predicted": measured / formula,
    }


def text(result: dict) -> str:
    """The table for a terminal, 80 columns."""
    how = f"temperature {result['temperature']:g}" if result["temperature"] else "greedy"
    lines = textwrap.wrap(
        f"{result['shape']} in {result['dtype']}, ε = {result['epsilon']:g}, k = {result['k']}, {how}, after "
        f"{result['context']} tokens; medians of {result['repeat']} rounds (quartiles) on {place(result['machine'])}",
        80,
    )
    lines += ["", f"{'':<32}{'ms':>26}"]
    for name, seconds in result["seconds"].items():
        per = ", a token" if name.startswith("transformers") else ""
        lines.append(f"{name + per:<32}{pairs.spread(seconds, digits=3):>26}")
    lines += ["", f"{'':<24}{'measured':>12}{'predicted':>12}"]
    for name, key in (("tokens per cycle", "tokens_per_cycle"), ("speed-up", "speedup")):
        lines.append(f"{name:<24}{result[key]:>12.2f}{result[f'predicted_{key}']:>12.2f}")
    cycle, predicted = result["seconds"][CYCLE]["median"], result["predicted_cycle_seconds"]
    lines += [f"{'cycle, ms':<24}{1e3 * cycle:>12.2f}{1e3 * predicted:>12.2f}"]
    lines += [
        "",
        f"{1e3 * result['seconds_per_token']:.3f} ms per token; α = {result['acceptance']:.3f} over "
        f"{result['cycles']} cycles, c = {result['c']:.3f}, v = {result['v']:.3f}",
    ]
    for name, reason in result["skipped"].items():
        lines += textwrap.wrap(f"without {name}: {reason}", 80)
    return "\n".join(lines)


def add_arguments(parser) -> None:
    pairs.add_arguments(parser)
    peers.add_arguments(parser, ("eager", "assisted"))
    options.add_draft_length(parser, auto=False)
    parser.add_argument(
        "--epsilon", type=options.number, default=0.05, metavar="ε", help="damping (default: %(default)s)"
    )
    options.add_temperature(parser, 1.0)
    parser.add_argument(
        "--cycles", type=options.count, default=40, metavar="N", help="of a text (default: %(default)s)"
    )
    parser.add_argument(
        "--texts", type=options.count, default=25, metavar="N", help="for the acceptance (default: %(default)s)"
    )
    options.add_tokens(parser, 64, "for each peer")
