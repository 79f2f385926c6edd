"""The cache: forgetting is exact, rows keep their own lengths, a tree's path becomes a chain."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import minispec as ms
from minispec import cache as cache_module
from minispec.generate import pad


def contents(cache: ms.KVCache, row: int) -> torch.Tensor:
    """What a row really remembers: keys and values [2, L, Hkv, length, D]."""
    length = int(cache.lengths[row])
    return torch.stack([cache.keys[:, row, :, :length], cache.values[:, row, :, :length]])


def random_tokens(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 64, shape, generator=torch.Generator().manual_seed(seed))


# ---------------------------------------------------------------- rewind


@pytest.mark.slow
@given(
    batch=st.integers(1, 3),
    steps=st.lists(st.tuples(st.integers(1, 5), st.tuples(*[st.floats(0, 1)] * 3)), min_size=1, max_size=6),
    seed=st.integers(0, 1000),
)
def test_rows_rewound_anywhere_equal_rows_alone(tiny, batch, steps, seed):
    """Passes of any width, each row rewound to its own length: what stays is what the row's own tokens make."""
    cache, rows = tiny.transformer.new_cache(batch, 64), [[] for _ in range(batch)]
    for number, (width, fractions) in enumerate(steps):
        tokens = random_tokens(batch, width, seed=seed + number)
        logits = tiny.transformer(tokens, cache).logits
        for row in range(batch):
            rows[row] += tokens[row].tolist()
            alone = tiny.transformer(torch.tensor([rows[row]])).logits[0, -width:]
            assert (logits[row] - alone).abs().max() <= 1e-10
            rows[row] = rows[row][: int(fractions[row] * len(rows[row]))]
        cache.rewind(torch.tensor([len(row) for row in rows]))
        assert cache.lengths.tolist() == [len(row) for row in rows]


def test_nothing_attends_to_what_lies_past_the_length(tiny):
    """Whatever a slot past the length holds must not leak: rewinding only moves a number."""
    tokens = random_tokens(2, 6)
    clean, dirty = (tiny.transformer.new_cache(2, 16) for _ in range(2))
    dirty.keys.fill_(1e6)
    dirty.values.fill_(-1e6)
    counts = torch.tensor([6, 3])
    for cache in (clean, dirty):
        tiny.transformer(tokens, cache, counts=counts)
    a, b = (tiny.transformer(random_tokens(2, 2, seed=1), cache).logits for cache in (clean, dirty))
    assert torch.equal(a, b)


# ---------------------------------------------------------------- prefill without a mask


def masked_logits(transformer, tokens, caches=None, **options) -> torch.Tensor:
    """The reference: the same pass with its causal mask written out, which goes through masked attention."""
    T = tokens.shape[1]
    return transformer(tokens, caches, mask=torch.ones(T, T, dtype=torch.bool).tril(), **options).logits


@pytest.fixture
def masks(monkeypatch) -> list[int]:
    """How many numbers each mask has that a pass makes; tiles are of 5 queries, so that small passes have several."""
    made, real = [], cache_module.per_query_head
    monkeypatch.setattr(cache_module, "TILE", 5)
    monkeypatch.setattr(cache_module, "per_query_head", lambda v, g: made.append(v.numel()) or real(v, g))
    return made


