"""Medusa, EAGLE and DFlash by one launch for all requests of an engine (drafts.py): draft for draft what they
draft eagerly."""

import weakref
from collections.abc import Callable
from contextlib import ExitStack
from unittest.mock import patch

import pytest
import torch
from all_drafters import random_dflash, random_eagle, random_medusa, random_mtp, random_pairs
from reference import endless, pair, slow
from serving import asks, serve
from tiny_models import random_model

import minispec as ms
from minispec.gpu import drafts, heads
from minispec.gpu.captured_runner import CapturedRunner
from minispec.gpu.draft_memory import PagedMemory
from minispec.gpu.drafts import DraftsForMany, Launch
from minispec.sampling import Coins
from minispec.sequence import Sequence, next_id
from minispec.tree import cut

pytestmark = pytest.mark.slow

D = ms.drafters
KINDS: dict[str, Callable[[ms.Model], D.Drafter]] = {
    "eagle": lambda target: D.Eagle(target, random_eagle(target), width=3, nodes=8),
    "eagle, two layers": lambda target: D.Eagle(target, random_eagle(target, layers=2), width=4, nodes=11),
    "dflash": lambda target: D.DFlash(target, random_dflash(target), nodes=8),
    "dflash, short": lambda target: D.DFlash(target, random_dflash(target, block=3), nodes=5),
    "dflash2": lambda target: D.DFlash2(target, random_pairs(target), nodes=8),
    "dspark": lambda target: D.DSpark(target, random_pairs(target, D.DSparkHead), confidence=0.3),
    "medusa": lambda target: D.Medusa(target, random_medusa(target), nodes=6),
    "eagle, chain": lambda target: D.Eagle(target, random_eagle(target), tree=False),
    "dflash, chain": lambda target: D.DFlash(target, random_dflash(target), tree=False),
    "dflash2, chain": lambda target: D.DFlash2(target, random_pairs(target), tree=False),
    "medusa, chain": lambda target: D.Medusa(target, random_medusa(target), tree="chain"),
    "mtp": lambda target: D.MTP(target, random_mtp(target)),
    "mtp, tree": lambda target: D.MTP(target, random_mtp(target), tree=True, width=3, nodes=8),
}


# Every draft is begun by the host here, which the eager drafter can follow. test_captured_runner.py is about those that
# are not.
by_the_host = patch.object(CapturedRunner, "goes_on", lambda *_: False)


class Beside:
    """An eager drafter beside a captured one: it is asked for the same drafts, for each sequence alone."""

    def __init__(self, eager: D.Drafter, stack: ExitStack):
        self.eager, self.checked, self.wrong = eager, 0, []
        begin, forget = DraftsForMany.begin, DraftsForMany.forget

        def and_compare(many, contexts, k, depths):
            expected = [cut(eager.propose([c], k)[0], depth) for c, depth in zip(contexts, depths, strict=True)]
            pending = begin(many, contexts, k, depths)
            if pending.drafts() != expected:  # not raised: the engine would ask again, for each request alone
                self.wrong.append(expected)
            self.checked += sum(bool(draft.tokens) for draft in expected)
            return pending

        def and_forget(many, row):
            eager.forget(row)
            forget(many, row)

        stack.enter_context(patch.multiple(DraftsForMany, begin=and_compare, forget=and_forget))


def check_drafts(kind: str, device: str, **options) -> None:
    """Requests of different lengths that come and go; few rows and short memory at first."""
    target = pair(device)[0]
    for model, blocks in ((target, 90), (endless(target), 24)):
        usual, _ = serve(model, None, False, asks(), num_blocks=blocks)
        with patch.multiple(drafts, ROWS=2, TOKENS=16), ExitStack() as stack:
            drafter, beside = KINDS[kind](model), Beside(KINDS[kind](model), stack)
            found, engine = serve(model, drafter, True, asks(), num_blocks=blocks, **options)
        errors = [job.error for job in engine.outputs.values() if job.error]
        assert found == usual and not errors and not beside.wrong and beside.checked > 20
        assert blocks > 24 or engine.metrics()["totals"]["preemptions"] > 0
        memory = drafter.captured
        assert not memory.rows and not memory.held and sorted(memory.free) == list(range(memory.count))
        assert engine.runner.buckets.drafted
        assert "eagle" not in kind or engine.metrics()["totals"]["accepted"] > 0


SOME = "eagle", "dflash", "medusa", "mtp", "eagle, chain"


@pytest.mark.parametrize("kind", [k if k in SOME else pytest.param(k, marks=pytest.mark.nightly) for k in KINDS])
@by_the_host
def test_the_same_drafts(kind, device):
    check_drafts(kind, device)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["eagle", "dflash"])
@by_the_host
def test_the_same_drafts_under_other_budgets(kind, device):
    for budget in (2, 9, 500):
        check_drafts(kind, device, draft_budget=budget, k=4)


