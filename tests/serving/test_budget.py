"""One budget for all drafts: the best set, the exact joint distribution of a batch, a peek that is caught, engines."""

from __future__ import annotations

from collections import defaultdict
from itertools import product
from random import Random

import engine_checks
import pytest
import torch
from distribution_checks import EXACT, assert_same, target_law, toy_model
from loop_checks import PROMPTS, greedy_pair

import minispec as ms
from minispec import exact, verify
from minispec.drafters import Draft
from minispec.serving.budget import Calibration, allocate, best_lengths, expected_tokens, fastest, survival


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


@pytest.mark.slow
def test_never_slower_than_any_fixed_length_and_faster_where_sequences_differ():
    """For any cost of a pass: whatever a fixed k verifies, the best set of as many tokens is worth no less."""
    random = Random(1)
    for batch in (1, 2, 8, 32, 128):
        for _ in range(3):
            survivals = [survival([random.choice([0.3, 0.9])] * 4) for _ in range(batch)]
            ridge = random.choice([4, 16, 64])
            cost = lambda tokens: 1 + max(0, tokens - ridge) / ridge  # noqa: B023, E731
            fixed = [expected_tokens(survivals, [k] * batch) / cost(batch * (k + 1)) for k in range(5)]  # 0: off
            assert fastest(survivals, cost)[1] >= max(fixed) - EXACT
    mixed = [survival([alpha] * 4) for alpha in (0.3, 0.9) * 8]
    cost = lambda tokens: 1 + max(0, tokens - 48) / 48  # noqa: E731
    assert fastest(mixed, cost)[1] > 1.05 * max(expected_tokens(mixed, [k] * 16) / cost(16 * (k + 1)) for k in range(5))


def test_calibration():
    """What was counted replaces what was claimed, and tokens after a rejection were not tested."""
    calibration = Calibration()
    assert calibration.chance(0.92) == pytest.approx(0.92)
    for _ in range(1000):
        calibration.learn([0.92, 0.55, 0.55], 1)  # the first passes, the second does not, the third is not looked at
    assert calibration.chance(0.92) > 0.99 and calibration.chance(0.55) < 0.01
    assert sum(calibration.tested) == 2000
    calibration.learn([1.0], 1)
    assert calibration.chance(1.0) > 0.9


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
        made = [Draft(list(d), q, confidence=confidence(q, d)) for d, q in proposed]
        runs = ()
        for target, draft in zip(targets, allocate(made, tokens, Calibration()), strict=True):
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


def test_a_draft_model_is_sure_before_it_samples():
    """Its confidence is the peak of q, so it is the same whichever token was sampled; and it survives a cut."""
    drafter = ms.drafters.Model(greedy_pair()[1])
    drafter.confident = True
    seen = set()
    for seed in range(6):
        context = ms.drafters.Context(seed, [1, 2, 3], ms.Sampling(1.0), torch.Generator().manual_seed(seed))
        [made] = drafter.propose([context], 2)
        assert made.confidence == pytest.approx(made.probs.amax(-1).tolist())
        assert len(ms.serving.budget.cut(made, 1).confidence) == 1
        seen.add((made.tokens[0], round(made.confidence[0], 9)))
    assert len(seen) > 1 and len({sure for _, sure in seen}) == 1


# ---- in the engine ---------------------------------------------------------------------------------------------------


def check_engine(tokens: int = 5) -> None:
    """Greedy outputs are plain decoding's, no step verifies more draft tokens than the budget has, and slots differ."""
    target, draft = greedy_pair()
    plain = [out.tokens for out in ms.generate(target, list(PROMPTS), 20)]
    engine = ms.Engine(target, ms.drafters.Model(draft), k=4, draft_budget=tokens, allocation="survival", block_size=4)
    ids = [engine.add(prompt, 20) for prompt in PROMPTS]
    seen, steps = set(), 0
    while engine.jobs:
        rows = [row.drafted for row in engine.step().rows if row.phase != "prefill"]
        engine.check_integrity()
        assert sum(rows) <= tokens
        seen |= set(rows)
        steps += sum(rows) == tokens
    outs = engine.take()
    assert [outs[id].tokens for id in ids] == plain
    assert len(seen) > 2 and steps > 2  # not an equal share, and the budget is used
    assert sum(engine.runner.calibration.tested) > 20


@pytest.mark.slow
def test_in_the_engine():
    check_engine()


@pytest.mark.slow
def test_sampled_outputs_of_the_engine_follow_the_target():
    engine_checks.check_distribution(draws=1000, allocation="survival", draft_budget=300)


def test_drafters_without_confidences_share_evenly():
    target, _ = greedy_pair()
    engine = ms.Engine(target, ms.drafters.NGram(), k=4, draft_budget=6, allocation="survival")
    outs = engine.generate([[5, 9, 5, 9, 5]] * 3, ms.SamplingParams(max_new_tokens=12), progress=False)
    assert [out.tokens for out in outs] == [ms.generate(target, [5, 9, 5, 9, 5], 12).tokens] * 3


def test_what_is_refused():
    target, draft = greedy_pair()
    with pytest.raises(ValueError, match="allocation='best'"):
        ms.Engine(target, ms.drafters.Model(draft), allocation="best")
    trees = ms.drafters.Model(draft)
    trees.extra_slots = 3
    with pytest.raises(ValueError, match="chains"):
        ms.Engine(target, trees, allocation="survival")


# ---- passes of fixed shape ------------------------------------------------------------------------------------------
