"""The kernels for a ragged batch against their twin, and against PagedPass: on a GPU, or with TRITON_INTERPRET=1.

test_ragged.py runs this file in a process of its own, because Triton reads that variable once, when imported.
"""

from __future__ import annotations

import random

import pytest
import torch
from ragged_checks import Batch, check_graph, check_kernel, random_tree
from tiny_models import random_model

from minispec.gpu import attention as fd
from minispec.serving.paged import PagedKVCache

DEVICE = "cpu" if fd.INTERPRETED else "cuda"
SMALL = dict(tiling=fd.Tiling(16, 4, 2), rows=16)  # small tiles: short sequences have several


@pytest.fixture(autouse=True)
def fresh_memory_is_nan():
    """What the kernels leave unwritten, and what they read of it, shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("seed", range(10))
def test_random_batches(seed):
    draw = random.Random(seed)
    R, Hkv = draw.randint(1, 5), draw.choice((1, 2))
    counts = [draw.choice((0, 1, draw.randint(2, 7), draw.randint(8, 50))) for _ in range(R - 1)] + [
        draw.randint(1, 30)
    ]
    lengths = [draw.choice((0, draw.randint(0, 15), draw.randint(16, 60))) for _ in counts]
    batch = Batch(
        counts,
        lengths,
        (Hkv * draw.choice((1, 2, 3)), Hkv),
        draw.choice((16, 24)),
        draw.choice((4, 8, 16)),
        padding=draw.choice((0, 3, 20)),
        T=draw.choice((0, 0, 4, 7)),
        seed=seed,
    )
    batch.check(splits=1, **SMALL)
    batch.check(splits=draw.choice((2, 3, 5)), **SMALL | dict(rows=32))


@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 17, 33])
@pytest.mark.parametrize("length", [0, 9, 16])
def test_every_place_of_the_borders(count, length):
    """Blocks of 16 query rows, two heads each, and tiles of 16 slots: before, at and after each border; between two
    neighbours, so that the programs of each begin anywhere."""
    for others in (1, 6):
        Batch([others, count, others], [3, length, 20], (2, 1), seed=count).check(splits=2, **SMALL)


def test_chunks_decoding_sequences_and_trees_in_one_call():
    batch = Batch([40, 1, 6, 1, 23, 3], [0, 50, 17, 0, 31, 8], padding=9, T=6, seed=3)
    outs = [batch.check(splits=splits, **SMALL | dict(rows=rows)) for splits, rows in ((1, 16), (4, 16), (4, 64))]
    for out in outs[1:]:
        torch.testing.assert_close(out, outs[0], atol=1e-5, rtol=1e-5)


def test_three_heads_share_one_and_head_dimensions_that_are_no_powers_of_two():
    """SmolLM2's heads: blocks of 16 query rows end in the middle of a token."""
    for D in (24, 80):
        Batch([30, 2, 1], [5, 40, 0], (3, 1), D, seed=D).check(splits=2, **SMALL)


def test_more_heads_than_a_program_has_rows():
    Batch([3, 1], [5, 20], (20, 1), 16, seed=2).check(splits=2, **SMALL)


def test_sequences_that_bring_nothing_are_padding():
    batch = Batch([12, 0, 3, 0, 0], [4, 9, 30, 0, 0], padding=17)
    batch.check(splits=3, **SMALL)
    batch.check(splits=1, **SMALL)


def test_defaults_choose_rows_a_tiling_and_splits():
    Batch([70, 1], [30, 200], (2, 1), seed=6).check()
    Batch([fd.LONG, 1], [10, 20], (1, 1), 16, seed=6).check()


def test_as_a_uniform_batch():
    """Sequences of equally many tokens: what `flash_decode_paged` computes."""
    batch = Batch([5, 5, 5], [20, 3, 0], seed=7)
    rows = batch.q.unflatten(0, (3, 5)).transpose(1, 2)  # [3, H, 5, D]
    expected = fd.flash_decode_paged(rows, *batch.memory, batch.tables, batch.numbers[2], splits=2)
    torch.testing.assert_close(batch.check(splits=2), expected.transpose(1, 2).flatten(0, 1), atol=1e-5, rtol=1e-5)


def test_numbers_may_change_under_a_call_with_the_same_shapes():
    """What a CUDA graph does: the same tensors, other numbers in them."""
    batch = Batch([30, 20, 2], [10, 3, 50], seed=8)
    batch.fill()
    for counts, lengths in (([30, 20, 2], [10, 3, 50]), ([1, 50, 0], [0, 2, 0]), ([52, 0, 0], [6, 0, 0])):
        batch.write(counts, lengths)
        batch.check(splits=3, **SMALL)


def test_half_precision():
    Batch([20, 1], [30, 9], D=64, dtype=torch.float16, seed=10).check(4e-3, splits=2, **SMALL)


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
    starts, *numbers = torch.tensor([[0, 4, 5, 13], counts, lengths], device=DEVICE).unbind()
    for attention in (fd.flash_ragged, fd.flash_ragged_torch):
        out = attention(q[0].transpose(0, 1), cache.keys[1], cache.values[1], table, starts, *numbers, mask)
        torch.testing.assert_close(out.transpose(0, 1)[None], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.skipif(fd.INTERPRETED, reason="needs a GPU")
@pytest.mark.parametrize("check", [check_kernel, check_graph])
def test_at_full_size(check):
    check()
