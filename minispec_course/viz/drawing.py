"""The course's own way to draw: shapes on a canvas, and axes on it, as SVG with the same bytes on every run.

A drawing brings its own card. On a Jupyter page it takes that page's colours, light or dark; as an image on any other
page it falls back to dark ink on white. Each one says in words what it shows, for screen readers and for text. A page
shows such a drawing in a few milliseconds, so charts that follow a slider are drawn here and not with plotly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from itertools import pairwise

WIDTH = 760  # what a notebook's output shows without scaling on a window of 900 pixels
FONT = "system-ui, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"
INK, SOFT, CARD, RULE = "ink", "soft", "card", "rule"
THEME = {
    INK: ("--jp-ui-font-color1", "#1f2933"),
    SOFT: ("--jp-ui-font-color2", "#52606d"),
    CARD: ("--jp-layout-color1", "#ffffff"),
    RULE: ("--jp-border-color1", "#9aa5b1"),
}
# Each class has the same meaning in every diagram, so that it does not matter whose style sheet a page keeps.
STYLE = "".join(
    f".ms-{name}{{fill:var({variable},{plain})}}.ms-{name}-line{{stroke:var({variable},{plain});fill:none}}"
    for name, (variable, plain) in THEME.items()
)
SHAPES = {  # of marks, about their middle, with radius 1
    "circle": "M-1 0a1 1 0 1 1 2 0a1 1 0 1 1 -2 0z",
    "square": "M-.9 -.9h1.8v1.8h-1.8z",
    "diamond": "M0 -1.2l1.2 1.2l-1.2 1.2l-1.2 -1.2z",
    "cross": "M-.4 -1.2h.8v.8h.8v.8h-.8v.8h-.8v-.8h-.8v-.8h.8z",
    "x": "M0 -.5l.6 -.6l.5 .5l-.6 .6l.6 .6l-.5 .5l-.6 -.6l-.6 .6l-.5 -.5l.6 -.6l-.6 -.6l.5 -.5z",
    "star": "M0 -1.3l.38 .9l.9 .1l-.7 .6l.2 .95l-.78 -.5l-.78 .5l.2 -.95l-.7 -.6l.9 -.1z",
}


class Drawing:
    """A finished picture: a cell shows it, and a notebook keeps it as an image with its words as the alternative."""

    def __init__(self, svg: str, words: str) -> None:
        self.svg, self.words = svg, words

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        return {"image/svg+xml": self.svg, "text/plain": self.words}

    def __repr__(self) -> str:
        return self.words


class Canvas:
    """Shapes, one after the other, in units that are pixels where nothing is scaled. Each method returns the canvas.

    A colour is one of the theme's names (ink, soft, card, rule) or a plain colour of the palette. `title` is what the
    pointer is told. A phone shows 340 pixels: what is readable there is drawn 400 wide, and `scale` enlarges it on
    wider pages; or a wide picture has a `cut`, an x that nothing crosses, where the web site parts it on a phone.
    """

    def __init__(self, height: float, width: float = WIDTH, scale: float = 1, cut: float = 0) -> None:
        self.width, self.height, self.scale, self.cut = width, height, scale, cut
        self.parts: list[str] = []

    def add(self, svg: str) -> Canvas:
        self.parts.append(svg)
        return self

    @contextmanager
    def group(self, attributes: str, title: str = "") -> Iterator[Canvas]:
        """What is drawn inside is one part of the picture."""
        self.add(f"<g {attributes}>{_title(title)}")
        yield self
        self.add("</g>")

    def choice(self, name: str, value: object, title: str, tab: int = 0):
        """A part of the picture that sets a control of its panel when it is clicked."""
        return self.group(f'data-choose=\'{{"{name}": {value}}}\' tabindex="{tab}" cursor="pointer"', title)

    def rect(self, x, y, w, h, fill=None, line=RULE, shade=1.0, round=3, dash="", thick=1.0, title="") -> Canvas:
        """`shade` mixes a fill with the card: 0.25 of a colour keeps the text above it readable."""
        place = f'x="{_n(x)}" y="{_n(y)}" width="{_n(max(0, w))}" height="{_n(max(0, h))}" rx="{_n(round)}"'
        if fill:
            self.add(f"<rect {place} {_fill(fill, shade)}>{_title(title)}</rect>")
        if line:
            self.add(f"<rect {place} {_line(line, thick, dash)}>{_title('' if fill else title)}</rect>")
        return self

    def text(self, x, y, words, size=13.0, at="start", bold=False, colour=INK) -> Canvas:
        look = f'font-size="{_n(size)}" text-anchor="{at}"' + (' font-weight="600"' if bold else "")
        words = escape(str(words))
        return self.add(f'<text x="{_n(x)}" y="{_n(y)}" {look} {_fill(colour)} xml:space="preserve">{words}</text>')

    def paragraph(self, x, y, words: str, width: float, size=12.5, colour=SOFT) -> Canvas:
        """Lines broken so that they stay within `width`."""
        for i, line in enumerate(wrapped(words, width, size)):
            self.text(x, y + i * size * 1.4, line, size, colour=colour)
        return self

    def line(self, x1, y1, x2, y2, colour=RULE, thick=1.5, dash="", title="") -> Canvas:
        ends = f'x1="{_n(x1)}" y1="{_n(y1)}" x2="{_n(x2)}" y2="{_n(y2)}"'
        return self.add(f"<line {ends} {_line(colour, thick, dash)}>{_title(title)}</line>")

    def arrow(self, x1, y1, x2, y2, colour=SOFT, thick=1.5, dash="", head=6.0) -> Canvas:
        """A line with a head at its end. (A marker would need an id, and two drawings on a page would share it.)"""
        length = math.hypot(x2 - x1, y2 - y1) or 1
        ux, uy = (x2 - x1) / length, (y2 - y1) / length
        bx, by = x2 - ux * head * 1.4, y2 - uy * head * 1.4
        self.line(x1, y1, bx, by, colour, thick, dash)
        corners = [(x2, y2), (bx - uy * head * 0.6, by + ux * head * 0.6), (bx + uy * head * 0.6, by - ux * head * 0.6)]
        points = " ".join(f"{_n(x)},{_n(y)}" for x, y in corners)
        return self.add(f'<polygon points="{points}" {_fill(colour)}/>')

    def path(self, d: str, colour=SOFT, thick=1.5, dash="", title="") -> Canvas:
        return self.add(f'<path d="{d}" {_line(colour, thick, dash)}>{_title(title)}</path>')

    def cells(self, boxes: Sequence[tuple[float, float, float, float]], fill: str, shade=1.0, extra="") -> Canvas:
        """Many rectangles of one colour, (x, y, width, height), as one element: a page is slow with a thousand."""
        d = "".join(f"M{_n(x)} {_n(y)}h{_n(w)}v{_n(h)}h-{_n(w)}z" for x, y, w, h in boxes)
        return self.add(f'<path {extra} d="{d}" {_fill(fill, shade)}/>')

    def mark(self, x, y, symbol: str, colour, r=5.0, title="") -> Canvas:
        """One of SHAPES; "open …" is its outline, inside which the pointer finds it."""
        outline = f'stroke="{colour}" stroke-width="2" vector-effect="non-scaling-stroke"'
        look = f'fill="transparent" {outline}' if symbol.startswith("open ") else _fill(colour)
        place = f'transform="translate({x:.1f} {y:.1f}) scale({r:g})"'
        return self.add(f'<path {place} d="{SHAPES[symbol.removeprefix("open ")]}" {look}>{_title(title)}</path>')

    def box(self, x, y, w, h, words: str, fill=None, shade=0.25, size=12.5, bold=False, **look) -> Canvas:
        """A box with its words in the middle, as much of them as fits."""
        self.rect(x, y, w, h, fill, shade=shade, **look)
        return self.text(x + w / 2, y + h / 2 + size * 0.35, shorten(words, w - 6, size), size, "middle", bold)

    def key(self, x, y, entries: Sequence[tuple], size=12.5) -> Canvas:
        """A legend: (colour, words) or (mark, colour, words), … It wraps at the edge of the canvas.

        An empty colour is an empty dotted box; a mark is "line", "dash", or one that `mark` draws.
        """
        left = x
        for *mark, colour, words in entries:
            wide = (32 if mark else 18) + text_width(words, size) + 18
            if x > left and x + wide - 18 > self.width:
                x, y = left, y + 22
            if not mark:
                self.rect(x, y - 10, 12, 12, colour or None, RULE, dash="" if colour else "2 2")
            elif mark[0] in ("line", "dash"):
                self.line(x, y - 4, x + 24, y - 4, colour, 3, "5 4" if mark[0] == "dash" else "")
            else:
                self.mark(x + 12, y - 4, mark[0], colour)
            self.text(x + (32 if mark else 18), y, words, size)
            x += wide
        return self

    def svg(self, words: str) -> str:
        """The picture as one element; `words` is what it shows, spoken."""
        wide, tall = _n(self.width * self.scale), _n(self.height * self.scale)
        shape = f'viewBox="0 0 {_n(self.width)} {_n(self.height)}" width="{wide}" height="{tall}"'
        shape += f' data-cut="{_n(self.cut)}"' if self.cut else ""
        fit = 'style="max-width:100%;height:auto;display:block"'
        start = f'<svg xmlns="http://www.w3.org/2000/svg" {shape} role="img" font-family="{FONT}" {fit}>'
        card = f'<rect width="100%" height="100%" rx="8" {_fill(CARD)}/>'
        return f"{start}{_title(words)}<style>{STYLE}</style>{card}{''.join(self.parts)}</svg>"

    def drawing(self, words: str) -> Drawing:
        return Drawing(self.svg(words), words)


class Axes:
    """A chart in a box (left, top, width, height) of a canvas, with its frame. `log`: logarithmic axes, such as "xy".

    Ticks that are not given are round numbers. `room`: how far from the axis the y axis's title is.
    """

    def __init__(
        self,
        canvas: Canvas,
        box,
        xs,
        ys,
        log="",
        title="",
        x="",
        y="",
        x_ticks=None,
        y_ticks=None,
        y_name=None,
        room=46,
    ) -> None:
        self.canvas, self.box, self.xs, self.ys, self.log = canvas, box, xs, ys, log
        left, top, width, height = box
        canvas.text(left, top - 12, title, 13)
        for tick in _ticks(xs, "x" in log) if x_ticks is None else x_ticks:
            across, _ = self.at(tick, ys[0])
            canvas.line(across, top, across, top + height, thick=0.5)
            canvas.text(across, top + height + 15, plain(tick), 12, "middle", colour=SOFT)
        for tick in _ticks(ys, "y" in log) if y_ticks is None else y_ticks:
            _, up = self.at(xs[0], tick)
            canvas.line(left, up, left + width, up, thick=0.5)
            canvas.text(left - 6, up + 4, (y_name or plain)(tick), 12, "end", colour=SOFT)
        canvas.text(left + width / 2, top + height + 34, x, 12.5, "middle")
        with canvas.group(f'transform="rotate(-90 {left - room:.1f} {top + height / 2:.1f})"'):
            canvas.text(left - room, top + height / 2, y, 12.5, "middle")

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a point lies on the canvas; outside of the axes it is moved to their edge."""
        left, top, width, height = self.box
        across, up = _share(x, self.xs, "x" in self.log), _share(y, self.ys, "y" in self.log)
        return left + width * across, top + height * (1 - up)

    def bar(self, left: float, right: float, height: float, colour: str, title="", shade=1.0, low=0.0) -> Axes:
        """From `low` up, or down."""
        (x, y), (end, zero) = self.at(left, max(low, height)), self.at(right, min(low, height))
        self.canvas.rect(x, y, end - x, zero - y, colour, None, shade, round=0, title=title)
        return self

    def line(self, xs: Sequence[float], ys: Sequence[float], colour: str, thick=2.0, dash="", title="") -> Axes:
        points = " ".join("{:.1f} {:.1f}".format(*self.at(x, y)) for x, y in zip(xs, ys, strict=True))
        self.canvas.path(f"M{points}", colour, thick, dash, title)
        return self

    def steps(self, xs: Sequence[float], ys: Sequence[float], colour: str, thick=2.0, dash="") -> Axes:
        """A line that keeps each value up to the next x."""
        corners = [(x, y) for pair, y in zip(pairwise(xs), ys, strict=False) for x in pair]
        return self.line(*zip(*corners, (xs[-1], ys[-1]), strict=True), colour, thick, dash)

    def level(self, y: float, colour=SOFT, dash="2 3", title="") -> Axes:
        """A line across the chart."""
        return self.line(self.xs, (y, y), colour, 1.2, dash, title)

    def dot(self, x, y, colour, title="", symbol="circle", r=5.0) -> Axes:
        self.canvas.mark(*self.at(x, y), symbol, colour, r, title)
        return self

    def strips(self, xs: Sequence[float], told: Sequence[str]) -> Axes:
        """What the pointer is told above and below each x: as a line of points would, without their being seen."""
        _, top, _, height = self.box
        at = [self.at(x, self.ys[1])[0] for x in xs]
        edges = [at[0], *((a + b) / 2 for a, b in pairwise(at)), at[-1]]
        for (left, right), words in zip(pairwise(edges), told, strict=True):
            self.canvas.rect(left, top, right - left, height, "transparent", None, round=0, title=words)
        return self


