"""Drafting while the target verifies (drafters.Ahead): what of the drafting time it saves, and when it pays.

One sequence; in each round every way generates the same tokens, one after the other: a cycle as one launch; the same
pass by pass (in turn); prepared for F outcomes beside the verify pass, on a stream of its own; and prepared after it,
which says what preparing costs. With drafting D, verify pass V, preparation P, hit rate h, and V′ the pass with the
preparation beside it, a cycle saves h·D and pays V′ − V: nothing if the GPU has room for both and P < V, up to P if it
has none. So it pays from h = (V′ − V) / D.
"""

import time
from dataclasses import asdict

from minispec.drafters import Ahead, Drafter, shipped_draft
from minispec.drafters import Model as DraftModel
from minispec.load.folder import load
from minispec.load.model import Model
from minispec.measure import Timing, where
from minispec.speculate import speculate
from minispec.trace import Trace, synchronize

from ..cli import options
from . import shapes
from .page import Headline, Section, Table, decoding, ratio, spread
from .prompts import read_prompts

WITHOUT_MODEL = True
ONE_LAUNCH, IN_TURN, BESIDE, AFTER = "one launch", "in turn", "prepared beside", "prepared after"
HEAD = "ms per cycle", "draft, ms", "verify, ms", "hit rate", "tokens per cycle", "tokens/s"
FIGURES = "cycle", "draft", "verify", "hit_rate", "tokens_per_cycle"
COSTS = "preparing, ms", "pass slower", "pays from", "formula, ms", "measured / formula", "× in turn"


class After(Ahead):
    """Prepares when the pass has ended, not beside it."""

    def while_verifying(self, sequences, drafts) -> None:
        synchronize(self.inner.draft.device)
        super().while_verifying(sequences, drafts)


def one_run(target: Model, prompts: list[list[int]], drafter: Drafter, args, seed: int) -> dict:
    """The cycles of some outputs, without the first of each, which begins with the prompt."""
    trace, seconds, tokens = Trace(), 0.0, []
    drafter.hits = drafter.misses = 0
    for prompt in prompts:
        ends: list[float] = []
        how = dict(temperature=args.temperature, seed=seed, ignore_eos=True)
        note = lambda cycle, ends=ends: ends.append(time.perf_counter())  # noqa: E731
        out = speculate(target, prompt, drafter, args.k, args.tokens, on_cycle=note, **how)
        seconds, tokens = seconds + ends[-1] - ends[0], tokens + out.tokens
        trace.cycles += out.trace.cycles[1:]
    parts = {part: trace.seconds(part) / len(trace.cycles) for part in ("draft", "verify")}
    found = dict(hit_rate=drafter.hits / max(1, drafter.hits + drafter.misses), tokens_per_cycle=trace.tokens_per_cycle)
    return dict(cycle=seconds / len(trace.cycles), tokens=tokens, **parts, **found)


def race(target: Model, draft: Model, prompts: list[list[int]], args) -> dict:
    """Way → medians and quartiles over the rounds."""
    target.accelerate()
    ways = {ONE_LAUNCH: DraftModel(draft), IN_TURN: Ahead(DraftModel(draft), 0)}
    for n in args.outcomes:
        ways |= {f"{BESIDE}, {n}": Ahead(DraftModel(draft), n), f"{AFTER}, {n}": After(DraftModel(draft), n)}
    runs = [{way: one_run(target, prompts, ways[way], args, seed) for way in ways} for seed in range(1 + args.repeat)]
    return {
        way: {key: asdict(Timing.of([run[way][key] for run in runs[1:]])) for key in FIGURES}  # the first one captured
        | {"same_tokens": all(run[way]["tokens"] == run[IN_TURN]["tokens"] for run in runs)}
        for way in ways
    }


def run(args) -> dict:
    config = shapes.check(args, args.tokens + 2 * args.k + 2)
    target, draft = shapes.random_pair(config, args.device, args.epsilon, args.seed)
    result = shapes.facts(args, "ahead", target) | {key: getattr(args, key) for key in ("k", "epsilon", "temperature")}
    prompts = [shapes.prompt_of(config, args.context, args.seed)]
    result |= {"new_tokens": args.tokens, "results": {f"random {args.shape}": race(target, draft, prompts, args)}}
    for name in args.models:
        target, draft = (load(which, device=args.device) for which in (name, shipped_draft(name)))
        prompts = [of_it[0] for of_it in read_prompts("builtin", target, args.tokens).values()]
        result["results"][name] = race(target, draft, prompts[: args.prompts], args)
    return result


def costs(rows: dict, way: str) -> list:
    """What preparing beside the pass costs and saves."""
    others = IN_TURN, way, way.replace(BESIDE, AFTER)
    turn, mine, after = ({key: rows[other][key]["median"] for key in FIGURES} for other in others)
    D, V = turn["draft"], turn["verify"]
    prepare = after["verify"] - V
    formula = (1 - mine["hit_rate"]) * D + max(V, prepare) + turn["cycle"] - D - V
    gain = mine["tokens_per_cycle"] / mine["cycle"] * turn["cycle"] / turn["tokens_per_cycle"]
    slower, least = mine["verify"] / V - 1, max(0.0, mine["verify"] - V) / D
    figures = f"{1e3 * prepare:.3f}", f"{slower:+.0%}", f"{least:.0%}", f"{1e3 * formula:.3f}"
    return [way, *figures, ratio(mine["cycle"], formula), f"{gain:.2f}"]


def section(result: dict) -> Section:
    tables, notes = [], []
    for pair, rows in result["results"].items():
        lines = []
        for way, row in rows.items():
            cycle, draft, verify, hits, tokens = (row[key]["median"] for key in FIGURES)
            parts = [f"{1e3 * part:.3f}" if part else "–" for part in (draft, verify)]  # of one launch: not timed
            rates = f"{hits:.0%}", f"{tokens:.2f}", f"{tokens / cycle:,.0f}"
            lines.append([way, spread(row["cycle"], digits=3), *parts, *rates])
            if not row["same_tokens"] and not result["temperature"]:
                notes.append(f"{pair}, {way}: other tokens than in turn, where rounding decides between near ties.")
        beside = [costs(rows, way) for way in rows if way.startswith(BESIDE)]
        tables += [Table([pair, *HEAD], lines), Table([pair, *COSTS], beside)]
    return Section(
        f"Drafting while the target verifies, on {where(result['machine'])}",
        f"One sequence, {decoding(result['temperature'])}, k = {result['k']}, {result['new_tokens']} tokens, "
        f"{result['dtype']}; medians of {result['repeat']} rounds. With hit rate h, "
        "drafting D, preparing P and the verify pass V (V′ with the preparation beside it), the formula is (1 − h)·D + "
        "max(V, P) and the rest of a cycle, for a GPU with room for both; it pays from h = (V′ − V) / D on.",
        tables,
        Headline("prepared beside the pass, tokens/s against in turn", float(tables[1].rows[-1][-1])),
        notes,
    )


def add_arguments(parser) -> None:
    shapes.add_arguments(parser, repeat=5)
    options.add_draft_length(parser, auto=False)
    shapes.add_epsilon(parser)
    options.add_temperature(parser)
    options.add_tokens(parser, 128)
    options.add(parser, "outcomes", options.count, (4, 16), "to prepare for", nargs="+")
    options.add(parser, "models", options.text, (), "whose draft model ships, beside the random pair", nargs="*")
    options.add(parser, "prompts", options.count, 3, "of each of these models")
