"""Many engines, built and dropped one after the other in one process, each of which generates what plain decoding does.

Meanwhile whatever can disturb a capture does: garbage is collected all the time, by this thread and by another, which
also drops graphs; every third engine is dropped without a shutdown; and some captures are made to fail.

Where an output differs, the reference's own logits at that position say whether the two tokens were a tie within the
rounding of float32; only then does it not count.
"""

import gc
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from itertools import count
from random import Random

import pytest
import torch
from reference import slow

import minispec as ms
from minispec.drafters import DRAFTERS, by_name
from minispec.gpu.graph import Captured

LONG = 40  # tokens of a request at most
TIE = 1e-3  # logits of micro lie between −20 and 20
numbers = count()  # of engines


@cache
def target(device: str) -> ms.Model:
    return ms.load("micro", device=device, dtype=torch.float32, fast=False)


@cache
def crowd(requests: int, device: str) -> tuple[list[list[int]], list[int], list[list[int]]]:
    """Random prompts, half of which begin like others, how much is to be generated, and what that is."""
    chance = Random(0)
    begins = [chance.choices(range(3, 500), k=length) for length in (17, 40, 64)]
    prompts = [
        (chance.choice(begins) if i % 2 else []) + chance.choices(range(3, 500), k=chance.randint(1, 40))
        for i in range(requests)
    ]
    outs = ms.generate(slow(target(device)), prompts, LONG, ignore_eos=True)
    return prompts, [chance.randint(1, LONG) for _ in prompts], [out.tokens for out in outs]


def compare(prompt: list[int], out: ms.Output, expected: list[int], device: str) -> None:
    """The reference's tokens, up to a tie: how far apart its logits of the two tokens are there."""
    assert out.error is None and len(out.tokens) == len(expected), (prompt, out.finish_reason, out.error)
    if out.tokens != expected:
        at = next(i for i, (a, b) in enumerate(zip(out.tokens, expected, strict=True)) if a != b)
        logits = slow(target(device)).transformer(torch.tensor([prompt + expected[:at]], device=device)).logits[0, -1]
        assert abs(float(logits[out.tokens[at]] - logits[expected[at]])) < TIE, f"{prompt}: from token {at} on"


@contextmanager
def trouble() -> Iterator[None]:
    """Garbage is collected and graphs are dropped all the time."""
    over, before = threading.Event(), gc.get_threshold()

    def disturb() -> None:
        while not over.wait(0.05):
            total = torch.zeros(1, device="cuda")
            captured = Captured(lambda total=total: total.add_(1), [total])
            captured()
            captured.itself = captured  # a circle: only the collector frees it
            del captured, total
            gc.collect()

    thread = threading.Thread(target=disturb, daemon=True)
    gc.set_threshold(200, 2, 2)  # as often as can be
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        gc.set_threshold(*before)


@pytest.mark.nightly
@pytest.mark.parametrize("name", [None, *DRAFTERS])
def test_a_crowd_is_answered_as_by_plain_decoding(name, device):
    """Requests come one by one, in too few blocks for all, with drafts of all depths; some sample, some are aborted."""
    requests, blocks = (40, 24) if device == "cpu" else (100, 64)
    chance, (prompts, news, expected) = Random(str(name)), crowd(requests, device)
    drafter = name and by_name(name, target(device))
    engine = ms.Engine(target(device), drafter, num_blocks=blocks, max_num_seqs=32, fast=True)
    ids, outs = {}, {}
    with trouble() if device == "cuda" else nullcontext(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a drafter gains little here
        while len(outs) < requests:
            for i in range(len(ids), min(requests, len(ids) + chance.randint(0, 8))):
                how = dict(k=chance.choice((None, None, None, 1, 3, 0)), temperature=float(chance.random() < 0.2))
                ids[engine.add(prompts[i], news[i], ignore_eos=True, seed=i, **how)] = i, how["temperature"]
            engine.step()
            if engine.sequences and chance.random() < 0.05:
                engine.abort(chance.choice(list(engine.sequences)))
            if chance.random() < 0.1:
                engine.check_integrity()
            outs |= engine.take()
    for id, (i, temperature) in ids.items():
        tokens = outs[id].tokens
        assert outs[id].finish_reason == "abort" or len(tokens) == news[i], outs[id].error
        compare(prompts[i], outs[id], tokens if temperature else expected[i][: len(tokens)], device)
    engine.check_integrity()
    assert engine.pool.num_used == 0 and not any(engine.pool.refcount) and engine.pool.stats().prefix_hits
    assert engine.metrics()["totals"]["preemptions"]
    if next(numbers) % 3 == 2:  # dropped, with all its graphs, into a circle
        engine.itself = engine
    else:
        engine.shutdown()


@pytest.mark.gpu
@pytest.mark.parametrize("most, captured", [(1, True), (99, False), (0, True)])
def test_a_capture_that_fails_is_made_again_or_done_eagerly(most, captured, device):
    """Once: it is made again. Always: its work is done eagerly. The next capture is not hurt."""
    total, failures = torch.zeros(1, device=device), []

    def work() -> None:
        if torch.cuda.is_current_stream_capturing() and len(failures) < most:
            failures.append(1)
            torch.cuda.synchronize()  # forbidden: it makes the capture invalid
        total.add_(torch.ones(1000, device=device).sum())

    some = Captured(work, [total])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        some(), some()
    assert (some.graph is not None) == captured and bool(told) == (not captured)
    torch.rand(3, device=device)  # random numbers of the device outlive it, too
    assert total.item() == 2000
