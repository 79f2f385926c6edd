"""Checks that the engine's passes in fixed shapes (passes.py) are its passes: same logits, states, memory and texts.

test_buckets.py runs them on the CPU, where a capture just does its work. On a GPU, without pytest:

    PYTHONPATH=.:tests python3 tests/gpu/bucket_checks.py
"""

import gc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from random import Random
from unittest.mock import patch

import torch
from all_drafters import random_eagle, random_medusa
from fast_checks import SHAPES, distance, pair, run_on_the_gpu, slow
from tiny_models import random_model

import minispec as ms
from minispec.gpu import draft_memory
from minispec.gpu import weights as graphs
from minispec.gpu.passes import Buckets, rows_of, tokens_of
from minispec.serving.paged import PagedKVCache, split
from minispec.tree import Scratch, mask_and_offsets

K, BLOCK = 4, 4  # drafts may be longer than what is left of a block
LAYERS = (0, 2, 3)  # whose streams are kept


class Scene:
    """A pool in mid-run: `count` rows of different lengths, blocks out of order, some of them shared."""

    def __init__(self, model: ms.Model, count: int, seed: int = 0, **options):
        self.model, random = model, Random(seed)
        self.texts = [random.choices(range(64), k=random.randint(1, 30)) for _ in range(count)]
        for row in range(1, count, 3):  # begins like the row before it: two blocks in common
            self.texts[row - 1] = self.texts[row - 1] + [7] * 9
            self.texts[row] = self.texts[row - 1][: 2 * BLOCK] + self.texts[row]
        self.starts = [len(text) for text in self.texts]
        free = list(range(10 * count))
        random.shuffle(free)
        # Blocks for the text, and for a token and its drafts: as many as this row brings.
        self.rows = [random.choices(range(64), k=random.randint(1, 1 + K)) for _ in range(count)]
        self.tables = []
        for row, (text, new) in enumerate(zip(self.texts, self.rows, strict=True)):
            shared = self.tables[row - 1][:2] if row % 3 == 1 else []
            need = -(-(len(text) + len(new)) // BLOCK) - len(shared)
            self.tables.append(shared + [free.pop() for _ in range(need)])
        make = graphs.on_the_device(PagedKVCache)
        memory = dict(hidden_layers=LAYERS, device=model.device, dtype=model.dtype)
        self.cache = make(model.config, 10 * count + 2, BLOCK, **memory)
        for text, table in zip(self.texts, self.tables, strict=True):
            usual(model, self.cache, [text], [0], [table])
        self.buckets = Buckets(model.transformer, self.cache, count, K, **options)

    def compare(self, rows: Sequence[int], longest: int, tolerance: float, branches: bool = False) -> None:
        """One pass over some of the rows, cut to so many tokens each, against the usual one on a copy of the pool."""
        tokens = [self.rows[row][:longest] for row in rows]
        starts, tables = [self.starts[row] for row in rows], [self.tables[row] for row in rows]
        drafts = [branching(new, seed) for seed, new in enumerate(tokens)] if branches else None
        before = [memory.clone() for memory in self.cache.memories]
        found, each = self.buckets.read(tokens, starts, tables, drafts), (len(rows), -1)
        logits, best = found.logits.unflatten(0, each), found.best.unflatten(0, each)
        after = [memory.clone() for memory in self.cache.memories]
        for memory, old in zip(self.cache.memories, before, strict=True):
            memory.copy_(old)
        expected = usual(self.model, self.cache, tokens, starts, tables, drafts)
        assert len(logits) == len(rows) and torch.equal(best, logits.argmax(-1))
        for i, new in enumerate(tokens):
            close(logits[i, : len(new)], expected[i], tolerance, f"logits of row {i}")
        T = tokens_of(max(map(len, tokens)) - 1, K)
        same_memory(self.cache, before, after, tokens, starts, tables, tolerance, T)


def usual(model: ms.Model, cache: PagedKVCache, rows, starts, tables, drafts=None) -> list:
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
        places = range(start, start + max(T, len(new)))
        where = [table[p // BLOCK] * BLOCK + p % BLOCK for p in places if p // BLOCK < len(table)]
        written |= set(where[: len(new)])
        free |= set(where[len(new) :])
    untouched = sorted(set(range(cache.num_blocks * BLOCK)) - written - free)
    for memory, old, now in zip(cache.memories, before, after, strict=True):  # [L, slots, …]
        assert torch.equal(now[:, untouched], old[:, untouched]), "somebody else's memory has changed"
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


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float, what: str) -> None:
    error = distance(found, expected.double().cpu())
    assert error < tolerance, f"{what}: off by {error:.1e}"


EVERY = (1, 2, 3, 4, 5, 8, 9, 10, 1)  # rows; the lines of those who left turn into padding


def check_logits(device="cpu", dtype=torch.float64, shapes=tuple(SHAPES), counts=EVERY, **options) -> None:
    """Every bucket of up to ten rows and K drafts, full and not; chains, trees and scratch tokens."""
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-4}.get(dtype, 0.05)
    for name in shapes:
        model = random_model(dtype=dtype, device=device, num_layers=3, **SHAPES[name])
        scene = Scene(model, 10, **options)
        for longest in range(1, 2 + K):
            for count in counts:
                for branches in {False, longest % 2 > 0}:  # of 1, 3 and 5 tokens
                    scene.compare(Random(count).sample(range(10), count), longest, tolerance, branches)
        rows, tokens, branches = map(set, zip(*scene.buckets.captures, strict=True))
        assert rows == {rows_of(count) for count in counts} and tokens == {1, 2, 3, 5} and branches == {False, True}


def check_neighbours(device="cpu", dtype=torch.float64, rows: int = 8) -> None:
    """A row whose memory is damaged damages nobody: not through padding, nor by what it leaves in blocks given back."""
    model = random_model(dtype=dtype, device=device, num_layers=3)
    scene = Scene(model, rows)
    for broken in (0, 4, 7):
        for start in (2 * BLOCK - 1, 2 * BLOCK - 3):  # padding goes beyond the table, or stays in its last block
            tables = [[2 * row, 2 * row + 1] for row in range(rows)]
            drafting = (broken + 2) % rows  # so everybody else is padded
            tables[drafting].append(2 * rows)
            for memory in (scene.cache.keys, scene.cache.values):
                memory[:, : 2 * rows].normal_()
                memory[:, 1 : 2 * rows : 2, start % BLOCK :] = torch.nan  # of an owner before, past the row's length
                memory[:, tables[broken][0]] = torch.nan
            new = [[3, 1, 4] if row == drafting else [3] for row in range(rows)]
            expected = usual(model, scene.cache, [[3]], [start], [tables[1]])
            for _ in range(2):  # now the spare block holds what the broken row left there
                logits = scene.buckets.read(new, [start] * rows, tables).logits.unflatten(0, (rows, -1))
                damaged = [row for row in range(rows) if not bool(logits[row, 0].isfinite().all())]
                assert damaged == [broken], f"row {broken} is broken, and {damaged} are damaged"
            close(logits[1, :1], expected[0], 1e-10 if dtype == torch.float64 else 1e-4, "a neighbour's logits")


def check_moves(device="cpu", dtype=torch.float64) -> None:
    """An accepted path is moved together as PagedKVCache.gather does it; nothing else changes but the spare block."""
    model, random = random_model(dtype=dtype, device=device, num_layers=3), Random(0)
    for rows, k in ((1, 2), (1, 6), (3, 4), (8, 9)):  # the smallest has room for fewer moves than a launch has
        make = graphs.on_the_device(PagedKVCache)
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


# ---- texts ---------------------------------------------------------------------------------------------------------


def asks(count: int = 14, longest: int = 30, new: int = 20, seed: int = 0) -> list[tuple[list[int], dict]]:
    """Prompts, some of which begin alike, and what to do with each."""
    random = Random(seed)
    beginning, made = random.choices(range(64), k=longest // 2), []
    for i in range(count):
        prompt = beginning * (i % 2) + random.choices(range(64), k=random.randint(1, longest // 2))
        made.append((prompt, dict(max_new_tokens=random.randint(2, new), k=random.choice((None, None, 1, 6, 0)))))
    return made


def texts(target: ms.Model, drafter, fast: bool, some, at_once: int = 5, **options) -> tuple[list, ms.Engine]:
    """Serve them, `at_once` from the start and one more a step; (tokens, finish) of each."""
    sizes = dict(num_blocks=60, block_size=BLOCK, max_num_seqs=7, max_num_batched_tokens=48, max_chunk=16, k=3)
    engine, outs, left = ms.Engine(target, drafter, **sizes | options, fast=fast), {}, list(some)
    for prompt, wishes in left[:at_once]:
        engine.add(prompt, **wishes)
    left = left[at_once:]
    while engine.sequences or left:
        if left:
            prompt, wishes = left.pop(0)
            engine.add(prompt, **wishes)
        engine.step()
        engine.check_integrity()
        outs |= engine.take()
    return [(outs[id].tokens, outs[id].finish_reason) for id in sorted(outs)], engine


def drafters(target: ms.Model, draft: ms.Model) -> dict[str, Callable]:
    D, own = ms.drafters, {}  # heads are made once: they are the same for both engines
    heads = lambda make: own.setdefault(make, make(target))  # noqa: E731
    return {
        "nobody": lambda: None,
        "n-gram": D.NGram,
        "model": lambda: D.Model(draft),
        "lookahead": lambda: D.Lookahead(target),  # scratch tokens
        "medusa": lambda: D.Medusa(target, heads(random_medusa), nodes=7),  # trees
        "eagle": lambda: D.Eagle(target, heads(random_eagle), width=3, nodes=8),
    }


EVERYBODY = ("nobody", "n-gram", "model", "lookahead", "medusa", "eagle")


def check_texts(device="cpu", dtype=torch.float64, some: Sequence[str] = EVERYBODY) -> None:
    """Token for token those of the usual passes, whoever drafts, with shared prefixes and preemptions; and so when all
    passes are ragged, those that decode included."""
    target, draft = pair(device, dtype)
    endless = ms.Model("endless", target.transformer)
    for name in some:
        make = drafters(target, draft)[name]
        for model, blocks in ((target, 60), (endless, 22)):
            expected, usual = texts(model, make(), False, asks(), num_blocks=blocks)
            found, engine = texts(model, make(), True, asks(), num_blocks=blocks)
            assert found == expected, name
            captures = engine.runner.buckets.captures | engine.runner.buckets.drafted
            assert (
                usual.runner.buckets is None and len(captures) >= 3 and len(engine.runner.buckets.prompts.captures) >= 2
            )
            host = [branches for *_, branches in engine.runner.buckets.captures]
            assert any(host) == (name in ("lookahead", "medusa"))  # the device lays out its own drafts
            moves = bool(engine.runner.buckets.movers)  # of paths that are no chains
            assert moves == (name == "medusa") or name == "eagle"  # whose paths are often moved by the device
            same = [step.read for step in engine.measured.steps] == [step.read for step in usual.measured.steps]
            assert same or (name == "eagle" and blocks < 30)  # a slot reserved ahead may take a cached block's memory
            assert engine.pool.stats().prefix_hits > 3
            assert blocks > 30 or engine.metrics()["totals"]["preemptions"] > 0
            if name not in ("model", "eagle"):  # whose drafts stay on the device
                with patch.object(Buckets, "takes", lambda *_: False):
                    found, engine = texts(model, make(), True, asks(), num_blocks=blocks)
                assert found == expected, f"{name}, all ragged"
                assert engine.runner.buckets.prompts.captures and not engine.runner.buckets.captures


def check_sampled(device="cpu", dtype=torch.float64, drafted: Sequence[str] = EVERYBODY) -> None:
    """Seed for seed the same sampled texts, of requests that sample in different ways, and some not at all."""
    target, draft = pair(device, dtype)
    ways = (dict(temperature=0.8), dict(), dict(temperature=1.2, top_k=9, top_p=0.9), dict(temperature=0.8))
    some = [(prompt, wishes | ways[i % 4] | dict(seed=i)) for i, (prompt, wishes) in enumerate(asks())]
    for name in drafted:
        both = [texts(target, drafters(target, draft)[name](), fast, some)[0] for fast in (True, False)]
        assert both[0] == both[1]


class Numbers(dict):
    """Ids, which are unique in the process, as 0, 1, 2 … in the order of their first appearance."""

    def __missing__(self, id: int) -> int:
        self[id] = len(self)
        return self[id]


def check_trouble(device="cpu", dtype=torch.float64) -> None:
    """A request whose memory is damaged in mid-run fails alone; so does nobody, when passes break for some at once."""
    target, _ = pair(device, dtype)
    some = asks(10, new=20)
    for _, wishes in some:
        wishes["max_new_tokens"] += 6
    expected, _ = texts(target, ms.drafters.NGram(), False, some)
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
    outs = engine.run()
    assert passes > 8
    for id, wanted in enumerate(expected):
        if id == victim:
            assert outs[id].finish_reason == "error" and "NaN" in str(outs[id].error)
        else:
            assert (outs[id].tokens, outs[id].finish_reason, outs[id].error) == (*wanted, None)


# ---- a draft model's memory ----------------------------------------------------------------------------------------


class Noted(ms.drafters.Model):
    """Keeps every draft that it made, and what for."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.notes: list[tuple] = []

    def propose(self, contexts, k):
        drafts = super().propose(contexts, k)
        self.notes += [(c.id, list(c.tokens), d.tokens, d.probs) for c, d in zip(contexts, drafts, strict=True)]
        return drafts


def same_drafts(found: Noted, expected: Noted, tolerance: float) -> None:
    """Draft for draft the same tokens, drawn from the same laws."""
    assert len(found.notes) == len(expected.notes)
    numbers = Numbers(), Numbers()
    for (row, *mine, q), (other, *theirs, law) in zip(found.notes, expected.notes, strict=True):
        assert numbers[0][row] == numbers[1][other] and mine == theirs and (q is None) == (law is None)
        if q is not None:
            close(q, law, tolerance, f"the distributions of a draft for sequence {row}")


def nothing_is_left(drafter: ms.drafters.Model) -> None:
    """Everybody has left: all blocks are free, once each."""
    held = drafter.memory
    assert not held.lengths and not held.tables and not drafter.committed
    assert sorted(held.free) == list(range(held.buckets.blank))


def beginning_with(rows: int, tokens: int, block: int) -> AbstractContextManager:
    """A draft model's paged memory is to be that small at first."""
    return patch.multiple(draft_memory, ROWS=rows, TOKENS=tokens, BLOCK=block)


CHECKS: dict[str, Callable[[], None]] = {  # the quick ones, for the mutants too
    "logits": lambda: check_logits(shapes=("llama",), counts=(10, 3, 1, 5)),
    "neighbours": check_neighbours,
    "moves": check_moves,
    "texts": lambda: check_texts(some=["nobody", "n-gram"]),
    "trees": lambda: check_texts(some=["medusa", "lookahead"]),
    "sampled": lambda: check_sampled(drafted=["model", "medusa"]),
    "trouble": check_trouble,
}


# ---- on a GPU only -------------------------------------------------------------------------------------------------


def check_replay(device="cuda") -> None:
    """A capture does what its work does, whatever is written in the sheet since; its first launch too."""
    model = random_model(dtype=torch.float32, device=device, num_layers=3)
    scene = Scene(model, 10)
    for longest in (1, 3, 5):
        for start in range(0, 7):
            rows = range(start, start + 3)
            new = [scene.rows[row][:longest] for row in rows]
            place = [scene.starts[row] for row in rows], [scene.tables[row] for row in rows]
            found = scene.buckets.read(new, *place)
            replayed, states = found.logits.clone(), scene.cache.states[:, :-1].clone()  # padding goes to the spare one
            graphs.on_the_device(scene.buckets.work)(rows_of(3), tokens_of(max(map(len, new)) - 1, K), False)
            for mine, theirs in ((replayed, scene.buckets.logits), (states, scene.cache.states[:, :-1])):
                close(mine, theirs[: len(mine)], 1e-5, "replayed and not replayed")
    assert all(captured.graph is not None for captured in scene.buckets.captures.values())


def check_flat_memory(device="cuda", requests: int = 120) -> None:
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


def check_by_default(device="cuda") -> None:
    """An engine on a GPU is fast unless told otherwise, by kernels alone. It generates what the usual one does."""
    model = slow(random_model(dtype=torch.float32, device=device, num_layers=3))
    some = asks()
    expected, usual = texts(model, ms.drafters.NGram(), False, some)
    found, engine = texts(model, ms.drafters.NGram(), None, some)
    buckets = engine.runner.buckets
    assert usual.runner.buckets is None and buckets.skinny is not None and buckets.prompts.captures
    assert found == expected


def main() -> None:
    cuda = dict(device="cuda", dtype=torch.float32)
    same = check_logits, check_neighbours, check_moves, check_texts, check_sampled, check_trouble
    checks = {check.__name__[6:]: partial(check, **cuda) for check in same}
    checks["logits, bfloat16"] = partial(check_logits, "cuda", torch.bfloat16, shapes=("llama",))
    run_on_the_gpu(checks | {"replay": check_replay, "flat memory": check_flat_memory, "by default": check_by_default})


if __name__ == "__main__":
    main()
