"""From eager to the limit: what each step of lesson 13 gains, kernel by kernel, against the read bandwidth.

Every step of ladder.py is timed on each model in turn with the others, then one token of it is profiled. Two sweeps
follow: one skinny product by its tiles, and attention over a long context by its splits. Run it on a quiet machine. On
a GPU the models are SmolLM2 and a random one of Llama-3-8B's shape; without one, micro and a toy, for which
TRITON_INTERPRET=1 in the environment has Triton act out the kernels.
"""

from __future__ import annotations

import gc
from dataclasses import asdict

import torch

from minispec.cli import options
from minispec.load.folder import default_dtype, usable_device
from minispec.measure import machine, read_bandwidth, where
from minispec_course.labs import ladder, tiles
from minispec_course.labs.ladder import EAGER, GRAPH, SPLIT

from .page import NONE, Headline, Section, Table, ratio, spread
from .shapes import SHAPES, add_epsilon

WITHOUT_MODEL = True
MODELS = {"cuda": ["smollm2", "8b"], "cpu": ["micro", "toy"]}
CONTEXT = {"cuda": 1000, "cpu": 48}
PRODUCT = {"cuda": (4096, 4096), "cpu": (32, 128)}  # W [N, K] of the sweep over tiles
ATTENTION = {"cuda": ((32, 8, 128), 8192), "cpu": ((2, 1, 16), 128)}  # of the sweep over splits: heads, context


def run(args) -> dict:
    device, dtype = usable_device(args.device), default_dtype(torch.device(args.device))
    kind = "cuda" if torch.device(args.device).type == "cuda" else "cpu"
    names, context = args.models or MODELS[kind], args.context or CONTEXT[kind]
    bandwidth = asdict(read_bandwidth(device))
    result = {
        "benchmark": "limit",
        "device": str(args.device),
        "dtype": str(dtype).removeprefix("torch."),
        "models_asked": names,
        "context": context,
        "k": args.k,
        "epsilon": args.epsilon,
        "seed": args.seed,
        "repeat": args.repeat,
        "bandwidth": bandwidth,
        "machine": machine(),
        "recorded": kind == "cuda",
        "models": {},
    }
    for name in names:
        target, draft, prompt, weights = ladder.subject(name, args.device, context, args.epsilon, args.seed)
        climbed = ladder.climb(target, draft, prompt, bandwidth["median"], k=args.k, repeat=args.repeat)
        result["models"][name] = {"weights": weights} | climbed
        del target, draft
        gc.collect()
    result["tiles"] = tiles.sweep_product(device, dtype, PRODUCT[kind], args.repeat)
    result["splits"] = tiles.sweep_splits(device, dtype, *ATTENTION[kind], args.repeat)
    return result


def section(result: dict) -> Section:
    tables, notes = [], []
    for name, model in result["models"].items():
        floor, rows = model["predicted_seconds"], []
        for step, row in model["steps"].items():
            seconds = row["seconds_per_token"]
            bound = [f"{1e3 * floor:.3f}", ratio(seconds["median"], floor), f"{row['fraction_of_bandwidth']:.1%}"]
            counts = [f"{row[key]:.1f}" for key in ("kernels_per_token", "launches_per_token")]
            rows.append([step, spread(seconds, digits=3), *bound, *counts])
        head = ["ms per token", "predicted", "measured / predicted", "of the bandwidth"]
        head += ["kernels per token", "launches per token"]
        tables.append(Table([f"{name}, {model['weights']} weights", *head], rows))
        if cycle := model["cycle"]:
            notes.append(f"{name}: {cycle['tokens_per_cycle']:.2f} tokens per cycle, k = {cycle['k']}.")
    product, splits = result["tiles"], result["splits"]
    if product["results"]:
        found = [(f"{row['rows']} × {row['wide']}", row["stages"], row["programs"], row) for row in product["results"]]
        rows = [[*cut, rate(row)] for *cut, row in (*found, ("torch's own", NONE, NONE, product["torch"]))]
        shape = " × ".join(map(str, product["shape"]))
        tables.append(Table([f"W {shape}, tile", "stages", "programs", "GB/s"], rows))
    if splits["results"]:
        found = [(row["splits"], row["programs"], row) for row in splits["results"]]
        rows = [[*cut, rate(row)] for *cut, row in (*found, ("torch's own", NONE, splits["torch"]))]
        tables.append(Table([f"attention over {splits['context']} tokens, splits", "programs", "GB/s"], rows))
    if not result["recorded"]:
        notes.append(
            "Made without a GPU: nothing was recorded as a graph and torch did the work of our kernels, so the steps "
            "do not differ. It shows the form of the result and no more."
        )
    if product["interpreted"]:
        notes.append("Triton's interpreter ran the tiles and splits: their GB/s say nothing about a GPU.")
    if product["unavailable"]:
        notes.append(f"without our kernels: {product['unavailable']}")
    last, model = next(reversed(result["models"].items()))
    best, floor = model["steps"][SPLIT]["seconds_per_token"]["median"], model["predicted_seconds"]
    return Section(
        f"From eager to the limit on {where(result['machine'])}",
        f"One token after {result['context']} in {result['dtype']}, each step with what the one before has won: "
        f"{EAGER}, the same kernels as a {GRAPH}, one kernel between two GEMMs, GEMMs that take the small steps "
        "along, attention in splits, and a draft–verify cycle as one launch (per token that it emits; it reads the "
        "weights once for several, so it may pass 100%). Predicted is the bytes of one pass over the bandwidth. "
        "Kernels and launches are counted by torch's profiler.",
        tables,
        Headline(f"a plain token of {last}, ms", 1e3 * best, 1e3 * floor, ".3f"),
        notes,
    )


def rate(row: dict) -> str:
    return f"{row['bytes_per_second'] / 1e9:,.0f}"


def add_arguments(parser) -> None:
    known, default = ("smollm2", "micro", *SHAPES), "names or shapes (default: smollm2 8b; on a CPU micro toy)"
    parser.add_argument("--models", nargs="+", choices=known, metavar="MODEL", help=default)
    options.add(parser, "context", options.count, help="tokens before (default: 1000; on a CPU 48)")
    add_epsilon(parser)
    options.add_draft_length(parser, auto=False)
    options.add_repeat(parser, 7)
    options.add_device(parser, "cuda" if torch.cuda.is_available() else "cpu")
