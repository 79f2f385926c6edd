"""Folders in Hugging Face's layout: whole ones give the stored model, and what is wrong with broken ones is named."""

import gzip
import json
import os
import shutil
import weakref
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

import minispec as ms
from minispec.load import folder as folders
from minispec.load import registry
from minispec.load.folder import default_dtype, load_folder, save_folder
from minispec_tools.export import export_model


@pytest.fixture
def folder(tiny_folder, tmp_path):
    """A fresh copy to break."""
    return shutil.copytree(tiny_folder, tmp_path / "copy")


def edit(file, **keys) -> None:
    """Change keys of a JSON file."""
    file.write_text(json.dumps(json.loads(file.read_text()) | keys))


def shard(folder) -> list:
    """Split model.safetensors into three shards with an index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names, weight_map = sorted(tensors), {}
    for n in range(3):
        file = f"model-{n + 1:05}-of-00003.safetensors"
        save_file({name: tensors[name] for name in names[n::3]}, folder / file)
        weight_map |= dict.fromkeys(names[n::3], file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return sorted(folder.glob("model-*.safetensors"))


def load(folder, **options) -> ms.Model:
    return ms.load(folder, device="cpu", **options)


def same(a: ms.Model, b: ms.Model) -> bool:
    tokens = torch.tensor([[5, 6, 7, 8]])
    return torch.equal(a.transformer(tokens).logits, b.transformer(tokens).logits)


# ---------------------------------------------------------------- what a folder gives


def test_a_folder_gives_the_whole_model(tiny_text, tokenizer):
    assert tiny_text.config.vocab_size == tokenizer.get_vocab_size()
    assert tiny_text.tokenizer.get_vocab() == tokenizer.get_vocab()
    assert tiny_text.end_tokens == {0} and "assistant" in tiny_text.chat_template
    assert tiny_text.decode(tiny_text.encode("The fox! 🦊")) == "The fox! 🦊"
    assert tiny_text.decode([0, *tiny_text.encode("sea"), 2]) == "sea"  # markers are not text
    expected = sum(p.numel() for p in tiny_text.transformer.parameters())
    assert tiny_text.num_parameters == expected and "float64" in repr(tiny_text)


def test_the_dtype_is_float32_unless_another_is_asked_for(tiny_folder):
    assert load(tiny_folder).dtype == torch.float32  # on a CPU, whatever the file holds
    for dtype, name in ((torch.float64, "float64"), (torch.bfloat16, "torch.bfloat16")):
        for given in (dtype, name):
            assert {p.dtype for p in load(tiny_folder, dtype=given).transformer.parameters()} == {dtype}
    for wrong in ("int8", "decimal", torch.int8, 3):
        with pytest.raises(ValueError, match="dtype="):
            load_folder(tiny_folder, dtype=wrong)


def test_the_dtype_follows_the_gpu(monkeypatch):
    asked = []
    for capability, dtype in (((6, 1), "float16"), ((7, 5), "float16"), ((8, 0), "bfloat16"), ((12, 0), "bfloat16")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, c=capability: asked.append(device) or c)
        assert default_dtype("cuda:1") == getattr(torch, dtype)
    assert set(asked) == {torch.device("cuda:1")}  # that GPU, not the current one
    assert default_dtype("cpu") == torch.float32 and len(asked) == 4


def test_no_more_than_one_shard_is_held_beside_the_model(folder, tiny_folder, monkeypatch):
    """When a shard is read, nothing is left of what was read before, apart from its copy in the wanted precision."""
    read, alive, read_file = [], [], folders._read_file

    def counted(*arguments):
        alive.append(sum(tensor() is not None for tensor in read))
        found = read_file(*arguments)
        read.extend(map(weakref.ref, found.values()))
        return found

    monkeypatch.setattr(folders, "_read_file", counted)
    assert len(shard(folder)) == 3
    model = load(folder)  # in float32, stored in float64
    assert alive == [0, 0, 0] and len(read) > 9
    assert sum(tensor() is not None for tensor in read) == 0
    assert same(model, load(tiny_folder))


def test_without_tokenizer_files_token_ids_are_the_prompt(folder, tiny_text):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    model = load(folder, dtype=torch.float64)
    assert model.tokenizer is None
    out = ms.generate(model, [5, 6, 7], 9)
    assert out.text is None and out.tokens == ms.generate(tiny_text, [5, 6, 7], 9).tokens
    with pytest.raises(ValueError, match="tokenizer"):
        model.decode([5])


def test_end_tokens_come_from_the_generation_config_first(folder):
    edit(folder / "config.json", eos_token_id=4)
    assert load(folder).end_tokens == {4}
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    assert load(folder).end_tokens == {7, 9}
    (folder / "generation_config.json").write_text("{}")
    assert load(folder).end_tokens == {4}
    edit(folder / "config.json", eos_token_id=None)
    assert load(folder).end_tokens == set()


def test_of_several_chat_templates_the_default_is_taken_unless_there_is_a_file(folder):
    tools, asked = {"name": "tool_use", "template": "tools"}, [{"role": "user", "content": "né"}]
    default = {"name": "default", "template": "{{ messages[0].role }}"}
    edit(folder / "tokenizer_config.json", chat_template=[tools, default])
    assert load(folder).chat(asked) == "user"
    for none in ([tools], [], ["default"], 5):
        edit(folder / "tokenizer_config.json", chat_template=none)
        with pytest.raises(ValueError, match="no chat template"):
            load(folder).chat(asked)
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }} – {{ eos_token }}")
    assert load(folder).chat(asked) == "né – <|end|>"
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"chat_template\.jinja is missing or damaged"):
        load(folder)


# ---------------------------------------------------------------- weights


@pytest.mark.parametrize("head_vocab", [None, 6])
@pytest.mark.parametrize("tied", [False, True])
def test_a_draft_may_borrow_its_targets_embedding(make_model, tmp_path, head_vocab, tied):
    """With no head of its own stored either, the head too is the target's embedding (its rows in the draft's list)."""
    target = make_model(tie_embeddings=True)
    draft = make_model(num_layers=1, tie_embeddings=tied, head_vocab=head_vocab)
    save_folder(target, tmp_path / "target", bits=None)
    save_folder(draft, tmp_path / "draft", bits=None, embeddings_from=str(tmp_path / "target"))
    assert "model.embed_tokens.weight" not in load_file(tmp_path / "draft" / "model.safetensors")
    assert same(load(tmp_path / "draft", dtype=torch.float64), draft)
    if head_vocab:
        file = tmp_path / "draft" / "model.safetensors"
        tensors = load_file(file)
        del tensors["lm_head.weight"]
        save_file(tensors, file)
        again = load(tmp_path / "draft").transformer
        assert torch.equal(again.lm_head.weight, again.embed_tokens.weight[again.head_ids])


def test_tied_heads_and_reduced_ones(make_model, tmp_path):
    """A tied head is one tensor with the embedding, stored once; a reduced one keeps its list of tokens."""
    for n, options in enumerate((dict(), dict(tie_embeddings=True), dict(head_vocab=6))):
        model, folder = make_model(**options), tmp_path / str(n)
        if "head_vocab" in options:
            model.transformer.head_ids.copy_(torch.tensor([9, 3, 60, 33, 1, 40]))
        save_folder(model, folder, bits=None)
        again, tied = load(folder, dtype=torch.float64), "tie_embeddings" in options
        assert (again.transformer.lm_head.weight is again.transformer.embed_tokens.weight) == tied
        assert ("lm_head.weight" in load_file(folder / "model.safetensors")) != tied
        assert same(model, again) and again.num_parameters == model.num_parameters


def test_a_compressed_file_is_the_same_file(tmp_path, make_model, monkeypatch):
    """One that is damaged, or expands without end, is refused."""
    model = make_model(dtype=torch.float32)
    save_folder(model, tmp_path / "plain", bits=8)
    shutil.copytree(tmp_path / "plain", tmp_path / "small")
    file = tmp_path / "small" / "model.safetensors"
    compressed = file.with_name("model.safetensors.gz")
    compressed.write_bytes(gzip.compress(file.read_bytes()))
    file.unlink()
    plain, small = (load_folder(tmp_path / name).transformer.state_dict() for name in ("plain", "small"))
    assert plain.keys() == small.keys() and all(torch.equal(plain[key], small[key]) for key in plain)
    compressed.write_bytes(compressed.read_bytes()[:-100])
    with pytest.raises(ValueError, match="damaged"):
        load_folder(tmp_path / "small")
    monkeypatch.setattr(folders, "MOST_EXPANDED", 2**16)
    compressed.write_bytes(gzip.compress(bytes(2**20)))
    with pytest.raises(ValueError, match="expands"):
        load_folder(tmp_path / "small")


def test_a_reduced_vocabulary_is_padded_for_other_engines(make_model, tmp_path):
    """Every other token gets the mean of the logits that there are, which is never the largest."""
    model = make_model(head_vocab=32, dtype=torch.float32)
    whole = ms.load(export_model(model, tmp_path), device="cpu", dtype=torch.float32)
    assert whole.config.head_vocab is None and whole.transformer.lm_head.weight.shape == (64, 32)
    tokens, ids = torch.randint(64, (3, 20), generator=torch.Generator().manual_seed(0)), model.transformer.head_ids
    ours, theirs = model.transformer(tokens).logits, whole.transformer(tokens).logits  # [3, 20, 64]
    others = [i for i in range(64) if i not in ids.tolist()]
    assert torch.allclose(theirs[..., ids], ours[..., ids], atol=1e-5)
    assert torch.allclose(theirs[..., others], ours[..., ids].mean(-1, keepdim=True).expand(-1, -1, 32), atol=1e-5)
    assert torch.equal(theirs.argmax(-1), ours.argmax(-1))


# ---------------------------------------------------------------- what does not load


def not_asked(*args):
    pytest.fail("a folder from elsewhere made us fetch")


@pytest.mark.parametrize(
    "keys, named",
    [
        # values of the wrong kind
        (dict(hidden_size=None), "hidden_size"),
        (dict(hidden_size="wide"), "hidden_size"),
        (dict(hidden_size=0), "hidden_size"),
        (dict(num_hidden_layers=2.5), "num_hidden_layers"),
        (dict(num_hidden_layers=True), "num_hidden_layers"),
        (dict(rope_theta=-1, rope_parameters=None), "rope_theta"),
        (dict(rope_theta="small", rope_parameters=None), "rope_theta"),
        (dict(rope_parameters=[1]), "rope_parameters"),
        (dict(eos_token_id="end"), "eos_token_id"),
        (dict(eos_token_id=[0, None]), "eos_token_id"),
        (dict(layer_types=7), "cannot be used"),
        # sizes that the weights do not have; the first would fill the memory
        (dict(num_hidden_layers=10**12), "num_hidden_layers"),
        (dict(num_hidden_layers=1000), "tensors"),
        (dict(intermediate_size=40), "mlp.*48.*40"),
        # what this package does not compute
        (dict(model_type="gemma2"), "gemma2.*supported"),
        (dict(model_type="deepseek_v3", n_routed_experts=8), "n_routed_experts=8.*supported"),
        (dict(quantization_config=dict(quant_method="compressed-tensors")), "compressed-tensors.*supported"),
        (dict(hidden_act="relu"), "relu.*supported"),
        (dict(rope_parameters=dict(rope_type="yarn", rope_theta=1e4, factor=2.0)), "yarn.*supported"),
        (dict(partial_rotary_factor=0.5), "partial_rotary_factor.*supported"),
        # an embedding that a folder from elsewhere would have us fetch
        (dict(embeddings_from="a/stranger"), "embeddings_from"),
        (dict(embeddings_from="nowhere"), "embeddings_from"),
        (dict(embeddings_from=["a"]), "embeddings_from"),
    ],
    ids=str,
)
def test_a_config_that_cannot_be_used_is_refused(folder, monkeypatch, keys, named):
    monkeypatch.setattr(registry, "fetch", not_asked)
    edit(folder / "config.json", **keys)
    with pytest.raises(ValueError, match=named):
        load(folder)


def test_a_damaged_file_is_named(folder):
    """Cut off, something else, or gone. With all of them repaired the folder loads again."""
    _, *shards = shard(folder)
    files = [folder / name for name in ("config.json", "tokenizer.json", "model.safetensors.index.json")]
    for file in (*files, *shards):
        whole = file.read_bytes()
        for content in (
            b"",
            whole[: len(whole) // 2],
            b"<html>404 not found</html>",
            b"\xff",
            b"[]",
            b'{"a":' * 100_000,
        ):
            file.write_bytes(content)
            with pytest.raises(ValueError, match=file.name):
                load(folder)
                pytest.fail(f"{file.name}: {content[:20]}")
        file.unlink()
        if file.suffix == ".safetensors" or file.name == "config.json":
            with pytest.raises(ValueError, match=file.name):
                load(folder)
        file.write_bytes(whole)
    load(folder)
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    with pytest.raises(ValueError, match="safetensors"):
        load(folder)


def test_a_tokenizer_on_which_the_library_panics_is_named(folder, monkeypatch):
    class Panic(BaseException):
        pass

    monkeypatch.setattr(folders, "Tokenizer", SimpleNamespace(from_file=lambda file: (_ for _ in ()).throw(Panic("x"))))
    with pytest.raises(ValueError, match="tokenizer.json is missing or damaged"):
        load(folder)


def test_tensors_that_are_missing_or_that_the_config_does_not_account_for(folder):
    """A bias that would not be added, or a scale that would not be applied: silently wrong, so refused."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    save_file(tensors | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}, file)
    load(folder)  # what older files carry is computed here
    for key in ("model.layers.0.self_attn.q_proj.bias", "model.layers.1.mlp.up_proj.weight_scale"):
        save_file(tensors | {key: torch.ones(4)}, file)
        with pytest.raises(ValueError, match=f"{key.removeprefix('model.')}.*give"):
            load(folder)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, file)
    with pytest.raises(ValueError, match=r"layers\.1\.mlp\.up_proj"):
        load(folder)


def test_weights_come_from_ordinary_files_of_the_folder(folder, tiny_folder, tmp_path):
    """A folder from elsewhere may not read other files, and may not make us wait at a pipe."""
    other = shutil.copytree(tiny_folder, tmp_path / "other") / "model.safetensors"
    os.mkfifo(folder / "pipe.safetensors")
    index = folder / "model.safetensors.index.json"
    for name in (str(other), "../other/model.safetensors", "pipe.safetensors", 5, ["x"]):
        index.write_text(json.dumps({"weight_map": {"a": name}}))
        with pytest.raises(ValueError, match="no file of this folder|no weight_map"):
            load(folder)
    index.unlink()
    (folder / "pipe.safetensors").replace(folder / "model.safetensors")
    with pytest.raises(ValueError, match="safetensors"):
        load(folder)
