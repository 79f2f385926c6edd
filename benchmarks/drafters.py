"""Every drafter against plain decoding: tokens per second, acceptance and tokens per pass, by kind of text.

Each round lets plain decoding and all drafters write the same prompts, one after the other, so that a machine that
slows down slows down all of them. Greedy unless told otherwise: then all write the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial

from tqdm import tqdm

from minispec.cli import options
from minispec.drafters import Drafter
from minispec.drafters.by_name import DRAFTERS, by_name
from minispec.generate import Output, generate
from minispec.gpu.backend import load
from minispec.load.handle import Model
from minispec.measure import Timing, interleaved_times, machine, where
from minispec.speculate import speculate
from minispec.trace import Trace

from .cpu import busy_core
from .page import Headline, Section, Table, decoding, ratio, shown, spread, without
from .prompts import read_prompts

PLAIN = "plain"  # the runner without a drafter
HEAD = [
    *("tokens/s", "speed-up", "α", "tokens per pass", "k·c", "v"),
    *("predicted", "measured / predicted", "of the ceiling"),
]


def race(
    target: Model,
    drafters: Mapping[str, Drafter],
    prompts: Mapping[str, Sequence[Sequence[int]]],
    k: int | str = 4,
    new_tokens: int = 64,
    repeat: int = 5,
    temperature: float = 0.0,
    seed: int = 0,
) -> dict:
    """The benchmark: result["results"][category][drafter or "plain"]."""
    options = dict(temperature=temperature, seed=seed)
    entrants, results = {PLAIN: None, **drafters}, {}
    with tqdm(total=len(prompts) * (repeat + 1) * len(entrants), leave=False, disable=None) as bar:  # on terminals only
        for category, of_it in prompts.items():
            laps: dict[str, list[list[Output]]] = {name: [] for name in entrants}  # by round, then by prompt
            calls = {
                name: partial(lap, laps[name], target, drafter, of_it, k, new_tokens, **options)
                for name, drafter in entrants.items()
            }
            bar.set_description(category)
            interleaved_times(calls, repeat, 1, target.device, reset=bar.update)
            timed = {name: rounds[1:] for name, rounds in laps.items()}  # without the warm-up
            results[category] = summarise(timed)
    return {
        "benchmark": "drafters",
        "target": target.label,
        "dtype": str(target.dtype).removeprefix("torch."),
        "recorded": target.backend is not None,
        "k": k,
        "new_tokens": new_tokens,
        "temperature": temperature,
        "seed": seed,
        "repeat": repeat,
        "prompts": {category: len(of_it) for category, of_it in prompts.items()},
        "results": results,
        "machine": machine(),
    }


def lap(laps: list, target: Model, drafter: Drafter | None, prompts: Sequence, k: int | str, n: int, **options) -> None:
    """All prompts once; without a drafter, plainly. The outputs are appended to `laps`."""
    if drafter is None:
        laps.append([generate(target, prompt, n, **options) for prompt in prompts])
    else:
        laps.append([speculate(target, prompt, drafter, k, n, **options) for prompt in prompts])


def summarise(runs: Mapping[str, Sequence[Sequence[Output]]]) -> dict[str, dict]:
    """What one category's rounds say of each drafter. Speed-ups are those of single rounds, both runs moments apart."""
    seconds = {name: [_seconds_per_token(outs) for outs in rounds] for name, rounds in runs.items()}
    table = {}
    plain = seconds[PLAIN][-1]  # of the round that the rest is read off
    for name, rounds in runs.items():
        outs = rounds[-1]
        trace = Trace.of(outs) if name != PLAIN else None
        tokens = sum(len(out.tokens) for out in outs)
        parts = trace and [trace.seconds(part) / trace.target_passes / plain for part in ("draft", "verify")]
        ratios = [plain / own for plain, own in zip(seconds[PLAIN], seconds[name], strict=True)]
        table[name] = {
            "tokens": tokens,
            "passes": trace.target_passes if trace else tokens,
            "tokens_per_pass": tokens / trace.target_passes if trace else 1.0,
            "acceptance": trace.acceptance_rate if trace else None,
            "drafted_per_pass": trace.drafted_per_cycle if trace else 0.0,
            "draft_and_verify": parts if trace and sum(parts) else None,  # k·c and v; None: they are one launch
            "tokens_per_second": asdict(Timing.of(seconds[name]).rate(1)),
            "speedup": asdict(Timing.of(ratios)),
            "same_text": [out.tokens for out in outs] == [out.tokens for out in runs[PLAIN][-1]],
        }
    return table


def _seconds_per_token(outs: Sequence[Output]) -> float:
    return sum(out.seconds for out in outs) / sum(len(out.tokens) for out in outs)


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
            f"Outputs that are not token for token those of plain decoding: {', '.join(others)}. In "
            f"{result['dtype']} rounding may decide between two tokens that are almost equally likely."
        )
    recorded, busy = result.get("recorded"), result.get("busy")
    gain, name, category = best
    return Section(
        f"Every drafter, {result['target']} on {where(result['machine'])}{', recorded' if recorded else ''}"
        f"{', beside a busy core' if busy else ''}",
        f"{decoding(result['temperature']).capitalize()}, k = {result['k']}, {result['new_tokens']} tokens per prompt, "
        f"{result['dtype']}{', passes and cycles recorded as CUDA graphs' if recorded else ''}; plain decoding and all "
        f"drafters run alternately{', while another process kept one core busy' if busy else ''}. Predicted is tokens "
        "per pass / (k·c + v), with the time of drafting (k·c) and of the verify pass (v) as measured in the same "
        "cycles, in plain tokens; where a whole cycle is one launch, its parts have no times of their own. The ceiling "
        "is tokens per pass: the speed-up if drafting took no time and a longer pass no more than a short one.",
        tables,
        Headline(f"best speed-up ({name}, {category})", gain),
        notes,
    )


def add_arguments(parser) -> None:
    options.add_model(parser, "smollm2")
    options.add_weights(parser)
    help = f"of {', '.join(DRAFTERS)} (default: all that can be had)"
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
    with busy_core() if args.busy else nullcontext():
        raced = race(target, drafters, prompts, args.k, args.tokens, args.repeat, args.temperature, args.seed)
    return raced | {"busy": args.busy, "skipped": skipped}
