"""MINISPEC_BATCH_INVARIANT=1 on a GPU: everything that decides the order of a sum is the same for every launch.

Bits can be compared on a GPU alone (invariant_checks.py); what the kernels are launched with, anywhere.
"""

from __future__ import annotations

import pytest
import torch
from mutants.patching import rewrite
from test_flash_decode import Recorder, needs_triton
from tiny_models import random_model

from minispec.gpu import attention as fd
from minispec.gpu import products as sk
from minispec.gpu.fused import FastTransformer

pytestmark = [needs_triton, pytest.mark.slow]
ORDER = {"ROWS", "TILE", "WIDE", "TOKENS", "WIDTH", "PRECISION", "num_warps", "enable_fp_fusion"}  # of a sum


@pytest.fixture(autouse=True)
def flag(monkeypatch):
    monkeypatch.setenv("MINISPEC_BATCH_INVARIANT", "1")
    for module in (fd, sk):
        monkeypatch.setattr(module, "unavailable", lambda device: None)
        monkeypatch.setattr(module, "card", lambda device: fd.Card(132, 227 * fd.KIB))


def order(recorder: Recorder) -> set[tuple]:
    return {tuple(sorted((k, v) for k, v in options.items() if k in ORDER)) for _, _, options in recorder.calls}


def check_products(monkeypatch):
    for shape, swiglu in (((64, 32), False), ((9000, 1024), False), ((4096, 4096), True)):
        product, weight = Recorder(), torch.empty(1, dtype=torch.bfloat16).expand(shape)
        monkeypatch.setattr(sk, "_product", product)
        monkeypatch.setattr(sk, "_check", lambda *_: None)  # a weight that takes no memory is not contiguous
        for tokens in (1, 5, 16, 17, 64, 65, 129, 700):
            sk.skinny(torch.empty(tokens, shape[1], dtype=torch.bfloat16), weight, swiglu=swiglu)
        assert len(order(product)) == 1, "a product's tiles depend on the number of tokens"


def check_attention(monkeypatch):
    attend, merge, bf16 = Recorder(), Recorder(), torch.bfloat16
    monkeypatch.setattr(fd, "_attend_split", attend)
    monkeypatch.setattr(fd, "_merge_splits", merge)
    blocks = torch.empty(4, 16, 3, 64, dtype=bf16)
    for B, T, capacity in ((1, 1, 256), (1, 5, 256), (8, 1, 256), (32, 5, 512), (1, 600, 1024), (1, 1, 8192)):
        q, lengths = torch.empty(B, 9, T, 64, dtype=bf16), torch.zeros(B, dtype=torch.long)
        k = torch.empty(1, 3, 1, 64, dtype=bf16).expand(B, 3, capacity, 64)
        fd.flash_decode(q, k, k, lengths)
        tables = torch.zeros(B, capacity // 16, dtype=torch.int32)
        fd.flash_decode_paged(q, blocks, blocks, tables, lengths)
        counts = torch.full((B,), T, dtype=torch.int32)
        fd.flash_ragged(
            q.transpose(1, 2).flatten(0, 1), blocks, blocks, tables, counts.cumsum(0) - counts, counts, lengths
        )
    assert len(order(attend)) == 1, "attention's tiles depend on the pass"
    assert not merge.calls, "slots were split"


def check_passes(monkeypatch):
    """Prompts and large passes, too, take our product and our attention, and nothing of torch's."""
    monkeypatch.setattr(sk, "skinny", sk.skinny_torch)
    asked = []
    monkeypatch.setattr("minispec.gpu.fused.wide_layer", lambda *_: pytest.fail("torch's products"))
    monkeypatch.setattr("minispec.gpu.fused.causal_attention", lambda *_: pytest.fail("torch's attention of prompts"))
    monkeypatch.setattr("minispec.gpu.fused.enter", lambda *_: pytest.fail("torch's products"))

    def attend(lengths, slots, capacity, groups, mask=None):
        asked.append(tuple(slots.shape))
        return lambda q, k, v: fd.flash_decode_torch(q, k, v, lengths, mask)

    fast = FastTransformer(random_model(dtype=torch.float32).transformer, 2, 256, lean=True, attend=attend)
    fast.prefill(torch.zeros(2, 100, dtype=torch.long), torch.tensor([100, 90]))
    for tokens in (1, 5, 140):
        fast.step(torch.zeros(2, tokens, dtype=torch.long))
        fast.lengths.copy_(torch.tensor([100, 90]))
    assert asked == [(2, 100), (2, 1), (2, 5), (2, 140)]


def test_one_shape_of_products_for_every_number_of_tokens(monkeypatch):
    check_products(monkeypatch)


def test_one_shape_of_attention_for_every_pass(monkeypatch):
    check_attention(monkeypatch)


def test_prompts_and_large_passes_take_the_same_way(monkeypatch):
    check_passes(monkeypatch)


def test_without_the_flag_the_shapes_follow_the_tokens(monkeypatch):
    """What the checks above would say of the usual choice: they can fail."""
    monkeypatch.setenv("MINISPEC_BATCH_INVARIANT", "0")
    for check in (check_products, check_attention):
        with pytest.raises(AssertionError):
            check(monkeypatch)


MUTANTS = {
    "larger tiles for more tokens": (check_products, sk, "tokens_together", "if invariant.wanted():", "if False:"),
    "large products are torch's": (check_passes, sk, "most_tokens", "if invariant.wanted():", "if False:"),
    "slots are split": (check_attention, fd, "_launch", "rows, splits = MOST_ROWS, 1", "rows = MOST_ROWS"),
    "rows follow the tokens": (check_attention, fd, "_launch", "rows, splits = MOST_ROWS, 1", "splits = 1"),
    "prompts are torch's": (check_passes, FastTransformer, "body", "prompt and not invariant.wanted()", "prompt"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_wrong_versions_are_noticed(name, monkeypatch):
    check, owner, function, old, new = MUTANTS[name]
    rewrite(monkeypatch, owner, function, old, new)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check(monkeypatch)


def test_a_model_without_kernels_is_refused():
    with pytest.raises(ValueError, match="MINISPEC_BATCH_INVARIANT"):
        FastTransformer(random_model().transformer, 1, 64)
