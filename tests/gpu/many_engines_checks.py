"""Sixty engines, built and dropped one after the other in one process: does each generate what plain decoding does, and
how fast is it the first, the second and the third time?

    PYTHONPATH=.:tests:tests/gpu python3 tests/gpu/many_engines_checks.py           # on a GPU
    PYTHONPATH=.:tests:tests/gpu python3 tests/gpu/many_engines_checks.py --few     # three small ones, on a CPU too

Meanwhile whatever can disturb a capture does: garbage is collected all the time, by this thread and by another, which
also drops graphs; every third engine is dropped without a shutdown; and some captures are made to fail.

Outputs are compared token by token. Where one differs, the reference's own logits at that place say whether the two
tokens were a tie within the rounding of this precision; only then is it none of the engine's business.
"""

from __future__ import annotations

import gc
import statistics
import sys
import threading
import time
import warnings
from functools import cache

import torch
from fast_checks import slow

import minispec as ms
from minispec.drafters import DRAFTERS, by_name
from minispec.gpu.capture import GRAPHS, Captured

FEW, CUDA = "--few" in sys.argv, torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
COUNT = 8 if FEW else 32  # tokens of each request
TEXTS = ("Once upon a time", "One day, a small bird", "The fox", "A boy found a ball", "Tom and his dog", "It was late")
TIE = {torch.float32: 1e-3, torch.bfloat16: 0.15}  # logits of micro lie between −20 and 20; bfloat16 has 8 bits


# ---- a capture that fails --------------------------------------------------------------------------------------------


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
    print("captures that failed were undone: made again, or done eagerly; the next one was sound", flush=True)


# ---- trouble -----------------------------------------------------------------------------------------------------


class Trouble(threading.Thread):
    """Collects garbage and drops graphs as long as it lives."""

    def __init__(self):
        super().__init__(daemon=True)
        self.over, self.dropped = False, 0

    def run(self) -> None:
        while not self.over:
            if CUDA:
                count = torch.zeros(1, device=DEVICE)
                captured = Captured(lambda count=count: count.add_(1), [count])
                captured()
                captured.itself = captured  # a circle: only the collector frees it
                assert count.item() == 1
                self.dropped += 1
                del captured, count
            gc.collect()
            time.sleep(0.05)


# ---- engines -------------------------------------------------------------------------------------------------------


@cache
def target(dtype: torch.dtype) -> ms.Model:
    return ms.load("micro", device=DEVICE, dtype=dtype)


@cache
def expected(dtype: torch.dtype, requests: int) -> list[list[int]]:
    return [out.tokens for out in ms.generate(slow(target(dtype)), prompts(requests), COUNT, ignore_eos=True)]


def prompts(requests: int) -> list[str]:
    return [f"{TEXTS[i % len(TEXTS)]} {i}" if i else TEXTS[0] for i in range(requests)]


def gap(dtype: torch.dtype, prompt: str, common: list[int], tokens: tuple[int, int]) -> float:
    """How far apart the reference's logits of two tokens are after a prompt and what both outputs have in common."""
    model = slow(target(dtype))
    ids = model.encode(prompt) + common
    logits = model.transformer(torch.tensor([ids], device=DEVICE)).logits[0, -1].float()
    return abs(float(logits[tokens[0]] - logits[tokens[1]]))


def compare(dtype: torch.dtype, outs: list[ms.Output]) -> tuple[int, int]:
    """How many outputs differ by a tie, and how many otherwise."""
    ties = wrong = 0
    for prompt, out, wanted in zip(prompts(len(outs)), outs, expected(dtype, len(outs)), strict=True):
        if out.tokens == wanted:
            continue
        at = next((i for i, (a, b) in enumerate(zip(out.tokens, wanted, strict=False)) if a != b), None)
        tie = at is not None and out.error is None
        tie = tie and gap(dtype, prompt, wanted[:at], (out.tokens[at], wanted[at])) < TIE[dtype]
        ties, wrong = ties + tie, wrong + (not tie)
        if not tie:
            print(f"    {prompt!r}: {out.finish_reason}, {out.error!r}, from token {at} on", flush=True)
    return ties, wrong


