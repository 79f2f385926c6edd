"""Prompts in an engine in fixed shapes (ragged.py) are the engine's eager passes."""

from collections.abc import Sequence
from random import Random

import pytest
import torch
from reference import SHAPES, capturable, close, tolerance_of, usual_dtype
from test_passes import BLOCK, LAYERS, eager, same_memory
from tiny_models import random_model

import minispec as ms
from minispec.gpu.graph import on_the_device
from minispec.gpu.ragged import RaggedPasses, Shape
from minispec.serving.paged import PagedKVCache

pytestmark = pytest.mark.slow


class Scene:
    """A pool in mid-run: sequences of different lengths, blocks out of order, some of them shared."""

    def __init__(self, model: ms.Model, count: int = 7, longest: int = 40, tokens: int = 256, seed: int = 0, **options):
        self.model, self.random = model, Random(seed)
        self.cached = [self.words(self.random.choice((0, self.random.randint(1, longest)))) for _ in range(count)]
        self.cached[0], self.cached[1] = self.words(4 * BLOCK + 1), self.words(4 * BLOCK + 3)
        self.cached[1][: 2 * BLOCK] = self.cached[0][: 2 * BLOCK]  # prefix caching: two blocks in common
        free = list(range(60 * count))
        self.random.shuffle(free)
        self.tables = [[free.pop() for _ in range(55)] for _ in self.cached]
        self.tables[1][:2] = self.tables[0][:2]
        make = on_the_device(PagedKVCache)
        memory = dict(hidden_layers=LAYERS, device=model.device, dtype=model.dtype)
        self.cache = make(model.config, 60 * count + 2, BLOCK, **memory)
        for text, table in zip(self.cached, self.tables, strict=True):
            if text:
                eager(model, self.cache, [text], [0], [table])
        self.passes = RaggedPasses(model.transformer, self.cache, count, tokens, **options)

    def words(self, count: int) -> list[int]:
        return self.random.choices(range(64), k=count)

    def compare(self, counts: dict[int, int], needed: Sequence[int], tolerance: float) -> None:
        """One pass over so many new tokens of these sequences, against the eager one on a copy of the pool."""
        rows = [self.words(count) for count in counts.values()]
        starts, tables = [len(self.cached[row]) for row in counts], [self.tables[row] for row in counts]
        counts, memory = list(map(len, rows)), self.cache.memories
        before = [part.clone() for part in memory]
        found = self.passes.read(rows, starts, tables, needed)
        logits, best = (answers.split(list(needed)) for answers in (found.logits, found.best))
        after = [part.clone() for part in memory]
        for part, old in zip(memory, before, strict=True):
            part.copy_(old)
        expected = eager(self.model, self.cache, rows, starts, tables)
        for i, (count, last) in enumerate(zip(counts, needed, strict=True)):
            assert len(logits[i]) == len(best[i]) == last
            if last:
                close(logits[i], expected[i][count - last :], tolerance, f"logits of sequence {i}")
                assert torch.equal(best[i], logits[i].argmax(-1))
        same_memory(self.cache, before, after, rows, starts, tables, tolerance)


@pytest.mark.parametrize("shape", ["llama", *(pytest.param(s, marks=pytest.mark.nightly) for s in list(SHAPES)[1:])])
def test_passes_are_the_eager_ones(shape, device):
    """Chunks of many lengths, alone and together, with and without logits, in buckets that are full and not."""
    check_passes(shape, device, usual_dtype(device))


@pytest.mark.nightly
def test_passes_in_half_precision_are_the_eager_ones(device):
    check_passes("qwen3", device, torch.bfloat16)


