"""Where the reader stands, as a table for notebooks: sets down, exercises across. `minispec progress` has it too."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from importlib import import_module

from ..exercises.exercise import LEVELS, Exercise, everything, modules
from . import progress

# Told apart by the sign before the name as well: colours are not for everybody.
STATES = {"solved": ("✓", "#009e73"), "tried": ("~", "#e69f00"), "not attempted": ("·", "#7f8c9a")}
CHIP = "display:inline-block;margin:2px 4px 2px 0;padding:1px 8px;border-radius:10px;border:1px solid {0};"
CHIP += "background:color-mix(in srgb, {0} {1}%, transparent)"


@dataclass(frozen=True)
class Place:
    """One exercise and how it stands."""

    exercise: Exercise
    state: str  # a key of STATES
    attempts: int
    hints: int

    @property
    def solved(self) -> bool:
        return self.state == "solved"


def places() -> dict[str, list[Place]]:
    """All exercises by set, "06" → […], with what the progress file says of them."""
    known, sets = progress.read(), {}
    for id, exercise in everything().items():
        entry = known.get(id, {"solved": False, "attempts": 0, "hints": 0})
        state = "solved" if entry["solved"] else "tried" if entry["attempts"] else "not attempted"
        sets.setdefault(id.split(".")[0], []).append(Place(exercise, state, entry["attempts"], entry["hints"]))
    return sets


class ProgressTable:
    """A picture of now: show it again to see what has changed since."""

    def __init__(self):
        self.sets = places()
        self.text = progress.table()

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        rows = "".join(map(row, self.sets, self.sets.values()))
        everyone = [place for found in self.sets.values() for place in found]
        solved = sum(place.solved for place in everyone)
        total = f"{solved} of {len(everyone)} solved, {points(everyone)} points, {minutes_left(everyone)} minutes left"
        legend = " ".join(f"{sign} {name}" for name, (sign, _) in STATES.items())
        columns = "set", "exercises", "points", "minutes left"
        head = "".join(f'<th style="text-align:left">{name}</th>' for name in columns)
        return (
            f'<table class="minispec-progress"><caption style="text-align:left">{legend}</caption>'
            f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table><p><b>{total}</b></p>"
        )


def progress_table() -> ProgressTable:
    """All sets and exercises: solved, tried or not attempted; points, and the minutes that are left."""
    return ProgressTable()


def row(number: str, found: list[Place]) -> str:
    chips = "".join(map(chip, found))
    cells = (escape(name_of(number)), chips, points(found), minutes_left(found))
    return "<tr>" + "".join(f'<td style="text-align:left">{cell}</td>' for cell in cells) + "</tr>"


def chip(place: Place) -> str:
    sign, colour = STATES[place.state]
    exercise = place.exercise
    facts = [exercise.title, LEVELS[exercise.level], f"{exercise.minutes} min", place.state]
    facts += [f"{n} {word}{'s' * (n > 1)}" for word in ("attempt", "hint") if (n := getattr(place, f"{word}s"))]
    style = CHIP.format(colour, 25 if place.state != "not attempted" else 8)
    shown = f"{sign} {exercise.id.partition('.')[2]}"
    return f'<span style="{style}" title="{escape(", ".join(facts))}">{escape(shown)}</span>'


def points(found: list[Place]) -> str:
    return f"{sum(p.exercise.points for p in found if p.solved)} of {sum(p.exercise.points for p in found)}"


def minutes_left(found: list[Place]) -> int:
    return sum(place.exercise.minutes for place in found if not place.solved)


def name_of(number: str) -> str:
    """ "06 rejection sampling", as the file of the set begins."""
    [module] = modules(f"{number}_")
    first = (import_module(module).__doc__ or "").partition(":")[0]
    return f"{number} {first.partition(', ')[2]}".strip()