class Counted:
    """How many captures were made, and how long they took; and how long garbage collections stopped everything."""

    def __init__(self):
        self.count = self.seconds = self.paused = 0.0
        usual, gc.callbacks[:] = Captured.prepare, [*gc.callbacks, self.collecting]

        def prepare(captured: Captured) -> None:
            began, had = time.perf_counter(), captured.graph is not None
            usual(captured)
            if not had and captured.graph is not None and threading.current_thread() is threading.main_thread():
                self.count, self.seconds = self.count + 1, self.seconds + time.perf_counter() - began

        Captured.prepare = prepare

    def collecting(self, phase: str, info: dict) -> None:
        if phase == "start":
            self.began = time.perf_counter()
        else:
            self.paused += time.perf_counter() - self.began


def serve(name: str | None, requests: int, dtype: torch.dtype, counted: Counted, drop: bool) -> tuple[int, int, list]:
    """One engine, three times the same requests: ties, errors, and of each run tokens per second, captures, seconds
    of capturing, seconds of collecting garbage."""
    model, runs, ties, wrong = target(dtype), [], 0, 0
    drafter = None if name is None else by_name(name, model)
    engine = ms.Engine(model, drafter, num_blocks=2048, max_num_seqs=64, fast=True)
    for _ in range(3):
        before, spent, paused, began = counted.count, counted.seconds, counted.paused, time.perf_counter()
        outs = engine.generate(prompts(requests), max_new_tokens=COUNT, ignore_eos=True, progress=False)
        seconds = time.perf_counter() - began
        tokens = sum(len(out.tokens) for out in outs)
        some = int(counted.count - before), counted.seconds - spent, counted.paused - paused
        runs.append((tokens / seconds, *some))
        some = compare(dtype, outs)
        ties, wrong = ties + some[0], wrong + some[1]
    engine.check_integrity()
    if drop:  # into a circle, with all its graphs
        engine.itself = engine
    else:
        engine.shutdown()
    return ties, wrong, runs


def main() -> None:
    print(torch.__version__, torch.cuda.get_device_name() if CUDA else "no GPU", flush=True)
    if CUDA:
        check_failed_captures()
    counted, trouble, began = Counted(), Trouble(), time.perf_counter()
    plan = [(name, n, torch.float32) for n in (1, 16, 64) for name in (None, *DRAFTERS)]
    plan += [(name, n, torch.bfloat16) for n in (16, 64) for name in (None, *DRAFTERS)]
    if FEW:
        plan = [(None, 2, torch.float32), ("ngram", 2, torch.float32), ("eagle", 2, torch.float32)]
    usual = gc.get_threshold()
    gc.set_threshold(200, 2, 2)  # as often as can be
    trouble.start()
    ties = wrong = 0
    steady = []
    columns = "tokens/s of runs 1, 2, 3 (captures, ms they took, ms of garbage collection)"
    print(f"{'drafter':<12}{'requests':>8} {'dtype':<9} {columns}")
    for number, (name, requests, dtype) in enumerate(plan):
        if dtype == torch.bfloat16 and not trouble.over:  # these are for speed
            trouble.over = True
            trouble.join()
            gc.set_threshold(*usual)
        some = serve(name, requests, dtype, counted, drop=number % 3 == 2)
        ties, wrong = ties + some[0], wrong + some[1]
        said = "  ".join(
            f"{rate:8,.0f} ({made:2},{1e3 * spent:5.0f},{1e3 * paused:4.0f})" for rate, made, spent, paused in some[2]
        )
        print(
            f"{name or 'plain':<12}{requests:>8} {str(dtype)[6:]:<9}{said}  ties {some[0]} wrong {some[1]}", flush=True
        )
        steady.append(some[2][1][0] / some[2][2][0])
    trouble.over = True
    print(
        f"{len(plan)} engines in {time.perf_counter() - began:.0f} s: {ties} outputs differ by a tie, {wrong} by more; "
        f"{int(counted.count)} captures in {counted.seconds:.1f} s; another thread captured and dropped "
        f"{trouble.dropped}; graphs alive at the end: {len(GRAPHS.alive)}; run 2 was as fast as run 3 times "
        f"{statistics.median(steady):.2f} (median; the slowest {min(steady):.2f})"
    )
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
