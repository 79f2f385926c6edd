"""The experiments of lessons 08, 10 and 15 with drafters: what they count and compare."""

import pytest
import torch

import minispec as ms
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
def test_the_layer_and_the_block_are_those_of_the_drafters(target, story):
    """Without caches, and with a mask that is given: the same first draft."""
    prompt, _ = story
    head, blocks, n = D.EagleHead.load(target), D.DFlashHead.load(target), len(prompt) - 1
    streams = drafting.Target(target, prompt, head.hidden_layers).streams  # [3, n, d]
    f = drafting.run_layer(head, head.fuse(list(streams)), prompt[1:])
    mask, positions = torch.ones(blocks.block, n + blocks.block).bool(), range(n, n + blocks.block)
    [filled] = drafting.fill_blanks(target, blocks, streams, prompt[-1:], mask, list(positions))
    found = [drafting.everywhere(head, head.logits(f[-1])).argmax(-1), *filled.argmax(-1)]
    drafters = D.Eagle(target, head, tree=False), D.DFlash(target, blocks, tree=False)
    cycles = [ms.speculate(target, prompt, drafter, 5, 6).trace.cycles[0].drafted for drafter in drafters]
    assert torch.tensor(found).tolist() == [cycles[0][0], *cycles[1]]
