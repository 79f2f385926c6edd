"""int8 weights on a CPU: the product, the pass, the model that `load` gives, and the draft that is made of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from inspect import getdoc

import pytest
import torch
from int8_checks import CHECKS, rounded
from mutants import int8_mutants
from mutants.int8_mutants import MUTANTS
from mutants.patching import assert_caught, assert_unseen

import minispec as ms
from benchmarks import drafters
from minispec import cli
from minispec.cpu import machine
from minispec.cpu.int8 import Int8Linear
from minispec.load import folder
from minispec.load.folder import save_folder
from minispec.measure import Report, verify_curve, weight_bytes

pytestmark = pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")


@pytest.mark.parametrize("name", CHECKS)
def test_the_real_code_passes(name, monkeypatch):
    monkeypatch.setenv("MINISPEC_LINEAR", "numba")
    CHECKS[name]()


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name, monkeypatch):
    monkeypatch.setenv("MINISPEC_LINEAR", "numba")
    assert_caught(name, MUTANTS[name], CHECKS)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MUTANTS if MUTANTS[name].passes])
def test_mutant_is_invisible_elsewhere(name, monkeypatch):
    monkeypatch.setenv("MINISPEC_LINEAR", "numba")
    assert_unseen(MUTANTS[name], CHECKS)


def test_every_mutant_says_what_is_wrong_with_it():
    assert all(getdoc(mutant.install) for mutant in MUTANTS.values()) and int8_mutants.__doc__


WIDENED = """
from minispec.cpu.processor import has_dot_product
from int8_checks import CHECKS
assert not has_dot_product()
for check in ("product", "precision", "same_bits", "layer", "fused_pass", "company", "mixed"):
    CHECKS[check]()
"""


@pytest.mark.slow  # a process of its own, which compiles
def test_processors_without_a_dot_product_of_bytes(tmp_path):
    """On others this is the only way, and what the checks above went."""
    environment = os.environ | {"MINISPEC_INT8": "widen", "MINISPEC_HOME": str(tmp_path), "MINISPEC_LINEAR": "numba"}
    subprocess.run([sys.executable, "-c", WIDENED], env=environment, check=True)


# ---------------------------------------------------------------- loading


@pytest.fixture
def stored(make_model, tmp_path):
    """The folder of a tiny tied model in float32."""
    save_folder(make_model(dtype=torch.float32, head_dim=16, tie_embeddings=True), tmp_path, bits=None)
    return tmp_path


def test_load_gives_another_model_with_a_quarter_of_the_bytes(stored):
    whole, small = ms.load(stored, device="cpu"), ms.load(stored, device="cpu", weights="int8")
    assert whole.weights is None and small.weights == "int8"
    assert "another model" in repr(small) and "another model" in small.label and "int8" not in repr(whole)
    matrices = sum(p.numel() for p in whole.transformer.parameters() if p.ndim == 2)  # the LM head is the embedding
    few = weight_bytes(whole) - 4 * matrices  # norms
    scales = sum(4 * m.out_features for m in small.transformer.modules() if isinstance(m, Int8Linear))
    assert weight_bytes(small) == few + matrices + scales
    assert small.num_parameters == whole.num_parameters + whole.transformer.embed_tokens.weight.numel()


def test_an_int8_model_generates_and_verifies_as_any_other(stored):
    """A speculative output of the int8 target is the int8 target's own, and its folder is that of the rounded model."""
    small = ms.load(stored, device="cpu", weights="int8")
    prompt = [3, 1, 4, 1, 5]
    plain = ms.generate(small, prompt, 24).tokens
    for drafter in (ms.drafters.NGram(), ms.drafters.EarlyExit(small), ms.drafters.Quantized(small)):
        assert ms.speculate(small, prompt, drafter, 3, 24).tokens == plain
    engine = ms.Engine(small, num_blocks=32, block_size=16)
    row = engine.add(prompt, max_new_tokens=24)
    assert engine.run()[row].tokens == plain
    assert [p.tokens for p in verify_curve(small, (1, 3), 8, 1, 0)] == [1, 3]
    save_folder(small, stored / "again", bits=None)
    again = ms.load(stored / "again", device="cpu")
    assert again.weights is None
    for name, value in small.transformer.state_dict().items():
        assert torch.equal(again.transformer.state_dict()[name], value)


