"""The labs of lessons 03, 04, 07, 08 and 13 that measure: what they count is right, whatever the clock says."""

import json

import pytest
import torch

import minispec as ms
from minispec.load.fetch import FetchError
from minispec.serving.blocks import BlockPool
from minispec.trace import Cycle, Trace
from minispec_course.labs import batching, ladder, memory, pairs, slower

TOY, PROMPTS = pairs.SHAPES["toy"], [[5, 9, 2], [7], [1, 2, 3, 4, 5, 6]]


# ---- memory and batching ----


def test_waste_counted_by_hand(monkeypatch):
    """One request of three prompt tokens that generates four, in blocks of four: lengths 3, 4, 5, then it is gone."""
    monkeypatch.setattr(memory, "EVERY", 1)
    paged = memory.serve(BlockPool(8, 4, False), [(3, 4)])
    assert paged["steps"] == 4 and paged["waste"] == pytest.approx((1 + 0 + 3) / (4 + 4 + 8))
    assert paged["memory_holding_tokens"] == pytest.approx(12 / (4 * 32))
    contiguous = memory.serve(memory.ContiguousPool(8, 4, 16), [(3, 4)])
    assert contiguous["waste"] == pytest.approx((13 + 12 + 11) / 48)
    assert paged["tokens_read"] == contiguous["tokens_read"] == 6 and paged["tokens_recomputed"] == 0


@pytest.mark.slow
def test_all_ways_emit_the_same_and_continuous_takes_the_fewest_steps(tiny, tiny_draft):
    work = batching.workload([[5, 9, 2], [7], [1, 2, 3, 4]], 12, 40)
    result = batching.compare(tiny, work, batch=3, repeat=1, drafter=ms.drafters.Model(tiny_draft), k=2)
    ways = result["results"]
    assert list(ways) == ["padded", "static", "continuous", "speculative"]
    assert all(way["same_texts"] == 12 for way in ways.values())
    longest = [max(length for _, length in work[i : i + 3]) for i in range(0, 12, 3)]
    assert ways["padded"]["steps"] == ways["static"]["steps"] == sum(longest)
    assert ways["speculative"]["steps"] < ways["continuous"]["steps"] < ways["static"]["steps"]
    assert ways["static"]["over_static"]["median"] == 1 and json.loads(json.dumps(result)) == result


# ---- why is it slower? ----


def test_every_fault_was_recorded_is_slower_and_stays_hidden():
    recorded = slower.cases()
    sound = recorded[slower.SOUND]
    assert list(recorded) == [slower.SOUND, *slower.FAULTS] and sound.measured > 1 < sound.predicted
    for name in slower.FAULTS:
        assert recorded[name].measured < 1 > recorded[name].predicted, name
    for name in ("launch overhead", "wrong kernel"):  # faults of time change no token: the same drafts pass
        assert [c.tokens for c in recorded[name].trace.cycles] == [c.tokens for c in sound.trace.cycles], name
    assert recorded["mismatched draft"].alpha < 0.1
    hidden = slower.table(recorded)
    assert not any(name in hidden for name in slower.FAULTS) and "set-up 5" in hidden


def test_the_numbers_of_a_case_by_hand():
    half, times = [0.5, 0.5], dict(draft_seconds=0.4, verify_seconds=1.5)
    cycles = [Cycle([0, 0], None, half, half, [*range(n)], 1, n == 2, n + 1, 9, **times) for n in (2, 0, 1)]
    case = slower.Case("sound", 2, 1, Trace(cycles), one_pass=1.0, plain=1.2, speculative=0.8, bytes_ratio=0.1)
    assert case.alpha == pytest.approx(3 / 5) and case.tokens_per_pass == pytest.approx(2)
    assert case.c == pytest.approx(0.2) and case.v == pytest.approx(1.5) and case.measured == pytest.approx(1.5)
    assert case.predicted == pytest.approx((1 + 0.6 + 0.36) / (2 * 0.2 + 1.5))
    assert slower.Case.from_dict(json.loads(json.dumps(case.to_dict()))) == case


# ---- near the limit ----


@pytest.mark.slow
def test_every_step_generates_what_generate_does_and_a_climb_counts():
    target, draft = pairs.random_pair(TOY, "cpu", seed=3)
    prompt = pairs.prompt_of(TOY, 6)
    wanted = ms.generate(target, prompt, 8, ignore_eos=True).tokens
    every = ladder.ways(target, draft, prompt, k=3, room=64)
    assert set(every) == {*ladder.STEPS, ladder.EAGER_CYCLE}
    for name, way in every.items():
        for _ in range(8):
            way.launch()
        assert way.decoder.text[0, len(prompt) : len(prompt) + 8].tolist() == wanted, name
    result = ladder.climb(target, draft, prompt, 1e9, k=2, repeat=1, launches=2)
    for row in result["steps"].values():
        share = result["predicted_seconds"] / row["seconds_per_token"]["median"]
        assert row["fraction_of_bandwidth"] == pytest.approx(share)
    assert 1 <= result["cycle"]["tokens_per_cycle"] <= 3
    assert result["steps"][ladder.EAGER]["kernels_per_token"] > 7 * TOY.num_layers


def test_operators_are_counted_once_and_views_not_at_all():
    x, w = torch.ones(2, 3), torch.ones(4, 3)
    assert ladder.count_kernels(lambda: torch.nn.functional.linear(x, w) + 1, "cpu") == (2, 2)


def test_the_draft_is_the_targets_first_layers_and_the_rest_is_damped():
    target, draft = pairs.random_pair(TOY, "cpu", epsilon=0.05)
    tokens = torch.randint(TOY.vocab_size, (2, 24), generator=torch.Generator().manual_seed(0))
    hidden = target.transformer(tokens, hidden_layers=(2, TOY.num_layers)).hidden
    assert torch.equal(draft.transformer(tokens).logits, target.transformer.head(hidden[2]))
    assert (hidden[TOY.num_layers] - hidden[2]).norm() / hidden[2].norm() < 0.1
    assert 3 < float(target.transformer(tokens).logits.std()) < 5


# ---- the pair of a device ----


def test_a_device_gets_its_pair_and_a_page_says_when_it_is_another(monkeypatch, capsys):
    target, draft = pairs.course_pair("cpu")
    assert (target.name, draft.name) == ("micro", "micro-draft") and "cores" in pairs.where("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(pairs, "load", lambda name, device: f"{name} on {device}")
    monkeypatch.setattr(pairs, "locate", lambda name: None)
    assert pairs.course_pair("cuda") == ("smollm2 on cuda", "smollm2-draft on cuda")
    monkeypatch.setattr(pairs, "locate", lambda name: (_ for _ in ()).throw(FetchError("no network")))
    assert pairs.course_pair("cuda") == ("micro on cuda", "micro-draft on cuda")
    assert "no network" in capsys.readouterr().out


def test_ms_device_is_the_gpu_or_what_the_environment_says(monkeypatch, tiny_folder):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("MINISPEC_DEVICE", "")  # as good as unset
    assert ms.device() == torch.device("cuda")
    monkeypatch.setenv("MINISPEC_DEVICE", "cpu")
    assert ms.device() == torch.device("cpu") == ms.load(tiny_folder).device
    for wrong in ("gpu", "cuda:7", "cpu:x"):
        monkeypatch.setenv("MINISPEC_DEVICE", wrong)
        with pytest.raises(ValueError, match=f"MINISPEC_DEVICE.*{wrong}.*cpu"):
            ms.device()
