"""`bench rules` and `bench budget`: what their figures are, on tiny models."""

from __future__ import annotations

import pytest
from tiny_models import random_model

import minispec as ms
from benchmarks import budget, rules
from minispec.trace import Cycle


def cycle(p: list[float], q: list[float]) -> Cycle:
    return Cycle([0] * len(p), None, p, q, [], 0, False, 1, 5)


def test_expected_lengths_of_one_draft():
    expected = rules.expected_accepted(cycle([1 / 3, 2 / 3], [2 / 3, 1 / 3]))
    assert expected == pytest.approx({"token": 1.0, "block": 1.5})  # ½ + ½·1, ½ + 1
    assert rules.expected_accepted(cycle([], [])) == {"token": 0, "block": 0}


def test_rules_on_a_tiny_pair(tiny, tiny_draft):
    result = rules.measure(tiny, ms.drafters.Model(tiny_draft), [[1, 2, 3], [4, 5]] * 3, ks=(1, 3), new_tokens=10)
    one, three = result["results"]
    assert one["expected"]["ratio"] == pytest.approx(1.0)  # with one draft token the rules are the same
    assert three["expected"]["ratio"] > 1.0 and three["expected"]["error"] > 0
    for row in result["results"]:
        for rule in ("token", "block"):
            assert row[rule]["tokens"] == 60 and 1 <= row[rule]["tokens_per_pass"] <= row["k"] + 1
    assert all(str(k) in rules.text(result) for k in (1, 3))


@pytest.mark.slow
def test_budget_on_a_tiny_pair(monkeypatch):
    target, draft = random_model(), random_model(num_layers=1)
    monkeypatch.setattr(budget, "encode", lambda model, text: [len(text) % 60, 3, 5])
    # On a GPU an engine takes half of the free memory if it is not told how much; here several live at once.
    monkeypatch.setattr("minispec.serving.engine.blocks_that_fit", lambda *_: pytest.fail("took what is free"))
    result = budget.measure(target, ms.drafters.Model(draft), [1, 3], [1, 2], [2], new_tokens=6, repeat=1)
    for row in result["results"]:
        assert list(row["ways"]) == ["off", "k=1", "k=2", "budget 2"]
        assert row["ways"]["off"]["drafted"] == 0 < row["ways"]["budget 2"]["drafted"]
        assert all(way["accepted"] <= way["drafted"] for way in row["ways"].values())
    assert "budget 2" in budget.text(result)
