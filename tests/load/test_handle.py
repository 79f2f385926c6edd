"""What a prompt may be: text, chat messages, token ids of any integer type; everything else is refused in words."""

from __future__ import annotations

import array

import numpy as np
import pytest
import torch


@pytest.mark.parametrize(
    "prompt",
    [
        (5, 6, 7),
        range(5, 8),
        array.array("i", [5, 6, 7]),
        np.array([5, 6, 7]),
        np.array([5, 6, 7], np.uint8),
        list(np.array([5, 6, 7])),
        torch.tensor([5, 6, 7]),
        torch.tensor([5, 6, 7], dtype=torch.int16),
        list(torch.tensor([5, 6, 7])),
    ],
    ids=lambda prompt: type(prompt).__name__,
)
def test_token_ids_of_any_integer_type(tiny, prompt):
    ids = tiny.encode(prompt)
    assert ids == [5, 6, 7] and all(type(token) is int for token in ids)


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        (b"fox", "is bytes.*decode"),
        (bytearray(b"fox"), "is bytes"),
        (memoryview(b"fox"), "is bytes"),
        ([1.0, 2.0], r"1\.0, which is no token id"),
        ([5, 6.5], r"6\.5, which is no token id"),
        (np.array([5.0]), "no token id"),
        (torch.tensor([5.0]), "no token id"),
        ([torch.tensor(5.0)], "no token id"),
        (torch.tensor([[5, 6]]), "no token id"),
        ([True, False], "True, which is no token id"),
        (["fox", "bird"], "'fox', which is no token id"),
        ([None], "None, which is no token id"),
        (5, "prompt=5: give text"),
        (5.5, "prompt=5.5: give text"),
        (None, "prompt=None: give text"),
        (torch.tensor(5), "give text, a list of token ids"),
        ({"role": "user", "content": "fox"}, "a list of chat messages"),
        ([], "holds no token"),
        ("a\udcffb", "no UTF-8"),
    ],
)
def test_what_is_no_prompt(tiny_text, prompt, words):
    with pytest.raises(ValueError, match=words):
        tiny_text.encode(prompt)


@pytest.mark.parametrize(
    "message",
    [
        "fox",
        5,
        None,
        {},
        {"role": "user"},
        {"content": "fox"},
        {"role": "user", "content": b"fox"},
        {"role": "user", "content": None},
        {"role": 1, "content": "fox"},
    ],
)
def test_what_is_no_message(tiny_text, message):
    good = {"role": "user", "content": "fox"}
    with pytest.raises(ValueError, match='message=.*"role": "user", "content"'):
        tiny_text.encode([good, message])


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% for m in messages %}", "TemplateSyntaxError"),
        ("{{ strange() }}", "'strange' is undefined"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages[0]['content'] + 1 }}", "TypeError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ raise_exception('no system role') }}", "refuses these messages: no system role"),
    ],
)
def test_a_broken_template_names_the_model_and_its_complaint(make_model, tokenizer, template, words):
    model = make_model(vocab_size=tokenizer.get_vocab_size(), tokenizer=tokenizer)
    model.name, model.chat_template = "some-model", template
    with pytest.raises(ValueError, match=f"chat template of some-model .*{words}"):
        model.encode([{"role": "user", "content": "fox"}])


def test_a_template_may_ask_for_the_date(make_model, tokenizer):
    model = make_model(vocab_size=tokenizer.get_vocab_size(), tokenizer=tokenizer)
    model.chat_template = "{{ strftime_now('%Y') | length }}"
    assert model.chat([{"role": "user", "content": "fox"}]) == "4"
