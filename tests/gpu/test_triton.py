"""The Triton kernels: their references against the model's own arithmetic, the kernels against the references, what a
GPU's compiler makes of them, and what they are launched with. kernel_checks.py has the comparisons."""

import os
import subprocess
import sys
import warnings
from contextlib import contextmanager
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from itertools import product
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from packaging.version import Version
from tiny_models import random_model

from minispec.gpu import attention as fd
from minispec.gpu import gemm as sk
from minispec.gpu import passes, vocab, weights
from minispec.gpu import trees as tk
from minispec.gpu.weights import FastTransformer

HALF, SINGLE, BFLOAT = torch.float16, torch.float32, torch.bfloat16
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")


# ---------------------------------------------------------------- the references


def test_the_references_import_without_triton(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)  # as if it were not installed
    module = module_from_spec(spec := spec_from_file_location("minispec.gpu.without_triton", fd.__file__))
    spec.loader.exec_module(module)
    q, k = torch.zeros(1, 2, 1, 8), torch.zeros(1, 1, 4, 8)
    assert module.triton is None and module.flash_decode_torch(q, k, k, torch.tensor([2])).shape == q.shape


# ---------------------------------------------------------------- the kernels, in Triton's interpreter


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("few", ["--few", pytest.param("", marks=pytest.mark.nightly)])
def test_the_kernels_are_their_references(few):
    """In a process of its own: Triton reads TRITON_INTERPRET once, when it is imported."""
    if Version(fd.triton.__version__) < Version("3.7"):
        pytest.skip("the interpreter of Triton before 3.7 stumbles over NumPy 2.4")
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here.parent.parent), str(here.parent), str(here)])
    env = os.environ | dict(TRITON_INTERPRET="1", OMP_NUM_THREADS="1", PYTHONPATH=paths)
    command = [sys.executable, "-W", "ignore", str(here / "kernel_checks.py"), *filter(None, [few])]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr


# ---------------------------------------------------------------- what a compiler makes of them


class Recorder:
    """In a kernel's place: remembers what it was launched with."""

    def __init__(self):
        self.calls = []

    def __getitem__(self, grid):
        return lambda *args, **options: self.calls.append((grid, args, options))


KERNELS = [
    *((fd, name) for name in ("_attend_split", "_merge_splits")),
    *((sk, name) for name in ("_product", "_rope", "_add_norm", "_gated")),
    *((vocab, name) for name in ("_page_sums", "_normalise", "_page_totals", "_pick")),
    *((tk, name) for name in "_best_on_page _best_of_pages _level _prune _enter _stream _laid_out _walk".split()),
    *((tk, name) for name in ("_commit", "_move", "_best_page", "_best_row")),
]
REAL = {name: getattr(module, name) for module, name in KERNELS}
# Shared memory that one block may have, in KiB (CUDA C++ Programming Guide).
LIMITS = {75: 64, 80: 163, 89: 99, 90: 227}


@contextmanager
def on(gpu, sms: int = 132):
    """Launches are remembered, not made, and chosen for this GPU: 89 is sm_89."""
    with pytest.MonkeyPatch.context() as patch:
        recorders = {name: Recorder() for name in REAL}
        for module, name in KERNELS:
            patch.setattr(module, name, recorders[name])
        for module in (fd, sk, vocab, tk):
            patch.setattr(module, "unavailable", lambda device: None)
        for module in (fd, sk):
            patch.setattr(module, "card", lambda device: fd.Card(sms, LIMITS[gpu] * fd.KIB))
        yield recorders


def sizes(launch) -> dict:
    """What a launch's kernel was compiled for, and how it is launched."""
    _, args, options = launch
    return options | {name: value.value for name, value in args[-1]._asdict().items()}


