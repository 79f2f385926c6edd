"""Controls above a picture that follows them: what every widget of the course is made of.

A picture is a plain function of numbers and choices. It works in a script, in a test and on paper; `Panel` puts sliders
on its arguments. The function returns a figure, ours (light.py) or plotly's, or a string of HTML, and, if it likes, a
sentence beside it that says in words what the picture shows: a screen reader speaks it when the picture changes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import ipywidgets
import plotly.graph_objects as go
from traitlets import TraitError

from ..stored import PICTURE, WANTED
from . import light
from .picture_view import PictureView, as_json

Figure = light.Figure | go.Figure
Picture = Figure | str | tuple[Figure | str, str]

WIDE = ipywidgets.Layout(width="100%")
_ROW = ipywidgets.Layout(flex_flow="row wrap", align_items="center", width="100%")


class Panel(ipywidgets.VBox):
    """`draw(**values)` is called with the value of each control, now and whenever one of them changes.

    `panel.picture` is what it last returned, `panel.words` the sentence beside it. Arrow keys move a focused slider.

    A part of a picture can stand for a control's value, and sets it when clicked: in HTML any element with
    `data-choose='{"node": 3}'`, in a figure every point with customdata, if `layout.meta` is `{"choose": "node"}`.

    `longest` is the longest sentence that `draw` can return, where it is known: the page keeps room for it, so that
    what is below stays where it is.
    """

    def __init__(
        self, draw: Callable[..., Picture], controls: Mapping[str, ipywidgets.Widget], longest: str = ""
    ) -> None:
        self.draw, self.controls = draw, dict(controls)
        self.picture: Figure | str = ""
        self.words = ""
        self._held = False
        self.view = PictureView(layout=WIDE, longest=longest)
        self.view.when_chosen(self.choose)
        for control in self._read().values():
            control.observe(self.redraw, names="value")
        self.redraw()
        super().__init__([ipywidgets.Box(list(self.controls.values()), layout=_ROW), self.view])
        self.add_class("minispec-panel")

    @property
    def values(self) -> dict[str, object]:
        return {name: control.value for name, control in self._read().items()}

    def _read(self) -> dict[str, ipywidgets.Widget]:
        """The controls that `draw` is told about: a play button only moves its slider, so it is shown and not read."""
        return {name: control for name, control in self.controls.items() if not isinstance(control, ipywidgets.Play)}

    def lead(self, name: str, move: Callable[[object], None]) -> None:
        """When the control `name` changes, `move(its value)` sets others, too: one picture for all of them."""

        def follow(change: dict) -> None:
            self._held = True
            try:
                move(change["new"])
            finally:
                self._held = False
            self.redraw()

        self.controls[name].unobserve(self.redraw, names="value")
        self.controls[name].observe(follow, names="value")

    def redraw(self, _change: object = None) -> None:
        if self._held:
            return
        self.view.busy = True  # the page shows it if the picture takes its time
        try:
            drawn = self.draw(**self.values)
            self.picture, self.words = drawn if isinstance(drawn, tuple) else (drawn, "")
            self.view.show(self.picture, self.words)
        finally:
            self.view.busy = False

    def _repr_mimebundle_(self, **kwargs) -> dict:
        """What a cell's output keeps: the widget, its sentence, and for the builder the picture as data."""
        bundle = super()._repr_mimebundle_(**kwargs) or {}
        bundle["text/plain"] = self.words or "a picture: run this cell to see it"
        return bundle | ({PICTURE: self.still()} if os.environ.get(WANTED) else {})

    def still(self) -> dict:
        """The picture as it is now, as plain data."""
        is_html = isinstance(self.picture, str)
        figure, html = ({}, self.picture) if is_html else (as_json(self.picture), "")
        return {"figure": figure, "html": html, "words": self.words}

    def choose(self, name: str, value: object) -> None:
        """Set a control, as a click into the picture does. What it does not take is no choice."""
        if name in self._read():
            try:
                self.controls[name].value = value
            except TraitError:
                pass


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
