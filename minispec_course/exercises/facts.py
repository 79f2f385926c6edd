"""What an exercise says of itself, read from the text of its set: importing a set imports torch, which takes seconds,
and the command line asks for titles, points and hints alone."""

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

LEVELS = {"E": "easy", "M": "medium", "H": "hard"}
START = re.compile(r"^\w+ = exercise\(\n(.*?\n    code=[^\n]+)", re.MULTILINE | re.DOTALL)  # as the formatter leaves it


@dataclass
class Facts:
    id: str  # "06.residual": the set, and a name inside it
    title: str
    level: str  # a key of LEVELS
    minutes: int
    points: int
    hints: tuple[str, str, str]  # each says more than the one before; the last is nearly the answer
    code: str  # where minispec itself does it: "minispec.verify.residual"


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
    parts |= {keyword.arg: keyword.value for keyword in parts[None].keywords}
    named = {name: ast.literal_eval(parts[name]) for name in ("minutes", "points", "hints", "code")}
    return Facts(*map(ast.literal_eval, (*call.args, *parts[None].args)), **named)


def find(id: str) -> Facts:
    if id not in (known := everything()):
        near = [name for name in known if name.split(".")[0] == id.split(".")[0]] or known
        raise ValueError(f"id={id!r} is no exercise; there are {', '.join(near)}")
    return known[id]