def check_passes(shape: str, device: str, dtype: torch.dtype) -> None:
    scene = Scene(random_model(dtype=dtype, device=device, num_layers=3, **SHAPES[shape]))
    for counts, needed in (
        ({0: 1}, [1]),
        ({0: 16}, [0]),
        ({1: 17}, [1]),
        ({2: 30, 4: 3}, [1, 1]),
        ({3: 1, 0: 1, 6: 9}, [1, 0, 1]),
        ({5: 100, 1: 2, 3: 1, 2: 60}, [0, 1, 1, 1]),
        ({row: 5 + row for row in range(7)}, [1] * 7),
        ({6: 16}, [4]),
        ({4: 150, 0: 106}, [1, 1]),
        ({2: 2, 3: 12}, [2, 10]),
    ):
        scene.compare(counts, needed, tolerance_of(dtype))
    assert {size.tokens for size in map(Shape._make, scene.passes.captures)} == {16, 32, 64, 256}
    assert len(scene.passes.captures) < 10


def test_damaged_memory_damages_its_own_sequence_alone(device):
    """A sequence whose memory is damaged damages no other; nor does what padding has left in the spare block."""
    dtype = usual_dtype(device)
    scene = Scene(random_model(dtype=dtype, device=device, num_layers=3))
    rows, starts, tables = [[3] * 20, [4] * 9, [5]], [6, 6, 6], [scene.tables[row] for row in (2, 3, 4)]
    expected = eager(scene.model, scene.cache, rows[1:], starts[1:], tables[1:])
    for memory in (scene.cache.keys, scene.cache.values):
        memory[:, tables[0][0]] = memory[:, -1] = torch.nan
    for _ in range(2):
        found = scene.passes.read(rows, starts, tables, [1, 9, 1])
        logits = found.logits.split([1, 9, 1])
        assert found.best[:1].tolist() == [-1] and not logits[0].isfinite().any()
        for mine, wanted in zip(logits[1:], expected, strict=True):
            close(mine, wanted, tolerance_of(dtype), "a neighbour's logits")


def test_no_pass_waits_for_a_number():
    scene = Scene(random_model(num_layers=3))
    scene.compare({0: 20, 3: 2}, [1, 1], 1e-10)
    passes, [shape] = scene.passes, scene.passes.captures
    once = passes.logits.clone()
    passes.work(*shape)  # a capture's warm-up works for real: twice is as good as once
    assert torch.equal(passes.logits, once)
    passes.attend = lambda q, *rest: torch.zeros_like(q)  # the kernel's reference does wait
    with capturable(passes.sheet, passes.logits, passes.best, *passes.cache.memories):
        passes.work(*shape)


@pytest.mark.gpu
def test_a_replay_does_what_its_work_does(device):
    """A capture does what its work does, whatever is in the sheet since; and all of it was captured."""
    scene = Scene(random_model(dtype=torch.float32, device=device, num_layers=3))
    for counts in ({0: 20, 1: 3}, {2: 1, 3: 31}, {4: 10, 5: 10, 6: 9}):
        rows, starts = [scene.words(count) for count in counts.values()], [len(scene.cached[row]) for row in counts]
        result = scene.passes.read(rows, starts, [scene.tables[row] for row in counts], [1] * len(counts))
        shape = scene.passes.shape(rows, [1] * len(counts))
        on_the_device(scene.passes.work)(*shape)
        close(result.logits, scene.passes.logits[: len(counts)], 1e-5, "replayed and not replayed")
    assert all(captured.graph is not None for captured in scene.passes.captures.values())


def test_what_has_no_bucket_is_refused_before_anything_is_written():
    passes, table = Scene(random_model(num_layers=3), tokens=64).passes, [list(range(40))]
    before = passes.lines.clone()
    for rows, needed in (([[1] * 65], [1]), ([[1]] * 8, [1] * 8)):
        assert passes.read(rows, [0] * len(rows), table * len(rows), needed) is None
    assert torch.equal(passes.lines, before) and not passes.captures
    assert passes.shape([[1] * 64], [1]) == Shape(64, 7, 7)
    assert passes.shape([[1] * 64], [9]) == Shape(64, 7, 64)
    passes.attend = None  # a GPU without the kernels
    assert passes.shape([[1] * 64], [1]) is None


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
