"""Captured cycles with token trees, with drafts of the host and of batches: on a CPU unrecorded, and cycle by cycle the
eager loop's. Broken variants are noticed."""

from __future__ import annotations

import cycle_checks as checks
import pytest
import torch
from fast_checks import pair
from mutants.patching import Mutant, assert_caught, rewrite
from test_fast import NoLooking
from test_flash_decode import needs_interpreter, needs_triton, run_checks

import minispec as ms
from minispec.gpu import backend as hosted
from minispec.gpu import fused, tree_kernels
from minispec.gpu.backend import VerifyPasses
from minispec.gpu.decode import TreeSpeculator
from minispec.gpu.fused import FastTransformer
from minispec.gpu.heads import DFlashOnDevice, EagleOnDevice, MedusaOnDevice
from minispec.gpu.tree_kernels import Growing

pytestmark = pytest.mark.slow

D = ms.drafters


@pytest.mark.parametrize("check", checks.CHECKS)
def test_cycles(check):
    checks.CHECKS[check]()


@pytest.mark.parametrize(
    "check",
    [
        checks.check_shipped,
        checks.check_trees,
        checks.check_ends,
        checks.check_memory_of_trees,
        checks.check_hosted,
        checks.check_batches,
    ],
    ids=lambda check: check.__name__,
)
def test_every_drafter(check):
    check()


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
        decoder = TreeSpeculator(target, drafter.on_device(drafter, target, 3), 3, sampling, [42])
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
        decoder = TreeSpeculator(quick, drafter.on_device(drafter, quick, 3), 3)
        decoder.start(prompts)
        decoder.launch(6)
        new = decoder.fetch()
        for row, prompt in enumerate(prompts):
            out = ms.speculate(checks.slow(target), prompt, drafter, 3, 40, ignore_eos=True)
            mine = [checks.what(cycle)[:5] for cycle in decoder.history(row)]
            assert mine == [checks.what(cycle)[:5] for cycle in out.trace.cycles[:6]], name
            assert new[row] == out.tokens[: len(new[row])]


def test_a_pass_has_one_of_two_sizes(monkeypatch):
    """However large the drafts of the host are; and with branches or without. Captures are found again."""
    target, _ = checks.models()
    target.accelerate()
    made = []
    right = VerifyPasses.__init__
    monkeypatch.setattr(VerifyPasses, "__init__", lambda self, *rest: made.append(self) or right(self, *rest))
    target.backend.decoders.clear()
    for prompt in ([5, 6, 7] * 4, [9], [5, 6] * 5):
        ms.speculate(target, prompt, D.NGram(), 4, 24)
    [passes] = made
    assert set(passes.captures) == {(1, False), (5, False)}
    ms.speculate(target, [5, 6, 7] * 4, D.Lookahead(target, window=3, ngram=3, guesses=2), 4, 24)
    assert set(made[-1].captures) <= {(1, False), (1 + 4 + 6, True)} and (1 + 4 + 6, True) in made[-1].captures


# ---------------------------------------------------------------- broken variants


def changed(owner, method: str, old: str, new: str):
    return lambda patch: rewrite(patch, owner, method, old, new)


