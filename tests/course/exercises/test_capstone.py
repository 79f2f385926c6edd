"""The capstone's last test: a decoder that passes every case is tried on a real model."""

from __future__ import annotations

import pytest
import torch

import minispec as ms
from minispec_course.check.check import RIGHT, WRONG, judge
from minispec_course.exercises import set_18_capstone as capstone


@pytest.fixture
def micro(monkeypatch):
    monkeypatch.setenv("MINISPEC_TRIAL", "micro")


def only_for_real(program):
    """An answer that is right in all cases, and something else when it writes a longer text."""

    def answer(target, draft, prompt, k, count, end, temperature, random):
        write = program if count > 10 else capstone.whole
        return write(target, draft, prompt, k, count, end, temperature, random)

    return answer


def plain(target, draft, prompt, k, count, end, temperature, random):
    text = list(prompt)
    while len(text) < len(prompt) + count:
        text.append(int(target.read(text[-1:])[-1].argmax()))
    return text[len(prompt) :]


@pytest.mark.slow
def test_the_reference_writes_what_the_target_writes_alone(micro):
    target, _ = capstone.real_models("micro")
    alone = ms.generate(target, capstone.PROMPT, max_new_tokens=capstone.COUNT)
    assert capstone.ours("micro").new == alone.tokens
    drafter = ms.drafters.Model(capstone.real_models("micro")[1])
    with_ours = ms.speculate(target, capstone.PROMPT, drafter, k=capstone.K, max_new_tokens=capstone.COUNT)
    assert capstone.ours("micro").passes == len(with_ours.trace.cycles)  # as many passes as minispec's own loop
    assert capstone.ours("micro").tokens_per_pass > 1.5


@pytest.mark.slow
def test_too_many_passes_are_seen_on_the_real_model_alone(micro):
    judgement = judge(capstone.WHOLE, only_for_real(plain))
    assert judgement.outcome == WRONG and judgement.case is None
    assert "on micro" in judgement.text and "1.00 tokens per pass" in " ".join(judgement.text.split())


@pytest.mark.slow
def test_another_text_is_seen_on_the_real_model_alone(micro):
    judgement = judge(capstone.WHOLE, only_for_real(lambda *parts: [*capstone.whole(*parts)[:-1], 0]))
    assert judgement.outcome == WRONG and f"token {capstone.COUNT}" in " ".join(judgement.text.split())


@pytest.mark.slow
def test_an_error_there_is_the_learners(micro):
    judgement = judge(capstone.WHOLE, only_for_real(lambda *parts: 1 / 0))
    assert judgement.outcome == WRONG and "ZeroDivisionError" in judgement.text


def test_the_picture_says_which_model_it_was(micro):
    said = capstone.WHOLE.picture(capstone.whole)
    assert said.startswith("micro,") and f"{capstone.ours('micro').tokens_per_pass:.2f} tokens per pass" in said


def test_which_model_it_is(monkeypatch):
    monkeypatch.delenv("MINISPEC_TRIAL", raising=False)
    for present, name in ((True, "smollm2"), (False, "micro")):
        monkeypatch.setattr(type(capstone.KNOWN["smollm2"]), "present", lambda self, there=present: there)
        assert capstone.real_name() == name


def test_a_real_model_is_driven_as_a_scripted_one(micro):
    target, _ = capstone.real_models("micro")
    prompt = target.encode(capstone.PROMPT)
    model = capstone.RealModel("target", target, prompt, room=8)
    assert model.length == len(prompt) - 1 and model.passes == 0
    logits = model.read([prompt[-1], 5, 6])
    assert logits.shape == (3, target.config.vocab_size) and model.passes == 1
    model.rewind(len(prompt))
    again = model.read([5, 6])
    assert torch.allclose(again, logits[1:], atol=1e-4)


@pytest.mark.slow
@pytest.mark.model
def test_on_smollm2(monkeypatch):
    monkeypatch.setenv("MINISPEC_TRIAL", "smollm2")
    assert judge(capstone.WHOLE, capstone.whole).outcome == RIGHT
    assert capstone.ours("smollm2").tokens_per_pass > 1.2
