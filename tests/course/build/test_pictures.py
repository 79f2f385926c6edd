"""Stored notebooks show a picture wherever a widget is: with alternative text, drawn once, kept without a browser."""

from __future__ import annotations

import base64
import inspect
import json
import re
import struct
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from pathlib import Path

import nbformat
import plotly.graph_objects as go
import pytest
from browsers import find_chromium
from nbconvert import HTMLExporter

from minispec_course import viz
from minispec_course.build import front, pictures
from minispec_course.stored import PICTURE, WANTED
from minispec_course.viz.panel import Panel, slider
from minispec_course.viz.predict import predict

ROOT = Path(__file__).resolve().parents[3]
LESSONS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def shown(thing: object, source: str = "viz.thing()") -> nbformat.NotebookNode:
    """A notebook whose only cell shows this, as nbclient stores it."""
    data = thing._repr_mimebundle_()
    data = data[0] if isinstance(data, tuple) else data  # anywidget returns metadata too
    output = nbformat.v4.new_output("execute_result", data=json.loads(json.dumps(data)), execution_count=1)
    cell = nbformat.v4.new_code_cell(source, outputs=[output], execution_count=1)
    cell.id = "cell"
    return nbformat.v4.new_notebook(cells=[cell])


@pytest.fixture
def wanted(monkeypatch):
    monkeypatch.setenv(WANTED, "1")


def panel(k: int = 2) -> Panel:
    return Panel(lambda k: (go.Figure(go.Bar(y=[k, 1])), f"k is {k}"), {"k": slider("k", k, 1, 9)})


def never(drawn: dict):
    raise AssertionError("this picture is stored already")


def drawing(drawn: dict) -> tuple[bytes, int, int]:
    return f"PNG of {drawn['words']}".encode(), 900, 400


