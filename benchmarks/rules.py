"""Two lossless rules for the same drafts: token by token, and block verification (Sun et al., 2025, arXiv:2403.10444).

Outputs are sampled, so tokens per pass vary from run to run, and the difference between the rules is small. So there
are two figures. *Measured*: tokens emitted / verify passes, with each rule in its own run. *Expected*: for every draft
of both runs, how many of its tokens each rule accepts on average over its coins, from p and q of the draft tokens. That
compares the rules on the same drafts, so most of the noise is gone; its standard error is over prompts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import torch
from tqdm import tqdm

from minispec.cli import options
from minispec.drafters import Drafter
from minispec.drafters.by_name import by_name
from minispec.generate import Output
from minispec.load.folder import load
from minispec.load.handle import Model
from minispec.measure import machine, place
from minispec.speculate import speculate
from minispec.trace import Cycle, Trace
from minispec.verify import RULES

from .acceptance import by_length, joined, read_groups


def expected_accepted(cycle: Cycle) -> dict[str, float]:
    """How many of a draft's tokens each rule accepts, on average over its random numbers: Σ of the probabilities to
    keep a prefix of 1, 2, … tokens."""
    ratios = [p / q for p, q in zip(cycle.p, cycle.q, strict=True)]
    token = accumulate((min(1.0, ratio) for ratio in ratios), lambda kept, passes: kept * passes)
    block = list(accumulate(ratios, lambda w, ratio: min(1.0, w * ratio), initial=1.0))[1:]
    return {"token": sum(token), "block": sum(block)}


def gain(outs: Sequence[Output]) -> dict:
    """Expected tokens per cycle by either rule over the drafts of these outputs, and their ratio with its standard
    error."""
    drafts = [[expected_accepted(cycle) for cycle in out.trace.cycles] for out in outs]
    rows = [[sum(1 + cycle[rule] for cycle in cycles) for rule in RULES] for cycles in drafts]
    token, block = map(sum, zip(*rows, strict=True))
    cycles, ratio, n = sum(map(len, drafts)), block / token, len(rows)
    spread = sum((b - ratio * t) ** 2 for t, b in rows)  # of a ratio of sums, by its linearisation
    error = math.sqrt(spread * n / (n - 1)) / token if n > 1 else None
    return {"cycles": cycles, "token": token / cycles, "block": block / cycles, "ratio": ratio, "error": error}


def measure(
    target: Model,
    drafter: Drafter,
    prompts: Sequence[Sequence[int]],
    ks: Sequence[int] = (4,),
    new_tokens: int = 64,
    temperature: float = 1.0,
    batch: int = 8,
    seed: int = 0,
) -> dict:
    """result["results"] has one entry for each k: measured tokens per pass of either rule, and `gain`."""
    results = []
    with tqdm(total=len(ks) * len(RULES) * len(by_length(prompts, batch)), leave=False, disable=None) as bar:
        for k in ks:
            row, everything = {"k": k}, []
            for rule in RULES:
                outs: list[Output] = []
                for helping in by_length(prompts, batch):
                    some = [prompts[i] for i in helping]
                    outs += speculate(
                        target, some, drafter, k, new_tokens, rule=rule, temperature=temperature, seed=seed
                    )
                    bar.update()
                trace, tokens = Trace.of(outs), sum(len(out.tokens) for out in outs)
                row[rule] = {
                    "tokens": tokens,
                    "passes": trace.target_passes,
                    "tokens_per_pass": tokens / trace.target_passes,
                    "acceptance": trace.acceptance_rate,
                }
                everything += outs
            results.append(row | {"expected": gain(everything)})
    return {
        "benchmark": "rules",
        "target": Path(target.name).name or target.name,
        "drafter": repr(drafter),
        "dtype": str(target.dtype).removeprefix("torch."),
        "device": str(target.device),
        "new_tokens": new_tokens,
        "temperature": temperature,
        "batch": batch,
        "seed": seed,
        "prompts": len(prompts),
        "results": results,
        "machine": machine(),
    }


def text(result: dict) -> str:
    """The table for a terminal, 80 columns: a line for each draft length."""
    lines = [
        f"{result['target']}, {result['drafter']}, T = {result['temperature']:g}, {result['prompts']} prompts of "
        f"{result['new_tokens']} tokens",
        f"{result['dtype']} on {result['device']}, {place(result['machine'])}",
        "",
        f"{'':>4}{'tokens per pass':>20}{'expected, same drafts':>27}",
        f"{'k':>4}{'token':>10}{'block':>10}{'token':>12}{'block':>10}{'ratio':>9}",
    ]
    for row in result["results"]:
        measured, same = [row[rule]["tokens_per_pass"] for rule in RULES], row["expected"]
        error = f" ± {same['error']:.4f}" if same["error"] is not None else ""
        lines.append(
            f"{row['k']:>4}{measured[0]:>10.3f}{measured[1]:>10.3f}{same['token']:>12.3f}{same['block']:>10.3f}"
            f"{same['ratio']:>9.4f}{error}"
        )
    return "\n".join(lines)


def add_arguments(parser) -> None:
    options.add_model(parser, "smollm2")
    parser.add_argument(
        "--k", type=options.count, nargs="+", default=[4], metavar="N", help="draft lengths (default: 4)"
    )
    parser.add_argument(
        "--temperature", type=options.temperature, default=1.0, metavar="T", help="(default: %(default)s)"
    )
    parser.add_argument(
        "--per-group",
        type=options.count,
        default=40,
        metavar="N",
        help="the first N prompts of each group (default: %(default)s)",
    )
    parser.add_argument(
        "--batch", type=options.count, default=8, metavar="N", help="prompts at once (default: %(default)s)"
    )


def run(args) -> dict:
    target = load(args.model, device=args.device, dtype=torch.float32)
    groups, too_long = read_groups(args.prompts, target, args.per_group, args.tokens)
    drafter = by_name("model", target, args.draft)
    prompts = joined(groups)
    result = measure(target, drafter, prompts, args.k, args.tokens, args.temperature, args.batch, args.seed)
    return result | {
        "prompts_from": Path(args.prompts).name,
        "per_group": args.per_group,
        "too_long": sum(too_long.values()),
    }
