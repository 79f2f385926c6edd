"""Who solved what: a small JSON file that survives crashes, editors and two notebooks at once; and a table of it.

The file is MINISPEC_PROGRESS, if that names one ("off": keep none), else minispec/progress.json in XDG_STATE_HOME, else
in ~/.local/state. What is kept is a help, never a hindrance: where it cannot be written, checks and hints work without.
"""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

from filelock import FileLock

from minispec.load.write import write_whole

from ..exercises.exercise import LEVELS, everything

SOLUTIONS = Path(__file__).resolve().parents[2] / "solutions"
KEPT = {"source": str, "guess": float}


def place() -> Path | None:
    """The file, or None when nothing is to be kept: when switched off, and while the solutions are run."""
    given = os.environ.get("MINISPEC_PROGRESS")
    if given == "off" or Path.cwd() == SOLUTIONS:
        return None
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
    file = Path(given).expanduser() if given else state / "minispec/progress.json"
    return file if os.path.isfile(file) or not os.path.exists(file) else None  # a device may be read without end


def read() -> dict[str, dict]:
    """id → {"solved": bool, "attempts": int, "hints": int}, maybe more of KEPT; empty when nothing can be read."""
    try:
        known = json.loads(place().read_text(encoding="utf-8"))["exercises"]
        return {str(id): _sound(entry) for id, entry in known.items()}
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return {}


def _sound(entry: object = None) -> dict:
    """What makes sense of an entry that somebody may have edited."""
    entry = entry if isinstance(entry, dict) else {}
    counts = {name: entry.get(name) for name in ("attempts", "hints")}
    whole = {name: n if isinstance(n, int) and n >= 0 else 0 for name, n in counts.items()}
    kept = {name: entry[name] for name, kind in KEPT.items() if isinstance(entry.get(name), kind)}
    return {"solved": entry.get("solved") is True, **whole, **kept}


def attempted(id: str, outcome: str) -> None:
    """An answer was judged. One that was never given does not count; solved once is solved."""
    if outcome != "not attempted":
        right = outcome == "right"
        _update(id, lambda entry: entry.update(attempts=entry["attempts"] + 1, solved=entry["solved"] or right))


def saw_hints(id: str, count: int) -> None:
    """So many hints were shown; to see them again is no news."""
    _update(id, lambda entry: entry.update(hints=max(entry["hints"], count)))


def keep(id: str, **facts) -> None:
    """For later lessons and kernels: the `source` of a right answer, or the `guess` at a prediction."""
    _update(id, lambda entry: entry.update(facts))


def _update(id: str, note: Callable[[dict], None]) -> None:
    """Change one entry: alone, and all or nothing."""
    file = place()
    with suppress(OSError):
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(file.with_name(f".{file.name}.lock")):
                known = read()
                if not known and file.exists() and file.stat().st_size:
                    os.replace(file, aside(file))  # no progress, but perhaps somebody's
                note(known.setdefault(id, _sound()))
                write_whole(file, json.dumps({"version": 1, "exercises": known}, indent=1))


def aside(file: Path) -> Path:
    """Where to keep a file that makes no sense: what was kept before stays."""
    names = (file.with_name(f"{file.name}.broken{f'-{n}' * (n > 1)}") for n in count(1))
    return next(name for name in names if not name.exists())


# ---- the table ------------------------------------------------------------------------------------------------------
def table() -> str:
    """All exercises in the order of the course, and where their reader stands."""
    exercises, known = everything(), read()
    width, lines = max(map(len, exercises)), []
    for id, exercise in exercises.items():
        entry = known.setdefault(id, _sound())
        counts = [f"{n} {word}{'s' * (n > 1)}" for word in ("attempt", "hint") if (n := entry[f"{word}s"])]
        state = "solved" if entry["solved"] else "tried" if entry["attempts"] else "-"
        facts = f"{id:{width}}  {LEVELS[exercise.level]:6}  {exercise.minutes:>3} min  {state:6}  {', '.join(counts)}"
        lines.append(facts.rstrip())
    solved = [exercise.points for id, exercise in exercises.items() if known[id]["solved"]]
    points = f"{sum(solved)} of {sum(exercise.points for exercise in exercises.values())} points"
    return "\n".join([*lines, "", f"{len(solved)} of {len(exercises)} solved, {points}"])


def progress_table() -> None:
    """The same, in a notebook."""
    print(table())