def picture_of(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    [output] = notebook.cells[0].outputs
    return output


def test_a_panel_shows_its_sentence_and_what_to_draw_only_to_the_builder(monkeypatch):
    monkeypatch.delenv(WANTED, raising=False)
    bundle = panel()._repr_mimebundle_()
    assert bundle["text/plain"] == "k is 2" and pictures.WIDGET in bundle and PICTURE not in bundle
    monkeypatch.setenv(WANTED, "1")
    drawn = panel(5)._repr_mimebundle_()[PICTURE]
    assert drawn["words"] == "k is 5" and drawn["figure"]["data"][0]["y"] == [5, 1] and drawn["html"] == ""
    html = Panel(lambda: ("<b>x</b>", "an x"), {}).still()
    assert html == {"figure": {}, "html": "<b>x</b>", "words": "an x"}


def test_a_picture_takes_the_place_of_the_widget(wanted):
    notebook = shown(panel())
    assert pictures.store_pictures(notebook, None, drawing) == []
    stored = picture_of(notebook)
    assert stored.data.keys() == {"image/png", "text/plain"} and stored.data["text/plain"] == "k is 2"
    assert base64.b64decode(stored.data["image/png"]) == b"PNG of k is 2"
    assert stored.metadata["image/png"] == {"alt": "k is 2", "width": 900, "height": 400}
    nbformat.validate(notebook)


def test_what_is_nothing_without_a_kernel_is_not_stored(wanted):
    notebook = shown(predict("How many?"))
    assert pictures.store_pictures(notebook, None, never) == [] and notebook.cells[0].outputs == []


def test_a_figure_keeps_its_data_beside_the_picture():
    layout = {"title": {"text": "Two bars"}, "xaxis": {"title": {"text": "k"}}, "yaxis": {"title": {"text": "ms"}}}
    figure = go.Figure(go.Bar(y=[1, 2]), layout)
    cell = nbformat.v4.new_code_cell("figure", id="cell")
    cell.outputs = [nbformat.v4.new_output("display_data", data={pictures.PLOTLY: json.loads(figure.to_json())})]
    notebook = nbformat.v4.new_notebook(cells=[cell])
    pictures.store_pictures(notebook, None, drawing)
    stored = picture_of(notebook)
    assert stored.data[pictures.PLOTLY]["data"][0]["y"] == [1, 2]
    assert stored.metadata["image/png"]["alt"] == "Two bars: ms over k."


def test_the_same_picture_is_drawn_once(wanted):
    before, after, other = shown(panel()), shown(panel()), shown(panel(3))
    pictures.store_pictures(before, None, drawing)
    pictures.store_pictures(after, before, never)
    assert picture_of(after) == picture_of(before)
    pictures.store_pictures(other, before, drawing)
    assert picture_of(other).metadata["image/png"]["alt"] == "k is 3"


def test_without_a_browser_the_stored_picture_stays(wanted):
    before, after, edited = shown(panel()), shown(panel(3)), shown(panel(3), "viz.another()")
    pictures.store_pictures(before, None, drawing)
    assert pictures.store_pictures(after, before) == ["viz.thing()"]
    assert picture_of(after) == picture_of(before)  # and not the sentence of one beside the picture of the other
    assert pictures.store_pictures(edited, before) == ["viz.another()"]
    assert picture_of(edited).data == {"text/plain": "k is 3"}


@pytest.mark.browser
def test_chromium_draws_figures_and_html():
    if find_chromium() is None:
        pytest.skip("no playwright, or no chromium on this machine")
    html = Panel(lambda: ('<b style="color:var(--jp-ui-font-color1)">x</b>', "an x"), {}).still()

    def drawn() -> list[tuple[bytes, int, int]]:
        with pictures.painter() as draw:
            return [draw(panel().still()), draw(html), draw(panel().still())]

    # In a thread: playwright allows one browser in each, and other tests of this process may have theirs open.
    with ThreadPoolExecutor(1) as threads:
        first, second, third = threads.submit(drawn).result()
    assert first == third != second  # the same bytes
    for png, width, height in (first, second):
        assert png[:8] == b"\x89PNG\r\n\x1a\n" and width == pictures.WIDTH
        assert struct.unpack(">II", png[16:24]) == (
            width * pictures.SCALE,
            pytest.approx(height * pictures.SCALE, abs=2),
        )
    assert first[2] > 400 > second[2]


# ---------------------------------------------------------------- the stored lessons


def widget_cells(file: Path) -> list[dict]:
    """The cells that end in a panel, by the name of the function that makes it."""
    made = [name for name in dir(viz) if re.search(r"Panel|Explorer", _returned(getattr(viz, name)))]
    assert {"roofline", "memory_map", "residual_explorer"} <= set(made)
    last_line = re.compile(rf"^viz\.({'|'.join(made)})\(", re.MULTILINE)
    cells = nbformat.read(file, as_version=4).cells
    return [cell for cell in cells if cell.cell_type == "code" and last_line.search(cell.source)]


def _returned(function: object) -> str:
    return str(inspect.signature(function).return_annotation) if inspect.isfunction(function) else ""


def test_every_widget_of_a_stored_lesson_has_a_small_picture():
    found = [(file.stem, cell) for file in LESSONS for cell in widget_cells(file)]
    assert len(found) >= 20
    for name, cell in found:
        [alt] = [out.metadata["image/png"]["alt"] for out in cell.outputs if "image/png" in out.get("data", {})]
        assert len(alt) > 20, (name, cell.source)
    books = [nbformat.read(file, as_version=4) for file in LESSONS]
    for cell in (cell for book in books for cell in book.cells):
        for data in (output.get("data", {}) for output in cell.get("outputs", ())):
            assert pictures.WIDGET not in data and PICTURE not in data, cell.source
            assert pictures.PLOTLY not in data or "image/png" in data, cell.source
    assert sum(len(json.dumps(out)) for book in books for _, out in pictures.stored_pictures(book)) < 6e6


@pytest.mark.slow
def test_an_exported_page_shows_the_pictures_and_says_what_they_show():
    from minispec_course.build.exported import WithWords

    file = ROOT / "notebooks/03_paged_blocks.ipynb"
    outputs = [out for cell in nbformat.read(file, as_version=4).cells for out in cell.get("outputs", ())]
    data = [out.data for out in outputs if {"image/png", "image/svg+xml"} & out.get("data", {}).keys()]
    assert len(data) >= 3
    page, _ = HTMLExporter().from_filename(str(file))
    assert all(one["image/png"].strip() in page for one in data if "image/png" in one)
    page, _ = HTMLExporter(preprocessors=[WithWords]).from_filename(str(file))
    said = {unescape(words) for words in re.findall(r'<img alt="([^"]*)"', page)}
    assert {one["text/plain"] for one in data} <= said and not any("No description" in words for words in said)


def test_the_readme_shows_the_pictures_of_the_lessons():
    """Run `python -m minispec_course.build.front` where this fails."""
    kept = {file.relative_to(ROOT).as_posix(): file.read_bytes() for file in (ROOT / front.FOLDER).glob("course_*")}
    assert kept == front.pictures() and len(kept) == len(front.TAKEN)
    shown = re.findall(r"!\[[^\]]{40,}\]\((docs/images/[^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert sorted(shown) == sorted(kept)


def test_a_build_takes_new_pictures_along(tmp_path):
    (tmp_path / "notebooks").mkdir()
    cell = nbformat.v4.new_code_cell("viz.overlap(p, q)")
    cell.outputs = [nbformat.v4.new_output("display_data", {"image/svg+xml": "<svg/>", "text/plain": "bars"})]
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "notebooks/06_rejection_sampling.ipynb")
    assert front.take(tmp_path) == ["docs/images/course_overlap.svg"] and front.take(tmp_path) == []
    assert (tmp_path / "docs/images/course_overlap.svg").read_text() == "<svg/>\n"
