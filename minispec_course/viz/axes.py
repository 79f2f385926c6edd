"""Axes on a canvas: for charts that follow a slider, where plotly would take longer than the slider may."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from itertools import pairwise

from .drawing import SOFT, Canvas, text_width

Range = tuple[float, float]


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from low to high, at most so many."""
    step = 10.0 ** math.floor(math.log10((high - low) / most))
    step *= next(times for times in (1, 2, 5, 10) if (high - low) / (times * step) <= most)
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def plain(tick: float) -> str:
    return f"{tick:,.0f}" if tick >= 1e5 else f"{tick:,g}".replace("-", "−")


class Axes:
    """A chart in a box of a canvas. `log`: the axes that are logarithmic, such as "y" or "xy"."""

    def __init__(self, canvas: Canvas, box: tuple[float, float, float, float], xs: Range, ys: Range, log: str = ""):
        self.canvas, self.box, self.xs, self.ys = canvas, box, xs, ys
        self.log = log

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a point lies on the canvas."""
        left, top, width, height = self.box
        across, up = (self._share(name, value) for name, value in (("x", x), ("y", y)))
        return left + width * across, top + height * (1 - up)

    def _share(self, name: str, value: float) -> float:
        """How far along its axis a value lies, from 0 to 1."""
        low, high = self.xs if name == "x" else self.ys
        if name in self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        return (value - low) / (high - low)

    def frame(
        self,
        title: str,
        x_title: str,
        y_title: str,
        x_ticks: Sequence[float],
        y_ticks: Sequence[float],
        y_name: Callable[[float], str] = plain,
        room: float = 46,
    ) -> Axes:
        """`room`: how far from the axis the y axis's title is."""
        left, top, width, height = self.box
        canvas = self.canvas.text(left, top - 12, title, 13)
        for tick in x_ticks:
            x, _ = self.at(tick, self.ys[0])
            canvas.line(x, top, x, top + height, thick=0.5)
            canvas.text(x, top + height + 15, plain(tick), 12, "middle", colour=SOFT)
        for tick in y_ticks:
            _, y = self.at(self.xs[0], tick)
            canvas.line(left, y, left + width, y, thick=0.5)
            canvas.text(left - 6, y + 4, y_name(tick), 12, "end", colour=SOFT)
        canvas.text(left + width / 2, top + height + 34, x_title, 12.5, "middle")
        x, y = left - room, top + height / 2
        canvas.parts.append(f'<g transform="rotate(-90 {x:.1f} {y:.1f})">')
        canvas.text(x, y, y_title, 12.5, "middle")
        canvas.parts.append("</g>")
        return self

    def bar(self, left: float, right: float, height: float, colour: str, told: str) -> Axes:
        """From 0 up, or down."""
        (x, y), (end, zero) = self.at(left, max(0, height)), self.at(right, min(0, height))
        self.canvas.rect(x, y, end - x, zero - y, colour, None, round=0, title=told)
        return self

    def line(
        self, xs: Sequence[float], ys: Sequence[float], colour: str, thick: float = 2, dash: str = "", title: str = ""
    ) -> Axes:
        points = " ".join("{:.1f} {:.1f}".format(*self.at(x, y)) for x, y in zip(xs, ys, strict=True))
        self.canvas.path(f"M{points}", colour, thick, dash=dash, title=title)
        return self

    def dot(self, x: float, y: float, radius: float, colour: str, told: str = "", ring: float = 0) -> Axes:
        """`ring`: the thickness of its line, if it is open."""
        x, y = self.at(x, y)
        look = f'fill="none" stroke="{colour}" stroke-width="{ring}"' if ring else f'fill="{colour}"'
        about = f"<title>{escape(told)}</title>" if told else ""
        self.canvas.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" {look}>{about}</circle>')
        return self

    def strips(self, xs: Sequence[float], told: Sequence[str]) -> Axes:
        """What the pointer is told above and below each x: as a line of points would, without their being seen."""
        _, top, _, height = self.box
        at = [self.at(x, self.ys[1])[0] for x in xs]
        edges = [at[0], *((a + b) / 2 for a, b in pairwise(at)), at[-1]]
        for (left, right), words in zip(pairwise(edges), told, strict=True):
            self.canvas.rect(left, top, right - left, height, "transparent", None, round=0, title=words)
        return self


def legend(canvas: Canvas, x: float, y: float, entries: Sequence[tuple[str, str, str]], size: float = 12.5) -> None:
    """(mark, colour, words), …; a mark is "line", "dash", "dot" or "ring"."""
    for mark, colour, words in entries:
        if mark in ("line", "dash"):
            canvas.line(x, y - 4, x + 24, y - 4, colour, 3, "5 4" if mark == "dash" else "")
        else:
            look = f'fill="none" stroke="{colour}" stroke-width="2"' if mark == "ring" else f'fill="{colour}"'
            canvas.parts.append(f'<circle cx="{x + 12:.1f}" cy="{y - 4:.1f}" r="5" {look}/>')
        canvas.text(x + 32, y, words, size)
        x += 32 + text_width(words, size) + 18
