"""Figures as plain data, written as plotly's are: while a slider moves there is no time for plotly to check everything.

`Figure`, `Scatter`, `Bar` and `make_subplots` take what plotly's take, as far as our pictures need it: "marker_color"
is the color of the marker, None is nothing, and what is drawn can be read as `figure.data[0].y`. Nothing is checked
here: tests/course/test_viz_light.py draws every figure with plotly as well, and both have to give the same JSON.
`figure.plotly()` is plotly's own figure, and it is what a cell shows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import deepcopy
from functools import cache

from _plotly_utils.utils import convert_to_base64
from plotly import graph_objects, io, subplots

WHOLE = re.compile("error_[xyz]|paper_bgcolor|plot_bgcolor")  # names with an underscore that separates nothing


@cache
def _path(name: str) -> tuple[str, ...]:
    """The names that underscores join: "marker_line_color" is ("marker", "line", "color")."""
    return tuple(part.replace("-", "_") for part in WHOLE.sub(lambda m: m[0].replace("_", "-"), name).split("_"))


class Node(dict):
    """Properties by their name. What is not set reads as None; `update` goes into what is there, as plotly's does."""

    def __init__(self, given: dict | None = None, **more) -> None:
        super().__init__()
        self.update(given, **more)

    def __getattr__(self, name: str):
        if name.startswith("__"):  # copy and pickle ask for these
            raise AttributeError(name)
        return self.get(name, () if name in ("annotations", "shapes") else None)

    def __setattr__(self, name: str, value: object) -> None:
        self._put(name, value)

    def update(self, given: dict | None = None, **more) -> Node:
        for name, value in {**(given or {}), **more}.items():
            self._put(name, value)
        return self

    def _put(self, name: str, value: object) -> None:
        *above, last = _path(name)
        node = self
        for part in above:
            node = node.setdefault(part, Node())
        if last == "title" and isinstance(value, str):
            value = {"text": value}
        if value is None:
            node.pop(last, None)
        elif last == "template":
            value = io.templates[value] if isinstance(value, str) else value
            node[last] = Node(value if isinstance(value, dict) else value.to_plotly_json())
        elif isinstance(value, dict):
            node.setdefault(last, Node()).update(value)
        else:
            node[last] = value


def _trace(kind: str) -> type[Node]:
    def start(self: Node, **properties) -> None:
        Node.__init__(self, properties)
        self["type"] = kind

    return type(kind.capitalize(), (Node,), {"__init__": start})


Scatter, Bar, Heatmap = map(_trace, ("scatter", "bar", "heatmap"))
Axes = tuple[str, str]  # as traces call them: ("x", "y"), ("x2", "y2"), …


