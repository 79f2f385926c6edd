"""Thirty engines, built and dropped one after the other in one process: each generates what plain decoding does.

    PYTHONPATH=.:tests:tests/gpu python3 tests/gpu/many_engines_checks.py           # on a GPU
    PYTHONPATH=.:tests:tests/gpu python3 tests/gpu/many_engines_checks.py --few     # three small ones, on a CPU too
    PYTHONPATH=.:tests:tests/gpu python3 tests/gpu/many_engines_checks.py --soak    # 5,000 requests, by every drafter

Meanwhile whatever can disturb a capture does: garbage is collected all the time, by this thread and by another, which
also drops graphs; every third engine is dropped without a shutdown; and some captures are made to fail.

Where an output differs, the reference's own logits at that place say whether the two tokens were a tie within the
rounding of float32; only then is it none of the engine's business.
"""

import gc
import sys
import threading
import time
import warnings
from functools import cache, partial
from random import Random

import torch
from fast_checks import run_on_the_gpu, slow

import minispec as ms
from minispec.drafters import DRAFTERS, by_name
from minispec.gpu.graph import Captured

FEW, SOAK, CUDA = "--few" in sys.argv, "--soak" in sys.argv, torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
COUNT, LONG = 8 if FEW else 32, 40  # tokens of each request, or up to so many
TEXTS = ("Once upon a time", "One day, a small bird", "The fox", "A boy found a ball", "Tom and his dog", "It was late")
TIE = 1e-3  # logits of micro lie between −20 and 20


def check_failed_captures() -> None:
    """One that fails once is made again, one that fails always is replaced by eager work, and the next is not hurt."""
    count, failures = torch.zeros(1, device=DEVICE), []

    def work(most: int) -> None:
        if torch.cuda.is_current_stream_capturing() and len(failures) < most:
            failures.append(1)
            torch.cuda.synchronize()  # forbidden: it makes the capture invalid
        count.add_(torch.ones(1000, device=DEVICE).sum())

    for most, captured in ((1, True), (99, False), (0, True)):
        failures.clear()
        some = Captured(lambda most=most: work(most), [count])
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            some(), some()
        told = [str(warning.message) for warning in told]
        assert (some.graph is not None) == captured, (most, told)
        assert any("eagerly" in words for words in told) == (not captured), (most, told)
        torch.rand(3, device=DEVICE)  # random numbers of the device outlive it, too
    assert count.item() == 6000, count.item()


class Trouble(threading.Thread):
    """Collects garbage and drops graphs as long as it lives."""

    over = False

    def run(self) -> None:
        while not self.over:
            if CUDA:
                count = torch.zeros(1, device=DEVICE)
                captured = Captured(lambda count=count: count.add_(1), [count])
                captured()
                captured.itself = captured  # a circle: only the collector frees it
                assert count.item() == 1
                del captured, count
            gc.collect()
            time.sleep(0.05)


@cache
def target() -> ms.Model:
    return ms.load("micro", device=DEVICE, dtype=torch.float32)


@cache
def expected(requests: int) -> tuple[list[str], list[list[int]]]:
    prompts = [f"{TEXTS[i % len(TEXTS)]} {i}" if i else TEXTS[0] for i in range(requests)]
    return prompts, [out.tokens for out in ms.generate(slow(target()), prompts, COUNT, ignore_eos=True)]


def compare(prompt: str | list[int], out: ms.Output, wanted: list[int]) -> None:
    """The reference's tokens, up to a tie: how far apart its logits of the two tokens are there."""
    assert out.error is None and len(out.tokens) == len(wanted), (prompt, out.finish_reason, out.error)
    if out.tokens != wanted:
        at = next(i for i, (a, b) in enumerate(zip(out.tokens, wanted, strict=True)) if a != b)
        ids = torch.tensor([target().encode(prompt) + wanted[:at]], device=DEVICE)
        logits = slow(target()).transformer(ids).logits[0, -1]
        assert abs(float(logits[out.tokens[at]] - logits[wanted[at]])) < TIE, f"{prompt!r}: from token {at} on"


def serve(name: str | None, requests: int, drop: bool) -> None:
    """One engine, three times the same requests."""
    engine = ms.Engine(target(), name and by_name(name, target()), num_blocks=2048, max_num_seqs=64, fast=True)
    prompts, wanted = expected(requests)
    for _ in range(3):
        outs = engine.generate(prompts, max_new_tokens=COUNT, ignore_eos=True, progress=False)
        for each in zip(prompts, outs, wanted, strict=True):
            compare(*each)
    engine.check_integrity()
    if drop:  # into a circle, with all its graphs
        engine.itself = engine
    else:
        engine.shutdown()


@cache
def crowd(requests: int) -> tuple[list[list[int]], list[int], list[list[int]]]:
    """Random prompts, half of which begin like others, how much is to be generated, and what that is."""
    chance = Random(0)
    begins = [chance.choices(range(3, 500), k=length) for length in (17, 40, 64)]
    prompts = [
        (chance.choice(begins) if i % 2 else []) + chance.choices(range(3, 500), k=chance.randint(1, 40))
        for i in range(requests)
    ]
    outs = ms.generate(slow(target()), prompts, LONG, ignore_eos=True)
    return prompts, [chance.randint(1, LONG) for _ in prompts], [out.tokens for out in outs]


def soak(name: str | None, requests: int) -> None:
    """They come one by one, in too few blocks for all, with drafts of all depths; some sample, and some are aborted."""
    chance, (prompts, news, wanted) = Random(str(name)), crowd(requests)
    engine = ms.Engine(
        target(), name and by_name(name, target()), num_blocks=24 if FEW else 96, max_num_seqs=32, fast=True
    )
    ids, outs = {}, {}
    while len(outs) < requests:
        for i in range(len(ids), min(requests, len(ids) + chance.randint(0, 8))):
            how = dict(k=chance.choice((None, None, None, 1, 3, 0)), temperature=float(chance.random() < 0.2), seed=i)
            ids[engine.add(prompts[i], news[i], ignore_eos=True, **how)] = i, how["temperature"]
        engine.step()
        if engine.sequences and chance.random() < 0.05:
            engine.abort(chance.choice(list(engine.sequences)))
        if chance.random() < 0.1:
            engine.check_integrity()
        outs |= engine.take()
    for id, (i, temperature) in ids.items():
        assert outs[id].finish_reason == "abort" or len(outs[id].tokens) == news[i], outs[id].error
        compare(prompts[i], outs[id], outs[id].tokens if temperature else wanted[i][: len(outs[id].tokens)])
    engine.check_integrity()
    assert engine.pool.num_used == 0 and not any(engine.pool.refcount) and engine.pool.stats().prefix_hits
    assert engine.metrics()["totals"]["preemptions"]
    engine.shutdown()


if __name__ == "__main__":
    if SOAK:
        each = 40 if FEW else -(-5000 // (1 + len(DRAFTERS)))
        run_on_the_gpu({f"{name}, {each}": partial(soak, name, each) for name in (None, *DRAFTERS)})
    plan = [(name, requests) for requests in (1, 16, 64) for name in (None, *DRAFTERS)]
    plan = [(None, 2), ("ngram", 2), ("eagle", 2)] if FEW else plan
    checks = {"failed captures": check_failed_captures} if CUDA else {}
    for number, (name, requests) in enumerate(plan):
        expected(requests)
        checks[f"{name}, {requests}"] = partial(serve, name, requests, drop=number % 3 == 2)
    gc.set_threshold(200, 2, 2)  # as often as can be
    Trouble(daemon=True).start()
    run_on_the_gpu(checks)
