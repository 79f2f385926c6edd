"""What is counted in real forward passes is what the formulas of theory.py say."""

from __future__ import annotations

import pytest
import torch

import minispec as ms
from minispec import theory
from minispec_course.labs.counting import CountWork

MICRO = ms.load("micro", device="cpu")


@torch.inference_mode()
@pytest.mark.parametrize("length", [7, 40])
@pytest.mark.parametrize("cached", [True, False])
def test_the_work_of_a_step_is_the_formulas(length, cached):
    tokens = torch.arange(length)[None]
    cache = MICRO.transformer.new_cache() if cached else None
    if cached:
        MICRO.transformer(tokens[:, :-1], cache)
    with CountWork(MICRO) as counted:
        MICRO.transformer(tokens[:, -1:] if cached else tokens, cache, last_only=True)
    assert counted.work == theory.step_work(length, cached)


@torch.inference_mode()
def test_flops_grow_with_the_tokens_and_counting_ends_with_the_block():
    found = []
    for tokens in (1, 5):
        with CountWork(MICRO) as counted:
            MICRO.transformer(torch.zeros(1, tokens, dtype=torch.long))
        MICRO.transformer(torch.zeros(1, 3, dtype=torch.long))  # outside: not counted
        found.append(counted.flops)
    assert found[1] == 5 * found[0] > 0
    matrices = [m.weight.numel() for m in MICRO.transformer.modules() if isinstance(m, torch.nn.Linear)]
    assert found[0] == 2 * sum(matrices)