class Figure:
    """`data`, a list of traces, and `layout`. Every method returns the figure."""

    def __init__(self, data: Node | Sequence[Node] = (), layout: dict | None = None) -> None:
        self.data: list[Node] = [data] if isinstance(data, Node) else list(data)
        self.layout = Node(layout)
        self.grid: list[list[Axes]] = [[("x", "y")]]  # by row and column

    def add_trace(self, trace: Node, row: int | None = None, col: int | None = None) -> Figure:
        if row is not None:
            trace["xaxis"], trace["yaxis"] = self.grid[row - 1][col - 1]
        self.data.append(trace)
        return self

    def add_traces(self, traces: Sequence[Node]) -> Figure:
        self.data += traces
        return self

    def add_scatter(self, row: int | None = None, col: int | None = None, **properties) -> Figure:
        return self.add_trace(Scatter(**properties), row, col)

    def add_bar(self, row: int | None = None, col: int | None = None, **properties) -> Figure:
        return self.add_trace(Bar(**properties), row, col)

    def add_heatmap(self, row: int | None = None, col: int | None = None, **properties) -> Figure:
        return self.add_trace(Heatmap(**properties), row, col)

    def update_traces(self, selector: dict | None = None, **properties) -> Figure:
        for trace in self.data:
            if all(trace.get(name) == value for name, value in (selector or {}).items()):
                trace.update(deepcopy(properties))
        return self

    def update_layout(self, **properties) -> Figure:
        self.layout.update(properties)
        return self

    def update_xaxes(self, row: int | None = None, col: int | None = None, **properties) -> Figure:
        return self._update_axes(0, row, col, properties)

    def update_yaxes(self, row: int | None = None, col: int | None = None, **properties) -> Figure:
        return self._update_axes(1, row, col, properties)

    def _update_axes(self, which: int, row: int | None, col: int | None, properties: dict) -> Figure:
        for axes in self._axes(row, col):
            letter, number = axes[which][0], axes[which][1:]
            self.layout.update({f"{letter}axis{number}": properties})
        return self

    def add_annotation(self, row: int | None = None, col: int | None = None, **properties) -> Figure:
        if row is not None:
            for letter, axis in zip("xy", self.grid[row - 1][col - 1], strict=True):
                of_domain = "domain" in properties.get(f"{letter}ref", "")
                properties[f"{letter}ref"] = axis + " domain" * of_domain
        self.layout["annotations"] = [*self.layout.annotations, Node(properties)]
        return self

    def update_annotations(self, **properties) -> Figure:
        for annotation in self.layout.annotations:
            annotation.update(properties)
        return self

    def add_hline(self, y: float, row: int | None = None, col: int | None = None, **properties) -> Figure:
        line = dict(type="line", x0=0, x1=1, y0=y, y1=y) | properties
        return self._add_lines(row, col, lambda x, y: {"xref": f"{x} domain", "yref": y} | line)

    def add_vline(self, x: float, row: int | None = None, col: int | None = None, **properties) -> Figure:
        line = dict(type="line", x0=x, x1=x, y0=0, y1=1) | properties
        return self._add_lines(row, col, lambda x, y: {"xref": x, "yref": f"{y} domain"} | line)

    def _add_lines(self, row: int | None, col: int | None, line) -> Figure:
        """A line across one subplot, or across every one."""
        self.layout["shapes"] = [*self.layout.shapes, *(Node(line(*axes)) for axes in self._axes(row, col))]
        return self

    def _axes(self, row: int | None, col: int | None) -> list[Axes]:
        """Of the subplots in this row and this column; None: in any. Without subplots there is one pair."""
        lines = self.grid if row is None else [self.grid[row - 1]]
        return [axes for line in lines for axes in (line if col is None else [line[col - 1]])]

    # ---- as plotly has it

    def to_dict(self) -> dict:
        whole = {"data": _copied(self.data), "layout": _copied(self.layout)}
        convert_to_base64(whole)  # numpy's arrays, as plotly sends them
        return whole

    def to_json(self) -> str:
        return io.json.to_json_plotly(self.to_dict())

    def plotly(self) -> graph_objects.Figure:
        """The same as plotly's own, which checks it, and can do whatever plotly can."""
        return graph_objects.Figure(self.to_dict())

    def __getattr__(self, name: str):
        raise AttributeError(f"our figures have no {name!r}: figure.plotly() is plotly's own, and may have it")

    def show(self, *args, **kwargs) -> None:
        self.plotly().show(*args, **kwargs)

    def _ipython_display_(self) -> None:
        self.plotly()._ipython_display_()

    def _repr_mimebundle_(self, include=None, exclude=None, **kwargs) -> dict:
        return self.plotly()._repr_mimebundle_(include, exclude, **kwargs)

    def _repr_html_(self) -> str:
        return self.plotly()._repr_html_()


def _copied(value: object):
    """Dictionaries anew, and what is in them as it is."""
    if isinstance(value, dict):
        return {name: _copied(one) for name, one in value.items()}
    of_nodes = isinstance(value, list) and value and isinstance(value[0], dict)
    return [_copied(one) for one in value] if of_nodes else value


def make_subplots(rows: int = 1, cols: int = 1, subplot_titles: Sequence[str] = (), **shape) -> Figure:
    """Several plots in one figure. Where each of them lies is asked of plotly, once for each arrangement."""
    shape = tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in shape.items())
    layout, grid = _arranged(rows, cols, len(subplot_titles), shape)
    figure = Figure(layout=layout)
    figure.grid = grid
    if subplot_titles:
        figure.layout["annotations"] = [Node(place) for place in layout["annotations"]]
        for annotation, title in zip(figure.layout.annotations, subplot_titles, strict=True):
            annotation.text = title
    return figure


@cache
def _arranged(rows: int, cols: int, titles: int, shape: tuple) -> tuple[dict, list[list[Axes]]]:
    shape = {name: list(value) if isinstance(value, tuple) else value for name, value in shape}
    figure = subplots.make_subplots(rows, cols, subplot_titles=list(map(str, range(titles))) or None, **shape)
    axes = [[cell[0].trace_kwargs for cell in line] for line in figure._grid_ref]
    grid = [[(cell["xaxis"], cell["yaxis"]) for cell in line] for line in axes]
    layout = figure.to_dict()["layout"]
    layout.pop("template", None)
    return layout, grid
