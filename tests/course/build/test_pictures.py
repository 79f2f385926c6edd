"""Stored notebooks show a picture wherever a widget is: with alternative text, drawn once, kept without a browser."""

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import plotly.graph_objects as go
import pytest
from browsers import find_chromium

from minispec_course.build import pictures
from minispec_course.stored import WANTED
from minispec_course.viz.panel import Panel, slider

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
    return Panel(lambda k: (f"<b>{k}</b>", f"k is {k}"), {"k": slider("k", k, 1, 9)})


def never(drawn: dict):
    raise AssertionError("this picture is stored already")


def drawing(drawn: dict) -> tuple[bytes, int, int]:
    return f"PNG of {drawn['words']}".encode(), 900, 400


def picture_of(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    [output] = notebook.cells[0].outputs
    return output


def test_a_picture_takes_the_place_of_the_widget(wanted):
    notebook = shown(panel())
    assert pictures.store_pictures(notebook, None, drawing) == []
    stored = picture_of(notebook)
    assert stored.data.keys() == {"image/png", "text/plain"} and stored.data["text/plain"] == "k is 2"
    assert base64.b64decode(stored.data["image/png"]) == b"PNG of k is 2"
    assert stored.metadata["image/png"] == {"alt": "k is 2", "width": 900, "height": 400}
    nbformat.validate(notebook)


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
    bars = json.loads(go.Figure(go.Bar(y=[2, 1]), layout_height=500).to_json())
    figure = {"figure": bars, "html": "", "words": "two bars"}

    def drawn() -> list[tuple[bytes, int, int]]:
        with pictures.painter() as draw:
            return [draw(figure), draw(html), draw(figure)]

    # In a thread: playwright allows one browser in each, and other tests of this process may have theirs open.
    with ThreadPoolExecutor(1) as threads:
        first, second, third = threads.submit(drawn).result()
    assert first == third != second  # the same bytes
    assert first[0][:8] == second[0][:8] == b"\x89PNG\r\n\x1a\n" and first[1] == second[1] == pictures.WIDTH
    assert first[2] > 400 > second[2]
