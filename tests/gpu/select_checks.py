"""The kernel of select.py against growth.likeliest: on a GPU, or on a CPU with TRITON_INTERPRET=1.

test_skinny.py runs this file in a process of its own, because Triton reads that variable once, when imported.
"""

from __future__ import annotations

import pytest
import torch
from mutants.patching import broken

from minispec.drafters import growth
from minispec.drafters.growth import grow_tensors, likeliest
from minispec.gpu import attention as fd
from minispec.gpu import tree_kernels as module
from minispec.gpu.tree_kernels import MOST_SCORES, likeliest_tokens, select

DEVICE = "cpu" if fd.INTERPRETED else "cuda"


def scores(*shape, levels: int | None = None, seed: int = 0) -> torch.Tensor:
    """Random scores; of so many different values, which makes ties."""
    generator = torch.Generator().manual_seed(seed)
    if levels:
        return torch.randint(levels, shape, generator=generator).float().to(DEVICE) - levels
    return torch.randn(*shape, generator=generator).to(DEVICE)


@pytest.fixture(autouse=True)
def the_kernel_alone(monkeypatch):
    """Where the kernel should answer, nothing else does. What it leaves unwritten shows."""
    monkeypatch.setattr("minispec.gpu.tree_kernels.growth.likeliest", lambda *_: pytest.fail("the reference answered"))
    torch.use_deterministic_algorithms(True, warn_only=True)  # with it, torch fills what it allocates
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 63, 65, 300])
def test_it_is_the_reference(n):
    for levels in (None, 1, 3):
        for count in {1, min(3, n), n // 2 or 1, n}:
            x = scores(3, n, levels=levels, seed=n + count)
            assert torch.equal(select(x, count), likeliest(x, count)), (levels, count)


def check_borders(select=select) -> None:
    """Ties across tiles; more asked for than there are; −∞, which comes last; and NaN, which the reference's sort would
    take for the highest: here it must only be harmless, so it counts as −∞, and every answer is a place."""
    x = scores(2, 100, levels=2)
    assert torch.equal(select(x, 70), likeliest(x, 70))
    x = scores(2, 20)
    assert select(x, 29).tolist() == [list(range(20))] * 2
    x[0, 3:] = x[1, :17] = -torch.inf
    assert torch.equal(select(x, 5), likeliest(x, 5)) and select(x, 5)[0].tolist() == [0, 1, 2, 3, 4]
    x = scores(4, 40, levels=7)
    x[0, ::3], x[1], x[2, 0], x[3, 39] = torch.nan, torch.nan, torch.nan, torch.nan
    for count in (1, 8, 30, 40):
        assert torch.equal(select(x, count), likeliest(x.nan_to_num(nan=-torch.inf), count))


def test_ties_nan_and_too_many():
    check_borders()


MUTANTS = {  # none that would write past its memory: the interpreter would not survive it
    "of equals the last": ("j[None, :] < i[:, None]", "j[None, :] > i[:, None]"),
    "one too few": ("other=count) < count)", "other=count) + 1 < count)"),
    "padding is ahead": ('mask=j < n, other=float("-inf")', 'mask=j < n, other=float("inf")'),
    "more than there are": ("min(count, n), max(16", "count, max(16"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name, tmp_path):
    mutant = broken(module, *MUTANTS[name], tmp_path)
    with pytest.raises((AssertionError, IndexError)):
        check_borders(mutant.select)


def test_strided_scores():
    x = scores(40, 3, seed=1).T
    assert torch.equal(select(x, 6), likeliest(x, 6))


def test_a_tree_grown_by_it_is_the_tree():
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(50, (2, 4, 6), generator=generator).to(DEVICE)
    log_q = -torch.randint(1, 4, (2, 4, 6), generator=generator).float().to(DEVICE)  # with ties
    expand = lambda depth, *_: (tokens[:, :1], log_q[:, :1]) if depth == 0 else (tokens, log_q)  # noqa: E731
    mine, theirs = (grow_tensors(expand, 3, 4, 20, select=way) for way in (select, likeliest))
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_what_no_program_can_hold_goes_to_the_reference(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "minispec.gpu.tree_kernels.growth.likeliest", lambda x, count: asked.append(x.shape) or likeliest(x, count)
    )
    select(scores(1, MOST_SCORES + 1), 3)
    select(scores(1, 8).double(), 3)
    assert asked == [(1, MOST_SCORES + 1), (1, 8)]


@pytest.mark.parametrize("v", [100, 2048, 3000])
def test_the_likeliest_tokens_are_the_reference_s(v, monkeypatch):
    logits, ids = scores(2, 3, v), torch.randperm(5000, generator=torch.Generator().manual_seed(v))[:v].to(DEVICE)
    expected = growth.likeliest_tokens(logits, ids, 8)
    monkeypatch.setattr(
        "minispec.gpu.tree_kernels.growth.likeliest_tokens", lambda *_: pytest.fail("the reference answered")
    )
    tokens, log_q = likeliest_tokens(logits, ids, 8)
    assert torch.equal(tokens, expected[0]) and (log_q - expected[1]).abs().max() < 1e-5
