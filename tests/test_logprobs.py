"""Log-probabilities are the target's own: with every drafter, in a batch, in an engine, where passes are captured."""

import pytest
import torch
from all_drafters import ALL
from tiny_models import random_model

import minispec as ms

PROMPT, NEW = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 3, 1, 4, 1], 14


@pytest.fixture(scope="module")
def pair() -> tuple[ms.Model, ms.Model]:
    return random_model(), random_model(num_layers=1)


def by_hand(model: ms.Model, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    """log p(token | everything before), one pass over all of it, [n, V]."""
    sequence = torch.tensor([prompt + tokens])
    cache = model.transformer.new_cache(1, sequence.shape[1])
    logits = model.transformer(sequence, cache).logits[0]  # [T, V]
    return logits[len(prompt) - 1 : -1].double().log_softmax(-1)


def assert_right(model: ms.Model, prompt: list[int], out: ms.Output, top: int) -> None:
    right = by_hand(model, prompt, out.tokens)
    assert len(out.logprobs) == len(out.tokens) > 1
    for line, token, given in zip(right, out.tokens, out.logprobs, strict=True):
        assert given.token == token and given.logprob == pytest.approx(float(line[token]), abs=1e-9)
        assert [t for t, _ in given.top] == line.topk(top).indices.tolist()
        assert [p for _, p in given.top] == pytest.approx(line.topk(top).values.tolist(), abs=1e-9)


@pytest.mark.parametrize("options", [{}, dict(temperature=1.2, top_p=0.8, seed=3), dict(min_new_tokens=9)])
def test_log_probabilities_are_those_of_the_raw_logits(pair, options):
    """Neither temperature nor top_p nor what min_new_tokens forbids is in them."""
    target, _ = pair
    ends = by_hand(target, PROMPT, [0])[0].topk(3).indices.tolist()
    ending = ms.Model("ends at once", target.transformer, end_tokens=ends)
    out = ms.generate(ending, PROMPT, NEW, logprobs=2, **options, ignore_eos="min_new_tokens" not in options)
    assert_right(target, PROMPT, out, 2)
    assert ms.generate(target, PROMPT, NEW, **options).logprobs is None


@pytest.mark.slow
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("name", [None, "model", "ngram", "medusa", "eagle, tree", "dflash", "lookahead"])
def test_requests_of_an_engine_may_ask_for_different_numbers(pair, name, fast):
    """One greedy, one sampled, one that asks for none, one whose first tokens may not end it."""
    engine = ms.Engine(pair[0], name and ALL[name](*pair), num_blocks=64, block_size=4, k=3, fast=fast)
    ways = [
        dict(logprobs=0),
        dict(logprobs=4, temperature=0.9, seed=1),
        dict(),
        dict(logprobs=1, min_new_tokens=6, stop_token_ids=list(range(20))),
    ]
    ids = [engine.add(PROMPT[i:], NEW, **way) for i, way in enumerate(ways)]
    outs = engine.run()
    for i, (id, way) in enumerate(zip(ids, ways, strict=True)):
        if "logprobs" in way:
            assert_right(pair[0], PROMPT[i:], outs[id], way["logprobs"])
        else:
            assert outs[id].logprobs is None


def test_captured_passes_leave_such_requests_to_another_path(pair):
    """A backend's own decoder keeps its logits to itself."""
    target = ms.Model("captured", pair[0].transformer)
    target.accelerate()
    assert_right(pair[0], PROMPT, ms.generate(target, PROMPT, NEW, logprobs=2), 2)
    for name in ("model", "ngram", "eagle, tree"):
        assert_right(pair[0], PROMPT, ms.speculate(target, PROMPT, ALL[name](target, pair[1]), 3, NEW, logprobs=2), 2)
