"""An engine on tiny models: requests that come and go, in too few blocks for all, and what each is answered."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from random import Random
from unittest.mock import patch

from all_drafters import random_eagle, random_medusa

import minispec as ms
from minispec.gpu import draft_memory

BLOCK = 4  # drafts may be longer than what is left of a block


def asks(count: int = 14, longest: int = 30, new: int = 20, seed: int = 0) -> list[tuple[list[int], dict]]:
    """Prompts, some of which begin alike, and what to do with each."""
    random = Random(seed)
    beginning, made = random.choices(range(64), k=longest // 2), []
    for i in range(count):
        prompt = beginning * (i % 2) + random.choices(range(64), k=random.randint(1, longest // 2))
        made.append((prompt, dict(max_new_tokens=random.randint(2, new), k=random.choice((None, None, 1, 6, 0)))))
    return made


def serve(target: ms.Model, drafter, fast: bool, some, at_once: int = 5, **options) -> tuple[list, ms.Engine]:
    """Serve them, `at_once` from the start and one more in every step; (tokens, finish reason) of each."""
    sizes = dict(num_blocks=60, block_size=BLOCK, max_num_seqs=7, max_num_batched_tokens=48, max_chunk=16, k=3)
    engine, outs, left = ms.Engine(target, drafter, **sizes | options, fast=fast), {}, list(some)
    for prompt, wishes in left[:at_once]:
        engine.add(prompt, **wishes)
    left = left[at_once:]
    while engine.sequences or left:
        if left:
            prompt, wishes = left.pop(0)
            engine.add(prompt, **wishes)
        engine.step()
        engine.check_integrity()
        outs |= engine.take()
    return [(outs[id].tokens, outs[id].finish_reason) for id in sorted(outs)], engine


def drafters(target: ms.Model, draft: ms.Model) -> dict[str, Callable]:
    """How to make a drafter of every kind that an engine treats in its own way."""
    D, own = ms.drafters, {}  # heads are made once: they are the same for both engines
    heads = lambda make: own.setdefault(make, make(target))  # noqa: E731
    return {
        "no drafter": lambda: None,
        "n-gram": D.NGram,
        "model": lambda: D.Model(draft),
        "lookahead": lambda: D.Lookahead(target),  # scratch tokens
        "medusa": lambda: D.Medusa(target, heads(random_medusa), nodes=7),  # trees
        "eagle": lambda: D.Eagle(target, heads(random_eagle), width=3, nodes=8),
    }


class Numbers(dict):
    """Ids, which are unique in the process, as 0, 1, 2 … in the order of their first appearance."""

    def __missing__(self, id: int) -> int:
        self[id] = len(self)
        return self[id]


def nothing_is_left(drafter: ms.drafters.Model) -> None:
    """All sequences have left: all blocks are free, once each."""
    held = drafter.memory
    assert not held.lengths and not held.tables and not drafter.committed
    assert sorted(held.free) == list(range(held.buckets.blank))


def beginning_with(rows: int, tokens: int, block: int) -> AbstractContextManager:
    """A draft model's paged memory is to be that small at first."""
    return patch.multiple(draft_memory, ROWS=rows, TOKENS=tokens, BLOCK=block)
