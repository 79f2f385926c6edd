"""The kernels of growing.py and growing.py against their twins in torch: on a GPU, or in Triton's interpreter.

test_skinny.py runs this file in a process of its own, because Triton reads TRITON_INTERPRET once, when imported.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from mutants.patching import broken

from minispec.gpu import attention as fd
from minispec.gpu import tree_kernels as growing
from minispec.gpu.tree_kernels import Growing, GrowingByKernels

DEVICE = "cpu" if fd.INTERPRETED else "cuda"
DTYPES = (torch.float32, torch.float16) if fd.INTERPRETED else fd.DTYPES  # the interpreter knows no bfloat16


@pytest.fixture(autouse=True)
def fresh_memory_is_nan():
    """What the kernels leave unwritten, and what they read of it, shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)  # with it, torch fills what it allocates
    yield
    torch.use_deterministic_algorithms(False)


def random(*shape, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def whole(*numbers) -> torch.Tensor:
    return torch.tensor(numbers, device=DEVICE)


# ---------------------------------------------------------------- growing


def logits(B: int, rows: int, v: int, ties: bool, seed: int) -> torch.Tensor:
    """Random ones, so far apart that deep nodes are likelier than some above. With ties all rows are the same: x, then
    y and y, then x have the same probability."""
    return random(v, seed=7).expand(B, rows, v) if ties else 4 * random(B, rows, v, seed=seed)


def grown(
    cls,
    B: int,
    width: int,
    depth: int,
    most: int,
    v: int = 700,
    ties: bool = False,
    limits=(None, None),
    GrowingByKernels=GrowingByKernels,
):
    """All that a growing tree says: at every depth, and in the end."""
    ids = torch.randperm(2 * v, generator=torch.Generator().manual_seed(v))[:v].sort().values.to(DEVICE)
    trees = Growing(ids, width, most) if cls is Growing else GrowingByKernels(ids, width, most, depth)
    fresh = torch.arange(B, device=DEVICE)  # 0: nobody's, but some row there must be
    said = [trees.add(logits(B, depth + 1, v, ties, seed=0), fresh)]
    for n in range(1, depth):
        said.append(trees.add(logits(B, width, v, ties, seed=n)))
    return said, trees.prune(*limits)


def check_same(B: int, width: int, depth: int, most: int, GrowingByKernels=GrowingByKernels, **options) -> None:
    (said, found), (expected, tree) = (
        grown(cls, B, width, depth, most, GrowingByKernels=GrowingByKernels, **options)
        for cls in (GrowingByKernels, Growing)
    )
    for mine, theirs in zip(said, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(found, tree, strict=True))


@pytest.mark.parametrize(
    ("width", "depth", "most"), [(1, 1, 1), (1, 4, 4), (3, 1, 2), (5, 4, 15), (4, 3, 60), (8, 2, 9)]
)
def test_trees_grow_the_same(width, depth, most):
    for B in (1, 3):
        check_same(B, min(width, most), depth, most)


def check_ties(GrowingByKernels=GrowingByKernels) -> None:
    """Of equals the first are taken."""
    for most in range(4, 20):
        check_same(1, 4, 2, most, ties=True, GrowingByKernels=GrowingByKernels)


def test_ties():
    check_ties()


def check_limits(GrowingByKernels=GrowingByKernels) -> None:
    """Budgets and depths of their own, given as columns of a sheet; none at all; and more than there are."""
    sheet = whole([3, 2], [0, 3], [8, 1], [99, 99])
    for limits in (sheet.unbind(1), (sheet[:, 0], None), (None, sheet[:, 1]), (sheet[:, 0], whole(1, 2, 2, 1))):
        check_same(4, 3, 3, 8, limits=limits, GrowingByKernels=GrowingByKernels)
    check_same(1, 2, 2, 40, GrowingByKernels=GrowingByKernels)


def test_budgets_and_depths():
    check_limits()


def test_many_tokens_have_long_pages():
    """So many that one program could not hold the candidates of all rows."""
    check_same(1, 5, 2, 12, v=120_000)


def test_nan_chooses_tokens():
    """Logits of NaN make a draft of no use, but one whose tokens and parents exist: others are in the same launch."""
    ids, trees = torch.arange(700, device=DEVICE), GrowingByKernels(torch.arange(700, device=DEVICE), 3, 8, 2)
    scores = torch.full((2, 3, 700), torch.nan, device=DEVICE)
    scores[1] = random(3, 700)
    said = trees.add(scores, whole(1, 1)), trees.add(scores)
    tokens, parents = trees.prune()
    for row in (*(tokens for tokens, _, _ in said), tokens):
        assert ((row >= 0) & (row <= ids[-1])).all()
    assert ((parents >= -1) & (parents < torch.arange(8, device=DEVICE))).all()
    alone = GrowingByKernels(ids, 3, 8, 2)
    alone.add(scores[1:], whole(1)), alone.add(scores[1:])
    assert all(torch.equal(a, b[1:]) for a, b in zip(alone.prune(), (tokens, parents), strict=True))


def test_what_no_program_can_hold_grows_in_torch():
    assert GrowingByKernels.takes(torch.bfloat16, 5, 4) and GrowingByKernels.takes(torch.float32, 16, 8)
    assert not GrowingByKernels.takes(torch.float64, 5, 4) and not GrowingByKernels.takes(torch.float32, 17, 2)
    assert not GrowingByKernels.takes(torch.float32, 16, 9)


MUTANTS = {  # none that would read or write outside its memory: the interpreter would not survive it
    "of equals the last": ("(j[None, :] < i[:, None])  # of equals", "(j[None, :] > i[:, None])  # of equals"),
    "budgets are ignored": ("(ahead < tl.load(budgets + tree * budget_stride))", "(ahead < most)"),
    "everybody's own depth": ("tl.load(depths + tree * depth_stride)", "deepest"),
    "the deepest are in the way": (
        "other = _counting(scores + first, j, within)",
        "other = _counting(scores + first, j, n)",
    ),
    "parents by their old numbers": ("tl.load(numbers + first + parent, mask=parent >= 0, other=-1)", "parent"),
    "a score forgets its node": (
        "tl.store(scores + first + i, mine,",
        "tl.store(scores + first + i, tl.load(log_q + scratch + i, mask=there, other=0.0),",
    ),
    "rivals see each other": ("entry[None, :] - entries == r[:, None]", "entry[None, :] - entries <= r[:, None]"),
    "grandparents are forgotten": ("seen = tl.where(old, seen,", "seen = tl.where(old, 0 * seen,"),
    "always the first row": ("root = tl.maximum(tl.load(fresh + tree), 1) - 1", "root = tl.load(fresh + tree) * 0"),
    "the tail is left as it was": ("(rest < count)\n", "(rest < 0)\n"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name, tmp_path):
    mutant = broken(growing, *MUTANTS[name], tmp_path)
    with pytest.raises(AssertionError):
        check_limits(mutant.GrowingByKernels)
        check_ties(mutant.GrowingByKernels)


# ---------------------------------------------------------------- entries


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("d", [8, 100])
def test_entries(d, dtype):
    tokens, parents = whole([3, 0, 3], [9, 9, 1]), whole([1, 1, 0], [3, 0, 2])
    embedding, features = random(10, d, seed=1).to(dtype), 5 * random(2, 4, d, seed=2).to(dtype)
    gains = random(d, seed=3).to(dtype), random(d, seed=4).to(dtype)
    for before, above, eps in ((features, parents, 1e-5), (features[:, :3], None, 1e-5), (features, parents, 30.0)):
        expected = growing.enter_torch(tokens, embedding, before, above, gains, eps)
        found = growing.enter(tokens, embedding, before, above, gains, eps)
        assert torch.equal(found[1], expected[1])
        torch.testing.assert_close(found[0], expected[0])
    wide = growing.enter(tokens, embedding.double().float(), features, parents, gains, 1e-5)  # of another dtype
    torch.testing.assert_close(wide[0], growing.enter_torch(tokens, embedding, features, parents, gains, 1e-5)[0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("d", [8, 100])
def test_streams(d, dtype):
    """At slots of a pass, from a longer memory, into a part of a wider one; nothing beside it is touched."""
    states, slots = 9 * random(2, 7, d).to(dtype)[:, :6], whole([0, 5, 5], [3, 0, 1])
    mine, theirs = (torch.full((2, 4, 3 * d), 7.0, dtype=dtype, device=DEVICE) for _ in range(2))
    for at, rows in ((slots, 3), (torch.arange(4, device=DEVICE).expand(2, 4), 4)):
        for n, (a, b) in enumerate(pairwise(range(0, 3 * d + 1, d))):
            if n != 1:
                growing.stream(states, at, mine[:, :rows, a:b], 1e-5)
                growing.stream_torch(states, at, theirs[:, :rows, a:b], 1e-5)
        torch.testing.assert_close(mine, theirs)
        assert (mine[..., d : 2 * d] == 7).all()
