"""What a prompt may be: text, token ids of any integer type, and chat messages, filled in as transformers does."""

import array
import json

import numpy as np
import pytest
import torch

import minispec as ms
from minispec.load.folder import load_folder, save_folder

USER = {"role": "user", "content": 'Über <b> & "c"?\n  fox'}
TALK = [{"role": "system", "content": "  Be brief. "}, USER, {"role": "assistant", "content": "no"}, USER]


def test_token_ids_of_any_integer_type(tiny):
    ids = [5, 6, 7]
    arrays = [array.array("i", ids), np.array(ids), np.array(ids, np.uint8), torch.tensor(ids, dtype=torch.int16)]
    for prompt in (tuple(ids), range(5, 8), *arrays, list(np.array(ids)), list(torch.tensor(ids))):
        found = tiny.encode(prompt)
        assert found == ids and all(type(token) is int for token in found), prompt


def test_what_is_no_prompt_is_refused(tiny_text):
    no_ids = [[1.0, 2.0], [5, 6.5], np.array([5.0]), torch.tensor([5.0]), [torch.tensor(5.0)], torch.tensor([[5, 6]])]
    no_ids += [[True, False], ["fox", "bird"], [None]]
    no_lists = [b"fox", bytearray(b"fox"), memoryview(b"fox"), 5, 5.5, None, torch.tensor(5), USER]
    cases = [(prompt, "no token id") for prompt in no_ids]
    cases += [(prompt, "give text, a list of token ids") for prompt in no_lists]
    cases += [([], "holds no token"), ("a\udcffb", "no UTF-8"), ([9999], "9999")]
    no_messages = ["fox", 5, None, {}, {"role": "user"}, {"content": "x"}, {"role": 1, "content": "x"}]
    no_messages += [{"role": "user", "content": content} for content in (b"x", None)]
    cases += [([USER, message], "message=") for message in no_messages]
    for prompt, said in cases:
        with pytest.raises(ValueError, match=said):
            tiny_text.encode(prompt)
            pytest.fail(f"{prompt!r} was taken")


# ---- chat templates: the idioms of published ones, in a few lines each ----

TEMPLATES = {
    "ends of turns": "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m.content | trim + eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "begins with bos": "{{- bos_token }}\n{%- for m in messages %}\n    {{- '[' + m['role'] + ']' + m['content'] }}\n"
    "{%- endfor %}",
    "loop controls": "{% for m in messages %}{% if m.role != 'system' %}{% continue %}{% endif %}"
    "{{ m.content }}{% break %}{% endfor %}",
    "marked replies": "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}|"
    "{% endgeneration %}{% endif %}{% endfor %}",
    "as json": "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}",
    "namespaces, slices, tests": "{% set ns = namespace(n=0) %}{% for m in messages[::-1] %}{% if loop.first %}"
    "{{ m.content.split('?')[0] }}{% endif %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}"
    "{% if tools is none %} no tools{% endif %}{% if documents %} documents{% endif %}"
    "{% if enable_thinking is defined %} thinks{% endif %}",
    "special tokens that are not set": "[{{ unk_token }}{{ nothing }}{{ pad_token }}]",
    "today": "{% if not date is defined %}{% set date = strftime_now('%Y') %}{% endif %}{{ date | int > 2000 }}",
}


@pytest.fixture
def model(make_model, tokenizer):
    return make_model(vocab_size=tokenizer.get_vocab_size(), tokenizer=tokenizer)


@pytest.mark.slow
def test_templates_are_filled_in_as_transformers_does(model, tokenizer):
    transformers = pytest.importorskip("transformers")
    special = {"bos_token": "<|end|>", "eos_token": "<|im_end|>"}
    for name, template in TEMPLATES.items():
        theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=template, **special)
        model.chat_template, model.special_tokens = template, special
        for messages in (TALK[1:2], TALK):
            expected = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            assert model.chat(messages) == expected, name


def test_special_tokens_come_from_the_tokenizer_s_settings(tiny_folder, tmp_path):
    """As text or as an object; the end token of a turn need not be the first that ends an output."""
    target, asked = ms.load(tiny_folder, device="cpu"), [{"role": "user", "content": "x"}]
    target.end_tokens = frozenset({0, 5})
    target.chat_template = "{{ bos_token }}~{{ eos_token }}~{{ pad_token }}"
    end = target.tokenizer.id_to_token(0)
    assert target.chat(asked).split("~")[1] == end  # without settings: the first token that ends an output
    target.special_tokens = {"eos_token": "</turn>", "bos_token": "<s>"}
    assert target.chat(asked) == target.around(target.transformer).chat(asked) == "<s>~</turn>~"
    save_folder(target, tmp_path)
    assert load_folder(tmp_path).chat(asked) == "<s>~</turn>~"
    file = tmp_path / "tokenizer_config.json"
    others = {"bos_token": {"content": "<b>"}, "eos_token": None, "pad_token": "<p>", "add_bos_token": True}
    file.write_text(json.dumps(json.loads(file.read_text()) | others))
    assert load_folder(tmp_path).chat(asked) == f"<b>~{end}~<p>"


def test_a_broken_template_names_the_model_and_its_complaint(model):
    model.name = "some-model"
    for model.chat_template, said in (
        ("{% for m in messages %}", "TemplateSyntaxError"),
        ("{{ strange() }}", "'strange' is undefined"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ raise_exception('no system role') }}", "no system role"),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "its loops do not end"),
    ):
        with pytest.raises(ValueError, match=f"chat template of some-model .*{said}"):
            model.encode([USER])
