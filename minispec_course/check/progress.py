"""Who solved what: a small JSON file that survives crashes, editors and two notebooks at once.

It is MINISPEC_PROGRESS, if that names a file ("off": keep none), else minispec/progress.json in XDG_STATE_HOME, else in
~/.local/state. What is kept is a help, never a hindrance: where it cannot be written, checks and hints work without.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from filelock import FileLock

from minispec.load.write import write_whole

from ..exercises.exercise import LEVELS, Exercise, everything

SOLUTIONS = Path(__file__).resolve().parents[2] / "solutions"


def place() -> Path | None:
    """The file; None where nothing is kept. To run a notebook of solutions is not to solve it."""
    chosen = os.environ.get("MINISPEC_PROGRESS")
    if chosen == "off" or Path.cwd() == SOLUTIONS:
        return None
    if chosen:
        return Path(chosen).expanduser()
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(state) / "minispec/progress.json"


def read() -> dict[str, dict]:
    """What is known: id → {"solved": bool, "attempts": int, "hints": int}. Of a spoiled file, what makes sense."""
    file = place()
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))["exercises"] if file else {}
        return {id: _sound(entry) for id, entry in kept.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def _sound(entry) -> dict:
    entry = entry if isinstance(entry, dict) else {}
    counts = {name: entry.get(name) for name in ("attempts", "hints")}
    whole = {name: n if isinstance(n, int) and n >= 0 else 0 for name, n in counts.items()}
    return {"solved": entry.get("solved") is True, **whole}


def attempted(id: str, outcome: str) -> None:
    """An answer was judged. One that was never given does not count; solved once is solved."""
    if outcome == "not attempted":
        return

    def note(entry: dict) -> None:
        entry["attempts"] += 1
        entry["solved"] |= outcome == "right"

    _update(id, note)


# Where nothing is kept, hints still have to advance: for as long as this process lives.
_hints_of_this_process: dict[str, int] = {}


def hinted(id: str, most: int) -> int:
    """One more hint is wanted: how many there are to show now."""

    def note(entry: dict) -> None:
        entry["hints"] = min(most, max(entry["hints"], _hints_of_this_process.get(id, 0)) + 1)

    _hints_of_this_process[id] = _update(id, note)["hints"]
    return _hints_of_this_process[id]


def saw_hints(id: str, count: int) -> None:
    """So many hints were shown; to see them again is no news."""

    def note(entry: dict) -> None:
        entry["hints"] = max(entry["hints"], count)

    _update(id, note)


def _update(id: str, note: Callable[[dict], None]) -> dict:
    """Change one entry: alone, and all or nothing. Returns the entry, kept or not."""
    entry = _sound(None)
    file = place()
    if file is None:
        note(entry)
        return entry
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(file.with_name(f".{file.name}.lock")):
            _set_aside_if_broken(file)
            known = read()
            entry = known.setdefault(id, entry)
            note(entry)
            write_whole(file, json.dumps({"version": 1, "exercises": known}, indent=1))
    except OSError:
        if entry == _sound(None):
            note(entry)
    return entry


def _set_aside_if_broken(file: Path) -> None:
    """A file that is no JSON (an editor's accident) is kept under another name before a new one takes its place."""
    with suppress(FileNotFoundError):
        try:
            json.loads(file.read_text(encoding="utf-8"))
        except ValueError:
            os.replace(file, file.with_name(f"{file.name}.broken"))


def table() -> str:
    """All exercises, and where their reader stands."""
    known, exercises = read(), everything()
    rows = [_row(exercise, known.get(id, _sound(None))) for id, exercise in exercises.items()]
    width = max((len(row[0]) for row in rows), default=0)
    lines = [f"{id:{width}}  {level:6}  {minutes:>3} min  {state}" for id, level, minutes, state in rows]
    solved = [exercise for id, exercise in exercises.items() if known.get(id, {}).get("solved")]
    points = f"{sum(e.points for e in solved)} of {sum(e.points for e in exercises.values())} points"
    return "\n".join([*lines, "", f"{len(solved)} of {len(exercises)} solved, {points}"])


def _row(exercise: Exercise, entry: dict) -> tuple[str, str, int, str]:
    state = "solved" if entry["solved"] else "tried" if entry["attempts"] else "-"
    counts = [f"{n} {word}{'s' * (n > 1)}" for word in ("attempt", "hint") if (n := entry[f"{word}s"])]
    return exercise.id, LEVELS[exercise.level], exercise.minutes, "  ".join([f"{state:6}", ", ".join(counts)]).rstrip()
