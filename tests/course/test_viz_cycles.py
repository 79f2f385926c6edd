"""The cycle stepper shows what happened: cache lengths are those of the real caches, laws those of the real run."""

from __future__ import annotations

import re

import pytest
import torch

pytest.importorskip("ipywidgets")

import minispec as ms
from minispec.trace import Cycle, Trace
from minispec_course.viz import cycle_picture, cycles, style

PROMPT, K, COUNT = [5, 9, 33, 17], 3, 24


@pytest.fixture(scope="module")
def run(tiny, tiny_draft):
    """A sampled run with both kinds of cycle, and the lengths of both caches, listened to while it happened."""
    drafter, heard = ms.drafters.Model(tiny_draft), []

    def hear(cycle):
        heard.append(
            next(iter(drafter.memory.lengths.values()))
        )  # when a cycle is shown, the draft has read and not yet been settled

    passes = []
    listener = tiny.transformer.register_forward_hook(
        lambda module, inputs, output: passes.append(
            (int(inputs[1].lengths[0]) - inputs[0].shape[1], inputs[0].shape[1])
        )
    )
    out = ms.speculate(tiny, PROMPT, drafter, K, COUNT, temperature=0.7, seed=2, on_cycle=hear)
    listener.remove()
    return out, passes, heard  # the hook hears verify passes only: the prompt goes through `body`


def test_the_run_has_everything_there_is_to_show(run):
    kinds = {kind for cycle in run[0].trace.cycles for kind in cycle.kinds}
    assert kinds == {"accepted", "corrected", "bonus"}


def test_cache_lengths_are_those_of_the_real_caches(run):
    out, passes, heard = run
    walk = cycles.steps(out.trace)
    assert [step.stage for step in walk[:3]] == ["draft", "verify", "rewind"] and len(walk) == 3 * len(out.trace.cycles)
    assert [step.target_cache for step in walk[0::3]] == [before for before, _ in passes]
    assert [step.target_cache for step in walk[1::3]] == [before + read for before, read in passes]
    assert [step.draft_cache for step in walk[0::3]] == heard
    # After the cycle: the target lacks the last token; the draft one more, exactly where everything was accepted.
    lengths = [cycle.committed + cycle.accepted + 1 for cycle in out.trace.cycles]
    assert [step.target_cache for step in walk[2::3]] == [n - 1 for n in lengths]
    behind = [1 + cycle.bonus for cycle in out.trace.cycles if cycle.drafted]
    assert [n - step.draft_cache for n, step in zip(lengths, walk[2::3], strict=True)][: len(behind)] == behind


def test_counts_run_along(run):
    out = run[0]
    last = cycles.steps(out.trace)[-1]
    assert last.written == len(out.tokens) == COUNT and last.passes == out.trace.target_passes


def test_a_cycle_without_a_draft_leaves_the_drafts_cache_alone():
    one = dict(parents=None, p=[], q=[], path=[], token=1, bonus=True, kept=1)
    walk = cycles.steps(Trace([Cycle(drafted=[], committed=5, **one)]))
    assert [(step.target_cache, step.draft_cache) for step in walk] == [(4, 0), (5, 0), (5, 0)]


def test_trees_are_refused():
    tree = Cycle(
        drafted=[1, 2], parents=[-1, -1], p=[0.5, 0.5], q=[1, 1], path=[], token=3, bonus=False, kept=1, committed=4
    )
    with pytest.raises(ValueError, match="tree"):
        cycles.steps(Trace([tree]))


def test_the_laws_are_those_of_the_run(run, tiny, tiny_draft):
    """What both models gave a drafted token while writing is what the pass over the finished text gives it."""
    out = run[0]
    p, q = cycles.distributions_along(tiny, tiny_draft, PROMPT, out, temperature=0.7)
    assert p.shape == q.shape == (COUNT, tiny.config.vocab_size)
    place = 0
    for cycle in out.trace.cycles:
        for i in range(min(cycle.accepted + 1, len(cycle.drafted))):  # behind a rejected draft another text begins
            token = cycle.drafted[i]
            assert p[place + i, token].item() == pytest.approx(cycle.p[i], abs=1e-9)
            assert q[place + i, token].item() == pytest.approx(cycle.q[i], abs=1e-6)
        place += cycle.kept


def test_another_prompt_is_refused(run, tiny, tiny_draft):
    with pytest.raises(ValueError, match="prompt"):
        cycles.distributions_along(tiny, tiny_draft, PROMPT[1:], run[0])


def test_chips_are_the_cycles_tokens(run):
    written = []
    for cycle in run[0].trace.cycles:
        assert [token for token, _ in cycles.chips(cycle, "draft")] == cycle.drafted
        judged, kept = cycles.chips(cycle, "verify"), cycles.chips(cycle, "rewind")
        assert [chip for chip in judged if chip[1] != cycles.THROWN] == kept
        assert sum(kind == cycles.THROWN for _, kind in judged) == len(cycle.drafted) - cycle.accepted
        written += [token for token, _ in kept]
    assert written == run[0].tokens


def test_what_lies_behind_the_end_of_the_text_is_thrown_away():
    ended = Cycle([7, 8, 9], None, [1, 1, 1], [1, 1, 1], path=[0, 1, 2], token=4, bonus=True, kept=1, committed=4)
    assert cycles.chips(ended, "verify") == [(7, "accepted"), (8, cycles.THROWN), (9, cycles.THROWN)]


def test_kinds_can_be_told_apart_without_colour():
    kinds = (*style.KINDS, cycles.THROWN)
    assert len({cycle_picture.SIGNS[kind] for kind in kinds}) == len(kinds)
    assert len({cycle_picture.BORDERS[kind] for kind in kinds}) == len(kinds)
    assert all(cycle_picture.COLOURS[kind] == colour for kind, colour in style.KINDS.items())