def _share(value: float, ends: tuple[float, float], log: bool) -> float:
    """How far along its axis a value lies, from 0 to 1."""
    value = min(max(value, min(ends)), max(ends))
    low, high, value = map(math.log10, (*ends, value)) if log else (*ends, value)
    return (value - low) / (high - low)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from low to high, at most so many."""
    step = 10.0 ** math.floor(math.log10((high - low) / most))
    step *= next(times for times in (1, 2, 5, 10) if (high - low) / (times * step) <= most)
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _ticks(ends: tuple[float, float], log: bool) -> list[float]:
    if not log:
        return ticks(*sorted(ends))
    first, last = math.floor(math.log10(ends[0])), math.ceil(math.log10(ends[1]))
    factors = (1, 2, 5) if last - first <= 3 else (1,)
    return [f * 10.0**n for n in range(first, last + 1) for f in factors if ends[0] <= f * 10.0**n <= ends[1]]


def plain(tick: float) -> str:
    return f"{tick:,.0f}" if tick >= 1e5 else f"{tick:,g}".replace("-", "−")


def text_width(words: str, size: float = 13) -> float:
    """A generous estimate, because which font a page has is not known."""
    narrow = sum(c in " .,:;'|!ijl()[]It1·" for c in words)
    wide = sum(c in "mwMW@%→␣✓✗" for c in words)
    return size * (0.61 * (len(words) - narrow - wide) + 0.37 * narrow + 0.88 * wide)


def wrapped(words: str, width: float, size: float = 13) -> list[str]:
    lines, line = [], ""
    for word in words.split():
        if line and text_width(f"{line} {word}", size) > width:
            lines, line = [*lines, line], word
        else:
            line = f"{line} {word}".strip()
    return [*lines, line]


def shorten(words: str, width: float, size: float = 13) -> str:
    """As much of a token's text as fits."""
    while len(words) > 1 and text_width(words, size) > width:
        words = words[:-2] + "…" if words.endswith("…") else words[:-1] + "…"
    return words


def visible(token: str) -> str:
    """A token's text with its blanks visible."""
    return token.replace(" ", "␣").replace("\n", "⏎") or "∅"


def say(model) -> Callable[[int], str]:
    """A token of a model as a picture shows it; without a tokenizer, its number."""
    return lambda token: visible(model.decode([token]) if model.tokenizer else str(token))


def _n(x: float) -> str:
    """Two decimals at most: small, and the same on every machine."""
    return f"{round(x, 2) + 0.0:.2f}".rstrip("0").rstrip(".")


def _title(words: str) -> str:
    return f"<title>{escape(words)}</title>" if words else ""


def _fill(colour: str, shade: float = 1.0) -> str:
    opacity = f' fill-opacity="{_n(shade)}"' if shade < 1 else ""
    return (f'class="ms-{colour}"' if colour in THEME else f'fill="{colour}"') + opacity


def _line(colour: str, thick: float, dash: str = "") -> str:
    stroke = f'class="ms-{colour}-line"' if colour in THEME else f'stroke="{colour}" fill="none"'
    return f'{stroke} stroke-width="{_n(thick)}"' + (f' stroke-dasharray="{dash}"' if dash else "")
