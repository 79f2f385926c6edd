"""Train EAGLE-3.1, DFlash and Medusa in their published forms, write them as others store them, measure those files.

One command for a GPU: each part resumes where it was interrupted, and a part that is done is not done again. What is
measured are the folders that engines read, through the readers of published heads: tokens per forward pass of the
target, greedily and at temperature 1, trees of 60 nodes. The facts go to facts.json and to the terminal.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from benchmarks.acceptance import BROAD, DEEP, NODES, read_groups
from minispec.cli import options
from minispec.drafters import DFlash, Drafter, Eagle, Medusa
from minispec.drafters.dflash import load_head
from minispec.drafters.eagle import EagleHead
from minispec.drafters.medusa import MedusaHeads
from minispec.load.handle import Model
from minispec.load.heads_dflash import write_dflash
from minispec.load.heads_eagle import write_eagle
from minispec.load.heads_medusa import write_medusa
from minispec.speculate import speculate

from . import dflash, eagle, medusa

RECIPES = {  # what `python -m recipes …` is given; the shapes are those of the heads that ship for smollm2
    "eagle": (eagle, "--form eagle3.1 --layers 2 --mlp 1152 --steps 6000 --keep --keep-bits 8"),
    "dflash": (dflash, "--public --mlp 1152 --every 4 --steps 8000 --keep --keep-bits 8 --bits 7"),
    "medusa": (medusa, "--own-head each --head-vocab 4096 --steps 4000"),
}


def add_arguments(parser) -> None:
    parser.add_argument("--corpus", type=Path, nargs="+", required=True, help="folders of `python -m recipes corpus`")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--steps", type=options.count, help="of each, instead of what its recipe says")
    parser.add_argument("--mlp", type=options.count, help="neurons of EAGLE's and DFlash's layers, likewise")
    parser.add_argument("--batch-tokens", type=options.count, default=20_000)
    parser.add_argument("--prompts", default="builtin", metavar="FILE", help="to measure on (default: %(default)s)")
    parser.add_argument("--per-group", type=options.count, default=40, metavar="N", help="(default: %(default)s)")
    options.add_tokens(parser, 64, "per prompt, when it is measured")


def run(args, target: Model) -> None:
    args.out.mkdir(parents=True, exist_ok=True)
    prompts, _ = read_groups(args.prompts, target, args.per_group, args.tokens)
    rows = [row for group in prompts.values() for row in group]
    facts = {"target": target.name, "dtype": str(target.dtype), "prompts": len(rows), "new_tokens": args.tokens}
    for name in args.only:
        begun = time.perf_counter()
        if not (args.out / name / "model" / "config.json").is_file():
            module, _ = RECIPES[name]
            module.run(given(name, args), target)
        seconds = time.perf_counter() - begun
        folder = written(name, target, args.out / name / "model", args.out / name / "published")
        facts[name] = {"seconds": round(seconds, 1)} | measured(target, drafter_of(name, target, folder), rows, args)
        print(f"{name}: {json.dumps(facts[name])}", flush=True)
        (args.out / "facts.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def given(name: str, args) -> argparse.Namespace:
    """The options of one part, as its own command would parse them."""
    module, recipe = RECIPES[name]
    parser = argparse.ArgumentParser(prog=f"python -m recipes {name}")
    options.add_seed(parser)
    module.add_arguments(parser)
    if name == "dflash":
        parser.add_argument("--bits", type=int, default=8)
    words = recipe.split()
    words += ["--steps", str(args.steps)] if args.steps else []
    words += ["--mlp", str(args.mlp)] if args.mlp and "--mlp" in words else []
    words += [
        "--batch-tokens",
        str(args.batch_tokens),
        "--corpus",
        *map(str, args.corpus),
        "--out",
        str(args.out / name),
        "--seed",
        str(args.seed),
    ]
    return parser.parse_args(words)


def written(name: str, target: Model, stored: Path, folder: Path) -> Path:
    """What was trained, as a published folder."""
    if name == "eagle":
        return write_eagle(EagleHead.load(target, stored), target, folder)
    if name == "dflash":
        return write_dflash(load_head(target, stored), target, folder)
    heads = MedusaHeads.load(target, stored)
    # Rows of some tokens have no public form, so the published folder is written if all tokens have some.
    return stored if heads.head_ids is not None else write_medusa(heads, target, folder)


def drafter_of(name: str, target: Model, folder: Path) -> Drafter:
    kind = {"eagle": Eagle, "dflash": DFlash, "medusa": Medusa}[name]
    return kind(target, folder, nodes=NODES, **({"width": BROAD} if name == "eagle" else {}))


@torch.inference_mode()
def measured(target: Model, drafter: Drafter, rows: list[list[int]], args) -> dict:
    """Tokens per forward pass, as `bench acceptance` counts them, greedily and at temperature 1."""
    found = {}
    for key, temperature in (("greedy", 0.0), ("temperature 1", 1.0)):
        outs = speculate(target, rows, drafter, DEEP, args.tokens, temperature=temperature, seed=args.seed)
        passes = sum(out.trace.target_passes for out in outs)
        found[key] = round(sum(len(out.tokens) for out in outs) / passes, 3)
    return found
