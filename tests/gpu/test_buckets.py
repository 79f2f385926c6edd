"""The engine's passes in fixed shapes: on the CPU unrecorded, on a GPU by CUDA graphs, and everywhere as usual."""

from __future__ import annotations

import warnings

import bucket_checks as checks
import pytest
import torch
from mutants.patching import Mutant, assert_caught, rewrite
from pytest import MonkeyPatch
from test_fast import NoLooking
from tiny_models import random_model

import minispec as ms
from minispec import verify
from minispec.drafters.base import Context
from minispec.gpu import attention as flash_decode
from minispec.gpu import buckets
from minispec.gpu import fused as graphs
from minispec.gpu import products as skinny
from minispec.gpu.buckets import Buckets, rows_of, tokens_of
from minispec.serving.engine import Engine
from minispec.serving.paged import PagedKVCache
from minispec.serving.runner import Runner
from minispec.trace import Cycle
from minispec_course.labs.slower import with_wrong_kernel

# ---------------------------------------------------------------- the usual passes


SOME = {"logits", "texts"}


@pytest.mark.parametrize("check", [c if c in SOME else pytest.param(c, marks=pytest.mark.slow) for c in checks.CHECKS])
def test_buckets(check):
    checks.CHECKS[check]()


@pytest.mark.slow
def test_all_models_buckets_and_drafters():
    checks.check_logits(counts=(10, 3, 1))
    checks.check_logits(shapes=["llama"])
    checks.check_texts()
    checks.check_sampled()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_other_precisions(dtype):
    checks.check_logits(dtype=dtype, shapes=["qwen3"], counts=(9, 3))


@pytest.mark.slow
def test_few_tokens_go_the_lean_way(monkeypatch):
    """On a GPU a kernel computes their products; here its twin in torch takes the kernel's place."""
    monkeypatch.setattr(skinny, "skinny", skinny.skinny_torch)
    sizes = set()
    monkeypatch.setattr(skinny, "fits", lambda x, weight: sizes.add(few := x.shape[:-1].numel()) or few <= 16)
    checks.check_logits(shapes=("llama", "biased"), counts=(10, 3, 1), lean=True)
    assert min(sizes) == 1 and max(sizes) > 16


def test_how_sizes_are_rounded_up():
    assert [rows_of(n) for n in (1, 2, 3, 4, 5, 8, 9, 16, 17, 24, 100, 128)] == [
        1,
        2,
        4,
        4,
        8,
        8,
        16,
        16,
        24,
        24,
        104,
        128,
    ]
    assert [tokens_of(n, 4) for n in range(5)] == [1, 2, 3, 5, 5]
    assert [tokens_of(n, 6) for n in range(7)] == [1, 2, 3, 5, 5, 7, 7]


@pytest.mark.slow
def test_the_kernel_gets_what_it_asks_for(monkeypatch):
    """On a GPU the kernel attends. Here its twin takes its place, after the kernel's own checks of its arguments."""

    masks = set()

    def kernel(q, k, v, tables, lengths, mask):
        masks.add(mask is None)
        flash_decode._check(q, k, v, tables, lengths, mask, k.shape[2], None)
        assert tables.stride(1) == 1 and k.is_contiguous()
        return flash_decode.flash_decode_paged_torch(q, k, v, tables, lengths, mask)

    monkeypatch.setattr(flash_decode, "unavailable", lambda device: None)
    monkeypatch.setattr(buckets, "best_attention", lambda device, dtype: kernel)
    checks.check_logits(dtype=torch.float32, shapes=["llama"], counts=(9, 1))
    assert masks == {True, False}  # chains need none


@pytest.mark.slow
def test_no_pass_looks_at_a_number_or_leaves_its_place():
    scene = checks.Scene(random_model(num_layers=3), 6)
    fixed = [
        scene.buckets.sheet,
        scene.buckets.table_sheet,
        scene.buckets.logits,
        scene.buckets.best,
        *scene.buckets.streams.values(),
    ]
    addresses = [tensor.data_ptr() for tensor in fixed]
    for branches in (False, True):
        scene.compare(range(6), 3, 1e-10, branches)
        with NoLooking(), torch.inference_mode(False), torch.no_grad():
            scene.buckets.work(8, 3, branches)
        assert [tensor.data_ptr() for tensor in fixed] == addresses
        again = scene.buckets.logits.clone()
        scene.buckets.work(8, 3, branches)  # a capture's warm-up works for real: twice is as good as once
        assert torch.equal(scene.buckets.logits, again)


