"""The engine's passes in fixed shapes (passes.py) are its eager passes: the same logits, hidden states, memory
and outputs."""

import gc
import warnings
from collections.abc import Sequence
from random import Random
from unittest.mock import patch

import pytest
import torch
from fakes import Given
from reference import SHAPES, capturable, close, endless, pair, slow, tolerance_of, usual_dtype
from serving import BLOCK, asks, drafters, serve
from tiny_models import random_model

import minispec as ms
from minispec import verify
from minispec.gpu.graph import on_the_device
from minispec.gpu.passes import Buckets, rows_of, tokens_of
from minispec.serving.paged import PagedKVCache, split
from minispec.tree import Scratch, mask_and_offsets

slow_test, nightly = pytest.mark.slow, pytest.mark.nightly
K = 4
LAYERS = (0, 2, 3)  # whose hidden states are kept


# ---- one pass ------------------------------------------------------------------------------------------------------


class Scene:
    """A pool in mid-run: `count` rows of different lengths, blocks out of order, some of them shared."""

    def __init__(self, model: ms.Model, count: int, seed: int = 0, **options):
        self.model, random = model, Random(seed)
        self.cached = [random.choices(range(64), k=random.randint(1, 30)) for _ in range(count)]
        for row in range(1, count, 3):  # begins like the row before it: two blocks in common
            self.cached[row - 1] = self.cached[row - 1] + [7] * 9
            self.cached[row] = self.cached[row - 1][: 2 * BLOCK] + self.cached[row]
        self.starts = [len(text) for text in self.cached]
        free = list(range(10 * count))
        random.shuffle(free)
        # Blocks for the text, and for a token and its drafts: as many as this row brings.
        self.rows = [random.choices(range(64), k=random.randint(1, 1 + K)) for _ in range(count)]
        self.tables = []
        for row, (text, new) in enumerate(zip(self.cached, self.rows, strict=True)):
            shared = self.tables[row - 1][:2] if row % 3 == 1 else []
            need = -(-(len(text) + len(new)) // BLOCK) - len(shared)
            self.tables.append(shared + [free.pop() for _ in range(need)])
        make = on_the_device(PagedKVCache)
        memory = dict(hidden_layers=LAYERS, device=model.device, dtype=model.dtype)
        self.cache = make(model.config, 10 * count + 2, BLOCK, **memory)
        for text, table in zip(self.cached, self.tables, strict=True):
            eager(model, self.cache, [text], [0], [table])
        self.buckets = Buckets(model.transformer, self.cache, count, K, **options)

    def compare(self, rows: Sequence[int], longest: int, tolerance: float, branches: bool = False) -> None:
        """One pass over some of the rows, cut to so many tokens each, against the eager one on a copy of the pool."""
        tokens = [self.rows[row][:longest] for row in rows]
        starts, tables = [self.starts[row] for row in rows], [self.tables[row] for row in rows]
        drafts = [branching(new, seed) for seed, new in enumerate(tokens)] if branches else None
        before = [memory.clone() for memory in self.cache.memories]
        found, each = self.buckets.read(tokens, starts, tables, drafts), (len(rows), -1)
        logits, best = found.logits.unflatten(0, each), found.best.unflatten(0, each)
        after = [memory.clone() for memory in self.cache.memories]
        for memory, old in zip(self.cache.memories, before, strict=True):
            memory.copy_(old)
        expected = eager(self.model, self.cache, tokens, starts, tables, drafts)
        assert len(logits) == len(rows) and torch.equal(best, logits.argmax(-1))
        for i, new in enumerate(tokens):
            close(logits[i, : len(new)], expected[i], tolerance, f"logits of row {i}")
        T = tokens_of(max(map(len, tokens)) - 1, K)
        same_memory(self.cache, before, after, tokens, starts, tables, tolerance, T)


def eager(model: ms.Model, cache: PagedKVCache, rows, starts, tables, drafts=None) -> list:
    """The engine's eager pass over these sequences: logits of each."""
    counts, device, transformer = list(map(len, rows)), model.device, model.transformer
    both = zip(drafts or [None] * len(rows), counts, strict=True)
    views = [mask_and_offsets(draft, n) if draft else (None, torch.arange(n)) for draft, n in both]
    positions = torch.cat([start + offset for start, (_, offset) in zip(starts, views, strict=True)])[None].to(device)
    tokens = torch.tensor([[token for row in rows for token in row]], device=device)
    paged = cache.open(tables, starts, counts, [mask for mask, _ in views])
    x, hidden = transformer.body(tokens, paged, positions=positions, hidden_layers=LAYERS)
    cache.store(paged.slots, hidden)
    return split(transformer.head(x), counts)


def same_memory(cache, before, after, tokens, starts, tables, tolerance: float, T: int = 0) -> None:
    """What was to be written is there; the rest is as before, but for the spare block and padding up to T tokens."""
    written, free = set(), {(cache.num_blocks - 1) * BLOCK + i for i in range(BLOCK)}
    for new, start, table in zip(tokens, starts, tables, strict=True):
        positions = range(start, start + max(T, len(new)))
        where = [table[p // BLOCK] * BLOCK + p % BLOCK for p in positions if p // BLOCK < len(table)]
        written |= set(where[: len(new)])
        free |= set(where[len(new) :])
    untouched = sorted(set(range(cache.num_blocks * BLOCK)) - written - free)
    for memory, old, now in zip(cache.memories, before, after, strict=True):  # [L, slots, …]
        assert torch.equal(now[:, untouched], old[:, untouched]), "another sequence's memory has changed"
        close(now[:, sorted(written)], memory[:, sorted(written)], tolerance, "keys, values or states")


def branching(tokens: Sequence[int], seed: int) -> ms.drafters.Draft:
    """These tokens, all but the first, as a random tree; some have scratch at the end, and some are chains."""
    random, drafted = Random(f"{seed} {tokens}"), list(tokens[1:])
    if seed % 4 == 3:
        return ms.drafters.Draft(drafted)
    s = random.randint(1, len(drafted)) if drafted and seed % 2 else 0
    scratch = None
    if s:
        mask = torch.tensor([[j == i or (j < i and random.random() < 0.5) for j in range(s)] for i in range(s)])
        scratch = Scratch(drafted[-s:], [random.randint(1, 4) for _ in range(s)], mask)
        drafted = drafted[:-s]
    return ms.drafters.Draft(drafted, None, [random.randint(-1, node - 1) for node in range(len(drafted))], scratch)


@pytest.mark.parametrize(
    "shape, counts",
    [("llama", (10, 3, 1, 5)), *(pytest.param(shape, (1, 2, 3, 4, 5, 8, 9, 10, 1), marks=nightly) for shape in SHAPES)],
)
def test_passes_are_the_eager_ones(shape, counts, device):
    """Every bucket of up to ten sequences and K draft tokens, full and not; chains, trees and scratch tokens."""
    check_passes(shape, counts, device, usual_dtype(device))


@nightly
def test_passes_in_half_precision_are_the_eager_ones(device):
    check_passes("qwen3", (9, 3), device, torch.bfloat16)


def check_passes(shape: str, counts: Sequence[int], device: str, dtype: torch.dtype) -> None:
    model = random_model(dtype=dtype, device=device, num_layers=3, **SHAPES[shape])
    scene = Scene(model, 10)
    for longest in range(1, 2 + K):
        for count in counts:
            for branches in {False, longest % 2 > 0}:  # of 1, 3 and 5 tokens
                scene.compare(Random(count).sample(range(10), count), longest, tolerance_of(dtype), branches)
    rows, tokens, branches, _ = map(set, zip(*scene.buckets.captures, strict=True))
    assert rows == {rows_of(count) for count in counts} and tokens == {1, 2, 3, 5} and branches == {False, True}


def test_damaged_memory_damages_its_own_sequence_alone(device, rows=8):
    """A sequence whose memory is damaged damages no other: not through padding, nor by what it leaves in its blocks."""
    dtype = usual_dtype(device)
    model = random_model(dtype=dtype, device=device, num_layers=3)
    scene = Scene(model, rows)
    for broken in (0, 4, 7):
        for start in (2 * BLOCK - 1, 2 * BLOCK - 3):  # padding goes beyond the table, or stays in its last block
            tables = [[2 * row, 2 * row + 1] for row in range(rows)]
            drafting = (broken + 2) % rows  # so all the others are padded
            tables[drafting].append(2 * rows)
            for memory in (scene.cache.keys, scene.cache.values):
                memory[:, : 2 * rows].normal_()
                memory[:, 1 : 2 * rows : 2, start % BLOCK :] = torch.nan  # of an owner before, past the row's length
                memory[:, tables[broken][0]] = torch.nan
            new = [[3, 1, 4] if row == drafting else [3] for row in range(rows)]
            expected = eager(model, scene.cache, [[3]], [start], [tables[1]])
            for _ in range(2):  # now the spare block holds what the broken row left there
                logits = scene.buckets.read(new, [start] * rows, tables).logits.unflatten(0, (rows, -1))
                damaged = [row for row in range(rows) if not bool(logits[row, 0].isfinite().all())]
                assert damaged == [broken], f"row {broken} is broken, and {damaged} are damaged"
            close(logits[1, :1], expected[0], tolerance_of(dtype), "a neighbour's logits")


def test_an_accepted_path_is_moved_together(device):
    """An accepted path is moved together as PagedKVCache.gather does it; nothing else changes but the spare block."""
    dtype = usual_dtype(device)
    model, random = random_model(dtype=dtype, device=device, num_layers=3), Random(0)
    for rows, k in ((1, 2), (1, 6), (3, 4), (8, 9)):  # the smallest has room for fewer moves than a launch has
        make = on_the_device(PagedKVCache)
        memory = dict(hidden_layers=LAYERS, device=device, dtype=dtype)
        mine, other = (make(model.config, 8 * rows + 2, BLOCK, **memory) for _ in range(2))
        buckets = Buckets(model.transformer, mine, rows, k)
        blocks = random.sample(range(8 * rows), 8 * rows)
        tables = [blocks[8 * row : 8 * row + 8] for row in range(rows)]
        for count in range(1, rows + 1):
            for memory, twin in zip(mine.memories, other.memories, strict=True):
                memory.normal_()
                twin.copy_(memory)
            starts = [random.randint(1, 8 * BLOCK - k) for _ in range(count)]
            paths = [sorted(random.sample(range(k), random.randint(0, k))) for _ in range(count - 1)] + [
                [1, k - 1][-min(2, k - 1) :]
            ]
            buckets.move(tables[:count], starts, paths)
            other.gather(tables[:count], starts, paths)
            for memory, twin in zip(mine.memories, other.memories, strict=True):
                assert torch.equal(memory[:, : buckets.spare * BLOCK], twin[:, : buckets.spare * BLOCK])
        before, launches = mine.keys.clone(), dict(buckets.movers)
        buckets.move(tables, [1] * rows, [[0, 1]] * rows)  # chains are in place already: nothing is launched
        assert torch.equal(mine.keys, before) and buckets.movers == launches
        assert len(launches) <= 4 and all(count & (count - 1) == 0 for (count,) in launches)  # sizes are rounded up


@slow_test
def test_no_pass_waits_for_a_number():
    scene = Scene(random_model(num_layers=3), 6)
    passes = scene.buckets
    for branches in (False, True):
        scene.compare(range(6), 3, 1e-10, branches)
        with capturable(passes.sheet, passes.table_sheet, passes.logits, passes.best, *passes.cache.memories):
            passes.work(8, 3, branches)
        again = passes.logits.clone()
        passes.work(8, 3, branches)  # a capture's warm-up works for real: twice is as good as once
        assert torch.equal(passes.logits, again)


@pytest.mark.gpu
def test_a_replay_does_what_its_work_does(device):
    """A capture does what its work does, whatever is written in the sheet since; its first launch, too."""
    model = random_model(dtype=torch.float32, device=device, num_layers=3)
    scene = Scene(model, 10)
    for longest in (1, 3, 5):
        for start in range(0, 7):
            rows = range(start, start + 3)
            new = [scene.rows[row][:longest] for row in rows]
            held = [scene.starts[row] for row in rows], [scene.tables[row] for row in rows]
            found = scene.buckets.read(new, *held)
            replayed, states = found.logits.clone(), scene.cache.states[:, :-1].clone()  # padding goes to the spare one
            on_the_device(scene.buckets.work)(rows_of(3), tokens_of(max(map(len, new)) - 1, K), False)
            for mine, theirs in ((replayed, scene.buckets.logits), (states, scene.cache.states[:, :-1])):
                close(mine, theirs[: len(mine)], 1e-5, "replayed and not replayed")
    assert all(captured.graph is not None for captured in scene.buckets.captures.values())


def test_the_passes_that_are_timed_are_the_model_s(device):
    """Of measure.verify_curve: after so much context, in any order, each time the same."""
    model, ids = random_model(device=device, dtype=usual_dtype(device), num_layers=3), torch.arange(1, 41)[None]
    usual, backend, made = model.transformer, ms.Model("twin", model.transformer).accelerate(), []
    right = backend.memory
    backend.memory = lambda *sizes: made.append(right(*sizes)) or made[-1]
    with backend.passes(ids.to(device), 30, [1, 3, 8]) as (calls, rewind):
        for count in (1, 8, 3, 1):
            calls[count](), rewind()
            cache = usual.new_cache(1, 40)
            usual(ids[:, :30].to(device), cache)
            expected = usual(ids[:, 30 : 30 + count].to(device), cache).logits[0]
            close(made[0].logits[:count], expected, tolerance_of(model.dtype), f"a pass of {count}")


# ---- an engine ----------------------------------------------------------------------------------------------------


KINDS = "no drafter", "n-gram", "model", "lookahead", "medusa", "eagle"
QUICK = "no drafter", "n-gram", "medusa", "lookahead"


@slow_test
@pytest.mark.parametrize("name", [k if k in QUICK else pytest.param(k, marks=nightly) for k in KINDS])
def test_outputs_are_those_of_the_eager_engine(name, device):
    """Token for token, with prefix caching and preemptions; and so when all passes are ragged."""
    target, draft = pair(device, usual_dtype(device))
    make = drafters(target, draft)[name]
    for model, blocks in ((target, 60), (endless(target), 22)):
        expected, usual = serve(model, make(), False, asks(), num_blocks=blocks)
        found, engine = serve(model, make(), True, asks(), num_blocks=blocks)
        passes = engine.runner.buckets
        assert found == expected
        assert usual.runner.buckets is None and len(passes.captures | passes.drafted) >= 3
        assert len(passes.prompts.captures) >= 2
        by_host = any(branches for _, _, branches, _ in passes.captures)
        assert by_host == (name == "lookahead")  # the device lays out its own drafts
        assert name in ("medusa", "eagle") or not passes.movers  # whose paths the device often moves
        same = [step.read for step in engine.measured.steps] == [step.read for step in usual.measured.steps]
        assert same or (
            name in ("eagle", "medusa") and blocks < 30
        )  # a slot reserved ahead may take a cached block's memory
        assert engine.pool.stats().prefix_hits > 3
        assert blocks > 30 or engine.metrics()["totals"]["preemptions"] > 0
        if name not in ("model", "eagle", "medusa"):  # whose drafts stay on the device
            with patch.object(Buckets, "takes", lambda *_: False):
                found, engine = serve(model, make(), True, asks(), num_blocks=blocks)
            assert found == expected
            assert engine.runner.buckets.prompts.captures and not engine.runner.buckets.captures


@slow_test
@pytest.mark.parametrize("name", [k if k in ("model", "medusa") else pytest.param(k, marks=nightly) for k in KINDS])
def test_sampled_outputs_are_those_of_the_eager_engine_seed_for_seed(name, device):
    """Of requests that sample in different ways, and some not at all."""
    target, draft = pair(device, usual_dtype(device))
    ways = (dict(temperature=0.8), dict(), dict(temperature=1.2, top_k=9, top_p=0.9), dict(temperature=0.8))
    some = [(prompt, wishes | ways[i % 4] | dict(seed=i)) for i, (prompt, wishes) in enumerate(asks())]
    found, expected = (serve(target, drafters(target, draft)[name](), fast, some)[0] for fast in (True, False))
    assert found == expected


@slow_test
def test_trouble_with_one_request_is_its_own(device):
    """A request whose memory is damaged fails alone, and none fails when passes break for several at once."""
    target, _ = pair(device, usual_dtype(device))
    some = asks(10, new=20)
    for _, wishes in some:
        wishes["max_new_tokens"] += 6
    expected, _ = serve(target, ms.drafters.NGram(), False, some)
    sizes = dict(num_blocks=60, block_size=BLOCK, max_num_seqs=7, k=3, enable_prefix_caching=False)
    engine = ms.Engine(target, ms.drafters.NGram(), **sizes, fast=True)
    for prompt, wishes in some:
        engine.add(prompt, **wishes)
    victim = next(id for id, (tokens, _) in enumerate(expected) if len(tokens) > 12)
    right, passes = engine.runner.buckets.read, 0

    def read(rows, *rest):
        nonlocal passes
        passes += 1
        if len(rows) > 1 and passes % 4 == 0:
            raise RuntimeError("too many at once")
        return right(rows, *rest)

    engine.runner.buckets.read = read
    while len(engine.sequences[victim].output) < 3:
        engine.step()
    for memory in (engine.runner.cache.keys, engine.runner.cache.values):
        memory[:, engine.pool.tables[victim].blocks[0]] = torch.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that each alone is slower
        outs = engine.run()
    assert passes > 8
    for id, wanted in enumerate(expected):
        if id == victim:
            assert outs[id].finish_reason == "error" and "NaN" in str(outs[id].error)
        else:
            assert (outs[id].tokens, outs[id].finish_reason, outs[id].error) == (*wanted, None)


@pytest.mark.gpu
def test_serving_leaves_memory_as_it_was(device, requests=120):
    """Once every bucket has been captured, serving leaves memory as it was."""
    target, _ = pair(device, torch.float32)
    engine = ms.Engine(
        target, ms.drafters.NGram(), num_blocks=64, block_size=BLOCK, max_num_seqs=8, k=3, enable_prefix_caching=False
    )
    used = []
    for _ in range(4):
        for prompt, wishes in asks(requests // 4, seed=1):
            engine.add(prompt, **wishes)
        engine.run()
        gc.collect()
        torch.cuda.synchronize()
        used.append(torch.cuda.memory_allocated())
    assert len(set(used[1:])) == 1, f"memory moved: {used}"


@pytest.mark.gpu
def test_an_engine_on_a_gpu_is_captured_by_default(device):
    """An engine on a GPU is fast unless told otherwise, by kernels alone. It generates what the eager one does."""
    model = slow(random_model(dtype=torch.float32, device=device, num_layers=3))
    some = asks()
    expected, usual = serve(model, ms.drafters.NGram(), False, some)
    found, engine = serve(model, ms.drafters.NGram(), None, some)
    buckets = engine.runner.buckets
    assert usual.runner.buckets is None and buckets.skinny is not None and buckets.prompts.captures
    assert found == expected


def test_an_engine_on_a_cpu_is_captured_when_asked_for(tiny):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ms.Engine(tiny).runner.buckets is None and ms.Engine(tiny, fast=False).runner.buckets is None
        quick = ms.Engine(tiny, num_blocks=32, fast=True)
    assert quick.runner.buckets.captures == {}
    assert quick.pool.num_blocks == 32 and quick.runner.cache.num_blocks == 34
    quick.shutdown()
    assert quick.runner.buckets is None and quick.runner.cache is None


def test_a_sequence_may_be_as_long_as_the_model_and_the_pool_allow():
    """Padding goes past the last position of all, and past the last block."""
    model = random_model(max_length=32)
    for blocks, longest in ((8, 32), (6, 24), (20, 32)):
        prompt = [5, 6] * 4
        expected = ms.generate(model, prompt, longest - len(prompt)).tokens
        guess = Given(lambda context, k: ms.drafters.Draft([context.tokens[-1]] * min(k, 3)))
        quick = ms.Engine(model, guess, num_blocks=blocks, block_size=4, k=5, fast=True)
        quick.add(prompt, longest - len(prompt))
        assert quick.run()[0].tokens == expected and quick.runner.buckets.captures


def test_longer_drafts_than_the_engine_s_are_processed_eagerly():
    model = random_model()
    quick = ms.Engine(model, ms.drafters.NGram(), k=2, fast=True)
    quick.add([5, 6] * 6, 24, k=6)
    deepest = 0
    while quick.sequences:
        deepest = max(deepest, quick.step().rows[0].drafted)
    assert deepest > 2 and all(tokens <= 3 for _, tokens, *_ in quick.runner.buckets.captures)
    assert quick.take()[0].tokens == ms.generate(model, [5, 6] * 6, 24).tokens


def test_greedy_requests_are_verified_by_one_transfer(monkeypatch):
    """No distributions, no random numbers: one transfer of the best tokens, however many sequences and drafts."""
    transfers = []
    right = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: transfers.append(tensor.shape) or right(tensor))
    for name in ("distributions", "uniforms", "check_draft"):
        monkeypatch.setattr(verify, name, lambda *args, **options: pytest.fail("nothing is sampled"))
    quick = ms.Engine(random_model(), ms.drafters.NGram(), fast=True)
    for i in range(6):
        quick.add([5, 6, 7] * 3 + [i], 12)
    quick.step()  # processes the prompts
    transfers.clear()
    quick.step()
    assert len(transfers) == 1 and transfers[0][0] == 6
