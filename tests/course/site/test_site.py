"""What the site is made of, as far as it can be tested without building it."""

from __future__ import annotations

import ast
import json
import re
from html import unescape
from pathlib import Path

import nbformat
import plotly.graph_objects as go
import pytest
from mutants.patching import rewrite

from minispec_course.site import build, content, sources, stage, widgets
from minispec_course.stored import PLOTLY
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
    pictures, knobs = widgets.unpacked(made["data"]), made["knobs"]
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


def test_menus_are_thinned_too_down_to_where_they_start():
    found = [widgets.Knob(name, name, "menu", [1, 2, 3], [], 1) for name in "abcd"]
    assert [len(kept) for kept in widgets.thinned(found, 8)] == [2, 2, 2, 1] and widgets.thinned(found, 1) == [[1]] * 4


def test_figures_survive_the_packing():
    figures = [go.Figure(go.Scatter(x=[1, 2], y=[n, n]), layout={"title": f"{n}", "height": 300}) for n in range(3)]
    found = widgets.unpacked(widgets.packed([(figure, f"{n}") for n, figure in enumerate(figures)]))
    assert [picture for picture, _ in found] == [json.loads(figure.to_json()) for figure in figures]


def test_a_slice_holds_what_the_widget_needs_and_nothing_else():
    source = "import a, b\nx = a.f()\ny = b.g()\nruns = {}\nruns['k'] = x\nprint(y)\nrows = []\nrows.append(runs)"
    last = ast.parse("viz.show(rows)").body[0]
    kept = widgets.slice_for(last, ast.parse(source).body)
    assert widgets.code_of(kept) == (
        "import a, b\nx = a.f()\nruns = {}\nruns['k'] = x\nrows = []\nrows.append(runs)\nviz.show(rows)"
    )


def test_names_lead_to_the_lines_that_define_them():
    for name in ("theory.speedup", "verify.chain", "drafters.DraftModel", "generate", "cache.KVCache.rewind", "Engine"):
        file, line = sources.find("minispec/__init__.py", name)
        text = (ROOT / file).read_text(encoding="utf-8").splitlines()[line - 1]
        assert re.search(rf"(def|class) {name.split('.')[-1]}\b", text), (name, file, line)
    assert sources.find("minispec/__init__.py", "theory.no_such_thing") is None


def test_links_of_the_lessons_point_at_lines():
    for file in (ROOT / "course/lessons").glob("*.py"):
        assert "](../minispec" not in sources.point_at_lines(file.read_text(encoding="utf-8")), file
    there = sources.point_at_lines("[`speedup`](../minispec/theory.py)")
    assert re.fullmatch(r"\[`speedup`\]\(src:minispec/theory.py#L\d+\)", there)


def test_a_source_page_shows_the_file_line_by_line():
    for file in ("minispec/verify.py", "minispec_course/viz/panel.py"):
        page = sources.page(file)
        one = r'<span class="ms-line" id="L\d+"><i>\d+</i>(.*?)</span>(?=\n<span class="ms-line"|</pre>)'
        shown = re.findall(one, page, re.DOTALL)
        plain = [re.sub(r"<[^>]+>", "", line) for line in shown]
        assert [unescape(line) for line in plain] == (ROOT / file).read_text(encoding="utf-8").splitlines(), file


def test_every_question_is_on_a_page_and_its_answer_is_covered():
    from minispec_course import interview

    pages = content.question_pages()
    text = "\n".join(pages.values())
    for question in interview.load().values():
        assert f"({question.id})=\n" in text
        assert text.index(f"({question.id})=\n") < text.index(content.plain(question.spoken))
    assert text.count(":::{dropdown-answer}") == len(interview.load())


@pytest.mark.slow
def test_the_reference_names_every_public_function():
    pages = content.reference_pages()
    text = "\n".join(pages.values())
    shown = re.findall(r"^## \[`([\w.]+)`\]", text, re.MULTILINE)
    assert sorted(shown) == sorted(file.removesuffix(".py").replace("/", ".") for file in content.modules())
    for name in ("theory.speedup", "verify.chain"):
        file, line = sources.find("minispec/__init__.py", name)
        assert f"[`{name.split('.')[-1]}`](src:{file}#L{line})" in text


def test_stars_of_a_docstring_stay_unless_they_stress():
    said = content.plain("**Lossless.** A *prefix* of i, with w*p and 2 * k * c, a_*b")
    assert content.stressed(said) == "**Lossless.** A *prefix* of i, with w\\*p and 2 \\* k \\* c, a\\_\\*b"


