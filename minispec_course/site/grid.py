"""A panel's pictures, computed ahead for a grid of its controls' values, and stored in little space.

A picture is cut into pieces: a figure into the entries of its traces and of its layout, HTML before every opening tag.
Pictures of one widget share most of their pieces, so each piece is stored once, and a picture is a list of numbers.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import ipywidgets
import plotly.graph_objects as go

from ..viz.panel import Panel, as_json

BUDGETS = ((0.005, 900), (0.02, 300), (0.08, 100), (0.3, 30), (1e9, 12))  # (seconds of a picture, most pictures)
LARGEST = 400_000  # bytes of a widget's file, compressed


@dataclass
class Knob:
    """A control as the page shows it: its values by their number."""

    name: str
    label: str
    kind: str  # "range", "menu" or "check"
    values: list
    shown: list[str]
    start: int
    play: int = 0  # milliseconds per step, if it can play
    live: bool = False  # computed in the page: one picture serves all values

    def for_page(self) -> dict:
        return {key: getattr(self, key) for key in ("name", "label", "kind", "shown", "start", "play", "live")}


def knobs(panel: Panel) -> list[Knob]:
    """The controls that `draw` is told about, with all their values."""
    found = []
    plays = [control for control in panel.controls.values() if isinstance(control, ipywidgets.Play)]
    for name, control in panel._read().items():
        label = getattr(control, "description", "") or name
        if isinstance(control, ipywidgets.Checkbox | ipywidgets.ToggleButton):
            found.append(Knob(name, label, "check", [False, True], ["off", "on"], int(control.value)))
        elif hasattr(control, "_options_full"):
            kind = "range" if isinstance(control, ipywidgets.SelectionSlider) else "menu"
            shown, values = map(list, zip(*control._options_full, strict=True))
            found.append(Knob(name, label, kind, values, list(map(str, shown)), control.index or 0))
        elif isinstance(control, ipywidgets.IntSlider | ipywidgets.FloatSlider):
            count = round((control.max - control.min) / control.step) + 1
            whole = isinstance(control, ipywidgets.IntSlider)
            values = [control.min + i * control.step for i in range(count)]
            values = values if whole else [round(value, 10) for value in values]
            shown = [f"{value:,}" if whole else f"{value:.2f}" for value in values]
            start = min(range(count), key=lambda i: abs(values[i] - control.value))
            found.append(Knob(name, label, "range", values, shown, start))
            for play in plays:  # it moves the slider over the same steps
                found[-1].play = play.interval if whole and (play.min, play.max) == (control.min, control.max) else 0
        else:
            found.append(Knob(name, label, "fixed", [control.value], [""], 0))
    return found


def thinned(found: Sequence[Knob], most: int) -> list[list[int]]:
    """Which values of each control the grid has: all, or, while these are too many, fewer of the longest slider."""
    keep = [[knob.start] if knob.live else list(range(len(knob.values))) for knob in found]
    while prod(map(len, keep)) > most:
        sliders = [i for i, knob in enumerate(found) if knob.kind == "range" and len(keep[i]) > 3]
        others = [i for i in range(len(keep)) if len(keep[i]) > 1]
        at = max(sliders or others, key=lambda i: (len(keep[i]), i))  # the first control tells most
        keep[at] = evenly(len(found[at].values), len(keep[at]) * 4 // 5, found[at].start)
    return keep


def evenly(count: int, kept: int, start: int) -> list[int]:
    """`kept` of `count` positions: the one to start from, and the first and the last as far as there is room."""
    chosen = {round(i * (count - 1) / (kept - 1)) for i in range(kept)} if kept > 1 else set()
    if start not in chosen:
        others = [i for i in chosen if i not in (0, count - 1)] or chosen
        chosen -= {min(others, key=lambda i: abs(i - start))} if others else set()
        chosen.add(start)
    return sorted(chosen)


# ---------------------------------------------------------------- pieces


class Pieces:
    """Every piece once, in the order of first use."""

    def __init__(self) -> None:
        self.at: dict[str, int] = {}

    def number(self, piece: object) -> int:
        return self.at.setdefault(json.dumps(piece, ensure_ascii=False, separators=(",", ":")), len(self.at))

    def cut(self, picture: go.Figure | str, words: str) -> dict:
        if isinstance(picture, str):
            return {"h": [self.number(piece) for piece in re.split(r"(?=<(?!/))", picture)], "w": words}
        plain = picture if isinstance(picture, dict) else as_json(picture)
        traces = [{key: self.number(value) for key, value in trace.items()} for trace in plain["data"]]
        return {"d": traces, "l": {key: self.number(value) for key, value in plain["layout"].items()}, "w": words}


def packed(pictures: Sequence[tuple[go.Figure | str | dict, str]]) -> str:
    """Pictures as text for a script: gzip in base64."""
    pieces = Pieces()
    cut = [pieces.cut(picture, words) for picture, words in pictures]
    text = '{"pool":[' + ",".join(pieces.at) + '],"pictures":' + json.dumps(cut, ensure_ascii=False) + "}"
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def unpacked(text: str) -> list[tuple[dict | str, str]]:
    """What the page makes of it, for the tests: static/widgets.js does the same."""
    data = json.loads(gzip.decompress(base64.b64decode(text)))
    pool, found = data["pool"], []
    for one in data["pictures"]:
        if "h" in one:
            found.append(("".join(pool[i] for i in one["h"]), one["w"]))
        else:
            traces = [{key: pool[i] for key, i in trace.items()} for trace in one["d"]]
            found.append(({"data": traces, "layout": {key: pool[i] for key, i in one["l"].items()}}, one["w"]))
    return found


def draw(panel: Panel, found: Sequence[Knob], chosen: Sequence[int]) -> tuple[go.Figure | str, str]:
    drawn = panel.draw(**{knob.name: knob.values[i] for knob, i in zip(found, chosen, strict=True)})
    return drawn if isinstance(drawn, tuple) else (drawn, "")


def draw_all(panel: Panel, found: Sequence[Knob], grid: Iterable[Sequence[int]]) -> list[tuple[go.Figure | str, str]]:
    """Every picture of a grid. A control may allow what another's value excludes, such as the 20th node of a tree of
    twelve: there the notebook's widget moves the control back, and the page keeps the picture before it."""
    pictures: list[tuple[go.Figure | str, str]] = []
    for chosen in grid:
        try:
            pictures.append(draw(panel, found, chosen))
        except (IndexError, KeyError, ValueError):
            if not pictures:
                raise
            pictures.append(pictures[-1])
    return pictures


