"""The picture of a panel in the browser, updated in place: one small script of ours for all of them.

A figure is handed to Plotly.react, which changes what differs. plotly.js itself comes from the plotly package,
never from the network: `library()` sends it once for each kernel, and the page runs it once, for all panels together.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import anywidget
import ipywidgets
import plotly
import plotly.graph_objects as go
import traitlets

from . import light
from .style import GREY, TEXT

FOLDER = Path(__file__).parent
ESM = (FOLDER / "picture_view.js").read_text(encoding="utf-8")
CSS = (FOLDER / "picture_view.css").read_text(encoding="utf-8")
PLOTLY_JS = Path(plotly.__file__).parent / "package_data/plotly.min.js"


class Library(ipywidgets.Widget):
    """plotly.js as bytes, for every view of this kernel: a model without a view."""

    source = traitlets.Bytes().tag(sync=True)


@cache
def library() -> Library:
    return Library(source=PLOTLY_JS.read_bytes())


class PictureView(anywidget.AnyWidget):
    """`show(picture, words)`. Of `figure` and `html` one is empty; `drawn` counts the pictures."""

    _esm, _css = ESM, CSS
    figure = traitlets.Dict().tag(sync=True)
    html = traitlets.Unicode().tag(sync=True)
    words = traitlets.Unicode().tag(sync=True)
    busy = traitlets.Bool(False).tag(sync=True)
    drawn = traitlets.Int(0).tag(sync=True)
    greys = traitlets.List([GREY, TEXT]).tag(sync=True)  # colours that the page replaces by a readable one of its own
    longest = traitlets.Unicode("").tag(sync=True)  # the page keeps room for this sentence
    library = traitlets.Unicode("").tag(sync=True)
    chosen = traitlets.Dict().tag(sync=True)  # by a click: {"name": of a control, "value": its new one}

    def show(self, picture: light.Figure | go.Figure | str, words: str = "") -> None:
        """One message to the browser, however much has changed."""
        is_html = isinstance(picture, str)
        with self.hold_sync():
            if not is_html and not self.library:
                self.library = f"IPY_MODEL_{library().model_id}"
            self.html = picture if is_html else ""
            self.figure = {} if is_html else as_json(picture)
            self.words, self.busy = words, False
            self.drawn += 1

    def when_chosen(self, do: Callable[[str, object], None]) -> None:
        """Call `do(name, value)` when a part of the picture is clicked that stands for a control's value."""

        self.observe(lambda change: do(change["new"].get("name"), change["new"].get("value")), names="chosen")


def as_json(figure: light.Figure | go.Figure) -> dict:
    """A figure as plotly.js takes it."""
    return json.loads(figure.to_json())
