"""Synthetic acceptance: as many tokens per cycle as the formula says, whatever the target, in both loops."""

import math

import pytest
import torch

import minispec as ms
from minispec import theory
from minispec.drafters import by_name
from minispec_tools.cli import options


@pytest.fixture
def drafter():
    with pytest.warns(UserWarning, match="noise"):
        return by_name("synthetic:0.7", None)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("engine", [False, True])
def test_tokens_per_cycle_are_the_formulas(make_model, drafter, temperature, engine):
    """The mean of thousands of cycles, each of at most 5 tokens, is off by five standard errors once in a million."""
    target, count, rows = make_model(dtype=torch.float32), 120, 64
    how = dict(temperature=temperature, seed=1, ignore_eos=True)
    if engine:
        served = ms.Engine(target, drafter, k=4, num_blocks=700, max_num_batched_tokens=1024)
        outs = served.generate([[3, 1, 4]] * rows, max_new_tokens=count, progress=False, **how)
    else:
        outs = ms.speculate(target, [[3, 1, 4]] * rows, drafter, 4, count, **how)
    cycles = [c for out in outs for c in out.trace.cycles if len(c.drafted) == 4]
    assert len(cycles) > 2_000 and not any(cycle.lossless for cycle in cycles)
    mean = sum(1 + cycle.accepted for cycle in cycles) / len(cycles)
    assert abs(mean - theory.expected_tokens(0.7, 4)) < 5 * 2 / math.sqrt(len(cycles))
    assert len({token for out in outs for token in out.tokens}) > 50  # noise, not what the target says


def test_the_token_after_a_draft_is_the_targets(make_model, drafter):
    """At acceptance 0 greedy output is the target's own; at 1 every draft is accepted."""
    target = make_model()
    drafter.acceptance = 0.0
    assert ms.speculate(target, [5, 6], drafter, 3, 12).tokens == ms.generate(target, [5, 6], 12).tokens
    drafter.acceptance = 1.0
    assert [c.accepted for c in ms.speculate(target, [5, 6], drafter, 3, 12, ignore_eos=True).trace.cycles] == [3] * 3
    assert not drafter.lossless
    with pytest.raises(ValueError, match="block"):
        ms.speculate(target, [5, 6], drafter, 3, 12, rule="block", temperature=1.0)


def test_by_name():
    assert [options.drafter(name) for name in ("synthetic", "synthetic:0.8", "synthetic:1.0", "ngram")]
    for wrong in ("synthetic:", "synthetic:1.5", "synthetic:x", "nobody"):
        with pytest.raises(options.argparse.ArgumentTypeError, match="synthetic:0.8"):
            options.drafter(wrong)
