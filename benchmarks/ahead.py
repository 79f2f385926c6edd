"""Drafting while the target verifies (drafters.Ahead): what of the drafting time it saves, and when it pays on one GPU.

One sequence, greedy unless told otherwise. In each round every way generates the same tokens, one after the other: a
cycle as one launch; the same pass by pass (in turn); prepared for F outcomes beside the verify pass, on a stream of its
own; and the same preparation after the pass, which says what it costs. With drafting D, verify pass V, preparation P,
hit rate h and V′, the pass with the preparation beside it, a cycle saves h·D and pays V′ − V, between max(V, P) − V, if
the GPU has room for both, and P. So it pays from h = (V′ − V) / D.
"""

import time
from dataclasses import asdict

from minispec.cli import options
from minispec.drafters import Ahead, Drafter, shipped_draft
from minispec.drafters import Model as DraftModel
from minispec.load.folder import load
from minispec.load.handle import Model
from minispec.measure import Timing, where
from minispec.speculate import speculate
from minispec.trace import Trace, synchronize

from . import shapes
from .page import Headline, Section, Table, decoding, ratio, shown, spread
from .prompts import read_prompts

WITHOUT_MODEL = True
ONE_LAUNCH, IN_TURN, BESIDE, AFTER = "one launch", "in turn", "prepared beside", "prepared after"
PARTS = "draft", "verify", "sample"
HEAD = "ms per cycle", "draft, ms", "verify, ms", "tokens per cycle", "tokens/s"
COSTS = "hit rate", "preparing, ms", "pass slower", "pays from", "formula, ms", "measured / formula", "× in turn"


class After(Ahead):
    """Prepares when the pass has ended, not beside it."""

    def while_verifying(self, sequences, drafts) -> None:
        synchronize(self.inner.draft.device)
        super().while_verifying(sequences, drafts)


KINDS = {BESIDE: Ahead, AFTER: After}


def ways(draft: Model, outcomes: list[int]) -> dict[str, Drafter]:
    both = {f"{name}, {n}": kind(DraftModel(draft), n) for n in outcomes for name, kind in KINDS.items()}
    return {ONE_LAUNCH: DraftModel(draft), IN_TURN: Ahead(DraftModel(draft), 0)} | both


def one_run(target: Model, prompts: list[list[int]], drafter: Drafter, args, seed: int) -> dict:
    """The cycles of some outputs, without the first of each, which begins with the prompt."""
    trace, seconds, tokens, hits, asked = Trace(), 0.0, [], 0, 0
    for prompt in prompts:
        moments: list[tuple] = []  # when each cycle ended, and how many drafts were there, or not, by then

        def note(cycle, moments=moments) -> None:
            moments.append((time.perf_counter(), getattr(drafter, "hits", 0), getattr(drafter, "misses", 0)))

        how = dict(temperature=args.temperature, seed=seed, ignore_eos=True)
        out = speculate(target, prompt, drafter, args.k, args.tokens, on_cycle=note, **how)
        (start, had, missed), (end, has, misses) = moments[0], moments[-1]
        trace.cycles, tokens, seconds = trace.cycles + out.trace.cycles[1:], tokens + out.tokens, seconds + end - start
        hits, asked = hits + has - had, asked + has - had + misses - missed
    cycles = len(trace.cycles)
    parts = {part: trace.seconds(part) / cycles for part in PARTS}
    rates = dict(hit_rate=hits / max(1, asked), tokens_per_cycle=trace.tokens_per_cycle)
    return parts | rates | dict(cycle=seconds / cycles, tokens=tokens)


def race(target: Model, draft: Model, prompts: list[list[int]], args) -> dict:
    """Way → what was measured: medians and quartiles over the rounds."""
    target.accelerate()
    drafters, runs = ways(draft, args.outcomes), []
    for seed in range(1 + args.repeat):  # what is captured is captured in the first round
        runs.append({name: one_run(target, prompts, drafter, args, seed) for name, drafter in drafters.items()})
    made = {}
    for name in drafters:
        each = [run[name] for run in runs[1:]]
        figures = {key: asdict(Timing.of([one[key] for one in each])) for key in each[0] if key != "tokens"}
        same = all(run[name]["tokens"] == run[IN_TURN]["tokens"] for run in runs)
        made[name] = figures | {"same_tokens": same}
    return made


