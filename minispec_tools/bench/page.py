"""What a benchmark has to say: a Section, which a terminal shows as text and docs/benchmarks.md as Markdown."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from minispec.measure import place

NONE, WIDTH = "–", 80


class Table(NamedTuple):
    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    words: Sequence[int] = (0,)  # columns that hold no numbers

    def markdown(self) -> str:
        lines = [self.head, ["---" if i in self.words else "---:" for i in range(len(self.head))], *self.rows]
        return "\n".join("| " + " | ".join(map(cell, line)) + " |" for line in lines)

    def lines(self) -> list[str]:
        """For a terminal. Headings break at spaces; columns that are too many go on below, after the first again."""
        columns = [[str(row[i]) for row in self.rows] for i in range(len(self.head))]
        fixed = next(i for i in range(len(self.head)) if i not in self.words)  # columns that every part begins with
        heads, widths = [], []
        for i, (title, cells) in enumerate(zip(self.head, columns, strict=True)):
            least = len(title) if i < fixed else max(map(len, ["", *title.split()]))
            widths.append(max(least, min(10, len(title)), *map(len, cells)))
            heads.append(textwrap.wrap(title, widths[-1]))
        lines, first = [], fixed
        while first < len(columns):
            last = first + 1
            while (
                last < len(columns) and sum(2 + width for width in widths[:fixed] + widths[first : last + 1]) <= WIDTH
            ):
                last += 1
            part = [*range(fixed), *range(first, last)]
            above = list(zip_longest(*(heads[i][::-1] for i in part), fillvalue=""))[::-1]  # from the bottom up
            for line in [*above, *zip(*(columns[i] for i in part), strict=True)]:
                cells = zip(line, part, strict=True)
                aligned = (f"{x:<{widths[i]}}" if i in self.words else f"{x:>{widths[i]}}" for x, i in cells)
                lines.append("  ".join(aligned).rstrip())
            lines, first = [*lines, ""], last
        return lines


class Headline(NamedTuple):
    """The one figure of a result that stands in the table at the top of the page."""

    figure: str
    measured: float
    predicted: float | None = None
    form: str = ".2f"

    def cells(self) -> list[str]:
        measured, predicted = (NONE if x is None else f"{x:{self.form}}" for x in (self.measured, self.predicted))
        return [cell(self.figure), measured, predicted, ratio(self.measured, self.predicted)]


@dataclass(frozen=True)
class Section:
    title: str
    about: str  # what was asked, in a sentence or two
    tables: Sequence[Table]
    headline: Headline | None = None  # None: a result for the terminal alone
    notes: Sequence[str] = ()

    def text(self, machine: dict | None) -> str:
        """For a terminal, 80 columns."""
        said = [self.title, self.about, *([place(machine)] if machine else [])]
        lines = [*(line for sentence in said for line in textwrap.wrap(sentence, WIDTH)), ""]
        lines += [line for table in self.tables for line in table.lines()]
        return "\n".join([*lines, *(line for note in self.notes for line in textwrap.wrap(note, WIDTH))]).rstrip()


def cell(text: object) -> str:
    return " ".join(str(text).replace("|", "\\|").replace("<", "&lt;").split())


def ratio(measured: float, predicted: float | None) -> str:
    return NONE if predicted is None else f"{measured / predicted:.2f}"


def shown(x: float | None, form: str = ".2f") -> str:
    return NONE if x is None else f"{x:{form}}"


def spread(timing: dict, scale: float = 1e3, digits: int = 2, thousands: str = "") -> str:
    """The median and the quartiles. Times, in seconds, are shown in ms; rates and ratios want a scale of 1."""
    median, low, high = (f"{scale * timing[key]:{thousands}.{digits}f}" for key in ("median", "low", "high"))
    return f"{median} ({low}–{high})"


def each(timing: dict, count: float) -> dict:
    """A timing of `count` things, as that of one."""
    return {key: value if key == "n" else value / count for key, value in timing.items()}


def decoding(temperature: float) -> str:
    return f"temperature {temperature:g}" if temperature else "greedy"


def without(skipped: dict[str, str]) -> list[str]:
    return [f"without {name}: {reason}" for name, reason in skipped.items()]
