"""Checks that prompts in fixed shapes (ragged.py) are the engine's usual passes.

test_ragged.py runs the checks on the CPU, where a capture just does its work. On a GPU, without pytest:

    PYTHONPATH=.:tests python3 tests/gpu/ragged_checks.py
"""

from collections.abc import Sequence
from itertools import product
from random import Random

import torch
from bucket_checks import BLOCK, LAYERS, close, same_memory, usual
from fast_checks import SHAPES, run_on_the_gpu
from tiny_models import random_model

import minispec as ms
from minispec.gpu import attention as fd
from minispec.gpu import weights as graphs
from minispec.gpu.graph import on_the_device
from minispec.gpu.ragged import RaggedPasses, Shape
from minispec.serving.paged import PagedKVCache
from minispec.tree import verify_mask

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


# ---- the kernel ----------------------------------------------------------------------------------------------------


def random_tree(tokens: int, seed: int) -> torch.Tensor:
    """The verify mask of a random tree whose pass processes `tokens` tokens."""
    draw = Random(seed)
    return verify_mask([draw.randint(-1, node - 1) for node in range(tokens - 1)])


class Batch:
    """Sequences with so many new tokens after so many cached ones, in shuffled blocks. What nobody filled is NaN."""

    def __init__(
        self, counts, lengths, heads=(4, 2), D=32, block_size=8, padding=0, dtype=torch.float32, seed=0, device=DEVICE
    ):
        self.generator, self.device, self.dtype = torch.Generator().manual_seed(seed), device, dtype
        (H, Hkv), R = heads, len(counts)
        self.q = self.draw(sum(counts) + padding, H, D)
        ends = [length + count for length, count in zip(lengths, counts, strict=True)]
        need = [-(-end // block_size) for end in ends]
        blocks = 2 * sum(need) + 1
        order = torch.randperm(blocks, generator=self.generator)[: sum(need)].split(need)
        self.tables = torch.zeros(R, max(need) + 2, dtype=torch.int32)  # beyond the last token: anything
        self.memory = [torch.full((blocks, block_size, Hkv, D), torch.nan, dtype=dtype, device=device) for _ in "kv"]
        for row, (own, end) in enumerate(zip(order, ends, strict=True)):
            self.tables[row, : len(own)] = own
            for memory in self.memory:
                filled = self.draw(len(own) * block_size, Hkv, D)
                filled[end:] = torch.nan
                memory[own.to(device)] = filled.unflatten(0, (-1, block_size))
        self.tables = self.tables.to(device)
        self.numbers = torch.zeros(3, R, dtype=torch.int32, device=device)  # starts, counts, lengths
        self.write(counts, lengths)

    def draw(self, *shape):
        return torch.randn(*shape, generator=self.generator).to(self.device, self.dtype)

    def write(self, counts, lengths) -> None:
        """Other numbers in the same tensors, as a CUDA graph has it."""
        self.real, starts = sum(counts), [sum(counts[:row]) for row in range(len(counts))]
        self.numbers.copy_(torch.tensor([starts, counts, lengths]))

    def fill(self) -> None:
        """Memory without NaN: sequences may be longer than they were."""
        for memory in self.memory:
            memory.copy_(self.draw(*memory.shape))

    def arguments(self) -> tuple:
        return self.q, *self.memory, self.tables, *self.numbers.unbind()

    def check(self, tolerance=1e-4, out=None, **options) -> torch.Tensor:
        """The kernel's answer, or `out`, is the twin's. Of padding anything may come."""
        out = fd.flash_ragged(*self.arguments(), **options) if out is None else out
        expected = fd.flash_ragged_torch(*self.arguments())
        assert out.shape == self.q.shape and out.dtype == self.q.dtype
        out, expected = out[: self.real], expected[: self.real]
        assert expected.isfinite().all()
        torch.testing.assert_close(out, expected, atol=tolerance, rtol=tolerance)
        return out


MIXED = dict(counts=[1500, 1, 7, 300, 60], lengths=[0, 2000, 900, 700, 33])


def check_kernel(dtype=torch.bfloat16, tolerance=2e-2) -> None:
    """The 8B shape's heads and SmolLM2's: chunks and single tokens in one call, and every default."""
    for heads, D in (((32, 8), 128), ((9, 3), 64)):
        batch = Batch(**MIXED, heads=heads, D=D, block_size=16, padding=180, dtype=dtype)
        batch.check(tolerance)
        for rows, splits in product((16, 64, 128), (1, 5)):
            batch.check(tolerance, rows=rows, splits=splits)
        for counts, lengths in (([16], [0]), ([200, 3], [100, 5000]), ([2048], [0]), ([64] * 32, [77] * 32)):
            Batch(counts, lengths, heads, D, 16, dtype=dtype, seed=1).check(tolerance)


def check_graph(dtype=torch.bfloat16, tolerance=2e-2) -> None:
    """A CUDA graph follows the numbers."""
    batch = Batch([300, 1, 5], [10, 900, 40], (32, 8), 128, 16, padding=206, dtype=dtype, seed=9)
    batch.fill()
    fd.flash_ragged(*batch.arguments())  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = fd.flash_ragged(*batch.arguments())
    for counts, lengths in (([300, 1, 5], [10, 900, 40]), ([512, 0, 0], [100, 0, 0]), ([1, 16, 290], [30, 500, 3])):
        batch.write(counts, lengths)
        graph.replay()
        batch.check(tolerance, out)


# ---- passes --------------------------------------------------------------------------------------------------------


class Scene:
    """A pool in mid-run: sequences of different lengths, blocks out of order, some of them shared."""

    def __init__(self, model: ms.Model, count: int = 7, longest: int = 40, tokens: int = 256, seed: int = 0, **options):
        self.model, self.random = model, Random(seed)
        self.texts = [self.words(self.random.choice((0, self.random.randint(1, longest)))) for _ in range(count)]
        self.texts[0], self.texts[1] = self.words(4 * BLOCK + 1), self.words(4 * BLOCK + 3)
        self.texts[1][: 2 * BLOCK] = self.texts[0][: 2 * BLOCK]  # prefix caching: two blocks in common
        free = list(range(60 * count))
        self.random.shuffle(free)
        self.tables = [[free.pop() for _ in range(55)] for _ in self.texts]
        self.tables[1][:2] = self.tables[0][:2]
        make = graphs.on_the_device(PagedKVCache)
        memory = dict(hidden_layers=LAYERS, device=model.device, dtype=model.dtype)
        self.cache = make(model.config, 60 * count + 2, BLOCK, **memory)
        for text, table in zip(self.texts, self.tables, strict=True):
            if text:
                usual(model, self.cache, [text], [0], [table])
        self.passes = RaggedPasses(model.transformer, self.cache, count, tokens, **options)

    def words(self, count: int) -> list[int]:
        return self.random.choices(range(64), k=count)

    def compare(self, counts: dict[int, int], needed: Sequence[int], tolerance: float) -> None:
        """One pass over so many new tokens of these sequences, against the usual one on a copy of the pool."""
        rows = [self.words(count) for count in counts.values()]
        starts, tables = [len(self.texts[row]) for row in counts], [self.tables[row] for row in counts]
        counts, memory = list(map(len, rows)), self.cache.memories
        before = [part.clone() for part in memory]
        found = self.passes.read(rows, starts, tables, needed)
        logits, best = (answers.split(list(needed)) for answers in (found.logits, found.best))
        after = [part.clone() for part in memory]
        for part, old in zip(memory, before, strict=True):
            part.copy_(old)
        expected = usual(self.model, self.cache, rows, starts, tables)
        for i, (count, last) in enumerate(zip(counts, needed, strict=True)):
            assert len(logits[i]) == len(best[i]) == last
            if last:
                close(logits[i], expected[i][count - last :], tolerance, f"logits of sequence {i}")
                assert torch.equal(best[i], logits[i].argmax(-1))
        same_memory(self.cache, before, after, rows, starts, tables, tolerance)


def tolerance_of(dtype: torch.dtype) -> float:
    return {torch.float64: 1e-10, torch.float32: 1e-4}.get(dtype, 0.05)


def check_passes(device="cpu", dtype=torch.float64, shapes=tuple(SHAPES), **options) -> None:
    """Chunks of many lengths, alone and together, with and without logits, in buckets that are full and not."""
    for name in shapes:
        model = random_model(dtype=dtype, device=device, num_layers=3, **SHAPES[name])
        scene = Scene(model, **options)
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
        assert {shape.tokens for shape in map(Shape._make, scene.passes.captures)} == {16, 32, 64, 256}
        assert len(scene.passes.captures) < 10


def check_neighbours(device="cpu", dtype=torch.float64) -> None:
    """A sequence whose memory is damaged damages no other; nor does what padding has left in the spare block."""
    scene = Scene(random_model(dtype=dtype, device=device, num_layers=3))
    rows, starts, tables = [[3] * 20, [4] * 9, [5]], [6, 6, 6], [scene.tables[row] for row in (2, 3, 4)]
    expected = usual(scene.model, scene.cache, rows[1:], starts[1:], tables[1:])
    for memory in (scene.cache.keys, scene.cache.values):
        memory[:, tables[0][0]] = memory[:, -1] = torch.nan
    for _ in range(2):
        found = scene.passes.read(rows, starts, tables, [1, 9, 1])
        logits = found.logits.split([1, 9, 1])
        assert found.best[:1].tolist() == [-1] and not logits[0].isfinite().any()
        for mine, wanted in zip(logits[1:], expected, strict=True):
            close(mine, wanted, tolerance_of(dtype), "a neighbour's logits")


# ---- on a GPU only -------------------------------------------------------------------------------------------------


def check_replay(device="cuda") -> None:
    """A capture does what its work does, whatever is in the sheet since; and all of it was captured."""
    scene = Scene(random_model(dtype=torch.float32, device=device, num_layers=3))
    for counts in ({0: 20, 1: 3}, {2: 1, 3: 31}, {4: 10, 5: 10, 6: 9}):
        rows, starts = [scene.words(count) for count in counts.values()], [len(scene.texts[row]) for row in counts]
        result = scene.passes.read(rows, starts, [scene.tables[row] for row in counts], [1] * len(counts))
        shape = scene.passes.shape(rows, [1] * len(counts))
        on_the_device(scene.passes.work)(*shape)
        close(result.logits, scene.passes.logits[: len(counts)], 1e-5, "replayed and not replayed")
    assert all(captured.graph is not None for captured in scene.passes.captures.values())


def main() -> None:
    cuda = dict(device="cuda", dtype=torch.float32)
    run_on_the_gpu(
        {
            "passes, float32": lambda: check_passes(**cuda),
            "passes, bfloat16": lambda: check_passes("cuda", torch.bfloat16, shapes=("llama", "qwen3")),
            "neighbours": lambda: check_neighbours(**cuda),
            "replay": check_replay,
        }
    )


if __name__ == "__main__":
    main()
