"""The kernels of tree_kernels.py and between.py against their twins in torch: on a GPU, or in Triton's interpreter.

test_skinny.py runs this file in a process of its own, because Triton reads TRITON_INTERPRET once, when imported.
"""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from tiny_models import random_model

from minispec.cache import KVCache
from minispec.drafters import growth
from minispec.gpu import attention as fd
from minispec.gpu import tree_kernels as kernels
from minispec.gpu.decode import TreeSpeculator
from minispec.gpu.fused import FastTransformer, Weights, norm, turn
from minispec.gpu.products import add_norm, gated, turn_and_store
from minispec.gpu.tree_kernels import laid_out_torch, pruned
from minispec.model import Config, rope_at
from minispec.sampling import best_tokens
from minispec.tree import ancestors
from minispec.verify import tree_batch

DEVICE = "cpu" if fd.INTERPRETED else "cuda"
CONFIG = Config(
    vocab_size=8,
    hidden_size=8,
    intermediate_size=8,
    num_layers=2,
    num_heads=6,
    num_kv_heads=2,
    head_dim=12,
    max_length=64,
)
SHAPES = [(1, 1), (5, 3), (15, 4), (31, 7)]  # nodes, depth


def some_parents(n: int, depth: int, seed: int) -> list[int]:
    choose, parents, depths = random.Random(seed), [], []
    while len(parents) < n:
        parent = choose.randrange(-1, len(parents))
        if (below := 1 if parent < 0 else depths[parent] + 1) <= depth:
            parents.append(parent)
            depths.append(below)
    return parents


def trees(n: int, depth: int) -> torch.Tensor:
    return torch.tensor([some_parents(n, depth, seed) for seed in range(3)], device=DEVICE)


def randn(*shape, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@pytest.mark.parametrize(("n", "depth"), SHAPES)
def test_a_pass_is_laid_out(n, depth):
    parents, text = trees(n, depth), torch.arange(60, device=DEVICE).view(3, 20)
    tokens, count = 100 + torch.arange(3 * n, device=DEVICE).view(3, n), torch.tensor([1, 20, 7], device=DEVICE)
    expected = laid_out_torch(tokens, parents, text, count, depth)
    for mine, theirs in zip(kernels.laid_out(tokens, parents, text, count, depth), expected, strict=True):
        assert torch.equal(mine, theirs)
    new, mask, offsets = expected
    assert new[:, 0].tolist() == [0, 39, 46] and torch.equal(new[:, 1:], tokens)
    above = ancestors(parents, depth)
    assert torch.equal(mask[:, 1:, 1:], above) and mask[:, :, 0].all() and not mask[:, 0, 1:].any()
    assert torch.equal(offsets[:, 1:], above.sum(-1)) and not offsets[:, 0].any()


@pytest.mark.parametrize(("n", "depth"), SHAPES)
def test_a_walk_is_greedy_verification(n, depth):
    """Few tokens, so that siblings are often equal and paths are long."""
    parents, accepted_at_all = trees(n, depth), 0
    for seed in range(4):
        tokens = torch.randint(3, (3, n), generator=torch.Generator().manual_seed(seed)).to(DEVICE)
        logits = randn(3, n + 1, 50, seed=seed)
        logits[..., 3:] -= 9
        expected, after = tree_batch(logits, tokens, parents, ancestors(parents), None, None)
        best, sound = best_tokens(logits), torch.ones((), dtype=torch.bool, device=DEVICE)
        path, verified, run, added, line, given = kernels.walk(best, tokens, parents, depth, sound)
        assert torch.equal(line, torch.cat([tokens, parents, expected.long(), after[:, None]], 1)) and sound
        assert torch.equal(added, expected.sum(-1) + 1) and torch.equal(verified, F.pad(path + 1, (1, 0)))
        assert torch.equal(given, (tokens == best.gather(1, parents + 1)).double())
        for b in range(3):
            nodes = expected[b].nonzero()[:, 0].tolist()
            assert path[b].tolist() == [*nodes, *range(len(nodes), depth)]
            assert run[b, : len(nodes) + 1].tolist() == [*tokens[b, nodes].tolist(), int(after[b])]
        accepted_at_all += int(expected.sum())
    assert accepted_at_all
    best[1, n] = -1  # NaN
    kernels.walk(best, tokens, parents, depth, sound)
    assert not sound


def test_the_end_of_a_cycle():
    """Text, lengths, log and report, as TreeSpeculator.commit leaves them in torch."""
    B, k, nodes = 3, 3, 5
    drafter = SimpleNamespace(nodes=nodes, hidden_layers=(), state=list)
    target = FastTransformer(random_model(num_layers=1).transformer.to(DEVICE), B, 64)
    mine, theirs = (TreeSpeculator(target, drafter, k) for _ in range(2))
    whole = lambda *shape, seed: torch.randint(50, shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)  # noqa: E731
    for cycle in range(3):
        run, added, line = whole(B, k + 1, seed=cycle), 1 + whole(B, seed=cycle) % (k + 1), whole(B, 16, seed=9 - cycle)
        chances, lengths = randn(B, nodes, seed=cycle).double(), []
        for decoder, by in ((mine, kernels), (theirs, None)):
            decoder.kernels = by
            decoder.sound.fill_(cycle < 2)
            decoder.commit(run, added, line, chances)
            lengths.append(target.lengths.clone())
        assert torch.equal(*lengths)
        for name in ("text", "count", "log", "chances", "cycles", "report"):
            assert torch.equal(getattr(mine, name), getattr(theirs, name)), name
    assert mine.count.min() > 3 and mine.report[:, -1].tolist() == [0.0] * B


def test_a_path_is_moved_together():
    one, other = (KVCache(CONFIG, 3, 64, device=DEVICE) for _ in range(2))
    for a, b, seed in ((one.keys, other.keys, 1), (one.values, other.values, 2)):
        a.copy_(randn(*a.shape, seed=seed))
        b.copy_(a)
    path, start = torch.tensor([[0, 1, 2], [2, 5, 6], [1, 2, 9]]).to(DEVICE), torch.tensor([3, 10, 1]).to(DEVICE)
    one.gather(path, start)
    kernels.move(other.keys, other.values, path, start)
    assert torch.equal(one.keys, other.keys) and torch.equal(one.values, other.values)


def test_the_best_token_of_every_row():
    x = randn(5, 5000)
    x[1, 7], x[2, 9], x[3] = torch.nan, torch.inf, -torch.inf
    x[4, [40, 4000]] = 99.0
    assert torch.equal(kernels.best_of(x), best_tokens(x)) and kernels.best_of(x)[1:].tolist() == [-1, -1, -1, 40]


@pytest.mark.parametrize("shared", [False, True])
def test_levels_grow_the_same_tree(shared):
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 1 if shared or depth == 0 else 3, 4) for depth in range(4)]
    log_q = [-0.25 * torch.randint(5, shape, generator=generator).float().to(DEVICE) for shape in shapes]
    tokens = [torch.randint(99, shape, generator=generator).to(DEVICE) for shape in shapes]
    expand = lambda depth, *_: (tokens[depth], log_q[depth])  # noqa: E731
    for found, expected in zip(
        growth.grow_tensors(expand, 4, 3, 9, grow_level=kernels.level, prune=pruned),
        growth.grow_tensors(expand, 4, 3, 9),
        strict=True,
    ):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("paged", [False, True])
