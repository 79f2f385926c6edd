"""Prompts in an engine in fixed shapes: the twin, the kernels in Triton's interpreter, and passes on the CPU."""

from __future__ import annotations

import pytest
import ragged_checks as checks
import torch
from test_fast import NoLooking
from tiny_models import random_model

import minispec as ms
from minispec.drafters.base import Draft
from minispec.gpu import attention as fd
from minispec.gpu import products as skinny
from minispec.gpu import ragged
from minispec.gpu.ragged import Shape

pytestmark = pytest.mark.slow

# ---------------------------------------------------------------- attention


def test_the_twin_is_a_uniform_batch_s_and_leaves_padding_alone():
    batch = checks.Batch([4, 4, 4], [9, 0, 30], padding=5, T=4, dtype=torch.float64, device="cpu")
    out = fd.flash_ragged_torch(*batch.arguments())
    rows = batch.q[:12].unflatten(0, (3, 4)).transpose(1, 2)  # [3, H, 4, D]
    for row in range(3):
        given = rows[row : row + 1], *batch.memory, batch.tables[row : row + 1, : -(-(batch.numbers[2, row] + 4) // 8)]
        expected = fd.flash_decode_paged_torch(*given, batch.numbers[2, row : row + 1], batch.mask[row])
        torch.testing.assert_close(out[4 * row : 4 * row + 4], expected[0].transpose(0, 1))
    assert (out[12:] == 0).all()


# ---------------------------------------------------------------- passes


def test_passes():
    checks.check_passes(shapes=["llama"])
    checks.check_trees()
    checks.check_neighbours()


@pytest.mark.nightly
@pytest.mark.parametrize("shape", checks.SHAPES)
def test_passes_of_every_model(shape):
    checks.check_passes(shapes=[shape])


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_other_precisions(dtype):
    checks.check_passes(dtype=dtype, shapes=["qwen3"])


def test_few_tokens_go_the_lean_way(monkeypatch):
    """On a GPU a kernel computes their products; here its twin in torch takes the kernel's place."""
    monkeypatch.setattr(skinny, "skinny", skinny.skinny_torch)
    sizes = set()
    monkeypatch.setattr(skinny, "fits", lambda x, weight: sizes.add(few := x.shape[:-1].numel()) or few <= 64)
    checks.check_passes(shapes=["biased"], lean=True)
    assert min(sizes) == 7 and max(sizes) == 256


def test_the_kernel_gets_what_it_asks_for(monkeypatch):
    """On a GPU the kernel attends. Here its twin takes its place, after the kernel's own checks of its arguments."""
    asked = []

    def kernel(q, k, v, tables, starts, counts, lengths, mask):
        ready = (starts, counts)
        fd._check(q.transpose(0, 1)[None], k, v, tables, lengths, mask, k.shape[2], None, len(lengths), ready)
        assert tables.stride(1) == 1 and k.is_contiguous() and q.is_contiguous()
        assert starts[0] == 0 and (starts.diff() >= 0).all() and starts[-1] + counts[-1] <= len(q)
        asked.append(mask is None)
        return fd.flash_ragged_torch(q, k, v, tables, starts, counts, lengths, mask)

    monkeypatch.setattr(fd, "unavailable", lambda device: None)
    monkeypatch.setattr(ragged, "best_attention", lambda device, dtype: kernel)
    checks.check_passes(dtype=torch.float32, shapes=["llama"])
    checks.check_trees(dtype=torch.float32)
    assert set(asked) == {True, False}


def test_no_pass_looks_at_a_number_or_leaves_its_place():
    scene = checks.Scene(random_model(num_layers=3))
    scene.compare({0: 20, 3: 2}, [1, 1], 1e-10)
    passes, [shape] = scene.passes, scene.passes.captures
    fixed = [passes.sheet, passes.logits, passes.best, *passes.streams.values()]
    addresses, once = [tensor.data_ptr() for tensor in fixed], passes.logits.clone()
    passes.work(shape)  # a capture's warm-up works for real: twice is as good as once
    assert torch.equal(passes.logits, once)
    passes.attend = lambda q, *rest: torch.zeros_like(q)  # the twin does look
    with NoLooking(), torch.inference_mode(False), torch.no_grad():
        passes.work(shape)
    assert [tensor.data_ptr() for tensor in fixed] == addresses


def test_what_has_no_bucket_is_refused_before_anything_is_written():
    passes, table = checks.Scene(random_model(num_layers=3), tokens=64).passes, [list(range(40))]
    before = passes.lines.clone()
    wide = Draft([1] * 70, parents=[-1] * 70)
    for rows, needed, drafts in (([[1] * 65], [1], None), ([[1]] * 8, [1] * 8, None), ([[1] * 71], [1], [wide])):
        assert passes.read(rows, [0] * len(rows), table * len(rows), needed, drafts) is None
    assert torch.equal(passes.lines, before) and not passes.captures
    assert passes.shape([[1] * 64], [1], [None]) == Shape(64, 7, 7, 0)
    assert passes.shape([[1] * 64], [9], [None]) == Shape(64, 7, 64, 0)
    passes.attend = None  # a GPU without the kernels
    assert passes.shape([[1] * 64], [1], [None]) is None


# ---------------------------------------------------------------- the engine


@pytest.mark.parametrize("name", ["nobody", "n-gram", *checks.KINDS])
def test_texts_are_those_of_the_usual_passes(name):
    checks.check_texts(some=[name])


def test_a_drafter_hears_the_same_states():
    """Of prompts, too: the drafter asks for the target's residual streams."""
    target, told = checks.pair()[0], []
    for fast in (True, False):
        drafter = checks.Recorder()
        told.append((checks.texts(target, drafter, fast, checks.asks(8, longest=60))[0], drafter.told))
    assert told[0][0] == told[1][0] and told[0][1].keys() == told[1][1].keys()
    for row, heard in told[0][1].items():
        for mine, theirs in zip(heard, told[1][1][row], strict=True):
            assert mine.keys() == theirs.keys()
            for n in mine:
                checks.close(mine[n], theirs[n], 1e-9, f"states of request {row}")


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


def test_sampled_texts_are_the_same_seed_for_seed():
    target, _ = checks.pair()
    some = [(prompt, wishes | dict(temperature=0.9, seed=i)) for i, (prompt, wishes) in enumerate(checks.asks())]
    assert checks.texts(target, None, True, some)[0] == checks.texts(target, None, False, some)[0]
