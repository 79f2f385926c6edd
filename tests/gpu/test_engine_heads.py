"""Medusa, EAGLE and DFlash by one launch for all requests of an engine: draft for draft what they draft eagerly."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import pytest
import torch
from all_drafters import ALL, random_dflash, random_eagle, random_medusa
from bucket_checks import Numbers, asks, texts
from fast_checks import pair
from mutants.patching import rewrite
from test_fast import NoLooking
from tiny_models import random_model

import minispec as ms
from minispec.drafters import Context
from minispec.drafters.base import next_id
from minispec.gpu import engine_heads
from minispec.gpu.engine_heads import DraftsForMany, Launch, MedusaForMany

D = ms.drafters
KINDS: dict[str, Callable[[ms.Model], D.Drafter]] = {
    "eagle": lambda target: D.Eagle(target, random_eagle(target), width=3, nodes=8),
    "eagle, two layers": lambda target: D.Eagle(target, random_eagle(target, layers=2), width=4, nodes=11),
    "eagle, one child": lambda target: D.Eagle(target, random_eagle(target), width=1, nodes=3),
    "dflash": lambda target: D.DFlash(target, random_dflash(target), nodes=8),
    "dflash, short": lambda target: D.DFlash(target, random_dflash(target), block=3, nodes=5),
    "medusa": lambda target: D.Medusa(target, random_medusa(target), nodes=6),
    "medusa, chain": lambda target: D.Medusa(target, random_medusa(target), tree="chain"),
}


class Notes:
    """Every draft that a drafter made, and for which sequence."""

    def __init__(self, drafter: D.Drafter):
        self.drafts, self.numbers, right = [], Numbers(), drafter.propose

        def propose(contexts, k):
            made = right(contexts, k)
            for c, draft in zip(contexts, made, strict=True):
                self.drafts.append((self.numbers[c.row], len(c.tokens), k, draft.tokens, draft.parents))
            return made

        drafter.propose = propose


def served(target: ms.Model, kind: str, recorded: bool, some, **options) -> tuple[list, list, D.Drafter, ms.Engine]:
    drafter = KINDS[kind](target)
    if not recorded:
        drafter.for_many = None
    notes = Notes(drafter)
    found, engine = texts(target, drafter, True, some, **options)
    assert (drafter.recorded is not None) == recorded
    return found, notes.drafts, drafter, engine


def check_drafts(kind: str, device="cpu", dtype=torch.float64, **options) -> None:
    """Requests of different lengths that come and go, some sampled; few rows and short memory at first."""
    target = pair(device, dtype)[0]
    endless = ms.Model("endless", target.transformer)
    ways = (dict(), dict(temperature=0.8), dict())
    some = [(prompt, wishes | ways[i % 3] | dict(seed=i)) for i, (prompt, wishes) in enumerate(asks())]
    with patch.multiple(engine_heads, ROWS=2, TOKENS=16):
        for model, blocks in ((target, 90), (endless, 24)):
            found, drafts, drafter, engine = served(model, kind, True, some, num_blocks=blocks, **options)
            expected, eager, *_ = served(model, kind, False, some, num_blocks=blocks, **options)
            assert drafts == eager and found == expected and any(tokens for *_, tokens, _ in drafts)
            assert blocks > 24 or engine.metrics()["totals"]["preemptions"] > 0
            if isinstance(drafter.recorded, DraftsForMany):
                memory = drafter.recorded
                assert not memory.rows and not memory.held and sorted(memory.free) == list(range(memory.count))


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_drafts(kind):
    check_drafts(kind)


@pytest.mark.parametrize("kind", ["eagle", "dflash"])
@pytest.mark.parametrize("budget", [2, 9, 500])
def test_the_same_drafts_under_other_budgets(kind, budget):
    check_drafts(kind, draft_budget=budget, k=4)


@pytest.mark.parametrize("kind, owner", [("eagle", Launch), ("dflash", Launch), ("medusa", MedusaForMany)])
def test_one_launch_for_all(kind, owner, monkeypatch):
    launches, right = [], owner.work
    monkeypatch.setattr(owner, "work", lambda self, *args: launches.append(1) or right(self, *args))
    target = pair()[0]
    engine = ms.Engine(ms.Model("endless", target.transformer), KINDS[kind](target), k=3, fast=True)
    for i in range(6):
        engine.add([5, 6, i], 12)
    for drafted in (0, 1, 2, 3):  # the prompts' step drafts nothing
        engine.step()
        assert len(launches) == drafted


def test_nobody_looks_at_a_number():
    target = pair()[0]
    for kind in ("eagle", "dflash"):
        drafter = KINDS[kind](target)
        texts(target, drafter, True, asks(4))
        for launch in drafter.recorded.launches.values():
            with NoLooking(), torch.inference_mode(False), torch.no_grad():
                launch.work()


@pytest.mark.parametrize("kind", ["eagle", "dflash"])
def test_who_is_not_asked_keeps_its_memory(kind):
    """Drafts for some sequences in between change nothing for the others."""
    target = random_model(num_layers=3)
    drafters = [KINDS[kind](target) for _ in range(2)]
    drafters[0].record()
    generator = torch.Generator().manual_seed(0)
    states = {n: torch.randn(40, target.config.hidden_size, generator=generator, dtype=torch.float64)
              for n in drafters[0].hidden_layers}  # fmt: skip
    tokens = torch.randint(64, (41,), generator=generator).tolist()
    ids, seen = [next_id() for _ in range(5)], dict.fromkeys(range(5), 0)

    def context(i: int, length: int) -> Context:
        hidden = {n: s[seen[i] : length - 1] + i for n, s in states.items()}
        return Context(ids[i], tokens[:length], ms.Sampling(), torch.Generator(), hidden)

    for asked, length in (((0, 1, 2, 3), 9), ((1,), 12), ((2, 3), 13), ((0, 4), 10), ((3, 1), 30), ((4, 0), 33)):
        contexts = [context(i, length) for i in asked]
        made, expected = (drafter.propose(contexts, 3) for drafter in drafters)
        assert made == expected and all(draft.tokens for draft in made)
        seen |= dict.fromkeys(asked, length - 1)


def test_rows_are_given_again_and_the_first_are_taken():
    target = pair()[0]
    drafter = KINDS["eagle"](target)
    engine = ms.Engine(ms.Model("endless", target.transformer), drafter, k=2, fast=True)
    ids = [engine.add([5, 6, i], 40) for i in range(3)]
    for _ in range(3):
        engine.step()
    memory = drafter.recorded
    assert sorted(memory.rows.values()) == [0, 1, 2]
    engine.abort(ids[1])
    engine.add([8, 9], 40)
    engine.step(), engine.step()
    assert sorted(memory.rows.values()) == [0, 1, 2]
    engine.shutdown()
    assert not memory.rows


def test_chains_and_sampled_chains_stay_eager():
    target, draft = pair()
    for name in ("eagle, chain", "dflash"):
        drafter = ALL[name](target, draft)
        drafter.record()
        assert drafter.recorded is None


def test_sequences_under_way_are_not_recorded():
    target = pair()[0]
    for kind in ("eagle", "dflash"):
        drafter = KINDS[kind](target)
        usual = ms.Engine(target, drafter, k=2)
        usual.add([5, 6, 7], 8)
        usual.step(), usual.step()
        ms.Engine(target, drafter, k=2, fast=True)
        assert drafter.recorded is None
        usual.run()
        ms.Engine(target, drafter, k=2, fast=True)
        assert drafter.recorded is not None


# ---------------------------------------------------------------- broken variants

MUTANTS = {
    "who rides along is overwritten": (DraftsForMany, "propose", "[len(positions), 0,", "[0, 0,",
                                       partial(test_who_is_not_asked_keeps_its_memory, "eagle")),
    "states of the request before": (DraftsForMany, "propose", "range(first, first + count)", "range(count)", None),
    "all get the same nodes": (Launch, "work", "drafts.budgets, drafts.depths, last", "_, drafts.depths, last", None),
    "depth is forgotten": (Launch, "work", "drafts.budgets, drafts.depths, last", "drafts.budgets, _, last", None),
    "long prompts lose their beginning": (DraftsForMany, "propose", "if (early := count - T) > 0:",
                                          "if (early := count - T) > 0 and False:", None),
    "rows are not given back": (DraftsForMany, "forget", "heappush(self.free, self.rows.pop(row))", "pass", None),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name, monkeypatch):
    owner, method, old, new, check = MUTANTS[name]
    rewrite(monkeypatch, owner, method, old, new)
    with pytest.raises((AssertionError, ValueError, IndexError, RuntimeError)):
        (check or (lambda: check_drafts("eagle", draft_budget=20)))()
        pytest.fail("nobody notices", pytrace=False)


# ---------------------------------------------------------------- on a GPU, recorded


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["eagle", "dflash", "medusa"])
def test_recorded(kind):
    check_drafts(kind, "cuda", torch.float32)
