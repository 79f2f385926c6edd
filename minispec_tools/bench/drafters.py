"""Every drafter against plain decoding: tokens per second, acceptance and tokens per pass, by kind of text.

Each round lets plain decoding and all drafters write the same prompts, one after the other, so that a machine that
slows down slows down all of them. Greedy unless told otherwise: then all write the same text.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext

from minispec.drafters import DRAFTERS, by_name
from minispec.load.load import load
from minispec.measure import machine, where
from minispec_course.labs.drafting import race

from ..cli import options
from .cpu import busy_core
from .page import Headline, Section, Table, decoding, ratio, shown, spread, without
from .prompts import read_prompts

HEAD = [
    *("tokens/s", "speed-up", "α", "tokens per pass", "k·c", "v"),
    *("predicted", "measured / predicted", "of the ceiling"),
]


def to_be_had(asked: Sequence[str] | None, default: Iterable[str], make: Callable) -> tuple[dict, dict[str, str]]:
    """{name: make(name)}, and why the others are missing. Those that were asked for by name must not be."""
    made, skipped = {}, {}
    for name in asked or default:
        try:
            made[name] = make(name)
        except ValueError as error:
            if asked:
                raise
            skipped[name] = str(error)
    return made, skipped


def section(result: dict) -> Section:
    tables, best, others = [], (0.0, "", ""), []
    for category, rows in result["results"].items():
        lines = []
        for name, row in rows.items():
            tokens, parts, gain = row["tokens_per_pass"], row.get("draft_and_verify"), row["speedup"]["median"]
            predicted = tokens / sum(parts) if parts else None
            rates = [spread(row["tokens_per_second"], 1, 1), spread(row["speedup"], 1)]
            costs = [shown(part) for part in parts or (None, None)]
            lines.append([name, *rates, shown(row["acceptance"]), f"{tokens:.2f}", *costs])
            lines[-1] += [shown(predicted), ratio(gain, predicted), f"{gain / tokens:.0%}"]
            best = max(best, (gain, name, category))
            others += [] if row["same_text"] else [f"{name} ({category})"]
        tables.append(Table([category, *HEAD], lines))
    notes = without(result.get("skipped", {}))
    if others and not result["temperature"]:
        notes.append(
            f"Outputs that differ from plain decoding: {', '.join(others)}. In "
            f"{result['dtype']} rounding may decide between two tokens that are almost equally likely."
        )
    captured, busy = result.get("recorded"), result.get("busy")
    gain, name, category = best
    return Section(
        f"Every drafter, {result['target']} on {where(result['machine'])}{', captured' if captured else ''}"
        f"{', beside a busy core' if busy else ''}",
        f"{decoding(result['temperature']).capitalize()}, k = {result['k']}, {result['new_tokens']} tokens per prompt, "
        f"{result['dtype']}{', passes and cycles captured as CUDA graphs' if captured else ''}; plain decoding and all "
        f"drafters run alternately{', while another process kept one core busy' if busy else ''}. Predicted is tokens "
        "per pass / (k·c + v), with drafting (k·c) and the verify pass (v) timed in the same cycles, in units of a "
        "plain token; if a whole cycle is one launch, its parts cannot be timed. The ceiling is tokens per pass: the "
        "speed-up if drafting took no time and a longer pass no longer than a short one.",
        tables,
        Headline(f"best speed-up ({name}, {category})", gain),
        notes,
    )


def add_arguments(parser) -> None:
    options.add_model(parser, "smollm2")
    options.add_weights(parser)
    help = f"of {', '.join(DRAFTERS)} (default: all that are available)"
    parser.add_argument("--drafters", nargs="+", choices=DRAFTERS, metavar="NAME", help=help)
    options.add_draft_length(parser)
    options.add_temperature(parser, 0.0)
    options.add_repeat(parser, 5)
    parser.add_argument("--busy", action="store_true", help="while another process keeps one core busy")
    parser.add_argument("--eager", action="store_true", help="record nothing, also on a GPU")


def run(args) -> dict:
    target = load(args.model, device=args.device, fast=False if args.eager else None, weights=args.weights)
    prompts = read_prompts(args.prompts, target, args.tokens)
    drafters, skipped = to_be_had(args.drafters, DRAFTERS, lambda name: by_name(name, target, args.draft))
    sampling = dict(temperature=args.temperature, seed=args.seed)
    with busy_core() if args.busy else nullcontext():
        raced = race(target, drafters, prompts, args.k, args.tokens, args.repeat, **sampling)
    return {
        "benchmark": "drafters",
        "dtype": str(target.dtype).removeprefix("torch."),
        "recorded": target.backend is not None,
        "k": args.k,
        "new_tokens": args.tokens,
        **sampling,
        "repeat": args.repeat,
        "prompts": {category: len(of_it) for category, of_it in prompts.items()},
        **raced,
        "busy": args.busy,
        "skipped": skipped,
        "machine": machine(),
    }
