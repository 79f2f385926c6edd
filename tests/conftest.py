"""Shared fixtures: tiny random models that every test file may use, and when the marked tests are skipped.

`make_model(...)` draws each parameter from its own name and the seed. So two models of one seed share every parameter
that both have: `make_model(num_layers=1)` is exactly the first layer of `make_model(num_layers=2)`, a draft that agrees
with its target now and then, as a good draft for tests should. Ask for another seed to get a stranger.
"""

from __future__ import annotations

import zlib
from functools import lru_cache

import hypothesis
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import minispec as ms
from minispec.registry import locate
from minispec.weights import build, save_folder

torch.set_num_threads(1)

# Tests must give the same verdict on every run and machine: no clock, no fresh randomness, no database of old failures.
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True, database=None, max_examples=30)
hypothesis.settings.load_profile("repeatable")

SENTENCES = [
    "Once upon a time there was a small fox who lived in the old wood.",
    "The fox said: come with me, and we will see the sea before the sun goes down.",
    "One day the bird and the fox went to the river, and the river was cold.",
    "Il était une fois un café très célèbre. Das Mädchen läuft über die Brücke. 日本語 🦊",
]
SPECIAL = ["<|end|>", "<|user|>", "<|assistant|>"]  # ids 0, 1, 2
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


# ---------------------------------------------------------------- marked tests


@lru_cache(maxsize=1)
def missing_smollm2() -> str | None:
    """Why smollm2 cannot be had here; None when it can."""
    try:
        locate("smollm2")
    except Exception as error:  # whatever stands in the way (no source, no network, no disk), the tests cannot run
        return f"smollm2 is not available: {error}"
    return None


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    if item.get_closest_marker("model") and (reason := missing_smollm2()):
        pytest.skip(reason)


# ---------------------------------------------------------------- tiny models

TINY = dict(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8,
    max_length=512,
)  # fmt: skip


def random_model(*, seed=0, dtype=torch.float64, device="cpu", tokenizer=None, end_tokens=(), **overrides) -> ms.Model:
    """A random Llama-like model; `overrides` are fields of Config. Its laws are neither flat nor one-hot."""
    config = ms.Config(**TINY | overrides)
    with torch.device("meta"):  # names and shapes only; a tied head is the embedding and comes once
        shapes = {name: parameter.shape for name, parameter in ms.Transformer(config).named_parameters()}
    tensors = {"head_ids": torch.arange(config.head_vocab)} if config.head_vocab else {}
    for name, shape in shapes.items():
        generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        if "norm" in name:
            tensors[name] = 1 + 0.2 * noise
        elif name == "lm_head.weight":
            tensors[name] = 2 * noise / config.hidden_size**0.5
        elif name == "embed_tokens.weight":
            tensors[name] = 0.4 * noise
        elif noise.ndim == 2:
            tensors[name] = 1.5 * noise / noise.shape[1] ** 0.5
        else:
            tensors[name] = 0.2 * noise  # biases
    transformer = build(config, tensors, where="a random model", device=device, dtype=dtype)
    return ms.Model(f"tiny-{seed}", transformer, tokenizer, end_tokens)


@pytest.fixture(scope="session")
def make_model():
    """Factory: make_model(num_layers=3, seed=1, dtype=torch.float32, …) -> ms.Model."""
    return random_model


@pytest.fixture(scope="session")
def tiny() -> ms.Model:
    """A random target: 64 tokens, 2 layers, float64, no tokenizer."""
    return random_model()


@pytest.fixture(scope="session")
def tiny32() -> ms.Model:
    """The same in float32."""
    return random_model(dtype=torch.float32)


@pytest.fixture(scope="session")
def tiny_draft() -> ms.Model:
    """The first layer of `tiny` as a model of its own: same vocabulary, agrees with it now and then."""
    return random_model(num_layers=1)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """Byte-level BPE on four sentences: any text encodes, and rare characters take several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return tokenizer


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory, tokenizer):
    """`tiny_text` on disk. Copy it before breaking it."""
    model = random_model(vocab_size=tokenizer.get_vocab_size(), seed=3, tokenizer=tokenizer, end_tokens=[0])
    model.chat_template = CHAT_TEMPLATE
    folder = tmp_path_factory.mktemp("tiny") / "text"
    save_folder(model, folder, bits=None)
    return folder


@pytest.fixture(scope="session")
def tiny_text(tiny_folder) -> ms.Model:
    """A random target with tokenizer, chat template and end token, float64."""
    return ms.load(tiny_folder, device="cpu", dtype=torch.float64)
