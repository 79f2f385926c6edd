"""A draft model's memory in blocks drafts what its contiguous memory does, whatever happens to its sequences."""

from itertools import chain
from random import Random

import pytest
import torch
from reference import close, pair, slow
from serving import Numbers, beginning_with, nothing_is_left
from tiny_models import random_model

import minispec as ms
from minispec.drafters.model import ContiguousMemory
from minispec.gpu.draft_memory import PagedMemory
from minispec.sampling import Coins
from minispec.sequence import Sequence
from minispec_tools.bench.slower import with_wrong_kernel

pytestmark = pytest.mark.slow

PROMPTS = [[3, 1, 4, 1, 5], [9], [2, 6], [5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8], [27, 18, 28]]


class Noted(ms.drafters.Model):
    """Keeps every draft that it made, and what for."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.notes: list[tuple] = []

    def propose(self, contexts, k):
        drafts = super().propose(contexts, k)
        self.notes += [(c.id, list(c.tokens), d.tokens, d.probs) for c, d in zip(contexts, drafts, strict=True)]
        return drafts


def same_drafts(found: Noted, expected: Noted) -> None:
    """Draft for draft the same tokens, sampled from the same distributions."""
    assert len(found.notes) == len(expected.notes)
    numbers = Numbers(), Numbers()
    for (row, *mine, q), (other, *theirs, expected_q) in zip(found.notes, expected.notes, strict=True):
        assert numbers[0][row] == numbers[1][other] and mine == theirs and (q is None) == (expected_q is None)
        if q is not None:
            close(q, expected_q, 1e-9, f"the distributions of a draft for sequence {row}")


def live(draft: ms.Model, seed: int, events: int = 14) -> PagedMemory:
    """Sequences join, sit out, lose tokens, are rewound or not drafted for, and leave; two drafters hear the same.

    Free blocks hold NaN: nothing may read them.
    """
    random = Random(seed)
    both = paged, contiguous = Noted(draft), Noted(draft)
    paged.capture()
    known, fresh, some = {}, iter(range(1000)), lambda most: random.choices(range(64), k=random.randint(1, most))
    ways = [ms.Sampling(), ms.Sampling(temperature=0.9), ms.Sampling(temperature=1.3, top_k=7)]
    for event in range(events):
        for _ in range(random.randint(0 if known else 1, 3)):
            known[next(fresh)] = some(12)
        chosen, k = random.sample(sorted(known), random.randint(1, len(known))), random.randint(1, 4)
        sampled = random.random() < 0.5
        for drafter in both:
            seeds = {row: Coins(100 * event + row) for row in chosen}
            drafter.propose([Sequence(row, list(known[row]), ways[row % 3 * sampled], seeds[row]) for row in chosen], k)
        drafts = {row: tokens for row, _, tokens, _ in contiguous.notes[-len(chosen) :]}
        for row in chosen:
            a = random.choice((0, k, random.randint(0, k)))
            known[row] += [*drafts[row][:a], some(1)[0]]
            for drafter in both:
                drafter.settle(row, range(a), known[row][-1])
        for row in known:
            if row not in chosen:
                known[row] += some(3)  # plain decoding, for a cycle or three
            elif random.random() < 0.2:  # a cascade's target refuses a part of the text
                length = random.randint(0, len(known[row]) - 1)
                known[row][length:] = some(4)
                for drafter in both:
                    drafter.rewind(row, length)
        assert paged.memory.lengths == contiguous.memory.lengths
        for row in random.sample(sorted(known), random.choice((0, 0, 1, 2)) if len(known) > 2 else 0):
            del known[row]
            for drafter in both:
                drafter.forget(row)
        held = paged.memory
        assert sorted(chain(held.free, *held.tables.values())) == list(range(held.buckets.blank))
        held.cache.keys[:, held.free] = held.cache.values[:, held.free] = torch.nan
    same_drafts(paged, contiguous)
    for row in known:
        paged.forget(row)
    nothing_is_left(paged)
    return paged.memory


def test_any_order_of_events():
    draft = random_model(num_layers=1)
    with beginning_with(2, 8, 4):
        grown = [live(draft, seed) for seed in range(3)]
    assert max(held.buckets.rows for held in grown) >= 8 and min(held.buckets.blank for held in grown) > 8


def test_blocks_are_for_engines_that_capture(tiny):
    other = with_wrong_kernel(tiny)

    def served(drafter, fast) -> type:
        ms.Engine(tiny, drafter, num_blocks=8, fast=fast)
        return type(drafter.memory)

    model = ms.drafters.Model
    assert served(model(tiny), False) is served(model(other), True) is ContiguousMemory
    assert served(model(tiny), True) is PagedMemory


def test_a_cascade_keeps_its_captured_memory():
    """Many calls, one memory and one set of captures. A pass of the middle model verifies what the inner one drafted:
    that too is one launch."""
    target, draft = (slow(model) for model in pair())
    cascade = ms.drafters.Cascade(ms.drafters.NGram(), draft, inner_k=3)
    target.accelerate()
    memories, captures = set(), []
    for prompt in (*PROMPTS, *PROMPTS):
        out = ms.speculate(target, prompt, cascade, 3, 20)
        assert out.tokens == ms.generate(slow(target), prompt, 20).tokens
        memories.add(id(cascade.memory.buckets))
        captures.append(len(cascade.memory.buckets.captures))
        nothing_is_left(cascade)
    assert type(cascade.memory) is PagedMemory and len(memories) == 1
    assert captures[-1] == captures[len(PROMPTS) - 1], "captured anew"
    assert max(tokens for _, tokens, *_ in cascade.memory.buckets.captures) == 5  # the last two and the inner draft
