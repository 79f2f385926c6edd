"""Who solved what: a small JSON file that survives crashes, editors and two notebooks at once; and a table of it.

The file is MINISPEC_PROGRESS, if that names one ("off": keep none), else minispec/progress.json in XDG_STATE_HOME, else
in ~/.local/state. What is kept is a help, never a hindrance: where it cannot be written, checks and hints work without.
"""

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

from filelock import FileLock

from minispec.load.write import write_whole

from .. import counted
from ..exercises.facts import LEVELS, everything, sets

RIGHT, WRONG, NOT_ATTEMPTED = "right", "wrong", "not attempted"  # how an attempt ends
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
    if outcome != NOT_ATTEMPTED:
        right = outcome == RIGHT
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
def bars() -> list[str]:
    """A line for each set: how much of it is solved, and the points for that."""
    exercises, solved = everything(), _solved()
    width = max(5, min(20, shutil.get_terminal_size().columns - 51))
    lines = [f"{'set':33}  {'':{width}}  solved  points"]
    for number, name in [*(folder.name[4:].split("_", 1) for folder in sets()), ("all", "")]:
        own = [e for id, e in exercises.items() if number in ("all", id.split(".")[0])]
        done = [e for e in own if e.id in solved]
        bar = "#" * (width * len(done) // len(own))
        points = f"{sum(e.points for e in done)}/{sum(e.points for e in own)}"
        title = f"{number}  {name.replace('_', ' ')}".strip()
        lines.append(f"{title:33}  {bar:.<{width}}  {f'{len(done)}/{len(own)}':>6}  {points:>6}")
    return lines


def upcoming() -> str:
    """The first exercise after the last solved one that is not solved; those that were left out come at the end."""
    ids, solved = [*everything()], _solved()
    last = max((ids.index(id) for id in solved), default=-1) + 1
    return f"next: {next((id for id in ids[last:] + ids if id not in solved), 'minispec exam, all is solved')}"


def _solved() -> set[str]:
    return {id for id, entry in read().items() if entry["solved"]} & everything().keys()


def details(number: str) -> list[str]:
    """The exercises of one set, and where their reader stands."""
    known, own = read(), [e for id, e in everything().items() if id.split(".")[0] == number.split("_")[0]]
    if not own:
        raise ValueError(f"set={number!r}: give the number of a set, such as 06")
    width, lines = max(len(exercise.id) for exercise in own), []
    for exercise in own:
        entry = known.get(exercise.id, _sound())
        counts = [counted(n, word) for word in ("attempt", "hint") if (n := entry[f"{word}s"])]
        state = "solved" if entry["solved"] else "tried" if entry["attempts"] else "-"
        facts = f"{LEVELS[exercise.level]:6}  {exercise.minutes:>3} min  {state:6}  {', '.join(counts)}"
        lines.append(f"{exercise.id:{width}}  {facts}".rstrip())
    return lines


def progress_table() -> None:
    """All sets, in a notebook."""
    print("\n".join([*bars(), "", upcoming()]))
