"""From eager to the limit: what each step of lesson 13 gains, kernel by kernel, against the read bandwidth.

Every step of ladder.py is timed on each model in turn with the others, then the kernels of one token are counted. Run
it on a quiet machine. On a GPU the models are SmolLM2 and a random one of Llama-3-8B's shape; without one, micro and a
toy.
"""

import gc
from dataclasses import asdict

import torch

from minispec.load.folder import default_dtype, load, usable_device
from minispec.load.model import Model
from minispec.measure import machine, read_bandwidth, where
from minispec_course.labs import ladder
from minispec_course.labs.ladder import EAGER, GRAPH, SPLIT

from ..cli import options
from .page import Headline, Section, Table, ratio, spread
from .prompts import read_texts
from .shapes import SHAPES, add_epsilon, prompt_of, random_pair

WITHOUT_MODEL = True
MODELS = {"cuda": ["smollm2", "8b"], "cpu": ["micro", "toy"]}
CONTEXT = {"cuda": 1000, "cpu": 48}


def subject(name: str, device: str, context: int, epsilon: float, seed: int) -> tuple[Model, Model, list[int], str]:
    """A target, its draft and a prompt of about `context` tokens; and whether its weights are random or trained."""
    if config := SHAPES.get(name):
        target, draft = random_pair(config, device, epsilon, seed)
        return target, draft, prompt_of(config, context, seed), "random"
    target, draft = (load(one, device=device) for one in (name, f"{name}-draft"))
    ids = target.encode("\n\n".join(text for _, text in read_texts("builtin", target)))
    return target, draft, (ids * -(-context // len(ids)))[:context], "trained"


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
        target, draft, prompt, weights = subject(name, args.device, context, args.epsilon, args.seed)
        climbed = ladder.climb(target, draft, prompt, bandwidth["median"], k=args.k, repeat=args.repeat)
        result["models"][name] = {"weights": weights} | climbed
        del target, draft
        gc.collect()
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
    if not result["recorded"]:
        notes.append(
            "Run without a GPU: nothing was captured and torch did the work of our kernels, so the steps do not "
            "differ. Only the form of the result means anything."
        )
    last, model = next(reversed(result["models"].items()))
    best, floor = model["steps"][SPLIT]["seconds_per_token"]["median"], model["predicted_seconds"]
    return Section(
        f"From eager to the limit on {where(result['machine'])}",
        f"One token after {result['context']} in {result['dtype']}, each step on top of the one before: "
        f"{EAGER}, the same kernels as a {GRAPH}, one kernel between two GEMMs, GEMMs that absorb the small "
        "operations, attention in splits, and a draft–verify cycle as one launch (per emitted token; it reads the "
        "weights once for several, so it may exceed 100%). Predicted is the bytes of one pass over the bandwidth. "
        "Kernels and launches are counted by torch's profiler.",
        tables,
        Headline(f"a plain token of {last}, ms", 1e3 * best, 1e3 * floor, ".3f"),
        notes,
    )


def add_arguments(parser) -> None:
    known, default = ("smollm2", "micro", *SHAPES), "names or shapes (default: smollm2 8b; on a CPU micro toy)"
    parser.add_argument("--models", nargs="+", choices=known, metavar="MODEL", help=default)
    options.add(parser, "context", options.count, help="tokens before (default: 1000; on a CPU 48)")
    add_epsilon(parser)
    options.add_draft_length(parser, auto=False)
    options.add_repeat(parser, 7)
    options.add_device(parser, "cuda" if torch.cuda.is_available() else "cpu")
