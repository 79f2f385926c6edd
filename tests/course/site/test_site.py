"""What the site is made of, as far as it can be tested without building it."""

import ast
import json
import re
from pathlib import Path

import plotly.graph_objects as go
import pytest
from browsers import unpacked

from minispec_course.site import build, content, sets, sources, stage, widgets
from minispec_course.viz.panel import Panel, choice, player, slider, switch
from minispec_course.viz.surface import Dot, surface

ROOT = Path(__file__).resolve().parents[3]


def example() -> Panel:
    def draw(step: int, a: float, kind: str, on: bool):
        return f"<p>{step} {a} {kind}</p><b>{on}</b>", f"step {step}"

    controls = {**player("step", 9), "a": slider("a", 0.5, 0.0, 1.0, 0.25), "kind": choice("kind", ["x", "y"])}
    return Panel(draw, controls | {"on": switch("on", True)})


def test_the_grid_has_every_picture_where_the_page_looks_for_it():
    panel = example()
    made = widgets.exported(panel)
    pictures, knobs = unpacked(made["data"]), made["knobs"]
    assert [len(knob["shown"]) for knob in knobs] == [10, 5, 2, 2] and len(pictures) == made["pictures"] == 200
    assert [knob["play"] > 0 for knob in knobs] == [True, False, False, False]
    for chosen in ((0, 0, 0, 0), (9, 4, 1, 1), (3, 2, 0, 1)):
        at = 0
        for knob, i in zip(knobs, chosen, strict=True):
            at = at * len(knob["shown"]) + i  # as static/widgets.js counts
        step, a, kind, on = chosen[0], chosen[1] / 4, "xy"[chosen[2]], bool(chosen[3])
        assert pictures[at] == panel.draw(step, a, kind, on)
    assert made["html"] == panel.picture and made["words"] == panel.words


def test_a_long_slider_is_thinned_and_keeps_its_ends_and_its_start():
    found = [widgets.Knob("a", "a", "range", list(range(1000)), [], 333), widgets.Knob("b", "b", "menu", [1, 2], [], 0)]
    kept, other = widgets.thinned(found, 100)
    assert {0, 333, 999} <= set(kept) and len(kept) * len(other) <= 100 and other == [0, 1]


@pytest.mark.parametrize("count", (2, 3, 5, 40))
def test_never_more_values_than_asked_for(count):
    """Otherwise `thinned` would never end."""
    for kept in range(1, count):
        for start in range(count):
            chosen = widgets.evenly(count, kept, start)
            assert len(chosen) <= kept and start in chosen and chosen == sorted(set(chosen))


def test_figures_survive_the_packing():
    figures = [go.Figure(go.Scatter(x=[1, 2], y=[n, n]), layout={"title": f"{n}", "height": 300}) for n in range(3)]
    found = unpacked(widgets.packed([(json.loads(figure.to_json()), f"{n}") for n, figure in enumerate(figures)]))
    assert [picture for picture, _ in found] == [json.loads(figure.to_json()) for figure in figures]


def test_a_slice_holds_what_the_widget_needs_and_nothing_else():
    source = "import a, b\nx = a.f()\ny = b.g()\nruns = {}\nruns['k'] = x\nprint(y)\nrows = []\nrows.append(runs)"
    last = ast.parse("viz.show(rows)").body[0]
    kept = widgets.slice_for(last, ast.parse(source).body)
    assert widgets.code_of(kept) == (
        "import a, b\nx = a.f()\nruns = {}\nruns['k'] = x\nrows = []\nrows.append(runs)\nviz.show(rows)"
    )


def test_a_page_measures_nothing_and_makes_a_measured_widget_from_what_is_kept():
    clock = re.compile(r"interleaved_times|median_time|measure_here|measure_both|demo\.demo\(|perf_counter|\.seconds\b")
    for lesson in sources.lessons():
        for cell, statements in widgets.widget_cells(lesson).items():
            if widgets.name_of(statements) not in widgets.MEASURES:
                assert not clock.search(widgets.code_of(statements)), (lesson, cell)
    panel = surface([Dot("here", 0.7, 4, 0.2, 1.1, 1.5), Dot.recorded()])
    kept = json.loads(json.dumps(panel.still()))["measured"]
    assert surface(kept).picture == panel.picture


