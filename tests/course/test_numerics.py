"""What rounding does: measured on a tiny model, in dtypes where the answer is known."""

from __future__ import annotations

import pytest
import torch

import minispec as ms
from minispec.drafters.model import DraftModel
from minispec_course.labs import numerics

STEPS = [
    (10.0, torch.bfloat16, 1 / 16),
    (8.0, torch.bfloat16, 1 / 16),
    (-3.0, torch.float32, 2.0**-22),
    (1.0, torch.float64, 2.0**-52),
]


@pytest.mark.parametrize(("x", "dtype", "step"), STEPS)
def test_neighbours_are_one_step_apart(x, dtype, step):
    assert numerics.spacing(x, dtype) == step
    up = torch.tensor(x + step, dtype=dtype)
    assert up != torch.tensor(x, dtype=dtype)  # a whole step is seen, and a third of one is not
    assert torch.tensor(x + step / 3, dtype=dtype) == torch.tensor(x, dtype=dtype)


def test_passes_over_five_tokens_and_over_one_agree_up_to_rounding(tiny_text):
    text = "Once upon a time there was a small fox."
    assert numerics.block_difference(tiny_text, text) < 1e-12
    assert numerics.block_difference(tiny_text, text, size=1) == 0.0


def test_neighbours_do_not_change_a_sequence(tiny):
    ids, others = [1, 2, 3, 4, 5], [[9, 8, 7, 6, 5, 4], [11, 12, 13, 14, 15, 16]]
    alone = numerics.decode_logits(tiny, ids)
    assert alone.shape == (5, tiny.config.vocab_size)
    whole = tiny.transformer(torch.tensor([ids])).logits[0].double()
    assert torch.allclose(alone, whole, atol=1e-10)
    one, other = (numerics.decode_logits(tiny, ids, [company]) for company in others)
    assert torch.equal(one, other) and torch.allclose(alone, one, atol=1e-10)


def test_the_logits_that_decided_are_those_of_the_token_chosen(tiny_text, make_model, tokenizer):
    draft = DraftModel(make_model(vocab_size=tokenizer.get_vocab_size(), seed=3, num_layers=1))
    runs = (
        lambda: ms.generate(tiny_text, "Once upon", max_new_tokens=6),
        lambda: ms.speculate(tiny_text, "Once upon", draft, k=2, max_new_tokens=6),
    )
    start = len(tiny_text.encode("Once upon"))
    for run in runs:
        for position, token in enumerate(run().tokens):
            assert int(numerics.logits_at(tiny_text, start + position, run).argmax()) == token
    assert not tiny_text.transformer._forward_hooks  # nothing is left behind


@pytest.mark.slow
def test_greedy_outputs_agree_in_float64_and_a_difference_is_found(tiny_text, make_model, tokenizer, monkeypatch):
    draft = make_model(vocab_size=tokenizer.get_vocab_size(), seed=3, num_layers=1)
    assert numerics.first_divergence(tiny_text, draft, ["Once upon", "The fox"]) is None
    plain, other = numerics.greedy_outputs(tiny_text, draft, "Once upon")
    assert plain == other == ms.generate(tiny_text, "Once upon", max_new_tokens=30).tokens
    wrong = [*plain[:2], (plain[2] + 1) % tokenizer.get_vocab_size(), *plain[3:]]
    monkeypatch.setattr(numerics, "greedy_outputs", lambda *_: (plain, wrong))
    found = numerics.first_divergence(tiny_text, draft, ["Once upon"])
    assert (found.position, found.pair) == (2, (plain[2], wrong[2]))
    best, less = found.logits(tiny_text)
    assert best > less  # plain decoding takes the larger one
    for pair in found.deciding(tiny_text, draft).values():
        assert pair == pytest.approx((best, less))


@pytest.mark.slow
def test_three_comparisons_agree_in_float64_and_a_difference_is_measured(tiny_text, make_model, tokenizer, monkeypatch):
    draft = make_model(vocab_size=tokenizer.get_vocab_size(), seed=3, num_layers=1)
    found = numerics.comparisons(tiny_text, tiny_text, draft, ["Once upon", "The fox"], ["One day"])
    assert len(found) == 3 and not any(found.values())
    assert numerics.first_difference([1, 2, 3], [1, 2]) is None and numerics.first_difference([1, 2], [1, 3]) == 1
    plain = ms.generate(tiny_text, "Once upon", max_new_tokens=4).tokens
    wrong = [*plain[:2], plain[2] + 1, plain[3]]
    [one] = numerics.parted(tiny_text, ["Once upon"], [plain], [wrong])
    logits = tiny_text.transformer(torch.tensor([tiny_text.encode("Once upon") + plain[:2]])).logits[0, -1]
    best = logits.topk(2).values
    assert one.position == 2 and one.gap == pytest.approx(float(best[0] - best[1])) and one.gap > 0
