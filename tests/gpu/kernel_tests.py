"""Every Triton kernel against its reference in plain torch, on a GPU, or on a CPU in Triton's interpreter, which
test_kernels.py starts: Triton reads TRITON_INTERPRET once, when it is imported.

Each test loops over its cases; with MINISPEC_FEW=1 it takes the first of them.
"""

import os
import random
from collections.abc import Iterable
from contextlib import ExitStack
from copy import copy
from itertools import pairwise, product
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from all_drafters import random_dflash, random_eagle, random_medusa
from test_cycles import EAGLE31, of_its_own_shape
from tiny_models import random_model

import minispec as ms
from minispec.cache import KVCache
from minispec.drafters import growth
from minispec.drafters.growth import grow_tensors
from minispec.gpu import attention as fd
from minispec.gpu import decode, heads, verdict, vocab, weights
from minispec.gpu import gemm as sk
from minispec.gpu import trees as tk
from minispec.gpu.decode import TreeSpeculator
from minispec.gpu.weights import FastTransformer, Weights, norm, rope_and_store_torch
from minispec.model import Config, rope_at
from minispec.sampling import Coins, best_tokens, uniforms
from minispec.sequence import Sequence
from minispec.tree import verify_mask
from minispec.verify import greedy

FEW, D = "MINISPEC_FEW" in os.environ, ms.drafters
pytestmark = [] if fd.INTERPRETED else [pytest.mark.gpu]
DEVICE = "cpu" if fd.INTERPRETED else "cuda"
DTYPES = (torch.float32, torch.float16) if fd.INTERPRETED else fd.DTYPES  # the interpreter knows no bfloat16
ROUNDING = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
SMALL = fd.Tiling(16, 4, 2)  # small tiles: short sequences have several


def cases(every: Iterable) -> list:
    every = list(every)
    return every[:1] if FEW else every


def randn(*shape, seed: int = 0, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def whole(*numbers) -> torch.Tensor:
    return torch.tensor(numbers, device=DEVICE)


def same(found, expected) -> None:
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))


# ---- attention -----------------------------------------------------------------------------------------------------


def random_tree(tokens: int, seed: int) -> torch.Tensor:
    """The verify mask of a random tree whose pass processes `tokens` tokens."""
    draw = random.Random(seed)
    return verify_mask([draw.randint(-1, node - 1) for node in range(tokens - 1)])


