"""The kernels of pages.py against torch: on a GPU, or on a CPU with TRITON_INTERPRET=1.

test_skinny.py runs this file in a process of its own, because Triton reads that variable once, when imported.
"""

from __future__ import annotations

import pytest
import torch
from mutants.patching import broken

from minispec.gpu import attention as fd
from minispec.gpu import pages as module

DEVICE = "cpu" if fd.INTERPRETED else "cuda"
LENGTHS = 1, 5, 1023, 1024, 1025, 3000, 5000


def number(x: float) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64, device=DEVICE)


def scores(*shape: int, dtype=torch.float32, seed: int = 0) -> torch.Tensor:
    return (4 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))).to(DEVICE, dtype)


def check_softmax(softmax=module.softmax) -> None:
    """For all lengths and dtypes, with forbidden tokens and whole forbidden pages."""
    for V in LENGTHS:
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            x = scores(2, 3, V, dtype=dtype, seed=V)
            x[0, 1, V // 3 :], x[1, 2, : V - 1] = -torch.inf, -torch.inf
            x[0, 1, 0] = 1.0
            for temperature in (1.0, 0.3, 2.5):
                expected = (x.float() / temperature).softmax(-1)
                torch.testing.assert_close(softmax(x, number(temperature)), expected, rtol=2e-6, atol=1e-9)


def test_softmax():
    check_softmax()


def test_rows_of_a_larger_tensor():
    """A slice of logits is not contiguous, or begins elsewhere."""
    x = scores(2, 4, 1500)
    torch.testing.assert_close(module.softmax(x[:, 1], number(1.0)), x[:, 1].softmax(-1))
    p = x.softmax(-1)
    u = torch.full((2,), 0.4, dtype=torch.float64, device=DEVICE)
    assert torch.equal(module.pick(p[:, 2], u), module.pick_torch(p[:, 2].contiguous(), u))


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
@pytest.mark.parametrize("place", [0, 700, 2999])
def test_one_wrong_number_spoils_its_row_and_no_other(wrong, place):
    x = scores(2, 3000)
    x[1, place] = wrong
    p = module.softmax(x, number(1.0))
    assert bool(p[1].isnan().all()) and bool(p[0].isfinite().all())
    assert not bool(module.whole(p)) and bool(module.whole(p[:1]))


def test_a_row_without_any_token_is_no_distribution():
    assert bool(module.softmax(torch.full((1, 2000), -torch.inf, device=DEVICE), number(1.0)).isnan().all())


def check_pick(pick=module.pick) -> None:
    """Numbers that float32 adds without rounding: the very token that a running total finds."""
    generator = torch.Generator().manual_seed(0)
    for V in LENGTHS:
        counts = torch.randint(0, 4, (16, V), generator=generator)
        counts[:, torch.rand(V, generator=generator) < 0.5] = 0
        counts[torch.arange(16), torch.randint(V, (16,), generator=generator)] = 3
        counts[:2, :-1] = 0  # all on the last token
        counts[:2, -1] = 1
        p = counts.float().to(DEVICE)
        for u in (
            torch.rand(16, generator=generator, dtype=torch.float64),
            torch.zeros(16),
            torch.full((16,), 0.5),
            torch.full((16,), 1 - 2**-53),
        ):
            u = u.double().to(DEVICE)
            totals = p.double().cumsum(-1)
            expected = torch.searchsorted(totals, u[:, None] * totals[:, -1:], right=True)[:, 0]
            last = torch.where(p > 0, torch.arange(V, device=DEVICE), 0).amax(-1)
            assert torch.equal(pick(p, u), torch.minimum(expected, last)), V
    torch.testing.assert_close(pick(p / p.sum(-1, keepdim=True), u), pick(p, u))  # it need not add up to one


def test_pick():
    check_pick()


def test_no_rounding_lands_on_an_impossible_token():
    p = scores(64, 3000).softmax(-1)
    p[:, 1024:] = 0  # pages without anything
    for u in (1 - 2**-53, 1 - 2**-30, 0.999999):
        token = module.pick(p, torch.full((64,), u, dtype=torch.float64, device=DEVICE))
        assert bool((p.gather(1, token[:, None]) > 0).all())


DIVIDED = "    x = x / tl.load(temperature).to(tl.float32)\n"
MUTANTS = {
    "padding has a score": (
        f'-inf")).to(tl.float32)\n{DIVIDED}    top',
        f'0")).to(tl.float32)\n{DIVIDED}    top',
        check_softmax,
    ),
    "a forbidden page is NaN": ('tl.where(top == float("-inf"), 0.0, top)', "top", check_softmax),
    "pages weigh the same": ("tl.sum(part * tl.exp(top - highest), 0)", "tl.sum(part, 0)", check_softmax),
    "the temperature comes once": (DIVIDED + "    tl.store(probs", "    tl.store(probs", check_softmax),
    "passes, not reaches": ("(tl.cumsum(sums, 0) <= goal)", "(tl.cumsum(sums, 0) < goal)", check_pick),
    "what came before is forgotten": ("goal - before).to", "goal).to", check_pick),
    "of a page, not of all": ("* tl.sum(sums, 0)", "", check_pick),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name, tmp_path):
    old, new, check = MUTANTS[name]
    mutant = broken(module, old, new, tmp_path)
    with pytest.raises(AssertionError):
        check(mutant.softmax if check is check_softmax else mutant.pick)
