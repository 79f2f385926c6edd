"""Controls above a picture that follows them: what every widget of the course is made of.

A picture is a plain function of numbers and choices. It works in a script, in a test and on paper; `Panel` puts sliders
on its arguments. The function returns a plotly figure or a string of HTML, and, if it likes, a sentence beside it that
says in words what the picture shows: that sentence is what a screen reader speaks when the picture changes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from html import escape

import ipywidgets
import plotly.graph_objects as go

Picture = go.Figure | str | tuple[go.Figure | str, str]

WIDE = ipywidgets.Layout(width="100%")
_ROW = ipywidgets.Layout(flex_flow="row wrap", align_items="center", width="100%")


class Panel(ipywidgets.VBox):
    """`draw(**values)` is called with the value of each control, now and whenever one of them changes.

    `panel.picture` is what it last returned, `panel.words` the sentence beside it. Arrow keys move a focused slider.
    """

    def __init__(self, draw: Callable[..., Picture], controls: Mapping[str, ipywidgets.Widget]) -> None:
        self.draw, self.controls = draw, dict(controls)
        self.picture: go.Figure | str = ""
        self.words = ""
        self._html = ipywidgets.HTML(layout=WIDE)
        self._plot = ipywidgets.Output(layout=WIDE)
        self._caption = ipywidgets.HTML(layout=WIDE)
        for control in self._read().values():
            control.observe(self.redraw, names="value")
        self.redraw()
        picture = self._html if isinstance(self.picture, str) else self._plot
        super().__init__([ipywidgets.Box(list(self.controls.values()), layout=_ROW), picture, self._caption])
        self.add_class("minispec-panel")

    @property
    def values(self) -> dict[str, object]:
        return {name: control.value for name, control in self._read().items()}

    def _read(self) -> dict[str, ipywidgets.Widget]:
        """The controls that `draw` is told about: a play button only moves its slider, so it is shown and not read."""
        return {name: control for name, control in self.controls.items() if not isinstance(control, ipywidgets.Play)}

    def redraw(self, _change: object = None) -> None:
        drawn = self.draw(**self.values)
        self.picture, self.words = drawn if isinstance(drawn, tuple) else (drawn, "")
        if isinstance(self.picture, str):
            self._html.value = self.picture
        else:
            self._plot.outputs = (_output(self.picture),)
        self._caption.value = f'<p role="status" style="line-height:1.5">{escape(self.words)}</p>' if self.words else ""


def _output(figure: go.Figure) -> dict:
    """A figure as a cell's output keeps it: JupyterLab draws it with its own copy of plotly, without the network."""
    bundle = {"application/vnd.plotly.v1+json": json.loads(figure.to_json())}
    return {"output_type": "display_data", "data": bundle, "metadata": {}}


def slider(label: str, value: float, low: float, high: float, step: float | None = None) -> ipywidgets.Widget:
    """A slider for whole numbers, or for decimals when `step` is one."""
    shape = dict(description=label, style={"description_width": "auto"}, layout=ipywidgets.Layout(width="320px"))
    if step is None or isinstance(step, int):
        return ipywidgets.IntSlider(value, low, high, step or 1, **shape)
    return ipywidgets.FloatSlider(value=value, min=low, max=high, step=step, readout_format=".2f", **shape)


def choice(label: str, options: Mapping[str, object] | list | tuple, value: object = None) -> ipywidgets.Dropdown:
    """A menu. A mapping shows its keys and gives its values."""
    pairs = list(options.items()) if isinstance(options, Mapping) else list(options)
    if not pairs:
        raise ValueError(f"options={options!r}: a menu needs something to choose from")
    first = pairs[0][1] if isinstance(options, Mapping) else pairs[0]
    return ipywidgets.Dropdown(
        options=pairs,
        value=first if value is None else value,
        description=label,
        style={"description_width": "auto"},
        layout=ipywidgets.Layout(width="auto", min_width="200px"),
    )


def switch(label: str, value: bool = False) -> ipywidgets.Checkbox:
    return ipywidgets.Checkbox(value, description=label, indent=False, layout=ipywidgets.Layout(width="auto"))


def player(label: str, last: int, interval: int = 700) -> tuple[ipywidgets.Play, ipywidgets.IntSlider]:
    """A play button and the slider it moves, over the steps 0 … last.

    Both go into a panel's controls, `{"step": place, "play": play}`; `draw` is told the slider's value only.
    """
    play = ipywidgets.Play(min=0, max=last, interval=interval, description=label)
    place = slider(label, 0, 0, last)
    ipywidgets.link((play, "value"), (place, "value"))
    return play, place