@pytest.mark.slow
def test_a_few_compiled_versions_serve_all_buckets():
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")
    scene = checks.Scene(random_model(num_layers=3), 10)
    scene.buckets.enter, scene.buckets.leave = (
        torch.compile(piece, backend=counter, fullgraph=True, dynamic=Buckets.dynamic)
        for piece in (graphs.enter, graphs.leave)
    )
    with torch._dynamo.config.patch(recompile_limit=64):
        for count in (1, 2, 3, 5, 8, 9, 10):
            for longest in (1, 2, 3, 5):
                scene.compare(range(10 - count, 10), longest, 1e-10)
    assert len(scene.buckets.captures) > 10
    assert counter.frame_count <= 12  # two pieces; one row or several, one token or several; and a change of mind


# ---------------------------------------------------------------- the engine


def test_fast_is_for_gpus_unless_asked_for(tiny):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Engine(tiny).runner.buckets is None and Engine(tiny, fast=False).runner.buckets is None
        quick = Engine(tiny, num_blocks=32, fast=True)
    assert quick.runner.buckets.captures == {} and quick.runner.buckets.enter is graphs.enter
    assert quick.pool.num_blocks == 32 and quick.runner.cache.num_blocks == 34
    quick.shutdown()
    assert quick.runner.buckets is None and quick.runner.cache is None


def test_where_nothing_can_be_compiled_a_warning_says_so(tiny, monkeypatch):
    """As on a GPU that the kernels do not run on, without a C compiler."""

    class Anywhere:
        type = "cuda"

    monkeypatch.setattr(buckets, "why_not_compile", lambda *_: "no C compiler")
    monkeypatch.setattr(buckets, "has_kernels", lambda *_: False)
    monkeypatch.setattr(ms.Model, "device", property(lambda self: Anywhere))
    monkeypatch.setattr(buckets, "PagedKVCache", lambda config, *a, device, **o: PagedKVCache(config, *a, **o))
    with pytest.warns(UserWarning, match="uncompiled: no C compiler"):
        _, quick = buckets.memory_for(tiny, 8, 4, 2)
    assert quick.enter is graphs.enter


def test_products_of_another_kind_are_never_fused(tiny_text):
    model = with_wrong_kernel(tiny_text)
    assert not model.transformer.ordinary and tiny_text.transformer.ordinary
    with pytest.raises(ValueError, match="fast=True"):
        Engine(model, fast=True)
    assert Engine(model).runner.buckets is None


def test_weights_are_stored_once_however_many_use_them():
    model = random_model()
    first = graphs.FastTransformer(model.transformer, 1, 64)
    second = Engine(model, fast=True).runner.buckets
    assert first.layers[0].qkv[0].data_ptr() == second.layers[0].qkv[0].data_ptr()
    assert model.transformer.layers[1].mlp.up_proj.weight.untyped_storage().data_ptr() == (
        second.layers[1].gate_up[0].untyped_storage().data_ptr()
    )
    assert torch.equal(first.layers[1].gate_up[0], second.layers[1].gate_up[0])


@pytest.mark.slow
def test_under_inference_mode_and_outside_it_alternately(tiny):
    expected = ms.generate(tiny, [5, 9], 12).tokens
    for made_inside in (True, False):
        with torch.inference_mode(made_inside):
            quick = Engine(tiny, fast=True)
        for inside in (True, False, True):
            with torch.inference_mode(inside):
                quick.add([5, 9], 12)
                assert [out.tokens for out in quick.run().values()] == [expected]


def test_a_text_may_be_as_long_as_the_model_and_the_pool_allow():
    """Padding goes past the last position of all, and past the last block."""
    model = random_model(max_length=32)
    for blocks, longest in ((8, 32), (6, 24), (20, 32)):
        prompt = [5, 6] * 4
        expected = ms.generate(model, prompt, longest - len(prompt)).tokens
        guess = checks.Recorder()
        guess.hidden_layers = ()
        quick = Engine(model, guess, num_blocks=blocks, block_size=4, k=5, fast=True)
        quick.add(prompt, longest - len(prompt))
        assert quick.run()[0].tokens == expected and quick.runner.buckets.captures


