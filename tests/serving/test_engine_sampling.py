"""Sampled requests in an engine: the target's joint distribution, and outputs that depend on their own seed alone."""

from random import Random

import pytest
from all_drafters import ALL
from engine_helpers import assert_idle, pair
from loop_checks import ONE, OTHER, SAMPLED_PROMPT, SAMPLED_TOKENS, countable_pair, expected_distribution
from sequence_distribution import assert_follows, no_garbage_collection

import minispec as ms


def check_distribution(name: str | None, seed: int, draws: int = 4_000, **options) -> None:
    """Two samplings in one batch, half of the outputs each; every request has its own seed.

    In 99 of 100 runs, 2,000 outputs show a total variation of 0.11.
    """
    target, draft = countable_pair()
    sizes = dict(num_blocks=2048, block_size=4, max_num_seqs=512, max_num_batched_tokens=8192, draft_budget=8192)
    engine = ms.Engine(target, name and ALL[name](target, draft), history=0, **dict(k=3) | sizes | options)
    for i in range(draws):
        engine.add(SAMPLED_PROMPT, SAMPLED_TOKENS, seed=seed + i, **(OTHER if i % 2 else ONE))
    with no_garbage_collection():
        outs = engine.run()
    for half, knobs in enumerate((ONE, OTHER)):
        outputs = [outs[i].tokens for i in range(half, draws, 2)]
        assert_follows(outputs, expected_distribution(**knobs), f"{name} in the engine, {knobs}")
    assert_idle(engine)


@pytest.mark.slow
@pytest.mark.parametrize("name", [None, "model", "ngram", "cascade", "lookahead", "eagle, tree"])
def test_outputs_follow_the_targets_distribution_with_every_kind_of_draft(name):
    """Without drafts, with sampled and with given chains, a cascade, a tree, and with scratch tokens.

    To the engine every other drafter is one of these; and finer biases of the verifier show in test_speculate.py."""
    check_distribution(name, seed=10_000)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model", pytest.param("eagle, tree", marks=pytest.mark.nightly)])
def test_outputs_follow_the_targets_distribution_while_the_controller_changes_k(name, monkeypatch):
    """At random, from step to step: whatever it chooses, the distribution is the target's."""
    random = Random(0)
    monkeypatch.setattr("minispec.controller.Controller.choose", lambda self, ids, most: random.choice(self.sizes))
    check_distribution(name, seed=20_000, k=None, draft_budget=None)


@pytest.mark.parametrize("make", [lambda: None, ms.drafters.NGram], ids=["no drafter", "ngram"])
def test_a_sampled_output_depends_on_its_seed_and_not_on_the_batch(make):
    """Nor on a neighbour's longer draft."""
    runs = []
    for together in (True, False):
        engine = ms.Engine(pair()[0], make(), draft_budget=512)
        for seed, prompt in enumerate([[5, 9, 5, 9, 5], [7], [1, 2, 3, 1, 2, 3, 1]]):
            engine.add(prompt, 24, temperature=0.6, seed=seed, k=2 + 3 * seed)
            while engine.sequences and not together:
                engine.step()
        runs.append({id: out.tokens for id, out in engine.run().items()})
    assert runs[0] == runs[1]


def test_a_seed_gives_the_same_outputs_from_generate_and_engine():
    """For a batch, and for each prompt alone, with a drafter that does not draft and without one."""
    target, prompts = pair()[0], [[1, 2], [1, 2], [3]]
    params = ms.SamplingParams(temperature=1.0, top_p=0.9, seed=5, max_new_tokens=20)
    outs = ms.Engine(target).generate(prompts, params, progress=False)
    assert [out.tokens for out in outs] == [out.tokens for out in ms.generate(target, prompts, params=params)]
    assert outs[0].tokens != outs[1].tokens  # the same prompt twice
    for i, prompt in enumerate(prompts):
        engine = ms.Engine(target, ms.drafters.NGram() if i else None, k=0 if i else 4)
        engine.add(prompt, params=params)
        assert engine.run()[0].tokens == ms.generate(target, prompt, params=params).tokens
