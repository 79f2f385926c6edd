"""Paged memory: whatever the tables look like, logits are those of each sequence alone in a contiguous cache."""

import math
import random

import pytest
import torch
from tiny_models import random_model

import minispec as ms
from minispec import cache
from minispec.serving import paged
from minispec.serving.paged import PagedKVCache, split
from minispec.tree import depths, path_to, verify_mask

# In float32, contiguous logits are themselves up to 2e-5 from those of float64 here, and so are paged ones; two such
# roundings differ by 1e-5. What paging adds of its own is for float64 to show.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 3e-5}
MODELS = {dtype: random_model(dtype=dtype) for dtype in TOLERANCE}


def make_pool(model: ms.Model, num_blocks: int, block_size: int) -> PagedKVCache:
    """A pool in which every slot is NaN: one that is read before it is written spoils the logits that follow."""
    pool = PagedKVCache(model.config, num_blocks, block_size, dtype=model.transformer.dtype)
    pool.keys.fill_(math.nan)
    pool.values.fill_(math.nan)
    return pool


def random_tree(size: int, rng: random.Random) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """What a verify pass of `size` tokens reads: its mask [n, n], depths [n], and a path to accept."""
    parents = [rng.randrange(-1, node) for node in range(size - 1)]
    path = path_to(parents, rng.randrange(-1, size - 1))
    return verify_mask(parents), torch.tensor([0, *depths(parents)]), [0, *(node + 1 for node in path)]


