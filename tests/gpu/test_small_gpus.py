"""GPUs other than the one this was tuned on: small, old, of another vendor, or not the first of several."""

from __future__ import annotations

import warnings
from contextlib import contextmanager, nullcontext
from itertools import product
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from test_flash_decode import Recorder, needs_triton, run_checks

from minispec.gpu import attention as fd
from minispec.gpu import buckets, capture, fused
from minispec.gpu import products as sk

T4, A100, RTX_4090 = (torch.device(f"cuda:{n}") for n in range(3))


@pytest.fixture
def gpus(monkeypatch):
    """A machine with these three, on which nobody has been warned of anything."""
    capabilities = {T4: (7, 5), A100: (8, 0), RTX_4090: (8, 9)}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capabilities[torch.device(device)])
    monkeypatch.setattr(fd, "triton", fd.triton or Mock())
    monkeypatch.setattr(fd, "INTERPRETED", False)
    monkeypatch.setattr(fd, "_told", [])
    fd._no_matrix_units.cache_clear()
    yield
    fd._no_matrix_units.cache_clear()


@pytest.fixture
def amd(gpus, monkeypatch):
    """amd("gfx942") turns the machine into one of AMD's."""

    def become(architecture: str) -> None:
        fd._no_matrix_units.cache_clear()
        properties = SimpleNamespace(gcnArchName=f"{architecture}:sramecc+:xnack-", multi_processor_count=304)
        monkeypatch.setattr(torch.version, "hip", "7.0")
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)

    return become


# ---------------------------------------------------------------- who runs the kernels


def test_the_kernels_are_for_gpus_with_tensor_cores_that_triton_uses(gpus):
    assert "7.5" in fd.unavailable(T4) and "8.0" in fd.unavailable("cuda:0")
    assert fd.unavailable(A100) is None and fd.unavailable(RTX_4090) is None
    assert fd.unavailable("cpu") and "xpu" in fd.unavailable("xpu")


@pytest.mark.parametrize(
    "architecture, runs",
    [("gfx90a", True), ("gfx942", True), ("gfx950", True), ("gfx906", False), ("gfx1030", False), ("gfx1100", False)],
)
def test_of_amds_those_with_matrix_units(amd, architecture, runs):
    amd(architecture)
    reason = fd.unavailable(T4)
    assert reason is None if runs else architecture in reason


def test_one_decision_serves_contiguous_and_paged_memory(gpus):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for device, dtype in product((T4, A100, torch.device("cpu")), (*fd.DTYPES, torch.float64)):
            kernel = device == A100 and dtype != torch.float64
            assert fd.kernels_run(device, dtype) == kernel
            assert (fused.best_attention(device, dtype) is fused.flash) == kernel
            assert (buckets.best_attention(device, dtype) is fd.flash_decode_paged) == kernel


def test_products_fit_where_the_kernels_run(gpus):
    weight = torch.zeros(32, 16, dtype=torch.float16)
    x = lambda device: SimpleNamespace(shape=(2, 16), dtype=torch.float16, device=device)  # noqa: E731
    assert sk.fits(x(A100), weight) and not sk.fits(x(T4), weight)


@pytest.mark.parametrize("device, dtype", [(T4, torch.float16), (A100, torch.float64)], ids=str)
def test_a_gpu_without_kernels_is_warned_of_once(gpus, device, dtype):
    with pytest.warns(UserWarning) as warned:
        for best in (fused.best_attention, buckets.best_attention, fused.best_attention):
            best(device, dtype)
        fd.kernels_run(T4, torch.float32)
    assert len(warned) == 1 and "slower" in str(warned[0].message)


def test_nobody_is_warned_where_nothing_is_lost(gpus):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fused.best_attention(A100, torch.bfloat16)
        buckets.best_attention(torch.device("cpu"), torch.float64)


# ---------------------------------------------------------------- what they need


def test_float32_is_multiplied_as_the_vendor_can(monkeypatch):
    assert fd.precision(torch.float32) == "tf32x3" and fd.precision(torch.bfloat16) == "ieee"
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert {fd.precision(dtype) for dtype in fd.DTYPES} == {"ieee"}


def test_the_card_says_how_much_shared_memory_there_is(amd, monkeypatch):
    rtx = SimpleNamespace(multi_processor_count=128, shared_memory_per_block_optin=99 * 1024)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: rtx)
    assert fd.card.__wrapped__(RTX_4090) == (128, 99 * 1024)
    amd("gfx942")
    assert fd.card.__wrapped__(T4) == (304, 64 * 1024)


