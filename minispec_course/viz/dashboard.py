"""The chatbot's dashboard: four numbers that the lessons change one after the other, as measured on this machine.

What a lesson measured is kept in dashboard.json beside the exercises' progress (check/progress.py), by machine and
lesson: {"H200": {"03": {"users": [31, "simulated"]}}}, a number and its note. Where no progress is kept, as in a build,
neither is this.
"""

import json
import math
import sys
import time
from contextlib import suppress
from html import escape
from numbers import Real

from minispec.load.write import write_whole
from minispec.measure import Watch, machine, warning

from ..check import progress
from .predict import number
from .style import KINDS

TILES = dict(ms_per_token="ms per token", tokens_per_second="tokens per second", busy="machine busy", users="users")
TILE = "flex:1 1 140px;padding:6px 12px;border-radius:6px;border:1px solid {0};background:{1}"
QUIET = TILE.format("rgba(128,128,128,.35)", "transparent")
CHANGED = TILE.format(KINDS["accepted"], f"color-mix(in srgb, {KINDS['accepted']} 12%, transparent)")
SMALL = "font-size:12px;opacity:.75"


class Dashboard:
    """Four tiles: what this lesson changed is highlighted, the rest is what earlier lessons found here."""

    def __init__(self, lesson: str, now: dict, before: dict[str, list[tuple[str, float, str]]], place: str) -> None:
        self.lesson, self.now, self.before, self.place = lesson, now, before, place

    def change(self, name: str) -> tuple[str, str, str]:
        """A tile's words: the value before, the value now, and what to know of both. Like is compared with like."""
        if name not in self.now:
            lesson, value, note = (self.before[name] or [("", None, "")])[-1]
            return "", shown(name, value), together(lesson and f"lesson {lesson}", note) or "not measured in this run"
        value, note = self.now[name]
        alike = [(shown(name, v), f"before: lesson {lesson}") for lesson, v, its in self.before[name] if its == note]
        before, whose = alike[-1] if alike else ("", "" if note else "new")
        return before, shown(name, value), together(note, whose)

    def __repr__(self) -> str:
        told = ((title, *self.change(name)) for name, title in TILES.items())
        return "; ".join(f"{title} {before and f'{before} → '}{now} ({note})" for title, before, now, note in told)

    def _repr_html_(self) -> str:
        tiles = ""
        for name, title in TILES.items():
            before, now, note = self.change(name)
            arrow = f'<span style="opacity:.7">{before} → </span>' if before else ""
            tiles += f'<div style="{CHANGED if name in self.now else QUIET}"><div style="{SMALL}">{title}</div>'
            tiles += f'<div style="font-size:20px;font-weight:600;line-height:1.4">{arrow}{now}</div>'
            tiles += f'<div style="{SMALL}">{escape(note)}</div></div>'
        row = f'<div style="display:flex;flex-wrap:wrap;gap:8px;max-width:760px">{tiles}</div>'
        caption = f"The chatbot after lesson {self.lesson}. Measured on {self.place}, unless a tile says otherwise."
        return f'<div class="minispec-dashboard"><div style="{SMALL};margin:4px 0">{escape(caption)}</div>{row}</div>'


def dashboard(lesson: str, *, ms_per_token=None, tokens_per_second=None, busy=None, users=None, **notes) -> Dashboard:
    """Keep what this lesson measured, and show it beside what earlier lessons found. `busy` is a fraction.

    `users_note="simulated"`: how that tile's number was found, if not as usual. Like is compared with like.
    """
    given = dict(ms_per_token=ms_per_token, tokens_per_second=tokens_per_second, busy=busy, users=users)
    now = {name: (float(value), notes.pop(f"{name}_note", "")) for name, value in given.items() if value is not None}
    if notes:
        raise TypeError(f"{', '.join(notes)}: a note belongs to a tile that is given, as ms_per_token_note=…")
    found = machine()
    place = found["gpus"][0]["name"] if found["gpus"] else f"{found['cpu']}, {found['cores']} cores"
    known, file = {}, progress.place()
    if file is not None:
        file = file.with_name("dashboard.json")
        with suppress(OSError, ValueError):
            known = json.loads(file.read_text(encoding="utf-8"))
    known = known if isinstance(known, dict) else {}
    here = known[place] = sound(known.get(place))
    before = {n: [(old, *here[old][n]) for old in sorted(here) if old < lesson and n in here[old]] for n in TILES}
    here[lesson] = here.get(lesson, {}) | now
    if file is not None and now.keys() - {"users"} and (reason := another_program()):  # users are counted
        print(f"{reason} Until then these numbers are not kept.", file=sys.stderr)
    elif file is not None and now:
        with suppress(OSError):
            write_whole(file, json.dumps(known, indent=1))
    return Dashboard(lesson, now, before, place)


def another_program() -> str | None:
    """Whether one is busy on this machine, in words: a look of less than half a second."""
    watch = Watch()
    time.sleep(0.4)
    return warning(watch.others())


def sound(lessons: object) -> dict[str, dict[str, tuple[float, str]]]:
    """What makes sense of a part of the file: lesson → name → a number and its note."""
    fine = lambda name, value: name in TILES and isinstance(value, Real) and math.isfinite(value)  # noqa: E731
    pair = lambda told: (told[0], str(told[1])) if isinstance(told, list) and len(told) == 2 else (told, "")  # noqa: E731
    lessons = lessons if isinstance(lessons, dict) else {}
    kept = [(old, told.items()) for old, told in lessons.items() if isinstance(told, dict)]
    return {old: {n: pair(v) for n, v in told if fine(n, pair(v)[0])} for old, told in kept}


def together(*words: str) -> str:
    return " · ".join(filter(None, words))


def shown(name: str, value: float | None) -> str:
    return "–" if value is None else f"{number(100 * value)} %" if name == "busy" else number(value)