MUTANTS = {
    "accepted paths stay where they were": Mutant(
        changed(TreeSpeculator, "step", "self.target.cache.gather(path, self.count)", "pass"), ("medusa", "eagle")
    ),
    "siblings are one after the other": Mutant(
        changed(
            TreeSpeculator,
            "step",
            "mask, offsets, self.drafter",
            "mask, self.target.places[: self.nodes + 1], self.drafter",
        ),
        ("medusa", "eagle"),
    ),
    "branches see each other": Mutant(
        changed(tree_kernels, "laid_out_torch", "F.pad(above,", "F.pad(torch.ones_like(above).tril(),"),
        ("medusa", "dflash"),
    ),
    "deep nodes lose their grandparents": Mutant(
        changed(tree_kernels, "laid_out_torch", "ancestors(parents, depth)", "ancestors(parents, 2)"),
        ("medusa", "eagle"),
    ),
    "states of the wrong nodes": Mutant(
        changed(TreeSpeculator, "verdict", "F.pad(path + 1, (1, 0))", "F.pad(path, (1, 0))"),
        ("medusa", "eagle", "dflash"),
    ),
    "held back at the root alone": Mutant(
        changed(TreeSpeculator, "step", "self.allowed(logits, offsets)", "self.allowed(logits, 99 * offsets)"),
        ("ends",),
    ),
    "one random number too few": Mutant(
        changed(TreeSpeculator, "verdict", "self.take(self.numbers))", "self.take(self.numbers).roll(1, 1))"),
        ("medusa",),
    ),
    "the state of the last token, not of the last accepted": Mutant(
        changed(MedusaOnDevice, "settle", "verified.gather(1, kept[:, None] - 1)", "verified[:, :1]"), ("medusa",)
    ),
    "the first state of a prompt": Mutant(
        changed(
            MedusaOnDevice, "start", "at_places(states, counts[:, None])", "at_places(states, counts[:, None] * 0 + 1)"
        ),
        ("medusa",),
    ),
    "features are not read": Mutant(
        changed(EagleOnDevice, "propose", "self.cache.advance(self.fresh)", "self.cache.advance(1)"), ("eagle",)
    ),
    "all depths of a draft in the same slots": Mutant(
        changed(EagleOnDevice, "propose", "slots[:, new]", "slots[:, :width]"), ("eagle",)
    ),
    "draft entries see their rivals": Mutant(
        changed(Growing, "add", "itself.expand(B, w, w)", "itself.expand(B, w, w) | True"), ("eagle",)
    ),
    "one position too late": Mutant(
        changed(EagleOnDevice, "propose", "n // width for n", "1 + n // width for n"), ("eagle",)
    ),
    "the first verified entry is the root": Mutant(
        changed(Growing, "add", "(fresh - 1).clamp(min=0)", "(0 * fresh)"), ("eagle",)
    ),
    "features of the wrong parents": Mutant(
        changed(Growing, "add", "tokens, row + child_of, self.sees", "tokens, row + 0 * child_of, self.sees"),
        ("eagle",),
    ),
    "all that was verified counts": Mutant(
        changed(DFlashOnDevice, "settle", "kept)", "kept * 0 + verified.shape[1])"), ("dflash",)
    ),
    "a causal block": Mutant(
        changed(
            DFlashOnDevice,
            "__init__",
            "dtype=torch.bool, device=target.device)",
            "dtype=torch.bool, device=target.device).tril()",
        ),
        ("dflash",),
    ),
    "prompts are no context": Mutant(
        changed(DFlashOnDevice, "start", "self.add(hidden, counts)", "self.add(hidden, 0 * counts)"), ("dflash",)
    ),
    "lengths of the row before": Mutant(
        changed(VerifyPasses, "write", "= lengths", "= lengths[-1:] + lengths[:-1]"), ("batches",)
    ),
    "scratch after the draft, not at the end": Mutant(
        changed(VerifyPasses, "write", "line[T - len(scratch.tokens) :]", "line[n : n + len(scratch.tokens)]"),
        ("hosted",),
    ),
    "a tree that looks like a chain": Mutant(
        changed(VerifyPasses, "run", "draft.parents is not None or draft.scratch", "draft.scratch"), ("hosted",)
    ),
    "hosted paths stay where they were": Mutant(
        changed(VerifyPasses, "keep", "everyone[row, 1 : 1 + len(path)] = path", "pass"), ("hosted",)
    ),
    "the path begins at the last token": Mutant(changed(VerifyPasses, "keep", "length + 1", "length"), ("hosted",)),
    "scratch tokens do not see the last one": Mutant(
        changed(hosted, "view", "mask[-s:, 0] = True", "pass"), ("hosted",)
    ),
    "those who left are judged": Mutant(
        changed(hosted.Hosted, "leave", "[self.places[i] for i in going]", "self.places[: len(going)]"), ("batches",)
    ),
    "any draft is taken": Mutant(changed(VerifyPasses, "run", "longest > self.most", "False"), ("announced",)),
    "old prompts show through": Mutant(
        changed(fused.CapturedPrompt, "__call__", "self.target.lengths.copy_(counts)", "pass"), ("prompts",)
    ),
    "a prompt begins where the last one ended": Mutant(
        changed(fused.CapturedPrompt, "work", "self.target.lengths.zero_()", "pass"), ("prompts",)
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name):
    mutant = MUTANTS[name]
    with_fresh_recordings = lambda patch: (mutant.install(patch), forget_recordings())  # noqa: E731
    try:
        assert_caught(name, Mutant(with_fresh_recordings, mutant.caught_by), checks.CHECKS)
    finally:
        forget_recordings()


def forget_recordings() -> None:
    for cached in (checks.models, checks.trees, checks.hosted):
        cached.cache_clear()
    checks.micro().backend = None


# ---------------------------------------------------------------- by kernels


@needs_triton
@needs_interpreter
def test_cycles_by_kernels_in_tritons_interpreter():
    run_checks("acted_checks.py", TRITON_INTERPRET="1", OMP_NUM_THREADS="1")


# ---------------------------------------------------------------- on a GPU, captured


@pytest.mark.gpu
@pytest.mark.parametrize(
    "check",
    [
        checks.check_shipped,
        checks.check_trees,
        checks.check_ends,
        checks.check_memory_of_trees,
        checks.check_hosted,
        checks.check_batches,
        checks.check_announced,
        checks.check_prompts,
    ],
    ids=lambda check: check.__name__,
)
def test_recorded(check):
    check("cuda")
