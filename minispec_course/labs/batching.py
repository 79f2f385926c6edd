"""Continuous against static batching: the same requests, the same engine, and when a place in the batch is filled.

Most answers are short and a few are very long (log-normal, σ = 1.3), and every request gets exactly its length. Ways:

    padded        `generate` on a list, batch after batch: a finished sequence stays until the longest is done
    static        the engine, but no request joins a batch until its last one has ended
    continuous    the engine as it is: a request that ends makes room for the next at once

and with a drafter a fourth: continuous with speculation. Each round runs all of them, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from random import Random
from statistics import median

from tqdm import tqdm

from minispec.drafters import Drafter
from minispec.drafters.by_name import name_of
from minispec.generate import generate
from minispec.load.handle import Model
from minispec.measure import Timing, interleaved_times, machine, place
from minispec.serving.engine import Engine

PADDED, STATIC, CONTINUOUS, SPECULATIVE = "padded", "static", "continuous", "speculative"
Work = Sequence[tuple[Sequence[int], int]]  # prompts, and how many tokens to write after each


def workload(prompts: Sequence[Sequence[int]], count: int, longest: int, seed: int = 0) -> list:
    """`count` requests: the prompts in turn, and lengths of which half are below an eighth of `longest`."""
    random = Random(seed)
    lengths = [min(longest, 1 + int(longest / 8 * random.lognormvariate(0, 1.3))) for _ in range(count)]
    return [(prompts[i % len(prompts)], length) for i, length in enumerate(lengths)]


def endless(target: Model) -> Model:
    """The same model without end tokens: how long an output becomes is then ours to say, and equal on every machine.
    Its passes are captured where the target's are."""
    same = Model(target.name, target.transformer, target.tokenizer, (), target.chat_template)
    if target.backend:
        same.accelerate()
    return same


def padded(target: Model, work: Work, batch: int) -> dict:
    texts, steps = [], 0
    for first in range(0, len(work), batch):
        some = work[first : first + batch]
        longest = max(length for _, length in some)
        outs = generate(target, [prompt for prompt, _ in some], longest)
        texts += [out.tokens[:length] for out, (_, length) in zip(outs, some, strict=True)]
        steps += longest
    return {"texts": texts, "steps": steps}


def served(engine: Engine, work: Work) -> dict:
    """All requests by an engine that has served them before: on a GPU its passes are then captured. Its metrics keep
    as many requests as these are."""
    before = engine.metrics()["totals"]
    ids = [engine.add(prompt, length) for prompt, length in work]
    outs, metrics = engine.run(), engine.metrics()
    totals, requests = metrics["totals"], metrics["requests"]
    per_token = [r["time_per_output_token"] for r in requests if r["time_per_output_token"] is not None]
    return {
        "texts": [outs[id].tokens for id in ids],
        "steps": totals["steps"] - before["steps"],
        "time_to_first_token": median(r["time_to_first_token"] for r in requests),
        "time_per_output_token": median(per_token) if per_token else None,
    }


def compare(
    target: Model,
    work: Work,
    batch: int = 8,
    num_blocks: int = 512,
    repeat: int = 3,
    drafter: Drafter | None = None,
    k: int = 4,
) -> dict:
    """The benchmark. Ratios are those of single rounds, both runs moments apart."""
    target = endless(target)
    ways: dict[str, Callable[[], dict]] = {PADDED: partial(padded, target, work, batch)}
    options = dict(max_num_seqs=batch, num_blocks=num_blocks, enable_prefix_caching=False, history=len(work))
    for policy in (STATIC, CONTINUOUS):
        ways[policy] = partial(served, Engine(target, policy=policy, **options), work)
    if drafter is not None:
        ways[SPECULATIVE] = partial(served, Engine(target, drafter, k=k, **options), work)
    runs: dict[str, list[dict]] = {name: [] for name in ways}
    seconds: dict[str, list[float]] = {}
    with tqdm(total=len(ways) * (repeat + 1), leave=False, disable=None) as bar:  # on terminals only
        for turn in range(repeat + 1):
            calls = {name: lambda name=name: runs[name].append(ways[name]()) for name in ways}
            taken = interleaved_times(calls, 1, 0, target.device, reset=bar.update)
            if turn:  # the first round only warms up
                for name, timing in taken.items():
                    seconds.setdefault(name, []).append(timing.median)
    tokens = sum(length for _, length in work)
    results = {}
    for name, laps in runs.items():
        last = laps[-1]
        results[name] = {
            **{key: value for key, value in last.items() if key != "texts"},
            "tokens_per_second": asdict(Timing.of(seconds[name]).rate(tokens)),
            "over_static": asdict(Timing.of([b / a for a, b in zip(seconds[name], seconds[STATIC], strict=True)])),
            "same_texts": sum(a == b for a, b in zip(last["texts"], runs[STATIC][-1]["texts"], strict=True)),
        }
    return {
        "benchmark": "batching",
        "target": Path(target.name).name or target.name,
        "dtype": str(target.dtype).removeprefix("torch."),
        "requests": len(work),
        "tokens": tokens,
        "longest": max(length for _, length in work),
        "batch": batch,
        "num_blocks": num_blocks,
        "drafter": None if drafter is None else name_of(drafter),
        "k": None if drafter is None else k,
        "repeat": repeat,
        "results": results,
        "machine": machine(),
    }


def text(result: dict) -> str:
    """What lesson 04 shows of it: rates, steps, and how long a request waits for its first token and for each next."""
    lines = [f"{'':<13}{'tokens/s':>10}{'× static':>10}{'steps':>8}{'first token':>14}{'each next':>12}"]
    for name, row in result["results"].items():
        rates = f"{row['tokens_per_second']['median']:>10.0f}{row['over_static']['median']:>10.2f}{row['steps']:>8}"
        waits = [row.get(key) for key in ("time_to_first_token", "time_per_output_token")]
        first, each = ("–" if wait is None else f"{1000 * wait:.0f} ms" for wait in waits)
        lines.append(f"{name:<13}{rates}{first:>14}{each:>12}")
    return "\n".join([*lines, f"medians of {result['repeat']} rounds on {place(result['machine'])}"])
