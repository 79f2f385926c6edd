"""The debugging lab's set-ups: each fault is real, changes no text, and moves the number it is about."""

from __future__ import annotations

import json

import pytest
import torch

import minispec as ms
from minispec import theory
from minispec.measure import weight_bytes
from minispec.trace import Cycle, Trace
from minispec_course.labs import slower

RECORDED = slower.cases()


def logits(model: ms.Model, count: int = 5) -> torch.Tensor:
    tokens = torch.arange(count)[None] % model.config.vocab_size
    with torch.inference_mode():
        return model.transformer(tokens).logits


def cycle(drafted: int, accepted: int, draft: float, verify: float) -> Cycle:
    return Cycle(
        [0] * drafted,
        None,
        [0.5] * drafted,
        [0.5] * drafted,
        list(range(accepted)),
        1,
        accepted == drafted,
        accepted + 1,
        9,
        draft_seconds=draft,
        verify_seconds=verify,
    )


def test_the_numbers_of_a_case_by_hand():
    trace = Trace([cycle(2, 2, 0.4, 1.5), cycle(2, 0, 0.4, 1.5), cycle(2, 1, 0.4, 1.5)])
    case = slower.Case("sound", 2, 1, trace, one_pass=1.0, plain=1.2, speculative=0.8, bytes_ratio=0.1)
    assert case.alpha == pytest.approx(3 / 5) and case.tokens_per_pass == pytest.approx(2)
    assert case.c == pytest.approx(0.2) and case.v == pytest.approx(1.5) and case.measured == pytest.approx(1.5)
    assert case.predicted == pytest.approx((1 + 0.6 + 0.36) / (2 * 0.2 + 1.5))
    assert slower.Case.from_dict(json.loads(json.dumps(case.to_dict()))) == case


def test_the_wrong_kernel_computes_the_same(tiny32):
    wrong = slower.with_wrong_kernel(tiny32)
    products = [m for m in wrong.transformer.modules() if isinstance(m, torch.nn.Linear)]
    assert products and all(type(module) is slower.Repacking for module in products)
    assert torch.allclose(logits(wrong), logits(tiny32), atol=1e-5)
    assert not any(type(m) is slower.Repacking for m in tiny32.transformer.modules())  # a copy


def test_layers_that_say_nothing_change_nothing_but_the_bytes(tiny32):
    layers = range(tiny32.config.num_layers)
    deep = slower.with_layers(tiny32, layers, 3)
    assert deep.config.num_layers == len(layers) + 3 and weight_bytes(deep) > weight_bytes(tiny32)
    assert torch.equal(logits(deep), logits(tiny32))


def test_layers_in_the_wrong_order_are_another_model(tiny32):
    wrong = slower.with_layers(tiny32, range(tiny32.config.num_layers)[::-1])
    assert weight_bytes(wrong) == weight_bytes(tiny32)
    assert not torch.allclose(logits(wrong), logits(tiny32), atol=1e-3)


def test_a_set_up_changes_one_thing(tiny32, tiny_draft):
    for name in (slower.SOUND, *slower.FAULTS):
        target, draft, k, rows = slower.set_up(name, tiny32, tiny_draft)
        changed = [target is not tiny32, draft is not tiny_draft, k != slower.K, rows != 1]
        assert sum(changed) == (name != slower.SOUND), name
    with pytest.raises(ValueError, match="name='slow'.*sound"):
        slower.set_up("slow", tiny32, tiny_draft)


def test_every_fault_was_recorded_and_is_slower():
    assert list(RECORDED) == [slower.SOUND, *slower.FAULTS]
    assert RECORDED[slower.SOUND].measured > 1 and RECORDED[slower.SOUND].predicted > 1
    for name in slower.FAULTS:
        assert RECORDED[name].measured < 1 and RECORDED[name].predicted < 1, name
        assert all(len(cycle.drafted) == RECORDED[name].k for cycle in RECORDED[name].trace.cycles)


def test_what_the_faults_do_to_the_text_was_recorded():
    """Faults of time change no token: the same drafts pass."""
    sound = RECORDED[slower.SOUND]
    for name in ("launch overhead", "wrong kernel"):
        assert [c.tokens for c in RECORDED[name].trace.cycles] == [c.tokens for c in sound.trace.cycles], name
    assert RECORDED["launch overhead"].bytes_ratio > sound.bytes_ratio
    assert RECORDED["wrong kernel"].bytes_ratio == sound.bytes_ratio
    assert RECORDED["mismatched draft"].alpha < 0.1


def test_the_table_hides_the_names_it_should():
    cases = list(RECORDED.values())
    assert all(name in slower.table(cases) for name in slower.FAULTS)
    hidden = slower.table(cases, named=False)
    assert not any(name in hidden for name in slower.FAULTS) and "set-up 5" in hidden and slower.SOUND in hidden
    assert f"{theory.speedup(cases[0].alpha, 3, cases[0].c, cases[0].v):.2f}" in hidden


@pytest.mark.parametrize(("argument", "value"), [("steps", 0), ("texts", 0), ("repeat", 0), ("steps", 200)])
def test_bad_arguments(argument, value):
    target, draft = ms.load("micro", device="cpu"), ms.load("micro-draft", device="cpu")
    with pytest.raises(ValueError, match=f"{argument}={value}"):
        slower.measure(slower.SOUND, target, draft, **{argument: value})


@pytest.mark.slow
def test_a_live_run_shows_the_fault(tmp_path, capsys):
    target, draft = ms.load("micro", device="cpu"), ms.load("micro-draft", device="cpu")
    options = dict(steps=3, texts=1, repeat=1)
    sound = slower.measure(slower.SOUND, target, draft, **options)
    wrong = slower.measure("mismatched draft", target, draft, **options)
    again = slower.measure(slower.SOUND, target, draft, **options)
    assert [c.tokens for c in sound.trace.cycles] == [c.tokens for c in again.trace.cycles]  # seeded
    assert len(sound.trace.cycles) == 3 and wrong.alpha < sound.alpha and sound.one_pass > 0
    from minispec.cli import main

    assert main(["bench", "slower", "--steps", "2", "--repeat", "1", "--json", str(tmp_path / "s.json")]) == 0
    assert "wrong kernel" in capsys.readouterr().out
    assert list(slower.cases(tmp_path / "s.json")) == [slower.SOUND, *slower.FAULTS]