@pytest.mark.parametrize("heads, kv_heads", [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("lengths", [[40], [33, 33], [17, 1, 40]])
def test_a_prompt_needs_no_mask(make_model, masks, heads, kv_heads, lengths):
    """Prompts that start at position 0, padded at their ends: the logits are those of masked attention."""
    model = make_model(num_heads=heads, num_kv_heads=kv_heads).transformer
    tokens, counts = pad([random_tokens(n, seed=n).tolist() for n in lengths], "cpu")
    ours, reference = (model.new_cache(len(lengths), 48) for _ in range(2))
    logits = [model(tokens).logits, model(tokens, ours, counts=counts).logits]
    assert not masks
    expected = masked_logits(model, tokens, reference, counts=counts)
    assert masks
    for found in logits:
        assert torch.allclose(found, expected, rtol=0, atol=1e-12)
    for row in range(len(lengths)):
        assert torch.allclose(contents(ours, row), contents(reference, row), rtol=0, atol=1e-12)


@pytest.mark.parametrize("heads, kv_heads", [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("batch, past, count", [(1, 3, 12), (1, 20, 15), (2, 7, 11), (3, 1, 6), (2, 9, 1)])
def test_a_chunk_after_one_past_needs_small_masks_alone(make_model, masks, heads, kv_heads, batch, past, count):
    model = make_model(num_heads=heads, num_kv_heads=kv_heads).transformer
    ours, reference = (model.new_cache(batch, 40) for _ in range(2))
    for cache in (ours, reference):
        model(random_tokens(batch, past, seed=1), cache)
    assert not masks
    chunk = random_tokens(batch, count, seed=2)
    logits = model(chunk, ours).logits
    assert max(masks, default=0) <= 5 * (past + count)  # a tile's, for all sequences and heads; a single token's: none
    assert torch.allclose(logits, masked_logits(model, chunk, reference), rtol=0, atol=1e-12)


# ---------------------------------------------------------------- rows, gather


def test_rows_are_a_copy_of_the_chosen_ones(tiny):
    cache = tiny.transformer.new_cache(4, 16)
    tiny.transformer(random_tokens(4, 5), cache, counts=torch.tensor([5, 2, 4, 3]))
    kept = cache.rows(torch.tensor([3, 1]))
    assert kept.batch == 2 and kept.capacity == 16 and kept.lengths.tolist() == [3, 2]
    assert torch.equal(contents(kept, 0), contents(cache, 3)) and torch.equal(contents(kept, 1), contents(cache, 1))
    tokens = random_tokens(4, 1, seed=1)
    before = [contents(cache, row) for row in range(4)]
    few = tiny.transformer(tokens[[3, 1]], kept).logits
    assert cache.lengths.tolist() == [5, 2, 4, 3]  # the original did not move
    assert all(torch.equal(contents(cache, row), before[row]) for row in range(4))
    whole = tiny.transformer(tokens, cache).logits
    assert (few - whole[[3, 1]]).abs().max() <= 1e-10


@pytest.mark.slow
@given(data=st.data(), seed=st.integers(0, 1000))
def test_gather_turns_a_path_of_a_tree_into_a_chain(tiny, data, seed):
    lengths = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3), label="prefix lengths")
    size = data.draw(st.integers(1, 7), label="nodes")
    count = data.draw(st.integers(1, size), label="nodes on the path")
    batch = len(lengths)
    # The chosen nodes of a row are each other's parents; all others hang from the prefix.
    path = torch.tensor([sorted(data.draw(st.permutations(range(size)))[:count]) for _ in range(batch)])  # [B, n]
    mask = torch.eye(size, dtype=torch.bool).repeat(batch, 1, 1)  # [B, T, T]
    depth = torch.zeros(batch, size, dtype=torch.long)
    for row in range(batch):
        for at, node in enumerate(path[row].tolist()):
            mask[row, node, path[row, :at]] = True
            depth[row, node] = at

    prefix, nodes = random_tokens(batch, max(lengths), seed=seed), random_tokens(batch, size, seed=seed + 1)
    cache = tiny.transformer.new_cache(batch, 20)
    tiny.transformer(prefix, cache, counts=torch.tensor(lengths))
    start = cache.lengths.clone()
    tiny.transformer(nodes, cache, mask=mask, positions=start[:, None] + depth)
    cache.gather(path, start)
    cache.rewind(start + count)

    chain = tiny.transformer.new_cache(batch, 20)
    tiny.transformer(prefix, chain, counts=torch.tensor(lengths))
    tiny.transformer(nodes.gather(1, path), chain)
    assert torch.equal(cache.lengths, chain.lengths)
    for row in range(batch):
        assert torch.allclose(contents(cache, row), contents(chain, row), rtol=0, atol=1e-10)
    new = random_tokens(batch, 2, seed=seed + 2)
    a, b = (tiny.transformer(new, c).logits for c in (cache, chain))
    assert (a - b).abs().max() <= 1e-10


# ---------------------------------------------------------------- errors


def test_a_full_cache_says_so_before_it_writes(tiny):
    cache = tiny.transformer.new_cache(1, 4)
    tiny.transformer(random_tokens(1, 3), cache)
    before = contents(cache, 0)
    with pytest.raises(ValueError, match="capacity"):
        tiny.transformer(random_tokens(1, 2), cache)
    assert cache.lengths.tolist() == [3] and torch.equal(contents(cache, 0), before)
    tiny.transformer(random_tokens(1, 1), cache)  # the last slot is a slot
