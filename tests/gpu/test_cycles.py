"""Captured cycles with token trees, with drafts of the host and of batches: on a CPU unrecorded, and cycle by cycle the
eager loop's. Broken variants are noticed."""

from __future__ import annotations

import cycle_checks as checks
import pytest
import torch
from fast_checks import pair
from test_fast import NoLooking

import minispec as ms
from minispec.gpu.decode import TreeSpeculator
from minispec.gpu.fused import FastTransformer
from minispec.gpu.heads import on_device

pytestmark = pytest.mark.slow

D = ms.drafters


@pytest.mark.parametrize("check", checks.CHECKS)
def test_cycles(check):
    checks.CHECKS[check]()


@pytest.mark.nightly
@pytest.mark.parametrize("check", ["shipped", "trees", "ends", "hosted", "batches"])
def test_every_drafter(check):
    getattr(checks, f"check_{check}")()


class NoWaiting(NoLooking):
    """To assign a number to a slice makes a tensor of it on a CPU, which does not happen on a GPU."""

    FORBIDDEN = tuple(name for name in NoLooking.FORBIDDEN if name != "lift_fresh")


@pytest.mark.parametrize("sampling", [ms.Sampling(), ms.Sampling(0.8, 9, 0.9, 0.01)], ids=str)
def test_no_launch_looks_at_a_number(sampling):
    """Nor does it leave the memory that a capture knows; to do it twice from one state is to do the same twice."""
    transformer = pair()[0].transformer
    for name in ("medusa", "eagle", "dflash"):
        target = FastTransformer(transformer, 2, 64)
        drafter = checks.trees()[name]
        decoder = TreeSpeculator(target, on_device(drafter)(drafter, target, 3), 3, sampling, [42])
        decoder.start([[3, 1, 4], [1, 5]], seed=0, min_new_tokens=2)
        addresses = [tensor.data_ptr() for tensor in decoder.state()]
        with NoWaiting():
            decoder.launch(2)
        assert [tensor.data_ptr() for tensor in decoder.state()] == addresses  # changed in place
        before = [tensor.clone() for tensor in decoder.state()]
        texts = []
        for _ in range(2):
            decoder.step()
            texts.append(decoder.text.clone())
            for tensor, value in zip(decoder.state(), before, strict=True):
                tensor.copy_(value)
        assert torch.equal(*texts), f"{name}: a warm-up leaves traces"


def test_two_sequences_at_once_are_each_alone():
    """Memory of two rows, as a device would decode a batch: row by row the cycles of one prompt, greedy."""
    target, _ = checks.models()
    prompts = [[3, 1, 4, 1, 5], [2, 6, 5]]
    for name in ("medusa", "eagle", "dflash"):
        drafter, quick = checks.trees()[name], FastTransformer(target.transformer, 2, 64)
        decoder = TreeSpeculator(quick, on_device(drafter)(drafter, quick, 3), 3)
        decoder.start(prompts)
        both = zip(*((decoder.ask(), decoder.answer())[1] for _ in range(6)), strict=True)  # six cycles of each row
        for prompt, cycles in zip(prompts, both, strict=True):
            out = ms.speculate(checks.slow(target), prompt, drafter, 3, 40, ignore_eos=True)
            assert [checks.what(c)[:5] for c in cycles] == [checks.what(c)[:5] for c in out.trace.cycles[:6]], name
