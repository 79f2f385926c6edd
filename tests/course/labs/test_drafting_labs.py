"""The experiments of lessons 08 to 10 and 15 with drafters: what they count and compare."""

from __future__ import annotations

import math
import sys

import pytest
import torch

import minispec as ms
from minispec.drafters.dflash import load_head
from minispec.tree import Tree
from minispec_course.labs import drafting, family, prefixes

D = ms.drafters


@pytest.fixture(scope="module")
def target():
    return ms.load("micro", device="cpu", dtype=torch.float64)


@pytest.fixture(scope="module")
def story(target):
    prompt = target.encode("One day, a girl named Lily")
    return prompt, prompt + ms.generate(target, prompt, max_new_tokens=40).tokens


def test_a_lookup_proposes_what_followed(target):
    assert drafting.ask(target, D.NGram(), "The red hen sat on the gate. The dog ran to the red") == " hen sat"
    assert drafting.ask(target, D.NGram(), "Once upon a") == ""


def test_the_table_says_whether_the_tokens_are_the_same(target, capsys):
    traces = drafting.compare(target, {"n-gram": D.NGram()}, "Once upon a time", new_tokens=8)
    _, line = capsys.readouterr().out.splitlines()
    drafted = sum(len(cycle.drafted) for cycle in traces["n-gram"].cycles)
    accepted = sum(cycle.accepted for cycle in traces["n-gram"].cycles)
    assert line.split()[:5] == ["n-gram", "True", *map(str, (traces["n-gram"].target_passes, drafted, accepted))]


def test_costs_are_shares_of_bytes(target):
    draft = ms.load("micro-draft", device="cpu", dtype=torch.float64)
    costs = drafting.byte_costs(target, draft)
    assert costs["n-gram"] == costs["suffix"] == costs["lookahead"] == 0
    assert 0.5 < costs["int8 copy"] < 0.51 and 0.25 < costs["int4 copy"] < 0.3  # the scales are extra
    assert costs["small model"] < costs["early exit"] < 1


def test_a_perfect_draft_fills_every_pass(target):
    assert drafting.tokens_per_pass(target, D.Model(target), ["Once upon a time"], k=3, new_tokens=8) == 4


@pytest.mark.slow
def test_a_branch_gives_the_logits_of_its_tokens(target, story):
    prompt, _ = story
    branches = Tree([7, 8, 9], [-1, -1, 0])
    logits = drafting.branch_logits(target, prompt, branches)
    for row, tokens in zip(logits, ([], [7], [8], [7, 9]), strict=True):
        alone = target.transformer(torch.tensor([[*prompt, *tokens]])).logits[0, -1]
        assert torch.equal(row, alone)


def test_typical_acceptance_emits_the_first_candidate_that_passes():
    p = [0.4, 0.3, 0.2, 0.1]
    for candidates in ([1, 2], [3], [2, 0]):
        assert drafting.at_one_position(p, candidates) == pytest.approx(p)
        assert drafting.at_one_position(p, candidates, lossless=False) == [float(x == candidates[0]) for x in range(4)]
    unlikely = [0.98, 0.02]  # below both thresholds: refused, and the token is sampled from p
    assert drafting.at_one_position(unlikely, [1], lossless=False) == pytest.approx(unlikely)


@pytest.mark.slow
def test_a_shifted_token_is_what_the_head_was_trained_on(target, story):
    prompt, tokens = story
    head = D.EagleHead.load(target)
    shifted, not_shifted = (drafting.step_accuracy(target, head, tokens, len(prompt), shift=s)[0] for s in (1, 0))
    assert shifted > 0.3 > not_shifted


def test_a_block_among_others_is_the_block_alone(target, story):
    _, tokens = story
    head = load_head(target)
    together = drafting.blocks_together(target, head, tokens, [12, 5])
    for block, anchor in zip(together, (12, 5), strict=True):
        assert torch.allclose(block, drafting.block_alone(target, head, tokens, anchor))


@pytest.mark.slow
def test_untrained_drafters_draft_and_stay_exact(target, story):
    prompt, tokens = story
    for drafter in drafting.untrained(target).values():
        assert ms.speculate(target, prompt, drafter, k=3, max_new_tokens=6).tokens == tokens[len(prompt) :][:6]


@pytest.mark.slow
def test_the_family_is_counted_as_its_papers_say(target):
    for member in family.FAMILY:
        if member.make:
            assert family.count_runs(target, member.make(target), range(20), 4) == member.runs(4), member.name
    assert family.family_table(target, range(20)).count("(counted)") == 7


# ---- what a draft sees of its own prefix ----


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


@pytest.mark.slow
def test_a_masked_draft_proposes_nothing_forbidden(tiny_text, draft_folder):
    draft = ms.load(draft_folder, device="cpu", dtype=torch.float64)
    options = dict(temperature=1.0, max_new_tokens=8, choices=["the dog", "a fox"])
    found = prefixes.masked_and_blind(tiny_text, draft, ["the", "a dog"], k=2, seeds=2, **options)
    masked, blind = found["masked"], found["blind"]
    assert 3 >= masked.tokens_per_pass > blind.tokens_per_pass >= 1
    assert masked.forbidden == 0 < blind.forbidden <= blind.rejected