def exported(panel: Panel, live: Sequence[str] = (), most: int | None = None) -> dict:
    """All that a page needs of a widget: its controls, and its pictures in the order of the grid, packed.

    `most`: so many pictures; None lets the time decide that one of them takes.
    """
    from time import process_time

    found = knobs(panel)
    for knob in found:
        knob.live = knob.name in live
    draw(panel, found, [knob.start for knob in found])  # what is remembered from one picture to the next is in place
    start = process_time()
    draw(panel, found, [knob.start for knob in found])
    took = process_time() - start
    most = most or next(count for seconds, count in BUDGETS if took < seconds)
    while True:
        keep = thinned(found, most)
        pictures = draw_all(panel, found, product(*keep))
        data = packed(pictures)
        if len(data) * 3 // 4 <= LARGEST or most < 8:
            break
        most //= 2
    for knob, kept in zip(found, keep, strict=True):
        if not knob.live:
            knob.start = kept.index(knob.start)
            knob.values, knob.shown = [knob.values[i] for i in kept], [knob.shown[i] for i in kept]
    at = 0
    for knob in found:
        at = at * (1 if knob.live else len(knob.values)) + (0 if knob.live else knob.start)
    picture, words = pictures[at]
    is_html = isinstance(picture, str)
    height = 0 if is_html else (picture.layout.height or picture.layout.template.layout.height or 450)
    return {
        "knobs": [knob.for_page() for knob in found],
        "values": [knob.values if knob.live else None for knob in found],
        "pictures": len(pictures),
        "data": data,
        "html": picture if is_html else "",
        "height": height,
        "words": words,
    }
