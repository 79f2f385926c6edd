"""Names, folders and hub ids; the table of models; and smollm2 itself, against transformers on the same files."""

import json
import shutil

import pytest
import tiny_gguf
import torch

import minispec as ms
from minispec.load import registry
from minispec.load.folder import save_folder


@pytest.fixture
def place(monkeypatch, tmp_path):
    """Empty package data and an empty cache folder; nothing may be fetched."""
    monkeypatch.setattr(registry, "DATA", tmp_path / "data")
    monkeypatch.setenv("MINISPEC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(registry, "fetch", lambda name, heads: pytest.fail(f"{name} is about to be fetched"))
    return tmp_path


def test_models_is_a_list_that_prints_as_a_table(place):
    listed = ms.models()
    assert isinstance(listed, list)
    of = lambda target, *kinds: [target, *(f"{target}-{kind}" for kind in kinds)]  # noqa: E731
    kinds = ("draft", "medusa", "eagle", "dflash")
    assert [e.name for e in listed] == [*of("micro", *kinds, "mtp"), *of("smollm2", *kinds)]
    assert ms.models.table() == str(listed) == repr(listed)
    head, rule, *rows = str(listed).splitlines()
    assert head.split()[0] == "name" and set(rule) == {"-", " "}
    starts = [i for i in range(len(rule)) if rule[i] == "-" and (i == 0 or rule[i - 1] == " ")]
    for entry, row in zip(listed, rows, strict=True):  # every column begins where its rule begins
        cells = [row[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True)]
        assert cells[0] == entry.name and entry.licence in cells and entry.source in cells
        assert cells[-1] == "no"


def test_table_tells_what_is_here(place, tiny_folder, tiny_text):
    for folder in (place / "data" / "micro", place / "home" / "smollm2"):
        shutil.copytree(tiny_folder, folder)
    micro, smollm2 = registry.KNOWN["micro"], registry.KNOWN["smollm2"]
    for entry in (micro, smollm2):
        assert entry.present() and not registry.KNOWN["micro-draft"].present()
        assert entry.parameters == tiny_text.num_parameters
        assert entry.size == sum(f.stat().st_size for f in tiny_folder.iterdir())
    here = lambda: {row.split()[0]: row.split()[-1] for row in ms.models.table().splitlines()[2:]}  # noqa: E731
    assert here() == {name: "yes" if name in ("micro", "smollm2") else "no" for name in registry.KNOWN}
    (micro.folder / "model.safetensors").write_bytes(b"damaged")  # a table is drawn all the same
    assert micro.parameters is None
    (smollm2.folder / "model.safetensors").unlink()
    assert here()["micro"] == "yes" and here()["smollm2"] == "damaged"


def test_int8_weights_count_once(place, make_model):
    """Neither scales nor the list of a draft's tokens are parameters."""
    model = make_model(head_vocab=16, dtype=torch.float32)
    save_folder(model, place / "data" / "micro", bits=8)
    assert registry.KNOWN["micro"].parameters == model.num_parameters


def test_folder_and_name(place, tiny_folder):
    assert registry.locate(str(tiny_folder)) == tiny_folder
    assert ms.load(str(tiny_folder), device="cpu").name == str(tiny_folder)
    shutil.copytree(tiny_folder, place / "data" / "micro")
    assert ms.load("micro", device="cpu").name == "micro"


def test_folder_wins_over_a_hub_id(place, tiny_folder, monkeypatch):
    shutil.copytree(tiny_folder, place / "runs" / "mine")
    monkeypatch.chdir(place)
    assert registry.locate("runs/mine").resolve() == place / "runs" / "mine"


def test_package_without_its_data(place):
    for name in ("micro", "smollm2-draft"):
        with pytest.raises(ValueError, match=f"'{name}'.*incomplete"):
            ms.load(name)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Medusa", "Eagle", "DFlash", "MTP"])
def test_heads_that_ship_fit_micro(kind):
    target = ms.load("micro", device="cpu", dtype=torch.float64)
    prompt = "One day, a girl named Lily"
    out = ms.speculate(target, prompt, getattr(ms.drafters, kind)(target), k=4, max_new_tokens=20)
    assert out.tokens == ms.generate(target, prompt, max_new_tokens=20).tokens
    assert out.trace.target_passes < 16  # untrained they save next to nothing
    folder = registry.DATA / f"micro-{kind.lower()}"
    accuracy = json.loads((folder / "config.json").read_text(encoding="utf-8"))["accuracy"]
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert all(f"{row[0] if isinstance(row, list) else row:.3f}" in card for row in accuracy)


def test_heads_are_no_model():
    with pytest.raises(ValueError, match="medusa heads for 'micro', not a model"):
        ms.load("micro-medusa", device="cpu")


def test_unknown_name(place):
    for name in ("smolm2", "", "a/b/c", "no such/folder", "../there", "~/there"):
        with pytest.raises(ValueError, match=r"neither a known name \(micro, "):
            ms.load(name)


def test_absent_models_are_fetched(place, monkeypatch, tiny_folder):
    asked = []
    monkeypatch.setattr(registry, "fetch", lambda name, heads: asked.append(name) or tiny_folder)
    assert ms.load("smollm2", device="cpu").name == "smollm2"
    assert ms.load("Qwen/Qwen3-0.6B", device="cpu").name == "Qwen/Qwen3-0.6B"
    assert asked == ["smollm2", "Qwen/Qwen3-0.6B"]


def test_draft_borrows_the_embedding_of_smollm2(place, make_model):
    """The lender is looked up by its name, in the cache folder."""
    target = make_model(**tiny_gguf.SHAPE, dtype=torch.float32, tie_embeddings=True)
    save_folder(target, place / "home" / "smollm2", bits=None)
    draft = make_model(**tiny_gguf.SHAPE, dtype=torch.float32, num_layers=1, seed=5, head_vocab=32)
    save_folder(draft, place / "data" / "smollm2-draft", embeddings_from="smollm2")
    loaded = ms.load("smollm2-draft", device="cpu")
    assert torch.equal(loaded.transformer.embed_tokens.weight, target.transformer.embed_tokens.weight)
    assert registry.KNOWN["smollm2-draft"].parameters < loaded.num_parameters  # what is borrowed is not stored


# ---------------------------------------------------------------- the real one

PROMPTS = [
    "Once upon a time",
    "def fibonacci(n):\n    ",
    "In 1969, the first 12 astronauts",
    [{"role": "user", "content": "What is the capital of France?"}],
    [
        {"role": "system", "content": "You answer in one short sentence."},
        {"role": "user", "content": "Why is the sky blue?"},
        {"role": "assistant", "content": "Because of Rayleigh scattering."},
        {"role": "user", "content": "And why is the sunset red? 🌇"},
    ],
]
TEXTS = [
    "It's 3.14159, isn't it?  We'll see in 2024.\n\n 12 o'clock\t\r\n",
    "Il était une fois un café très célèbre. Das Mädchen läuft über die Brücke. 日本語 한국어 🦊👩‍🚀 ½ ² ٣٤ Ⅳ",
    "for i in range(10):\n        print(f'{i:>3}')  # <- here\n\n\n",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
    " leading and trailing ",
]


@pytest.fixture(scope="module")
def smollm2():
    return ms.load("smollm2", device="cpu", dtype=torch.float32)


@pytest.fixture(scope="module")
def theirs():
    transformers = pytest.importorskip("transformers")
    folder = registry.locate("smollm2")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model, transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.model
def test_smollm2_is_what_it_should_be(smollm2):
    c = smollm2.config
    assert (c.num_layers, c.hidden_size, c.num_heads, c.num_kv_heads, c.vocab_size) == (30, 576, 9, 3, 49_152)
    assert (c.rope_theta, c.norm_eps, c.tie_embeddings, c.max_length) == (100_000.0, 1e-5, True, 8192)
    assert smollm2.num_parameters == registry.KNOWN["smollm2"].parameters == 134_515_008
    assert smollm2.end_tokens == {2}
    assert "source" in json.loads((registry.locate("smollm2") / "source.json").read_text())


@pytest.mark.model
@torch.inference_mode()
def test_smollm2_logits_equal_transformers(smollm2, theirs):
    for prompt in PROMPTS:
        tokens = torch.tensor([smollm2.encode(prompt)])
        difference = smollm2.transformer(tokens).logits - theirs[0](tokens).logits
        assert difference.abs().max() <= 1e-3


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize("prompt", PROMPTS, ids=["story", "code", "numbers", "chat", "conversation"])
def test_smollm2_greedy_equals_transformers(smollm2, theirs, prompt):
    tokens = smollm2.encode(prompt)
    mine = ms.generate(smollm2, prompt, 64).tokens
    written = theirs[0].generate(torch.tensor([tokens]), max_new_tokens=64, do_sample=False)[0, len(tokens) :]
    assert mine == written.tolist()
    assert len(mine) == 64 or mine[-1] in smollm2.end_tokens


@pytest.mark.model
def test_smollm2_chat_equals_transformers(smollm2, theirs):
    for messages in PROMPTS[3:]:
        text = theirs[1].apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert smollm2.chat(messages) == text
        assert smollm2.encode(messages) == theirs[1](text, add_special_tokens=False)["input_ids"]


@pytest.mark.model
def test_smollm2_tokenizer_equals_transformers(smollm2, theirs):
    for text in TEXTS + [p for p in PROMPTS if isinstance(p, str)]:
        ids = smollm2.encode(text)
        assert ids == theirs[1](text)["input_ids"]
        assert smollm2.tokenizer.decode(ids, skip_special_tokens=False) == text
        assert smollm2.decode(ids) == theirs[1].decode(ids, skip_special_tokens=True)
