"""Lesson 15's log-probabilities under speculation: what a run reports is the target's, whatever proposed the token."""

from __future__ import annotations

import math
import sys

import pytest
import torch

import minispec as ms
from minispec_course.labs import prefixes


def check_reported(target, draft) -> None:
    rows = prefixes.logprob_rows(target, draft, "the quick brown", k=3, seed=2, max_new_tokens=24)
    assert {row.kind for row in rows} >= {"accepted", "corrected"}
    assert [row.kind for row in prefixes.logprob_rows(target, draft, "the", k=3, max_new_tokens=1)] == ["plain"]
    for row in rows:
        assert row.reported == pytest.approx(row.p, abs=1e-6)
        assert math.isnan(row.residual) == (row.kind != "corrected")
    assert any(abs(row.p - row.q) > 0.1 for row in rows if row.kind == "accepted")
    assert any(abs(row.p - row.residual) > 0.1 for row in rows if row.kind == "corrected")


def test_a_run_reports_the_target(tiny_text, draft_folder, monkeypatch):
    draft = ms.load(draft_folder, device="cpu", dtype=torch.float64)
    check_reported(tiny_text, draft)
    module = sys.modules["minispec.speculate"]  # `minispec.speculate` is the function
    monkeypatch.setattr(module, "emitting_positions", lambda path: [0] * (len(path) + 1))
    with pytest.raises(AssertionError):
        check_reported(tiny_text, draft)


def test_the_toy_is_told_as_it_is():
    told = prefixes.toy_table()
    assert all(f"{x:.2f}" in told for x in (*prefixes.P.tolist(), *prefixes.Q.tolist()))
    assert "abc, ac, ba, bbd, c" in told  # (0, 1, 2), (0, 2), (1, 0), (1, 1, 3), (2,)
    assert "to the right" in told and prefixes.toy_logits(prefixes.P, [0]).exp()[1].item() == pytest.approx(0.34)


@pytest.mark.slow
def test_a_masked_draft_proposes_nothing_forbidden(tiny_text, draft_folder):
    draft = ms.load(draft_folder, device="cpu", dtype=torch.float64)
    found = prefixes.masked_and_blind(
        tiny_text,
        draft,
        ["the", "a dog"],
        k=2,
        seeds=2,
        temperature=1.0,
        max_new_tokens=8,
        choices=["the dog", "a fox"],
    )
    masked, blind = found["masked"], found["blind"]
    assert 3 >= masked.tokens_per_pass > blind.tokens_per_pass >= 1
    assert masked.forbidden == 0 < blind.forbidden <= blind.rejected
