"""Costs are counts: of parameters, of bytes that training holds, and of operations that it performs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import minispec as ms
from recipes import cost
from recipes.corpus import Corpus
from recipes.eagle import FORMS, eagle_loss, new_head
from recipes.lessons import Lessons

RUNS = {
    "ours": cost.Run(96, unroll=3, head_vocab=48),
    "ours, two layers, own rows": cost.Run(96, unroll=2, layers=2, mlp=40, head_vocab=48, own_head=True),
    "eagle3": cost.Run(96, unroll=3, head_vocab=64, own_head=True, form=FORMS["eagle3"]),
    "eagle3.1, two streams": cost.Run(96, unroll=1, streams=2, head_vocab=48, form=FORMS["eagle3.1"]),
}


def lesson(target: ms.Model, layers, keep: bool) -> Lessons:
    """Three rows of 32 tokens, every one of which is asked for the next, in the smallest width that there is."""
    tokens = torch.randint(64, (3, 32), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    corpus = Corpus(tokens, torch.ones(3, dtype=torch.long), torch.full((3,), 32), torch.zeros(3))
    return Lessons(target.transformer, corpus, layers, keep=keep)


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("shape", [dict(), dict(tie_embeddings=True), dict(qk_norm=True)])
def test_parameters(make_model, name, shape):
    target, run = make_model(num_layers=3, **shape), RUNS[name]
    head = new_head(
        target,
        torch.arange(run.head_vocab),
        layers=run.layers,
        mlp=run.mlp,
        own_head=run.own_head,
        hidden_layers=range(3 - run.streams + 1, 4),
        form=run.form,
    )
    assert cost.head_parameters(target.config, run) == sum(p.numel() for p in head.parameters())
    assert cost.target_parameters(target.config) == target.num_parameters


@pytest.mark.parametrize("name", RUNS)
def test_work_and_logits_of_a_step(make_model, name):
    """What a training step multiplies, and how many [m, v] it keeps for its gradient, counted while it runs."""
    target, run = make_model(num_layers=3, dtype=torch.float32), RUNS[name]
    layers = tuple(range(3 - run.streams + 1, 4))
    lessons = lesson(target, layers, keep=False)
    batch = lessons.batch(0, 0, 256)
    head = new_head(
        target,
        torch.arange(run.head_vocab),
        layers=run.layers,
        mlp=run.mlp,
        own_head=run.own_head,
        hidden_layers=layers,
        form=run.form,
    )
    tokens, asked = batch.tokens.numel(), int(batch.asked.sum())
    held = set()
    keep = lambda x: (held.add(x.data_ptr()) if x.shape == (asked, run.head_vocab) else None, x)[1]  # noqa: E731
    with FlopCounterMode(display=False) as counter, torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        loss = eagle_loss(head, lessons, batch, run.unroll)
        assert len(held) == run.unroll + 1  # one per step, and the target's probabilities
        loss.backward()
    products = counter.get_flop_counts()["Global"]
    counted = sum(n for op, n in products.items() if str(op) in ("aten.mm", "aten.addmm"))  # attention is aten.bmm
    step = replace(run, steps=1, batch_tokens=tokens, asked=asked / tokens, keep=True, tokens=0)
    assert counted == cost.eagle(target.config, step).work


def test_the_targets_own_work(make_model):
    target = make_model(num_layers=3, dtype=torch.float32)
    lessons = lesson(target, (1, 2, 3), keep=False)
    tokens = lessons.buckets[0][0]
    with FlopCounterMode(display=False) as counter:
        lessons.answer(tokens)
    counted = sum(n for op, n in counter.get_flop_counts()["Global"].items() if str(op) in ("aten.mm", "aten.addmm"))
    run = cost.Run(tokens.numel(), steps=0, keep=True, number=4)
    norms = target.config.hidden_size * (2 * 3 + 1)  # are parameters, but no products
    assert counted == cost.eagle(target.config, run).work - 2 * norms * tokens.numel()


@pytest.mark.parametrize("last", [True, False])
def test_kept_states(make_model, last):
    target = make_model(num_layers=3, dtype=torch.float32)
    layers = (1, 2, 3) if last else (0, 1, 2)
    lessons = lesson(target, layers, keep=True)
    bytes = 0
    for _, _, answers in lessons.buckets:
        parts = [*answers.hidden.values(), answers.log_z, *([] if answers.states is None else [answers.states])]
        bytes += sum(part.nbytes for part in parts)
    run = cost.Run(sum(tokens.numel() for tokens, *_ in lessons.buckets), keep=True, keep_last=last, number=4)
    assert cost.kept_bytes(target.config, run) == bytes
    assert cost.kept_bytes(target.config, replace(run, keep=False)) == 0
    with_it, without = (cost.eagle(target.config, replace(run, keep=keep)) for keep in (True, False))
    assert with_it.memory - without.memory == bytes and with_it.disk == without.disk


def test_the_speed_that_is_quoted_is_that_of_the_card():
    """7,400 steps of 20,000 tokens in twelve minutes; states kept, so that the target read each corpus once."""
    config = ms.load("smollm2", device="cpu").config
    shape = dict(layers=2, mlp=1152, keep=True)
    runs = [cost.Run(8_000_000, steps=4200, **shape), cost.Run(16_000_000, steps=3200, **shape)]
    work = sum(cost.eagle(config, run).work for run in runs)
    assert work / (12 * 60) == pytest.approx(cost.SEEN, rel=0.05)


def test_writing_is_bounded_by_reading_the_weights(make_model):
    config = make_model().config
    once = cost.writing_seconds(config, 1000, 1, 1e9)
    assert once == pytest.approx(1000 * cost.target_parameters(config) * 2 / 1e9)
    assert cost.writing_seconds(config, 1000, 10, 1e9) == pytest.approx(once / 10)


def test_the_table_of_the_page_is_computed():
    page = (Path(__file__).parents[2] / "docs" / "bring_your_own.md").read_text(encoding="utf-8")
    assert cost.table() in page
    small, large = (cost.TARGETS[name] for name in ("SmolLM2-135M-Instruct", "Llama-3.1-8B-Instruct"))
    kept = replace(cost.EXAMPLE, keep=True, keep_last=False)
    for config, gigabytes in ((large, "655 GB"), (small, "92 GB")):
        assert gigabytes == f"{cost.kept_bytes(config, kept) / 1e9:.0f} GB" and gigabytes in page
    assert round(cost.writing_seconds(large, 20_000_000, 64, 4.16e12) / 60) == 20 and "20 minutes" in page
    assert cost.target_parameters(large) == 8_030_261_248  # what its card says
    example = cost.TARGETS["SmolLM2-135M-Instruct"]
    real = ms.load("smollm2", device="cpu").config
    assert {key: getattr(real, key) for key in vars(example) if key not in ("norm_eps", "rope_theta")} == {
        key: value for key, value in vars(example).items() if key not in ("norm_eps", "rope_theta")
    }
