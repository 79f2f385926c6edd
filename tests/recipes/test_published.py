"""One command trains three kinds of heads in their published forms, and measures the folders that others read."""

from __future__ import annotations

import json

import pytest
import torch

import minispec as ms
from minispec.load.heads import is_public
from recipes import corpus as writing
from recipes import published


@pytest.mark.slow
def test_heads_are_trained_written_and_measured_once(run, tiny_folder, tmp_path, monkeypatch):
    target = ms.load(tiny_folder, device="cpu", dtype=torch.float32)
    prompts = [[5 + i, 6, 7 + i] for i in range(12)]
    writing.write(target, prompts, tmp_path / "corpus", rows=24, max_new_tokens=20, batch=24)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "The fox"}\n{"prompt": "The sea"}\n', encoding="utf-8")
    options = [
        "--model",
        tiny_folder,
        "--device",
        "cpu",
        "--dtype",
        "float32",
        "--corpus",
        tmp_path / "corpus",
        "--out",
        tmp_path / "out",
        "--steps",
        2,
        "--mlp",
        16,
        "--batch-tokens",
        256,
        "--tokens",
        6,
        "--prompts",
        tmp_path / "prompts.jsonl",
    ]
    code, _, err = run("train", "published", *options)
    assert code == 0, err
    facts = json.loads((tmp_path / "out" / "facts.json").read_text(encoding="utf-8"))
    assert facts["prompts"] == 2
    for name in published.RECIPES:
        folder = tmp_path / "out" / name / "published"
        assert is_public(folder) and facts[name]["greedy"] >= 1 and facts[name]["temperature 1"] >= 1
        drafter = published.drafter_of(name, target, folder)
        assert ms.speculate(target, [5, 6, 7], drafter, 3, 8).tokens == ms.generate(target, [5, 6, 7], 8).tokens
    for module, _ in published.RECIPES.values():  # what is there is not trained again
        monkeypatch.setattr(module, "run", lambda *_: 1 / 0)
    assert run("train", "published", *options)[0] == 0