@pytest.mark.parametrize("kind", SOME)
@by_the_host
def test_one_launch_for_all(kind, monkeypatch):
    launches, right = [], Launch.work
    monkeypatch.setattr(Launch, "work", lambda self: launches.append(1) or right(self))
    target = pair()[0]
    engine = ms.Engine(endless(target), KINDS[kind](target), k=3, fast=True)
    for i in range(6):
        engine.add([5, 6, i], 12)
    for drafted in (0, 1, 2, 3):  # the prompts' step drafts nothing
        engine.step()
        assert len(launches) == drafted


@pytest.mark.parametrize("kind", ["eagle", "dflash"])
@by_the_host
def test_a_request_that_is_not_drafted_for_keeps_its_memory(kind):
    """Drafts for some sequences in between change nothing for the others."""
    target = random_model(num_layers=3)
    drafters = [KINDS[kind](target) for _ in range(2)]
    drafters[0].capture()
    generator = torch.Generator().manual_seed(0)
    states = {
        n: torch.randn(40, target.config.hidden_size, generator=generator, dtype=torch.float64)
        for n in drafters[0].hidden_layers
    }
    tokens = torch.randint(64, (41,), generator=generator).tolist()
    ids, seen = [next_id() for _ in range(5)], dict.fromkeys(range(5), 0)

    def context(i: int, length: int) -> Sequence:
        hidden = {n: s[seen[i] : length - 1] + i for n, s in states.items()}
        return Sequence(ids[i], tokens[:length], ms.Sampling(), Coins(0), [hidden])

    for asked, length in (((0, 1, 2, 3), 9), ((1,), 12), ((2, 3), 13), ((0, 4), 10), ((3, 1), 30), ((4, 0), 33)):
        contexts = [context(i, length) for i in asked]
        made, expected = (drafter.propose(contexts, 3) for drafter in drafters)
        assert made == expected and all(draft.tokens for draft in made)
        seen |= dict.fromkeys(asked, length - 1)


@pytest.mark.parametrize("most, passes", [(1024, [(16, 16)]), (64, [(4, 16), (1, 16)]), (8, [])])
@by_the_host
def test_the_prompts_of_all_requests_reach_the_drafter_at_once(most, passes, monkeypatch):
    """By one captured pass, or few; longer ones by ordinary passes, each alone. The drafts are the same."""
    seen, right = [], DraftsForMany._early
    monkeypatch.setattr(DraftsForMany, "_early", lambda self, *shape: seen.append(shape) or right(self, *shape))
    monkeypatch.setattr(drafts, "EARLY", most)
    target = endless(pair()[0])
    with ExitStack() as stack:
        beside = Beside(KINDS["eagle"](target), stack)
        engine = ms.Engine(target, KINDS["eagle"](target), k=3, fast=True)
        for i in range(5):
            engine.add([5, 6, 7, 8, 9, 1, 2, 3, 4][: 6 + i % 4], 12)
        engine.run()
    assert seen == passes and beside.checked and not beside.wrong


def tensors_of(drafter: D.Drafter) -> list[weakref.ref]:
    """All that captured drafting has taken for this drafter, and its draft model's memory in blocks."""
    owners = [drafter.captured, getattr(drafter.captured, "memory", None)]
    owners += [owner.cache for owner in owners if isinstance(owner, PagedMemory)]
    found = [value for owner in owners if owner for value in vars(owner).values() if torch.is_tensor(value)]
    return [weakref.ref(tensor) for tensor in found]


@pytest.mark.parametrize("kind", ["eagle", "dflash", "medusa", "model"])
def test_a_drafter_s_memory_goes_with_its_engine_and_comes_with_the_next(kind, device):
    target, draft = pair(device)
    drafter, tokens = D.Model(draft) if kind == "model" else KINDS[kind](target), []
    for _ in range(2):
        found, engine = serve(target, drafter, True, asks(6))
        other = ms.Engine(target, drafter, num_blocks=60, k=3, fast=True)
        id = other.add([5, 6, 7], 12)
        for _ in range(3):
            other.step()
        engine.shutdown()
        assert other.run()[id].tokens == ms.generate(slow(target), [5, 6, 7], 12).tokens, "it had a request there"
        held = tensors_of(drafter)
        assert len(held) > 1 and all(tensor() is not None for tensor in held)
        other.shutdown()
        assert not any(tensor() is not None for tensor in held)
        tokens.append(found)
    assert tokens[0] == tokens[1] == serve(target, None, False, asks(6))[0]


@pytest.mark.parametrize("kind", ["eagle", "dflash"])
def test_every_shape_works_in_the_one_memory(kind, monkeypatch):
    """Each shape of a launch once allocated a whole memory of its own, which was thrown away at once."""
    caches, right = [], heads.KVCache
    monkeypatch.setattr(heads, "KVCache", lambda *args, **options: caches.append(1) or right(*args, **options))
    drafter = KINDS[kind](pair()[0])
    serve(endless(pair()[0]), drafter, True, [([5, 6, 7], dict(max_new_tokens=9))])
    drafter.captured.prepare()
    assert len(drafter.captured.launches) > 5 and len(caches) == 1
