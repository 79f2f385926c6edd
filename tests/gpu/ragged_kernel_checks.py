"""The kernel of a ragged batch against its twin, and against PagedPass: on a GPU, or on a CPU with TRITON_INTERPRET=1.

test_ragged.py runs this file in a process of its own, because Triton reads that variable once, when imported.
"""

from __future__ import annotations

import random

import pytest
import torch
from flash_checks import DEVICE, TILING, fresh_memory_is_nan, random_tree
from tiny_models import random_model

from minispec.gpu import attention as fd
from minispec.serving.paged import PagedKVCache

__all__ = ["fresh_memory_is_nan"]  # a fixture for all tests


class Batch:
    """Sequences with so many new tokens after so many cached ones, in shuffled blocks. What nobody filled is NaN."""

    def __init__(self, counts, lengths, heads=(4, 2), D=32, block_size=8, padding=0, T=0, dtype=torch.float32, seed=0):
        self.generator = torch.Generator().manual_seed(seed)
        (H, Hkv), R = heads, len(counts)
        self.real = sum(counts)
        self.q = self.draw(self.real + padding, H, D, dtype=dtype)
        ends = [length + count for length, count in zip(lengths, counts, strict=True)]
        need = [-(-end // block_size) for end in ends]
        order = torch.randperm(2 * sum(need) + 1, generator=self.generator)[: sum(need)].split(need)
        self.tables = torch.zeros(R, max(need) + 2, dtype=torch.int32)  # beyond the last token: anything
        self.memory = [torch.full((2 * sum(need) + 1, block_size, Hkv, D), torch.nan, dtype=dtype) for _ in range(2)]
        for row, (blocks, end) in enumerate(zip(order, ends, strict=True)):
            self.tables[row, : len(blocks)] = blocks
            for memory in self.memory:
                padded = self.draw(len(blocks) * block_size, Hkv, D, dtype=dtype).cpu()
                padded[end:] = torch.nan
                memory[blocks] = padded.unflatten(0, (-1, block_size))
        self.memory, self.tables = [memory.to(DEVICE) for memory in self.memory], self.tables.to(DEVICE)
        starts = [sum(counts[:row]) for row in range(R)]
        self.starts, self.counts, self.lengths = torch.tensor([starts, counts, lengths], device=DEVICE).int().unbind()
        self.mask = None
        if T:  # trees; those that bring fewer tokens than T attend within them alone
            self.mask = torch.zeros(R, T, T, dtype=torch.bool, device=DEVICE)
            for row, count in enumerate(counts):
                if 0 < count <= T:
                    self.mask[row, :count, :count] = random_tree(count, seed + row).to(DEVICE)

    def draw(self, *shape, dtype):
        return torch.randn(*shape, generator=self.generator).to(DEVICE, dtype)

    def check(self, tolerance=1e-4, tiling=TILING, **options):
        arguments = *self.memory, self.tables, self.starts, self.counts, self.lengths, self.mask
        out = fd.flash_ragged(self.q, *arguments, tiling=tiling, **options)
        expected = fd.flash_ragged_torch(self.q, *arguments)
        assert out.shape == self.q.shape and out.dtype == self.q.dtype
        out, expected = out[: self.real], expected[: self.real]  # of padding anything may come
        assert expected.isfinite().all()
        torch.testing.assert_close(out, expected, atol=tolerance, rtol=tolerance)
        return out


@pytest.mark.parametrize("seed", range(12))
def test_random_batches(seed):
    draw = random.Random(seed)
    R, Hkv = draw.randint(1, 5), draw.choice((1, 2))
    counts = [draw.choice((0, 1, draw.randint(2, 7), draw.randint(8, 60))) for _ in range(R - 1)] + [draw.randint(1, 30)]
    lengths = [draw.choice((0, draw.randint(0, 15), draw.randint(16, 70))) for _ in counts]
    batch = Batch(
        counts, lengths, (Hkv * draw.choice((1, 2, 3)), Hkv), draw.choice((16, 24)), draw.choice((4, 8, 16)),
        padding=draw.choice((0, 3, 20)), T=draw.choice((0, 0, 4, 7)), seed=seed,
    )  # fmt: skip
    for splits in (1, draw.choice((2, 3, 5))):
        batch.check(splits=splits, rows=draw.choice((16, 32)))


@pytest.mark.parametrize("count", [1, 7, 8, 9, 15, 16, 17, 32, 33])
@pytest.mark.parametrize("length", [0, 9, 16])
def test_every_place_of_the_borders(count, length):
    """Blocks of 16 query rows, two heads each, and tiles of 16 slots: before, at and after each border; between two
    neighbours, so that the programs of each begin anywhere."""
    for others in (1, 5, 8):
        Batch([others, count, others], [3, length, 20], seed=count).check(splits=2, rows=16)


def test_chunks_decoding_sequences_and_trees_in_one_call():
    batch = Batch([40, 1, 6, 1, 23, 3], [0, 50, 17, 0, 31, 8], padding=9, T=6, seed=3)
    outs = [batch.check(splits=splits, rows=rows) for splits in (1, 4) for rows in (16, 64)]
    for out in outs[1:]:
        torch.testing.assert_close(out, outs[0], atol=1e-5, rtol=1e-5)


def test_three_heads_share_one_and_head_dimensions_that_are_no_powers_of_two():
    """SmolLM2's heads: blocks of 16 query rows end in the middle of a token."""
    for D in (24, 80):
        Batch([30, 2, 1], [5, 40, 0], (3, 1), D, seed=D).check(splits=2, rows=16)


def test_sequences_that_bring_nothing_are_padding():
    batch = Batch([12, 0, 3, 0, 0], [4, 9, 30, 0, 0], padding=17)
    batch.check(splits=3)
    batch.check(splits=1)


def test_defaults_choose_rows_a_tiling_and_splits():
    Batch([70, 1], [30, 200], seed=6).check(tiling=None)
    Batch([fd.LONG, 1], [10, 20], (1, 1), 16, seed=6).check(tiling=None)


def test_as_a_uniform_batch():
    """Sequences of equally many tokens: what `flash_decode_paged` computes."""
    batch = Batch([5, 5, 5], [20, 3, 0], seed=7)
    rows = batch.q.unflatten(0, (3, 5)).transpose(1, 2)  # [3, H, 5, D]
    expected = fd.flash_decode_paged(rows, *batch.memory, batch.tables, batch.lengths, splits=2, tiling=TILING)
    torch.testing.assert_close(batch.check(splits=2), expected.transpose(1, 2).flatten(0, 1), atol=1e-5, rtol=1e-5)


def test_numbers_may_change_under_a_call_with_the_same_shapes():
    """What a CUDA graph does: the same tensors, other numbers in them."""
    batch = Batch([30, 20, 2], [10, 3, 50], seed=8)
    for memory in batch.memory:
        memory.copy_(batch.draw(*memory.shape, dtype=memory.dtype))
    for counts, lengths in (([30, 20, 2], [10, 3, 50]), ([1, 50, 0], [0, 2, 0]), ([52, 0, 0], [6, 0, 0])):
        batch.counts.copy_(torch.tensor(counts))
        batch.lengths.copy_(torch.tensor(lengths))
        batch.starts.copy_(torch.tensor([0, counts[0], counts[0] + counts[1]]))
        batch.check(splits=3, rows=16)


@pytest.mark.skipif(fd.INTERPRETED, reason="CUDA graphs need a GPU")
def test_a_cuda_graph_follows_the_numbers():
    batch = Batch([300, 1, 5], [10, 900, 40], (32, 8), 128, 16, padding=206, dtype=torch.bfloat16, seed=9)
    for memory in batch.memory:
        memory.copy_(batch.draw(*memory.shape, dtype=memory.dtype))
    arguments = *batch.memory, batch.tables, batch.starts, batch.counts, batch.lengths
    fd.flash_ragged(batch.q, *arguments)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = fd.flash_ragged(batch.q, *arguments)
    for counts, lengths in (([300, 1, 5], [10, 900, 40]), ([512, 0, 0], [100, 0, 0]), ([1, 16, 290], [30, 500, 3])):
        batch.counts.copy_(torch.tensor(counts))
        batch.lengths.copy_(torch.tensor(lengths))
        batch.starts.copy_(torch.tensor([0, counts[0], counts[0] + counts[1]]))
        graph.replay()
        expected = fd.flash_ragged_torch(batch.q, *arguments)
        torch.testing.assert_close(out[: sum(counts)], expected[: sum(counts)], atol=2e-2, rtol=2e-2)


@pytest.mark.skipif(fd.INTERPRETED, reason="the interpreter takes bfloat16 for whole numbers")
def test_the_8b_shape_in_bfloat16():
    for T in (0, 8):
        batch = Batch([1500, 1, 7, 300, 60], [0, 2000, 900, 700, 33], (32, 8), 128, 16, padding=180, T=T,
                      dtype=torch.bfloat16, seed=T)  # fmt: skip
        batch.check(2e-2, tiling=None)


def test_half_precision():
    Batch([20, 1], [30, 9], D=64, dtype=torch.float16, seed=10).check(4e-3, splits=2)


def test_the_layers_of_a_paged_cache():
    """A pass through PagedKVCache, chunks, a decoding sequence and a tree, then the same attention from its memory."""
    config = random_model(num_layers=2).config
    H, Hkv, D = config.num_heads, config.num_kv_heads, config.head_dim
    cache = PagedKVCache(config, num_blocks=30, block_size=8, device=DEVICE)
    generator = torch.Generator().manual_seed(0)
    for memory in (cache.keys, cache.values):
        memory.copy_(torch.randn(memory.shape, generator=generator))
    tables, lengths, counts = [[3, 7, 1], [2, 9, 5, 11], [12], [0, 4, 6, 8, 10]], [14, 30, 0, 17], [4, 1, 8, 22]
    N, T, tree = sum(counts), 4, random_tree(4, seed=3).to(DEVICE)
    q, k, v = (torch.randn(1, heads, N, D, generator=generator).to(DEVICE) for heads in (H, Hkv, Hkv))
    _, attend = cache.open(tables, lengths, counts, [tree, None, None, None]).begin(N)
    expected = attend(1, q, k, v)  # [1, H, N, D], and writes k and v
    mask = torch.ones(4, T, T, dtype=torch.bool, device=DEVICE).tril()
    mask[0] = tree
    table = torch.tensor([blocks + [0] * (5 - len(blocks)) for blocks in tables], device=DEVICE)
    starts = torch.tensor([0, 4, 5, 13], device=DEVICE)
    numbers = torch.tensor(counts, device=DEVICE), torch.tensor(lengths, device=DEVICE)
    for attention in (fd.flash_ragged, fd.flash_ragged_torch):
        out = attention(q[0].transpose(0, 1), cache.keys[1], cache.values[1], table, starts, *numbers, mask)
        torch.testing.assert_close(out.transpose(0, 1)[None], expected, atol=1e-4, rtol=1e-4)