def test_a_table_too_short_for_the_tokens_is_refused():
    scene = checks.Scene(random_model(num_layers=3), 3)
    with pytest.raises(ValueError, match="row 1: 9 tokens"):
        scene.buckets.read([[1], [1, 2]], [0, 7], [[0], [1, 2]])


def test_a_table_may_hold_more_blocks_than_a_text_can_fill():
    """A drafter of trees reserves slots past the last position."""
    scene = checks.Scene(random_model(num_layers=3, max_length=64), 4)
    scene.tables = [table + [30 + row] * 40 for row, table in enumerate(scene.tables)]
    scene.compare(range(4), 2, 1e-10)


def test_longer_drafts_than_the_engine_s_go_the_usual_way():
    model = random_model()
    quick = Engine(model, ms.drafters.NGram(), k=2, fast=True)
    quick.add([5, 6] * 6, 24, k=6)
    deepest = 0
    while quick.jobs:
        deepest = max(deepest, quick.step().rows[0].drafted)
    assert deepest > 2 and all(tokens <= 3 for _, tokens, _ in quick.runner.buckets.captures)
    assert quick.take()[0].tokens == ms.generate(model, [5, 6] * 6, 24).tokens


# ---------------------------------------------------------------- greedy verdicts


def test_greedy_rows_are_judged_by_one_look_at_the_device(monkeypatch):
    """No distributions, no random numbers: one transfer of the best tokens, however many sequences and drafts."""
    looks = []
    right = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: looks.append(tensor.shape) or right(tensor))
    for name in ("distributions", "uniforms", "check_draft"):
        monkeypatch.setattr(verify, name, lambda *args, **options: pytest.fail("nothing is sampled"))
    quick = Engine(random_model(), ms.drafters.NGram(), fast=True)
    for i in range(6):
        quick.add([5, 6, 7] * 3 + [i], 12)
    quick.step()  # reads the prompts
    looks.clear()
    quick.step()
    assert len(looks) == 1 and looks[0][0] == 6


