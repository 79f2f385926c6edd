"""Controls above a picture that follows them: what every widget of the course is made of.

A picture is a plain function of numbers and choices. It works in a script, in a test and on paper; `Panel` puts sliders
on its arguments. The function returns a drawing (drawing.py) and, if it likes, a sentence beside it that says in words
what the picture shows: a screen reader speaks it when the picture changes.

One script, picture_view.js, shows them all.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path

import anywidget
import ipywidgets
import plotly
import traitlets

from ..stored import PICTURE, WANTED, keep, text_output

FOLDER = Path(__file__).parent
ESM = (FOLDER / "picture_view.js").read_text(encoding="utf-8")
CSS = (FOLDER / "picture_view.css").read_text(encoding="utf-8")
PLOTLY_JS = Path(plotly.__file__).parent / "package_data/plotly.min.js"

FROZEN = "Run this cell to move it."
WIDE = ipywidgets.Layout(width="100%")
_ROW = ipywidgets.Layout(flex_flow="row wrap", align_items="center", width="100%")
_SHAPE = dict(style={"description_width": "auto"})


class PictureView(anywidget.AnyWidget):
    """A drawing and its words; `drawn` counts the pictures."""

    _esm, _css = ESM, CSS
    html = traitlets.Unicode().tag(sync=True)
    words = traitlets.Unicode().tag(sync=True)
    busy = traitlets.Bool(False).tag(sync=True)
    drawn = traitlets.Int(0).tag(sync=True)
    longest = traitlets.Unicode("").tag(sync=True)  # the page keeps room for this sentence
    chosen = traitlets.Dict().tag(sync=True)  # by a click: {"name": of a control, "value": its new one}

    def show(self, picture: str, words: str) -> None:
        """One message to the browser, however much has changed."""
        with self.hold_sync():
            self.html, self.words, self.busy = picture, words, False
            self.drawn += 1


class Panel(ipywidgets.VBox):
    """`draw(**values)` is called with the value of each control, now and whenever one of them changes.

    `panel.picture` is what it last returned, `panel.words` the sentence beside it. Arrow keys move a focused slider.

    A part of a picture can stand for a control's value, and sets it when clicked: any element with
    `data-choose='{"node": 3}'`.

    `longest` is the longest sentence that `draw` can return, where it is known: the page keeps room for it, so that
    what is below stays where it is. `measured` is what the cell measured, as plain data: the notebook keeps it, and the
    web site, which measures nothing, gives it to the function of viz that made this panel.
    """

    def __init__(
        self, draw: Callable[..., str | tuple[str, str]], controls: Mapping, longest: str = "", measured: object = None
    ) -> None:
        self.draw, self.controls, self.measured = draw, dict(controls), measured
        self.picture, self.words = "", ""
        self._held = False
        self.view = PictureView(layout=WIDE, longest=longest)
        told = lambda change: self.choose(change["new"].get("name"), change["new"].get("value"))  # noqa: E731
        self.view.observe(told, names="chosen")
        for control in self._read().values():
            control.observe(self.redraw, names="value")
        super().__init__([ipywidgets.Box(list(self.controls.values()), layout=_ROW), self.view])
        self.add_class("minispec-panel")
        self.redraw()

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
            keep(self, self.frozen())
        finally:
            self.view.busy = False

    def _repr_mimebundle_(self, **kwargs) -> dict:
        """What a cell's output keeps: the widget, its sentence, and for the builder the picture as data."""
        bundle = super()._repr_mimebundle_(**kwargs) or {}
        bundle["text/plain"] = self.words or "a picture: run this cell to see it"
        return bundle | ({PICTURE: self.still()} if os.environ.get(WANTED) else {})

    def still(self) -> dict:
        """The picture as it is now, as plain data."""
        kept = {} if self.measured is None else {"measured": self.measured}
        return {"figure": {}, "html": self.picture, "words": self.words, **kept}

    def frozen(self) -> dict:
        """The picture for a page that cannot move it, and what its controls are set to."""
        named = [control for control in self._read().values() if getattr(control, "description", "")]
        told = [f"{one.description}: {getattr(one, 'label', None) or one.value}" for one in named]
        lines = [self.words, " · ".join(told), FROZEN * bool(self.controls)]
        html = "".join(f"<p>{escape(line)}</p>" for line in lines if line)
        return text_output(html=f"<div inert>{self.picture}</div>{html}", plain="\n".join(filter(None, lines)))

    def choose(self, name: str, value: object) -> None:
        """Set a control, as a click into the picture does. What it does not take is no choice."""
        if name in self._read():
            try:
                self.controls[name].value = value
            except traitlets.TraitError:
                pass


def slider(label: str, value: float, low: float, high: float, step: float | None = None) -> ipywidgets.Widget:
    """A slider for whole numbers, or for decimals when `step` is one."""
    shape = dict(description=label, layout=_beside(label), **_SHAPE)
    if step is None or isinstance(step, int):
        return ipywidgets.IntSlider(value, low, high, step or 1, **shape)
    return ipywidgets.FloatSlider(value=value, min=low, max=high, step=step, readout_format=".2f", **shape)


def stops(label: str, values: Sequence[int], value: int) -> ipywidgets.SelectionSlider:
    """A slider over chosen numbers, for what ranges over powers of ten."""
    options = [(f"{v:,}", v) for v in values]
    return ipywidgets.SelectionSlider(options=options, value=value, description=label, layout=_beside(label), **_SHAPE)


def _beside(label: str) -> ipywidgets.Layout:
    """Room for a label, and beside it for a slider that a hand can set."""
    return ipywidgets.Layout(width=f"{max(320, 240 + 7 * len(label))}px", max_width="100%")


def choice(label: str, options: Mapping[str, object] | list | tuple, value: object = None) -> ipywidgets.Dropdown:
    """A menu. A mapping shows its keys and gives its values."""
    pairs = list(options.items()) if isinstance(options, Mapping) else [(str(one), one) for one in options]
    if not pairs:
        raise ValueError(f"options={options!r}: a menu needs something to choose from")
    value, wide = pairs[0][1] if value is None else value, ipywidgets.Layout(width="auto", min_width="200px")
    return ipywidgets.Dropdown(options=pairs, value=value, description=label, layout=wide, **_SHAPE)


def switch(label: str, value: bool = False) -> ipywidgets.Checkbox:
    return ipywidgets.Checkbox(value, description=label, indent=False, layout=ipywidgets.Layout(width="auto"))


def player(label: str, last: int, interval: int = 700, start: int = 0) -> dict[str, ipywidgets.Widget]:
    """A slider over the steps 0 … last and a play button that moves it, as a panel's controls {"step": …, "play": …};
    `draw` is told the slider's value only."""
    play = ipywidgets.Play(min=0, max=last, interval=interval, description=label)
    step = slider(label, 0, 0, last)
    ipywidgets.link((play, "value"), (step, "value"))
    step.value = start
    return {"step": step, "play": play}
