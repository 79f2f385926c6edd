"""The kernel of products.py against its twin: on a GPU, or on a CPU with TRITON_INTERPRET=1.

test_skinny.py runs this file in a process of its own, because Triton reads that variable once, when imported.
"""

from __future__ import annotations

import pytest
import torch

from minispec.gpu import attention as fd
from minispec.gpu.products import (
    NARROW,
    HalfNormed,
    Tiles,
    default_tiles,
    half_norm,
    half_normed,
    half_normed_dtype,
    skinny,
    skinny_torch,
)

DEVICE = "cpu" if fd.INTERPRETED else "cuda"
SMALL = Tiles(rows=16, wide=64, warps=4, stages=2)
DTYPES = (torch.float32, torch.float16) if fd.INTERPRETED else (torch.float32, torch.float16, torch.bfloat16)


@pytest.fixture(autouse=True)
def fresh_memory_is_nan():
    """What the kernel leaves unwritten shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def numbers(*shape, dtype=torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def check(
    tokens,
    rows,
    width,
    dtype=torch.float32,
    bias=False,
    norm=False,
    swiglu=False,
    residual=False,
    gain=False,
    **options,
):
    """The kernel against the twin in float64, as near as the twin in this type is."""
    x, w = numbers(*tokens, width, dtype=dtype), numbers(rows, width, dtype=dtype, seed=1) / width**0.5
    out = rows // 2 if swiglu else rows
    given = dict(
        bias=numbers(rows, dtype=dtype, seed=2) if bias else None,
        residual=numbers(*tokens, out, dtype=dtype, seed=4) if residual else None,
        gain=numbers(out, dtype=dtype, seed=5) if gain else None,
    )
    exact = {name: None if tensor is None else tensor.double() for name, tensor in given.items()}
    if norm:  # in several parts, as a product leaves it
        g = numbers(width, dtype=dtype, seed=3)
        parts = torch.stack([part.float().square().sum(-1).flatten() for part in x.tensor_split(5, -1)])
        exact_x, x = half_norm(x.double(), g.double()), HalfNormed(half_norm(x, g).x, parts)
    else:
        exact_x = x.double()
    expected = skinny_torch(exact_x, w.double(), **exact, eps=1e-5, swiglu=swiglu)
    found = skinny(x, w, **given, eps=1e-5, swiglu=swiglu, **options)
    if gain:
        (found, half), (expected, half_expected) = found, expected
        assert half.x.shape == expected.shape and half.squares.dtype == torch.float32
        close(half.x, half_expected.x, dtype)
        close(half.squares.sum(0), half_expected.squares[0], dtype)
    assert found.shape == expected.shape and found.dtype == dtype
    close(found, expected, dtype)


def close(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    error = (found.double() - expected).abs().max().item()
    rounding = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    assert error < rounding * (1 + expected.abs().max().item()), f"off by {error:.1e}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [(1,), (1, 1), (5,), (2, 8), (17,), (3, 11), (64,), (3, 27), (128,)])
def test_the_product(tokens, dtype):
    check(tokens, 48, 128, dtype, tiles=SMALL)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "given",
    [
        dict(norm=True),
        dict(swiglu=True),
        dict(residual=True),
        dict(bias=True),
        dict(norm=True, swiglu=True, bias=True),
        dict(norm=True, residual=True, bias=True),
        dict(swiglu=True, residual=True),
        dict(gain=True),
        dict(norm=True, residual=True, gain=True),
    ],
    ids=lambda given: "+".join(given),
)
def test_what_comes_along(given, dtype):
    for tokens in ((1, 5), (3, 13)):  # the second are divided among two programs
        check(tokens, 64, 192, dtype, tiles=SMALL, **given)


@pytest.mark.parametrize("tokens", [63, 64])
def test_wide_matrices_take_more_tokens_at_once(tokens):
    check((tokens,), NARROW, NARROW, norm=True, residual=True, gain=True, tiles=SMALL._replace(rows=128, wide=256))


@pytest.mark.parametrize("rows, width", [(16, 64), (17, 64), (40, 100), (33, 31), (6, 8)])
def test_shapes_that_no_tile_divides(rows, width):
    check((3,), rows, width, norm=True, residual=True, gain=True, tiles=SMALL)
    check((3,), 2 * rows, width, norm=True, swiglu=True, bias=True, tiles=SMALL)


@pytest.mark.parametrize("rows, width", [(96, 576), (96, 1152), (4224, 1024), (8256, 1024), (8256, 576)])
def test_default_tiles(rows, width):
    """Every choice there is, for few tokens and for many. The interpreter gets the tiles without so many rows."""
    for tokens in (5, 33):
        for given in (dict(norm=True, residual=True, gain=True), dict(norm=True, swiglu=True)):
            shape = (2 * rows if "swiglu" in given else rows, width)
            if fd.INTERPRETED:
                x_dtype, shared = half_normed_dtype(torch.float32), fd.card(torch.device(DEVICE)).shared
                given["tiles"] = default_tiles(
                    torch.float32, x_dtype, shape, "swiglu" in given, shared, 16 if tokens == 5 else 64
                )
                shape = (min(shape[0], 288), min(shape[1], 192))
            check((tokens,), *shape, **given)


def test_default_tiles_for_less_shared_memory():
    for dtype in DTYPES:
        tiles = default_tiles(dtype, half_normed_dtype(dtype), (28672, 4096), True, 64 * fd.KIB)
        assert tiles.rows < 128
        check((5,), 96, 192, dtype, norm=True, swiglu=True, tiles=tiles)


@pytest.mark.parametrize("swiglu", [False, True])
def test_large_activations_do_not_overflow_in_float16(swiglu):
    """Residual streams near float16's limit of 65,504, and a norm with gains of 2 to 3: x·g alone would be infinite."""
    half, tokens, width = torch.float16, 3, 64
    x, down = numbers(tokens, 32, dtype=half), numbers(width, 32, dtype=half, seed=1) / 8
    residual = (6e4 * numbers(tokens, width, seed=2).sign()).to(half)
    gain, weight = 2 + numbers(width, seed=3).sigmoid().to(half), numbers(96, width, dtype=half, seed=4) / 8
    y, normed = skinny(x, down, residual=residual, gain=gain, tiles=SMALL)
    found = skinny(normed, weight, eps=1e-5, swiglu=swiglu, tiles=SMALL)
    # By the torch path: the norm is computed in float32 and rounded, as in model.py.
    stream = (residual.float() + x.float() @ down.float().T).to(half)
    by_torch = torch.nn.functional.rms_norm(stream, (width,), gain, 1e-5) @ weight.T
    gate, up = by_torch.double().chunk(2, -1)
    assert y.isfinite().all() and y.abs().max() > 5.9e4
    close(found, torch.nn.functional.silu(gate) * up if swiglu else by_torch.double(), half)
    torch.testing.assert_close(skinny_torch(half_norm(y, gain), weight, eps=1e-5), by_torch, atol=1e-2, rtol=1e-2)


def test_a_residual_may_be_its_own_input_and_x_strided():
    x, w = numbers(4, 128)[:, :64], numbers(64, 64, seed=1) / 8
    torch.testing.assert_close(skinny(x, w, residual=x, tiles=SMALL), x + x @ w.T, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("d", [24, 512])
def test_half_a_norm(d, dtype):
    """Also where x·g leaves what float16 can hold."""
    x, gain = 4000 * numbers(2, 3, d, seed=1, dtype=dtype), 20 * numbers(d, seed=2, dtype=dtype)
    found, expected = half_normed(x, gain), half_norm(x, gain)
    assert found.x.dtype == expected.x.dtype and found.x.isfinite().all()
    torch.testing.assert_close(found.x, expected.x)
    torch.testing.assert_close(found.squares, expected.squares)
