"""Small charts as SVG text: bars, stacks, columns and lines, written by hand, so that nothing has to be installed.

A chart is a card that brings its own background, light or dark as the reader's system asks for, so it can be read on
any page. Axes of bars begin at 0. Coordinates are rounded to a tenth of a pixel: the same data makes the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, EDGE, TOP = 720, 20, 70  # of the card; its margin; where plot or legend begins
SIZE, ADVANCE = 12, 6.4  # of the letters, and about how wide one is
LEAST = 2.5  # pixels of a spread that is drawn: a shorter one would be a blot
# Okabe and Ito's palette as in the course's figures, and a few more for those who race many drafters.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7f8c9a", "#8c6bb1", "#a6761d", "#66a61e")
GREY = COLOURS[6]
STYLE = """
.card{fill:#fff;stroke:#d8dee4} text{fill:#24292f;font:12px -apple-system,"Segoe UI",Helvetica,Arial,sans-serif}
.title{font-size:15px;font-weight:600} .soft{fill:#57606a} .on{fill:#fff;font-weight:600}
.grid{stroke:#e3e7eb} .axis{stroke:#57606a} .mark{stroke:#57606a;stroke-dasharray:4 3}
.spread{stroke:#24292f;stroke-width:1.2;fill:none} .line{fill:none;stroke-width:2.2} .dashed{stroke-dasharray:6 4}
@media (prefers-color-scheme:dark){.card{fill:#0d1117;stroke:#30363d} text{fill:#e6edf3} .soft{fill:#9aa4af}
.on{fill:#fff} .grid{stroke:#21262d} .axis,.mark{stroke:#9aa4af} .spread{stroke:#e6edf3}}
"""


@dataclass(frozen=True)
class Series:
    """What has one colour: a value for each group or place, None where there is none, and quartiles where known."""

    name: str
    values: Sequence[float | None]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    predicted: bool = False  # drawn pale or dashed: nobody measured it
    colour: str | None = None  # None: its turn in COLOURS, and a prediction that of what it predicts

    def spread(self, i: int) -> tuple[float, float] | None:
        if not self.low or self.low[i] is None or self.high[i] is None:
            return None
        return self.low[i], self.high[i]

    @property
    def most(self) -> float:
        return max(v for v in (*self.values, *self.high, 0.0) if v is not None)


# ---------------------------------------------------------------- the four charts


def bars(
    title: str,
    about: str,
    groups: Sequence[str],
    series: Sequence[Series],
    label: str,
    form: str = "{:.2f}",
    marks: Mapping[str, float] | None = None,
) -> str:
    """Lying bars, one of each series for every group, each with its number behind it; marks are dashed lines."""
    marks = marks or {}
    left, thick, gap = _left(groups), 20 if len(series) == 1 else 15, 14
    right = WIDTH - EDGE - 8 - ADVANCE * max(len(_say(form, s.most)) for s in series)
    legend, top = _legend(series)
    top += 16 if marks else 0
    bottom = top + len(groups) * (len(series) * thick + gap) + gap / 2
    scale = ticks(max(*(s.most for s in series), *marks.values(), 0.0))
    place = lambda v: left + (right - left) * v / scale[-1]  # noqa: E731
    parts = [legend, *_vertical_grid(scale, place, top, bottom, label), *_dashed_down(marks, place, top, bottom)]
    y = top + gap / 2
    for i, group in enumerate(groups):
        y += gap / 2
        parts.append(_text(left - 8, y + len(series) * thick / 2 + 4, group, anchor="end"))
        for one, colour in zip(series, _colours(series), strict=True):
            if (value := one.values[i]) is not None:
                parts.append(_rect(left, y + 1, place(value) - left, thick - 2, colour, one.predicted))
                end, spread = value, one.spread(i)
                if spread:
                    parts.append(_spread_across(*map(place, spread), y + thick / 2))
                    end = max(value, spread[1])
                parts.append(_text(place(end) + 6, y + thick / 2 + 4, _say(form, value), kind="soft"))
            y += thick
        y += gap / 2
    parts.append(_line(left, top, left, bottom, "axis"))
    return _card(title, about, bottom + 46, parts)


def stacks(title: str, about: str, groups: Sequence[str], series: Sequence[Series], label: str, form: str) -> str:
    """Lying bars whose parts follow one another; a part's number stands in it where there is room."""
    left, right, thick, gap = _left(groups), WIDTH - EDGE - 16, 34, 16
    legend, top = _legend(series)
    bottom = top + len(groups) * (thick + gap) + gap / 2
    scale = ticks(max(sum(s.values[i] or 0.0 for s in series) for i in range(len(groups))))
    place = lambda v: left + (right - left) * v / scale[-1]  # noqa: E731
    parts = [legend, *_vertical_grid(scale, place, top, bottom, label, form)]
    for i, group in enumerate(groups):
        y, start = top + gap + i * (thick + gap) - gap / 4, 0.0
        parts.append(_text(left - 8, y + thick / 2 + 4, group, anchor="end"))
        for one, colour in zip(series, _colours(series), strict=True):
            value = one.values[i] or 0.0
            width, said = place(start + value) - place(start), _say(form, value)
            parts.append(_rect(place(start), y, width, thick, colour, one.predicted))
            if width > ADVANCE * len(said) + 8:
                kind = "" if one.predicted else "on"
                parts.append(_text(place(start) + width / 2, y + thick / 2 + 4, said, anchor="middle", kind=kind))
            start += value
    parts.append(_line(left, top, left, bottom, "axis"))
    return _card(title, about, bottom + 46, parts)


def columns(
    title: str,
    about: str,
    groups: Sequence[str],
    series: Sequence[Series],
    label: str,
    marks: Mapping[str, float] | None = None,
) -> str:
    """Standing bars, many groups of many series. The numbers are left to a table."""
    marks = marks or {}
    legend, top = _legend(series)
    top += 10 if len(series) > 1 else 0
    scale = ticks(max(*(s.most for s in series), *marks.values(), 0.0))
    left, right, bottom = EDGE + 44, WIDTH - EDGE - _names(marks), top + 16 + 220
    height = lambda v: bottom - (bottom - top - 16) * v / scale[-1]  # noqa: E731
    parts = [legend, *_level_grid(scale, height, left, right, top, label)]
    room = (right - left) / len(groups)
    thick = min(26.0, 0.82 * room / len(series))
    for i, group in enumerate(groups):
        middle = left + room * (i + 0.5)
        parts += _broken(middle, bottom + 18, group, room)
        for j, (one, colour) in enumerate(zip(series, _colours(series), strict=True)):
            if (value := one.values[i]) is None:
                continue
            x = middle + thick * (j - len(series) / 2)
            parts.append(_rect(x + 0.5, height(value), thick - 1, bottom - height(value), colour, one.predicted))
            if spread := one.spread(i):
                parts.append(_spread_up(x + thick / 2, *map(height, spread)))
    parts += [*_dashed_across(marks, height, left, right), _line(left, bottom, right, bottom, "axis")]
    return _card(title, about, bottom + 46, parts)


def lines(
    title: str,
    about: str,
    x: Sequence[float],
    series: Sequence[Series],
    labels: tuple[str, str],
    marks: Mapping[str, float] | None = None,
    log: bool = False,
) -> str:
    """Lines through points, over x as it is or over its logarithm; every x is named at its place if there is room."""
    marks = marks or {}
    legend, top = _legend(series)
    top += 10 if len(series) > 1 else 0
    scale = ticks(max(*(s.most for s in series), *marks.values(), 0.0))
    left, right, bottom = EDGE + 44, WIDTH - EDGE - max(12.0, _names(marks)), top + 16 + 240
    height = lambda v: bottom - (bottom - top - 16) * v / scale[-1]  # noqa: E731
    along = [math.log2(v) for v in x] if log else list(x)
    start, length = (along[0], along[-1] - along[0] or 1.0) if log else (0.0, max(along) or 1.0)
    inset = 20 if log else 0
    place = lambda v: left + inset + (right - left - inset) * (v - start) / length  # noqa: E731
    parts = [
        legend,
        *_level_grid(scale, height, left, right, top, labels[1]),
        *_dashed_across(marks, height, left, right),
    ]
    last = -math.inf
    for value, at in zip(x, along, strict=True):
        if place(at) - last >= ADVANCE * (len(f"{value:g}") + 1):
            parts.append(_text(place(at), bottom + 18, f"{value:g}", anchor="middle", kind="soft"))
            last = place(at)
    parts.append(_text((left + right) / 2, bottom + 38, labels[0], anchor="middle", kind="soft"))
    for one, colour in zip(series, _colours(series), strict=True):
        known = [i for i, value in enumerate(one.values) if value is not None]
        path = " ".join(f"{_n(place(along[i]))},{_n(height(one.values[i]))}" for i in known)
        parts.append(f'<polyline class="line{" dashed" * one.predicted}" stroke="{colour}" points="{path}"/>')
        for i in known if not one.predicted else ():
            if spread := one.spread(i):
                parts.append(_spread_up(place(along[i]), *map(height, spread)))
            parts.append(
                f'<circle cx="{_n(place(along[i]))}" cy="{_n(height(one.values[i]))}" r="3.4" fill="{colour}"/>'
            )
    parts.append(_line(left, bottom, right, bottom, "axis"))
    return _card(title, about, bottom + 56, parts)


# ---------------------------------------------------------------- what they are made of


def ticks(high: float, count: int = 5) -> list[float]:
    """0, a step, two steps … up to `high` or just above, with a step of 1, 2 or 5 times a power of ten.

    >>> ticks(4.3), ticks(0.87)
    ([0, 1, 2, 3, 4, 5], [0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    """
    if not 0 < high < math.inf:
        return [0, 1]
    power = math.floor(math.log10(high / count))
    step = next(s for s in (1, 2, 5, 10) if s * 10.0**power * count >= high * (1 - 1e-9))
    number = math.ceil(high / (step * 10.0**power) - 1e-9)
    if power >= 0:
        return [i * step * 10**power for i in range(number + 1)]
    return [round(i * step * 10.0**power, -power) for i in range(number + 1)]


def _card(title: str, about: str, height: float, parts: Sequence[str]) -> str:
    head, said = escape(title), escape(about)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{_n(height)}" '
            f'viewBox="0 0 {WIDTH} {_n(height)}" role="img" aria-labelledby="title about">',
            f'<title id="title">{head}</title>',
            f'<desc id="about">{said}</desc>',
            f"<style>{STYLE}</style>",
            f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{_n(height - 1)}" rx="8"/>',
            _text(EDGE, 32, title, kind="title"),
            _text(EDGE, 52, about, kind="soft"),
            *filter(None, parts),
            "</svg>",
            "",
        ]
    )


def _colours(series: Sequence[Series]) -> list[str]:
    """One each. A prediction has the colour of what it predicts, which comes before it."""
    chosen, count = [], 0
    for one in series:
        count += not (one.predicted and chosen) and one.colour is None
        chosen.append(one.colour or COLOURS[(count - 1) % len(COLOURS)])
    return chosen


def _legend(series: Sequence[Series]) -> tuple[str, float]:
    """The legend, on as many lines as it takes, and where the plot may begin."""
    if len(series) == 1:
        return "", TOP
    parts, x, y = [], EDGE, TOP + 6
    for one, colour in zip(series, _colours(series), strict=True):
        width = 18 + ADVANCE * len(one.name) + 18
        if x > EDGE and x + width > WIDTH - EDGE:
            x, y = EDGE, y + 18
        parts += [_rect(x, y - 10, 12, 12, colour, one.predicted), _text(x + 18, y, one.name)]
        x += width
    return "\n".join(parts), y + 14


def _vertical_grid(scale, place, top: float, bottom: float, label: str, form: str = "{:g}") -> list[str]:
    parts = []
    for value in scale:
        parts.append(_line(place(value), top, place(value), bottom, "grid"))
        parts.append(_text(place(value), bottom + 16, _number(value, form), anchor="middle", kind="soft"))
    return [*parts, _text((place(0) + place(scale[-1])) / 2, bottom + 34, label, anchor="middle", kind="soft")]


def _level_grid(scale, height, left: float, right: float, top: float, label: str) -> list[str]:
    parts = [_text(EDGE, top + 2, label, kind="soft")]
    for value in scale:
        parts.append(_line(left, height(value), right, height(value), "grid"))
        parts.append(_text(left - 8, height(value) + 4, _number(value), anchor="end", kind="soft"))
    return parts


def _dashed_down(marks: Mapping[str, float], place, top: float, bottom: float) -> list[str]:
    return [
        part
        for name, value in marks.items()
        for part in (
            _line(place(value), top, place(value), bottom, "mark"),
            _text(place(value), top - 5, name, anchor="middle", kind="soft"),
        )
    ]


def _dashed_across(marks: Mapping[str, float], height, left: float, right: float) -> list[str]:
    return [
        part
        for name, value in marks.items()
        for part in (
            _line(left, height(value), right, height(value), "mark"),
            _text(right + 6, height(value) + 4, name, kind="soft"),
        )
    ]


def _names(marks: Mapping[str, float]) -> float:
    """Room for the names of the marks, right of the plot."""
    return 6 + ADVANCE * max(map(len, marks)) if marks else 0.0


def _spread_across(low: float, high: float, y: float) -> str:
    if abs(high - low) < LEAST:
        return ""
    a, b, up, down = _n(low), _n(high), _n(y - 3), _n(y + 3)
    return f'<path class="spread" d="M{a} {_n(y)}H{b}M{a} {up}V{down}M{b} {up}V{down}"/>'


def _spread_up(x: float, low: float, high: float) -> str:
    if abs(high - low) < LEAST:
        return ""
    a, b, left, right = _n(low), _n(high), _n(x - 3), _n(x + 3)
    return f'<path class="spread" d="M{_n(x)} {a}V{b}M{left} {a}H{right}M{left} {b}H{right}"/>'


def _broken(x: float, y: float, words: str, room: float) -> list[str]:
    """A name below its columns, on a second line if the first has no room for it."""
    first, _, second = words.partition(" ") if ADVANCE * len(words) > room - 4 else (words, "", "")
    return [_text(x, y + 14 * i, line, anchor="middle") for i, line in enumerate((first, second)) if line]


def _rect(x: float, y: float, width: float, height: float, colour: str, pale: bool = False) -> str:
    look = f'fill="{colour}" fill-opacity="0.22" stroke="{colour}"' if pale else f'fill="{colour}"'
    return f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(max(0.0, width))}" height="{_n(max(0.0, height))}" {look}/>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{_n(x1)}" y1="{_n(y1)}" x2="{_n(x2)}" y2="{_n(y2)}"/>'


def _text(x: float, y: float, words: str, anchor: str = "start", kind: str = "") -> str:
    look = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor != "start" else "")
    return f'<text x="{_n(x)}" y="{_n(y)}"{look}>{escape(words)}</text>'


def _left(groups: Sequence[str]) -> float:
    return EDGE + 8 + ADVANCE * max(map(len, groups))


def _say(form: str, value: float) -> str:
    return form.format(value)


def _number(value: float, form: str = "{:g}") -> str:
    return f"{value:,.0f}" if form == "{:g}" and value >= 1000 else form.format(value)


def _n(x: float) -> str:
    return f"{x:.1f}".removesuffix(".0")
