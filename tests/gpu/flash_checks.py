"""The kernels of flash_decode against their twins: on a GPU, or on a CPU with TRITON_INTERPRET=1.

test_flash_decode.py runs this file in a process of its own, because Triton reads that variable once, when imported.
"""

from __future__ import annotations

import random

import pytest
import torch
from tiny_models import random_model

from minispec.gpu import attention as fd
from minispec.serving.paged import PagedKVCache
from minispec.tree import verify_mask

DEVICE = "cpu" if fd.INTERPRETED else "cuda"
TILING = fd.Tiling(16, 4, 2)  # small tiles: short texts have several


@pytest.fixture(autouse=True)
def fresh_memory_is_nan():
    """What the kernels leave unwritten, and what they read of it, shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)  # with it, torch fills what it allocates
    yield
    torch.use_deterministic_algorithms(False)


def random_tree(tokens: int, seed: int) -> torch.Tensor:
    """The verify mask of a random tree whose pass reads `tokens` tokens."""
    draw = random.Random(seed)
    return verify_mask([draw.randint(-1, node - 1) for node in range(tokens - 1)])


class Case:
    """Random queries, keys and values. Slots that nobody filled hold NaN."""

    def __init__(self, lengths, T, heads=(4, 2), D=64, capacity=None, dtype=torch.float32, seed=0, tree=False):
        self.generator = torch.Generator().manual_seed(seed)
        self.lengths, self.T, self.dtype = lengths, T, dtype
        B, (H, Hkv) = len(lengths), heads
        self.q = self.draw(B, T, H, D).transpose(1, 2)  # as a model makes them
        self.k, self.v = (self.draw(B, Hkv, capacity or max(lengths) + T, D) for _ in range(2))
        for row, length in enumerate(lengths):
            self.k[row, :, length + T :] = self.v[row, :, length + T :] = torch.nan
        self.mask = torch.stack([random_tree(T, seed + row) for row in range(B)]).to(DEVICE) if tree else None
        self.on_device = torch.tensor(lengths, device=DEVICE)

    def draw(self, *shape):
        return torch.randn(*shape, generator=self.generator).to(DEVICE, self.dtype)

    def paged(self, block_size: int):
        """The same memory in shuffled blocks: key blocks, value blocks and tables; every other block is NaN."""
        B, Hkv, S, D = self.k.shape
        each = -(-S // block_size)
        order = torch.randperm(2 * B * each, generator=self.generator)[: B * each].reshape(B, each).to(DEVICE)
        memory = []
        for source in (self.k, self.v):
            blocks = torch.full((2 * B * each, block_size, Hkv, D), torch.nan, dtype=self.dtype, device=DEVICE)
            padded = torch.nn.functional.pad(source.transpose(1, 2), (0, 0, 0, 0, 0, each * block_size - S))
            blocks[order] = padded.unflatten(1, (each, block_size))
            memory.append(blocks)
        for row, length in enumerate(self.lengths):  # beyond a row's last token its table may hold anything valid
            order[row, -(-(length + self.T) // block_size) :] = 0
        return *memory, order

    def check(self, splits=None, block_size=None, tiling=TILING, tolerance=1e-4):
        memory = (self.k, self.v) if block_size is None else self.paged(block_size)
        kernel, twin = (
            (fd.flash_decode, fd.flash_decode_torch)
            if block_size is None
            else (fd.flash_decode_paged, fd.flash_decode_paged_torch)
        )
        out = kernel(self.q, *memory, self.on_device, self.mask, splits=splits, tiling=tiling)
        expected = twin(self.q, *memory, self.on_device, self.mask)
        assert out.shape == self.q.shape and out.dtype == self.dtype and expected.isfinite().all()
        torch.testing.assert_close(out, expected, atol=tolerance, rtol=tolerance)
        return out


@pytest.mark.parametrize("seed", range(12))
def test_a_random_ragged_batch(seed):
    draw = random.Random(seed)
    lengths = [draw.choice((0, draw.randint(0, 15), draw.randint(16, 90))) for _ in range(draw.randint(1, 3))]
    Hkv = draw.choice((1, 2))
    case = Case(
        lengths,
        draw.randint(1, 7),
        (Hkv * draw.choice((1, 2, 3)), Hkv),
        draw.choice((16, 64)),
        capacity=max(lengths) + draw.randint(7, 40),
        seed=seed,
        tree=draw.random() < 0.5,
    )
    for block_size in (None, draw.choice((8, 16, 32))):
        case.check(draw.choice((1, 2, 3, 5)), block_size)


@pytest.mark.parametrize("block_size", [None, 8, 16, 32])
def test_the_tree_mask_and_the_chain(block_size):
    for tree in (False, True):
        Case([37, 3], 6, seed=5, tree=tree).check(3, block_size)


@pytest.mark.parametrize("length", [0, 1, 10, 11, 15, 16, 17, 31, 32, 48])
def test_every_place_of_the_end_in_a_tile(length):
    """Five new tokens that end before, at and after the border of a tile, in splits of their own or not."""
    for splits in (1, 4):
        Case([length], 5, capacity=64, seed=length, tree=True).check(splits, 16)


def test_more_query_rows_than_one_program_takes():
    """G·T = 72: two programs, the second with 8 rows; and a tree wider than a tile."""
    case = Case([20], 24, (3, 1), seed=2, tree=True)
    case.check(2)
    case.check(1, 8)


def test_head_dimensions_that_are_no_powers_of_two():
    for D in (24, 80):
        Case([30], 2, D=D, seed=D).check(2)
        Case([30], 2, D=D, seed=D).check(1, 16)


def test_tiles_wider_than_blocks_and_blocks_wider_than_tiles():
    case = Case([70, 9], 3, seed=3)
    for tile, block_size in ((64, 8), (16, 32), (32, 12)):  # 12: blocks that straddle tiles
        case.check(2, block_size, fd.Tiling(tile, 4, 2))


def test_the_number_of_splits_does_not_matter():
    case = Case([100, 1], 3, seed=4)
    outs = [case.check(splits) for splits in (1, 2, 7, 20)]
    for out in outs[1:]:
        torch.testing.assert_close(out, outs[0], atol=1e-6, rtol=1e-5)


def test_defaults_choose_a_tiling_and_splits():
    Case([200], 2, seed=6).check(tiling=None)
    Case([200], 2, seed=6).check(None, 16, tiling=None)


def test_what_is_chosen_for_less_shared_memory(monkeypatch):
    """Smaller tiles, and fewer query rows in a program: here two programs share the 22 of a key/value head."""
    monkeypatch.setattr(fd, "card", lambda device: fd.Card(1, 99 * fd.KIB))
    rows, tiling = fd.default_tiling(torch.float32, 32, 256, 99 * fd.KIB)
    assert rows == tiling.tile == 16
    Case([40, 7], 11, D=256, seed=14, tree=True).check(2, tiling=None)
    Case([40, 7], 11, D=256, seed=15).check(2, 16, tiling=None)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    case = Case([50, 12], 5, D=128, dtype=dtype, seed=7, tree=True)
    if fd.INTERPRETED and dtype == torch.bfloat16:  # the interpreter's product of bfloat16 is nonsense, not inexact
        with pytest.raises(ValueError, match="bfloat16"):
            case.check()
        return
    tolerance = 4e-3 if dtype == torch.float16 else 2e-2
    case.check(2, tolerance=tolerance)
    case.check(1, 16, tolerance=tolerance)


def test_large_scores_do_not_overflow():
    case = Case([60], 2, seed=8)
    case.q *= 100
    case.check(3)
    case.k[:, :, :30] -= 50  # and a split whose maximum is far below the others'
    case.check(4)
    case.q[:], case.k[:] = 10, -10 + case.k / 100  # all scores near −800: nothing is near to 0
    case.check(3)


def test_who_sees_nothing_gets_zero():
    case = Case([0, 40], 3, seed=9)
    case.mask = torch.eye(3, dtype=torch.bool, device=DEVICE).repeat(2, 1, 1)
    case.mask[:, 1, 1] = False
    for splits in (1, 2):
        out = case.check(splits)
        assert (out[0, :, 1] == 0).all() and (out[1, :, 1] != 0).all()


def test_one_mask_for_all_rows_and_a_mask_cut_from_a_larger_one():
    case = Case([25, 8], 4, seed=10)
    wide = torch.zeros(2, 6, 6, dtype=torch.bool, device=DEVICE)
    wide[:, :4, :4] = random_tree(4, seed=1).to(DEVICE)
    case.mask = wide[:, :4, :4]
    one = case.check(2)
    case.mask = wide[0, :4, :4]
    assert torch.equal(case.check(2), one)


def test_the_newest_of_several_entries():
    """A mask of T rows and E columns: what these tokens get if all E entries are asked."""
    case = Case([30, 3], 7, seed=14, tree=True)
    all_of_them = case.check(3)
    case.q, case.mask = case.q[:, :, 4:], case.mask[:, 4:]
    for splits in (1, 3):
        torch.testing.assert_close(case.check(splits), all_of_them[:, :, 4:], atol=1e-4, rtol=1e-4)


def test_lengths_may_change_under_a_call_with_the_same_shapes():
    """What a CUDA graph does: the same tensors, other numbers in them."""
    case = Case([10], 2, capacity=80, seed=11)
    case.k[:], case.v[:] = case.draw(*case.k.shape), case.draw(*case.v.shape)
    for length in (10, 77, 0):
        case.on_device.fill_(length)
        case.check(4)


@pytest.mark.skipif(fd.INTERPRETED, reason="CUDA graphs need a GPU")
def test_a_cuda_graph_follows_the_lengths():
    case = Case([10, 3], 3, D=128, capacity=300, dtype=torch.bfloat16, seed=13)
    case.k[:], case.v[:] = case.draw(*case.k.shape), case.draw(*case.v.shape)
    call = lambda: fd.flash_decode(case.q, case.k, case.v, case.on_device)  # noqa: E731
    call()  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    for length in (10, 297, 0):
        case.on_device.fill_(length)
        graph.replay()
        expected = fd.flash_decode_torch(case.q, case.k, case.v, case.on_device)
        torch.testing.assert_close(out, expected, atol=2e-2, rtol=2e-2)


def test_a_row_that_outgrew_its_memory_reads_no_further():
    """A graph cannot raise an error. What lies behind a row's memory is another row's, and must stay unread."""
    case = Case([40, 40], 2, seed=12)
    case.on_device += 1  # the last new token of each row has no slot
    out = fd.flash_decode(case.q, case.k, case.v, case.on_device, splits=2, tiling=TILING)
    expected = fd.flash_decode_torch(case.q, case.k, case.v, case.on_device)
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)


def test_the_layers_of_a_paged_cache():
    """A pass through PagedKVCache, then the same attention from its own memory."""
    config = random_model(num_layers=2).config
    H, Hkv, D = config.num_heads, config.num_kv_heads, config.head_dim
    cache = PagedKVCache(config, num_blocks=12, block_size=8, device=DEVICE)
    tables, lengths, T = [[3, 7, 1], [2, 9, 5]], [14, 9], 4
    generator = torch.Generator().manual_seed(0)
    for memory in (cache.keys, cache.values):
        memory.copy_(torch.randn(memory.shape, generator=generator))
    tree = random_tree(T, seed=3).to(DEVICE)
    q, k, v = (torch.randn(1, heads, 2 * T, D, generator=generator).to(DEVICE) for heads in (H, Hkv, Hkv))
    _, attend = cache.open(tables, lengths, [T, T], [tree, None]).begin(2 * T)
    expected = attend(1, q, k, v)  # [1, H, 2·T, D], and writes k and v
    masks = torch.stack([tree, torch.ones(T, T, dtype=torch.bool, device=DEVICE).tril()])
    rows = q[0].unflatten(1, (2, T)).transpose(0, 1)  # [2, H, T, D]
    on_device = torch.tensor(lengths, device=DEVICE)
    out = fd.flash_decode_paged(
        rows, cache.keys[1], cache.values[1], torch.tensor(tables, device=DEVICE), on_device, masks, splits=2
    )
    torch.testing.assert_close(out.transpose(0, 1).flatten(1, 2)[None], expected, atol=1e-4, rtol=1e-4)
