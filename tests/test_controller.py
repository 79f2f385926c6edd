"""The controller finds the best sizes of drafts from what it measures, and does not bias the output."""

import random
from collections import Counter
from itertools import product

import pytest
import torch
from exact_distributions import target_distribution, toy_model
from fakes import Given, continuation, scripted, whole_text

import minispec as ms
from minispec import exact, theory, trace, verify
from minispec.controller import Controller
from minispec.drafters import Draft


def price(n: int, B: int) -> float:
    """Seconds of a step of B sequences with drafts of n tokens; without drafts it is one."""
    return 1 + (n > 0) * (0.25 + 0.03 * n * (1 + B / 16))


def serve(
    controller: Controller, alpha: float, steps: int, B: int = 1, price=price, noisy: bool = False, seed: int = 0
):
    """Steps with chains of acceptance α: the sizes of drafts that were chosen, and the speed compared with plain steps.
    If noisy, each change of size costs as much as two steps, and the host has two speeds."""
    rng, host, chosen, total, tokens, plain = random.Random(seed), 1, [], 0.0, 0, 0.0
    for step in range(steps):
        n = controller.choose(range(B))
        for _ in range(B):
            accepted = next((i for i in range(n) if rng.random() >= alpha), n)
            controller.learn(n, accepted)
            tokens += 1 + accepted
        noise = change = 0.0
        if noisy:
            host = rng.choice((1, 1, 2)) if step % 400 == 0 else host
            noise, change = host * (1 + 0.05 * abs(rng.gauss(0, 1))) - 1, 2.0 * (n != [0, *chosen][-1])
        seconds = price(n, B) * (1 + noise) + change
        controller.time(range(B), [n] * B, seconds)
        total, plain = total + seconds, plain + price(0, B) * (1 + noise)
        chosen.append(n)
    return chosen, tokens / total / (B * steps / plain)


def test_it_comes_within_a_few_percent_of_the_best_length():
    """The chance of acceptance is learnt from coins, so k wavers around the best; the speed hardly does."""
    flat, free_up_to_four_tokens = lambda k: 1.0, lambda k: 1.0 if k < 4 else 2.0
    for alpha, c, v in product((0.05, 0.7, 0.95), (0.02, 0.2), (flat, free_up_to_four_tokens)):
        seconds = lambda k, B=1, c=c, v=v: k * c + v(k)  # noqa: E731
        chosen, _ = serve(Controller(range(1, 9)), alpha, 800, price=seconds)
        last = chosen[-400:]
        speed = sum(theory.expected_tokens(alpha, k) for k in last) / sum(map(seconds, last))
        assert speed >= 0.93 * theory.best_speedup([alpha] * 8, c, v, longest=8), (alpha, c, v)


def test_it_stops_speculating_where_that_does_not_pay_and_keeps_an_eye_on_it():
    controller, seconds = Controller(range(1, 9)), lambda k, B: 1 + 0.15 * k
    with pytest.warns(UserWarning, match="drafter"):
        chosen, _ = serve(controller, 0.02, 1000, price=seconds)
    last = Counter(chosen[-480:])
    assert last[0] > 400 and sum(last.values()) - last[0] >= 10  # it tries again now and then
    chosen, _ = serve(controller, 0.95, 600, price=seconds)  # the text has become predictable
    assert Counter(chosen[-200:]).most_common(1)[0][0] >= 5


def test_nothing_is_drafted_where_the_step_has_no_token_left():
    """Scratch tokens of all may be more than that: then there is less than none."""
    assert Controller([1, 2]).choose(["a", "b"], most=-3) == 0


def test_a_tree_is_as_large_as_it_pays():
    """What more nodes bring is learnt by trying: up to 8 nodes here, while a pass is free up to 9 tokens."""
    gain = {0: 0.0, 1: 0.7, 2: 0.9, 4: 1.4, 8: 2.0, 15: 2.1}
    for B, best in ((1, 8), (4, 1), (32, 0)):
        controller, rng, chosen = Controller([1, 2, 4, 8, 15], depth=4, hold=4), random.Random(0), Counter()
        for i in range(1200):
            n = controller.choose(range(B))
            for _ in range(B):
                controller.learn(n, int(gain[n]) + (rng.random() < gain[n] % 1))
            controller.time(range(B), [n] * B, max(1.0, B * (1 + n) / 9))
            chosen[n] += i >= 400
        assert chosen.most_common(1)[0][0] == best


def test_a_larger_tree_gains_no_less_than_the_smaller_one_in_it():
    """Otherwise a size would keep what it gained at its last trial, however well the texts go by now."""
    controller = Controller([4, 8], depth=4)
    for size, accepted in ((8, 0), (4, 2)):
        for _ in range(20):
            controller.steps += 1
            controller.learn(size, accepted)
            controller.time(range(1), [size], 1.0)
    gains = controller.gains()
    assert controller.gain[8] < 0.5 < 1.5 < gains[4] == gains[8]


