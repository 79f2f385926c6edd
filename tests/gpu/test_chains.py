"""A draft model's chains by one launch for all requests of an engine (chains.py): cycle for cycle what it drafts
eagerly."""

from dataclasses import replace

import pytest
from all_drafters import random_eagle, random_mtp, random_pairs
from reference import endless, pair
from serving import asks, beginning_with, nothing_is_left, serve
from tiny_models import random_model

import minispec as ms
from minispec.gpu.captured_runner import CapturedRunner
from minispec.gpu.chains import ChainLaunch, ModelForMany
from minispec.gpu.draft_memory import PagedMemory
from minispec.tree import cut

pytestmark = pytest.mark.slow

D = ms.drafters
WAYS = (dict(temperature=0.8), dict(), dict(temperature=1.2, top_k=9, top_p=0.9), dict(temperature=1.0, min_p=0.05))


def greedy() -> list[tuple]:
    return sampled(({},))


def sampled(ways=WAYS) -> list[tuple]:
    return [(prompt, wishes | ways[i % len(ways)] | dict(seed=i)) for i, (prompt, wishes) in enumerate(asks())]


def cycles(engine: ms.Engine, some: list[tuple]) -> list[tuple]:
    """Serve them all; of each what it emitted, and what each cycle drafted, with which probabilities, and kept."""
    ids = [engine.add(prompt, **wishes) for prompt, wishes in some]
    outs = engine.run()
    told = []
    for out in (outs[id] for id in ids):
        assert out.error is None
        done = out.trace.cycles if out.trace else []  # none, for a request that is never drafted for
        each = [(c.drafted, c.parents, c.path, c.token, c.committed) for c in done]
        told.append((out.tokens, out.finish_reason, each, [c.q for c in done]))
    return told


def both(target: ms.Model, make, some: list[tuple], **options) -> tuple[ms.Engine, D.Drafter]:
    """The captured engine's cycles are the eager one's."""
    sizes = dict(num_blocks=60, block_size=4, max_num_seqs=7, max_num_batched_tokens=48, max_chunk=16, k=3)
    with beginning_with(2, 8, 4):  # rows and blocks are too few at first
        engines = [ms.Engine(target, make(), **sizes | options, fast=fast) for fast in (True, False)]
        found, expected = (cycles(engine, some) for engine in engines)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine[:3] == theirs[:3]
        for q, other in zip(mine[3], theirs[3], strict=True):
            assert (q is None) == (other is None) and (q is None or q == pytest.approx(other, abs=1e-9))
    drafter = engines[0].drafter
    if isinstance(drafter, D.Model):
        nothing_is_left(drafter)
    assert not drafter.captured.rows and engines[0].metrics()["totals"]["accepted"] > 0
    return engines[0], drafter


@pytest.fixture
def by_the_host(monkeypatch):
    """No cycle is launched ahead: slots reserved for it would change how deep others draft where blocks are short."""
    monkeypatch.setattr(CapturedRunner, "goes_on", lambda *_: False)


@pytest.mark.parametrize("some, rule", [(greedy, "token"), (sampled, "token"), (sampled, "block")])
def test_the_same_cycles_seed_for_seed(some, rule, by_the_host):
    target, draft = pair()
    engine, drafter = both(target, lambda: D.Model(draft), some(), rule=rule)
    assert engine.runner.buckets.drafted, "the drafts never stayed on the device"
    assert all(cuts is None for _, _, cuts in drafter.captured.launches) == (some is greedy)
    engine, _ = both(
        endless(target), lambda: D.Model(draft), some(), num_blocks=22, enable_prefix_caching=False, rule=rule
    )
    assert engine.metrics()["totals"]["preemptions"] > 0


@pytest.mark.parametrize("kind", [lambda target: D.EarlyExit(target, 2), lambda target: D.Quantized(target, 4)])
def test_models_made_of_the_target(kind):
    target = pair()[0]
    both(target, lambda: kind(target), sampled())


HEADS = {
    "eagle": lambda target: D.Eagle(target, random_eagle(target), tree=False),
    "mtp": lambda target: D.MTP(target, random_mtp(target)),
    "dspark": lambda target: D.DSpark(target, random_pairs(target, D.DSparkHead), confidence=0.3),
    "eagle, warmer": lambda target: D.Eagle(target, random_eagle(target), tree=False, sampling=ms.Sampling(1.5, 9)),
}