def test_the_map_has_a_box_for_every_lesson_and_goes_down():
    names, edges = content.arrows()
    depth = content.depths(names, edges)
    assert set(names) == {name.split("_")[0] for name in sources.lessons()}
    assert all(depth[before] < depth[after] for before, after, _ in edges)
    drawn = content.drawing({name: f"{name}.html" for name in names})
    kept = content.direct(edges)
    assert drawn.count("<rect") == len(names) and drawn.count("<path") == len(kept) < len(edges)
    assert _ways(kept) == _ways(edges)  # what is left out is said by a longer way


def _ways(edges: list[tuple[str, str, bool]]) -> set[tuple[str, str]]:
    """Which lesson is needed, at once or in the end, by which."""
    found = {(before, after) for before, after, _ in edges}
    while longer := {(a, d) for a, b in found for c, d in found if b == c} - found:
        found |= longer
    return found


def test_glossary_words_are_found_with_their_meaning():
    found = content.pattern().search("The ridge points of two machines")
    _, meaning = content.glossary()[found[1].lower()]
    assert found[0] == "ridge points" and meaning.startswith("The intensity at which")
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


def compute_broken(patch: pytest.MonkeyPatch, folder: Path) -> tuple[dict, dict, list]:
    """What is made of a lesson whose first widget fails: (widgets, failures, files kept)."""
    first = ast.parse("from minispec_course import viz").body
    cells = {one: [*first, *ast.parse(f"viz.{one}()").body] for one in ("no_such_widget", "cut_products")}
    patch.setattr(widgets, "widget_cells", lambda lesson: cells)
    patch.setattr(widgets, "widget", lambda panel, name: {"words": panel.words})
    found, failed = widgets.compute("99_lesson", folder / "99_lesson.abc.json")
    return found, failed, sorted(folder.iterdir())


def test_a_widget_that_fails_is_named_and_stops_no_other(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        found, failed, kept = compute_broken(patch, tmp_path)
        assert [*failed] == ["99_lesson, viz.no_such_widget"]
        assert all("AttributeError" in why for why in failed.values())
        assert [*found] == ["cut_products"] and found["cut_products"]["words"]
        assert kept == []  # the next build tries again


def test_what_the_notebook_keeps_whole_is_not_run_again():
    for lesson in sources.lessons():
        kept = {cell.id: cell for cell in nbformat.read(ROOT / f"notebooks/{lesson}.ipynb", as_version=4).cells}
        for cell in widgets.widget_cells(lesson):
            kinds = {kind for output in kept[cell].outputs for kind in output.get("data", {})}
            assert "image/png" in kinds and PLOTLY not in kinds, (lesson, kept[cell].source)


def test_the_page_finds_the_parts_that_it_moves():
    """static/widgets.js redraws the elements of a drawing that have a data-part, or a data-chart."""
    made = widgets.widget(surface([Dot.recorded()]), "surface")
    for picture, words in widgets.unpacked(made["data"]):
        parts = re.findall(r'data-part="([^"]*)"', picture)
        assert {"title", "edge", "best", "cut", "curve", "star", "cells 0", "cells 24"} <= set(parts) and words
    assert made["live"] == "surface" and [knob["live"] for knob in made["knobs"]] == [True] * 4 + [False]


EVERY_PICTURE = test_the_grid_has_every_picture_where_the_page_looks_for_it
THINNED = test_a_long_slider_is_thinned_and_keeps_its_ends_and_its_start
SLICE = test_a_slice_holds_what_the_widget_needs_and_nothing_else


@pytest.mark.parametrize(
    "owner, name, old, new, check",
    [
        (widgets, "exported", "product(*keep)", "reversed([*product(*keep)])", EVERY_PICTURE),
        (widgets, "evenly", "chosen.add(start)", "pass", THINNED),
        (widgets, "evenly", "or chosen", "or []", lambda: test_never_more_values_than_asked_for(3)),
        (widgets, "slice_for", "needed |= used(node)", "pass", SLICE),
    ],
)
def test_mutants_are_caught(owner, name, old, new, check, monkeypatch):
    rewrite(monkeypatch, owner, name, old, new)
    with pytest.raises(AssertionError):
        check()


def test_a_failure_that_stops_the_lesson_would_be_caught(monkeypatch, tmp_path):
    rewrite(monkeypatch, widgets, "compute", "except Exception as error", "except KeyError as error")
    with pytest.raises(AttributeError):
        compute_broken(monkeypatch, tmp_path)
