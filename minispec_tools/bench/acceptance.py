"""How many tokens a pass of the target is worth: every drafter on every kind of text, greedily.

The figure depends on the two models and the text alone, not on the machine: tokens written / verify passes, over all
cycles of all prompts. Greedy, all drafters must write what plain decoding writes, so that is checked as well. Where a
text differs, the target's logits of the two tokens at which it parts tell a tie that rounding decided from a mistake.

Meant for Spec-Bench (https://github.com/hemingkx/Spec-Bench), JSON lines with "category" and "turns": the first turn is
put, as chat, and the eight small categories of MT-bench count as one group, as they do there.

And as SPEED-Bench asks (arXiv:2604.09557): after prompts of other lengths, beside prompts of random tokens (--lengths),
and along outputs of thousands of tokens (--long), which are sampled, since greedy ones come to repeat themselves.
"""

from collections.abc import Mapping, Sequence
from itertools import chain, cycle, product, zip_longest
from pathlib import Path

import torch
from tqdm import tqdm

from minispec import drafters, theory
from minispec.drafters import DRAFTERS, HEADED, Drafter, by_name, name_of
from minispec.generate import generate
from minispec.load.folder import load
from minispec.load.model import Model
from minispec.measure import machine
from minispec.output import Output
from minispec.speculate import speculate
from minispec.trace import Trace
from minispec_course.labs.numerics import first_difference

from ..cli import options
from .drafters import to_be_had
from .page import Headline, Section, Table, ratio, shown, without
from .prompts import encode, read_texts

MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
GROUP = dict.fromkeys(MT_BENCH, "mt-bench") | {"math_reasoning": "math reasoning", "rag": "retrieval"}  # others as is

HEADS = {"medusa": "Medusa", "eagle": "Eagle", "dflash": "DFlash", "dflash2": "DFlash2", "dspark": "DSpark"}  # classes
DEFAULT = ("model", *HEADS, "ngram", "suffix")
NAMES = tuple(dict.fromkeys((*DEFAULT, *DRAFTERS)))
DEEP = 16  # what heads are asked for: they know themselves how far they see
NODES = 60  # of their trees, as many as the authors of EAGLE-3 let a pass verify
BROAD = 10  # how many nodes EAGLE expands at each depth, likewise

PLAIN = "plain"


# ---------------------------------------------------------------- what is asked, and who drafts


def read_groups(
    source: str | Path, model: Model, per_group: int, room: int
) -> tuple[dict[str, list[list[int]]], dict[str, int]]:
    """Group -> its first `per_group` prompts as token ids, and group -> how many of them do not fit the model.

    The shortest come first, since in a batch short ones are padded to the longest."""
    texts: dict[str, list[str]] = {}
    for category, text in read_texts(source, model):
        texts.setdefault(GROUP.get(category, category), []).append(text)
    prompts = {group: [encode(model, text) for text in of_it[:per_group]] for group, of_it in texts.items()}
    longest = model.config.max_length - room
    fitting = {
        group: sorted((ids for ids in of_it if len(ids) <= longest), key=len) for group, of_it in prompts.items()
    }
    too_long = {group: len(prompts[group]) - len(of_it) for group, of_it in fitting.items()}
    if not any(fitting.values()):
        room_for = f"of the {model.config.max_length} tokens that {model.name} takes"
        raise ValueError(f"tokens={room}: no prompt leaves that much {room_for}, ask for fewer or give shorter prompts")
    return {group: of_it for group, of_it in fitting.items() if of_it}, too_long


def parse(entrant: str) -> tuple[str, int | None]:
    """A drafter as the command line names it: "ngram", or "ngram:8" with a draft length of its own."""
    name, colon, k = entrant.partition(":")
    if name not in NAMES or (colon and not (k.isdecimal() and int(k) >= 1)):
        raise ValueError(f"drafters={entrant!r}: give one of {', '.join(NAMES)}, or NAME:k as in ngram:8")
    return name, int(k) if colon else None


