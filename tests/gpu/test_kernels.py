"""The Triton kernels: that they are their references (kernel_tests.py), that their tiles fit every GPU, and which
devices run them."""

import os
import subprocess
import sys
import warnings
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from itertools import product
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from packaging.version import Version

from minispec.gpu import attention as fd
from minispec.gpu import gemm as sk
from minispec.gpu import passes, weights


def test_the_references_import_without_triton(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)  # as if it were not installed
    module = module_from_spec(spec := spec_from_file_location("minispec.gpu.without_triton", fd.__file__))
    spec.loader.exec_module(module)
    q, k = torch.zeros(1, 2, 1, 8), torch.zeros(1, 1, 4, 8)
    assert module.triton is None and module.flash_decode_torch(q, k, k, torch.tensor([2])).shape == q.shape


@pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
@pytest.mark.slow
@pytest.mark.parametrize(
    "few", [{"MINISPEC_FEW": "1"}, pytest.param({}, marks=pytest.mark.nightly)], ids=["few", "all"]
)
def test_the_kernels_are_their_references(few):
    """In Triton's interpreter, in a process of its own."""
    if Version(fd.triton.__version__) < Version("3.7"):
        pytest.skip("the interpreter of Triton before 3.7 stumbles over NumPy 2.4")
    here = Path(__file__).parent
    env = os.environ | dict(TRITON_INTERPRET="1", OMP_NUM_THREADS="1") | few
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:nbval",
        "-p",
        "no:cacheprovider",
        here / "kernel_tests.py",
    ]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr


def test_default_tilings_fit():
    dtypes, shapes = fd.DTYPES, list(product((512, 4096, 6144, 28672, 128256), (576, 1024, 4096)))
    for kib in (99, 163, 227):
        for dtype, rows, width in product(dtypes, (16, 32, 64), (16, 64, 128, 256)):
            kept, tiling = fd.default_tiling(dtype, rows, width, kib * 1024)
            assert fd.shared_bytes(tiling, dtype, kept, width) <= kib * 1024
            assert 16 <= kept <= rows and tiling.tile >= 16  # what a matrix unit takes at least
        for dtype, shape, swiglu, norm, tokens in product(dtypes, shapes, (False, True), (False, True), (16, 32, 64)):
            x_dtype = sk.half_normed_dtype(dtype) if norm else dtype
            tiles = sk.default_tiles(dtype, x_dtype, shape, swiglu, kib * 1024, tokens)
            assert sk.shared_bytes(tiles, dtype, x_dtype, swiglu, tokens, hopper=kib > 200) <= kib * 1024
            assert tiles.rows >= 16 and tiles.wide >= 32 and tiles.stages >= 3 and tiles.warps >= 2


# ---- GPUs other than the one this was tuned on -----------------------------------------------------------------------

T4, A100, RTX_4090 = (torch.device(f"cuda:{n}") for n in range(3))


@pytest.fixture
def gpus(monkeypatch):
    """A machine with these three, in a process that has given no warning yet."""
    capabilities = {T4: (7, 5), A100: (8, 0), RTX_4090: (8, 9)}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capabilities[torch.device(device)])
    monkeypatch.setattr(fd, "triton", fd.triton or Mock())
    monkeypatch.setattr(fd, "INTERPRETED", False)
    monkeypatch.setattr(fd, "_told", [])
    fd._no_tensor_cores.cache_clear()
    yield
    fd._no_tensor_cores.cache_clear()


def test_which_devices_run_the_kernels(gpus, monkeypatch):
    assert "7.5" in fd.unavailable(T4) and fd.unavailable(A100) is None and "xpu" in fd.unavailable("xpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for device, dtype in product((T4, A100, torch.device("cpu")), (*fd.DTYPES, torch.float64)):
            kernel = device == A100 and dtype != torch.float64
            assert fd.kernels_run(device, dtype) == kernel
            assert (weights.best_attention(device, dtype) is weights.flash) == kernel
            assert (passes.best_attention(device, dtype) is fd.flash_decode_paged) == kernel
    monkeypatch.setattr(fd, "_told", [])
    with pytest.warns(UserWarning, match="slower") as warned:  # once
        for best in (weights.best_attention, passes.best_attention, weights.best_attention):
            best(T4, torch.float16)
    assert len(warned) == 1
    monkeypatch.setattr(torch.version, "hip", "7.0")
    fd._no_tensor_cores.cache_clear()
    assert "AMD" in fd.unavailable(A100)
