"""How fast an engine with each drafter is, beside one without in the same process: tables, profiles and a JSON file.

    PYTHONPATH=. python3 tests/gpu/bars_checks.py smollm2 bars.json                # every drafter at 1, 16 and 64
    PYTHONPATH=. python3 tests/gpu/bars_checks.py smollm2 bars.json eagle model    # these alone
    PYTHONPATH=. python3 tests/gpu/bars_checks.py 8b bars.json                     # a random pair at 1, 8 … 128
    PYTHONPATH=. python3 tests/gpu/bars_checks.py micro bars.json                  # on a CPU, at 1, 4 and 16

Rounds alternate, and each has other prompts, so that one text's acceptance decides nothing. *Steady*: steps in which
all requests decode; *whole*: from the first prompt to the last token of all. Greedy, end tokens ignored. A ratio is the
median of those of single rounds. *Pause*: the longest step in which no prompt was processed.
"""

import json
import sys
import time
from pathlib import Path
from statistics import median

import torch
from torch.profiler import ProfilerActivity, profile

import minispec as ms
from minispec.drafters import by_name
from minispec.measure import machine
from minispec_course.labs.pairs import SHAPES, STORIES, prompt_of, random_pair

ROUNDS, TOP, PROFILED = 5, 12, 40
NAMES = "eagle model ngram medusa dflash".split()
SETS = {  # batches, new tokens, tokens per step, blocks per request, what is profiled
    "smollm2": ((1, 16, 64), 128, 1024, 16, {("eagle", 16), ("model", 16), ("medusa", 64), ("ngram", 64)}),
    "8b": ((1, 8, 32, 64, 128), 64, 2048, 40, {("model", 1), ("model", 8)}),
    "micro": ((1, 4, 16), 256, 512, 24, set()),
    "toy": ((1, 4), 32, 512, 40, {("model", 4)}),
}


def prompts(target: ms.Model, count: int, seed: int) -> list[list[int]]:
    if target.tokenizer is None:
        return [prompt_of(target.config, 500, 1000 * seed + i) for i in range(count)]
    texts = [text for some in STORIES.values() for text in some]
    return [target.encode(f"{texts[(i + seed) % len(texts)]} {i // len(texts) or ''}".strip()) for i in range(count)]


def serve(engine: ms.Engine, some: list[list[int]], new: int) -> dict:
    """All of them at once: tokens per second, steady and whole, the longest pause, and how drafts ended."""
    for prompt in some:
        engine.add(prompt, new, ignore_eos=True)
    steady, pause, began = [], 0.0, time.perf_counter()
    while engine.sequences:
        start = time.perf_counter()
        step = engine.step()
        seconds, decodes = time.perf_counter() - start, all(row.phase != "prefill" for row in step.rows)
        pause = max(pause, seconds * decodes)
        if decodes and len(step.rows) == len(some):
            steady.append((step.emitted, seconds, step.drafted > 0))
    whole = time.perf_counter() - began
    outs = engine.take().values()
    assert all(len(out.tokens) == new for out in outs), [out.error for out in outs]
    tokens, seconds, drafting = (sum(column) / len(column) for column in zip(*steady[1:], strict=True))
    figures = dict(steady=tokens / seconds, whole=len(some) * new / whole, pause=pause)
    return figures | dict(per_pass=tokens / len(some), step=seconds, drafting=drafting)


def kernels(engine: ms.Engine, some: list[list[int]], new: int) -> list[tuple[str, float, float]]:
    """Of steady steps: each kernel's name, its milliseconds a step, and how often it is launched in one."""
    for prompt in some:
        engine.add(prompt, new, ignore_eos=True)
    for _ in range(4):
        engine.step()
    with profile(activities=[ProfilerActivity.CUDA] if torch.cuda.is_available() else None) as what:
        steps = 0
        while steps < PROFILED and len(engine.sequences) == len(some):
            engine.step()
            steps += 1
    for id in [*engine.sequences]:
        engine.abort(id)
    engine.take()
    own = "self_device_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    found = [(e.key[:100], getattr(e, own) / 1e3 / steps, e.count / steps) for e in what.key_averages()]
    found.sort(key=lambda kernel: -kernel[1])
    return [("all", *map(sum, list(zip(*found, strict=True))[1:])), *found[:TOP]]


def main(name: str, path: str, names: list[str]) -> None:
    cuda, (batches, new, budget, blocks, profiled) = torch.cuda.is_available(), SETS[name]
    if name in SHAPES:
        target, draft = random_pair(SHAPES[name], "cuda" if cuda else "cpu")
        makers = {"model": lambda: ms.drafters.Model(draft)}
    else:
        target = ms.load(name, device="cuda" if cuda else "cpu")
        makers = {each: lambda each=each: by_name(each, target) for each in names or NAMES}
    sizes = dict(max_num_seqs=batches[-1], max_num_batched_tokens=budget, num_blocks=blocks * batches[-1])
    result = {"model": name, "machine": machine(), "rounds": ROUNDS, "warm_up": {}, "rows": [], "kernels": {}}

    def engine_with(by: str | None) -> ms.Engine:
        engine = ms.Engine(target, makers[by]() if by else None, **sizes)
        result["warm_up"][by] = engine.warm_up(progress=False)
        print(f"warm-up {by or 'plain'}: {result['warm_up'][by]:.1f} s", flush=True)
        return engine

    plain = engine_with(None)
    for by in makers:
        engine = engine_with(by)
        for B in batches:
            rounds = []
            for i in range(ROUNDS + 1):
                some = prompts(target, B, i)
                rounds.append([serve(one, some, new) for one in (plain, engine)])
            row = {"drafter": by, "batch": B, "rounds": rounds[1:]}  # the first warms up
            for what in ("steady", "whole"):
                row[what] = median(fast[what] / slow[what] for slow, fast in rounds[1:])
            for what, of in (("pause", max), ("step", median), ("per_pass", median), ("drafting", median)):
                row[what] = [of(each[i][what] for each in rounds[1:]) for i in (0, 1)]
            result["rows"].append(row)
            steps, pauses = (" ".join(f"{1e3 * seconds:.2f}" for seconds in row[what]) for what in ("step", "pause"))
            print(
                f"{by:>7} {B:4}  steady {row['steady']:.2f}  whole {row['whole']:.2f}  "
                f"plain {rounds[-1][0]['steady']:,.0f}/s  a step {steps} ms, {row['per_pass'][1]:.2f} tokens  "
                f"drafting {row['drafting'][1]:.0%}  pauses {pauses} ms",
                [round(fast["steady"] / slow["steady"], 2) for slow, fast in rounds[1:]],
                {n: round(gain, 2) for n, gain in engine.controller.gain.items()},
                f"change {1e3 * median(engine.controller.changes):.2f} ms",
                flush=True,
            )
        for B in (B for one, B in profiled if one == by):  # last, since after a profile some steps take 0.1 s
            for who, one in ((f"plain {B}", plain), (f"{by} {B}", engine)):
                result["kernels"][who] = kernels(one, prompts(target, B, 0), new)
        engine.shutdown()
    for who, found in result["kernels"].items():
        print(f"\n{who}: ms of the device a step, launches")
        print("\n".join(f"{t:8.4f} {count:6.1f}  {key}" for key, t, count in found))
    Path(path).write_text(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
