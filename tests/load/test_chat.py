"""Chat templates: what comes out is what transformers makes of the same template, messages and tokens."""

from __future__ import annotations

import json

import pytest
from mutants.patching import rewrite

import minispec as ms
from minispec.load import handle
from minispec.load.handle import compiled_template

USER = {"role": "user", "content": 'Über <b> & "c"?\n  fox'}
TALK = [{"role": "system", "content": "  Be brief. "}, USER, {"role": "assistant", "content": "no"}, USER]

# The idioms of published templates, in a few lines each.
TEMPLATES = {
    "ends of turns": "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m.content | trim + eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "begins with bos": "{{- bos_token }}\n{%- for m in messages %}\n    {{- '[' + m['role'] + ']' + m['content'] }}\n"
    "{%- endfor %}",
    "the last system message alone": "{% for m in messages %}{% if m.role != 'system' %}{% continue %}{% endif %}"
    "{{ m.content }}{% break %}{% endfor %}",
    "marked replies": "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}|"
    "{% endgeneration %}{% endif %}{% endfor %}",
    "as json": "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}",
    "namespaces, slices, tests": "{% set ns = namespace(n=0) %}{% for m in messages[::-1] %}{% if loop.first %}"
    "{{ m.content.split('?')[0] }}{% endif %}{% set ns.n = ns.n + 1 %}{% endfor %}"
    "{{ ns.n }}"
    "{% if tools is none %} no tools{% endif %}{% if documents %} documents{% endif %}"
    "{% if enable_thinking is defined %} thinks{% endif %}",
    "tokens that there are not": "[{{ unk_token }}{{ nothing }}{{ pad_token }}]",
    "today": "{% if not date is defined %}{% set date = strftime_now('%Y') %}{% endif %}{{ date | int > 2000 }}",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TEMPLATES)
def test_what_transformers_makes_of_it(make_model, tokenizer, name):
    transformers = pytest.importorskip("transformers")
    special = {"bos_token": "<|end|>", "eos_token": "<|im_end|>"}
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=TEMPLATES[name], **special)
    model = make_model(vocab_size=tokenizer.get_vocab_size(), tokenizer=tokenizer)
    model.chat_template, model.special_tokens = TEMPLATES[name], special
    for messages in (TALK[1:2], TALK):
        expected = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert model.chat(messages) == expected
    assert expected  # of the whole talk


def test_special_tokens_come_from_the_tokenizer_s_settings(tiny_folder, tmp_path, make_model):
    """As text or as an object; the end token of a turn need not be the first that ends an output."""
    target = ms.load(tiny_folder, device="cpu")
    target.end_tokens = frozenset({0, 5})
    target.chat_template = "{{ bos_token }}~{{ eos_token }}~{{ pad_token }}"
    asked = [{"role": "user", "content": "x"}]
    first = target.chat(asked)  # nothing is said about tokens: the first that ends an output
    assert first.split("~")[1] == target.tokenizer.id_to_token(0)
    target.special_tokens = {"eos_token": "</turn>", "bos_token": "<s>"}
    assert target.chat(asked) == "<s>~</turn>~"
    assert target.around(target.transformer).chat(asked) == "<s>~</turn>~"
    from minispec.load.folder import load_folder, save_folder

    save_folder(target, tmp_path)
    assert load_folder(tmp_path).chat(asked) == "<s>~</turn>~"
    file = tmp_path / "tokenizer_config.json"
    settings = json.loads(file.read_text()) | {
        "bos_token": {"content": "<b>", "lstrip": False},
        "eos_token": None,
        "pad_token": "<p>",
        "add_bos_token": True,
    }
    file.write_text(json.dumps(settings))
    assert load_folder(tmp_path).chat(asked) == f"<b>~{target.tokenizer.id_to_token(0)}~<p>"


def test_a_template_is_compiled_once():
    assert compiled_template(TEMPLATES["today"]) is compiled_template(TEMPLATES["today"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "old, new, name",
    [
        ("tools=None, ", "", "namespaces, slices, tests"),
        ("**special_tokens", "", "ends of turns"),
        ("add_generation_prompt=True, ", "", "ends of turns"),
    ],
)
def test_what_is_left_out_is_noticed(make_model, tokenizer, monkeypatch, old, new, name):
    rewrite(monkeypatch, handle, "filled_in", old, new)
    with pytest.raises((AssertionError, ValueError)):
        test_what_transformers_makes_of_it(make_model, tokenizer, name)