class Case:
    """Random queries, keys and values. Slots that were not filled hold NaN."""

    def __init__(self, lengths, T, heads=(4, 2), D=64, capacity=None, dtype=torch.float32, seed=0, tree=False):
        self.generator = torch.Generator().manual_seed(seed)
        self.lengths, self.T, self.dtype = lengths, T, dtype
        B, (H, Hkv) = len(lengths), heads
        self.q = self.draw(B, T, H, D).transpose(1, 2)  # as a model makes them
        self.k, self.v = (self.draw(B, Hkv, capacity or max(lengths) + T, D) for _ in range(2))
        for row, length in enumerate(lengths):
            self.k[row, :, length + T :] = self.v[row, :, length + T :] = torch.nan
        self.mask = torch.stack([random_tree(T, seed + row) for row in range(B)]).to(DEVICE) if tree else None
        self.on_device = whole(*lengths)

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
            padded = F.pad(source.transpose(1, 2), (0, 0, 0, 0, 0, each * block_size - S))
            blocks[order] = padded.unflatten(1, (each, block_size))
            memory.append(blocks)
        for row, length in enumerate(self.lengths):  # beyond a row's last token its table may hold anything valid
            order[row, -(-(length + self.T) // block_size) :] = 0
        return *memory, order

    def check(self, splits=None, block_size=None, tiling=SMALL, tolerance=1e-4):
        memory, kernel, reference = (self.k, self.v), fd.flash_decode, fd.flash_decode_torch
        if block_size is not None:
            memory, kernel, reference = self.paged(block_size), fd.flash_decode_paged, fd.flash_decode_paged_torch
        out = kernel(self.q, *memory, self.on_device, self.mask, splits=splits, tiling=tiling)
        expected = reference(self.q, *memory, self.on_device, self.mask)
        assert out.shape == self.q.shape and out.dtype == self.dtype and expected.isfinite().all()
        torch.testing.assert_close(out, expected, atol=tolerance, rtol=tolerance)
        return out


def test_attention_over_random_batches():
    """Random ragged batches, chains and trees, contiguous and paged."""
    for seed in cases(range(12)):
        draw = random.Random(seed)
        lengths = [draw.choice((0, draw.randint(0, 15), draw.randint(16, 90))) for _ in range(draw.randint(1, 3))]
        (Hkv, G, D), room = (draw.choice((1, 2)), draw.choice((1, 2, 3)), draw.choice((16, 64))), draw.randint(7, 40)
        shape = dict(heads=(Hkv * G, Hkv), D=D, capacity=max(lengths) + room)
        case = Case(lengths, draw.randint(1, 7), **shape, seed=seed, tree=seed % 2 == 0)
        for block_size in (None, draw.choice((8, 16, 32))):
            case.check(draw.choice((1, 2, 3, 5)), block_size)


def test_attention_at_the_borders_of_tiles():
    """Where new tokens end in a tile; many query rows; odd head sizes; tiles and blocks that straddle each other."""
    for length in cases([17, 0, 1, 10, 11, 15, 16, 31, 32, 48]):
        for splits in (1, 4):
            Case([length], 5, capacity=64, seed=length, tree=True).check(splits, 16)
    if FEW:
        return
    wide = Case([20], 24, (3, 1), seed=2, tree=True)  # G·T = 72: two programs; and a tree wider than a tile
    wide.check(2), wide.check(1, 8)
    for D in (24, 80):
        Case([30], 2, D=D, seed=D).check(2)
        Case([30], 2, D=D, seed=D).check(1, 16)
    for tile, block_size in ((64, 8), (16, 32), (32, 12)):  # 12: blocks that straddle tiles
        Case([70, 9], 3, seed=3).check(2, block_size, fd.Tiling(tile, 4, 2))
    outs = [Case([100, 1], 3, seed=4).check(splits) for splits in (1, 2, 7, 20)]
    for out in outs[1:]:
        torch.testing.assert_close(out, outs[0], atol=1e-6, rtol=1e-5)
    for block_size in (None, 16):
        Case([200], 2, seed=6).check(None, block_size, tiling=None)
        Case([40, 7], 11, D=256, seed=14, tree=True).check(2, block_size, tiling=None)
    for dtype in DTYPES[1:]:
        for splits, block_size in ((2, None), (1, 16)):
            Case([50, 12], 5, D=128, dtype=dtype, seed=7, tree=True).check(
                splits, block_size, tolerance=ROUNDING[dtype]
            )


def test_attention_with_extreme_numbers():
    """Scores far from 0; tokens that see nothing; masks cut from larger ones; lengths that change under a call."""
    case = Case([60], 2, seed=8)
    case.q *= 100
    case.check(3)
    case.k[:, :, :30] -= 50  # a split whose maximum is far below the others'
    case.check(4)
    blind = Case([0, 40], 3, seed=9)
    blind.mask = torch.eye(3, dtype=torch.bool, device=DEVICE).repeat(2, 1, 1)
    blind.mask[:, 1, 1] = False
    out = blind.check(2)
    assert (out[0, :, 1] == 0).all() and (out[1, :, 1] != 0).all()
    if FEW:
        return
    newest = Case([30, 3], 7, seed=14, tree=True)  # a mask of T rows and E columns: the newest T of E entries
    all_of_them = newest.check(3)
    newest.q, newest.mask = newest.q[:, :, 4:], newest.mask[:, 4:]
    torch.testing.assert_close(newest.check(3), all_of_them[:, :, 4:], atol=1e-4, rtol=1e-4)
    case = Case([10], 2, capacity=80, seed=11)
    case.k[:], case.v[:] = case.draw(*case.k.shape), case.draw(*case.v.shape)
    for length in (10, 77, 0):  # what a CUDA graph does: the same tensors, other numbers in them
        case.on_device.fill_(length)
        case.check(4)
    over = Case([40, 40], 2, seed=12)
    over.on_device += 1  # the last new token of each row has no slot: what lies after a row's memory stays unread
    out = fd.flash_decode(over.q, over.k, over.v, over.on_device, splits=2, tiling=SMALL)
    expected = fd.flash_decode_torch(over.q, over.k, over.v, over.on_device)
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)


class Batch:
    """Sequences with so many new tokens after so many cached ones, in shuffled blocks. What was not filled is NaN."""

    def __init__(self, counts, lengths, heads=(4, 2), D=32, block_size=8, padding=0, dtype=torch.float32, seed=0):
        self.generator, self.dtype = torch.Generator().manual_seed(seed), dtype
        (H, Hkv), R = heads, len(counts)
        self.q = self.draw(sum(counts) + padding, H, D)
        ends = [length + count for length, count in zip(lengths, counts, strict=True)]
        need = [-(-end // block_size) for end in ends]
        blocks = 2 * sum(need) + 1
        order = torch.randperm(blocks, generator=self.generator)[: sum(need)].split(need)
        self.tables = torch.zeros(R, max(need) + 2, dtype=torch.int32)  # beyond the last token: anything
        self.memory = [torch.full((blocks, block_size, Hkv, D), torch.nan, dtype=dtype, device=DEVICE) for _ in "kv"]
        for row, (own, end) in enumerate(zip(order, ends, strict=True)):
            self.tables[row, : len(own)] = own
            for memory in self.memory:
                filled = self.draw(len(own) * block_size, Hkv, D)
                filled[end:] = torch.nan
                memory[own.to(DEVICE)] = filled.unflatten(0, (-1, block_size))
        self.tables = self.tables.to(DEVICE)
        self.numbers = torch.zeros(3, R, dtype=torch.int32, device=DEVICE)  # starts, counts, lengths
        self.write(counts, lengths)

    def draw(self, *shape):
        return torch.randn(*shape, generator=self.generator).to(DEVICE, self.dtype)

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
        """The kernel's answer, or `out`, is the reference's. Of padding anything may come."""
        out = fd.flash_ragged(*self.arguments(), **options) if out is None else out
        expected = fd.flash_ragged_torch(*self.arguments())
        assert out.shape == self.q.shape and out.dtype == self.q.dtype
        out, expected = out[: self.real], expected[: self.real]
        assert expected.isfinite().all()
        torch.testing.assert_close(out, expected, atol=tolerance, rtol=tolerance)
        return out


def test_ragged_attention():
    """Chunks, decoding sequences and padding in one call; all positions of the borders of blocks and tiles."""
    small = dict(tiling=SMALL, rows=16)
    counts, lengths = ([17, 1, 6], [0, 50, 8]) if FEW else ([40, 1, 6, 1, 23, 3], [0, 50, 17, 0, 31, 8])
    batch = Batch(counts, lengths, padding=9, seed=3)
    outs = [
        batch.check(splits=splits, **small | dict(rows=rows)) for splits, rows in cases([(4, 16), (1, 16), (4, 64)])
    ]
    for out in outs[1:]:
        torch.testing.assert_close(out, outs[0], atol=1e-5, rtol=1e-5)
    for count, length in cases((c, n) for c in (7, 1, 8, 9, 16, 17, 33) for n in (9, 0, 16)):
        for others in (1, 6):
            Batch([others, count, others], [3, length, 20], (2, 1), seed=count).check(splits=2, **small)
    for D in cases([24, 80]):  # SmolLM2's heads: blocks of 16 query rows end in the middle of a token
        Batch([30, 2, 1], [5, 40, 0], (3, 1), D, seed=D).check(splits=2, **small)
    Batch([12, 0, 3, 0, 0], [4, 9, 30, 0, 0], padding=17).check(splits=3, **small)
    if not FEW:
        Batch([3, 1], [5, 20], (20, 1), 16, seed=2).check(splits=2, **small)
        Batch([70, 1], [30, 200], (2, 1), seed=6).check()
        Batch([fd.LONG, 1], [10, 20], (1, 1), 16, seed=6).check()
        Batch([20, 1], [30, 9], D=64, dtype=torch.float16, seed=10).check(4e-3, splits=2, **small)
    batch = Batch([30, 20, 2], [10, 3, 50], seed=8)
    batch.fill()
    for counts, lengths in cases([([1, 50, 0], [0, 2, 0]), ([30, 20, 2], [10, 3, 50]), ([52, 0, 0], [6, 0, 0])]):
        batch.write(counts, lengths)
        batch.check(splits=3, **small)


MIXED = dict(counts=[1500, 1, 7, 300, 60], lengths=[0, 2000, 900, 700, 33])


def test_ragged_attention_at_full_size():
    """The 8B shape's heads and SmolLM2's: chunks and single tokens in one call, and every default."""
    for dtype in () if fd.INTERPRETED else DTYPES:
        tolerance = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 1e-4}[dtype]
        for shape, D in (((32, 8), 128), ((9, 3), 64)):
            batch = Batch(**MIXED, heads=shape, D=D, block_size=16, padding=180, dtype=dtype)
            batch.check(tolerance)
            for rows, splits in product((16, 64, 128), (1, 5)) if dtype == torch.bfloat16 else ():
                batch.check(tolerance, rows=rows, splits=splits)
            for counts, lengths in (([16], [0]), ([200, 3], [100, 5000]), ([2048], [0]), ([64] * 32, [77] * 32)):
                Batch(counts, lengths, shape, D, 16, dtype=dtype, seed=1).check(tolerance)


def test_a_cuda_graph_of_ragged_attention_follows_the_numbers():
    if fd.INTERPRETED:
        return
    batch = Batch([300, 1, 5], [10, 900, 40], (32, 8), 128, 16, padding=206, dtype=torch.bfloat16, seed=9)
    batch.fill()
    fd.flash_ragged(*batch.arguments())  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = fd.flash_ragged(*batch.arguments())
    for counts, lengths in (([300, 1, 5], [10, 900, 40]), ([512, 0, 0], [100, 0, 0]), ([1, 16, 290], [30, 500, 3])):
        batch.write(counts, lengths)
        graph.replay()
        batch.check(2e-2, out)


# ---- products ------------------------------------------------------------------------------------------------------

TILES = sk.Tiles(rows=16, wide=64, warps=4, stages=2)


def check_product(tokens, rows, width, dtype=torch.float32, norm=False, swiglu=False, tiles=TILES, **asked) -> None:
    """The kernel against the reference in float64, as near as the reference in this type is."""
    x, w = randn(*tokens, width, dtype=dtype), randn(rows, width, dtype=dtype, seed=1) / width**0.5
    out = rows // 2 if swiglu else rows
    shapes = dict(bias=(rows,), residual=(*tokens, out), gain=(out,))
    given = {name: randn(*shapes[name], dtype=dtype, seed=2 + len(name)) for name in asked}
    exact, exact_x = {name: tensor.double() for name, tensor in given.items()}, x.double()
    if norm:  # in several parts, as a product leaves it
        g = randn(width, dtype=dtype, seed=3)
        parts = torch.stack([part.float().square().sum(-1).flatten() for part in x.tensor_split(5, -1)])
        exact_x, x = sk.half_norm(x.double(), g.double()), sk.HalfNormed(sk.half_norm(x, g).x, parts)
    expected = sk.skinny_torch(exact_x, w.double(), **exact, eps=1e-5, swiglu=swiglu)
    found = sk.skinny(x, w, **given, eps=1e-5, swiglu=swiglu, tiles=tiles)
    if "gain" in asked:
        (found, half), (expected, half_expected) = found, expected
        if isinstance(half, torch.Tensor):  # programs shared sums
            close(half, weights.norm(expected, exact["gain"], 1e-5), dtype)
        else:
            assert half.x.shape == expected.shape and half.squares.dtype == torch.float32
            close(half.x, half_expected.x, dtype)
            close(half.squares.sum(0), half_expected.squares[0], dtype)
    assert found.shape == expected.shape and found.dtype == dtype
    close(found, expected, dtype)


def close(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    error = (found.double() - expected).abs().max().item()
    assert error < ROUNDING[dtype] * (1 + expected.abs().max().item()), f"off by {error:.1e}"


ALONG = [  # what a product takes along
    dict(norm=True, residual=True, gain=True),
    dict(norm=True, swiglu=True, bias=True),
    dict(norm=True),
    dict(swiglu=True),
    dict(residual=True),
    dict(bias=True),
    dict(norm=True, residual=True, bias=True),
    dict(swiglu=True, residual=True),
    dict(gain=True),
]


def test_products_and_what_is_fused_into_them():
    for dtype in cases(DTYPES):
        for tokens in cases([(5,), (1,), (1, 1), (2, 8), (17,), (3, 11), (64,), (3, 27), (128,)]):
            check_product(tokens, 48, 128, dtype)
        for along in ALONG[:2] if FEW else ALONG:
            for tokens in cases([(3, 13), (1, 5)]):  # the first are divided among two programs
                check_product(tokens, 64, 192, dtype, **along)
    for rows, width in cases([(40, 100), (16, 64), (17, 64), (33, 31), (6, 8)]):  # that no tile divides
        check_product((3,), rows, width, norm=True, residual=True, gain=True)
        check_product((3,), 2 * rows, width, norm=True, swiglu=True, bias=True)
    if not fd.INTERPRETED:  # every choice of tiles
        for rows, width in [(96, 576), (96, 1152), (4224, 1024), (8256, 1024), (8256, 576)]:
            for tokens in (5, 33):
                check_product((tokens,), rows, width, norm=True, residual=True, gain=True, tiles=None)
                check_product((tokens,), 2 * rows, width, norm=True, swiglu=True, tiles=None)
    x, w = randn(4, 128)[:, :64], randn(64, 64, seed=1) / 8  # a residual that is its own input, and x strided
    torch.testing.assert_close(sk.skinny(x, w, residual=x, tiles=TILES), x + x @ w.T, atol=1e-4, rtol=1e-4)


def test_products_whose_sum_several_programs_share():
    """Many tokens and few rows: several programs share a sum, whose strips are not divided evenly."""
    with patch.object(sk, "NARROW", 16), patch.object(sk, "card", lambda device: fd.Card(12, 227 * fd.KIB)):
        for dtype in cases(DTYPES):
            for tokens, rows, width in cases([((3, 7), 40, 200), ((17,), 48, 640), ((64,), 33, 192)]):
                check_product(tokens, rows, width, dtype, bias=True, residual=True, gain=True)


def test_products_near_the_limit_of_float16():
    """Residual streams near float16's limit of 65,504, and a norm with gains of 2 to 3: x·g alone would be infinite."""
    half, tokens, width = torch.float16, 3, 64
    x, down = randn(tokens, 32, dtype=half), randn(width, 32, dtype=half, seed=1) / 8
    residual = (6e4 * randn(tokens, width, seed=2).sign()).to(half)
    gain, weight = 2 + randn(width, seed=3).sigmoid().to(half), randn(96, width, dtype=half, seed=4) / 8
    y, normed = sk.skinny(x, down, residual=residual, gain=gain, tiles=TILES)
    # By torch: the norm is computed in float32 and rounded, as in model.py.
    stream = (residual.float() + x.float() @ down.float().T).to(half)
    by_torch = F.rms_norm(stream, (width,), gain, 1e-5) @ weight.T
    gate, up = by_torch.double().chunk(2, -1)
    assert y.isfinite().all() and y.abs().max() > 5.9e4
    for swiglu, expected in ((False, by_torch.double()), (True, F.silu(gate) * up)):
        close(sk.skinny(normed, weight, eps=1e-5, swiglu=swiglu, tiles=TILES), expected, half)


def test_what_lies_between_two_products():
    """What lies between two products: a sum and its norm, SwiGLU, RoPE and the write to memory."""
    for d in cases([24, 8, 100]):
        x, delta, gain = randn(3, 5, d), randn(3, 5, d, seed=1), randn(d, seed=2)
        for scale, eps in ((1, 1e-5), (1e-4, 1e-2)):  # where eps decides, too
            total, normed = sk.add_norm(x * scale, delta * scale, gain, eps)
            assert torch.equal(total, x * scale + delta * scale)
            assert (normed - norm(total, gain, eps)).abs().max() < 1e-6
            assert torch.equal(sk.add_norm(total, None, gain, eps)[1], normed)
    for n in cases([1500, 7, 1024]):
        gate, up = (gate_up := 4 * randn(2, 3, 2 * n)).chunk(2, -1)
        assert (sk.gated(gate_up) - F.silu(gate) * up).abs().max() < 1e-5
    B, T, D = 3, 5, CONFIG.head_dim
    cos, sin = (
        x[0, 0, :, None].contiguous().to(DEVICE) for x in rope_at(CONFIG, torch.arange(64)[None], torch.float32)
    )
    qkv, positions = randn(B, T, 10 * D), whole([3, 9, 4, 4, 63], [0, 1, 2, 3, 4], [5, 5, 5, 6, 6])
    slots = whole([0, 4, 2, 31, 7], [1, 2, 3, 4, 5], [9, 8, 7, 6, 5])
    flat = [torch.zeros(B, 2, 32, D, device=DEVICE) for _ in range(4)], torch.arange(B, device=DEVICE)[:, None]
    blocks = [torch.zeros(7, 32, 2, D, device=DEVICE).transpose(1, 2) for _ in range(4)]  # slots before heads
    for memory, rows in (flat, (blocks, whole([0] * T, [3] * T, [6] * T))):
        expected = rope_and_store_torch(
            qkv, Weights(*[None] * 8), *memory[:2], rows, slots, cos[positions], sin[positions], CONFIG
        )
        found = sk.rope_and_store(qkv, cos, sin, positions, *memory[2:], rows, slots)
        assert (found - expected).abs().max() < 1e-6 and memory[0].any()
        for a, b in zip(memory[:2], memory[2:], strict=True):
            assert (a - b).abs().max() < 1e-6


# ---- softmax and sampling ------------------------------------------------------------------------------------------

LENGTHS = 1025, 1, 5, 1023, 1024, 3000, 5000  # of a vocabulary


def number(x: float) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64, device=DEVICE)


def test_softmax():
    """For all lengths and dtypes, with forbidden tokens and whole forbidden pages; NaN spoils its row and no other."""
    for V, dtype in cases((V, dtype) for V in LENGTHS for dtype in fd.DTYPES[::-1]):
        x = 4 * randn(2, 3, V, seed=V).to(dtype)
        x[0, 1, V // 3 :], x[1, 2, : V - 1] = -torch.inf, -torch.inf
        x[0, 1, 0] = 1.0
        for temperature in (0.3, 2.5):
            expected = (x.float() / temperature).softmax(-1)
            torch.testing.assert_close(vocab.softmax(x, number(temperature)), expected, rtol=2e-6, atol=1e-9)
    strided = randn(2, 4, 1500)[:, 1]
    torch.testing.assert_close(vocab.softmax(strided, number(1.0)), strided.softmax(-1))
    for wrong, at in cases([(torch.nan, 700), (torch.inf, 0), (torch.nan, 2999)]):
        x = randn(2, 3000)
        x[1, at] = wrong
        p = vocab.softmax(x, number(1.0))
        assert bool(p[1].isnan().all()) and bool(p[0].isfinite().all())
        assert not bool(vocab.whole(p)) and bool(vocab.whole(p[:1]))


def test_picking_a_token():
    """Numbers that float32 adds without rounding: the very token that a running total finds."""
    generator = torch.Generator().manual_seed(0)
    for V in cases(LENGTHS):
        counts = torch.randint(0, 4, (16, V), generator=generator)
        counts[:, torch.rand(V, generator=generator) < 0.5] = 0
        counts[torch.arange(16), torch.randint(V, (16,), generator=generator)] = 3
        counts[:2, :-1], counts[:2, -1] = 0, 1  # all on the last token
        p = counts.float().to(DEVICE)
        drawn = torch.rand(16, generator=generator, dtype=torch.float64)
        for u in (drawn, *(torch.full((16,), x, dtype=torch.float64) for x in (0, 0.5, 1 - 2**-53))):
            u, totals = u.to(DEVICE), p.double().cumsum(-1)
            expected = torch.searchsorted(totals, u[:, None] * totals[:, -1:], right=True)[:, 0]
            last = torch.where(p > 0, torch.arange(V, device=DEVICE), 0).amax(-1)
            assert torch.equal(vocab.pick(p, u), torch.minimum(expected, last)), V
    rows = 4 if FEW else 64
    p = (4 * randn(rows, 3000)).softmax(-1)
    p[:, 1024:] = 0  # pages without anything: no rounding lands on an impossible token
    for u in cases([1 - 2**-53, 1 - 2**-30, 0.999999]):
        token = vocab.pick(p, torch.full((rows,), u, dtype=torch.float64, device=DEVICE))
        assert bool((p.gather(1, token[:, None]) > 0).all())


def test_random_numbers_are_those_of_the_cpu():
    coins = [Coins(seed) for seed in range(5)]
    states = torch.tensor([own.state for own in coins]).to(DEVICE)
    for count in cases([20, 1, 16]):
        found = vocab.uniforms(states, count)
        assert torch.equal(found.cpu(), uniforms([copy(own) for own in coins], count))
    sheet = torch.zeros(5, 3, dtype=torch.long, device=DEVICE)
    sheet[:, 1] = states
    assert torch.equal(vocab.uniforms(sheet[:, 1], 3), vocab.uniforms(states, 3))


def sixtyfourths(*shape: int, V: int, generator: torch.Generator) -> torch.Tensor:
    """Distributions [*shape, V] of numbers that add without rounding."""
    drawn = torch.randint(min(V, 9), (*shape, 64), generator=generator) * (V // min(V, 9))
    return (F.one_hot(drawn, V).sum(-2) / 64).float().to(DEVICE)


def random_drafts(B: int, n: int, V: int, chains: bool, p, q, generator: torch.Generator) -> verdict.Drafts:
    """Some shorter than others; guesses that p or q often give."""
    source = p[:, :n] if q is None else q
    tokens = torch.multinomial(source.flatten(0, 1).cpu(), 1, generator=generator).view(B, n)
    parents = torch.arange(-1, n - 1).expand(B, n).clone()
    if not chains:
        parents = torch.stack([torch.randint(-1, max(0, i), (B,), generator=generator) for i in range(n)], 1)
    lengths = torch.randint(0, n + 1, (B, 1), generator=generator)
    lengths[0] = n
    tokens = tokens.masked_fill(torch.arange(n) >= lengths, -1)
    sampled = None if q is None else (torch.arange(B) % 4 > 0).to(DEVICE)
    if q is not None:  # who does not sample has all its mass on the token
        q = torch.where(sampled[:, None, None], q, F.one_hot(tokens.clamp(min=0), V).to(q))
    return verdict.Drafts(tokens.to(DEVICE), parents.to(DEVICE), q, sampled)


def test_verdicts(monkeypatch):
    """Chains that were sampled, or not, and trees, also of greedy rows and of one with NaN: the verifiers of verify.py
    decide the same, by the same random numbers."""
    shapes = [(8, 5, 2500, True, True), (8, 7, 40, False, False), (3, 1, 9, True, False), (6, 15, 1100, False, False)]
    for B, n, V, chains, sampled in cases(shapes) if FEW else shapes:
        for seed in cases(range(2 if fd.INTERPRETED else 30)):
            generator = torch.Generator().manual_seed(seed)
            p = sixtyfourths(B, n + 1, V=V, generator=generator)
            q = sixtyfourths(B, n, V=V, generator=generator) if sampled else None
            drafts, best = random_drafts(B, n, V, chains, p, q, generator), p.argmax(-1)
            best[1 % B, 0] = -1
            samplings = verdict.RowSamplings(B, V, torch.device(DEVICE))
            rows = [ms.Sampling(0.7) if row % 3 else ms.Sampling() for row in range(B)]
            samplings.write(rows, [Sequence(row, [1], own, Coins(seed + row)) for row, own in enumerate(rows)])
            greedy = ~samplings.sampled(B)
            p[greedy] = F.one_hot(best[greedy].clamp(min=0), V).to(p)
            monkeypatch.setattr(samplings, "probs", lambda *_, p=p: p)
            given = p, best, drafts, n, chains, samplings, verdict.Steps.of(rows), "token"
            found = verdict.judge(*given)
            with monkeypatch.context() as patched:
                patched.setattr(verdict, "unavailable", lambda _: "")
                expected = verdict.judge(*given)
            used = torch.arange(n + 1, device=DEVICE) < expected.new[:, None]
            assert torch.equal(found.new, expected.new) and torch.equal(found.taken, expected.taken)
            assert torch.equal(found.path, expected.path) and torch.equal(found.run * used, expected.run * used)
            real = torch.cat([drafts.tokens >= 0] * 3 + [torch.ones_like(best[:, :1]) > 0], 1)
            torch.testing.assert_close(found.report * real, expected.report * real)
        assert found.new.sum() > B, "nothing was accepted"


# ---- trees ---------------------------------------------------------------------------------------------------------

CONFIG = Config(8, 8, 8, num_layers=2, num_heads=6, num_kv_heads=2, head_dim=12, max_length=64)
TREES = [(15, 4), (1, 1), (5, 3), (31, 7)]  # nodes, depth


def scores(*shape, levels: int | None = None, seed: int = 0) -> torch.Tensor:
    """Random scores; of so many different values, which makes ties."""
    if levels is None:
        return randn(*shape, seed=seed)
    return torch.randint(levels, shape, generator=torch.Generator().manual_seed(seed)).float().to(DEVICE) - levels


def test_the_likeliest_tokens():
    """growth.likeliest_tokens: vocabularies of less than a page, of whole pages, and of a page and a part."""
    for v in cases([3000, 100, 2048]):
        logits, ids = scores(2, 3, v), torch.randperm(5000, generator=torch.Generator().manual_seed(v))[:v].to(DEVICE)
        (tokens, log_q), expected = tk.likeliest_tokens(logits, ids, 8), growth.likeliest_tokens(logits, ids, 8)
        assert torch.equal(tokens, expected[0]) and (log_q - expected[1]).abs().max() < 1e-5


def grown(trees, B: int, width: int, depth: int, v: int, ties: bool, limits) -> list:
    """All that a growing tree says: at every depth, and in the end. With ties all rows are the same: x, then y and y,
    then x have the same probability."""
    logits = lambda rows, seed: randn(v, seed=7).expand(B, rows, v) if ties else 4 * randn(B, rows, v, seed=seed)  # noqa: E731
    said = [*trees.add(logits(depth + 1, 0), torch.arange(B, device=DEVICE))]  # 0 stands for padding
    for n in range(1, depth):
        said += trees.add(logits(width, n))
    return [*said, *trees.prune(*limits)]


def same_trees(B: int, width: int, depth: int, most: int, v=700, ties=False, limits=(None, None)) -> None:
    ids = torch.randperm(2 * v, generator=torch.Generator().manual_seed(v))[:v].sort().values.to(DEVICE)
    both = (tk.Growing(ids, width, most, kernels) for kernels in (True, False))
    same(*(grown(trees, B, width, depth, v, ties, limits) for trees in both))


def test_growing_trees():
    """Trees grow as in torch: ties, budgets and depths of their own, more tokens than one program holds, NaN."""
    for width, depth, most in cases(
        [(3, 2, 8), (4, 3, 15), (1, 1, 1), (1, 4, 4), (3, 1, 2), (5, 4, 15), (4, 3, 60), (8, 2, 9)]
    ):
        for B in cases([2, 3, 1]):
            same_trees(B, min(width, most), depth, most)
    for most in cases([9, *range(4, 20)]):  # of equals the first are taken
        same_trees(1, 4, 2, most, ties=True)
    sheet = whole([3, 2], [0, 3], [8, 1], [99, 99])  # limits are columns of a sheet
    every = [sheet.unbind(1), (sheet[:, 0], None), (None, sheet[:, 1]), (sheet[:, 0], whole(1, 2, 2, 1))]
    for limits in cases(every):
        same_trees(4, 3, 3, 8, limits=limits)
    if not FEW:
        same_trees(1, 2, 2, 40)
        same_trees(1, 5, 2, 12, v=120_000)
    bad = torch.full((2, 3, 700), torch.nan, device=DEVICE)  # a draft of no use, but one whose tokens exist
    bad[1] = randn(3, 700)
    trees = [tk.Growing(torch.arange(700, device=DEVICE), 3, 8, True) for _ in range(2)]
    for one, part in zip(trees, (bad, bad[1:]), strict=True):
        one.add(part, whole(*[1] * len(part))), one.add(part)
    (tokens, parents), alone = (one.prune() for one in trees)
    assert ((tokens >= 0) & (tokens < 700)).all() and (parents < torch.arange(8, device=DEVICE)).all()
    same(alone, (tokens[1:], parents[1:]))


def test_levels_of_trees():
    """DFlash's trees, whose candidates are the same after every node or not."""
    generator = torch.Generator().manual_seed(0)
    for shared in (False, True):
        shapes = [(2, 1 if shared or depth == 0 else 3, 4) for depth in range(4)]
        log_q = [-0.25 * torch.randint(5, shape, generator=generator).float().to(DEVICE) for shape in shapes]
        tokens = [torch.randint(99, shape, generator=generator).to(DEVICE) for shape in shapes]
        expand = lambda depth, *_: (tokens[depth], log_q[depth])  # noqa: E731, B023
        expected = grow_tensors(expand, 4, 3, 9)
        same(grow_tensors(expand, 4, 3, 9, grow_level=tk.level, prune=tk.pruned), expected)


def test_what_eagle_s_head_is_given():
    """What EAGLE's head is given: entries, and normed streams into a part of a wider memory."""
    for d, dtype in cases((d, dtype) for dtype in DTYPES for d in (100, 8)):
        tokens, parents = whole([3, 0, 3], [9, 9, 1]), whole([1, 1, 0], [3, 0, 2])
        embedding, features = randn(10, d, seed=1).to(dtype), 5 * randn(2, 4, d, seed=2).to(dtype)
        gains = randn(d, seed=3).to(dtype), randn(d, seed=4).to(dtype)
        for before, above, eps in ((features, parents, 1e-5), (features[:, :3], None, 1e-5), (features, parents, 30.0)):
            expected = tk.enter_torch(tokens, embedding, before, above, gains, eps)
            found = tk.enter(tokens, embedding, before, above, gains, eps)
            assert torch.equal(found[1], expected[1])
            torch.testing.assert_close(found[0], expected[0])
        states, slots = 9 * randn(2, 7, d).to(dtype)[:, :6], whole([0, 5, 5], [3, 0, 1])
        mine, theirs = (torch.full((2, 4, 3 * d), 7.0, dtype=dtype, device=DEVICE) for _ in range(2))
        for n, (a, b) in enumerate(pairwise(range(0, 3 * d + 1, d))):
            if n != 1:
                tk.stream(states, slots, mine[:, :3, a:b], 1e-5)
                tk.stream_torch(states, slots, theirs[:, :3, a:b], 1e-5)
        torch.testing.assert_close(mine, theirs)
        assert (mine[..., d : 2 * d] == 7).all()  # nothing beside it is touched


def some_parents(n: int, depth: int, seed: int) -> list[int]:
    choose, parents, depths = random.Random(seed), [], []
    while len(parents) < n:
        parent = choose.randrange(-1, len(parents))
        if (below := 1 if parent < 0 else depths[parent] + 1) <= depth:
            parents.append(parent)
            depths.append(below)
    return parents


def test_walking_a_verified_tree():
    """The verify pass of a tree is laid out, and its walk is greedy verification."""
    for n, depth in cases(TREES):
        parents = whole(*(some_parents(n, depth, seed) for seed in range(3)))
        text, count = torch.arange(60, device=DEVICE).view(3, 20), whole(1, 20, 7)
        tokens = 100 + torch.arange(3 * n, device=DEVICE).view(3, n)
        expected = tk.laid_out_torch(tokens, parents, text, count, depth)
        same(tk.laid_out(tokens, parents, text, count, depth), expected)
        for seed in cases(range(4)):
            tokens = torch.randint(3, (3, n), generator=torch.Generator().manual_seed(seed)).to(DEVICE)
            logits = randn(3, n + 1, 50, seed=seed)
            logits[..., 3:] -= 9  # few tokens, so that siblings are often equal and paths are long
            best = best_tokens(logits)
            each = zip(best.tolist(), tokens.tolist(), parents.tolist(), strict=True)
            verdicts = [greedy(*row) for row in each]
            accepted = torch.tensor(
                [[node in verdict.path for node in range(n)] for verdict in verdicts], device=DEVICE
            )
            after, sound = (
                whole(*(verdict.token for verdict in verdicts)),
                torch.ones((), dtype=torch.bool, device=DEVICE),
            )
            path, verified, run, added, line, _ = found = tk.walk(best, tokens, parents, depth, sound)
            assert torch.equal(line, torch.cat([tokens, parents, accepted.long(), after[:, None]], 1)) and sound
            assert torch.equal(added, accepted.sum(-1) + 1) and torch.equal(verified, F.pad(path + 1, (1, 0)))
            for b in range(3):
                nodes = accepted[b].nonzero()[:, 0].tolist()
                assert path[b].tolist() == [*nodes, *range(len(nodes), depth)]
                assert run[b, : len(nodes) + 1].tolist() == [*tokens[b, nodes].tolist(), int(after[b])]
            in_torch = tk.walk_torch(best, tokens, parents, depth, sound.clone())
            same((*found[:2], *found[3:]), (*in_torch[:2], *in_torch[3:]))
        best[1, n] = -1  # NaN
        tk.walk(best, tokens, parents, depth, sound)
        assert not sound


def test_the_end_of_a_cycle():
    """The end of a cycle (text, lengths, log and report), a path that moves together, and the best token of a row."""
    B, k, nodes = 3, 3, 5
    drafter = SimpleNamespace(nodes=nodes, hidden_layers=(), state=list)
    target = FastTransformer(random_model(num_layers=1).transformer.to(DEVICE), B, 64)
    mine, theirs = (TreeSpeculator(target, drafter, k) for _ in range(2))
    some = lambda *shape, seed: torch.randint(50, shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)  # noqa: E731
    for cycle in range(3):
        run, added, line = some(B, k + 1, seed=cycle), 1 + some(B, seed=cycle) % (k + 1), some(B, 16, seed=9 - cycle)
        chances, lengths = randn(B, nodes, seed=cycle).double(), []
        for decoder, by in ((mine, tk), (theirs, None)):
            decoder.kernels = by
            decoder.sound.fill_(cycle < 2)
            decoder.commit(run, added, line, chances)
            lengths.append(target.lengths.clone())
        assert torch.equal(*lengths)
        for name in ("text", "count", "report"):
            assert torch.equal(getattr(mine, name), getattr(theirs, name)), name
    one, other = (KVCache(CONFIG, 3, 64, device=DEVICE) for _ in range(2))
    for a, b, seed in ((one.keys, other.keys, 1), (one.values, other.values, 2)):
        a.copy_(randn(*a.shape, seed=seed))
        b.copy_(a)
    path, start = whole([0, 1, 2], [2, 5, 6], [1, 2, 9]), whole(3, 10, 1)
    one.gather(path, start)
    tk.move(other.keys, other.values, path, start)
    assert torch.equal(one.keys, other.keys) and torch.equal(one.values, other.values)
    x = randn(5, 5000)
    x[1, 7], x[2, 9], x[3] = torch.nan, torch.inf, -torch.inf
    x[4, [40, 4000]] = 99.0
    assert torch.equal(tk.best_of(x), best_tokens(x)) and tk.best_of(x)[1:].tolist() == [-1, -1, -1, 40]


# ---- whole cycles --------------------------------------------------------------------------------------------------


def test_cycles_by_kernels_are_those_in_torch():
    """On a CPU as if it were a GPU that has them all."""
    if FEW:
        return  # slow in the interpreter
    # A small vocabulary, so that some tokens are accepted, and few heads: the interpreter is slow.
    small = dict(vocab_size=8, hidden_size=16, intermediate_size=32, num_heads=2, num_kv_heads=1)
    target = random_model(num_layers=2, **small, dtype=torch.float32, device=DEVICE)
    eagle = lambda head: D.Eagle(target, head, width=3, nodes=8)  # noqa: E731
    made = [
        ("eagle, sampled", eagle(random_eagle(target)), ms.Sampling(0.8, 5)),
        ("medusa", D.Medusa(target, random_medusa(target), nodes=6), ms.Sampling()),
        ("eagle 3.1", eagle(random_eagle(target, form=EAGLE31)), ms.Sampling()),
        ("eagle, of its own shape", eagle(of_its_own_shape(target)), ms.Sampling()),
        ("dflash", D.DFlash(target, random_dflash(target), nodes=6), ms.Sampling()),
    ]
    for name, drafter, sampling in made:
        in_torch, by_kernels = (tree_decoder(target, drafter, sampling, kernels) for kernels in (False, True))
        for part in ("count", "text", "sound", "taken"):
            assert torch.equal(getattr(by_kernels, part), getattr(in_torch, part)), (name, part)
        torch.testing.assert_close(by_kernels.report, in_torch.report, atol=1e-5, rtol=1e-5)
        assert torch.equal(by_kernels.target.lengths, in_torch.target.lengths)
        assert name == "dflash" or by_kernels.count.sum() > 6 + 2 * 2, "nothing was accepted"


def tree_decoder(target: ms.Model, drafter: D.Drafter, sampling: ms.Sampling, kernels: bool) -> TreeSpeculator:
    """After two cycles."""
    with ExitStack() as stack:
        for module in (weights, decode, heads):
            stack.enter_context(patch.object(module, "has_kernels", lambda device, dtype: kernels))
        fast = FastTransformer(target.transformer, 2, 64, lean=kernels)
        made = TreeSpeculator(fast, heads.on_device(drafter)(drafter, fast, 3), 3, sampling)
        assert bool(made.kernels) == bool(made.drafter.kernels) == kernels
        made.start([[3, 1, 4, 1, 5], [2]], seed=0)
        made.launch(2)
    return made