def make(name: str, target: Model, draft: str | None = None, heads: str | None = None) -> Drafter:
    """A drafter by its name; heads are a folder or a hub id, or those that come with the target."""
    if name not in HEADS:
        return by_name(name, target, draft, heads if name in HEADED else None)  # mtp: a chain of k
    sizes = {"eagle": dict(nodes=NODES, width=BROAD), "dspark": {}}.get(name, dict(nodes=NODES))
    return getattr(drafters, HEADS[name])(target, **sizes, **dict(heads=heads) if heads else {})


# ---------------------------------------------------------------- the benchmark


def measure(
    target: Model,
    entrants: Mapping[str, tuple[Drafter, int | None]],
    prompts: Mapping[str, Sequence[Sequence[int]]],
    new_tokens: int = 64,
    batch: int = 8,
    seed: int = 0,
) -> dict:
    """The benchmark: result["results"][drafter] has "groups", "overall" and "differences".

    An entrant is a drafter and its draft length k; None leaves the length to the drafter.
    """
    written: dict[str, dict[str, list[Output]]] = {name: {} for name in (PLAIN, *entrants)}  # by name, then group
    for group, name in tqdm(list(product(prompts, written)), leave=False, disable=None):  # on terminals only
        outs = written[name][group] = []
        for first in range(0, len(prompts[group]), batch):
            some = prompts[group][first : first + batch]
            if name == PLAIN:
                outs += generate(target, some, new_tokens)
            else:
                drafter, k = entrants[name]
                outs += speculate(target, some, drafter, k or DEEP, new_tokens, seed=seed)
    plain, results = written.pop(PLAIN), {}
    for name, by_group in written.items():
        groups = {group: summarise(outs, plain[group]) for group, outs in by_group.items()}
        overall = summarise(*(list(chain.from_iterable(some.values())) for some in (by_group, plain)))
        parted = [
            {"group": group, "prompt": i} | parting(target, ids, one.tokens, other.tokens)
            for group, outs in by_group.items()
            for i, (ids, one, other) in enumerate(zip(prompts[group], plain[group], outs, strict=True))
            if one.tokens != other.tokens
        ]
        results[name] = {"groups": groups, "overall": overall, "differences": parted}
    return {
        "benchmark": "acceptance",
        "target": Path(target.name).name or target.name,
        "dtype": str(target.dtype).removeprefix("torch."),
        "device": str(target.device),
        "new_tokens": new_tokens,
        "batch": batch,
        "seed": seed,
        "drafters": {
            name: {"class": name_of(drafter), "k": k} | {key: getattr(drafter, key, None) for key in ("nodes", "width")}
            for name, (drafter, k) in entrants.items()
        },
        "prompts": {group: len(rows) for group, rows in prompts.items()},
        "results": results,
        "machine": machine(),
    }


def summarise(outs: Sequence[Output], plain: Sequence[Output]) -> dict:
    """What the cycles of some texts say, all of them weighing the same; and how many texts are not plain decoding's."""
    trace = Trace.of(outs)
    tokens = sum(len(out.tokens) for out in outs)
    return {
        "prompts": len(outs),
        "tokens": tokens,
        "passes": trace.target_passes,
        "tokens_per_pass": tokens / trace.target_passes,
        "acceptance": trace.acceptance_rate,
        "drafted_per_pass": trace.drafted_per_cycle,
        "differing": sum(one.tokens != other.tokens for one, other in zip(plain, outs, strict=True)),
    }


@torch.inference_mode()
def parting(target: Model, prompt: Sequence[int], plain: Sequence[int], other: Sequence[int]) -> dict:
    """Where two texts part, and how far apart the target's logits of the two tokens are there."""
    place = first_difference(plain, other)
    read = torch.tensor([[*prompt, *plain[:place]]], device=target.device)  # [1, T]
    logits = target.transformer(read, last_only=True).logits[0, -1].float()  # [V]
    return {"place": place, "gap": abs(float(logits[plain[place]] - logits[other[place]]))}


def stretched(prompts: Sequence[Sequence[int]], length: int, count: int) -> list[list[int]]:
    """Prompts of this length: real ones laid end to end, the last one whole. Where there are too few they repeat."""
    endless, made = cycle(prompts), []
    for _ in range(count):
        ids: list[int] = []
        while len(ids) < length:
            ids = [*next(endless), *ids]
        made.append(ids[-length:])
    return made


