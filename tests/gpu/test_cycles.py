"""Captured cycles with token trees, with drafts of the host and of batches: on a CPU unrecorded, and cycle by cycle the
eager loop's. Broken variants are noticed."""

import cycle_checks as checks
import pytest

import minispec as ms
from minispec.gpu.decode import TreeSpeculator
from minispec.gpu.heads import on_device
from minispec.gpu.weights import FastTransformer

pytestmark = pytest.mark.slow

D = ms.drafters


@pytest.mark.parametrize("check", checks.CHECKS)
def test_cycles(check):
    checks.CHECKS[check]()


@pytest.mark.nightly
@pytest.mark.parametrize("check", ["trees", "ends", "hosted", "batches"])
def test_every_drafter(check):
    getattr(checks, f"check_{check}")()


def test_two_sequences_at_once_are_each_alone():
    """Memory of two rows, as a device would decode a batch: row by row the cycles of one prompt, greedy."""
    target, _ = checks.models()
    prompts = [[3, 1, 4, 1, 5], [2, 6, 5]]
    for name in ("medusa", "eagle", "dflash"):
        drafter, quick = checks.trees()[name][1], FastTransformer(target.transformer, 2, 64)
        decoder = TreeSpeculator(quick, on_device(drafter)(drafter, quick, 3), 3)
        decoder.start(prompts)
        both = zip(*((decoder.ask(), decoder.answer())[1] for _ in range(6)), strict=True)  # six cycles of each row
        for prompt, cycles in zip(prompts, both, strict=True):
            out = ms.speculate(checks.slow(target), prompt, drafter, 3, 40, ignore_eos=True)
            assert [checks.what(c)[:5] for c in cycles] == [checks.what(c)[:5] for c in out.trace.cycles[:6]], name