def of_an_engine() -> Controller:
    """Which knows the seconds of a warm-up."""
    controller = Controller([1, 2, 4, 8], hold=16, memory=0.98)
    controller.seconds = {n: {B: price(n, B) for B in (1, 16, 64)} for n in controller.sizes}
    return controller


def best(alpha: float, B: int) -> float:
    return max(theory.expected_tokens(alpha, n) / price(n, B) for n in (0, 1, 2, 4, 8))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:drafts of size")
def test_it_never_loses_three_percent_and_gains_what_there_is():
    for B, alpha, seed in product((1, 64), (0.02, 0.2, 0.9), range(3)):
        _, speed = serve(of_an_engine(), alpha, 4000, B, noisy=True, seed=seed)
        assert speed >= max(0.97, 0.95 * best(alpha, B)), (B, alpha, speed, best(alpha, B))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:drafts of size")
def test_texts_that_change_are_noticed():
    for B in (1, 64):
        controller = of_an_engine()
        run = lambda alpha, steps, c=controller, B=B: serve(c, alpha, steps, B, noisy=True)[1]  # noqa: E731
        assert run(0.9, 1000) > 0.9 * best(0.9, B)
        run(0.02, 300)
        assert run(0.02, 2000) >= 0.97  # hopeless now
        run(0.9, 1500)
        assert run(0.9, 500) > 0.9 * best(0.9, B)  # and back


@pytest.mark.parametrize("longer, drafts", [(1, True), (2.5, False)])
def test_a_size_takes_as_long_as_it_does_under_this_load(longer, drafts):
    """Sequences come and go in every step, so drafts have to catch up each time: what a warm-up measured of a batch
    that stays the same is no longer true, and with it the choice."""
    controller = of_an_engine()
    serve(controller, 0.7, 200, 64, noisy=True)
    for step in range(600):
        ids = range(step, step + 60)
        n = controller.choose(ids)
        for _ in ids:
            controller.learn(n, n and 1)
        controller.time(ids, [n] * 60, price(n, 64) * (longer if n else 1))
    assert bool(controller.usual) == drafts


# ---------------------------------------------------------------- exactness


target, draft = toy_model(2, 1), toy_model(2, 2)
SECONDS = {0: 1.0, 1: 1.35, 2: 1.75}  # which make the choice a close one


def joint(peek: bool) -> tuple[float, set]:
    """How far the distribution of four tokens is from the target's, through every branch of several cycles, and the
    choices. With `peek` a second draft token is cut off after it was sampled, unless the draft liked it."""
    chosen = set()

    def program(random) -> tuple[int, ...]:
        text, controller = (), Controller([1, 2], memory=0.0)
        controller.drafts = dict.fromkeys(controller.sizes, 99)
        controller.seconds = {n: {1: seconds} for n, seconds in SECONDS.items()}
        while len(text) < 4:
            k = controller.choose([0])
            chosen.add((len(text), k))
            drafted, q = exact.propose_chain(draft, text, k, random)
            if peek and k == 2 and q[1, drafted[1]] < 0.5:
                k, drafted, q = 1, drafted[:1], q[:1]
            p = torch.stack([target(text + drafted[:i]) for i in range(k + 1)])  # [k + 1, V]
            verdict = verify.chain(p, q, drafted, [random() for _ in p])
            controller.learn(k, verdict.accepted)
            text += verdict.run(drafted)
        return text[:4]

    return exact.total_variation(exact.exact_distribution(program), target_distribution(target, 4)), chosen


def test_the_output_is_exact_though_the_choice_depends_on_the_past():
    distance, chosen = joint(peek=False)
    assert distance <= 1e-12
    assert max(Counter(emitted for emitted, _ in chosen).values()) > 1  # after as many tokens, different choices


def test_a_choice_that_peeks_at_what_it_cuts_off_biases_the_output():
    distance, _ = joint(peek=True)
    assert distance > 1e-3


def test_a_perfect_and_free_drafter_is_used_to_the_full(monkeypatch):
    ticks = iter(range(10**6))
    monkeypatch.setattr(trace, "time", type("Ticks", (), {"perf_counter": staticmethod(lambda: float(next(ticks)))}))
    text = [3, *continuation([3], 200)]
    drafter = Given(lambda context, k: Draft(text[len(context.tokens) : len(context.tokens) + k]))
    out = ms.speculate(scripted(whole_text, max_length=256), [3], drafter, "auto", 150)
    assert out.tokens == text[1:151]
    assert Counter(len(c.drafted) for c in out.trace.cycles).most_common(1)[0][0] == 8