class Twins:
    """The same sequences twice: in one paged pool, with blocks in random order, and each in a KVCache of its own."""

    def __init__(self, model: ms.Model, rows: int, block_size: int, seed: int, slots: int = 400):
        self.transformer, self.rng = model.transformer, random.Random(seed)
        self.pool = make_pool(model, slots // block_size, block_size)
        self.free = self.rng.sample(range(self.pool.num_blocks), self.pool.num_blocks)
        self.tables: list[list[int]] = [[] for _ in range(rows)]
        self.dense = [self.transformer.new_cache(1, 128) for _ in range(rows)]

    def length(self, row: int) -> int:
        return int(self.dense[row].lengths)

    def prepare(self, row: int, count: int) -> None:
        """Blocks for `count` more tokens."""
        size, table = self.pool.block_size, self.tables[row]
        while len(table) * size < self.length(row) + count:
            table.append(self.free.pop())

    def read(self, rows: list[int], counts: list[int], trees: list | None = None) -> None:
        """One paged pass, and one dense pass per row, over random tokens: the logits agree."""
        trees = [None] * len(rows) if trees is None else trees
        for row, count in zip(rows, counts, strict=True):
            self.prepare(row, count)
        lengths = [self.length(row) for row in rows]
        masks = [tree and tree[0] for tree in trees]
        offsets = [tree[1] if tree else torch.arange(n) for tree, n in zip(trees, counts, strict=True)]
        positions = torch.cat([length + offset for length, offset in zip(lengths, offsets, strict=True)])[None]
        tokens = torch.tensor([[self.rng.randrange(64) for _ in range(sum(counts))]])
        step = self.pool.open([self.tables[row] for row in rows], lengths, counts, masks)
        # Where all is causal, the pass itself must know the positions.
        logits = self.transformer(tokens, step, positions=positions if any(trees) else None).logits  # [1, N, V]
        parts = (split(x, counts) for x in (tokens, logits, positions))
        for row, mask, new, got, where in zip(rows, masks, *parts, strict=True):
            expected = self.transformer(new[None], self.dense[row], positions=where[None], mask=mask).logits[0]
            assert float((got - expected).abs().max()) <= TOLERANCE[logits.dtype], f"row {row}"  # fails on NaN too

    def accept(self, row: int, path: list[int], start: int) -> None:
        """A tree's path becomes a chain, in both memories."""
        self.pool.gather([self.tables[row]], [start], [path])
        self.dense[row].gather(torch.tensor([path]), torch.tensor([start]))
        self.rewind(row, start + len(path))

    def rewind(self, row: int, length: int) -> None:
        """Slots that no row holds any more become NaN, which shows that nothing attends to them."""
        self.dense[row].rewind(length)
        owned = {self.slot(r, at) for r in range(len(self.tables)) for at in range(self.length(r))}
        rest = sorted(set(range(self.pool.num_blocks * self.pool.block_size)) - owned)
        for memory in (self.pool.keys, self.pool.values):
            memory.flatten(1, 2)[:, rest] = math.nan

    def slot(self, row: int, position: int) -> int:
        block, offset = divmod(position, self.pool.block_size)
        return self.tables[row][block] * self.pool.block_size + offset

    def check_contents(self) -> None:
        """Keys and values in the pool are those of the contiguous caches, not only what one query made of them."""
        for row, dense in enumerate(self.dense):
            slots = [self.slot(row, at) for at in range(self.length(row))]
            for mine, theirs in ((self.pool.keys, dense.keys), (self.pool.values, dense.values)):
                difference = mine.flatten(1, 2)[:, slots] - theirs[:, 0, :, : len(slots)].transpose(1, 2)
                assert not slots or float(difference.abs().max()) <= TOLERANCE[mine.dtype]


# ---------------------------------------------------------------- the same logits as in contiguous memory


@pytest.mark.slow
@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_ragged_batches_equal_every_sequence_alone(dtype, block_size):
    """Prompt chunks, single tokens, drafts and trees in one pass; rollback between passes."""
    for seed in range(8):
        twins = Twins(MODELS[dtype], 3, block_size, seed)
        rng = twins.rng
        for _ in range(6):
            rows = rng.sample(range(len(twins.tables)), rng.randint(1, len(twins.tables)))
            counts = [rng.choice([1, 1, 4, 4, 7, 12]) for _ in rows]
            trees = [random_tree(4, rng) if count == 4 and rng.random() < 0.6 else None for count in counts]
            starts = [twins.length(row) for row in rows]
            twins.read(rows, counts, trees)
            for row, start, count, tree in zip(rows, starts, counts, trees, strict=True):
                if tree:
                    twins.accept(row, tree[2], start)
                elif count == 4:  # a verified chain: some of it is kept
                    twins.rewind(row, start + rng.randint(1, 4))
        twins.check_contents()


@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_paths_of_several_sequences_become_chains_in_one_call(tiny, block_size):
    """Paths of different lengths, one empty, one in place already; what follows is as after the chain."""
    starts, paths = [5, 9, 2, 3], [[0, 2, 5], [0, 1, 2, 3], [], [1]]
    twins = Twins(tiny, 4, block_size, seed=1)
    twins.read([0, 1, 2, 3], starts)
    twins.read([0, 1, 2, 3], [6] * 4)
    twins.pool.gather(twins.tables, starts, paths)
    for row, (start, path) in enumerate(zip(starts, paths, strict=True)):
        twins.dense[row].gather(torch.tensor([path], dtype=torch.long), torch.tensor([start]))
        twins.rewind(row, start + len(path))
    twins.check_contents()
    twins.read([3, 1, 2, 0], [1, 1, 1, 1])


def test_a_move_that_runs_out_of_memory_has_moved_nothing(tiny):
    """An engine repeats it for each sequence alone, and a path that has moved twice is another one."""

    class Full:
        def __getitem__(self, index):
            raise RuntimeError("no memory")

    pool = PagedKVCache(tiny.config, 4, 4, hidden_layers=(0,), dtype=torch.float64)
    before, states = [memory.normal_().clone() for memory in pool.memories], pool.memories.pop()
    pool.memories.append(Full())
    with pytest.raises(RuntimeError, match="no memory"):
        pool.gather([[0], [1]], [0, 0], [[1, 2], [2, 3]])
    assert all(map(torch.equal, [*pool.memories[:-1], states], before))


# ---------------------------------------------------------------- how the work is done


def test_rows_of_equal_width_share_one_attention_call(tiny, monkeypatch):
    """64 decode rows of all lengths, 3 rows to verify and a prompt chunk: three calls per layer."""
    calls = []

    def recorded(*arguments):
        attend = cache.attention_of_pass(*arguments)
        return lambda q, k, v: calls.append(q.shape) or attend(q, k, v)

    monkeypatch.setattr(paged, "attention_of_pass", recorded)
    counts = [1] * 30 + [5] + [1] * 34 + [17, 5, 5]
    twins = Twins(tiny, len(counts), 4, seed=0, slots=4000)
    twins.read(list(range(len(counts))), [1 + row % 13 for row in range(len(counts))])
    calls.clear()
    twins.read(list(range(len(counts))), counts)
    H, D = tiny.config.num_heads, tiny.config.head_dim
    assert sorted(calls) == sorted([(64, H, 1, D), (3, H, 5, D), (1, H, 17, D)] * tiny.config.num_layers)


def test_long_chunks_need_small_masks_alone(tiny, monkeypatch):
    """Chunks longer than a tile: whole prompts share a call, later ones by past, with masks of tiles."""
    made, real = [], cache.per_query_head
    monkeypatch.setattr(cache, "per_query_head", lambda v, g: made.append(v.shape) or real(v, g))
    for module in (cache, paged):
        monkeypatch.setattr(module, "TILE", 5)
    twins = Twins(tiny, 3, 4, seed=0)
    twins.read([0, 1], [12, 12])
    twins.read([0], [3])
    made.clear()
    twins.read([0, 1, 2], [12, 12, 12])  # after 15, 12 and no tokens
    assert made and all(batch == 1 and queries <= 5 for batch, queries, _ in made)


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(tables=[[0], [1]], lengths=[0, 3], counts=[4, 2]), "sequence 1: 5 tokens do not fit"),
        (dict(tables=[[0], [6]], lengths=[0, 0], counts=[1, 1]), "sequence 1: its table"),
        (dict(tables=[[0], [1]], lengths=[0], counts=[1, 1]), "2 tables, 1 lengths"),
        (dict(tables=[[0]], lengths=[0], counts=[2], masks=[torch.ones(2, 3).bool()]), "sequence 0: its mask"),
        (dict(tables=[[0, 1], [0, 1]], lengths=[5, 5], counts=[1, 1]), "sequences 0 and 1 both write to block 1"),
    ],
)
def test_a_pass_that_does_not_fit_its_tables_is_refused(tiny, arguments, message):
    with pytest.raises(ValueError, match=message):
        PagedKVCache(tiny.config, 6, 4, dtype=torch.float64).open(**arguments)
