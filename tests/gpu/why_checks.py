"""`minispec why` on set-ups whose fault is known, run for real: an engine's trace, and the page of its server.

    PYTHONPATH=. python tests/gpu/why_checks.py                  # all of them
    PYTHONPATH=. python tests/gpu/why_checks.py "full batch"     # one fault

A valid pair with five draft lengths, and the five faults of lesson 07. On a GPU: random weights of a wide model with
few layers, whose passes are memory-bound without captures, and for the full batch the shape of Llama-3-8B; on a CPU:
micro. Prints what is suspected in each, and whether that is right. Needs the packages of the extra "serve".
"""

import asyncio
import json
import sys
import time
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Thread

import torch

import minispec as ms
from minispec.gpu.backend import load
from minispec.serving import engine as engines
from minispec.trace import Trace, synchronize
from minispec_course.labs.batching import endless
from minispec_course.labs.pairs import STORIES
from minispec_tools.bench.client import Endpoint
from minispec_tools.bench.serve import numbered
from minispec_tools.bench.shapes import SHAPES, prompt_of, random_pair
from minispec_tools.bench.slower import set_up
from minispec_tools.cli import main
from minispec_tools.serve.app import make_app
from minispec_tools.serve.process import address, listen, make_server

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
WIDE = replace(
    SHAPES["8b"], vocab_size=32_000, hidden_size=12_288, intermediate_size=32_768, num_layers=12, num_heads=96
)
STEPS, TOKENS, EPSILON, TEMPERATURE = 32, 48, 0.07, 0.3
FIRST = {
    "mismatched draft": "acceptance collapsed",
    "k too large": "k is too large",
    "launch overhead": "the draft is too expensive",
    "wrong kernel": "verification is not free",
    "full batch": "the batch is too large",
}


class Waiting(engines.Clock):
    """Every part of a step lasts until the device is done with it. On a CPU it is the thread's own time, which other
    programs leave alone; a page's times are the wall's, so there they prove nothing."""

    now = staticmethod(time.perf_counter if GPU else time.thread_time)

    def __init__(self, *parts: str):
        super().__init__(*parts)
        self.last = self.now()

    def lap(self, part: str) -> None:
        synchronize(DEVICE)
        self.seconds[part] += (now := self.now()) - self.last
        self.last = now


def models(name: str) -> tuple[ms.Model, ms.Model]:
    if not GPU:
        return load("micro", fast=False), load("micro-draft", fast=False)
    shape, epsilon = (SHAPES["8b"], 0.05) if name == "full batch" else (WIDE, EPSILON)
    target, draft = random_pair(shape, DEVICE, epsilon)
    return ms.Model("random", target.transformer, numbered(shape.vocab_size)), draft


