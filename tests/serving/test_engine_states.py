"""Drafters that read the target's hidden states: they are shown every position once, whatever happens in the engine."""

from random import Random

import pytest
import torch
from all_drafters import ALL
from engine_helpers import check_greedy, endless, pair, random_requests, serve
from fakes import Given

import minispec as ms
from minispec.drafters import Draft
from minispec.gpu.passes import Buckets
from minispec.sequence import Sequence

HEADS = [name for name in ALL if name.partition(",")[0] in ("medusa", "eagle", "dflash", "dflash2", "mtp")]
QUICK = [("eagle, tree", False), ("eagle, tree", True), ("medusa", False), ("dflash, tree", True)]


@pytest.mark.parametrize("fast", [False, True])
def test_a_drafter_is_shown_every_state_in_order_and_once(fast):
    """Or all of them again after a preemption; also those that another request, perhaps aborted since, has computed."""
    target = pair()[0]
    layers, shown, wrong = (0, 1), {}, []

    class Listener(Given):
        hidden_layers, extra = layers, 4

        def forget(self, row: int) -> None:
            super().forget(row)
            shown.pop(self.number(row), None)

    def make(context: Sequence, k: int) -> Draft:
        states = shown.setdefault(context.id, {n: [] for n in layers})
        expected = target.transformer(torch.tensor([context.tokens[:-1]]), hidden_layers=layers).hidden
        for n in layers:
            states[n].append(context.hidden[n])
            together, right = torch.cat(states[n]), expected[n][0]
            if together.shape != right.shape or not torch.allclose(together, right, rtol=0, atol=1e-12):
                wrong.append(context.tokens)  # not raised: the engine would ask again, for each request alone
        last = target.transformer(torch.tensor([context.tokens]), last_only=True).logits[0, -1].argmax().item()
        return Draft([63, last, 62][: 3 * k], None, [-1, -1, 1][: 3 * k])  # k = 1 is cut to the first level

    drafter, requests = Listener(make), random_requests(16, 40, 16)
    engine = check_greedy(drafter, requests, preemptions=2, aborts=0.05, num_blocks=24, fast=fast)
    assert not wrong and len(drafter.forgotten) > 16  # each request at its end, some of them in between
    assert engine.pool.stats().prefix_hits > 3


@pytest.mark.parametrize(
    "name, fast",
    [
        pytest.param(name, fast, marks=[] if (name, fast) in QUICK else pytest.mark.nightly)
        for name in HEADS
        for fast in (False, True)
    ],
)
def test_a_cached_prefix_brings_its_hidden_states(name, fast):
    """A request that begins like another computes the rest alone, and its drafts are those that it gets without prefix
    caching: after one that has ended, beside one that goes on, and after one that was aborted."""
    target, prefix, runs = endless(), Random(0).choices(range(64), k=200), []
    for caching in (True, False):
        engine = ms.Engine(target, ALL[name](*pair()), k=3, fast=fast, enable_prefix_caching=caching)
        processed = []
        for end, new in ([5, 6], 16), ([7, 8, 9], 40), ([1, 7], 40), ([2], 16):
            id = engine.add([*prefix, *end], new)
            processed.append(next(row.tokens for row in engine.step().rows if row.id == id))
            while new == 16 and id in engine.sequences:
                engine.step()
            if end == [1, 7]:
                engine.abort(1)
        assert processed == ([202, 11, 10, 9] if caching else [202, 203, 202, 201])
        cycles = {id: out.trace.cycles for id, out in serve(engine).items()}
        assert all(any(cycle.drafted for cycle in cycles[id]) for id in cycles if id != 1)
        runs.append({id: [(c.drafted, c.parents, c.path, c.token) for c in cycles[id]] for id in cycles})
    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    "name, fast", [("eagle, tree", False), ("eagle, tree", True), pytest.param("medusa", True, marks=pytest.mark.slow)]
)
def test_a_drafter_that_pauses_is_shown_what_it_has_missed(monkeypatch, name, fast):
    """For 20 steps nothing is drafted. Where passes are captured, these are launched ahead, and leave their states."""
    target, prompts, missed, launched = endless(), [[1, 2, 3], [9, 8, 7, 6]], [], []
    drafter = ALL[name](*pair())
    engine = ms.Engine(target, drafter, k=4, fast=fast, block_size=4, num_blocks=200)
    speculate, show, again = engine.scheduler._speculate, engine.runner.cache.show, Buckets.again

    def check_shown(sequences, tables):
        show(sequences, tables)
        for sequence in sequences:
            states = target.transformer(torch.tensor([sequence.tokens[:-1]]), hidden_layers=drafter.hidden_layers)
            missed.append(len(sequence.tokens) - 1 - sequence.seen)
            for n, all_states in states.hidden.items():
                assert torch.allclose(sequence.hidden[n], all_states[0, sequence.seen :], rtol=0, atol=1e-12)

    monkeypatch.setattr(engine.runner.cache, "show", check_shown)
    monkeypatch.setattr(Buckets, "again", lambda *args: launched.append(args) or again(*args))
    ids = [engine.add(prompt, 60) for prompt in prompts]
    while engine.sequences:
        pause = 5 <= engine.scheduler.steps < 25
        engine.scheduler._speculate = (lambda step: None) if pause else speculate
        engine.step()
        engine.check_integrity()
    outs = engine.take()
    assert [outs[id].tokens for id in ids] == [ms.generate(target, prompt, 60).tokens for prompt in prompts]
    assert not any(outs[id].error for id in ids)
    assert sum(count >= 20 for count in missed) == 2 and engine.metrics()["totals"]["accepted"] > 0
    assert len(launched) == (20 if fast else 0)  # the last of them in vain: there are drafts again
