"""What an exercise says of itself, read from the text of its set: importing a set imports torch, which takes seconds,
and the command line asks for titles, points and hints alone."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

LEVELS = {"E": "easy", "M": "medium", "H": "hard"}
START = re.compile(r"^\w+ = exercise\(\n(.*?\n    code=[^\n]+)", re.MULTILINE | re.DOTALL)  # as the formatter leaves it


class Facts(NamedTuple):
    """Of an Exercise (exercise.py) those that need no import."""

    id: str
    code: str
    hints: tuple[str, str, str]
    title: str
    level: str
    minutes: int
    points: int


def sets(number: str = "") -> list[Path]:
    """The file of the set with this number, or those of all sets, in the order of the course."""
    return sorted(file for file in Path(__file__).parent.glob("set_*.py") if file.stem.startswith(f"set_{number}"))


@cache
def everything() -> dict[str, Facts]:
    """All exercises, in the order of the course."""
    return {facts.id: facts for file in sets() for facts in map(_read, START.findall(file.read_text(encoding="utf-8")))}


def _read(start: str) -> Facts:
    """ "06.accept", **about("The acceptance probability", "E", minutes=10, points=1), hints=(…), code="…","""
    call = ast.parse(f"_({start})", mode="eval").body
    parts = {keyword.arg: keyword.value for keyword in call.keywords}
    about = parts[None]
    given = {keyword.arg: ast.literal_eval(keyword.value) for keyword in about.keywords}
    return Facts(*map(ast.literal_eval, (*call.args, parts["code"], parts["hints"], *about.args)), **given)


def find(id: str) -> Facts:
    if id not in (known := everything()):
        near = [name for name in known if name.split(".")[0] == id.split(".")[0]] or known
        raise ValueError(f"id={id!r} is no exercise; there are {', '.join(near)}")
    return known[id]