@pytest.mark.parametrize("rule", ["token", pytest.param("block", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", HEADS)
def test_sampled_chains_of_heads(name, rule):
    target = pair()[0]
    engine, drafter = both(target, lambda: HEADS[name](target), sampled(), rule=rule)
    assert engine.runner.launched > 3 and any(steps for *_, steps in drafter.captured.launches)


def test_subclasses_that_draft_in_their_own_way_are_asked():
    """And those that do not are captured as what they are derived from."""

    class Named(D.Eagle):
        def __repr__(self):
            return "Named"

    class Careful(D.Eagle):
        asked = 0

        def draft(self, sequences, k):
            Careful.asked += 1
            return [cut(draft, 1) for draft in super().draft(sequences, k)]

    target = pair()[0]
    for kind in (Named, Careful):
        drafter = kind(target, random_eagle(target), width=3, nodes=8)
        found, _ = serve(target, drafter, True, greedy())
        assert found == serve(target, None, False, greedy())[0]
        assert bool(drafter.captured) == (kind is Named) == (not Careful.asked)
        model = ms.Model("twin", target.transformer, None, target.end_tokens)
        model.accelerate()
        out = ms.speculate(model, [3, 1, 4, 1, 5], kind(model, random_eagle(model), width=3, nodes=8), 3, 20)
        depths = {len(cycle.path) for cycle in out.trace.cycles} | {len(set(c.parents or [])) for c in out.trace.cycles}
        assert out.tokens == ms.generate(target, [3, 1, 4, 1, 5], 20).tokens and (max(depths) > 1) == (kind is Named)


def test_a_sampling_of_its_own():
    """The draft model may sample where the target does not, and the other way round."""
    target, draft = pair()
    for own in (ms.Sampling(temperature=0.7, top_k=20), ms.Sampling()):
        both(target, lambda own=own: D.Model(draft, own), sampled())
        engine, _ = both(target, lambda own=own: D.Model(draft, own), greedy())
        assert bool(engine.runner.cycles.captures) == own.greedy  # the ends of cycles, before the host has them


def test_what_only_the_host_knows_goes_pass_by_pass_through_the_same_memory():
    target, draft = pair()
    ways = (dict(), dict(temperature=0.9), dict(repetition_penalty=1.3), dict(temperature=0.9, frequency_penalty=0.5))
    _, drafter = both(target, lambda: D.Model(draft), sampled(ways))
    assert drafter.captured.launches


def test_past_its_context_length_there_is_nothing_to_draft():
    target, draft = pair()
    short = ms.Model("short", random_like(draft, max_length=30))
    some = [([5, 6, i], dict(max_new_tokens=50, k=1 + i)) for i in range(4)]
    found, engine = serve(endless(target), D.Model(short), True, some, k=4)
    expected = ms.generate(endless(target), [prompt for prompt, _ in some], 50)
    assert [tokens for tokens, _ in found] == [out.tokens for out in expected]
    assert engine.runner.launched > 3 and engine.metrics()["totals"]["accepted"] > 0


def test_many_new_prompts_do_not_hold_up_the_others(monkeypatch):
    """Twelve prompts of 40 tokens, unread as after a rest, of which a captured pass takes 100: two in a cycle, and the
    others draft later."""
    target, draft = pair()
    monkeypatch.setattr(ModelForMany, "read_prompts", lambda *_: None)
    target, seen, process = endless(target), [], PagedMemory.process
    monkeypatch.setattr(PagedMemory, "process", lambda self, new: seen.append(new) or process(self, new))
    monkeypatch.setattr(ModelForMany, "_renew", lambda self, k, right=ModelForMany._renew: (right(self, k), few(self)))

    def few(many: ModelForMany) -> None:
        many.buckets.prompts.tokens = 100

    some = [([1 + i, *range(2, 41)], dict(max_new_tokens=24)) for i in range(12)]
    found, engine = serve(target, D.Model(draft), True, some, k=3, max_num_batched_tokens=1024, num_blocks=400)
    assert [tokens for tokens, _ in found] == [out.tokens for out in ms.generate(target, [p for p, _ in some], 24)]
    assert len(seen) >= 6 and all(sum(map(len, new.values())) <= 100 for new in seen)
    assert engine.metrics()["totals"]["accepted"] > 0


def test_prompts_are_processed_when_the_target_processes_them():
    target, draft = pair()
    engine = ms.Engine(target, D.Model(draft), k=3, fast=True, max_num_batched_tokens=64, num_blocks=100)
    for i in range(3):
        engine.add([1 + i, *range(2, 31)], 8)
    engine.step()  # two prompts and the beginning of the third
    assert list(engine.drafter.memory.lengths.values()) == [29, 29]
    engine.run()


def random_like(draft: ms.Model, **options):
    """The same weights in another Config."""
    twin = random_model(num_layers=draft.config.num_layers).transformer
    twin.load_state_dict(draft.transformer.state_dict())
    twin.config = replace(draft.config, **options)
    return twin


@pytest.mark.parametrize("options", [{}, dict(temperature=1.0, seed=3)])
def test_one_launch_drafts_for_all(options, monkeypatch):
    launches, right, passes, process = [], ChainLaunch.work, [], PagedMemory.process
    monkeypatch.setattr(ChainLaunch, "work", lambda self: launches.append(self.rows) or right(self))
    monkeypatch.setattr(PagedMemory, "process", lambda self, *rest: passes.append(1) or process(self, *rest))
    target, draft = pair()
    engine = ms.Engine(endless(target), D.Model(draft), k=3, fast=True)
    assert type(engine.drafter.captured) is ModelForMany
    for i in range(6):
        engine.add([5, 6, i], 30, **options)
    engine.step()  # the prompts, after which nothing is drafted
    for step in range(1, 6):
        engine.step()
        assert launches == [8] * (step + 1)  # the next cycle is under way, too
        assert passes == [1], "the draft model processes the prompts, and then what is new inside the launch"
