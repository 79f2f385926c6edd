"""What the sections of the report share: a section, tables in Markdown, spreads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from minispec.measure import where

__all__ = ["where"]
NONE = "–"


@dataclass(frozen=True)
class Section:
    title: str
    about: str  # what was asked, in a sentence or two
    headline: tuple[str, str, str, str]  # a figure, measured, predicted, ratio: for the table at the top of the page
    tables: Sequence[str]
    charts: Mapping[str, str]  # SVG, by what their files are called after the result: "" or a word
    notes: Sequence[str] = field(default=())


def table(head: Sequence[str], rows: Sequence[Sequence[object]], words: Sequence[int] = (0,)) -> str:
    """A table in Markdown; `words` are the columns that hold no numbers, which stand right."""
    lines = [head, ["---" if i in words else "---:" for i in range(len(head))], *rows]
    return "\n".join("| " + " | ".join(map(cell, line)) + " |" for line in lines)


def cell(text: object) -> str:
    return " ".join(str(text).replace("|", "\\|").replace("<", "&lt;").split())


def ratio(measured: float, predicted: float | None) -> str:
    return NONE if predicted is None else f"{measured / predicted:.2f}"


def quartiles(stats: Sequence[dict], scale: Callable[[float], float] = lambda x: x) -> tuple[list[float], list[float]]:
    """Both ends of the spreads, as svg.Series takes them."""
    ends = [sorted((scale(one["low"]), scale(one["high"]))) for one in stats]
    return [low for low, _ in ends], [high for _, high in ends]
