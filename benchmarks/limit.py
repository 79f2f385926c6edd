"""From eager to the limit: what each step of lesson 13 gains, kernel by kernel, against the read bandwidth.

Every step of ladder.py is timed on each model in turn with the others, then one token of it is profiled. Two sweeps
follow: one skinny product by its tiles, and attention over a long context by its splits. Run it on a quiet machine. On
a GPU the models are SmolLM2 and a random one of Llama-3-8B's shape; without one, micro and a toy, for which
TRITON_INTERPRET=1 in the environment has Triton act out the kernels.
"""

from __future__ import annotations

import gc
import textwrap
from dataclasses import asdict

import torch

from minispec.cli import options
from minispec.load.folder import default_dtype, usable_device
from minispec.measure import machine, place, read_bandwidth
from minispec_course.labs import ladder, pairs, tiles

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


def text(result: dict) -> str:
    """The tables for a terminal, 80 columns."""
    lines = textwrap.wrap(
        f"{result['dtype']} after {result['context']} tokens; medians of {result['repeat']} rounds (quartiles) on "
        f"{place(result['machine'])}; {result['bandwidth']['median'] / 1e9:,.0f} GB/s read",
        80,
    )
    for name, model in result["models"].items():
        about = f"{name} ({model['weights']} weights): {model['bytes_per_token'] / 1e6:,.1f} MB per token, so "
        about += f"{1e3 * model['predicted_seconds']:.3g} ms at best"
        if model["cycle"]:
            about += f"; {model['cycle']['tokens_per_cycle']:.2f} tokens per cycle of k = {model['cycle']['k']}"
        lines += ["", *textwrap.wrap(about, 80)]
        lines += [f"{'':<16}{'ms per token':>24}{'of bandwidth':>14}{'kernels':>12}{'launches':>12}"]
        for step, row in model["steps"].items():
            lines.append(
                f"{step:<16}{pairs.spread(row['seconds_per_token'], digits=3):>24}"
                f"{row['fraction_of_bandwidth']:>14.1%}{row['kernels_per_token']:>12.1f}"
                f"{row['launches_per_token']:>12.1f}"
            )
    product, splits = result["tiles"], result["splits"]
    lines += [
        "",
        f"one token through W {product['shape'][0]} × {product['shape'][1]}, GB/s (torch: "
        f"{product['torch']['bytes_per_second'] / 1e9:,.3g})",
    ]
    for row in product["results"]:
        lines.append(
            f"{row['rows']:>4} × {row['wide']:<4} tile, {row['stages']} stages, {row['programs']:>4} programs"
            f"{row['bytes_per_second'] / 1e9:>14,.3g}"
        )
    lines += [
        "",
        f"attention over {splits['context']} tokens, GB/s (torch: {splits['torch']['bytes_per_second'] / 1e9:,.3g})",
    ]
    for row in splits["results"]:
        lines.append(f"{row['splits']:>4} splits, {row['programs']:>4} programs{row['bytes_per_second'] / 1e9:>14,.3g}")
    if product["unavailable"]:
        lines += textwrap.wrap(f"without our kernels: {product['unavailable']}", 80)
    return "\n".join(lines)


def add_arguments(parser) -> None:
    parser.add_argument(
        "--models",
        nargs="+",
        choices=("smollm2", "micro", *pairs.SHAPES),
        metavar="MODEL",
        help="names or shapes (default: smollm2 8b; on a CPU micro toy)",
    )
    parser.add_argument("--context", type=options.count, metavar="N", help="tokens before (default: 1000; on a CPU 48)")
    parser.add_argument(
        "--epsilon", type=options.number, default=0.05, metavar="ε", help="damping (default: %(default)s)"
    )
    options.add_draft_length(parser, auto=False)
    options.add_repeat(parser, 7)
    options.add_device(parser, "cuda" if torch.cuda.is_available() else "cpu")
