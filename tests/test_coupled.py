"""rule="coupled": outputs follow the target's distribution, and speculation gives token for token what `generate` gives.

Power. The first test counts N = 400,000 samples of one distribution and fails below p = 1e-4. A sampler that is δ away
in total variation has a noncentrality of at least 4 N δ²: 99 of 100 runs show δ = 0.006. The joint distribution of
whole outputs is tested as in test_speculate.py: 9,000 of them show δ = 0.06 (sequence_distribution.py).
"""

from random import Random
from types import SimpleNamespace

import pytest
import torch
from all_drafters import ALL, random_medusa
from loop_checks import ONE, OTHER, PROMPTS, SAMPLED_PROMPT, SAMPLED_TOKENS, assert_same, countable_pair
from loop_checks import expected_distribution, greedy_pair
from scipy import stats
from sequence_distribution import DRAWS, P_VALUE, assert_follows, many_rows

import minispec as ms
from minispec.sampling import GOLDEN, coupled, gumbel, mixed, uniform
from minispec.sequence import Sequence, noise_of
from minispec_tools.cli import parser
from minispec_tools.serve import process

N = 400_000
P, Q = torch.tensor([[0.4, 0.3, 0.15, 0.1, 0.05, 0.0], [0.2, 0.5, 0.05, 0.1, 0.1, 0.05]])
WAYS = (
    dict(temperature=1.0),
    dict(temperature=0.7, top_p=0.9),
    dict(temperature=1.0, frequency_penalty=0.3, repetition_penalty=1.2),
    dict(),
)


# ---- one token -----------------------------------------------------------------------------------------------------


def p_value(tokens: torch.Tensor) -> float:
    counts = torch.bincount(tokens, minlength=6)
    return float(stats.chisquare(counts[:5], P[:5].double() / P.sum() * N).pvalue) if counts[5] == 0 else 0.0


def test_a_coupled_token_follows_the_distribution():
    """Along one sequence, and at the same position of many; and the test would see δ = 0.006."""
    assert stats.ncx2.sf(stats.chi2.isf(P_VALUE, 4), 4, 4 * N * 0.006**2) > 0.99
    for noise in (torch.arange(N) * GOLDEN, mixed(torch.arange(N)) + 7 * GOLDEN):
        assert p_value(coupled(P, noise)) > P_VALUE
    wrong = P.log() + uniform(mixed(torch.arange(N))[:, None] + torch.arange(6) * GOLDEN)  # no Gumbel noise
    assert p_value(wrong.argmax(-1)) < P_VALUE


def test_similar_distributions_agree_as_often_as_the_paper_says():
    """With a probability of at least (1 − TV)/(1 + TV); five standard errors below it are 0.004."""
    noise, tv = torch.arange(N) * GOLDEN, float((P - Q).clamp(min=0).sum())
    agree = float((coupled(P, noise) == coupled(Q, noise)).double().mean())
    assert (1 - tv) / (1 + tv) - 0.004 < agree < 1 - tv


def test_noise_belongs_to_seed_position_and_token():
    """Whoever asks: for some tokens only, ahead of time, or after more of the sequence is known."""
    one, longer = (Sequence(0, [1] * n, noise=12345) for n in (5, 7))
    assert noise_of([one], torch.arange(4)).tolist()[0][2:] == noise_of([longer], torch.arange(2)).tolist()[0]
    assert noise_of([one], 2).tolist() == noise_of([longer]).tolist()
    some, g = torch.tensor([7, 3, 60]), gumbel(noise_of([one, longer]), torch.arange(64))
    assert torch.equal(gumbel(noise_of([one, longer]), some), g[:, some])
    assert g.unique().numel() == 128


# ---- outputs -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("options", [ONE, OTHER])
def test_outputs_follow_the_targets_joint_distribution(options):
    with many_rows():
        prompts = [SAMPLED_PROMPT] * DRAWS
        outs = ms.generate(countable_pair()[0], prompts, SAMPLED_TOKENS, rule="coupled", **options)
    assert_follows([out.tokens for out in outs], expected_distribution(**options), f"generate, {options}")


def drafter_for(name: str) -> ms.drafters.Drafter:
    return ALL[name](*greedy_pair())


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_speculation_emits_what_generate_emits(name):
    """Token for token, for any draft length, as a ragged batch and one prompt at a time."""
    target, accepted = greedy_pair()[0], 0
    for seed, way in enumerate(WAYS):
        how = dict(rule="coupled", seed=seed, **way)
        plain = ms.generate(target, list(PROMPTS), 24, **how)
        assert ms.speculate(target, PROMPTS[0], drafter_for(name), 3, 24, **how).tokens == plain[0].tokens
        for k in (1, 4, "auto"):
            outs = ms.speculate(target, list(PROMPTS), drafter_for(name), k, 24, **how)
            for out, expected in zip(outs, plain, strict=True):
                assert_same(out, expected)
                accepted += sum(cycle.accepted for cycle in out.trace.cycles)
        greedy = ms.generate(target, list(PROMPTS), 24, **way)
        assert ([out.tokens for out in greedy] == [out.tokens for out in plain]) == (not way)
    assert accepted


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model", "early exit", "cascade of models", "eagle, chain", "dflash2", "dspark, whole"])
def test_drafts_use_the_noise(name):
    """A drafter that is the target, or nearly so, has its drafts accepted: they are the target's own choices."""
    target = greedy_pair()[0]
    same = ms.drafters.Model(target) if name == "model" else drafter_for(name)
    how = dict(temperature=1.0, seed=3, ignore_eos=True)
    runs = {rule: ms.speculate(target, list(PROMPTS), same, 4, 64, rule=rule, **how) for rule in ("token", "coupled")}
    alpha = {rule: ms.Trace.of(outs).acceptance_rate for rule, outs in runs.items()}
    print(name, alpha)