def test_cases_by_hand_are_the_exercises_own():
    """What the reference returns is right; the answer of a known wrong solution leads to its diagnosis."""
    facts = json.loads(re.search(r"json\">(.*?)</script>", sets.by_hand("07.expected_tokens"))[1])
    case = next(one for one in facts["cases"] if one["ask"] == "alpha = 0.5, k = 2")
    assert case["right"] == [1.75] and [[0.75], 2] in case["wrong"]
    assert "ms-hand" in sets.by_hand("02.kv_bytes") and sets.by_hand("06.accept") == ""  # tensors: not for paper
    for name in sources.exercises():
        for cell in sets.read(name).cells:
            assert "BEGIN SOLUTION" not in cell.source and not re.search(r"^(check|hint)\(", cell.source, re.MULTILINE)


def test_links_lead_to_the_lines_that_define_a_name():
    for name in ("theory.speedup", "verify.chain", "drafters.DraftModel", "generate", "cache.KVCache.rewind", "Engine"):
        file, line = sources.find(f"minispec.{name}")
        text = (ROOT / file).read_text(encoding="utf-8").splitlines()[line - 1]
        assert re.search(rf"(def|class) {name.split('.')[-1]}\b", text), (name, file, line)
    assert sources.find("minispec.theory.no_such_thing") is None
    for file in (ROOT / "minispec_course/lessons").glob("*.py"):
        assert "](../minispec" not in sources.point_at_lines(file.read_text(encoding="utf-8")), file


def test_every_question_is_on_a_page_and_its_answer_is_covered():
    from minispec_course import interview

    pages = content.question_pages()
    text = "\n".join(pages.values())
    for question in interview.load().values():
        assert f"({question.id})=\n" in text
        assert text.index(f"({question.id})=\n") < text.index(content.plain(question.spoken))


def test_glossary_words_are_found_with_their_meaning():
    found = content.pattern().search("The ridge points of two machines")
    assert found[0] == "ridge points" and content.glossary()[found[1].lower()]
    page = content.with_places((ROOT / "docs/glossary.md").read_text(encoding="utf-8"))
    assert all(f'id="{place}"' in page for place, _ in content.glossary().values())


def test_questions_of_predictions_are_read_from_the_code():
    code = 'asked = "How many?"\nx = viz.predict(asked, "ms")\ny = viz.predict(f"{here.model}: t(5)?")\nz = 3'
    assert stage.questions(code) == [("x", "How many?", "ms"), ("y", "the model: t(5)?", "")]


def test_a_folder_with_something_else_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("work")
    with pytest.raises(ValueError, match="empty or new"):
        build.build(tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "work"


def test_a_widget_that_fails_is_named_and_stops_no_other(monkeypatch, tmp_path):
    first = ast.parse("from minispec_course import viz").body
    cells = {one: [*first, *ast.parse(f"viz.{one}()").body] for one in ("no_such_widget", "cut_products")}
    monkeypatch.setattr(widgets, "widget_cells", lambda lesson: cells)
    monkeypatch.setattr(widgets, "widget", lambda panel, name: {"words": panel.words})
    found, failed = widgets.compute("99_lesson", tmp_path / "99_lesson.abc.json")
    assert [*failed] == ["99_lesson, viz.no_such_widget"] and [*found] == ["cut_products"]
    assert list(tmp_path.iterdir()) == []  # the next build tries again


def test_the_page_finds_the_parts_that_it_moves():
    """static/widgets.js redraws the elements of a drawing that have a data-part, or a data-chart."""
    made = widgets.widget(surface([Dot.recorded()]), "surface")
    for picture, words in unpacked(made["data"]):
        parts = re.findall(r'data-part="([^"]*)"', picture)
        assert {"title", "edge", "best", "cut", "curve", "star", "cells 0", "cells 24"} <= set(parts) and words
    assert made["live"] == "surface" and [knob["live"] for knob in made["knobs"]] == [True] * 4 + [False]