def by_length(target: Model, entrants: Mapping, prompts: Sequence[Sequence[int]], args) -> dict:
    """kind → length → drafter → what `measure` says of a group: of real prompts, and of random tokens."""
    V, n, groups = target.config.vocab_size, args.per_length, {}
    generator = torch.Generator().manual_seed(args.seed)
    for length in args.lengths:
        groups["real", length] = stretched(prompts, length, n)
        groups["random", length] = torch.randint(V, (n, length), generator=generator).tolist()
    rows = measure(target, entrants, groups, args.tokens, min(n, args.batch), args.seed)["results"]
    found: dict[str, dict] = {"real": {}, "random": {}}
    for kind, length in groups:
        found[kind][str(length)] = {name: row["groups"][kind, length] for name, row in rows.items()}
    return found


def along(target: Model, entrants: Mapping, prompts: Sequence[Sequence[int]], args) -> dict:
    """Drafter → what its cycles came to in each eighth of long outputs."""
    width, found = -(-args.long // 8), {}
    how = dict(temperature=args.temperature, seed=args.seed, ignore_eos=True)
    for name, (drafter, k) in entrants.items():
        parts = [Trace() for _ in range(0, args.long, width)]
        for out in speculate(target, list(prompts[: args.per_length]), drafter, k or DEEP, args.long, **how):
            for one in out.trace.cycles:
                parts[(one.committed - out.prompt_tokens) // width].cycles.append(one)
        found[name] = [
            {"from": i * width, "acceptance": part.acceptance_rate, "tokens_per_pass": part.tokens_per_cycle}
            for i, part in enumerate(parts)
        ]
    return found


# ---------------------------------------------------------------- the page


def expected_tokens(row: dict, k: int | None) -> float | None:
    """E[N] of the measured α, for chains that are nearly always k long; None for others: the formula is not theirs."""
    if k is None or not 0.9 * k <= row["drafted_per_pass"] <= k:
        return None
    return theory.expected_tokens(row["acceptance"], k)


def section(result: dict) -> Section:
    drafters, texts = result["results"], sum(result["prompts"].values())
    source = result.get("prompts_from", "builtin")
    by_group = [["prompts", *result["prompts"].values(), texts]]
    overall, notes = [], []
    for name, row in drafters.items():
        all_of_it, k = row["overall"], result["drafters"][name]["k"]
        tokens, predicted = all_of_it["tokens_per_pass"], expected_tokens(all_of_it, k)
        by_group.append([name, *(f"{one['tokens_per_pass']:.2f}" for one in (*row["groups"].values(), all_of_it))])
        found = [f"{all_of_it['drafted_per_pass']:.1f}", f"{all_of_it['acceptance']:.3f}", f"{tokens:.3f}"]
        compared = [shown(predicted, ".3f"), ratio(tokens, predicted), all_of_it["differing"]]
        overall.append([name, k or "its own", *found, *compared])
        if row["differences"]:
            gap = max(difference["gap"] for difference in row["differences"])
            notes.append(
                f"{all_of_it['differing']} of {texts} outputs by {name} differ from plain decoding's; where they "
                f"diverge, the target's two logits are up to {gap:.2g} apart."
            )
    best = max(drafters, key=lambda name: drafters[name]["overall"]["tokens_per_pass"])
    top = drafters[best]["overall"]
    left_out = {group: count for group, count in result.get("too_long", {}).items() if count}
    per_pass = lambda rows: [f"{rows[name]['tokens_per_pass']:.2f}" for name in drafters]  # noqa: E731
    lengths = [
        [f"{int(length):,} tokens, {kind}", *per_pass(result["lengths"][kind][length])]
        for length in result.get("lengths", {}).get("real", ())
        for kind in ("real", "random")
    ]
    places = [
        [f"from {part[0]['from']:,}", *per_pass(dict(zip(result["along"], part, strict=True)))]
        for part in zip(*result.get("along", {}).values(), strict=True)
    ]
    more = [Table([what, *drafters], rows) for what, rows in (("prompt", lengths), ("sampled outputs", places)) if rows]
    head = ["overall", "k", "drafted per pass", "α", "tokens per pass"]
    return Section(
        f"Tokens per forward pass, {result['target']}",
        f"{texts} {'built-in prompts' if source == 'builtin' else f'prompts of {source}'}, {result['new_tokens']} "
        f"tokens each, greedy, {result['dtype']}. These are counts, which depend on models and prompts but not on the "
        "machine, so they have no spread. Predicted is E[N] = 1 + α + … + α^k, for drafters that always draft k tokens "
        "in a row.",
        [
            Table(["tokens per pass", *result["prompts"], "overall"], by_group),
            Table([*head, "predicted", "measured / predicted", "outputs that differ"], overall),
            *more,
        ],
        Headline(
            f"tokens per pass, {best}", top["tokens_per_pass"], expected_tokens(top, result["drafters"][best]["k"])
        ),
        (notes or ["Every output equals that of plain decoding, token for token."])
        + ["A real prompt of a given length is several, laid end to end."] * bool(lengths)
        + without(result.get("skipped", {}))
        + [f"{count} prompts of {group} were too long for the model." for group, count in left_out.items()],
    )


# ---------------------------------------------------------------- the command


def add_arguments(parser) -> None:
    options.add_model(parser, "smollm2")
    names = f"of {', '.join(NAMES)}, perhaps with a draft length, such as ngram:8"
    default = f"(default: those of {', '.join(DEFAULT)} that are available)"
    parser.add_argument("--drafters", nargs="+", metavar="NAME[:k]", help=f"{names} {default}")
    heads = (
        "trained heads for the drafter that needs them, a folder or hub id (default: those that come with the model)"
    )
    parser.add_argument("--heads", metavar="NAME", help=heads)
    deep = f"draft tokens per pass of all but {', '.join(HEADS)}, which know their own depth"
    options.add(parser, "k", options.count, 4, deep)
    options.add(parser, "per-group", options.count, 40, "the first N prompts of each group")
    options.add(parser, "batch", options.count, 8, "prompts at once")
    options.add(
        parser,
        "lengths",
        options.count,
        (),
        "test prompts of these lengths, too, of real and of random tokens",
        nargs="*",
    )
    options.add(parser, "long", options.natural, 0, "tokens of long outputs, too")
    options.add(parser, "per-length", options.count, 4, "prompts of each length, and long outputs")
    options.add_temperature(parser, 0.7, "of the long outputs")
    dtypes, coarse = ("float32", "bfloat16"), "coarse numbers tie more often (default: %(default)s)"
    parser.add_argument("--dtype", choices=dtypes, default="float32", help=coarse)


def run(args) -> dict:
    wanted = {entrant: parse(entrant) for entrant in args.drafters or DEFAULT}
    if args.heads and sum(name in HEADED for name, _ in wanted.values()) != 1:
        raise ValueError(f"heads={args.heads!r}: say whose they are, by one of {', '.join(HEADED)} in --drafters")
    target = load(args.model, device=args.device, dtype=getattr(torch, args.dtype))
    if target.device.type == "cuda" and (args.lengths or args.long):  # thousands of tokens, one after the other
        target.accelerate()
    prompts, too_long = read_groups(args.prompts, target, args.per_group, args.tokens)

    def enter(entrant: str) -> tuple[Drafter, int | None]:
        name, k = wanted[entrant]
        return make(name, target, args.draft, args.heads), k or (None if name in HEADS else args.k)

    entrants, skipped = to_be_had(args.drafters, wanted, enter)
    room = target.config.max_length - args.tokens - DEEP
    if args.lengths and max(args.lengths) > room:
        raise ValueError(f"lengths={max(args.lengths)}: {target.name} takes at most {room} before --tokens and a draft")
    result = measure(target, entrants, prompts, args.tokens, args.batch, args.seed)
    texts = [ids for round in zip_longest(*prompts.values()) for ids in round if ids]  # every group in turn
    if args.lengths:
        result["lengths"] = by_length(target, entrants, texts, args)
    if args.long:
        result["along"] = along(target, entrants, texts, args)
    asked = {"prompts_from": Path(args.prompts).name, "per_group": args.per_group}
    return result | asked | {"too_long": too_long, "skipped": skipped}
