"""Questions whose numbers are new every time (fresh.yaml), and ten minutes of them a day."""

import random
from functools import cache

from .expressions import evaluate
from .question import LEVELS, Number
from .questions import FOLDER, read_yaml
from .schedule import Schedule
from .session import Bank, Figure, Session

MINUTES, DUE = 10, 4  # of a daily sitting, and the most numbers in it that are due


@cache
def templates() -> dict[str, list[dict]]:
    return read_yaml(FOLDER / "fresh.yaml")


def _values(entry: dict, dice: random.Random) -> dict:
    """Parameters: one of the cases, or each chosen by itself."""
    if "cases" in entry:
        return dice.choice(entry["cases"])
    return {name: dice.choice(values) for name, values in entry["where"].items()}


def _number(entry: dict, values: dict) -> Number:
    expression = entry["expression"].format(**values)
    return Number(entry["name"].format(**values), expression, evaluate(expression), 0.0, unit=entry.get("unit", ""))


def fresh_number(dice: random.Random) -> Figure:
    entry = dice.choice(templates()["numbers"])
    return Figure(_number(entry, _values(entry, dice)), about=entry["topic"])


def derivation(dice: random.Random, level: str) -> list[Figure]:
    """A number at each step. The first step says what is given; a staff interview derives something harder."""
    some = [entry for entry in templates()["derivations"] if entry.get("staff", False) == (level == LEVELS[-1])]
    entry = dice.choice(some)
    values = _values(entry, dice)
    numbers = [_number(step, values) for step in entry["steps"]]
    given = f"Let us derive something. {entry['given'].format(**values)} Say aloud how you would begin."
    first = Figure(numbers[0], about=entry["name"], given=given, begin=f"We would begin: {entry['begin']}")
    return [first, *(Figure(number, about=entry["name"]) for number in numbers[1:])]


def daily(bank: Bank, seed: int | None = None, schedule: Schedule | None = None) -> Session:
    """Numbers that are due, then fresh ones, until ten minutes are full; no two of them are the same."""
    schedule = Schedule.here() if schedule is None else schedule
    dice = random.Random(random.SystemRandom().randrange(10_000) if seed is None else seed)
    figures = [Figure(number, question) for question in bank.values() for number in question.numbers]
    due = sorted((f for f in figures if schedule.is_due(f.key)), key=lambda f: schedule.urgency(f.key))
    items = due[:DUE]
    while sum(item.minutes for item in items) + 1 <= MINUTES:
        if (item := fresh_number(dice)) not in items:
            items.append(item)
    return Session(items, MINUTES, schedule)
