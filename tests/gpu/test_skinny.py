"""The skinny product of a GPU: its twin against torch, its kernel against the twin, and what the compiler makes of it.

The kernel's own tests are in skinny_checks.py, run here in a process of its own: in Triton's interpreter, or on a GPU.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from test_flash_decode import Recorder, compiled, needs_interpreter, needs_triton, run_checks

from minispec.gpu import attention as fd
from minispec.gpu import products as sk


def test_the_twin_is_an_mlp():
    """norm → gate, up → silu(gate)·up, and a residual, as model.py writes them."""
    generator = torch.Generator().manual_seed(0)
    x, w, gain = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((3, 8), (10, 8), (8,)))
    normed = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * gain
    gate, up = normed @ w[:5].T, normed @ w[5:].T
    expected = gate / (1 + torch.exp(-gate)) * up
    half = sk.half_norm(x, gain)
    torch.testing.assert_close(sk.skinny_torch(half, w, eps=1e-5, swiglu=True), expected)
    several = sk.HalfNormed(half.x, torch.stack([x[:, :3], x[:, 3:6], F.pad(x[:, 6:], (0, 1))]).square().sum(-1))
    torch.testing.assert_close(sk.skinny_torch(several, w, eps=1e-5, swiglu=True), expected)
    residual = torch.randn(3, 10, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(sk.skinny_torch(x, w, residual=residual), residual + F.linear(x, w))


def test_a_norm_in_two_halves_is_the_norm():
    """What one product leaves half done, the next one finishes."""
    generator = torch.Generator().manual_seed(1)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    x, first, second, gain, bias = draw(2, 3, 8), draw(6, 8), draw(10, 6), draw(6), draw(10)
    y, half = sk.skinny_torch(x, first, gain=gain)
    torch.testing.assert_close(y, F.linear(x, first))
    expected = F.linear(F.rms_norm(y, (6,), gain, 1e-5), second, bias)
    torch.testing.assert_close(sk.skinny_torch(half, second, bias, eps=1e-5), expected)


CHECKS = "skinny_checks.py", "select_checks.py", "pages_checks.py", "tree_kernel_checks.py", "growing_checks.py"


@needs_triton
@pytest.mark.slow
@needs_interpreter
@pytest.mark.parametrize("checks", CHECKS)
def test_the_kernels_are_their_twins_in_tritons_interpreter(checks):
    run_checks(checks, TRITON_INTERPRET="1", OMP_NUM_THREADS="1")


@needs_triton
@pytest.mark.gpu
@pytest.mark.slow
def test_the_kernels_are_their_twins_on_a_gpu():
    run_checks(*CHECKS, TRITON_INTERPRET="0")


@pytest.fixture
def launch(monkeypatch):
    """launch(rows, width, …): grid, arguments and options with which a product of five tokens would be launched."""

    def call(rows, width, swiglu=False, norm=False, residual=False, tokens=5, dtype=torch.bfloat16):
        kernel = Recorder()
        monkeypatch.setattr(sk, "_product", kernel)
        monkeypatch.setattr(sk, "unavailable", lambda device: None)
        out = rows // 2 if swiglu else rows
        x, w = (torch.empty(*shape, dtype=dtype) for shape in ((tokens, width), (rows, width)))
        before = torch.empty(tokens, out, dtype=dtype) if residual else None
        x = sk.HalfNormed(x.to(sk.half_normed_dtype(dtype)), torch.empty(256, tokens)) if norm else x
        sk.skinny(x, w, swiglu=swiglu, residual=before, gain=before[0] if residual else None)
        return kernel.calls[0]

    return call


@needs_triton
@pytest.mark.slow
def test_the_kernel_compiles_for_a_hopper_gpu(launch, monkeypatch, tmp_path):
    """Weights through the matrix units, asked for ahead of time."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    product = sk._product
    for shape in (
        dict(rows=6144, width=4096, norm=True),
        dict(rows=28672, width=4096, norm=True, swiglu=True),
        dict(rows=4096, width=14336, residual=True),
        dict(rows=28672, width=4096, norm=True, swiglu=True, dtype=torch.float16),
    ):
        _, args, options = launch(**shape)
        kernel = compiled(product, args, options)
        ptx = kernel.asm["ptx"]
        assert "mma" in ptx and "cp.async.cg.shared.global" in ptx
        assert kernel.metadata.shared <= 227 * 1024  # a program finds room on a multiprocessor


@needs_triton
def test_the_multiprocessors_get_programs(launch):
    """132 of them on an H200, and most of them get a program for every product of the 8B shape."""
    for rows, width, swiglu in ((6144, 4096, False), (4096, 4096, False), (28672, 4096, True), (4096, 14336, False)):
        (_, programs), _, options = launch(rows, width, swiglu)
        assert programs >= 96 and programs * options["ROWS"] >= rows // (2 if swiglu else 1)


def test_what_fits(monkeypatch):
    monkeypatch.setattr(sk, "unavailable", lambda device: None)
    w = torch.zeros(32, 16)
    assert sk.fits(torch.zeros(8, 16, 16), w) and not sk.fits(torch.zeros(129, 16), w)
    wide = torch.zeros(sk.NARROW, sk.NARROW)
    assert sk.fits(torch.zeros(64, sk.NARROW), wide) and not sk.fits(torch.zeros(65, sk.NARROW), wide)
    assert not sk.fits(torch.zeros(1, 16, dtype=torch.float64), w) and not sk.fits(torch.zeros(1, 32), w.T)
    monkeypatch.undo()
    if not fd.INTERPRETED:
        assert not sk.fits(torch.zeros(1, 16), w)  # a CPU


@pytest.mark.parametrize(
    "change, phrase",
    [
        (dict(x=torch.zeros(129, 16)), "129 tokens"),
        (dict(x=torch.zeros(0, 16)), "0 tokens"),
        (dict(x=torch.zeros(2, 16, dtype=torch.float64)), "bfloat16, float16 or float32"),
        (dict(weight=torch.zeros(31, 8)), "weight is"),
        (dict(weight=torch.zeros(16, 32).T), "contiguous"),
        (dict(weight=torch.zeros(31, 16), swiglu=True), "even number"),
        (dict(bias=torch.zeros(16)), "bias"),
        (dict(x=sk.HalfNormed(torch.zeros(2, 16), torch.zeros(4, 3))), "squares"),
        (dict(x=sk.HalfNormed(torch.zeros(2, 16), torch.zeros(4, 2).double())), "squares"),
        (dict(gain=torch.zeros(16)), "gain"),
        (dict(residual=torch.zeros(2, 16)), "residual"),
        (dict(residual=torch.zeros(2, 32), swiglu=True), "residual"),
    ],
)
def test_wrong_arguments_are_named(change, phrase, monkeypatch):
    monkeypatch.setattr(sk, "unavailable", lambda device: None)
    with pytest.raises(ValueError, match=phrase):
        sk.skinny(**dict(x=torch.zeros(2, 16), weight=torch.zeros(32, 16)) | change)


@pytest.mark.skipif(fd.INTERPRETED, reason="acts the kernel out")
def test_without_a_gpu_the_error_names_the_twin():
    with pytest.raises(ValueError, match="skinny_torch"):
        sk.skinny(torch.zeros(2, 16), torch.zeros(32, 16))
