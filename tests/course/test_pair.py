"""One device for the course: the GPU if there is one, what MINISPEC_DEVICE says, and the models that belong to it."""

from __future__ import annotations

import pytest
import torch

import minispec as ms
from minispec.load.fetch import FetchError
from minispec_course.labs import pair
from minispec_course.labs.batching import endless


@pytest.fixture
def loaded(monkeypatch) -> list:
    """As if there were a GPU: what would be loaded onto it."""
    calls = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(pair, "load", lambda name, device: calls.append((name, str(device))) or name)
    return calls


def test_the_device_is_the_gpu_if_there_is_one(monkeypatch):
    monkeypatch.delenv("MINISPEC_DEVICE", raising=False)
    for there, kind in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert ms.device() == torch.device(kind)


def test_the_environment_overrides_it_and_models_follow(monkeypatch, tiny_folder):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("MINISPEC_DEVICE", "cpu")
    assert ms.device() == torch.device("cpu") == ms.load(tiny_folder).device
    monkeypatch.setenv("MINISPEC_DEVICE", "")  # as good as unset
    assert ms.device() == torch.device("cuda")


@pytest.mark.parametrize("wrong", ["gpu", "cuda:7", "cpu:x"])
def test_a_wrong_environment_is_said_in_words(monkeypatch, wrong):
    monkeypatch.setenv("MINISPEC_DEVICE", wrong)
    with pytest.raises(ValueError, match=f"MINISPEC_DEVICE.*{wrong}.*cpu"):
        ms.device()


def test_a_cpu_gets_micro():
    target, draft = pair.course_pair("cpu")
    assert (target.name, draft.name) == ("micro", "micro-draft") and target.device == draft.device == torch.device(
        "cpu"
    )


def test_a_gpu_gets_smollm2(loaded, monkeypatch):
    monkeypatch.setattr(pair, "locate", lambda name: None)
    assert pair.course_pair("cuda") == ("smollm2", "smollm2-draft")
    assert loaded == [("smollm2", "cuda"), ("smollm2-draft", "cuda")]


def test_where_smollm2_cannot_be_had_the_page_says_so(loaded, monkeypatch, capsys):
    def refuse(name):
        raise FetchError("no network")

    monkeypatch.setattr(pair, "locate", refuse)
    assert pair.course_pair("cuda") == ("micro", "micro-draft")
    said = capsys.readouterr().out
    assert "micro" in said and "SmolLM2" in said and "no network" in said


def test_a_cpu_is_named():
    assert "cores" in pair.where("cpu")


def test_a_model_without_end_tokens_is_recorded_as_its_target_is(make_model):
    target = make_model()
    assert endless(target).end_tokens == frozenset() and endless(target).backend is None
    target.accelerate()
    same = endless(target)
    assert same.backend is not None and same.backend.model is same and same.transformer is target.transformer
