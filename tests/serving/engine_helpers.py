"""Random requests with the outputs they must have, and runs of the engine that are compared with them."""

from dataclasses import dataclass, replace
from functools import cache
from random import Random

from loop_checks import assert_trace_fits
from tiny_models import blurred, random_model

import minispec as ms
from minispec.drafters import Drafter


class Failure(RuntimeError):
    """What a test raises in the middle of a step."""


@dataclass(frozen=True)
class Request:
    """A greedy request, and what `generate` alone makes of it."""

    prompt: list[int]
    new: int
    expected: ms.Output


@cache
def pair() -> tuple[ms.Model, ms.Model]:
    """A target with an end token, and a draft model with noise on every weight."""
    tiny = dict(hidden_size=16, intermediate_size=24, num_heads=2, num_kv_heads=1, max_length=544)
    return ms.Model("ends", random_model(**tiny).transformer, None, {42}), blurred(**tiny)


def endless() -> ms.Model:
    """The same target without an end token."""
    return ms.Model("endless", pair()[0].transformer)


@cache
def random_requests(count: int, longest_prompt: int, most_new: int) -> list[Request]:
    """Every second prompt begins with one of three shared prefixes."""
    random = Random(0)
    prefixes = [random.choices(range(64), k=longest_prompt // n) for n in (2, 3, 5)]
    wishes = []
    for i in range(count):
        prompt = random.choices(range(64), k=random.randint(1, longest_prompt))
        if i % 2:
            prefix = random.choice(prefixes)
            prompt = (prefix + prompt)[: max(len(prompt), len(prefix) + 1)]
        wishes.append((prompt, random.randint(1, most_new)))
    # One batch for all, each output then cut to its own length: in float64 that is what each gives alone.
    outs = ms.generate(pair()[0], [prompt for prompt, _ in wishes], most_new)
    made = []
    for (prompt, new), out in zip(wishes, outs, strict=True):
        reason = out.finish_reason if len(out.tokens) <= new else "length"
        made.append(Request(prompt, new, replace(out, tokens=out.tokens[:new], finish_reason=reason)))
    return made


def long_requests(count: int = 6) -> list[Request]:
    return [request for request in random_requests(24, 60, 24) if len(request.expected.tokens) > 8][:count]


def add_all(engine: ms.Engine, requests: list[Request]) -> None:
    for request in requests:
        engine.add(request.prompt, request.new)


def serve(engine: ms.Engine) -> dict:
    """Run to the end, and check the bookkeeping after every step."""
    while engine.sequences:
        engine.step()
        engine.check_integrity()
    return engine.take()


def assert_idle(engine: ms.Engine) -> None:
    """Nothing is left of any request."""
    engine.check_integrity()
    assert engine.pool.num_used == 0 and not any(engine.pool.refcount) and not engine.pool.tables
    assert not engine.sequences and not engine.scheduler.ids and not engine.outputs


def assert_as_alone(out: ms.Output, request: Request) -> None:
    expected = request.expected
    assert (out.tokens, out.finish_reason, out.error) == (expected.tokens, expected.finish_reason, None)
    assert out.prompt_tokens == len(request.prompt)
    if out.trace is not None:
        assert_trace_fits(out)


def check_greedy(
    drafter: Drafter | None, requests: list[Request], preemptions: int = 5, aborts: float = 0.0, **options
) -> ms.Engine:
    """Greedy outputs are those of `generate` alone, with small chunks, few blocks, preemptions and aborts."""
    longest = max(len(request.prompt) + request.new for request in requests)
    sizes = dict(block_size=4, max_num_seqs=8, max_num_batched_tokens=96, max_chunk=32, k=3)
    options = sizes | {"num_blocks": longest // sizes["block_size"] + 8} | options
    engine, random = ms.Engine(pair()[0], drafter, **options), Random(0)
    ids = {engine.add(r.prompt, r.new, k=random.choice((None, None, 1, 6, 0)), seed=0): r for r in requests}
    outs: dict = {}
    while engine.sequences:
        engine.step()
        engine.check_integrity()
        if random.random() < aborts and engine.sequences:
            engine.abort(random.choice(list(engine.sequences)))
            engine.check_integrity()
        outs |= engine.take()
    assert outs.keys() == ids.keys()
    for id, out in outs.items():
        if out.finish_reason == "abort":
            assert aborts and out.tokens == ids[id].expected.tokens[: len(out.tokens)]
        else:
            assert_as_alone(out, ids[id])
    totals = engine.metrics()["totals"]
    assert totals["preemptions"] >= preemptions
    assert drafter is None or totals["drafted"] > 0
    assert_idle(engine)
    return engine
