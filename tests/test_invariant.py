"""MINISPEC_BATCH_INVARIANT=1: the same bits for a token, whatever else is in the pass."""

import pytest
import torch
from tiny_models import random_model

import minispec as ms
from minispec import linear
from minispec.cpu import machine
from minispec_course.labs import numerics

pytestmark = pytest.mark.skipif(machine.compiled() is None, reason="needs numba")
IDS = [5, 17, 3, 60, 22, 8, 41, 9, 33, 2, 11]


@pytest.fixture(autouse=True)
def flag(monkeypatch):
    monkeypatch.setenv("MINISPEC_BATCH_INVARIANT", "1")


SHAPE = dict(dtype=torch.float32, head_dim=16, hidden_size=64, intermediate_size=96)


@pytest.fixture(scope="module")
def model() -> ms.Model:
    return random_model(**SHAPE)


def company(count: int) -> list[list[int]]:
    return [[(7 * t + 13 * b) % 64 for t in range(len(IDS))] for b in range(count)]


def test_a_batch_does_not_change_a_bit(model):
    def torchs_product(*_):
        raise AssertionError("a product of torch's, whose order of summation depends on the number of tokens")

    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear.F, "linear", torchs_product)
        alone = numerics.decode_logits(model, IDS)
        for others in (1, 7, 8, 39):
            assert torch.equal(numerics.decode_logits(model, IDS, company(others)), alone), f"a batch of {others + 1}"


@torch.no_grad()
def test_a_verify_pass_has_the_bits_of_decoding(model):
    ids = torch.tensor([(IDS * 5)[:50]])
    one, *others = (
        [model.transformer(part, cache).logits for part in ids.split(step, 1)]
        for step in (1, 5, 9, 50)
        for cache in [model.transformer.new_cache(1, 50)]
    )
    for steps in others:
        assert torch.equal(torch.cat(steps, 1), torch.cat(one, 1))


@pytest.mark.slow
def test_outputs_are_those_of_plain_decoding_in_float32(model):
    draft = ms.drafters.Model(random_model(num_layers=1, **SHAPE))
    prompts = [IDS, *company(9)]
    plain = [ms.generate(model, ids, max_new_tokens=10).tokens for ids in prompts]
    assert [out.tokens for out in ms.generate(model, prompts, max_new_tokens=10)] == plain
    assert [out.tokens for out in ms.speculate(model, prompts, draft, k=4, max_new_tokens=10)] == plain
    engine, params = ms.Engine(model, draft, num_blocks=64, k=4), ms.SamplingParams(max_new_tokens=10)
    assert [out.tokens for out in engine.generate(prompts, params, progress=False)] == plain


def test_what_cannot_be_invariant_is_refused(tiny):
    with pytest.raises(ValueError, match="MINISPEC_BATCH_INVARIANT"):
        ms.generate(tiny, [1, 2, 3], max_new_tokens=2)  # float64
    params = ms.SamplingParams(max_new_tokens=2)
    [out] = ms.Engine(tiny, num_blocks=8).generate([[1, 2]], params, progress=False)
    assert out.finish_reason == "error" and "MINISPEC_BATCH_INVARIANT" in str(out.error)