def attention(gpu, dtype=BFLOAT, B=2, T=4, D=128, capacity=4096, paged=False, mask=False, **options):
    """Launches of both kernels for the 8B shape's heads, of this width."""
    q, lengths = torch.empty(B, 32, T, D, dtype=dtype), torch.zeros(B, dtype=torch.long)
    seen = torch.ones(T, T, dtype=torch.bool) if mask else None
    with on(gpu) as recorders:
        if paged:
            blocks, tables = torch.empty(4, 16, 8, D, dtype=dtype), torch.zeros(B, capacity // 16, dtype=torch.int32)
            fd.flash_decode_paged(q, blocks, blocks, tables, lengths, seen, **options)
        else:
            k = torch.empty(1, 8, 1, D, dtype=dtype).expand(B, 8, capacity, D)
            fd.flash_decode(q, k, k, lengths, seen, **options)
    return recorders["_attend_split"].calls[0], recorders["_merge_splits"].calls


def skinny(gpu, dtype, rows, width, swiglu=False, norm=False, residual=False, tokens=5, **options):
    """The launch of a product of a few tokens."""
    x, w = torch.empty(tokens, width, dtype=dtype), torch.empty(rows, width, dtype=dtype)
    x = sk.HalfNormed(x.to(sk.half_normed_dtype(dtype)), torch.empty(64, tokens)) if norm else x
    added = torch.empty(tokens, rows, dtype=dtype) if residual else None
    with on(gpu) as recorders:
        sk.skinny(x, w, swiglu=swiglu, residual=added, gain=None if added is None else added[0], **options)
    return recorders["_product"].calls[0]


def small_launches(dtype) -> list[tuple]:
    """The newest two launches of each small kernel, in a cycle with EAGLE's trees for three sequences of SmolLM2."""
    B, k, width, d, v, n = 3, 4, 5, 576, 8192, 15
    whole = lambda *shape: torch.zeros(*shape, dtype=torch.long)  # noqa: E731
    some = lambda *shape: torch.zeros(*shape, dtype=dtype)  # noqa: E731
    with on(90) as recorders:
        trees = tk.Growing(whole(v), width, n, True)
        trees.add(some(B, k + 1, v), whole(B))
        tokens, parents, _ = trees.add(some(B, width, v))
        trees.prune(whole(B), whole(B))
        tk.likeliest_tokens(some(B, k, v), whole(v), 8)
        tk.enter(tokens, some(100, d), some(B, k + 1, d), parents, (some(d), some(d)), 1e-5)
        tk.stream(some(B, n + 1, d), whole(B, k + 1), some(B, k + 1, 3 * d)[..., :d], 1e-5)
        tk.laid_out(whole(B, n), whole(B, n), whole(B, 99), whole(B), k)
        sound = torch.ones((), dtype=torch.bool)
        path, _, run, added, line, given = tk.walk(whole(B, n + 1), whole(B, n), whole(B, n), k, sound)
        report = torch.zeros(B, 4 * n + 2).double()
        tk.commit(run, added, line, given, sound, whole(B, 99), whole(B), whole(B), report)
        tk.best_of(some(B, v))
        sk.add_norm(some(B, n + 1, d), None, some(d), 1e-5)
        sk.gated(sk.add_norm(some(B, 2 * d), some(B, 2 * d), some(2 * d), 1e-5)[1])
        memory, places = some(2, B, 3, 64, 64), whole(B, 9)[:, :5]
        tk.move(memory, memory, path, added)
        sk.rope_and_store(some(B, 5, 15 * 64), some(64, 1, 64), some(64, 1, 64), places, *memory, whole(B, 1), places)
        numbers = torch.zeros(1, dtype=torch.float64)
        vocab.pick(vocab.softmax(torch.zeros(1, 128256, dtype=HALF), numbers[0]), numbers)
    return [(name, launch) for name, recorder in recorders.items() for launch in recorder.calls[-2:]]


def made(name: str, launch, gpu) -> tuple[int, str]:
    """Bytes of shared memory that a kernel asks for, and its assembly. No GPU is needed for that."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel, (_, args, options) = REAL[name], launch
    types = {BFLOAT: "bf16", HALF: "fp16", SINGLE: "fp32", torch.float64: "fp64", torch.int64: "i64"}
    types |= {torch.int32: "i32", torch.uint8: "u8"}
    given = dict(zip(kernel.arg_names, args, strict=False)) | {n: options[n] for n in kernel.arg_names if n in options}
    signature, constants, hints = {}, {}, {}

    def kind(value, at: tuple, constant: bool = False):
        """The type of an argument; what is constant in it, or divisible by 16, is noted under where it is."""
        if isinstance(value, tuple):
            each = [kind(part, (*at, i)) for i, part in enumerate(value)]
            return type(value)(*each) if hasattr(value, "_fields") else tuple(each)
        if constant or value is None or isinstance(value, fd.constexpr):
            constants[at] = getattr(value, "value", value)
            return "constexpr"
        tensor = isinstance(value, torch.Tensor)
        if tensor or (isinstance(value, int) and value % 16 == 0):
            hints[at] = [["tt.divisibility", 16]]
        return f"*{types[value.dtype]}" if tensor else "fp32" if isinstance(value, float) else "i32"

    for at, name in enumerate(kernel.arg_names):
        signature[name] = kind(given[name], (at,), name.isupper() and name in options)
    source = ASTSource(kernel, signature, constants, hints)
    target = GPUTarget("cuda", gpu, 32)
    few = {name: options[name] for name in ("num_warps", "num_stages") if name in options}
    result = fd.triton.compile(source, target=target, options=few)
    return result.metadata.shared, result.asm["ptx"]


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("gpu", [90, *(pytest.param(gpu, marks=pytest.mark.nightly) for gpu in (75, 80, 89))])
def test_the_kernels_compile_for_each_gpu_and_fit_it(gpu, monkeypatch, tmp_path):
    """Those that multiply do so by matrix units, but on a T4, for which Triton has none: why `unavailable` says no."""
    from triton.backends import backends

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    compiler, stages = backends["nvidia"].compiler, backends["nvidia"].compiler.add_stages

    def until_assembly(self, made, *rest):  # which is enough, and what follows takes long
        stages(self, made, *rest)
        made["cubin"] = lambda source, metadata: b""

    monkeypatch.setattr(compiler, "add_stages", until_assembly)
    size = dict(D=16, T=1) if gpu == 75 else {}
    rows, width = (960, 576) if gpu == 75 else (28672, 4096)
    multiply = [
        ("_attend_split", attention(gpu, HALF, **size, paged=True, mask=True)[0]),
        ("_attend_split", attention(gpu, SINGLE, **size | dict(T=5))[0]),
        ("_product", skinny(gpu, HALF, rows, width, swiglu=True, norm=True)),
        ("_product", skinny(gpu, SINGLE, rows, width, norm=True)),
    ]
    if gpu == 89:  # nearest to its limit: 98.1 of 99 KiB
        multiply.append(("_attend_split", attention(89, SINGLE, D=256, paged=True)[0]))
        multiply.append(("_product", skinny(89, BFLOAT, 4096, 4096, residual=True, tokens=64)))
    for name, launch in multiply:
        shared, assembly = made(name, launch, gpu)
        assert shared <= LIMITS[gpu] * fd.KIB and ("mma" in assembly) == (gpu != 75)
        assert gpu != 90 or "cp.async.cg.shared.global" in assembly  # tiles are asked for ahead of time
    small = [*small_launches(HALF if gpu in (75, 89) else BFLOAT), ("_merge_splits", attention(gpu, HALF)[1][0])]
    for name, launch in small if gpu != 90 else small[-6:]:
        assert made(name, launch, gpu)[0] <= LIMITS[gpu] * fd.KIB, name


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


# ---------------------------------------------------------------- launching


@needs_triton
def test_the_grid_depends_on_shapes_alone_and_fills_the_gpu():
    for paged in (False, True):
        launch, merges = attention(90, B=1, T=5, paged=paged)
        assert launch[0] == (8, 32, 1) and sizes(launch)["ROWS"] == 32 and len(merges) == 1
        launch, _ = attention(90, B=1, T=64, paged=paged)
        assert launch[0][0] == 8 * 4 and sizes(launch)["ROWS"] == 64  # 4 · 64 rows, 64 to a program
        (grid, _, _), merges = attention(90, B=200, T=1, paged=paged)
        assert grid[1] == 1 and not merges  # enough rows: nothing to merge
        (grid, _, _), _ = attention(90, B=1, T=1, capacity=128, paged=paged)
        assert grid[1] == 2  # a tile for each
    for rows, width, swiglu in ((6144, 4096, False), (4096, 4096, False), (28672, 4096, True), (4096, 14336, False)):
        launch = skinny(90, BFLOAT, rows, width, swiglu)
        _, programs, _ = launch[0]
        assert programs >= 96 and programs * sizes(launch)["ROWS"] >= rows // (2 if swiglu else 1)
    assert skinny(90, BFLOAT, 4096, 14336, residual=True, tokens=64)[0] == (1, 64, 2)  # two share a sum


# ---------------------------------------------------------------- GPUs other than the one this was tuned on

T4, A100, RTX_4090 = (torch.device(f"cuda:{n}") for n in range(3))


@pytest.fixture
def gpus(monkeypatch):
    """A machine with these three, on which nobody has been warned of anything."""
    capabilities = {T4: (7, 5), A100: (8, 0), RTX_4090: (8, 9)}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capabilities[torch.device(device)])
    monkeypatch.setattr(fd, "triton", fd.triton or Mock())
    monkeypatch.setattr(fd, "INTERPRETED", False)
    monkeypatch.setattr(fd, "_told", [])
    fd._no_tensor_cores.cache_clear()
    yield
    fd._no_tensor_cores.cache_clear()


def test_who_runs_the_kernels(gpus, monkeypatch):
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
            best(T4, HALF)
    assert len(warned) == 1
    monkeypatch.setattr(torch.version, "hip", "7.0")
    fd._no_tensor_cores.cache_clear()
    assert "AMD" in fd.unavailable(A100)


# ---------------------------------------------------------------- MINISPEC_BATCH_INVARIANT=1
# Everything that decides the order of a sum is the same for every launch. Bits are compared by invariant_checks.py.

ORDER = {"ROWS", "TILE", "WIDE", "TOKENS", "WIDTH", "PRECISION", "num_warps", "enable_fp_fusion"}  # of a sum


def order(recorder: Recorder) -> set[tuple]:
    return {tuple(sorted((k, v) for k, v in sizes(launch).items() if k in ORDER)) for launch in recorder.calls}


def check_products():
    for shape, swiglu in (((64, 32), False), ((9000, 1024), False), ((4096, 4096), True)):
        weight = torch.empty(1, dtype=BFLOAT).expand(shape)  # takes no memory, and is not contiguous
        with on(90) as recorders:
            for tokens in (1, 5, 16, 17, 64, 65, 129, 700):
                sk.skinny(torch.empty(tokens, shape[1], dtype=BFLOAT), weight, swiglu=swiglu)
        assert len(order(recorders["_product"])) == 1, "a product's tiles depend on the number of tokens"


def check_attention():
    blocks = torch.empty(4, 16, 3, 64, dtype=BFLOAT)
    with on(90) as recorders:
        for B, T, capacity in ((1, 1, 256), (1, 5, 256), (8, 1, 256), (32, 5, 512), (1, 600, 1024), (1, 1, 8192)):
            q, lengths = torch.empty(B, 9, T, 64, dtype=BFLOAT), torch.zeros(B, dtype=torch.long)
            k = torch.empty(1, 3, 1, 64, dtype=BFLOAT).expand(B, 3, capacity, 64)
            fd.flash_decode(q, k, k, lengths)
            tables, counts = torch.zeros(B, capacity // 16, dtype=torch.int32), torch.full((B,), T, dtype=torch.int32)
            fd.flash_decode_paged(q, blocks, blocks, tables, lengths)
            ragged = q.transpose(1, 2).flatten(0, 1), blocks, blocks, tables
            fd.flash_ragged(*ragged, counts.cumsum(0) - counts, counts, lengths)
    assert len(order(recorders["_attend_split"])) == 1, "attention's tiles depend on the pass"
    assert not recorders["_merge_splits"].calls, "slots were split"


@needs_triton
@pytest.mark.slow
def test_one_order_of_sums_for_every_launch(monkeypatch):
    monkeypatch.setenv("MINISPEC_BATCH_INVARIANT", "1")
    check_products(), check_attention()
    with pytest.raises(ValueError, match="MINISPEC_BATCH_INVARIANT"):
        FastTransformer(random_model().transformer, 1, 64)
