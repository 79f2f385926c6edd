"""What a Trace says about a run: definitions on hand-made cycles, and that real cycles tell the truth."""

import json

import pytest
import torch
from fakes import Given, continuation, scripted, whole_text
from loop_checks import PROMPTS, greedy_pair

import minispec as ms
from minispec import trace
from minispec.drafters import Draft


def cycle(drafted: int, accepted: int, kept: int | None = None, **more) -> ms.Cycle:
    """`drafted` drafts 10, 11, …, of which `accepted` pass; the token after them is 99."""
    chances = dict(parents=None, p=[0.5] * drafted, q=[0.25] * drafted)
    end = dict(path=[*range(accepted)], token=99, bonus=accepted == drafted, committed=7)
    end["kept"] = accepted + 1 if kept is None else kept
    return ms.Cycle(drafted=[*range(10, 10 + drafted)], **chances | end | more)


HAND_MADE = ms.Trace([cycle(3, 1), cycle(3, 3), cycle(2, 0), cycle(0, 0)])

# ---------------------------------------------------------------- definitions


def test_tokens_and_kinds_of_a_cycle():
    rejected, whole, plain = cycle(3, 1), cycle(3, 3), cycle(0, 0)
    assert (rejected.tokens, rejected.kinds) == ([10, 99], ["accepted", "corrected"])
    assert (whole.tokens, whole.kinds) == ([10, 11, 12, 99], ["accepted"] * 3 + ["bonus"])
    assert (plain.tokens, plain.kinds) == ([99], ["bonus"])
    ended = cycle(3, 3, kept=2)
    assert (ended.tokens, ended.kinds, ended.accepted) == ([10, 11], ["accepted"] * 2, 3)
    tree = cycle(4, 0, parents=[-1, -1, 1, 2], path=[1, 2], kept=3)
    assert (tree.tokens, tree.kinds, tree.accepted) == ([11, 12, 99], ["accepted"] * 2 + ["corrected"], 2)


def test_rates_on_hand_made_cycles():
    assert HAND_MADE.target_passes == 4
    assert HAND_MADE.tokens_per_cycle == (2 + 4 + 1 + 1) / 4
    assert HAND_MADE.drafted_per_cycle == 8 / 4
    # Tested: 2 of the first cycle (its third draft is never looked at), 3 of the second, 1 of the third, 0 of the last.
    assert HAND_MADE.acceptance_rate == 4 / 6
    assert HAND_MADE.acceptance_by_position == [2 / 3, 1 / 2, 1 / 1]


# ---------------------------------------------------------------- JSON


def test_json_round_trip():
    target, draft = greedy_pair()
    trees = Given(lambda context, k: Draft([5, 6, 7], None, [-1, 0, 0]))
    trees.extra = 3
    for drafter in (ms.drafters.Model(draft), trees):
        trace = ms.speculate(target, [3, 1, 4], drafter, 3, 20, temperature=1.0, seed=0).trace
        text = trace.to_json()
        again = ms.Trace.from_json(text)
        assert again == trace and again.to_json() == text
        assert [c.tokens for c in again.cycles] == [c.tokens for c in trace.cycles]
        assert isinstance(json.loads(text), list) and "NaN" not in text


# ---------------------------------------------------------------- real runs


def test_p_and_q_are_what_both_sides_gave_the_drafted_tokens():
    target, draft = greedy_pair()
    sampling, own = ms.Sampling(temperature=0.8, top_p=0.9), ms.Sampling(temperature=1.5)
    prompt = PROMPTS[2]
    out = ms.speculate(target, prompt, ms.drafters.Model(draft, own), 4, 20, temperature=0.8, top_p=0.9, seed=3)
    text = [*prompt, *out.tokens]
    for c in out.trace.cycles:
        seen = torch.tensor([[*text[: c.committed], *c.drafted]])
        for given, model, by in ((c.p, target, sampling), (c.q, draft, own)):
            probs = by.probs(model.transformer(seen).logits[0, c.committed - 1 : -1])  # [k, V]
            expected = [float(probs[i, token]) for i, token in enumerate(c.drafted)]
            assert given == pytest.approx(expected, abs=1e-9)


def test_p_of_a_tree_is_the_distribution_after_the_parent():
    target = scripted(whole_text)
    right = continuation([3, 15], 3)
    wrong = [1 + token % 15 for token in right]
    drafter = Given(lambda context, k: Draft([wrong[0], right[0], wrong[1], right[1]], None, [-1, -1, 1, 1]))
    drafter.extra = 4
    (first, *_) = ms.speculate(target, [3, 15], drafter, 2, 3).trace.cycles
    assert first.p == [0, 1, 0, 1] and first.q == [1] * 4
    assert (first.path, first.token, first.bonus) == ([1, 3], right[2], True)


def test_a_branch_that_ends_early_is_no_bonus():
    """If nothing was drafted after the last accepted token, the next one is a bonus, otherwise a correction."""
    right = continuation([3, 15], 3)
    for tokens, parents, path, bonus in (
        ([right[0], 1 + right[1] % 15, 1 + right[0] % 15], [-1, 0, -1], [0], False),
        ([1 + right[0] % 15, right[0]], [-1, -1], [1], True),
    ):
        drafter = Given(lambda context, k, tokens=tokens, parents=parents: Draft(tokens, None, parents))
        drafter.extra = 3
        (first, *_) = ms.speculate(scripted(whole_text), [3, 15], drafter, 2, 4).trace.cycles
        assert (first.path, first.bonus, first.kinds) == (path, bonus, ["accepted", "bonus" if bonus else "corrected"])


# ---------------------------------------------------------------- times


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_parts_of_a_cycle_add_up_to_its_time_and_nothing_waits(device, monkeypatch):
    """A device's own clock says when a part of it ended; what the device does after the last lap is not waited for, and
    counts in the rest of the next cycle."""

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self, stream):
            self.at = next(moments)

        def synchronize(self):
            """It has passed."""

        def elapsed_time(self, later):
            return later.at - self.at  # in milliseconds

    def wait(*device):
        pytest.fail("a lap waits for the device")

    moments, now = iter([500.0, 503.0, 510.0]), iter([1.0, 1.003, 1.010, 1.012] if device == "cpu" else [1.0, 1.012])
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "synchronize", wait)
    monkeypatch.setattr(trace.time, "perf_counter", lambda: next(now))
    clock = trace.Clock("draft", "verify", "sample", device=device)
    clock.lap("draft")
    clock.lap("verify")
    clock.rest("sample")
    monkeypatch.undo()
    assert clock.seconds == pytest.approx({"draft": 0.003, "verify": 0.007, "sample": 0.002})
