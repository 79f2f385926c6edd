"""GGUF: every number is what the file says, and the model that comes out computes what went in."""

import json

import gguf
import numpy as np
import pytest
import tiny_gguf
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file

import minispec as ms
from minispec.load import gguf as ours

TEXTS = [
    "the thing on the other line",
    "Hello, world! It's 12 o'clock; we'll meet at 1200.",
    "def f(x):\n\n    return x**2  # 12\n\n\n 12\t\r\n",
    "Il était une fois un café. 日本語 🦊 ½ ² ٣٤ Ⅳ",
    "<|im_start|>user\nhi<|im_end|>\n",
    "   ",
]


@pytest.fixture(scope="module")
def model(make_model):
    return make_model(**tiny_gguf.SHAPE, dtype=torch.float32, tie_embeddings=True, rope_theta=100_000.0)


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    """`model`, written as GGUF and converted."""
    place = tmp_path_factory.mktemp("converted")
    ours.convert(tiny_gguf.write(place / "tiny.gguf", model), place)
    return place


def test_every_number_is_what_the_file_stands_for(model, tmp_path):
    """Bit for bit, for every type of block: llama.cpp's own dequantisation, and its rows of q and k put back."""
    right = tiny_gguf.tensors_of(model)
    for kind in (Type.F32, Type.F16, Type.Q8_0, Type.Q4_1, Type.Q4_0, Type.Q5_0):
        ours.convert(tiny_gguf.write(tmp_path / "tiny.gguf", model, kind), tmp_path)
        found = load_file(tmp_path / "model.safetensors")
        for name, theirs, heads in (
            ("embed_tokens", "token_embd", None),
            ("layers.1.self_attn.k_proj", "blk.1.attn_k", 2),
            ("layers.0.mlp.down_proj", "blk.0.ffn_down", None),
        ):
            stored = gguf.quants.dequantize(gguf.quants.quantize(right[f"{theirs}.weight"], kind), kind)
            stored = stored if heads is None else ours.unpermute(stored, heads)
            np.testing.assert_array_equal(found[f"model.{name}.weight"].numpy(), stored, err_msg=f"{kind.name} {name}")


def test_converted_model_is_the_model(model, folder):
    """Names, shapes, the order of q's and k's rows, RoPE's base, tying: any of them wrong and the logits differ."""
    loaded = ms.load(folder, device="cpu")
    assert loaded.config == model.config
    tokens = torch.arange(40)[None] % model.config.vocab_size
    torch.testing.assert_close(loaded.transformer(tokens).logits, model.transformer(tokens).logits, rtol=0, atol=0)
    assert loaded.end_tokens == {2}


@pytest.mark.slow
def test_transformers_opens_the_converted_folder(folder):
    """With the same logits, the same tokens and the same chat text."""
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    mine, tokens = ms.load(folder, device="cpu"), torch.arange(30)[None]
    torch.testing.assert_close(mine.transformer(tokens).logits, theirs(tokens).logits, rtol=0, atol=1e-4)
    for text in TEXTS:
        assert mine.encode(text) == tokenizer(text)["input_ids"]
        assert mine.decode(mine.encode(text)) == tokenizer.decode(mine.encode(text), skip_special_tokens=True)
    messages = [{"role": "user", "content": "hi"}]
    assert mine.chat(messages) == tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|im_end|>")
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == 2


def test_words_are_cut_as_llama_cpp_cuts_them(folder):
    """Its "smollm" rule: first every numeral (any script) alone, then GPT-2's expression on what lies between."""
    regex = pytest.importorskip("regex")
    words = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
    tokenizer = ms.load(folder, device="cpu").tokenizer
    for text in TEXTS[:4]:
        pieces = [piece for part in regex.split(r"(\p{N})", text) for piece in words.findall(part)]
        assert "".join(pieces) == text
        cut = [text[start:end] for _, (start, end) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
        assert cut == pieces
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
