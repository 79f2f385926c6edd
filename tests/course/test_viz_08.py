"""The drafter race shows what the traces say: who had how many tokens when, on both clocks, and who was first."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("plotly")

from minispec_course.viz.race_beside import NAMES

import minispec as ms
from minispec.generate import Output
from minispec.load.registry import BENCHMARKS
from minispec.trace import Cycle, Trace
from minispec_course import viz
from minispec_course.viz.race import COLOURS, Race, Runner


def cycle(drafted: int, accepted: int, seconds: float, kept: int | None = None) -> Cycle:
    return Cycle(
        drafted=[7] * drafted,
        parents=None,
        p=[],
        q=[],
        path=list(range(accepted)),
        token=8,
        bonus=accepted == drafted,
        kept=accepted + 1 if kept is None else kept,
        committed=0,
        draft_seconds=seconds / 2,
        verify_seconds=seconds / 4,
        sample_seconds=seconds / 4,
    )


@pytest.fixture(scope="module")
def race() -> Race:
    """Six tokens. `good` takes two passes of 4 s, `quick` three of 1 s; plain six of 1 s."""
    good = Output([7] * 6, "", 1, 9.0, "length", Trace([cycle(3, 3, 4.0), cycle(3, 1, 4.0)]))
    quick = Output([7] * 6, "", 1, 3.5, "length", Trace([cycle(2, 1, 1.0), cycle(2, 2, 1.0), cycle(2, 2, 1.0, kept=1)]))
    plain = Output([7] * 6, "", 1, 6.0, "length")
    outs = {"plain": plain, "good": good, "quick": quick}
    pieces = tuple("ab<de&")
    return Race("big", 3, {"tale": pieces}, {"tale": {name: Runner.of(name, out) for name, out in outs.items()}})


def test_a_runner_is_its_trace(race):
    good, quick, plain = (race.runners["tale"][name] for name in ("good", "quick", "plain"))
    assert good.kinds == ("accepted",) * 3 + ("bonus",) + ("accepted", "corrected")
    assert good.passes == (1, 1, 1, 1, 2, 2) and good.seconds == (5.0,) * 4 + (9.0,) * 2  # 1 s for the prompt
    assert quick.passes == (1, 1, 2, 2, 2, 3)  # of the last cycle one token was still wanted
    assert plain.passes == (1, 2, 3, 4, 5, 6) and plain.seconds == pytest.approx((1, 2, 3, 4, 5, 6))
    assert [good.written("seconds", t) for t in (4.9, 5.0, 9.0)] == [0, 4, 6]


def test_each_clock_has_its_winner(race):
    assert race.winners("tale", "passes") == ["good"] and race.winners("tale", "seconds") == ["quick"]
    assert race.gain("tale", "good", "passes") == 3 and race.gain("tale", "good", "seconds") == pytest.approx(2 / 3)


@pytest.mark.parametrize("clock", ["passes", "seconds"])
def test_the_lanes_show_as_many_tokens_as_are_written(race, clock):
    last = max(runner.finish(clock) for runner in race.runners["tale"].values())
    for step in range(race.steps + 1):
        html, words = viz.drafter_race_html(race, "tale", clock, step)
        now = step if clock == "passes" else last * step / 6
        written = {name: runner.written(clock, now) for name, runner in race.runners["tale"].items()}
        shown = sum(html.count(f'px;background:{colour}"') for colour in COLOURS.values()) - len(COLOURS)  # the legend
        assert shown == sum(written.values())
        assert all(f"{name} {count}" in words for name, count in written.items())
    assert "★" in html and f"First at the end: {race.winners('tale', clock)[0]}" in words


def test_a_gap_stands_before_every_pass_but_the_first(race):
    html, _ = viz.drafter_race_html(race, "tale")
    assert html.count("margin-left:3px") == sum(r.finish("passes") - 1 for r in race.runners["tale"].values())


def test_only_drafters_win(race):
    slow = {name: race.runners["tale"][name] for name in ("plain", "good")}
    assert Race("big", 3, race.pieces, {"tale": slow}).winners("tale", "seconds") == ["good"]  # plain took 6 s of its 9


def test_text_of_the_model_is_escaped(race):
    html, _ = viz.drafter_race_html(race, "tale")
    assert 'title="&lt;"' in html and 'title="&amp;"' in html and 'title="<"' not in html


@pytest.mark.parametrize("clock", ["passes", "seconds"])
def test_the_bars_are_the_gains(race, clock):
    bars = [trace for trace in viz.drafter_race_figure(race, clock).data if trace.type == "bar"]
    assert {bar.name: bar.y[0] for bar in bars} == {name: race.gain("tale", name, clock) for name in ("good", "quick")}
    assert [bar.name for bar in bars if "★" in bar.text[0]] == race.winners("tale", clock)


def test_every_control_moves_the_picture(race):
    panel = viz.drafter_race(race)
    for name, value in (("step", panel.controls["step"].value + 1), ("clock", "seconds")):
        before = panel.picture
        panel.controls[name].value = value
        assert panel.picture != before and panel.words


def test_a_real_race(tiny, tiny_draft):
    drafters = {"n-gram": ms.drafters.NGram(), "model": ms.drafters.Model(tiny_draft)}
    race = viz.run_race(tiny, drafters, {"tale": [1, 2, 3], "list": [4, 4, 4, 4]}, k=2, new_tokens=6, repeat=1)
    for kind, prompt in (("tale", [1, 2, 3]), ("list", [4, 4, 4, 4])):
        assert list(race.runners[kind]) == ["plain", "n-gram", "model"]
        for name, drafter in drafters.items():
            trace = ms.speculate(tiny, prompt, drafter, 2, 6).trace
            assert race.runners[kind][name].finish("passes") == trace.target_passes
            assert race.runners[kind][name].kinds == tuple(kind for cycle in trace.cycles for kind in cycle.kinds)
            assert list(race.runners[kind][name].seconds) == sorted(race.runners[kind][name].seconds)


def test_bad_arguments_are_refused(race, tiny):
    for wrong in (dict(kind="poem"), dict(clock="hours"), dict(step=-1), dict(step=race.steps + 1)):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            viz.drafter_race_html(**(dict(race=race, kind="tale") | wrong))
    with pytest.raises(ValueError, match="at least one"):
        viz.run_race(tiny, {}, {"tale": [1]})
    with pytest.raises(ValueError, match="rename"):
        viz.run_race(tiny, {"plain": ms.drafters.NGram()}, {"tale": [1]})


# ---------------------------------------------------------------- the same beside an H200


def test_the_recorded_race_stands_beside_this_one_on_the_same_axis(race):
    runners = race.runners["tale"]
    named = Race(
        "big",
        3,
        race.pieces,
        {"tale": {"plain": runners["plain"], "n-gram": runners["good"], "int4 copy": runners["quick"]}},
    )
    figure = viz.drafter_speedups(named)
    [here], there = [b for b in figure.data if b.xaxis == "x"], [b for b in figure.data if b.xaxis == "x2"]
    assert list(here.x) == ["n-gram", "int4 copy"] and list(here.y) == pytest.approx([6 / 9, 6 / 3.5])
    recorded = json.loads((BENCHMARKS / "drafters.json").read_text(encoding="utf-8"))
    for bar in there:
        gain = recorded["results"][bar.name]["ngram"]["speedup"]["median"]
        assert list(bar.y) == [gain, None]  # the copy in 4 bits was not recorded
    assert [bar.name for bar in there] == list(recorded["results"])
    left, right = (title.text for title in figure.layout.annotations[:2])
    assert "this machine" in left and "big" in left and "H200" in right and recorded["date"] in right
    assert figure.layout.yaxis2.matches == "y"


def test_every_drafter_of_the_lessons_has_its_name_in_the_benchmark():
    recorded = json.loads((BENCHMARKS / "drafters.json").read_text(encoding="utf-8"))
    for table in recorded["results"].values():
        assert set(NAMES.values()) | {"plain"} == set(table)