def run(args) -> dict:
    config = shapes.check(args, args.tokens + 2 * args.k + 2)
    result = shapes.facts(args, "ahead", (pair := shapes.random_pair(config, args.device, args.epsilon, args.seed))[0])
    keys = "k", "epsilon", "temperature", "outcomes"
    result |= {key: getattr(args, key) for key in keys} | {"new_tokens": args.tokens}
    prompt = shapes.prompt_of(config, args.context, args.seed)
    result["results"] = {f"random {args.shape}": race(*pair, [prompt], args)}
    del pair
    for name in args.models:
        target, draft = (load(which, device=args.device) for which in (name, shipped_draft(name)))
        prompts = read_prompts("builtin", target, args.tokens)
        result["results"][name] = race(target, draft, [of_it[0] for of_it in prompts.values()][: args.prompts], args)
    return result


def predictions(rows: dict, name: str) -> dict:
    """Of a way that prepares beside the pass: what that costs, the cycle by the formula if the GPU has room for both,
    and the hit rate from which it pays at the V′ that was measured."""
    middle = {
        way: {key: value["median"] for key, value in row.items() if key != "same_tokens"} for way, row in rows.items()
    }
    plain, mine, after = middle[IN_TURN], middle[name], middle[name.replace(BESIDE, AFTER)]
    draft, verify, rest = plain["draft"], plain["verify"], plain["cycle"] - plain["draft"] - plain["verify"]
    prepare, h = after["verify"] - verify, mine["hit_rate"]
    return dict(
        prepare=prepare,
        slower=mine["verify"] / verify - 1,
        pays_from=max(0.0, mine["verify"] - verify) / draft,
        by_formula=(1 - h) * draft + max(verify, prepare) + rest,
        speedup=plain["cycle"] / mine["cycle"] * mine["tokens_per_cycle"] / plain["tokens_per_cycle"],
    )


def section(result: dict) -> Section:
    tables, notes, best = [], [], 0.0
    for pair, rows in result["results"].items():
        lines, costs = [], []
        for name, row in rows.items():
            tokens, cycle = row["tokens_per_cycle"]["median"], row["cycle"]["median"]
            parts = [shown(1e3 * row[part]["median"] if name != ONE_LAUNCH else None, ".3f") for part in PARTS[:2]]
            lines.append([name, spread(row["cycle"], digits=3), *parts, f"{tokens:.2f}", f"{tokens / cycle:,.0f}"])
            if name.startswith(BESIDE):
                p, h = predictions(rows, name), row["hit_rate"]["median"]
                best = max(best, p["speedup"])
                times = f"{1e3 * p['by_formula']:.3f}", ratio(cycle, p["by_formula"])
                costs.append(
                    [name, f"{h:.0%}", f"{1e3 * p['prepare']:.3f}", f"{p['slower']:+.0%}", f"{p['pays_from']:.0%}"]
                )
                costs[-1] += [*times, f"{p['speedup']:.2f}"]
            if not (row["same_tokens"] or result["temperature"]):
                notes.append(
                    f"{pair}: {name} generates other tokens than in turn (rounding decides between near ties)."
                )
        tables += [Table([pair, *HEAD], lines), Table(["", *COSTS], costs)]
    return Section(
        f"Drafting while the target verifies, on {where(result['machine'])}",
        f"One sequence, {decoding(result['temperature'])}, k = {result['k']}, {result['new_tokens']} tokens, "
        f"{result['dtype']}; all ways alternate, medians of {result['repeat']} rounds. Preparing costs what the same "
        "work adds after the pass. The formula is (1 − h)·D + max(V, P) and the rest of a cycle: a GPU with room for "
        "both. It pays from h = (V′ − V) / D on.",
        tables,
        Headline("drafting while the target verifies, best against in turn", best, 1.0),
        notes,
    )


def add_arguments(parser) -> None:
    shapes.add_arguments(parser, repeat=5)
    options.add_draft_length(parser, auto=False)
    shapes.add_epsilon(parser)
    options.add_temperature(parser)
    options.add_tokens(parser, 128)
    options.add(parser, "outcomes", options.count, (4, 16), "to prepare for", nargs="+")
    options.add(parser, "models", options.text, (), "with a draft model that ships, beside the random pair", nargs="*")
    options.add(parser, "prompts", options.count, 3, "of each of these models")
