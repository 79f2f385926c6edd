"""flash_decode: the twins against the caches, the kernels against the twins, and what a GPU's compiler makes of them.

The kernels' own tests are in flash_checks.py, run here in a process of its own: in Triton's interpreter, or on a GPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch
from packaging.version import Version
from tiny_models import random_model

from minispec.cache import KVCache
from minispec.gpu import attention as fd
from minispec.serving.paged import PagedKVCache
from minispec.tree import verify_mask

pytestmark = pytest.mark.slow

TREE = verify_mask([-1, 0, 0, -1, 3])  # six tokens
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
needs_interpreter = pytest.mark.skipif(
    fd.triton is not None and Version(fd.triton.__version__) < Version("3.7"),
    reason="the interpreter of Triton before 3.7 stumbles over NumPy 2.4",
)


def normal(*shape, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def new_tokens(config, batch: int, count: int) -> list[torch.Tensor]:
    """Their q [B, H, T, D], k and v [B, Hkv, T, D]."""
    heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
    return [normal(batch, n, count, config.head_dim, seed=seed) for seed, n in enumerate(heads, start=2)]


# ---------------------------------------------------------------- the twins


@pytest.mark.parametrize("mask", [None, TREE])
@pytest.mark.parametrize("garbage", [0.0, torch.nan])
def test_the_twin_is_the_caches_attention(mask, garbage):
    config = random_model().config
    cache = KVCache(config, batch=3, capacity=40)
    cache.lengths.copy_(torch.tensor([9, 0, 30]))
    for memory, seed in ((cache.keys, 0), (cache.values, 1)):
        memory.copy_(normal(*memory.shape, seed=seed))
    q, k, v = new_tokens(config, 3, 6)
    expected = cache.begin(6, mask)[1](1, q, k, v)
    for row, length in enumerate(cache.lengths.tolist()):
        cache.keys[1, row, :, length + 6 :] = cache.values[1, row, :, length + 6 :] = garbage
    out = fd.flash_decode_torch(q, cache.keys[1], cache.values[1], cache.lengths, mask)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)


def test_the_paged_twin_is_the_paged_caches_attention():
    config = random_model().config
    cache = PagedKVCache(config, num_blocks=16, block_size=4)
    for memory, seed in ((cache.keys, 0), (cache.values, 1)):
        memory.copy_(normal(*memory.shape, seed=seed))
    tables, lengths = [[7, 2, 11, 0], [5, 14, 3, 9]], [9, 2]
    q, k, v = new_tokens(config, 1, 12)
    expected = cache.open(tables, lengths, [6, 6], [TREE, TREE]).begin(12)[1](1, q, k, v)
    rows = q[0].unflatten(1, (2, 6)).transpose(0, 1)  # [2, H, 6, D]
    out = fd.flash_decode_paged_torch(
        rows, cache.keys[1], cache.values[1], torch.tensor(tables), torch.tensor(lengths), TREE
    )
    torch.testing.assert_close(out.transpose(0, 1).flatten(1, 2)[None], expected, atol=1e-5, rtol=1e-5)


def test_the_twin_by_hand():
    """One past slot and two rival tokens, all scores equal: the mean of what each sees."""
    q, k = torch.zeros(1, 1, 3, 4), torch.zeros(1, 1, 5, 4)
    v = torch.tensor([1.0, 10.0, 100.0, 1000.0, torch.nan])[None, None, :, None].expand(1, 1, 5, 4)
    out = fd.flash_decode_torch(q, k, v, torch.tensor([1]), verify_mask([-1, -1]))
    assert out[0, 0, :, 0].tolist() == pytest.approx([11 / 2, 111 / 3, 1011 / 3])


# ---------------------------------------------------------------- the kernels


def run_checks(*files: str, **env: str) -> None:
    """The checks of these files in a process of its own, with these variables set."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(
        command, cwd=Path(__file__).parent, env=os.environ | env, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr


@needs_triton
@needs_interpreter
def test_the_kernels_are_their_twins_in_tritons_interpreter():
    run_checks("flash_checks.py", TRITON_INTERPRET="1", OMP_NUM_THREADS="1")


@needs_triton
@pytest.mark.gpu
def test_the_kernels_are_their_twins_on_a_gpu():
    run_checks("flash_checks.py", TRITON_INTERPRET="0")


