"""Prompts in an engine in fixed shapes: the twin, the kernels in Triton's interpreter, and passes on the CPU."""

from __future__ import annotations

import pytest
import ragged_checks as checks
import torch
from mutants.patching import Mutant, assert_caught, rewrite
from test_fast import NoLooking
from test_flash_decode import Recorder, compiled, needs_interpreter, needs_triton, run_checks
from tiny_models import random_model

import minispec as ms
from minispec.drafters.base import Draft
from minispec.gpu import attention as fd
from minispec.gpu import fused as graphs
from minispec.gpu import products as skinny
from minispec.gpu import ragged
from minispec.gpu.ragged import RaggedPasses, Shape, branches_of, few_of, tokens_of

pytestmark = pytest.mark.slow

# ---------------------------------------------------------------- attention


@needs_triton
@needs_interpreter
def test_the_kernels_are_their_twin_in_tritons_interpreter():
    run_checks("ragged_kernel_checks.py", TRITON_INTERPRET="1", OMP_NUM_THREADS="1")


@needs_triton
@pytest.mark.gpu
def test_the_kernels_are_their_twin_on_a_gpu():
    run_checks("ragged_kernel_checks.py", TRITON_INTERPRET="0")


def test_the_twin_is_a_uniform_batch_s_and_leaves_padding_alone():
    batch = checks.Batch([4, 4, 4], [9, 0, 30], padding=5, T=4, dtype=torch.float64, device="cpu")
    out = fd.flash_ragged_torch(*batch.arguments())
    rows = batch.q[:12].unflatten(0, (3, 4)).transpose(1, 2)  # [3, H, 4, D]
    for row in range(3):
        given = rows[row : row + 1], *batch.memory, batch.tables[row : row + 1, : -(-(batch.numbers[2, row] + 4) // 8)]
        expected = fd.flash_decode_paged_torch(*given, batch.numbers[2, row : row + 1], batch.mask[row])
        torch.testing.assert_close(out[4 * row : 4 * row + 4], expected[0].transpose(0, 1))
    assert (out[12:] == 0).all()


@pytest.fixture
def launch(monkeypatch):
    """launch(N, R, …): grids, arguments and options with which the 8B shape's kernels would be launched."""

    def call(N, R=8, T=0, dtype=torch.bfloat16, heads=(32, 8, 128), sms=132, **options):
        attend, merge = Recorder(), Recorder()
        monkeypatch.setattr(fd, "_attend_split", attend)
        monkeypatch.setattr(fd, "_merge_splits", merge)
        monkeypatch.setattr(fd, "unavailable", lambda device: None)
        monkeypatch.setattr(fd, "card", lambda device: fd.Card(sms, 227 * fd.KIB))
        H, Hkv, D = heads
        q, blocks = torch.empty(N, H, D, dtype=dtype), torch.empty(4, 16, Hkv, D, dtype=dtype)
        tables, numbers = torch.zeros(R, 512, dtype=torch.int32), torch.zeros(3, R, dtype=torch.int32)
        mask = torch.ones(R, T, T, dtype=torch.bool) if T else None
        fd.flash_ragged(q, blocks, blocks, tables, *numbers.unbind(), mask, **options)
        return attend.calls, merge.calls

    return call


@needs_triton
def test_the_grid_has_a_program_for_every_block_and_few_in_excess(launch):
    [(grid, _, options)], merges = launch(2048, 1)
    assert options["ROWS"] == 128 and options["FEW"] == 64 and len(merges) == 1
    splits = grid[1] - (4 * 2048 // 128 + 1)
    assert grid[0] == 8 and splits == 64  # for the case that the one sequence has few queries
    for R in (8, 64):
        [(grid, _, options)], merges = launch(256, R)
        splits = (grid[1] - (4 * 256 // options["ROWS"] + R)) // R
        assert options["ROWS"] == 64 and 8 * R * splits >= 2 * 132 and bool(merges) == (splits > 1)
        assert 8 * R * splits <= 2 * 8 * 132  # nor more than fill the GPU


@needs_triton
def test_the_kernels_compile_for_a_hopper_gpu(launch, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    attend, merge = fd._attend_split, fd._merge_splits
    for N, T, heads in ((2048, 0, (32, 8, 128)), (64, 8, (9, 3, 64))):
        [(_, args, options)], [(_, merge_args, merge_options)] = launch(N, T=T, heads=heads)
        kernel = compiled(attend, args, options)
        assert "wgmma" in kernel.asm["ptx"] and "cp.async.cg.shared.global" in kernel.asm["ptx"]
        assert kernel.metadata.shared <= 227 * 1024
        assert compiled(merge, merge_args, merge_options).metadata.shared < 2**16


@pytest.mark.parametrize(
    "change, phrase",
    [
        (dict(q=torch.zeros(1, 9, 4, 16)), r"\[N, H, D\]"),
        (dict(tables=torch.zeros(3, 4, dtype=torch.int32)), "one for each sequence"),
        (dict(counts=torch.zeros(3, dtype=torch.int32)), r"\[R\] each"),
        (dict(starts=torch.zeros(2)), "starts: give whole numbers"),
        (dict(mask=torch.ones(3, 4, 4, dtype=torch.bool)), "mask"),
        (dict(mask=torch.ones(2, 4, 3, dtype=torch.bool)), "mask"),
    ],
)
def test_wrong_arguments_are_named(change, phrase, monkeypatch):
    monkeypatch.setattr(fd, "unavailable", lambda device: None)
    whole = dict(dtype=torch.int32)
    right = dict(
        q=torch.zeros(9, 4, 16),
        key_blocks=torch.zeros(9, 8, 2, 16),
        value_blocks=torch.zeros(9, 8, 2, 16),
        tables=torch.zeros(2, 4, **whole),
        starts=torch.zeros(2, **whole),
        counts=torch.zeros(2, **whole),
        lengths=torch.zeros(2, **whole),
    )
    with pytest.raises(ValueError, match=phrase):
        fd.flash_ragged(**right | change)


# ---------------------------------------------------------------- passes


def test_how_sizes_are_rounded_up():
    assert [tokens_of(n) for n in (1, 16, 17, 33, 200, 257, 513, 1025, 2048)] == [
        16,
        16,
        32,
        64,
        256,
        512,
        768,
        1280,
        2048,
    ]
    assert [few_of(n, 32) for n in (0, 1, 8, 9, 32)] == [8, 8, 8, 32, 32] and few_of(3, 5) == 5
    assert [branches_of(n) for n in (1, 8, 9, 33, 64)] == [8, 8, 16, 64, 64]


@pytest.mark.parametrize("check", [checks.check_trees, checks.check_neighbours])
def test_passes(check):
    check()


@pytest.mark.parametrize("shape", checks.SHAPES)
def test_passes_of_every_model(shape):
    checks.check_passes(shapes=[shape])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_other_precisions(dtype):
    checks.check_passes(dtype=dtype, shapes=["qwen3"])


def test_few_tokens_go_the_lean_way(monkeypatch):
    """On a GPU a kernel computes their products; here its twin in torch takes the kernel's place."""
    monkeypatch.setattr(skinny, "skinny", skinny.skinny_torch)
    sizes = set()
    monkeypatch.setattr(skinny, "fits", lambda x, weight: sizes.add(few := x.shape[:-1].numel()) or few <= 64)
    checks.check_passes(shapes=["biased"], lean=True)
    assert min(sizes) == 7 and max(sizes) == 256


def test_the_kernel_gets_what_it_asks_for(monkeypatch):
    """On a GPU the kernel attends. Here its twin takes its place, after the kernel's own checks of its arguments."""
    asked = []

    def kernel(q, k, v, tables, starts, counts, lengths, mask):
        ready = (starts, counts)
        fd._check(q.transpose(0, 1)[None], k, v, tables, lengths, mask, k.shape[2], None, len(lengths), ready)
        assert tables.stride(1) == 1 and k.is_contiguous() and q.is_contiguous()
        assert starts[0] == 0 and (starts.diff() >= 0).all() and starts[-1] + counts[-1] <= len(q)
        asked.append(mask is None)
        return fd.flash_ragged_torch(q, k, v, tables, starts, counts, lengths, mask)

    monkeypatch.setattr(fd, "unavailable", lambda device: None)
    monkeypatch.setattr(ragged, "best_attention", lambda device, dtype: kernel)
    checks.check_passes(dtype=torch.float32, shapes=["llama"])
    checks.check_trees(dtype=torch.float32)
    assert set(asked) == {True, False}


def test_no_pass_looks_at_a_number_or_leaves_its_place():
    scene = checks.Scene(random_model(num_layers=3))
    scene.compare({0: 20, 3: 2}, [1, 1], 1e-10)
    passes, [shape] = scene.passes, scene.passes.captures
    fixed = [passes.sheet, passes.logits, passes.best, *passes.streams.values()]
    addresses, once = [tensor.data_ptr() for tensor in fixed], passes.logits.clone()
    passes.work(shape)  # a capture's warm-up works for real: twice is as good as once
    assert torch.equal(passes.logits, once)
    passes.attend = lambda q, *rest: torch.zeros_like(q)  # the twin does look
    with NoLooking(), torch.inference_mode(False), torch.no_grad():
        passes.work(shape)
    assert [tensor.data_ptr() for tensor in fixed] == addresses


def test_results_outlive_the_next_pass():
    scene = checks.Scene(random_model(num_layers=3))
    read = lambda row: scene.passes.read([[1, 2, 3]], [0], [scene.tables[row]], [1])  # noqa: E731
    first = read(2)
    kept = first.logits.clone(), first.hidden[2].clone()
    scene.passes.read([[9] * 5], [0], [scene.tables[3]], [1])
    assert torch.equal(first.logits, kept[0]) and torch.equal(first.hidden[2], kept[1])


def test_what_has_no_bucket_is_refused_before_anything_is_written():
    passes, table = checks.Scene(random_model(num_layers=3), tokens=64).passes, [list(range(40))]
    before = passes.lines.clone()
    wide = Draft([1] * 70, parents=[-1] * 70)
    for rows, needed, drafts in (([[1] * 65], [1], None), ([[1]] * 8, [1] * 8, None), ([[1] * 71], [1], [wide])):
        assert passes.read(rows, [0] * len(rows), table * len(rows), needed, drafts) is None
    assert torch.equal(passes.lines, before) and not passes.captures
    assert passes.shape([[1] * 64], [1], [None]) == Shape(64, 7, 7, 0)
    assert passes.shape([[1] * 64], [9], [None]) == Shape(64, 7, 64, 0)
    passes.attend = None  # a GPU without the kernels
    assert passes.shape([[1] * 64], [1], [None]) is None


def test_a_table_too_short_for_the_tokens_is_refused():
    passes = checks.Scene(random_model(num_layers=3)).passes
    with pytest.raises(ValueError, match="sequence 1: 9 tokens"):
        passes.read([[1], [1, 2]], [0, 7], [[0], [1, 2]], [1, 1])


def test_a_few_compiled_versions_serve_all_buckets():
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()  # what other tests have compiled of the same functions
    counter, scene = CompileCounterWithBackend("aot_eager"), checks.Scene(random_model(num_layers=3))
    scene.passes.enter, scene.passes.leave = (
        torch.compile(piece, backend=counter, fullgraph=True, dynamic=RaggedPasses.dynamic)
        for piece in (graphs.enter, graphs.leave)
    )
    for counts in ({0: 5}, {1: 20}, {0: 30, 2: 3}, {3: 100}, {4: 200, 5: 50}, {row: 7 for row in range(7)}):
        scene.compare(counts, [1] * len(counts), 1e-10)
    assert len(scene.passes.captures) == 5  # of 16 to 256 tokens
    assert counter.frame_count <= 4  # two pieces, for one number of tokens and for any


# ---------------------------------------------------------------- the engine


@pytest.mark.parametrize("name", ["nobody", "n-gram", *checks.KINDS])
def test_texts_are_those_of_the_usual_passes(name):
    checks.check_texts(some=[name])


def test_a_drafter_hears_the_same_states():
    """Of prompts, too: the drafter asks for the target's residual streams."""
    target, told = checks.pair()[0], []
    for fast in (True, False):
        drafter = checks.Recorder()
        told.append((checks.texts(target, drafter, fast, checks.asks(8, longest=60))[0], drafter.told))
    assert told[0][0] == told[1][0] and told[0][1].keys() == told[1][1].keys()
    for row, heard in told[0][1].items():
        for mine, theirs in zip(heard, told[1][1][row], strict=True):
            assert mine.keys() == theirs.keys()
            for n in mine:
                checks.close(mine[n], theirs[n], 1e-9, f"states of request {row}")


def test_no_prompt_is_processed_eagerly_unless_it_has_no_bucket(monkeypatch):
    model = random_model()
    bodies = []
    right = type(model.transformer).body
    monkeypatch.setattr(type(model.transformer), "body", lambda *a, **o: bodies.append(1) or right(*a, **o))
    prompts = [[i, *range(3 * i)] for i in range(1, 12)]
    quick = ms.Engine(model, max_num_seqs=4, max_num_batched_tokens=32, fast=True)
    outs = quick.generate(prompts, max_new_tokens=5, progress=False)
    assert not bodies
    quick.runner.buckets.prompts.tokens = 8  # steps with more tokens go as usual
    again = quick.generate([prompt[::-1] for prompt in prompts], max_new_tokens=5, progress=False)
    assert bodies
    for prompt, out, other in zip(prompts, outs, again, strict=True):
        assert out.tokens == ms.generate(model, prompt, 5).tokens
        assert other.tokens == ms.generate(model, prompt[::-1], 5).tokens


def test_sampled_texts_are_the_same_seed_for_seed():
    target, _ = checks.pair()
    some = [(prompt, wishes | dict(temperature=0.9, seed=i)) for i, (prompt, wishes) in enumerate(checks.asks())]
    assert checks.texts(target, None, True, some)[0] == checks.texts(target, None, False, some)[0]


def test_the_timings_add_up():
    """The script for a GPU, at a size for the CPU."""
    config = dict(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_heads=4, num_kv_heads=2, head_dim=8, max_length=256
    )
    mixes = {"one": [(32, 0)], "mixed": [(20, 30), (1, 40)]}
    found = checks.timings(config, mixes, "cpu", torch.float32, (1, 2), repeat=3)
    for t in found.values():
        assert t["products"] > 0 and t["attention"] > 0
        assert t["layer"] == pytest.approx(t["products"] + t["attention"] + t["rest"])


# ---------------------------------------------------------------- broken variants


def in_write(old: str, new: str):
    return lambda patch: rewrite(patch, RaggedPasses, "write", old, new)


def in_work(old: str, new: str):
    return lambda patch: rewrite(patch, RaggedPasses, "work", old, new)


QUICK = {
    "passes": lambda: checks.check_passes(shapes=["llama"]),
    "trees": checks.check_trees,
    "neighbours": checks.check_neighbours,
    "texts": lambda: checks.check_texts(some=["branches"]),
}
MUTANTS = {
    "padding is written into block 0": Mutant(in_write("self.spare * self.block_size", "0"), ("passes",)),
    "those that left go on": Mutant(
        in_write("sheet.starts[len(rows) :], sheet.counts[len(rows) :], sheet.lengths[len(rows) :] = at, 0, 0", "pass"),
        ("passes",),
    ),
    "logits of the first tokens": Mutant(
        in_write("np.arange(at + n - last, at + n)", "np.arange(at, at + last)"), ("passes", "texts")
    ),
    "logits one token early": Mutant(in_work("sheet.needed.long()", "sheet.needed.long() - 1"), ("passes", "texts")),
    "tables of other sequences": Mutant(
        in_write("sheet.tables[b,", "sheet.tables[b - 1,"), ("passes", "trees", "texts")
    ),
    "positions within the chunk": Mutant(in_write("= tokens, places", "= tokens, places - start"), ("passes", "texts")),
    "a tree's nodes one after the other": Mutant(in_write("= start + offsets", "= places"), ("trees", "texts")),
    "short chunks beside a tree see nothing": Mutant(in_write("= np.tri(n)", "= 0"), ("trees",), ("passes",)),
    "streams of the padding": Mutant(in_work("hidden[n][0]", "hidden[n][0].roll(1, 0)"), ("passes",), ("texts",)),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name):
    assert_caught(name, MUTANTS[name], QUICK)


# ---------------------------------------------------------------- on a GPU, captured

CUDA = dict(device="cuda", dtype=torch.float32)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "check",
    [checks.check_passes, checks.check_trees, checks.check_neighbours, checks.check_texts],
    ids=lambda check: check.__name__,
)
def test_recorded(check):
    check(**CUDA)


@pytest.mark.gpu
@pytest.mark.parametrize("check", [checks.check_replay, checks.check_by_default])
def test_recordings(check):
    check()
