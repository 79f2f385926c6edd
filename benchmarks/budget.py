"""One budget for all drafts against a fixed draft length: tokens per second of an engine by batch size.

Requests alternate between text that repeats itself and text that does not, so that their acceptance differs. Plain
decoding, every fixed k with slots for all, and the competition (Engine(allocation="survival")) with each draft budget
run one after the other in every round; the rates are medians over rounds. Needs a quiet machine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict

import torch
from tqdm import tqdm

from minispec.cli import options
from minispec.drafters.by_name import by_name
from minispec.load.folder import load
from minispec.load.handle import Model
from minispec.measure import Timing, machine, place
from minispec.serving.engine import Engine
from minispec_course.labs.prompts import encode

BLOCK = 16  # tokens
TEXTS = (
    "Repeat this list until you are told to stop: apple, banana, cherry, apple, banana, cherry, apple, banana,",
    "Describe something that has never been described before, in words that surprise:",
)


def serve(engine: Engine, prompts: Sequence[Sequence[int]], tokens: int, temperature: float, seed: int) -> dict:
    """All requests at once, from the first step to the last."""
    before = dict(engine.metrics()["totals"])
    for i, prompt in enumerate(prompts):
        engine.add(prompt, tokens, temperature=temperature, seed=seed + i, ignore_eos=True)
    start = time.perf_counter()
    engine.run()
    seconds = time.perf_counter() - start
    after = engine.metrics()["totals"]
    drafted, accepted = (after[name] - before[name] for name in ("drafted", "accepted"))
    return {"rate": len(prompts) * tokens / seconds, "drafted": drafted, "accepted": accepted}


def measure(
    target: Model,
    drafter,
    sizes: Sequence[int],
    ks: Sequence[int],
    budgets: Sequence[int],
    new_tokens: int = 64,
    temperature: float = 0.0,
    repeat: int = 3,
    seed: int = 0,
) -> dict:
    """result["results"]: for each batch size, tokens per second and draft tokens of every way."""
    texts, k = [encode(target, text) for text in TEXTS], max(ks)
    rows = []
    longest = max(map(len, texts)) + new_tokens + k + 1
    for size in tqdm(sizes, leave=False, disable=None):
        # All ways live at once, so none may take half of the memory that is free.
        shape = dict(
            max_num_seqs=size,
            max_num_batched_tokens=max(512, size * (k + 1)),
            num_blocks=size * -(-longest // BLOCK),
            block_size=BLOCK,
        )
        ways = {"off": Engine(target, **shape)}
        ways |= {f"k={n}": Engine(target, drafter, k=n, draft_budget=size * n, **shape) for n in ks}
        survival = dict(k=k, allocation="survival")
        ways |= {f"budget {n}": Engine(target, drafter, draft_budget=n, **survival, **shape) for n in budgets}
        found: dict[str, list[dict]] = {name: [] for name in ways}
        prompts = [texts[i % len(texts)] for i in range(size)]
        for turn in range(repeat + 1):
            for name, engine in ways.items():
                lap = serve(engine, prompts, new_tokens, temperature, seed + turn * size)
                if turn:  # the first round only warms up
                    found[name].append(lap)
        row = {}
        for name, laps in found.items():
            drafted, accepted = (sum(lap[part] for lap in laps) for part in ("drafted", "accepted"))
            row[name] = {
                "tokens_per_second": asdict(Timing.of([lap["rate"] for lap in laps])),
                "drafted": drafted,
                "accepted": accepted,
            }
            ways[name].shutdown()
        rows.append({"batch": size, "ways": row})
    return {
        "benchmark": "budget",
        "target": target.label,
        "drafter": repr(drafter),
        "device": str(target.device),
        "dtype": str(target.dtype).removeprefix("torch."),
        "new_tokens": new_tokens,
        "temperature": temperature,
        "results": rows,
        "machine": machine(),
    }


def text(result: dict) -> str:
    names = list(result["results"][0]["ways"])
    lines = [
        f"{result['target']}, {result['drafter']}, {result['dtype']} on {result['device']}, {place(result['machine'])}",
        "tokens per second, over plain decoding",
        "",
        f"{'batch':>6}" + "".join(f"{name:>12}" for name in names),
    ]
    for row in result["results"]:
        plain = row["ways"]["off"]["tokens_per_second"]["median"]
        rates = [row["ways"][name]["tokens_per_second"]["median"] / plain for name in names]
        lines.append(f"{row['batch']:>6}" + "".join(f"{rate:>12.2f}" for rate in rates))
    return "\n".join(lines)


def add_arguments(parser) -> None:
    options.add_model(parser, "smollm2")
    for name, default in (("sizes", [1, 2, 4, 8, 16, 32, 64, 128]), ("k", [1, 2, 4]), ("budgets", [16, 32, 64, 128])):
        parser.add_argument(
            f"--{name}",
            type=options.count,
            nargs="+",
            default=default,
            metavar="N",
            help=f"(default: {' '.join(map(str, default))})",
        )
    parser.add_argument(
        "--temperature", type=options.temperature, default=0.0, metavar="T", help="(default: %(default)s)"
    )
    parser.add_argument("--repeat", type=options.count, default=3, metavar="N", help="rounds (default: %(default)s)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="(default: %(default)s)")


def run(args) -> dict:
    target = load(args.model, device=args.device, dtype=getattr(torch, args.dtype))
    drafter = by_name("model", target, args.draft)
    return measure(
        target,
        drafter,
        sorted(set(args.sizes)),
        args.k,
        args.budgets,
        args.tokens,
        args.temperature,
        args.repeat,
        args.seed,
    )
