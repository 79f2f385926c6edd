"""Adaptive draft length: finds the best k from what it measures, and bends no law on the way."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import product
from types import SimpleNamespace

import torch
from fakes import Given, continuation, scripted, whole_text

import minispec as ms
from minispec import exact, theory, trace, verify
from minispec.drafters import Draft
from minispec.drafters.adaptive import AdaptiveLength


def cycle(k: int, accepted: int, draft_seconds: float = 0.0, verify_seconds: float = 1.0) -> SimpleNamespace:
    """What AdaptiveLength looks at of a cycle."""
    seconds = dict(draft_seconds=draft_seconds, verify_seconds=verify_seconds)
    return SimpleNamespace(tested=min(accepted + 1, k), accepted=accepted, **seconds)


def simulate(
    betas: Sequence[float], c: float, v: Callable[[int], float], cycles: int = 1000, seed: int = 0, adaptive=None
) -> tuple[AdaptiveLength, list[int]]:
    """Cycles with these acceptances by position and these times; the draft lengths that were chosen."""
    adaptive, rng, chosen = adaptive or AdaptiveLength(), random.Random(seed), []
    for _ in range(cycles):
        k = adaptive.choose()
        accepted = next((i for i in range(k) if rng.random() >= betas[i]), k)
        adaptive.learn(k, [cycle(k, accepted, k * c, v(k))])
        chosen.append(k)
    return adaptive, chosen


def flat(k: int) -> float:
    return 1.0


def step(k: int) -> float:
    """A GPU's: free up to four tokens, twice the time from there."""
    return 1.0 if k < 4 else 2.0


def test_it_comes_within_a_few_percent_of_the_best_length():
    """The chance of acceptance is learnt from coins, so k wavers around the best; the speed hardly does."""
    for alpha, c, v in product((0.05, 0.7, 0.95), (0.02, 0.2), (flat, step)):
        _, chosen = simulate([alpha] * 8, c, v, cycles=800)
        last = chosen[-400:]
        tokens = sum(theory.expected_tokens(alpha, k) for k in last)
        seconds = sum(k * c + v(k) for k in last)
        assert tokens / seconds >= 0.93 * theory.best_speedup([alpha] * 8, c, v, longest=8), (alpha, c, v)


def test_it_stops_speculating_where_that_does_not_pay_and_keeps_an_eye_on_it():
    adaptive, chosen = simulate([0.05] * 8, 0.15, flat)
    last = Counter(chosen[-480:])
    assert last[0] > 450 and last[1] >= 10  # explores now and then
    _, chosen = simulate([0.95] * 8, 0.15, flat, cycles=600, adaptive=adaptive)  # the text has become predictable
    assert Counter(chosen[-200:]).most_common(1)[0][0] >= 5


def test_the_exact_law_with_a_choice_that_depends_on_the_past():
    """Every branch of several cycles, each with a length chosen from the acceptances of the cycles before."""

    @cache
    def target(context, seed=1):
        rng = random.Random(f"{seed} {context}")
        weights = torch.tensor([0.1 + rng.random() for _ in range(2)], dtype=torch.float64)
        return weights / weights.sum()

    draft, chosen = partial(target, seed=2), set()

    def program(random) -> tuple[int, ...]:
        text, adaptive = (), AdaptiveLength(longest=2, memory=0.0, explore_every=1000)
        adaptive.cycles = 1  # past the first cycle, with times that make the choice a close one
        adaptive.draft_seconds, adaptive.verify_seconds = {0: 0.0, 1: 0.35, 2: 0.75}, {0: 1.0, 1: 1.0, 2: 1.0}
        while len(text) < 4:
            k = adaptive.choose()
            chosen.add((len(text), k))
            drafted, q = exact.propose_chain(draft, text, k, random)
            p = torch.stack([target(text + drafted[:i]) for i in range(k + 1)])  # [k + 1, V]
            verdict = verify.chain(p, q, drafted, [random() for _ in p])
            adaptive.learn(k, [cycle(k, verdict.accepted, adaptive.draft_seconds[k])])
            text += verdict.run(drafted)
        return text[:4]

    plain = exact.joint_distribution(lambda context: exact.plain_distribution(target, context), 4)
    assert exact.total_variation(exact.exact_distribution(program), plain) <= 1e-12
    assert max(Counter(written for written, _ in chosen).values()) > 1  # after as many tokens, different choices


def test_a_perfect_and_free_drafter_is_used_to_the_full(monkeypatch):
    ticks = iter(range(10**6))
    monkeypatch.setattr(trace, "time", type("Ticks", (), {"perf_counter": staticmethod(lambda: float(next(ticks)))}))
    text = [3, *continuation([3], 200)]
    drafter = Given(lambda context, k: Draft(text[len(context.tokens) : len(context.tokens) + k]))
    out = ms.speculate(scripted(whole_text, max_length=256), [3], drafter, "auto", 150)
    assert out.tokens == text[1:151]
    assert Counter(len(c.drafted) for c in out.trace.cycles).most_common(1)[0][0] == 8