def test_every_step_and_place_can_be_shown_and_says_something_else(run, tiny, tiny_draft):
    panel = ms.viz.cycle_stepper(tiny, tiny_draft, PROMPT, run[0], temperature=0.7)
    step, token = panel.controls["step"], panel.controls["token"]
    seen = []
    for i in range(step.max + 1):
        step.value = i
        seen.append(panel.picture)
        assert f"tokens, the draft's {cycles.steps(run[0].trace)[i].draft_cache}." in panel.words
    assert len(set(seen)) == len(seen) == 3 * len(run[0].trace.cycles)
    for _, place in token.options:
        token.value = place
        seen.append(panel.picture)
    assert len({re.search(r'viewBox="([^"]+)"', picture)[1] for picture in seen}) == 1  # one height, for all of it
    before = panel.picture
    panel.controls["clock"].value = panel.controls["clock"].options[1][1]
    assert panel.picture != before and "this run" in panel.picture


def test_the_bars_are_the_laws(run, tiny, tiny_draft):
    """At the verify stage of a rejected draft: the drafted token's bar of p and q, and the written one's."""
    out = run[0]
    p, q = cycles.distributions_along(tiny, tiny_draft, PROMPT, out, 0.7)
    number, cycle = next((i, c) for i, c in enumerate(out.trace.cycles) if not c.bonus and c.accepted)
    html, words = cycles.cycle_stepper_html(out, p, q, 3 * number + 1)
    place = sum(c.kept for c in out.trace.cycles[:number]) + cycle.accepted
    for token, mark in ((cycle.drafted[cycle.accepted], "drafted"), (cycle.token, "emitted")):
        row = re.search(
            rf">{token}</text>((?:(?!>{mark}</text>).)*?)<text[^>]*>{mark}</text>", html.split(" position</text>")[1]
        )
        shown = [float(share) for share in re.findall(r"[pq] = ([\d.]+)</title>", row[1])]
        assert shown == [round(float(p[place, token]), 2), round(float(q[place, token]), 2)]
    assert f"accepts {cycle.accepted} of {len(cycle.drafted)}" in words


def test_tokens_per_pass_counts_finished_cycles(run):
    out = run[0]
    p = q = torch.full((COUNT, 64), 1 / 64)
    html, _ = cycles.cycle_stepper_html(out, p, q, 3 * len(out.trace.cycles) - 1)
    assert f"tokens per pass {COUNT / len(out.trace.cycles):.2f}<" in html
    assert "tokens per pass –<" in cycles.cycle_stepper_html(out, p, q, 1)[0]


def test_text_of_a_model_is_escaped(run):
    p = q = torch.full((COUNT, 64), 1 / 64)
    html, _ = cycles.cycle_stepper_html(run[0], p, q, 1, decode=lambda tokens: "<script>&")
    assert "<script>" not in html and "&lt;script&gt;&amp;" in html


def test_bad_arguments_are_refused(run, tiny, tiny_draft):
    p = q = torch.full((COUNT, 64), 1 / 64)
    with pytest.raises(ValueError, match="step"):
        cycles.cycle_stepper_html(run[0], p, q, 10_000)
    with pytest.raises(ValueError, match="speculate"):
        ms.viz.cycle_stepper(tiny, tiny_draft, PROMPT, ms.generate(tiny, PROMPT, 3))


def _widths(html: str, title: str) -> list[float]:
    return [float(width) for width in re.findall(rf'width="([\d.]+)"[^>]*><title>{title}', html)]


def test_passes_are_to_scale_in_time(run):
    """A draft pass is to the verify pass as their recorded times; after a stage the clock shows what it took."""
    out, clock = run[0], cycles.recorded_clock()
    p = q = torch.full((COUNT, 64), 1 / 64)
    html, _ = cycles.cycle_stepper_html(out, p, q, 1, clock=clock)
    draft, verify, _ = clock.times(out.trace.cycles[0])
    assert draft == pytest.approx(clock.parts.draft / clock.parts.k * len(out.trace.cycles[0].drafted))
    passes = _widths(html, r"draft pass \d")
    assert len(passes) == len(out.trace.cycles[0].drafted)
    bars = [float(w) for w in re.findall(r'width="([\d.]+)" height="22" rx="1" fill="#0072b2"', html)]
    assert bars[0] / passes[0] == pytest.approx(verify / (draft / len(passes)), rel=0.01)
    walk = cycles.steps(out.trace)
    assert clock.at(out.trace, walk[0]) == draft and clock.at(out.trace, walk[2]) == clock.at(out.trace, walk[1])
    assert clock.at(out.trace, walk[-1]) == pytest.approx(sum(sum(clock.times(c)) for c in out.trace.cycles))


def test_the_runs_own_clock_is_its_traces(run):
    clock = cycles.Clock("here", 1.0)
    for cycle in run[0].trace.cycles:
        assert clock.times(cycle) == (cycle.draft_seconds, cycle.verify_seconds, cycle.sample_seconds)


def test_the_prompt_and_what_was_emitted_are_in_the_sentence(run):
    p = q = torch.full((COUNT, 64), 1 / 64)
    last = 3 * len(run[0].trace.cycles) - 1
    html, _ = cycles.cycle_stepper_html(run[0], p, q, last, prompt="a prompt", decode=lambda t: f"w{t[0]}")
    said = re.findall(r"<text[^>]*>([^<]*)</text>", html)
    assert "a prompt" in said
    chips = [one[2:] for one in said if one[:2] in {f"{sign} " for sign in cycle_picture.SIGNS.values()}]
    assert chips[:COUNT] == [f"w{token}" for token in run[0].tokens]
