"""How much of the memory for keys and values is wasted: paged blocks beside one contiguous run per request.

The experiment is minispec_course/labs/memory.py.
"""

from minispec import theory
from minispec.serving.blocks import BlockPool
from minispec_course.labs.memory import ContiguousPool, serve, workload

from ..cli import options
from .page import Headline, Section, Table, ratio, shown

WITHOUT_MODEL = True
ROWS = {
    "waste": ("reserved slots that are empty", ".1%"),
    "memory_holding_tokens": ("of all memory, holding tokens", ".1%"),
    "mean_running": ("requests at once, mean", ".1f"),
    "most_running": ("requests at once, at most", "d"),
    "steps": ("steps until all are served", ",d"),
    "preemptions": ("preemptions", ",d"),
    "tokens_recomputed": ("tokens computed again because of them", ",d"),
}


def run(args) -> dict:
    low, high = args.lengths
    if low > high:
        raise ValueError(f"lengths={low} {high}: give the least and then the greatest, LOW ≤ HIGH")
    requests, longest = workload(args.requests, low, high, args.seed), 2 * high
    return {
        "benchmark": "memory",
        "requests": len(requests),
        "mean_length": sum(map(sum, requests)) / len(requests),
        "num_blocks": args.blocks,
        "block_size": args.block_size,
        "max_length": longest,
        "lengths": [low, high],
        "seed": args.seed,
        "paged": serve(BlockPool(args.blocks, args.block_size, enable_prefix_caching=False), requests),
        "contiguous": serve(ContiguousPool(args.blocks, args.block_size, longest), requests),
    }


def predictions(result: dict) -> dict[tuple[str, str], float]:
    """Waste, and how many requests fit, from the workload: a request is as long as its prompt and half its answer."""
    work = workload(result["requests"], *result["lengths"], result["seed"])
    steps = sum(new for _, new in work)  # a long answer is met more often
    length = sum(new * (prompt + new / 2) for prompt, new in work) / steps
    slots = result["num_blocks"] * result["block_size"]
    return {
        ("paged", "waste"): theory.block_waste(length, result["block_size"]),
        ("contiguous", "waste"): 1 - round(length) / result["max_length"],
        ("contiguous", "most_running"): slots // result["max_length"],
    }


def section(result: dict) -> Section:
    predicted, rows, (low, high) = predictions(result), [], result["lengths"]
    for key, (name, form) in ROWS.items():
        row = [name]
        for kind in ("paged", "contiguous"):
            measured, guess = result[kind][key], predicted.get((kind, key))
            row += [shown(measured, form), shown(guess, form), ratio(measured, guess)]
        rows.append(row)
    compared = ["predicted", "measured / predicted"]
    return Section(
        "Memory for keys and values",
        f"{result['requests']} requests with prompts and answers of {low} to {high} tokens, in "
        f"{result['num_blocks']:,} blocks of {result['block_size']}; contiguous memory reserves "
        f"{result['max_length']:,} slots for each. The prediction uses only the lengths: if paged, about half a "
        "block per request is empty; if not, the unused rest of the reservation. Waste is per reserved slot.",
        [Table(["", "paged", *compared, "contiguous", *compared], rows)],
        Headline("reserved slots that are empty, paged", result["paged"]["waste"], predicted["paged", "waste"], ".2%"),
        ["These are counts of one simulated run, so no machine is involved and there is no spread."],
    )


def add_arguments(parser) -> None:
    options.add(parser, "requests", options.count, 256, "to serve")
    options.add(parser, "lengths", options.count, (100, 1024), "of prompts and outputs", ("LOW", "HIGH"), nargs=2)
    options.add(parser, "blocks", options.count, 2048, "in the pool")
    options.add(parser, "block-size", options.count, 16, "tokens per block")
