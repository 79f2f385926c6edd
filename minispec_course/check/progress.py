"""Who solved what: a small JSON file that survives crashes, editors and two notebooks at once; and a table of it.

The file is MINISPEC_PROGRESS, if that names one ("off": keep none), else minispec/progress.json in XDG_STATE_HOME, else
in ~/.local/state. What is kept is a help, never a hindrance: where it cannot be written, checks and hints work without.
"""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from importlib import import_module
from pathlib import Path

from filelock import FileLock

from minispec.load.write import write_whole

from ..exercises.exercise import LEVELS, Exercise, everything, modules

SOLUTIONS = Path(__file__).resolve().parents[2] / "solutions"
# Told apart by the sign before the name as well: colours are not for everybody.
STATES = {"solved": ("✓", "#009e73"), "tried": ("~", "#e69f00"), "not attempted": ("·", "#7f8c9a")}
CHIP = "display:inline-block;margin:2px 4px 2px 0;padding:1px 8px;border-radius:10px;border:1px solid {0};"
CHIP += "background:color-mix(in srgb, {0} {1}%, transparent)"


def place() -> Path | None:
    """The file, or None when nothing is to be kept: when switched off, and while the solutions are run."""
    given = os.environ.get("MINISPEC_PROGRESS")
    if given == "off" or Path.cwd() == SOLUTIONS:
        return None
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
    return Path(given).expanduser() if given else state / "minispec/progress.json"


def read() -> dict[str, dict]:
    """id → {"solved": bool, "attempts": int, "hints": int}, maybe "source"; empty when nothing can be read."""
    try:
        known = json.loads(place().read_text(encoding="utf-8"))["exercises"]
        return {str(id): _sound(entry) for id, entry in known.items()}
    except (OSError, ValueError, TypeError, LookupError, AttributeError):
        return {}


def _sound(entry: object = None) -> dict:
    """What makes sense of an entry that somebody may have edited."""
    entry = entry if isinstance(entry, dict) else {}
    counts = {name: entry.get(name) for name in ("attempts", "hints")}
    whole = {name: n if isinstance(n, int) and n >= 0 else 0 for name, n in counts.items()}
    source = {"source": entry["source"]} if isinstance(entry.get("source"), str) else {}
    return {"solved": entry.get("solved") is True, **whole, **source}


def attempted(id: str, outcome: str) -> None:
    """An answer was judged. One that was never given does not count; solved once is solved."""
    if outcome != "not attempted":
        right = outcome == "right"
        _update(id, lambda entry: entry.update(attempts=entry["attempts"] + 1, solved=entry["solved"] or right))


def saw_hints(id: str, count: int) -> None:
    """So many hints were shown; to see them again is no news."""
    _update(id, lambda entry: entry.update(hints=max(entry["hints"], count)))


def keep_source(id: str, source: str) -> None:
    """The program of a right answer, for later lessons."""
    _update(id, lambda entry: entry.update(source=source))


def _update(id: str, note: Callable[[dict], None]) -> None:
    """Change one entry: alone, and all or nothing."""
    file = place()
    with suppress(OSError):
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(file.with_name(f".{file.name}.lock")):
                known = read()
                note(known.setdefault(id, _sound()))
                write_whole(file, json.dumps({"version": 1, "exercises": known}, indent=1))


# ---- the table ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Standing:
    """One exercise and how its reader stands."""

    exercise: Exercise
    solved: bool
    attempts: int
    hints: int
    source: str = ""

    @property
    def state(self) -> str:
        return "solved" if self.solved else "tried" if self.attempts else "not attempted"

    @property
    def counts(self) -> list[str]:
        return [f"{n} {word}{'s' * (n > 1)}" for word in ("attempt", "hint") if (n := getattr(self, f"{word}s"))]


def standings() -> list[Standing]:
    """All exercises, in the order of the course."""
    known = read()
    return [Standing(exercise, **known.get(id, _sound())) for id, exercise in everything().items()]


def totals(found: list[Standing]) -> tuple[str, int]:
    """Points reached of those that can be, and the minutes that are left."""
    points = sum(s.exercise.points for s in found if s.solved), sum(s.exercise.points for s in found)
    return f"{points[0]} of {points[1]}", sum(s.exercise.minutes for s in found if not s.solved)


def table() -> str:
    """All exercises, and where their reader stands: for a terminal."""
    found = standings()
    width = max((len(s.exercise.id) for s in found), default=0)
    lines = []
    for s in found:
        state = f"{s.state if s.state in ('solved', 'tried') else '-':6}  {', '.join(s.counts)}".rstrip()
        exercise = s.exercise
        lines.append(f"{exercise.id:{width}}  {LEVELS[exercise.level]:6}  {exercise.minutes:>3} min  {state}")
    solved = f"{sum(s.solved for s in found)} of {len(found)} solved"
    return "\n".join([*lines, "", f"{solved}, {totals(found)[0]} points"])


class ProgressTable:
    """A picture of now, sets down and exercises across: show it again to see what has changed since."""

    def __init__(self):
        self.standings, self.text = standings(), table()

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        sets: dict[str, list[Standing]] = {}
        for s in self.standings:
            sets.setdefault(s.exercise.id.split(".")[0], []).append(s)
        rows = ""
        for number, found in sets.items():
            cells = (escape(name_of(number)), "".join(map(chip, found)), *totals(found))
            rows += "<tr>" + "".join(f'<td style="text-align:left">{cell}</td>' for cell in cells) + "</tr>"
        points, minutes = totals(self.standings)
        solved = f"{sum(s.solved for s in self.standings)} of {len(self.standings)} solved"
        legend = " ".join(f"{sign} {name}" for name, (sign, _) in STATES.items())
        columns = "set", "exercises", "points", "minutes left"
        head = "".join(f'<th style="text-align:left">{name}</th>' for name in columns)
        return (
            f'<table class="minispec-progress"><caption style="text-align:left">{legend}</caption>'
            f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
            f"<p><b>{solved}, {points} points, {minutes} minutes left</b></p>"
        )


def progress_table() -> ProgressTable:
    """All sets and exercises: solved, tried or not attempted; points, and the minutes that are left."""
    return ProgressTable()


def chip(s: Standing) -> str:
    sign, colour = STATES[s.state]
    exercise = s.exercise
    facts = [exercise.title, LEVELS[exercise.level], f"{exercise.minutes} min", s.state, *s.counts]
    style = CHIP.format(colour, 25 if s.state != "not attempted" else 8)
    shown = f"{sign} {exercise.id.partition('.')[2]}"
    return f'<span style="{style}" title="{escape(", ".join(facts))}">{escape(shown)}</span>'


def name_of(number: str) -> str:
    """ "06 rejection sampling", as the file of the set begins."""
    [module] = modules(f"{number}_")
    first = (import_module(module).__doc__ or "").partition(":")[0]
    return f"{number} {first.partition(', ')[2]}".strip()
