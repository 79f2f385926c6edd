"""Shared fixtures: tiny random models that every test file may use, and when the marked tests are skipped."""

import os
from functools import lru_cache
from pathlib import Path

import hypothesis
import pytest
import torch
from browsers import find_chromium
from tiny_models import byte_level, random_model
from tokenizers import Tokenizer

import minispec as ms
from minispec.load.folder import save_folder
from minispec.load.registry import locate
from minispec_tools import cli

torch.set_num_threads(1)
# Scripts that tests start in processes of their own use the helpers beside this file, too.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))

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


# A file is one worker's, so the longest begin first: one of them at the end would leave the other workers idle.
LONGEST = (
    "test_lab test_speculate test_engine_sampling test_engine_failures test_exercises test_grader test_site_pages "
    "test_cpu test_kernels test_parallel test_attacks 09_medusa 10_eagle_and_dflash 08_drafters 02_kv_cache "
    "12_fewer_bytes"
).split()


@pytest.hookimpl(trylast=True)  # after -m and -k have chosen
def pytest_collection_modifyitems(config, items):
    """Every lesson runs once: nbval leaves to the browser what it drives. `--no-loadscope-reorder` keeps this order."""
    tests = [item for item in items if item.path.stem == "test_lab" and hasattr(item, "callspec")]
    driven = {item.callspec.params["name"] for item in tests} if find_chromium() else set()
    config.hook.pytest_deselected(items=[item for item in items if item.path.name in driven])
    rank = {name: position for position, name in enumerate(LONGEST)}
    items[:] = [item for item in items if item.path.name not in driven]
    items.sort(key=lambda item: rank.get(item.path.stem, len(LONGEST)))


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    if item.get_closest_marker("model") and (reason := missing_smollm2()):
        pytest.skip(reason)


# ---------------------------------------------------------------- tiny models


@pytest.fixture(scope="session")
def make_model():
    """Factory: make_model(num_layers=3, seed=1, dtype=torch.float32, …) -> ms.Model."""
    return random_model


@pytest.fixture(scope="session")
def tiny() -> ms.Model:
    """A random target: 64 tokens, 2 layers, float64, no tokenizer."""
    return random_model()


@pytest.fixture(scope="session")
def tiny_draft() -> ms.Model:
    """The first layer of `tiny` as a model of its own: same vocabulary, agrees with it now and then."""
    return random_model(num_layers=1)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """Byte-level BPE on four sentences."""
    return byte_level(320, SPECIAL, SENTENCES)


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


@pytest.fixture(scope="session")
def draft_folder(tmp_path_factory, make_model, tokenizer):
    """The first layer of `tiny_text`, on disk."""
    folder = tmp_path_factory.mktemp("tiny") / "draft"
    save_folder(make_model(vocab_size=tokenizer.get_vocab_size(), seed=3, num_layers=1), folder, bits=None)
    return folder


@pytest.fixture
def run(capsys):
    """run("demo", "--json") -> exit code, stdout, stderr."""

    def call(*argv: object):
        code = cli.main([str(a) for a in argv])
        return code, *capsys.readouterr()

    return call
