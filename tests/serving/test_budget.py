"""One budget for all drafts: the best set, the exact joint distribution of a batch, a peek that is caught."""

from __future__ import annotations

from collections import defaultdict
from itertools import product
from random import Random

import pytest
import torch
from distribution_checks import EXACT, assert_same, target_law, toy_model

from minispec import exact, verify
from minispec.drafters import Draft
from minispec.serving.budget import allocate, best_lengths, expected_tokens, survival


def random_survivals(random: Random, sequences: int, k: int) -> list[list[float]]:
    return [
        survival([random.choice([0.1, 0.5, 0.9, 1.0, random.random()]) for _ in range(random.randint(0, k))])
        for _ in range(sequences)
    ]


# ---- the best set ----------------------------------------------------------------------------------------------------


def check_best() -> None:
    """No prefix-closed set of so many draft tokens has a larger expected number of survivors: all are tried."""
    random = Random(0)
    for _ in range(150):
        survivals = random_survivals(random, 3, 3)
        for tokens in range(8):
            lengths = best_lengths(survivals, tokens)
            assert sum(lengths) == min(tokens, sum(map(len, survivals)))
            best = max(
                expected_tokens(survivals, other)
                for other in product(*(range(len(s) + 1) for s in survivals))
                if sum(other) <= tokens
            )
            assert expected_tokens(survivals, lengths) >= best - EXACT


def test_the_best_set():
    check_best()
    assert best_lengths([[0.9, 0.8], [0.5], []], 2) == [2, 0, 0] and best_lengths([[1.0, 1.0], [1.0]], 0) == [0, 0]
    assert survival([0.5, 0.5, 1.0]) == [0.5, 0.25, 0.25]


# ---- the choice biases nothing ---------------------------------------------------------------------------------------


def peak(q, drafted):
    return q.amax(-1).tolist()


def of_the_token(q, drafted):
    """Looks at the sampled token: unlikely ones are left out after they were sampled."""
    return verify.at(q, torch.tensor(drafted)).tolist()


def joint_of_two(confidence, tokens: int = 2, n: int = 2) -> dict:
    """The exact joint distribution of the first n tokens of two sequences that share a budget, after one step and then
    plain decoding: two drafts of two tokens each, of which `tokens` are verified."""
    targets, drafts = [toy_model(2, seed) for seed in (1, 3)], [toy_model(2, seed, sharpness=1.5) for seed in (2, 5)]

    def step(random):
        proposed = [exact.propose_chain(draft, (), 2, random) for draft in drafts]
        made, sure = [Draft(list(d), q) for d, q in proposed], [confidence(q, d) for d, q in proposed]
        runs = ()
        for target, draft in zip(targets, allocate(made, sure, tokens), strict=True):
            p = torch.stack([target(tuple(draft.tokens[:i])) for i in range(len(draft.tokens) + 1)])
            q = draft.probs if draft.tokens else None
            runs += (verify.chain(p, q, draft.tokens, [random() for _ in p]).run(draft.tokens),)
        return runs

    joint = defaultdict(float)
    for runs, weight in exact.exact_distribution(step).items():
        plain = [
            exact.joint_distribution(
                lambda c, run=run, target=target: {run: 1.0} if c == () else exact.plain_distribution(target, c), n
            )
            for run, target in zip(runs, targets, strict=True)
        ]
        for (one, a), (other, b) in product(*(law.items() for law in plain)):
            joint[one, other] += weight * a * b
    return joint


def plain_of_two(n: int = 2) -> dict:
    one, other = (target_law(toy_model(2, seed), n) for seed in (1, 3))
    return {(a, b): pa * pb for (a, pa), (b, pb) in product(one.items(), other.items())}


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_outputs_of_a_batch_are_exact_and_independent(tokens):
    assert_same(joint_of_two(peak, tokens), plain_of_two(), f"{tokens} draft tokens for two sequences")


def test_a_choice_that_peeks_is_caught():
    distance = exact.total_variation(joint_of_two(of_the_token), plain_of_two())
    assert distance > 0.01  # not by rounding
