"""A whole speculative cycle as one launch: its time, its tokens, and whether the formula's speed-up comes true.

The target's first two layers draft (labs/pairs.py says how that gives real rejections). Plain launches, cycles, and the
parts of a cycle are timed in turn, and transformers' assisted generation with the same weights beside them. With
c = t_draft / t_plain and v = t_verify / t_plain as measured, E[N] / (k·c + v) is what the cycle should gain.
"""

from dataclasses import asdict, replace

from minispec import theory
from minispec.gpu.decode import FastDecoder, FastSpeculator
from minispec.gpu.weights import FastTransformer
from minispec.measure import interleaved_times, where
from minispec.sampling import Sampling
from minispec.trace import Trace
from minispec_course.labs.presets import weights_read

from ..cli import options
from . import peers, shapes
from .page import Headline, Section, Table, decoding, each, ratio, spread, without

WITHOUT_MODEL = True
PLAIN, CYCLE, DRAFT, VERIFY = "plain token", "whole cycle", "draft, a token", "verify pass"  # as results name them


def run(args) -> dict:
    most = max(args.tokens, max(args.cycles, shapes.LAUNCHES) * (args.k + 1))
    config = shapes.check(args, most)
    target, draft = shapes.random_pair(config, args.device, args.epsilon, args.seed)
    prompt, sampling = shapes.prompt_of(config, args.context, args.seed), Sampling(args.temperature)
    result = shapes.facts(args, "speculate", target)
    result |= {"k": args.k, "epsilon": args.epsilon, "temperature": args.temperature, "new_tokens": args.tokens}
    room, lean = args.context + most, result["lean"]
    big, small = (FastTransformer(model.transformer, 1, room, lean=lean) for model in (target, draft))
    plain, cycles = FastDecoder(big, sampling), FastSpeculator(big, small, args.k, sampling)
    trace = acceptance(cycles, prompt, args.cycles, args.texts)
    how = (args.tokens, args.k, args.temperature, args.seed)
    theirs, skipped = peers.transformers_peers(args.peers, target, draft, prompt, *how)

    def restart() -> None:
        """All share the two caches, so each call begins with what the prompt left there."""
        plain.start([prompt], args.seed)
        cycles.start([prompt], args.seed)

    restart()
    calls = {
        PLAIN: lambda: plain.launch(shapes.LAUNCHES),
        CYCLE: lambda: cycles.launch(shapes.LAUNCHES),
        DRAFT: shapes.several(shapes.captured_pass(small, 1, args.seed)),
        VERIFY: shapes.several(shapes.captured_pass(big, args.k + 1, args.seed)),
        **theirs,
    }
    times = interleaved_times(calls, args.repeat, 2, args.device, reset=restart)
    counts = {name: args.tokens if name in theirs else shapes.LAUNCHES for name in times}
    seconds = {name: each(asdict(timing), counts[name]) for name, timing in times.items()}
    return result | {"skipped": skipped, "seconds": seconds} | summarise(seconds, trace, args.k)


def acceptance(decoder: FastSpeculator, prompt: list[int], cycles: int, texts: int) -> Trace:
    """What the draft is worth: the cycles of several outputs, each with random numbers of its own."""
    trace = Trace()
    for seed in range(texts):
        decoder.start([prompt], seed)
        for _ in range(cycles):
            decoder.ask()
            trace.cycles += decoder.answer()
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


def predicted_seconds(result: dict) -> dict[str, float]:
    """Each part of a cycle by its bytes, and the whole by its measured parts."""
    config, context = shapes.SHAPES[result["shape"]], result["context"]
    first = replace(config, num_layers=shapes.LAYERS)
    draft_bytes = {"weight_bytes": weights_read(first) * shapes.itemsize(result)}
    floor = shapes.floor_seconds(result, config, context)
    draft = shapes.floor_seconds(result | draft_bytes, first, context)
    return {PLAIN: floor, DRAFT: draft, VERIFY: floor, CYCLE: result["predicted_cycle_seconds"]}


def section(result: dict) -> Section:
    seconds, k, alpha, c, v = (result[key] for key in ("seconds", "k", "acceptance", "c", "v"))
    tokens, gain, formula = (result[key] for key in ("tokens_per_cycle", "speedup", "predicted_speedup"))
    plain, cycle = seconds[PLAIN]["median"], seconds[CYCLE]["median"]
    source = dict.fromkeys((PLAIN, DRAFT), "bytes / bandwidth") | {VERIFY: "bytes / bandwidth, as one token"}
    source[CYCLE] = f"{k} measured draft steps and a measured pass"
    rows = []
    for name, guess in predicted_seconds(result).items():
        compared = f"{1e3 * guess:.3f}", ratio(seconds[name]["median"], guess)
        rows.append([f"{name}, ms", spread(seconds[name], digits=3), *compared, source[name]])
    for name, value, guess, how in (
        ("tokens per cycle", tokens, theory.expected_tokens(alpha, k), f"E[N] with α = {alpha:.3f}"),
        ("speed-up", gain, formula, f"tokens per cycle / (k·c + v), c = {c:.3f}, v = {v:.3f}"),
        ("per token, ms", 1e3 * cycle / tokens, 1e3 * plain / formula, "plain token / predicted speed-up"),
    ):
        rows.append([name, f"{value:.3f}", f"{guess:.3f}", ratio(value, guess), how])
    tables = [Table(["", "measured", "predicted", "measured / predicted", "predicted from"], rows, (0, 4))]
    if beside := {name: row for name, row in seconds.items() if name not in source}:
        rows = [[name, spread(row), f"{row['median'] * tokens / cycle:.1f}"] for name, row in beside.items()]
        tables.append(Table(["beside it, the same weights", "ms per token", "× our cycles"], rows))
    return Section(
        f"A speculative cycle, {result['shape']} on {where(result['machine'])}",
        f"{k} draft tokens by the target's first two layers, one forward pass over {k + 1} tokens, and the "
        f"verification, all in one launch; {decoding(result['temperature'])}, after {result['context']} tokens. The "
        f"parts and the whole are timed alternately; tokens are counted over {result['cycles']:,} cycles.",
        tables,
        Headline(f"speed-up with k = {k}", gain, formula),
        without(result["skipped"]),
    )


def add_arguments(parser) -> None:
    shapes.add_arguments(parser)
    peers.add_arguments(parser, ("eager", "assisted"))
    options.add_draft_length(parser, auto=False)
    shapes.add_epsilon(parser)
    options.add_temperature(parser, 1.0)
    options.add(parser, "cycles", options.count, 40, "of an output")
    options.add(parser, "texts", options.count, 25, "outputs, for the acceptance")
    options.add_tokens(parser, 64, "for each peer")