def test_greedy_verdicts_are_those_of_one_hot_distributions():
    """The same verdicts and cycles, ragged drafts included."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 4, 64, generator=generator, dtype=torch.float64)
    best = logits.argmax(-1).tolist()
    drafts = [ms.drafters.Draft(tokens) for tokens in (best[0][:3], [best[1][0], 5, 6], [], [7], best[4][:2])]
    contexts = [Context(i, [1, 2], ms.Sampling(), torch.Generator().manual_seed(i)) for i in range(5)]
    sampled = [
        ms.drafters.Draft(d.tokens, torch.nn.functional.one_hot(torch.tensor(d.tokens).long(), 64).double())
        for d in drafts
    ]
    found = []
    for some in (drafts, sampled):
        verdicts, p, q = verify.judge(logits, contexts, some)
        assert [verdict.accepted for verdict in verdicts] == [3, 1, 0, 0, 2] and (q is None) == (some is drafts)
        found.append([Cycle.of(d, v, p[i], q and q[i], 2) for i, (d, v) in enumerate(zip(some, verdicts, strict=True))])
    assert found[0] == found[1]
    logits[2, 0, 3] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        verify.judge(logits, contexts, drafts)


# ---------------------------------------------------------------- broken variants


def in_write(old: str, new: str):
    return lambda patch: rewrite(patch, Buckets, "write", old, new)


def in_tables(old: str, new: str):
    return lambda patch: rewrite(patch, Buckets, "write_tables", old, new)


def in_work(old: str, new: str):
    return lambda patch: rewrite(patch, Buckets, "work", old, new)


def in_views(old: str, new: str):
    return lambda patch: rewrite(patch, Buckets, "write_views", old, new)


def in_move(old: str, new: str):
    return lambda patch: rewrite(patch, Buckets, "move", old, new)


MUTANTS = {
    "padding is written into block 0": Mutant(in_work("self.blank, self.spare)", "self.blank, 0)"), ("logits",)),
    "tables are filled up with block 0": Mutant(in_tables("[row] = self.blank", "[row] = 0"), ("logits",)),
    "garbage is read": Mutant(
        in_work("self.blank, self.spare)", "self.blank, self.blank)"), ("neighbours",), ("texts",)
    ),
    "tables of other rows": Mutant(in_tables("changed =", "tables = tables[::-1]\n    changed ="), ("logits", "texts")),
    "stale lengths": Mutant(in_write("self.numbers[:B, 0] = starts", "pass"), ("logits", "texts")),
    "stale tables": Mutant(in_tables("table != self.tables[row]", "not self.tables[row]"), ("logits", "texts")),
    "tables that grow unnoticed": Mutant(in_tables("list(tables[row])", "tables[row]"), ("texts",), ("logits",)),
    "old blocks stay in a shorter table": Mutant(
        in_tables("self.table_numbers[row] = self.blank", "pass"), ("logits",)
    ),
    "tables are not sent": Mutant(in_tables("if changed:", "if False:"), ("logits", "texts")),
    "those who left go on": Mutant(in_write("[*tables, *[[]] * nobody]", "tables"), ("logits",)),
    "positions within a block": Mutant(
        in_work("through(tokens, positions,", "through(tokens, positions % self.block_size,"), ("logits", "texts")
    ),
    "streams before the MLP": Mutant(
        lambda patch: rewrite(patch, graphs.Fused, "through", "hidden[n] = x if lean else x + delta", "hidden[n] = x"),
        ("logits", "hidden"),
        ("texts",),
    ),
    "shapes are mixed up": Mutant(
        lambda patch: rewrite(patch, Buckets, "read", "tokens_of(max(map(len, rows)) - 1, self.k)", "1 + self.k"),
        ("captures",),
        ("texts",),
    ),
    "siblings are one after the other": Mutant(
        in_work("positions, mask = lengths + views[:, :T],", "mask ="), ("logits", "trees"), ("texts",)
    ),
    "branches see each other": Mutant(
        in_views("tree_view(tuple(draft.tree), T)", "tree_view(tuple(range(-1, len(draft.tokens) - 1)), T)"),
        ("logits", "trees"),
        ("texts",),
    ),
    "views of other rows": Mutant(in_views("zip(drafts, rows", "zip(drafts[::-1], rows"), ("logits",)),
    "old views stay": Mutant(in_views("] = [*views", "] |= [*views"), ("logits", "trees")),
    "a path stays where it was": Mutant(in_move("if node != to:", "if False:"), ("moves", "trees"), ("logits",)),
    "moved from the first block": Mutant(
        in_move("table[a // size] * size", "table[0] * size"), ("moves", "trees"), ("logits",)
    ),
    "padding of a move goes to slot 0": Mutant(
        in_move("nothing = self.spare * size, self.spare * size", "nothing = self.spare * size, 0"), ("moves",)
    ),
    "alone, they share one place": Mutant(
        lambda patch: rewrite(patch, Runner, "_fixed_pass", "if self.latest:", "if False:"), ("trouble",), ("texts",)
    ),
    "judged by the first row's tokens": Mutant(
        lambda patch: rewrite(patch, Runner, "judge", "tokens[turn.at : turn", "tokens[0 : turn"), ("texts",)
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name):
    assert_caught(name, MUTANTS[name], checks.CHECKS)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MUTANTS if MUTANTS[name].passes])
def test_mutant_is_invisible_elsewhere(name):
    for check in MUTANTS[name].passes:
        with MonkeyPatch.context() as patch:
            MUTANTS[name].install(patch)
            checks.CHECKS[check]()


# ---------------------------------------------------------------- on a GPU, captured

CUDA = dict(device="cuda", dtype=torch.float32)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "check",
    [
        checks.check_logits,
        checks.check_neighbours,
        checks.check_texts,
        checks.check_sampled,
        checks.check_hidden,
        checks.check_trouble,
    ],
    ids=lambda check: check.__name__,
)
def test_recorded(check):
    check(**CUDA)


@pytest.mark.gpu
def test_recorded_in_bfloat16():
    checks.check_logits("cuda", torch.bfloat16, shapes=["llama"])


@pytest.mark.gpu
@pytest.mark.parametrize("check", [checks.check_replay, checks.check_flat_memory, checks.check_by_default])
def test_recordings(check):
    check()