def test_rope_and_the_write_to_memory(paged):
    B, T, D = 3, 5, CONFIG.head_dim
    cos, sin = (x[0, 0, :, None].contiguous() for x in rope_at(CONFIG, torch.arange(64)[None], torch.float32))
    cos, sin, qkv = cos.to(DEVICE), sin.to(DEVICE), randn(B, T, 10 * D)
    positions = torch.tensor([[3, 9, 4, 4, 63], [0, 1, 2, 3, 4], [5, 5, 5, 6, 6]]).to(DEVICE)
    slots = torch.tensor([[0, 4, 2, 31, 7], [1, 2, 3, 4, 5], [9, 8, 7, 6, 5]]).to(DEVICE)
    if paged:  # blocks, whose slots come before their heads
        memory = [torch.zeros(7, 32, 2, D, device=DEVICE).transpose(1, 2) for _ in range(4)]
        rows = torch.tensor([[0] * T, [3] * T, [6] * T]).to(DEVICE)
    else:
        memory, rows = (
            [torch.zeros(B, 2, 32, D, device=DEVICE) for _ in range(4)],
            torch.arange(B, device=DEVICE)[:, None],
        )
    expected = turn(qkv, Weights(*[None] * 8), *memory[:2], rows, slots, cos[positions], sin[positions], CONFIG)
    found = turn_and_store(qkv, cos, sin, positions, *memory[2:], rows, slots)
    assert (found - expected).abs().max() < 1e-6 and memory[0].any()
    for a, b in zip(memory[:2], memory[2:], strict=True):
        assert (a - b).abs().max() < 1e-6


@pytest.mark.parametrize("d", [8, 24, 100])
def test_a_sum_and_its_norm(d):
    x, delta, gain = randn(3, 5, d), randn(3, 5, d, seed=1), randn(d, seed=2)
    total, normed = add_norm(x, delta, gain, 1e-5)
    assert torch.equal(total, x + delta)
    assert (normed - norm(x + delta, gain, 1e-5)).abs().max() < 1e-6
    _, small = add_norm(x * 1e-4, delta * 1e-4, gain, 1e-2)  # where eps decides
    assert (small - norm((x + delta) * 1e-4, gain, 1e-2)).abs().max() < 1e-8


@pytest.mark.parametrize("n", [7, 1024, 1500])
def test_swiglu(n):
    gate_up = 4 * randn(2, 3, 2 * n)
    gate, up = gate_up.chunk(2, -1)
    assert (gated(gate_up) - F.silu(gate) * up).abs().max() < 1e-5
