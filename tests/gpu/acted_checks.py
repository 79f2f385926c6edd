"""Whole captured cycles by the kernels, acted out by Triton's interpreter, against the same cycles in torch.

test_cycles.py runs this file in a process of its own, because Triton reads TRITON_INTERPRET once, when imported.
"""

from __future__ import annotations

import pytest
import torch
from all_drafters import random_dflash, random_eagle, random_medusa
from cycle_checks import EAGLE31, rewritten
from tiny_models import random_model

import minispec as ms
from minispec.gpu import attention as fd
from minispec.gpu import decode, fused, heads, tree_kernels
from minispec.gpu.decode import TreeSpeculator
from minispec.gpu.fused import FastTransformer

D, GREEDY = ms.drafters, ms.Sampling()
assert fd.INTERPRETED


def decoder(target: ms.Model, drafter: D.Drafter, k: int, sampling: ms.Sampling, lean: bool) -> TreeSpeculator:
    fast = FastTransformer(target.transformer, 2, 64, lean=lean)
    made = TreeSpeculator(fast, drafter.on_device(drafter, fast, k), k, sampling)
    made.start([[3, 1, 4, 1, 5], [2]], seed=0)
    return made


def by_kernels(patch: pytest.MonkeyPatch) -> None:
    """As if the CPU were a GPU that has them all."""
    for module in (fused, heads, decode):
        patch.setattr(module, "has_kernels", lambda device, dtype: True)
    for module in (fused, heads):
        patch.setattr(module, "best_attention", lambda device, dtype: fused.flash)


@pytest.mark.parametrize(
    ("name", "sampling"),
    [
        ("medusa", GREEDY),
        ("eagle", GREEDY),
        ("eagle", ms.Sampling(0.8, 5)),
        ("eagle 3.1", GREEDY),
        ("eagle, rewritten", GREEDY),
        ("dflash", GREEDY),
    ],
    ids=["medusa", "eagle", "eagle, sampled", "eagle 3.1", "eagle, rewritten", "dflash"],
)
def test_cycles_by_kernels_are_those_in_torch(name, sampling, monkeypatch):
    target = random_model(num_layers=2, vocab_size=8, dtype=torch.float32)  # few tokens, so that some are accepted
    drafter = {
        "medusa": lambda: D.Medusa(target, random_medusa(target), nodes=6),
        "eagle": lambda: D.Eagle(target, random_eagle(target), width=3, nodes=8),
        "eagle 3.1": lambda: D.Eagle(target, random_eagle(target, form=EAGLE31), width=3, nodes=8),
        "eagle, rewritten": lambda: D.Eagle(target, rewritten(target), width=3, nodes=8),
        "dflash": lambda: D.DFlash(target, random_dflash(target), nodes=6),
    }[name]()
    in_torch = decoder(target, drafter, 3, sampling, lean=False)
    by_kernels(monkeypatch)
    monkeypatch.setattr(tree_kernels.Growing, "prune", lambda *_: pytest.fail("a tree grew in torch"))
    acted = decoder(target, drafter, 3, sampling, lean=True)
    assert acted.kernels and acted.drafter.kernels and not in_torch.kernels
    acted.launch(2)
    monkeypatch.undo()
    in_torch.launch(2)
    for part in ("count", "log", "cycles", "sound", "taken"):
        assert torch.equal(getattr(acted, part), getattr(in_torch, part)), part
    for part in ("chances", "report"):
        torch.testing.assert_close(getattr(acted, part), getattr(in_torch, part), atol=1e-5, rtol=1e-5)
    assert acted.fetch() == in_torch.fetch() and int(acted.cycles) == 2
    assert torch.equal(acted.target.lengths, in_torch.target.lengths)
    assert name == "dflash" or acted.count.sum() > 6 + 2 * 2, "nothing was accepted"