@pytest.mark.parametrize("command", [["measure"], ["demo"]], ids=" ".join)
def test_the_commands_ask_for_these_weights(monkeypatch, capsys, command):
    asked = []

    def load(name, **options):
        asked.append(options.get("weights"))
        raise ValueError("no further")

    monkeypatch.setattr(ms, "load", load)
    monkeypatch.setattr(drafters, "load", load)
    for more in ([], ["--weights", "int8"], ["--weights", "int4"]):
        assert cli.main([*command, "--model", "micro", *more]) != 0
    assert asked == [None, "int8"]  # what cannot be had is refused before anything is loaded


@pytest.mark.parametrize(
    "options, match",
    [
        (dict(weights="int4"), "weights='int4'"),
        (dict(weights=8), "weights=8"),
        (dict(weights="int8", dtype=torch.float64), "dtype"),
        (dict(weights="int8", device="cuda"), "device='cpu'"),
    ],
)
def test_what_cannot_be_had_is_refused(monkeypatch, stored, options, match):
    monkeypatch.setattr(folder, "usable_device", lambda device: torch.device(device or "cpu"))  # as if there were one
    with pytest.raises(ValueError, match=match):
        ms.load(stored, **options)


def test_without_numba_it_is_refused(monkeypatch, stored):
    monkeypatch.setattr(machine, "compiled", lambda: None)
    with pytest.raises(ValueError, match="numba"):
        ms.load(stored, device="cpu", weights="int8")


def test_a_report_knows_what_was_measured():
    """The fewer bytes a parameter takes, the fewer tokens can share their reading before computing takes longer."""
    rate, fields = dict(median=1.0, low=1.0, high=1.0, n=1), {}
    for weights in (None, "int8"):
        fields[weights] = dict(
            machine={},
            model="m",
            parameters=1,
            device="cpu",
            dtype="float32",
            weight_bytes=1,
            bandwidth=rate,
            flops=rate | {"median": 8.0},
            plain=rate,
            context=1,
            curve=[],
            weights=weights,
        )
    reports = {weights: Report.from_json(json.dumps(raw)) for weights, raw in fields.items()}
    assert reports[None].free_tokens == 4 * reports["int8"].free_tokens


# ---------------------------------------------------------------- the quantised draft


def test_the_draft_of_a_large_target_reads_bytes(make_model, monkeypatch):
    """Only where there is a product for it; the numbers are the same either way."""
    target = make_model(dtype=torch.float32, head_dim=16)
    expanded = ms.drafters.Quantized(target).draft
    assert expanded.weights is None  # a small model: nothing is gained
    monkeypatch.setattr(machine, "REPAYS_LOADING", 1)
    draft = ms.drafters.Quantized(target).draft
    assert draft.weights == "int8"
    for name, value in draft.transformer.state_dict().items():
        torch.testing.assert_close(expanded.transformer.state_dict()[name], value, rtol=1e-6, atol=0)
    head = target.transformer.lm_head.weight
    torch.testing.assert_close(draft.transformer.lm_head.weight, rounded(head), rtol=1e-6, atol=0)
    assert ms.drafters.Quantized(target, bits=4).draft.weights is None
    assert ms.drafters.Quantized(target, group=8).draft.weights is None
    assert ms.drafters.Quantized(make_model(head_dim=16)).draft.weights is None  # float64
    prompt, plain = [3, 1, 4], ms.generate(target, [3, 1, 4], 20).tokens
    assert ms.speculate(target, prompt, ms.drafters.Quantized(target), 3, 20).tokens == plain
