"""What Triton makes of the kernels for GPUs that are not here: that each compiles, by which units it multiplies, and
that its shared memory fits. test_small_gpus.py runs this file in a process of its own, without Triton's interpreter.

Compilation stops at assembly: the shared memory is settled before it, and the rest is what takes long.
"""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from test_flash_decode import Recorder, compiled
from triton.backends import backends

from minispec.gpu import attention as fd
from minispec.gpu import pages, tree_kernels
from minispec.gpu import products as sk

HALF, SINGLE = torch.float16, torch.float32
KERNELS = fd._attend_split, fd._merge_splits, sk._product
# Shared memory that one block may have, in KiB (CUDA C++ Programming Guide, technical specifications per capability);
# AMD's CDNA 3 has 64 KiB of LDS.
LIMITS = {75: 64, 80: 163, 89: 99, 90: 227, "gfx942": 64}


@pytest.fixture(autouse=True)
def until_assembly(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for name, last in (("nvidia", "cubin"), ("amd", "hsaco")):
        compiler = backends[name].compiler
        whole = compiler.add_stages

        def stages_of(self, stages, *rest, whole=whole, last=last):
            whole(self, stages, *rest)
            stages[last] = lambda source, metadata: b""

        monkeypatch.setattr(compiler, "add_stages", stages_of)


@contextmanager
def on(gpu):
    """Launches are remembered, not made, and chosen for this GPU: sm_89, say, or gfx942."""
    with pytest.MonkeyPatch.context() as patch:
        attend, merge, product = launches = Recorder(), Recorder(), Recorder()
        for module, name, value in (
            (fd, "_attend_split", attend),
            (fd, "_merge_splits", merge),
            (sk, "_product", product),
            (torch.version, "hip", "7.0" if isinstance(gpu, str) else None),
        ):
            patch.setattr(module, name, value)
        for module in (fd, sk):
            patch.setattr(module, "unavailable", lambda device: None)
            patch.setattr(module, "card", lambda device: fd.Card(72, LIMITS[gpu] * fd.KIB))
        yield launches


def attention(gpu, dtype, D=128, T=4, paged=False, mask=False, **options):
    """Launches of both kernels for the 8B shape's heads, of this width."""
    q, lengths = torch.empty(2, 32, T, D, dtype=dtype), torch.zeros(2, dtype=torch.long)
    seen = torch.ones(T, T, dtype=torch.bool) if mask else None
    with on(gpu) as (attend, merge, _):
        if paged:
            blocks, tables = torch.empty(4, 16, 8, D, dtype=dtype), torch.zeros(2, 256, dtype=torch.int32)
            fd.flash_decode_paged(q, blocks, blocks, tables, lengths, seen, **options)
        else:
            k = torch.empty(1, 8, 1, D, dtype=dtype).expand(2, 8, 4096, D)
            fd.flash_decode(q, k, k, lengths, seen, **options)
    return attend.calls[0], merge.calls[0]


def product(gpu, dtype, rows, width, swiglu=False, norm=False, residual=False, tokens=5, **options):
    """The launch of a product of a few tokens."""
    x, w = torch.empty(tokens, width, dtype=dtype), torch.empty(rows, width, dtype=dtype)
    x = sk.HalfNormed(x.to(sk.half_normed_dtype(dtype)), torch.empty(64, tokens)) if norm else x
    added = torch.empty(tokens, rows, dtype=dtype) if residual else None
    with on(gpu) as (_, _, launched):
        sk.skinny(x, w, swiglu=swiglu, residual=added, gain=None if added is None else added[0], **options)
    return launched.calls[0]


def made(kernel, launch, gpu) -> tuple[int, str]:
    """Bytes of shared memory that the kernel asks for, and its assembly."""
    _, args, options = launch
    target = ("hip", gpu, 64) if isinstance(gpu, str) else ("cuda", gpu, 32)
    result = compiled(kernel, args, options, target)
    constants = {name: options[name] for name in ("ROWS", "TILE", "WIDE", "num_stages") if name in options}
    print(f"{gpu} {kernel.__name__} {args[0].dtype} {constants}: {result.metadata.shared / fd.KIB:.2f} KiB")
    return result.metadata.shared, result.asm["amdgcn" if isinstance(gpu, str) else "ptx"]


def check(kernel, launch, gpu, estimate: int) -> None:
    """It fits, it multiplies by matrix units, and takes no more than what chose its tiles reckoned with."""
    shared, assembly = made(kernel, launch, gpu)
    assert shared <= LIMITS[gpu] * fd.KIB
    assert ("mfma" if isinstance(gpu, str) else "mma") in assembly
    # Hopper's units hold a stage more; AMD's compiler gives the table of a paged memory less, and tiles more.
    assert shared <= estimate or gpu in (90, "gfx942")


def check_attention(gpu, dtype, **options) -> None:
    launch, _ = attention(gpu, dtype, **options)
    chosen = launch[2]
    tiling = fd.Tiling(chosen["TILE"], stages=3)
    check(KERNELS[0], launch, gpu, fd.shared_bytes(tiling, dtype, chosen["ROWS"], chosen["WIDTH"]))


def check_product(gpu, dtype, rows, width, **options) -> None:
    launch = product(gpu, dtype, rows, width, **options)
    chosen = launch[2]
    tiles = sk.Tiles(chosen["ROWS"], chosen["WIDE"], chosen["num_warps"], chosen["num_stages"])
    x_dtype = sk.half_normed_dtype(dtype) if options.get("norm") else dtype
    estimate = sk.shared_bytes(tiles, dtype, x_dtype, options.get("swiglu", False), chosen["TOKENS"], gpu == 90)
    check(KERNELS[2], launch, gpu, estimate)


@pytest.mark.parametrize("gpu", [80, 89, 90, "gfx942"])
def test_attention_fits(gpu):
    check_attention(gpu, HALF, paged=True, mask=True)
    check_attention(gpu, SINGLE, T=5)


def test_wide_heads_and_many_rows_fit():
    """Nearest to the limits: 98.1 of 99 KiB, and 224 of 227."""
    check_attention(89, SINGLE, D=256, T=4, paged=True)
    check_attention(90, HALF, D=256, T=16)


@pytest.mark.parametrize("gpu", LIMITS)
def test_merging_fits(gpu):
    _, launch = attention(gpu, HALF)
    shared, _ = made(KERNELS[1], launch, gpu)
    assert shared <= LIMITS[gpu] * fd.KIB


@pytest.mark.parametrize("dtype", [HALF, SINGLE], ids=str)
@pytest.mark.parametrize("gpu", [80, 89, 90, "gfx942"])
def test_products_fit(gpu, dtype):
    check_product(gpu, dtype, 28672, 4096, swiglu=True, norm=True)
    if gpu == 89:
        check_product(gpu, dtype, 6144, 4096, norm=True)
        check_product(gpu, dtype, 4096, 4096, residual=True)


def test_in_bfloat16():
    check_product(89, torch.bfloat16, 28672, 4096, swiglu=True, norm=True)


def test_before_ampere_there_are_no_matrix_instructions():
    """Everything compiles for a T4 and fits it, but multiplies number by number: why `unavailable` says no."""
    for kernel, launch in (
        (KERNELS[0], attention(75, HALF, D=16, T=1)[0]),
        (KERNELS[0], attention(75, SINGLE, D=16, T=2, paged=True, mask=True)[0]),
        (KERNELS[2], product(75, HALF, 960, 576, norm=True)),
        (KERNELS[2], product(75, SINGLE, 960, 576, residual=True)),
    ):
        shared, assembly = made(kernel, launch, 75)
        assert shared <= LIMITS[75] * fd.KIB and "mma" not in assembly


def test_tiles_that_are_too_large_are_noticed():
    """What an H200 takes without trouble: the checks above are worth something."""
    for kernel, launch in (
        (KERNELS[0], attention(89, HALF, T=1, tiling=fd.Tiling(tile=128))[0]),
        (KERNELS[2], product(89, HALF, 28672, 4096, swiglu=True, norm=True, tiles=sk.Tiles(128, 128, 8, 3))),
    ):
        with pytest.raises(AssertionError):
            check(kernel, launch, 89, estimate=2**30)


# ---------------------------------------------------------------- trees

TREE_KERNELS = (
    (tree_kernels, "_best_on_page"),
    (tree_kernels, "_best_of_pages"),
    (tree_kernels, "_grow"),
    (tree_kernels, "_prune"),
    (tree_kernels, "_enter"),
    (tree_kernels, "_stream"),
    (tree_kernels, "_laid_out"),
    (tree_kernels, "_walk"),
    (tree_kernels, "_commit"),
    (tree_kernels, "_move"),
    (sk, "_turn"),
    (sk, "_half_norm"),
)
REAL = {name: getattr(module, name) for module, name in TREE_KERNELS}


def tree_launches(dtype) -> list[tuple]:
    """The newest two launches of each kernel of a cycle with EAGLE's trees for three sequences of SmolLM2's shape."""
    B, k, width, d, v, n = 3, 4, 5, 576, 8192, 15
    whole = lambda *shape: torch.zeros(*shape, dtype=torch.long)  # noqa: E731
    some = lambda *shape: torch.zeros(*shape, dtype=dtype)  # noqa: E731
    with pytest.MonkeyPatch.context() as patch:
        recorders = {name: Recorder() for name in REAL}
        for module, name in TREE_KERNELS:
            patch.setattr(module, name, recorders[name])
        patch.setattr(tree_kernels, "unavailable", lambda device: None)
        trees = tree_kernels.GrowingByKernels(whole(v), width, n, k)
        trees.add(some(B, k + 1, v), whole(B))
        tokens, parents, _ = trees.add(some(B, width, v))
        trees.prune(whole(B), whole(B))
        tree_kernels.likeliest_tokens(some(B, k, v), whole(v), 8)
        tree_kernels.enter(tokens, some(100, d), some(B, k + 1, d), parents, (some(d), some(d)), 1e-5)
        tree_kernels.stream(some(B, n + 1, d), whole(B, k + 1), some(B, k + 1, 3 * d)[..., :d], 1e-5)
        tree_kernels.laid_out(whole(B, n), whole(B, n), whole(B, 99), whole(B), k)
        sound = torch.ones((), dtype=torch.bool)
        path, _, run, added, line, given = tree_kernels.walk(whole(B, n + 1), whole(B, n), whole(B, n), k, sound)
        log, chances, report = whole(99, *line.shape), torch.zeros(99, *given.shape), torch.zeros(B, 4 * n + 2)
        tree_kernels.commit(
            run,
            added,
            line,
            given,
            sound,
            whole(1),
            whole(B, 99),
            whole(B),
            whole(B),
            log,
            chances.double(),
            report.double(),
        )
        sk.half_normed(some(B, n + 1, d), some(d))
        memory = some(2, B, 3, 64, 64)
        tree_kernels.move(memory, memory, path, added)
        sk.turn_and_store(
            some(B, 5, 15 * 64),
            some(64, 1, 64),
            some(64, 1, 64),
            whole(B, 9)[:, :5],
            *memory,
            whole(B, 1),
            whole(B, 9)[:, :5],
        )
    return [(name, launch) for name, recorder in recorders.items() for launch in recorder.calls[-2:]]


@pytest.mark.parametrize("gpu", LIMITS)
def test_the_kernels_of_a_tree_fit(gpu):
    for name, launch in tree_launches(HALF if gpu in (75, 89) else torch.bfloat16):
        shared, _ = made(REAL[name], launch, gpu)
        assert shared <= LIMITS[gpu] * fd.KIB, name


@pytest.mark.parametrize("gpu", [80, 89, 90])
@pytest.mark.parametrize("tokens", [32, 64])
def test_products_of_many_tokens_fit(gpu, tokens):
    check_product(gpu, HALF, 28672, 4096, swiglu=True, norm=True, tokens=tokens)


@pytest.mark.parametrize("gpu", LIMITS)
def test_softmax_and_sampling_fit(gpu, monkeypatch):
    kernels = {name: getattr(pages, name) for name in ("_page_sums", "_normalise", "_page_totals", "_pick")}
    launches = {name: Recorder() for name in kernels}
    for name, recorder in launches.items():
        monkeypatch.setattr(pages, name, recorder)
    monkeypatch.setattr(pages, "unavailable", lambda device: None)
    numbers = torch.zeros(1, dtype=torch.float64)
    pages.pick(pages.softmax(torch.zeros(1, 128256, dtype=HALF), numbers[0]), numbers)
    for name, recorder in launches.items():
        shared, _ = made(kernels[name], recorder.calls[0], gpu)
        assert shared <= LIMITS[gpu] * fd.KIB