class Recorder:
    """In a kernel's place: remembers what it was launched with."""

    def __init__(self):
        self.calls = []

    def __getitem__(self, grid):
        return lambda *args, **options: self.calls.append((grid, args, options))


@pytest.fixture
def launch(monkeypatch):
    """launch(paged=…, T=…, …): grid, arguments and options with which the 8B shape's kernels would be launched."""

    def call(batch=2, T=5, capacity=4096, paged=False, dtype=torch.bfloat16, mask=None, splits=None, sms=132):
        attend, merge = Recorder(), Recorder()
        monkeypatch.setattr(fd, "_attend_split", attend)
        monkeypatch.setattr(fd, "_merge_splits", merge)
        monkeypatch.setattr(fd, "unavailable", lambda device: None)
        monkeypatch.setattr(fd, "card", lambda device: fd.Card(sms, 227 * fd.KIB))
        q, lengths = torch.empty(batch, 32, T, 128, dtype=dtype), torch.zeros(batch, dtype=torch.long)
        if paged:
            blocks = torch.empty(4, 16, 8, 128, dtype=dtype)
            tables = torch.zeros(batch, capacity // 16, dtype=torch.int32)
            fd.flash_decode_paged(q, blocks, blocks, tables, lengths, mask, splits=splits)
        else:
            k = torch.empty(1, 8, 1, 128, dtype=dtype).expand(batch, 8, capacity, 128)
            fd.flash_decode(q, k, k, lengths, mask, splits=splits)
        return attend.calls, merge.calls

    return call


def compiled(kernel, args, options, target=("cuda", 90, 32)):
    """What Triton makes of a launch for a GPU, Hopper's unless told; none is needed for that."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types = {
        torch.bfloat16: "bf16",
        torch.float16: "fp16",
        torch.float32: "fp32",
        torch.float64: "fp64",
        torch.int64: "i64",
        torch.int32: "i32",
        torch.uint8: "u8",
    }
    given = dict(zip(kernel.arg_names, args, strict=False)) | {n: options[n] for n in kernel.arg_names if n in options}
    signature, constants, hints = {}, {}, {}
    for at, name in enumerate(kernel.arg_names):
        value = given[name]
        if name.isupper():
            signature[name], constants[at,] = "constexpr", value
        else:
            tensor = isinstance(value, torch.Tensor)
            signature[name] = f"*{types[value.dtype]}" if tensor else "fp32" if isinstance(value, float) else "i32"
            if tensor or (isinstance(value, int) and value % 16 == 0):
                hints[at,] = [["tt.divisibility", 16]]
    warps_and_stages = {name: options[name] for name in ("num_warps", "num_stages") if name in options}
    source = ASTSource(kernel, signature, constants, hints)
    return fd.triton.compile(source, target=GPUTarget(*target), options=warps_and_stages)


@needs_triton
def test_the_kernels_compile_for_a_hopper_gpu(launch, monkeypatch, tmp_path):
    """The interpreter takes more than the compiler does. And a paged tile must be asked for as early as another."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    attend, merge = fd._attend_split, fd._merge_splits
    shared = {}
    for paged, dtype, mask in (
        (False, torch.bfloat16, None),
        (True, torch.bfloat16, TREE[:5, :5]),
        (False, torch.float32, TREE[:5, :5]),
    ):
        [(_, args, options)], [(_, merge_args, merge_options)] = launch(paged=paged, dtype=dtype, mask=mask)
        kernel = compiled(attend, args, options)
        shared[paged, dtype] = kernel.metadata.shared
        assert "mma" in kernel.asm["ptx"] and "cp.async.cg.shared.global" in kernel.asm["ptx"]
    assert compiled(merge, merge_args, merge_options).metadata.shared < 2**16
    assert max(shared.values()) <= 227 * 1024  # what a Hopper multiprocessor has
    assert shared[True, torch.bfloat16] >= shared[False, torch.bfloat16]  # room for as many tiles under way


# ---------------------------------------------------------------- launching


@pytest.mark.parametrize("paged", [False, True])
def test_the_grid_depends_on_shapes_alone_and_fills_the_gpu(launch, paged, monkeypatch):
    if fd.triton is None:
        monkeypatch.setattr(fd, "triton", type("Triton", (), {"next_power_of_2": lambda n: 1 << (n - 1).bit_length()}))
    [(grid, _, options)], merges = launch(batch=1, T=5, paged=paged)
    assert grid == (8, 64, 1) and options["ROWS"] == 32 and len(merges) == 1
    [(grid, _, _)], _ = launch(batch=64, T=1, paged=paged)
    assert grid[0] == 8 and grid[2] == 64 and 8 * 64 * grid[1] >= 2 * 132
    [(grid, _, options)], _ = launch(batch=1, T=64, paged=paged)
    assert grid[0] == 8 * 4 and options["ROWS"] == 64  # 4 · 64 rows, 64 to a program
    [(grid, _, options)], merges = launch(batch=200, T=1, paged=paged)
    assert grid[1] == 1 and not merges  # enough rows: nothing to merge
    [(grid, _, _)], _ = launch(batch=1, T=1, capacity=128, paged=paged)
    assert grid[1] == 2  # a tile for each


def test_splits_are_never_more_than_tiles_nor_less_than_one():
    for programs in (1, 8, 64, 512, 5000):
        for capacity in (1, 64, 65, 500, 4096, 131072):
            splits = fd.choose_splits(programs, capacity, 64, 132)
            assert 1 <= splits <= min(64, -(-capacity // 64))
            if splits not in (64, -(-capacity // 64)):
                assert splits * programs >= 8 * 132


# ---------------------------------------------------------------- mistakes


def test_without_a_gpu_the_error_names_the_twin(monkeypatch):
    monkeypatch.setattr(fd, "INTERPRETED", False)
    q, k, lengths = torch.zeros(1, 2, 1, 16), torch.zeros(1, 2, 8, 16), torch.zeros(1, dtype=torch.long)
    assert fd.unavailable("cpu")
    with pytest.raises(ValueError, match="_torch"):
        fd.flash_decode(q, k, k, lengths)
    monkeypatch.setattr(fd, "triton", None)
    assert "Triton" in fd.unavailable("cuda")


@pytest.mark.parametrize(
    "change, phrase",
    [
        (dict(q=torch.zeros(2, 4, 3, 16, dtype=torch.float64)), "bfloat16, float16 or float32"),
        (dict(k=torch.zeros(2, 3, 8, 16)), "divides"),
        (dict(k=torch.zeros(2, 2, 8, 32)), "last dimension"),
        (dict(k=torch.zeros(1, 2, 8, 16)), "one row for each"),
        (dict(v=torch.zeros(2, 2, 16, 8).transpose(2, 3)), "layout"),
        (dict(lengths=torch.zeros(3, dtype=torch.long)), "lengths"),
        (dict(lengths=torch.zeros(2)), "lengths"),
        (dict(mask=torch.ones(3, 3)), "mask"),
        (dict(mask=torch.ones(2, 2, dtype=torch.bool)), "mask"),
        (dict(splits=0), "splits=0"),
        (dict(splits=65), "splits=65"),
    ],
)
def test_wrong_arguments_are_named(change, phrase, monkeypatch):
    monkeypatch.setattr(fd, "unavailable", lambda device: None)
    right = dict(
        q=torch.zeros(2, 4, 3, 16),
        k=torch.zeros(2, 2, 8, 16),
        v=torch.zeros(2, 2, 8, 16),
        lengths=torch.zeros(2, dtype=torch.long),
    )
    with pytest.raises(ValueError, match=phrase):
        fd.flash_decode(**right | change)


def test_paged_shapes_are_checked(monkeypatch):
    monkeypatch.setattr(fd, "unavailable", lambda device: None)
    q, blocks, lengths = torch.zeros(2, 4, 3, 16), torch.zeros(9, 8, 2, 16), torch.zeros(2, dtype=torch.long)
    with pytest.raises(ValueError, match="tables"):
        fd.flash_decode_paged(q, blocks, blocks, torch.zeros(3, 4, dtype=torch.long), lengths)
    with pytest.raises(ValueError, match="tables: give whole numbers"):
        fd.flash_decode_paged(q, blocks, blocks, torch.zeros(2, 4), lengths)


def test_the_twins_import_without_triton(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)  # as if it were not installed
    spec = spec_from_file_location("minispec.gpu.without_triton", fd.__file__)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    q, k = normal(1, 2, 1, 8), normal(1, 1, 4, 8)
    assert module.triton is None and module.flash_decode_torch(q, k, k, torch.tensor([2])).shape == q.shape
