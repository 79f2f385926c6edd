"""The speed-up surface and the debugging lab: what they show is the formula, or a run."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

import minispec as ms
from minispec import theory
from minispec.bench import report, slower
from minispec.course import viz
from minispec.course.viz import Dot, cycle_parts, diagnose, diagnose_html, surface, surface_figure
from minispec.course.viz.diagnose import suspects, verdict
from minispec.course.viz.surface import ALPHAS, LONGEST, verify_cost
from minispec.speculate import speculate

CASES = slower.cases()
SOUND = CASES[slower.SOUND]
DOT = Dot("a run", 0.6, 3, 0.2, 1.4, 1.1)


def trace(figure, name):
    [found] = [trace for trace in figure.data if trace.name == name]
    return found


# ---------------------------------------------------------------- the surface


def test_the_surface_is_the_formula():
    figure = surface_figure(0.7, 0.1, 1.3)
    heat = trace(figure, "speed-up")
    for i in (0, 20, 49):
        for k in (1, 4, LONGEST):
            assert heat.z[i][k - 1] == pytest.approx(theory.speedup(ALPHAS[i], k, 0.1, 1.3))
    cut = trace(figure, "at this α, c, v")
    assert list(cut.y) == pytest.approx([theory.speedup(0.7, k, 0.1, 1.3) for k in range(1, LONGEST + 1)])
    best = trace(figure, "best")
    assert list(best.x) == [theory.best_k(0.7, 0.1, 1.3)] and best.y[0] == pytest.approx(max(cut.y))


def test_the_lines_on_it_are_the_best_k_and_the_break_even():
    figure = surface_figure(0.7, 0.1)
    best, edge = trace(figure, "best k"), trace(figure, "no gain, no loss")
    assert all(k == theory.best_k(a, 0.1, longest=LONGEST) for k, a in zip(best.x, best.y, strict=True))
    assert all(a == pytest.approx(theory.break_even(k, 0.1)) for k, a in zip(edge.x, edge.y, strict=True))
    assert not trace(surface_figure(0.7, 0.9, 9.0), "best k").x  # nothing gains: no line
    assert not [t for t in surface_figure(0.1, 0.9).data if t.name == "best"]


def test_a_cost_that_grows_is_used_at_every_k():
    grows = verify_cost(2.0, grows=True)
    assert (grows(4), grows(8), verify_cost(2.0, grows=False)(8)) == (2.0, 3.0, 2.0)
    cut = trace(surface_figure(0.7, 0.1, grows), "at this α, c, v")
    assert cut.y[7] == pytest.approx(theory.speedup(0.7, 8, 0.1, 3.0))


def test_dots_show_what_was_measured_beside_what_was_predicted():
    figure = surface_figure(dots=[DOT])
    measured, both = trace(figure, "a run, measured"), trace(figure, "a run, both")
    assert (list(measured.x), list(measured.y), list(measured.marker.color)) == ([3], [0.6], [1.1])
    assert list(both.x) == [3, 3] and both.y == pytest.approx([theory.speedup(0.6, 3, 0.2, 1.4), 1.1])
    assert both.customdata == ["predicted", "measured"] and both.marker.symbol == ["circle-open", "circle"]


def test_dots_come_from_records():
    h200 = Dot.recorded()
    result = json.loads((report.SHIPPED / "speculate.json").read_text(encoding="utf-8"))
    assert (h200.alpha, h200.k, h200.measured) == (result["acceptance"], 4, result["speedup"])
    assert h200.predicted == pytest.approx(result["predicted_speedup"], rel=0.03) and "H200" in h200.name
    dot = Dot.of(SOUND, "sound")
    assert (dot.alpha, dot.k, dot.measured) == (SOUND.alpha, SOUND.k, SOUND.measured)


def test_moving_a_control_moves_the_picture():
    panel = surface([DOT], curve=lambda k: 1 + k / 10)
    cut = lambda: list(trace(panel.picture, "at this α, c, v").y)  # noqa: E731
    assert next(iter(panel.controls)) == "alpha"
    for name, value in (("alpha", 0.8), ("c", 0.3), ("v", 2.0), ("cost", "grows"), ("cost", "here")):
        before, said = cut(), panel.words
        panel.controls[name].value = value
        assert cut() != before and panel.words != said, name
    assert cut()[9] == pytest.approx(theory.speedup(0.8, 10, 0.3, 2.0))  # 1 + 10/10
    panel.controls["dot"].value = DOT
    assert [panel.values[name] for name in ("alpha", "c", "v")] == pytest.approx([0.6, 0.2, 1.4])
    assert "measured 1.10" in panel.words and f"predicted {DOT.predicted:.2f}" in panel.words
    assert "k = 0" in surface_words(panel, alpha=0.0, c=1.0)


def surface_words(panel, **values) -> str:
    for name, value in values.items():
        panel.controls[name].value = value
    return panel.words


# ---------------------------------------------------------------- the lab


def test_the_numbers_convict_exactly_the_right_fault():
    for name, case in CASES.items():
        guilty = [fault for fault, suspect in suspects(case, SOUND).items() if suspect.guilty]
        assert guilty == ([] if name == slower.SOUND else [name])


def test_mending_the_fault_makes_it_pay_again():
    for name in slower.FAULTS:
        suspect = suspects(CASES[name], SOUND)[name]
        assert suspect.mended > 1.05 > 1 > CASES[name].predicted, name
    case = CASES["launch overhead"]
    mended = suspects(case, SOUND)["launch overhead"].mended
    assert mended == pytest.approx(theory.speedup(case.alpha, case.k, SOUND.c, case.v))


@pytest.mark.parametrize("name", slower.FAULTS)
def test_every_diagnosis_gets_an_answer_with_numbers(name):
    case = CASES[name]
    for picked in slower.FAULTS:
        said = verdict(case, SOUND, picked)
        assert said.startswith("Yes" if picked == name else "No") and "." in said
        assert said in diagnose_html(case, SOUND, picked).replace("&#x27;", "'")
    assert "Pick" in verdict(case, SOUND, None)


def test_the_page_shows_the_numbers_of_the_trace_and_not_the_name():
    for name in slower.FAULTS:
        html = diagnose_html(CASES[name], SOUND, None, "set-up 1")
        assert name not in html and "aria-label" in html and "set-up 1" in html
        for value in CASES[name].numbers().values():
            assert (f"<b>{value}</b>" if isinstance(value, int) else f"<b>{value:.2f}</b>") in html


def test_the_lab_turns_pages_and_forgets_the_last_diagnosis():
    panel = diagnose()
    assert next(iter(panel.controls)) == "number"
    seen = set()
    for number in range(1, 6):
        panel.controls["number"].value = number
        assert panel.controls["picked"].value == ""
        panel.controls["picked"].value = "k too large"
        seen.add(panel.picture)
        assert f"Set-up {number} is slower" in panel.words
    assert len(seen) == 5 and sum("✓" in picture for picture in seen) == 1


def test_bad_arguments():
    with pytest.raises(ValueError, match="picked='bad luck'.*wrong kernel"):
        diagnose_html(SOUND, SOUND, "bad luck")
    with pytest.raises(ValueError, match="sound"):
        diagnose({"k too large": CASES["k too large"]})


# ---------------------------------------------------------------- where the time goes


def test_the_parts_of_a_cycle_are_those_of_the_trace_and_the_rest_is_the_host(tiny, monkeypatch):
    drafter, seen = ms.drafters.Model(tiny), []

    def watched(*args, on_cycle, **options):
        def note(cycle):
            seen.append(cycle)
            on_cycle(cycle)

        return speculate(*args, on_cycle=note, **options)

    monkeypatch.setattr(cycle_parts, "speculate", watched)
    ticks = iter(range(10**6))
    clock = SimpleNamespace(perf_counter=lambda: float(next(ticks)))  # a second from one cycle to the next
    monkeypatch.setattr(cycle_parts, "time", clock)
    parts = viz.measure_cycle(tiny, drafter, [1, 2, 3], k=2, new_tokens=9, repeat=1)
    assert (parts.k, parts.tokens) == (2, 3.0)  # its own draft: all accepted, and the bonus
    cycles = seen[len(seen) // 2 + 1 :]  # the second run, without its first cycle
    for part in ("draft", "verify", "sample"):
        mean = sum(getattr(cycle, f"{part}_seconds") for cycle in cycles) / len(cycles)
        assert getattr(parts, part) == pytest.approx(mean) and mean > 0
    assert parts.cycle == pytest.approx(1.0) and parts.speedup == pytest.approx(3 * parts.plain)


def test_the_recorded_cycle_adds_up():
    result = json.loads((report.SHIPPED / "speculate.json").read_text(encoding="utf-8"))
    there = viz.CycleParts.recorded()
    assert there.cycle == pytest.approx(result["seconds"]["whole cycle"]["median"])
    assert there.draft / there.plain / there.k == pytest.approx(result["c"], rel=1e-3)
    assert there.verify / there.plain == pytest.approx(result["v"], rel=1e-3)
    assert there.speedup == pytest.approx(result["speedup"], rel=1e-3)
    assert "H200" in there.name and result["date"] in there.name


def test_both_bars_are_in_plain_steps_of_their_own_machine():
    runs = [viz.CycleParts("here", 4, 2.5, 2.0, 1.0, 3.0, 0.5, 0.5), viz.CycleParts.recorded()]
    figure = viz.cycle_figure(runs)
    bars = [bar for bar in figure.data if bar.type == "bar"]
    assert [bar.x[0] for bar in bars] == [0.5, 1.5, 0.25, 0.25]
    assert sum(bar.x[1] for bar in bars) == pytest.approx(runs[1].cycle / runs[1].plain)
    [mark] = [t for t in figure.data if t.type == "scatter"]
    assert list(mark.x) == [run.tokens for run in runs] and figure.layout.barmode == "stack"
    words = viz.cycle_words(runs)
    assert "1.00 ×" in words and "60%" in words  # 2.5 tokens of 2 s in a cycle of 5 s, 3 of which verify


def test_one_cycle_is_not_enough_to_time_one(tiny):
    with pytest.raises(ValueError, match="new_tokens=2"):
        viz.measure_cycle(tiny, ms.drafters.Model(tiny), [1, 2, 3], k=4, new_tokens=2, repeat=1)
