"""Names, folders and hub ids; the table of models; and smollm2 itself, against transformers on the same files."""

import json
import shutil

import huggingface_hub.constants
import pytest
import tiny_gguf
import torch

import minispec as ms
from minispec.load import fetch, registry
from minispec.load.folder import save_folder


@pytest.fixture
def place(monkeypatch, tmp_path):
    """Empty package data and empty cache folders; nothing may be fetched."""
    monkeypatch.setattr(registry, "DATA", tmp_path / "data")
    monkeypatch.setenv("MINISPEC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(fetch, "download", lambda name, heads: pytest.fail(f"{name} is about to be fetched"))
    return tmp_path


def test_the_table_of_models_tells_what_is_here(place, tiny_folder):
    for folder in (place / "data" / "micro", place / "home" / "smollm2"):
        shutil.copytree(tiny_folder, folder)
    micro, smollm2 = registry.KNOWN["micro"], registry.KNOWN["smollm2"]
    assert micro.size == smollm2.size == sum(f.stat().st_size for f in tiny_folder.iterdir())
    here = lambda: {row.split()[0] for row in repr(ms.models()).splitlines()[2:] if row.endswith("yes")}  # noqa: E731
    assert here() == {"micro", "smollm2"}
    (smollm2.folder / "model.safetensors").unlink()
    assert here() == {"micro"}


def test_names_folders_and_hub_ids(place, tiny_folder, monkeypatch):
    """A folder wins over a hub id; what is in the package is found there, and the rest is fetched."""
    assert ms.load(str(tiny_folder), device="cpu").name == str(tiny_folder)
    for folder in ("data/micro", "runs/mine"):
        shutil.copytree(tiny_folder, place / folder)
    assert ms.load("micro", device="cpu").name == "micro"
    monkeypatch.chdir(place)
    assert registry.locate("runs/mine").resolve() == place / "runs" / "mine"
    with pytest.raises(ValueError, match="'smollm2-draft'.*incomplete"):
        ms.load("smollm2-draft")
    for name in ("smolm2", "", "a/b/c", "no such/folder", "../there", "~/there"):
        with pytest.raises(ValueError, match=r"neither a known name \(micro, "):
            ms.load(name)
    asked = []
    monkeypatch.setattr(registry, "fetch", lambda name, heads: asked.append(name) or tiny_folder)
    for name in ("smollm2", "Qwen/Qwen3-0.6B"):
        assert ms.load(name, device="cpu").name == name
    assert asked == ["smollm2", "Qwen/Qwen3-0.6B"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Medusa", "Eagle", "DFlash", "MTP"])
def test_heads_that_ship_fit_micro(kind):
    target = ms.load("micro", device="cpu", dtype=torch.float64)
    prompt = "One day, a girl named Lily"
    out = ms.speculate(target, prompt, getattr(ms.drafters, kind)(target), k=4, max_new_tokens=20)
    assert out.tokens == ms.generate(target, prompt, max_new_tokens=20).tokens
    assert out.trace.target_passes < 16  # untrained they save next to nothing


@pytest.mark.parametrize("name", ["micro-medusa", "micro-eagle", "micro-dflash", "micro-mtp"])
def test_a_model_card_shows_the_accuracy_that_was_measured(name):
    accuracy = json.loads((registry.DATA / name / "config.json").read_text(encoding="utf-8"))["accuracy"]
    card = (registry.DATA / name / "README.md").read_text(encoding="utf-8")
    assert all(f"{row[0] if isinstance(row, list) else row:.3f}" in card for row in accuracy)


def test_draft_borrows_the_embedding_of_smollm2(place, make_model):
    """The lender is looked up by its name, in the cache folder."""
    target = make_model(**tiny_gguf.SHAPE, dtype=torch.float32, tie_embeddings=True)
    save_folder(target, place / "home" / "smollm2", bits=None)
    draft = make_model(**tiny_gguf.SHAPE, dtype=torch.float32, num_layers=1, seed=5, head_vocab=32)
    save_folder(draft, place / "data" / "smollm2-draft", embeddings_from="smollm2")
    loaded = ms.load("smollm2-draft", device="cpu")
    assert torch.equal(loaded.transformer.embed_tokens.weight, target.transformer.embed_tokens.weight)


# ---------------------------------------------------------------- the real one

PROMPTS = [
    "def fibonacci(n):\n    ",
    "In 1969, the first 12 astronauts",
    [
        {"role": "system", "content": "You answer in one short sentence."},
        {"role": "user", "content": "Why is the sky blue?"},
        {"role": "assistant", "content": "Because of Rayleigh scattering."},
        {"role": "user", "content": "And why is the sunset red? 🌇"},
    ],
]
CHATS = [[{"role": "user", "content": "What is the capital of France?"}], PROMPTS[-1]]
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
@pytest.mark.slow
@torch.inference_mode()
def test_smollm2_equals_transformers(smollm2, theirs):
    assert smollm2.num_parameters == 134_515_008 and smollm2.end_tokens == {2}
    for prompt in PROMPTS:
        tokens = torch.tensor([smollm2.encode(prompt)])
        assert (smollm2.transformer(tokens).logits - theirs[0](tokens).logits).abs().max() <= 1e-3, prompt
    written = theirs[0].generate(tokens, max_new_tokens=16, do_sample=False)[0, tokens.shape[1] :]
    assert ms.generate(smollm2, prompt, 16).tokens == written.tolist()


@pytest.mark.model
def test_smollm2_tokenizer_and_chat_equal_transformers(smollm2, theirs):
    for text in TEXTS:
        ids = smollm2.encode(text)
        assert ids == theirs[1](text)["input_ids"]
        assert smollm2.decode(ids) == theirs[1].decode(ids, skip_special_tokens=True)
    for messages in CHATS:
        text = theirs[1].apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert smollm2.chat(messages) == text
        assert smollm2.encode(messages) == theirs[1](text, add_special_tokens=False)["input_ids"]