@pytest.mark.parametrize("kib", [64, 99, 163, 227])
def test_default_tilings_fit(kib):
    shared = kib * 1024
    for dtype, rows, width in product(fd.DTYPES, (16, 32, 64), (16, 64, 128, 256)):
        kept, tiling = fd.default_tiling(dtype, rows, width, shared)
        if (kib, width, dtype) != (64, 256, torch.float32):  # a head dimension of 256 in float32 on AMD
            assert fd.shared_bytes(tiling, dtype, kept, width) <= shared
        assert 16 <= kept <= rows and tiling.tile >= 16  # what a matrix unit takes at least
        if kib == 227 and width <= 128:  # what was tuned stays as it is
            assert (kept, tiling) == (rows, fd.Tiling(64 if dtype.itemsize == 2 else 32))
    shapes = product((512, 4096, 6144, 28672, 128256), (576, 1024, 4096))
    for dtype, shape, swiglu, norm, tokens in product(fd.DTYPES, shapes, (False, True), (False, True), (16, 32, 64)):
        x_dtype = sk.half_normed_dtype(dtype) if norm else dtype
        tiles = sk.default_tiles(dtype, x_dtype, shape, swiglu, shared, tokens)
        assert sk.shared_bytes(tiles, dtype, x_dtype, swiglu, tokens, hopper=kib > 200) <= shared
        assert tiles.rows >= 16 and tiles.wide >= 32 and tiles.stages >= 3 and tiles.warps >= 2


@needs_triton
@pytest.mark.slow
def test_the_kernels_compile_for_each_gpu_and_fit_it():
    run_checks("compile_checks.py", TRITON_INTERPRET="0", OMP_NUM_THREADS="1")


# ---------------------------------------------------------------- the second GPU


def test_launches_happen_on_the_tensors_device(monkeypatch):
    """Triton launches on the current device, whatever the tensors' is."""
    here, seen = [None], []

    @contextmanager
    def device_of(tensor):
        here.append(tensor)
        yield
        here.pop()

    class Kernel(Recorder):
        def __getitem__(self, grid):
            return lambda *args, **options: seen.append(here[-1] is not None and here[-1].device == args[0].device)

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    monkeypatch.setattr(fd, "triton", fd.triton or Mock(next_power_of_2=lambda n: 1 << (n - 1).bit_length()))
    monkeypatch.setattr(sk, "triton", fd.triton)
    for module, name in ((fd, "_attend_split"), (fd, "_merge_splits"), (sk, "_product")):
        monkeypatch.setattr(module, name, Kernel())
        monkeypatch.setattr(module, "unavailable", lambda device: None)
    q, k = torch.zeros(1, 2, 1, 16), torch.zeros(1, 2, 64, 16)
    fd.flash_decode(q, k, k, torch.zeros(1, dtype=torch.long), splits=2)
    sk.skinny(torch.zeros(1, 16), torch.zeros(32, 16))
    assert seen == [True] * 3


def test_each_device_captures_on_a_stream_of_its_own(monkeypatch):
    """torch's own stream for captures would be on the device that was the first to capture."""
    captured = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda device=None: Mock(device=device))
    monkeypatch.setattr(torch.cuda, "current_stream", Mock())
    for name in ("stream", "device"):
        monkeypatch.setattr(torch.cuda, name, lambda which: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Mock())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(
        torch.cuda, "graph", lambda graph, stream, **options: captured.append(stream.device) or nullcontext()
    )
    monkeypatch.setattr(capture.Captured, "pool", None)
    capture.capture_stream.cache_clear()
    captures = [capture.Captured(lambda: None, [Mock(device=device)]) for device in (A100, RTX_4090, A100)]
    for one in captures:
        one.prepare()
    capture.capture_stream.cache_clear()
    assert captured == [A100, RTX_4090, A100]


# ---------------------------------------------------------------- torch.compile


@pytest.mark.slow
def test_whether_it_compiles_is_asked_of_each_device_and_dtype_once(monkeypatch):
    """torch declines to compile bfloat16 for a T4, and runs it uncompiled unless it must be one whole graph."""
    from torch._dynamo.exc import SkipFrame

    asked, really = [], torch.compile

    def compiler(graph, inputs):
        asked.append(inputs[0].dtype)
        if inputs[0].dtype == torch.bfloat16:
            raise SkipFrame("BF16 is not supported")
        return graph

    monkeypatch.setattr(torch, "compile", lambda function, **options: really(function, backend=compiler, **options))
    capture.why_not_compile.cache_clear()
    for _ in range(2):
        assert capture.why_not_compile("cpu", torch.float16) is None
        assert capture.why_not_compile("cpu", torch.bfloat16)
    capture.why_not_compile.cache_clear()
    assert asked == [torch.float16, torch.bfloat16]
