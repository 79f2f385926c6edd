"""GGUF: every number as the `gguf` package reads it, and the model that comes out computes what went in."""

import json
import struct

import gguf
import numpy as np
import pytest
import tiny_gguf
import torch
from gguf import GGMLQuantizationType as Type

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
    ours.convert(tiny_gguf.write(place / "tiny.gguf", model), place, progress=False)
    return place


@pytest.mark.parametrize("kind", [Type.F32, Type.F16, Type.Q8_0, Type.Q4_1, Type.Q4_0], ids=lambda kind: kind.name)
def test_reads_what_the_gguf_package_reads(model, tmp_path, kind):
    file = tiny_gguf.write(tmp_path / "tiny.gguf", model, kind)
    theirs, mine = gguf.GGUFReader(file), ours.read(file)
    facts = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert mine.facts == facts
    assert list(mine.tensors) == [t.name for t in theirs.tensors]
    kinds = set()
    for tensor in theirs.tensors:
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        found = mine.tensors[tensor.name]
        kinds.add(found.format.name)
        assert found.numpy().dtype == np.float32
        np.testing.assert_array_equal(found.numpy(), expected)  # bit for bit, not nearly
    assert kinds == {kind.name, "F32"}


def test_converted_model_is_the_model(model, folder):
    """Names, shapes, the order of q's and k's rows, RoPE's base, tying: any of them wrong and the logits differ."""
    loaded = ms.load(folder, device="cpu")
    assert loaded.config == model.config
    tokens = torch.arange(40)[None] % model.config.vocab_size
    torch.testing.assert_close(loaded.transformer(tokens).logits, model.transformer(tokens).logits, rtol=0, atol=0)
    assert loaded.end_tokens == {2}


def test_untied_head_is_kept(make_model, tmp_path):
    model = make_model(**tiny_gguf.SHAPE, dtype=torch.float32)
    ours.convert(tiny_gguf.write(tmp_path / "tiny.gguf", model), tmp_path, progress=False)
    loaded, tokens = ms.load(tmp_path, device="cpu"), torch.arange(9)[None]
    assert not loaded.config.tie_embeddings
    torch.testing.assert_close(loaded.transformer(tokens).logits, model.transformer(tokens).logits, rtol=0, atol=0)


def test_unpermute_undoes_llama_cpp():
    weight = np.arange(6 * 8 * 3, dtype=np.float32).reshape(48, 3)
    np.testing.assert_array_equal(ours.unpermute(tiny_gguf.permute(weight, 6), 6), weight)
    assert not np.array_equal(tiny_gguf.permute(weight, 6), weight)


@pytest.mark.slow
def test_files_for_others(folder):
    """transformers opens the same folder: same logits, same tokens, same chat text."""
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    mine, tokens = ms.load(folder, device="cpu"), torch.arange(30)[None]
    torch.testing.assert_close(mine.transformer(tokens).logits, theirs(tokens).logits, rtol=0, atol=1e-4)
    for text in TEXTS:
        assert mine.encode(text) == tokenizer(text)["input_ids"]
        assert mine.decode(mine.encode(text)) == tokenizer.decode(
            tokenizer(text)["input_ids"], skip_special_tokens=True
        )
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


def test_special_tokens_are_one_token_each(folder):
    model = ms.load(folder, device="cpu")
    assert model.encode("<|im_start|>a<|im_end|>") == [1, model.tokenizer.token_to_id("a"), 2]
    assert model.decode([1, model.tokenizer.token_to_id("a"), 2]) == "a"
    # "1 2" is among the merges, but digits are cut apart before merging.
    assert len(model.encode("12")) == 2


@pytest.mark.parametrize("keep", [0, 3, 20, 100, 2_000, -4_000, -1])
def test_truncated_file_is_refused(model, tmp_path, keep):
    file = tiny_gguf.write(tmp_path / "tiny.gguf", model)
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ValueError, match="not a whole GGUF"):
        ours.convert(file, tmp_path, progress=False)
    assert not (tmp_path / "model.safetensors").exists()


@pytest.mark.parametrize(
    "at, bytes_, said",
    [(0, b"ZIP!", "ZIP!"), (4, struct.pack("<I", 2), "version 2"), (4, struct.pack(">I", 3), "only GGUF version 3")],
)
def test_other_formats_are_refused(model, tmp_path, at, bytes_, said):
    file = tiny_gguf.write(tmp_path / "tiny.gguf", model)
    data = bytearray(file.read_bytes())
    data[at : at + 4] = bytes_
    file.write_bytes(data)
    with pytest.raises(ValueError, match=said):
        ours.read(file)


@pytest.mark.parametrize(
    "change, said",
    [
        (dict(quantise=Type.Q5_0), "tensor type 6"),
        (dict(arch="qwen2"), "general.architecture='qwen2'"),
        (dict(pre="llama-bpe"), "llama-bpe"),
        (dict(extra={"rope_freqs.weight": np.ones(8, np.float32)}), "rope_freqs.weight"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(model, tmp_path, change, said):
    file = tiny_gguf.write(tmp_path / "tiny.gguf", model, **change)
    with pytest.raises(ValueError, match=said):
        ours.convert(file, tmp_path, progress=False)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["tiny.gguf"]
