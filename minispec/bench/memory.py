"""How much of the memory for keys and values holds nothing: paged blocks beside one contiguous run per request.

No model is needed, only the scheduler and the two pools: requests of random lengths are served one token a step, as an
engine would, and every tenth step the pools are asked which of the slots they gave away hold a token. A contiguous
pool reserves the longest possible text for everybody, because nobody knows how long a text will become.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from tqdm import tqdm

from ..files import options
from ..serving.blocks import BlockPool, ContiguousPool, PoolStats
from ..serving.scheduler import Request, Result, Scheduler

WITHOUT_MODEL = True  # on the command line: no options about models and prompts
EVERY = 10  # steps between two looks at the pool: counting all its slots takes longer than a step


def workload(count: int = 256, low: int = 100, high: int = 1024, seed: int = 0) -> list[tuple[int, int]]:
    """(tokens of the prompt, tokens to write), both uniform from low to high."""
    random = Random(seed)
    return [(random.randint(low, high), random.randint(low, high)) for _ in range(count)]


def serve(pool: BlockPool, requests: Sequence[tuple[int, int]], max_num_seqs: int = 256, token_budget: int = 2048):
    """Serve them all, and say what the pool looked like meanwhile."""
    scheduler = Scheduler(pool, max_num_seqs, token_budget)
    for id, (prompt, new) in enumerate(requests):
        scheduler.add(Request(id, [0] * prompt, new))
    looks: list[PoolStats] = []
    running: list[int] = []
    read = preemptions = 0
    with tqdm(total=len(requests), desc=type(pool).__name__, leave=False, disable=None) as bar:  # on terminals only
        while scheduler.requests:
            step = scheduler.schedule()
            results = {row.request.id: Result([0]) if row.emits else Result() for row in step.rows}
            record = scheduler.update(step, results)
            if step.number % EVERY == 0:
                looks.append(pool.stats())
            running.append(record.running)
            read += sum(row.tokens for row in record.rows)
            preemptions += len(step.preempted)
            bar.update(len(record.finished))
    held, waste = sum(look.tokens_stored for look in looks), sum(look.waste for look in looks)
    return {
        "waste": waste / (held + waste),  # of the slots in use
        "memory_holding_tokens": held / (len(looks) * pool.num_blocks * pool.block_size),
        "mean_running": sum(running) / len(running),
        "most_running": max(running),
        "steps": len(running),
        "preemptions": preemptions,
        "tokens_read": read,
        "tokens_recomputed": read - sum(prompt + new - 1 for prompt, new in requests),
    }


def compare(requests: Sequence[tuple[int, int]], num_blocks: int = 2048, block_size: int = 16, max_length: int = 2048):
    """The benchmark: the same requests in the same memory, both ways."""
    longest = max(prompt + new for prompt, new in requests)
    if longest > max_length:
        raise ValueError(f"max_length={max_length}: the longest request has {longest} tokens, reserve at least as many")
    lengths = [prompt + new for prompt, new in requests]
    return {
        "benchmark": "memory",
        "requests": len(requests),
        "mean_length": sum(lengths) / len(lengths),
        "num_blocks": num_blocks,
        "block_size": block_size,
        "max_length": max_length,
        "paged": serve(BlockPool(num_blocks, block_size, prefix_sharing=False), requests),
        "contiguous": serve(ContiguousPool(num_blocks, block_size, max_length), requests),
    }


ROWS = {
    "waste": ("slots in use that hold nothing", "{:.1%}"),
    "memory_holding_tokens": ("of all memory, holding tokens", "{:.1%}"),
    "mean_running": ("requests at once, mean", "{:.1f}"),
    "most_running": ("requests at once, at most", "{}"),
    "steps": ("steps until all are served", "{:,}"),
    "preemptions": ("preemptions", "{:,}"),
    "tokens_recomputed": ("tokens read again because of them", "{:,}"),
}


def text(result: dict) -> str:
    """The table for a terminal."""
    lines = [
        f"{result['requests']} requests of {result['mean_length']:,.0f} tokens on average, in "
        f"{result['num_blocks']:,} blocks of {result['block_size']};",
        f"contiguous: {result['max_length']:,} slots reserved for each",
        "",
        f"{'':<36}{'paged':>12}{'contiguous':>14}",
    ]
    for key, (title, form) in ROWS.items():
        lines.append(f"{title:<36}{form.format(result['paged'][key]):>12}{form.format(result['contiguous'][key]):>14}")
    return "\n".join(lines)


def add_arguments(parser) -> None:
    parser.add_argument("--requests", type=options.count, default=256, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--lengths", type=options.count, nargs=2, default=(100, 1024), metavar=("LOW", "HIGH"),
                        help="of prompts and of outputs (default: 100 1024)")  # fmt: skip
    parser.add_argument(
        "--blocks", type=options.count, default=2048, metavar="N", help="in the pool (default: %(default)s)"
    )
    parser.add_argument(
        "--block-size", type=options.count, default=16, metavar="N", help="tokens a block (default: %(default)s)"
    )


def run(args) -> dict:
    low, high = args.lengths
    if low > high:
        raise ValueError(f"lengths={low} {high}: give the least and then the greatest, LOW ≤ HIGH")
    requests = workload(args.requests, low, high, args.seed)
    return compare(requests, args.blocks, args.block_size, 2 * high) | {"lengths": [low, high], "seed": args.seed}
