"""MINISPEC_BATCH_INVARIANT=1: a token's logits have the same bits in any company, so outputs in bfloat16 are those of
plain decoding one prompt at a time."""

import os
from contextlib import contextmanager
from importlib.util import find_spec
from unittest.mock import patch

import pytest
import torch
from tiny_models import random_model

import minispec as ms
from minispec.gpu import attention as fd
from minispec.gpu import gemm as sk
from minispec.gpu.weights import FastTransformer

FLAG = {"MINISPEC_BATCH_INVARIANT": "1"}
TEXTS = ["Once upon a time", "The capital of France is", "def fibonacci(n):", "Water boils at"]
TEXTS += ["In 1969", "A boy found", "The three primary colours are", "To make bread, you need"]


# ---- on a GPU: bits ------------------------------------------------------------------------------------------------


def half(name: str, device: str) -> ms.Model:
    return ms.load(name, device=device, dtype=torch.bfloat16)


@pytest.mark.gpu
@patch.dict(os.environ, FLAG)
@torch.inference_mode()
def test_logits_have_the_same_bits_in_any_company(device):
    """The last token's after 300 others: one at a time, against larger passes and batches."""
    model = half("micro", device)
    ids = torch.tensor([model.encode(" ".join(TEXTS) * 8)[:301]], device=device)
    backend = model.accelerate()

    def last_logits(sizes: list[int], batch: int = 1) -> torch.Tensor:
        memory = backend.reserve(512, batch)
        others = torch.randint(0, 500, (batch, ids.shape[1]), device=device)
        others[0] = ids[0]
        first = ids.shape[1] - sum(sizes)
        memory.prefill(others[:, :first], torch.full((batch,), first, device=device))
        for part in others[:, first:].split(sizes, 1):
            logits = memory.step(part)
        return logits[0, -1].clone()

    alone = last_logits([1] * 60)
    for sizes, batch in (([5] * 12, 1), ([30, 30], 1), ([1], 1), ([1] * 60, 8), ([5] * 12, 32), ([60], 8)):
        assert torch.equal(last_logits(sizes, batch), alone), (sizes, batch)


@pytest.mark.gpu
@patch.dict(os.environ, FLAG)
def test_outputs_in_half_precision_are_those_of_plain_decoding(device, count=96):
    """Greedy, in batches, with chains of drafts, and of an engine that cuts prompts into chunks."""
    model, draft = half("micro", device), half("micro-draft", device)
    prompts = [f"{text} {i}" if i else text for i in range(3) for text in TEXTS]
    chain, ngram = ms.drafters.Model(draft), ms.drafters.NGram()

    def served(drafter=None, **options) -> list[ms.Output]:
        engine = ms.Engine(model, drafter, num_blocks=4096, max_num_seqs=len(prompts), **options)
        return engine.generate(prompts, max_new_tokens=count, progress=False)

    ways = {
        "a batch": lambda: ms.generate(model, prompts, max_new_tokens=count),
        "a draft model": lambda: [ms.speculate(model, prompt, chain, 4, count) for prompt in prompts],
        "n-grams": lambda: [ms.speculate(model, prompt, ngram, 4, count) for prompt in prompts],
        "a draft model, in a batch": lambda: ms.speculate(model, prompts, chain, 4, count),
        "an engine": served,
        "an engine, prompts in chunks": lambda: served(max_num_batched_tokens=48),
        "an engine with a draft model": lambda: served(chain, k=4),
    }
    plain = [ms.generate(model, prompt, max_new_tokens=count).tokens for prompt in prompts]
    for name, way in ways.items():
        assert [out.tokens for out in way()] == plain, name


# ---- everywhere: what decides the order of a sum is the same for every launch ----------------------------------------


ORDER = {"ROWS", "TILE", "WIDE", "TOKENS", "WIDTH", "PRECISION", "num_warps", "enable_fp_fusion"}  # of a sum


class Recorder:
    """In a kernel's place: remembers what it was launched with."""

    def __init__(self):
        self.calls: list[tuple[tuple, dict]] = []

    def __getitem__(self, grid):
        return lambda *args, **options: self.calls.append((args, options))

    @property
    def orders(self) -> set[tuple]:
        found = set()
        for args, options in self.calls:
            every = options | {name: value.value for name, value in args[-1]._asdict().items()}
            found.add(tuple(sorted((name, value) for name, value in every.items() if name in ORDER)))
        return found


@contextmanager
def launches():
    """Of the kernels for products and for attention, and of the one that merges parts of attention: not made."""
    made, attended, merged = Recorder(), Recorder(), Recorder()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(sk, "_product", made)
        monkeypatch.setattr(fd, "_attend_split", attended)
        monkeypatch.setattr(fd, "_merge_splits", merged)
        for module in (fd, sk):
            monkeypatch.setattr(module, "unavailable", lambda device: None)
            monkeypatch.setattr(module, "card", lambda device: fd.Card(132, 227 * fd.KIB))
        yield made, attended, merged


needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")


@needs_triton
@pytest.mark.slow
@patch.dict(os.environ, FLAG)
def test_tiles_of_a_product_do_not_depend_on_the_number_of_tokens():
    for shape, swiglu in (((64, 32), False), ((9000, 1024), False), ((4096, 4096), True)):
        weight = torch.empty(1, dtype=torch.bfloat16).expand(shape)  # takes no memory, and is not contiguous
        with launches() as (made, _, _):
            for tokens in (1, 5, 16, 17, 64, 65, 129, 700):
                sk.skinny(torch.empty(tokens, shape[1], dtype=torch.bfloat16), weight, swiglu=swiglu)
        assert len(made.orders) == 1


@needs_triton
@pytest.mark.slow
@patch.dict(os.environ, FLAG)
def test_tiles_of_attention_do_not_depend_on_the_pass():
    blocks = torch.empty(4, 16, 3, 64, dtype=torch.bfloat16)
    with launches() as (_, attended, merged):
        for B, T, capacity in ((1, 1, 256), (1, 5, 256), (8, 1, 256), (32, 5, 512), (1, 600, 1024), (1, 1, 8192)):
            q, lengths = torch.empty(B, 9, T, 64, dtype=torch.bfloat16), torch.zeros(B, dtype=torch.long)
            k = torch.empty(1, 3, 1, 64, dtype=torch.bfloat16).expand(B, 3, capacity, 64)
            fd.flash_decode(q, k, k, lengths)
            tables, counts = torch.zeros(B, capacity // 16, dtype=torch.int32), torch.full((B,), T, dtype=torch.int32)
            fd.flash_decode_paged(q, blocks, blocks, tables, lengths)
            ragged = q.transpose(1, 2).flatten(0, 1), blocks, blocks, tables
            fd.flash_ragged(*ragged, counts.cumsum(0) - counts, counts, lengths)
    assert len(attended.orders) == 1
    assert not merged.calls, "slots were split"


@patch.dict(os.environ, FLAG)
def test_a_pass_without_a_batch_invariant_version_is_refused():
    with pytest.raises(ValueError, match="MINISPEC_BATCH_INVARIANT"):
        FastTransformer(random_model().transformer, 1, 64)
