"""The experiments of lessons 08, 10 and 15 with drafters: what they count and compare."""

from __future__ import annotations

import pytest
import torch

import minispec as ms
from minispec.drafters.dflash import load_head
from minispec_course.labs import drafting

D = ms.drafters


@pytest.fixture(scope="module")
def target():
    return ms.load("micro", device="cpu", dtype=torch.float64)


@pytest.fixture(scope="module")
def story(target):
    prompt = target.encode("One day, a girl named Lily")
    return prompt, prompt + ms.generate(target, prompt, max_new_tokens=40).tokens


@pytest.mark.slow
def test_a_shifted_token_is_what_the_head_was_trained_on(target, story):
    prompt, tokens = story
    head = D.EagleHead.load(target)
    shifted, not_shifted = (drafting.step_accuracy(target, head, tokens, len(prompt), shift=s)[0] for s in (1, 0))
    assert shifted > 0.3 > not_shifted


def test_a_block_among_others_is_the_block_alone(target, story):
    _, tokens = story
    head = load_head(target)
    together = drafting.blocks_together(target, head, tokens, [12, 5])
    for block, anchor in zip(together, (12, 5), strict=True):
        assert torch.allclose(block, drafting.block_alone(target, head, tokens, anchor))
