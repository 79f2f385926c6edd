"""An engine that was warmed up captures next to nothing under load, and nothing of what it served for that remains."""

import random
import sys
import time
from collections.abc import Callable

import pytest
from all_drafters import random_dflash, random_eagle, random_medusa
from fakes import Given
from reference import endless, pair

import minispec as ms
from minispec.drafters import Draft
from minispec.gpu import graph
from minispec.serving.warm_up import warm_up

pytestmark = pytest.mark.slow

D, module = ms.drafters, sys.modules[warm_up.__module__]
DRAFTERS: dict[str, Callable[[ms.Model], D.Drafter | None]] = {
    "no drafter": lambda target: None,
    "n-gram": lambda target: D.NGram(),
    "draft model": lambda target: D.Model(pair()[1]),
    "medusa": lambda target: D.Medusa(target, random_medusa(target), nodes=6),
    "eagle": lambda target: D.Eagle(target, random_eagle(target), width=3, nodes=8),
    "dflash": lambda target: D.DFlash(target, random_dflash(target), nodes=8),
}


@pytest.fixture
def captured(monkeypatch) -> list:
    """One entry for each thing that a GPU would have captured."""
    made, usual = [], graph.Captured.__init__
    monkeypatch.setattr(graph.Captured, "__init__", lambda self, *args: (made.append(1), usual(self, *args))[1])
    return made


def make(target: ms.Model, drafter: D.Drafter | None, **options) -> ms.Engine:
    return ms.Engine(target, drafter, num_blocks=512, max_num_seqs=6, k=3, **dict(fast=True) | options)


def load(engine: ms.Engine, requests: int) -> list[list[int]]:
    """Requests that come, end or are aborted at random moments; what each was answered, in the order of their ids."""
    chance, ids, outs = random.Random(1), [], {}
    while len(ids) < requests or engine.sequences:
        while len(ids) < requests and len(engine.sequences) < 6 and chance.random() < 0.5:
            prompt = [chance.randrange(8) for _ in range(chance.randrange(2, 40))]
            temperature = chance.choice([0, 0, 1])
            ids.append(engine.add(prompt, chance.randrange(4, 30), temperature=temperature, seed=len(ids)))
        engine.step()
        if engine.sequences and chance.random() < 0.1:
            engine.abort(chance.choice(list(engine.sequences)))
        outs |= engine.take()
    return [outs[id].tokens for id in ids]


@pytest.mark.parametrize(
    "name, requests", [("eagle", 8), *(pytest.param(name, 18, marks=pytest.mark.nightly) for name in DRAFTERS)]
)
def test_under_load_next_to_nothing_is_left_to_be_captured(name, requests, captured):
    target = endless(pair()[0])
    cold = make(target, DRAFTERS[name](target))
    expected = load(cold, requests)
    without = len(captured)
    warm = make(target, DRAFTERS[name](target))
    warm.warm_up()
    captured.clear()
    assert load(warm, requests) == expected
    assert without >= 10 and len(captured) <= without / 5


def test_nothing_is_left_behind():
    suffix = D.Suffix(memory=8)
    engine = make(endless(pair()[0]), suffix, fast=None, block_size=4)
    fresh = engine.metrics()
    engine.warm_up()
    assert engine.metrics() == fresh and not engine.sequences and not engine.outputs
    assert engine.pool.enable_prefix_caching and not engine.pool.blocks_of and not suffix.past
    engine.check_integrity()


@pytest.mark.filterwarnings("error:drafts of size")
def test_made_up_prompts_give_no_warning_about_a_drafter():
    wrong_and_slow = Given(lambda context, k: Draft([time.sleep(0.003 * k) or 0] * k))
    ms.Engine(endless(pair()[0]), wrong_and_slow, fast=False).warm_up(progress=False)


def test_small_engines_are_warmed_up_too():
    """Few blocks, one row, no room for the longest prompts, no drafts: what cannot be served is not asked for."""
    target = endless(pair()[0])
    for options in (dict(num_blocks=2), dict(max_num_seqs=1), dict(max_num_batched_tokens=4), dict(k=0)):
        settings = dict(num_blocks=8, max_num_seqs=3, k=2, fast=True) | options
        engine = ms.Engine(target, DRAFTERS["n-gram" if "k" in options else "eagle"](target), **settings)
        engine.warm_up()
        [out] = engine.generate([[5, 6, 7]], max_new_tokens=5)
        assert out.tokens == ms.generate(target, [5, 6, 7], 5).tokens
        engine.check_integrity()
