"""The engine's passes in fixed shapes: on the CPU unrecorded, on a GPU by CUDA graphs, and everywhere as usual."""

import warnings

import bucket_checks as checks
import pytest
import torch
from fakes import Given
from test_fast import NoLooking
from tiny_models import random_model

import minispec as ms
from minispec import verify
from minispec.serving.engine import Engine

# ---------------------------------------------------------------- the usual passes


SOME = {"logits", "texts"}


@pytest.mark.parametrize("check", [c if c in SOME else pytest.param(c, marks=pytest.mark.slow) for c in checks.CHECKS])
def test_buckets(check):
    checks.CHECKS[check]()


@pytest.mark.nightly
def test_all_models_buckets_and_drafters():
    checks.check_logits(counts=(10, 3, 1))
    checks.check_logits(shapes=["llama"])
    checks.check_texts()
    checks.check_sampled()
    checks.check_logits(dtype=torch.bfloat16, shapes=["qwen3"], counts=(9, 3))


@pytest.mark.slow
def test_no_pass_looks_at_a_number_or_leaves_its_place():
    scene = checks.Scene(random_model(num_layers=3), 6)
    passes = scene.buckets
    fixed = [passes.sheet, passes.table_sheet, passes.logits, passes.best, *passes.cache.memories]
    addresses = [tensor.data_ptr() for tensor in fixed]
    for branches in (False, True):
        scene.compare(range(6), 3, 1e-10, branches)
        with NoLooking(), torch.inference_mode(False), torch.no_grad():
            scene.buckets.work(8, 3, branches)
        assert [tensor.data_ptr() for tensor in fixed] == addresses
        again = scene.buckets.logits.clone()
        scene.buckets.work(8, 3, branches)  # a capture's warm-up works for real: twice is as good as once
        assert torch.equal(scene.buckets.logits, again)


# ---------------------------------------------------------------- the engine


def test_fast_is_for_gpus_unless_asked_for(tiny):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Engine(tiny).runner.buckets is None and Engine(tiny, fast=False).runner.buckets is None
        quick = Engine(tiny, num_blocks=32, fast=True)
    assert quick.runner.buckets.captures == {}
    assert quick.pool.num_blocks == 32 and quick.runner.cache.num_blocks == 34
    quick.shutdown()
    assert quick.runner.buckets is None and quick.runner.cache is None


def test_a_text_may_be_as_long_as_the_model_and_the_pool_allow():
    """Padding goes past the last position of all, and past the last block."""
    model = random_model(max_length=32)
    for blocks, longest in ((8, 32), (6, 24), (20, 32)):
        prompt = [5, 6] * 4
        expected = ms.generate(model, prompt, longest - len(prompt)).tokens
        guess = Given(lambda context, k: ms.drafters.Draft([context.tokens[-1]] * min(k, 3)))
        quick = Engine(model, guess, num_blocks=blocks, block_size=4, k=5, fast=True)
        quick.add(prompt, longest - len(prompt))
        assert quick.run()[0].tokens == expected and quick.runner.buckets.captures


def test_longer_drafts_than_the_engine_s_go_the_usual_way():
    model = random_model()
    quick = Engine(model, ms.drafters.NGram(), k=2, fast=True)
    quick.add([5, 6] * 6, 24, k=6)
    deepest = 0
    while quick.sequences:
        deepest = max(deepest, quick.step().rows[0].drafted)
    assert deepest > 2 and all(tokens <= 3 for _, tokens, _ in quick.runner.buckets.captures)
    assert quick.take()[0].tokens == ms.generate(model, [5, 6] * 6, 24).tokens


# ---------------------------------------------------------------- greedy verdicts


def test_greedy_rows_are_judged_by_one_look_at_the_device(monkeypatch):
    """No distributions, no random numbers: one transfer of the best tokens, however many sequences and drafts."""
    looks = []
    right = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: looks.append(tensor.shape) or right(tensor))
    for name in ("distributions", "uniforms", "check_draft"):
        monkeypatch.setattr(verify, name, lambda *args, **options: pytest.fail("nothing is sampled"))
    quick = Engine(random_model(), ms.drafters.NGram(), fast=True)
    for i in range(6):
        quick.add([5, 6, 7] * 3 + [i], 12)
    quick.step()  # reads the prompts
    looks.clear()
    quick.step()
    assert len(looks) == 1 and looks[0][0] == 6