def measured(target: ms.Model, draft: ms.Model | None, k: int, rows: int) -> dict:
    """One engine: its trace and times in steady state, and then its page as a server."""
    drafter = draft and ms.drafters.Model(draft)
    fast = None if rows > 1 else False
    most = rows * (k + 1 + 64)
    engine = ms.Engine(endless(target), drafter, rows * 32, 16, rows, most, k, enable_prefix_caching=False, fast=fast)
    texts = STORIES["stories"]
    asks = range(max(rows, 4))
    prompts = [prompt_of(target.config, 32, i) if GPU else target.encode(texts[i % len(texts)]) for i in asks]
    runs, seconds, passes, emitted = [], [], [], []
    for first in range(0, len(prompts), rows):
        for i, prompt in enumerate(prompts[first : first + rows]):
            engine.add(prompt, 440, temperature=TEMPERATURE, seed=first + i)
        engine.step()
        for step in range(STEPS):
            record = engine.step()
            if step >= STEPS // 4:  # the first ones compile and capture
                seconds.append(sum(record.seconds.values()))
                passes.append(record.seconds["pass"])
                emitted.append(record.emitted)
        for sequence in [*engine.sequences.values()][: 8 if drafter else 0]:
            runs.append(sequence.trace.cycles[1 + STEPS // 4 :])
        for id in list(engine.sequences):
            engine.abort(id)
        engine.take()
    per_token = median(seconds) * rows * len(emitted) / sum(emitted)
    with served(engine) as endpoint:
        body = {"model": target.name, "max_tokens": TOKENS, "temperature": TEMPERATURE}
        bodies = [body | {"prompt": prompt, "seed": seed} for seed, prompt in enumerate(prompts)]

        async def complete(body: dict) -> None:  # not streamed: that would be this process's own work beside the engine
            async with endpoint.ask("POST", "/v1/completions", body) as (status, parts):
                assert status == 200, [part async for part in parts]
                assert [part async for part in parts]

        async def page() -> dict[str, str]:
            for first in range(0, len(bodies), rows):
                await asyncio.gather(*map(complete, bodies[first : first + rows]))
            async with endpoint.ask("GET", "/metrics") as (_, parts):
                lines = b"".join([part async for part in parts]).decode().splitlines()
            return dict(line.rsplit(" ", 1) for line in lines if line[0] != "#")

        before, after = asyncio.run(page()), asyncio.run(page())  # the first time compiles and captures
    page = "\n".join(f"{name} {float(n) - float(before.get(name, 0))}" for name, n in after.items())
    cycles = [cycle for step in zip(*runs, strict=True) for cycle in step]  # in turn, or other prompts look like drift
    return {"cycles": cycles, "pass": median(passes), "per_token": per_token, "page": page}


@contextmanager
def served(engine: ms.Engine):
    """It, behind HTTP; the server ends it."""
    listener = listen("127.0.0.1", 0)
    server = make_server(make_app(engine), drain=1.0)
    thread = Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield Endpoint(address(listener))
    finally:
        server.should_exit = True
        thread.join(60)


def asked(*words) -> dict:
    """What the command says."""
    with redirect_stdout(StringIO()) as said:
        assert main(["why", *map(str, words), "--json"]) == 0
    return json.loads(said.getvalue())


def judge(name: str, expected: str | None, target: ms.Model, draft: ms.Model, k: int, rows: int, folder: Path) -> bool:
    """Plain and drafted one after the other, because a host's speed changes."""
    plain, drafted = measured(target, None, 0, rows), measured(target, draft, k, rows)
    trace, page, plain_page = (folder / file for file in ("trace.json", "page.txt", "plain.txt"))
    trace.write_text(Trace(drafted["cycles"]).to_json())
    page.write_text(drafted["page"])
    plain_page.write_text(plain["page"])
    times = ["--plain", 1e3 * plain["pass"], "--measured", plain["per_token"] / drafted["per_token"]]
    found = {"trace": asked(trace, "--k", k, "--batch", rows, *times)}
    found["page"] = asked(page, "--k", k, "--batch", rows, "--plain", plain_page, "--c", found["trace"]["c"])
    right = True
    for source, said in found.items():
        named = [one["name"] for one in said["suspects"]]
        ok = (named or [None])[0] == expected
        right &= ok or (source == "page" and not GPU)
        numbers = " ".join(f"{x} {said[x]:.2f}" for x in ("alpha", "length", "c", "v", "allowed", "measured"))
        verdict = f"{'right' if ok else 'WRONG'}: {', '.join(named) or 'nothing'}"
        print(f"{name:17} {source:5} {verdict} ({numbers})", flush=True)
    return right


def suspects(faults: list[str]) -> bool:
    engines.Clock, right, start = Waiting, True, time.perf_counter()
    with TemporaryDirectory() as folder:
        target, draft = faulty, its_draft = models("sound")
        for k in () if faults else range(1, 6):
            right &= judge(f"valid, k={k}", None, target, draft, k, 1, Path(folder))
        for fault in faults or FIRST:
            if fault == "full batch" and GPU:
                del target, draft, faulty, its_draft  # 37 GB, and a copy
                torch.cuda.empty_cache()
                target, draft = models(fault)
            faulty, its_draft, k, rows = set_up(fault, target, draft)
            rows *= 2 if GPU and rows > 1 else 1
            faulty = ms.Model(target.name, faulty.transformer, target.tokenizer)
            right &= judge(fault, FIRST[fault], faulty, its_draft, k, rows, Path(folder))
    print(f"{time.perf_counter() - start:.0f} s", flush=True)
    return right


if __name__ == "__main__":
    sys.exit(0 if suspects(sys.argv[1:]) else 1)
