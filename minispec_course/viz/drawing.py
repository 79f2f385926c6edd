"""A pencil for the course's diagrams: SVG, the same bytes on every run.

A diagram brings its own card. On a Jupyter page it takes that page's colours, light or dark; as an image on any other
page it falls back to dark ink on white. Each one says in words what it shows, for screen readers and for text.
"""

from __future__ import annotations

from html import escape

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


class Drawing:
    """A finished picture: a cell shows it, and a notebook keeps it as an image with its words as the alternative."""

    def __init__(self, svg: str, words: str) -> None:
        self.svg, self.words = svg, words

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        return {"image/svg+xml": self.svg, "text/plain": self.words}

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return self.words


class Canvas:
    """Shapes, one after the other, in units that are pixels where nothing is scaled. Each method returns the canvas.

    A colour is one of the theme's names (ink, soft, card, rule) or a plain colour of the palette.
    """

    def __init__(self, height: float, width: float = WIDTH) -> None:
        self.width, self.height = width, height
        self.parts: list[str] = []

    def rect(
        self,
        x,
        y,
        w,
        h,
        fill: str | None = None,
        line: str | None = RULE,
        shade: float = 1.0,
        round: float = 3,
        dash: str = "",
        thick: float = 1.0,
        title: str = "",
    ) -> Canvas:
        """`shade` mixes a fill with the card: 0.25 of a colour keeps the text above it readable."""
        about = f"<title>{escape(title)}</title>" if title else ""
        place = f'x="{_n(x)}" y="{_n(y)}" width="{_n(max(0, w))}" height="{_n(max(0, h))}" rx="{_n(round)}"'
        if fill:
            opacity = f' fill-opacity="{_n(shade)}"' if shade < 1 else ""
            self.parts.append(f"<rect {place} {_fill(fill)}{opacity}>{about}</rect>")
        if line:
            self.parts.append(f"<rect {place} {_line(line, thick, dash)}>{about if not fill else ''}</rect>")
        return self

    def text(
        self,
        x,
        y,
        words: str,
        size: float = 13,
        at: str = "start",
        bold: bool = False,
        colour: str = INK,
        mono: bool = False,
    ) -> Canvas:
        look = f'font-size="{_n(size)}" text-anchor="{at}"' + (' font-weight="600"' if bold else "")
        look += ' font-family="ui-monospace, Menlo, Consolas, monospace"' if mono else ""
        self.parts.append(
            f'<text x="{_n(x)}" y="{_n(y)}" {look} {_fill(colour)} xml:space="preserve">{escape(words)}</text>'
        )
        return self

    def paragraph(self, x, y, words: str, width: float, size: float = 12.5, colour: str = SOFT) -> Canvas:
        """Lines broken so that they stay within `width`."""
        for i, line in enumerate(wrapped(words, width, size)):
            self.text(x, y + i * size * 1.4, line, size, colour=colour)
        return self

    def line(self, x1, y1, x2, y2, colour: str = RULE, thick: float = 1.5, dash: str = "") -> Canvas:
        ends = f'x1="{_n(x1)}" y1="{_n(y1)}" x2="{_n(x2)}" y2="{_n(y2)}"'
        self.parts.append(f"<line {ends} {_line(colour, thick, dash)}/>")
        return self

    def arrow(self, x1, y1, x2, y2, colour: str = SOFT, thick: float = 1.5, dash: str = "", head: float = 6) -> Canvas:
        """A line with a head at its end. (A marker would need an id, and two drawings on a page would share it.)"""
        length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5 or 1
        ux, uy = (x2 - x1) / length, (y2 - y1) / length
        bx, by = x2 - ux * head * 1.4, y2 - uy * head * 1.4
        self.line(x1, y1, bx, by, colour, thick, dash)
        corners = [(x2, y2), (bx - uy * head * 0.6, by + ux * head * 0.6), (bx + uy * head * 0.6, by - ux * head * 0.6)]
        points = " ".join(f"{_n(x)},{_n(y)}" for x, y in corners)
        self.parts.append(f'<polygon points="{points}" {_fill(colour)}/>')
        return self

    def path(
        self,
        d: str,
        colour: str = SOFT,
        thick: float = 1.5,
        fill: str | None = None,
        shade: float = 1,
        dash: str = "",
        title: str = "",
    ) -> Canvas:
        if fill:
            self.parts.append(f'<path d="{d}" {_fill(fill)} fill-opacity="{_n(shade)}"/>')
        about = f"<title>{escape(title)}</title>" if title else ""
        self.parts.append(f'<path d="{d}" {_line(colour, thick, dash)}>{about}</path>')
        return self

    def circle(self, x, y, r, fill: str, line: str | None = None, shade: float = 1.0, thick: float = 1.5) -> Canvas:
        edge = f" {_line(line, thick, keep_fill=True)}" if line else ""
        opacity = f' fill-opacity="{_n(shade)}"' if shade < 1 else ""
        self.parts.append(f'<circle cx="{_n(x)}" cy="{_n(y)}" r="{_n(r)}" {_fill(fill)}{opacity}{edge}/>')
        return self

    def box(self, x, y, w, h, words: str, fill: str | None = None, shade=0.25, size=12.5, bold=False, **look) -> Canvas:
        """A box with its words in the middle, on several lines where they hold line breaks."""
        self.rect(x, y, w, h, fill, shade=shade, **look)
        lines = words.split("\n")
        top = y + h / 2 + size * 0.35 - (len(lines) - 1) * size * 0.62
        for i, line in enumerate(lines):
            self.text(x + w / 2, top + i * size * 1.24, line, size, "middle", bold and i == 0)
        return self

    def key(self, x, y, entries: list[tuple[str, str]], size: float = 12.5, shade: float = 1.0) -> Canvas:
        """A legend: (colour, words), … An empty colour is an empty dotted box."""
        for colour, words in entries:
            self.rect(x, y - 10, 12, 12, colour or None, RULE, shade, dash="" if colour else "2 2")
            self.text(x + 18, y, words, size)
            x += 18 + text_width(words, size) + 18
        return self

    def svg(self, words: str) -> str:
        """The picture as one element; `words` is what it shows, spoken."""
        shape = f'viewBox="0 0 {_n(self.width)} {_n(self.height)}" width="{_n(self.width)}" height="{_n(self.height)}"'
        open_ = f'<svg xmlns="http://www.w3.org/2000/svg" {shape} role="img" font-family="{FONT}"'
        fit = ' style="max-width:100%;height:auto;display:block"'
        card = f'<rect width="100%" height="100%" rx="8" {_fill(CARD)}/>'
        title = f"<title>{escape(words)}</title>"
        return f"{open_}{fit}>{title}<style>{STYLE}</style>{card}{''.join(self.parts)}</svg>"

    def drawing(self, words: str) -> Drawing:
        return Drawing(self.svg(words), words)


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


def _n(x: float) -> str:
    """Two decimals at most: small, and the same on every machine."""
    return f"{round(x, 2) + 0.0:.2f}".rstrip("0").rstrip(".")


def _fill(colour: str) -> str:
    return f'class="ms-{colour}"' if colour in THEME else f'fill="{colour}"'


def _line(colour: str, thick: float, dash: str = "", keep_fill: bool = False) -> str:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    if colour in THEME and keep_fill:
        stroke = f'style="stroke:var({THEME[colour][0]},{THEME[colour][1]})"'
    elif colour in THEME:
        stroke = f'class="ms-{colour}-line"'
    else:
        stroke = f'stroke="{colour}"' + ("" if keep_fill else ' fill="none"')
    return f'{stroke} stroke-width="{_n(thick)}"{dashed}'
