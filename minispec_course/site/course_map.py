"""The map of the course: which lesson needs which, as a drawing with links, from the arrows of the syllabus."""

from __future__ import annotations

import re
from html import escape
from itertools import pairwise

from ..build.builder import ROOT

WIDE, HIGH, GAP, DOWN = 148, 44, 26, 30  # a box; between boxes of a row; between rows
MERMAID = re.compile(r"```mermaid\n(.*?)```", re.DOTALL)


def arrows() -> tuple[dict[str, str], list[tuple[str, str, bool]]]:
    """Lesson → what it is called; (before, after, whether the arrow is dotted)."""
    drawn = MERMAID.search((ROOT / "docs/syllabus.md").read_text(encoding="utf-8"))[1]
    names, edges = {}, []
    for line in drawn.splitlines():
        names |= {number: name for number, name in re.findall(r"\bL(\d\d|appendix)\[([^\]]+)\]", line)}
        chain = re.findall(r"\bL(\d\d|appendix)", line)
        edges += [(before, after, "-.->" in line) for before, after in pairwise(chain)]
    return names, edges


def depths(names: dict[str, str], edges: list[tuple[str, str, bool]]) -> dict[str, int]:
    """A lesson stands one level below the last lesson that it needs."""
    place = dict.fromkeys(names, 0)
    for _ in names:
        for before, after, _dotted in edges:
            place[after] = max(place[after], place[before] + 1)
    return place


def direct(edges: list[tuple[str, str, bool]]) -> list[tuple[str, str, bool]]:
    """Without the arrows that a longer way replaces: they would run through the boxes between."""
    after: dict[str, set[str]] = {}
    for start, end, _ in edges:
        after.setdefault(start, set()).add(end)

    def reaches(start: str, end: str) -> bool:
        return start == end or any(reaches(step, end) for step in after.get(start, ()))

    return [edge for edge in edges if not any(reaches(step, edge[1]) for step in after[edge[0]] - {edge[1]})]


def drawing(addresses: dict[str, str]) -> str:
    """The map as SVG. `addresses`: lesson → where its box leads."""
    names, edges = arrows()
    depth, edges = depths(names, edges), direct(edges)
    members: dict[int, list[str]] = {}
    for lesson in sorted(names):
        members.setdefault(depth[lesson], []).append(lesson)
    widest = max(map(len, members.values()))
    width = widest * (WIDE + GAP) + 8
    height = len(members) * (HIGH + DOWN)
    corner = {}
    for at, lessons in members.items():
        left = (width - len(lessons) * (WIDE + GAP) + GAP) / 2
        for place, lesson in enumerate(lessons):
            corner[lesson] = (left + place * (WIDE + GAP), at * (HIGH + DOWN) + 4)
    lines = []
    for before, after, dotted in edges:
        (x, y), (u, v) = corner[before], corner[after]
        x, u, y = x + WIDE / 2, u + WIDE / 2, y + HIGH
        bend = DOWN * 0.8
        dash = ' stroke-dasharray="3 4"' if dotted else ""
        lines.append(f'<path d="M{x:g} {y:g}C{x:g} {y + bend:g} {u:g} {v - bend:g} {u:g} {v:g}"{dash}/>')
    boxes = []
    for lesson, (x, y) in corner.items():
        words = wrap(names[lesson])
        first = y + HIGH / 2 + 5 - 9 * (len(words) - 1)
        text = "".join(
            f'<tspan x="{x + WIDE / 2:g}" y="{first + 18 * n:g}">{escape(line)}</tspan>' for n, line in enumerate(words)
        )
        boxes.append(
            f'<a href="{addresses[lesson]}"><rect x="{x:g}" y="{y:g}" width="{WIDE}" height="{HIGH}" rx="8"/>'
            f"<text>{text}</text></a>"
        )
    return (
        f'<div class="ms-map" tabindex="0" role="region" aria-label="map of the course"><svg viewBox="0 0 {width} '
        f'{height:g}" width="{width}" height="{height:g}"><title>The lessons, and which of them each one needs</title>'
        f'<g class="ms-arrows" fill="none">{"".join(lines)}</g>{"".join(boxes)}</svg></div>'
    )


def wrap(name: str, width: int = 19) -> list[str]:
    lines = [""]
    for word in name.split():
        lines += [""] if len(lines[-1]) + len(word) + 1 > width and lines[-1] else []
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
