"""Prompts in an engine in fixed shapes: the twin, the kernels in Triton's interpreter, and passes on the CPU."""

import pytest
import ragged_checks as checks
import torch
from test_fast import NoLooking
from tiny_models import random_model

import minispec as ms
from minispec.gpu.ragged import Shape

pytestmark = pytest.mark.slow


# ---------------------------------------------------------------- passes


def test_passes():
    checks.check_passes(shapes=["llama"])
    checks.check_neighbours()


@pytest.mark.nightly
def test_passes_of_every_model():
    checks.check_passes()
    checks.check_passes(dtype=torch.bfloat16, shapes=["qwen3"])


def test_no_pass_looks_at_a_number_or_leaves_its_place():
    scene = checks.Scene(random_model(num_layers=3))
    scene.compare({0: 20, 3: 2}, [1, 1], 1e-10)
    passes, [shape] = scene.passes, scene.passes.captures
    fixed = [passes.sheet, passes.logits, passes.best, *passes.cache.memories]
    addresses, once = [tensor.data_ptr() for tensor in fixed], passes.logits.clone()
    passes.work(*shape)  # a capture's warm-up works for real: twice is as good as once
    assert torch.equal(passes.logits, once)
    passes.attend = lambda q, *rest: torch.zeros_like(q)  # the twin does look
    with NoLooking(), torch.inference_mode(False), torch.no_grad():
        passes.work(*shape)
    assert [tensor.data_ptr() for tensor in fixed] == addresses


def test_what_has_no_bucket_is_refused_before_anything_is_written():
    passes, table = checks.Scene(random_model(num_layers=3), tokens=64).passes, [list(range(40))]
    before = passes.lines.clone()
    for rows, needed in (([[1] * 65], [1]), ([[1]] * 8, [1] * 8)):
        assert passes.read(rows, [0] * len(rows), table * len(rows), needed) is None
    assert torch.equal(passes.lines, before) and not passes.captures
    assert passes.shape([[1] * 64], [1]) == Shape(64, 7, 7)
    assert passes.shape([[1] * 64], [9]) == Shape(64, 7, 64)
    passes.attend = None  # a GPU without the kernels
    assert passes.shape([[1] * 64], [1]) is None


# ---------------------------------------------------------------- the engine


def test_no_prompt_is_processed_eagerly_unless_it_has_no_bucket(monkeypatch):
    model = random_model()
    bodies = []
    right = type(model.transformer).body
    monkeypatch.setattr(type(model.transformer), "body", lambda *a, **o: bodies.append(1) or right(*a, **o))
    prompts = [[i, *range(3 * i)] for i in range(1, 12)]
    quick = ms.Engine(model, max_num_seqs=4, max_num_batched_tokens=32, fast=True)
    outs = quick.generate(prompts, max_new_tokens=5, progress=False)
    assert not bodies
    quick.runner.buckets.prompts.tokens = 8  # steps with more tokens go as usual
    again = quick.generate([prompt[::-1] for prompt in prompts], max_new_tokens=5, progress=False)
    assert bodies
    for prompt, out, other in zip(prompts, outs, again, strict=True):
        assert out.tokens == ms.generate(model, prompt, 5).tokens
        assert other.tokens == ms.generate(model, prompt[::-1], 5).tokens
