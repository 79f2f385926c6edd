"""Continuous against static batching, in tokens per second. The experiment is minispec_course/labs/batching.py."""

from minispec import theory
from minispec.drafters import DRAFTERS, by_name
from minispec.load.folder import load
from minispec.measure import where
from minispec_course.labs.batching import CONTINUOUS, PADDED, STATIC, compare, workload

from ..cli import options
from .page import Headline, Section, Table, ratio, shown, spread
from .prompts import read_prompts


def run(args) -> dict:
    target = load(args.model, device=args.device)
    prompts = [ids for of_it in read_prompts(args.prompts, target, args.tokens).values() for ids in of_it]
    drafter = by_name(args.drafter, target, args.draft) if args.drafter else None
    work = workload(prompts, args.requests, args.tokens, args.seed)
    return compare(target, work, args.batch, repeat=args.repeat, drafter=drafter, k=args.k) | {"seed": args.seed}


def static_idle(result: dict) -> float | None:
    """Idle share of slots in static batches, by the lengths; None where these cannot be sampled again."""
    lengths = [length for _, length in workload([()], result["requests"], result["longest"], result["seed"])]
    if sum(lengths) != result["tokens"]:
        return None
    some = [lengths[first : first + result["batch"]] for first in range(0, len(lengths), result["batch"])]
    steps = [max(one) * len(one) for one in some]
    return sum(theory.static_batch_idle(one) * n for one, n in zip(some, steps, strict=True)) / sum(steps)


def section(result: dict) -> Section:
    idle, rows = static_idle(result), []
    for name, row in result["results"].items():
        waiting = 1 - result["tokens"] / (result["batch"] * row["steps"])
        guess = idle if name in (PADDED, STATIC) else None
        rates = [spread(row["tokens_per_second"], 1, 0), spread(row["over_static"], 1)]
        idles = [f"{waiting:.1%}", shown(guess, ".1%"), ratio(waiting, guess)]
        rows.append([name, *rates, f"{row['steps']:,}", *idles])
    most = None if idle is None else 1 / (1 - idle)
    note = (
        "If every step were full and took equally long, continuous batching would gain 1 / (1 − idle) = "
        f"{shown(most)}. A step of a smaller batch takes less time, so idle positions cost less than that, and the "
        "last requests always leave some idle."
    )
    return Section(
        f"Continuous batching, {result['target']} on {where(result['machine'])}",
        f"{result['requests']} requests of very different lengths, {result['tokens']:,} tokens to generate, "
        f"{result['batch']} at a time. A batch position is idle in a step in which it emits nothing. Predicted from "
        "the lengths: in a static batch all positions wait for the longest sequence.",
        [Table(["", "tokens/s", "× static", "steps", "positions idle", "predicted", "measured / predicted"], rows)],
        Headline("continuous over static, tokens/s", result["results"][CONTINUOUS]["over_static"]["median"], most),
        [note] if most else [],
    )


def add_arguments(parser) -> None:
    options.add_model(parser, "micro")
    options.add(parser, "requests", options.count, 64, "to serve")
    options.add(parser, "batch", options.count, 8, "requests at a time")
    parser.add_argument("--drafter", choices=DRAFTERS, metavar="NAME", help=f"also speculate: {', '.join(DRAFTERS)}")
    options.add_draft_length(parser, auto=False)
    options.add_repeat(parser, 3)
    parser.set_defaults(tokens=256)
