"""What an exercise says of itself, read from the texts.yaml of its set: importing a set imports torch, which takes
seconds, and the command line asks for titles, points and hints alone."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

FOLDER = Path(__file__).parent
LEVELS = {"E": "easy", "M": "medium", "H": "hard"}


@dataclass
class Facts:
    id: str  # "06.residual": the set, and a name inside it
    title: str
    level: str  # a key of LEVELS
    minutes: int
    points: int
    code: str  # where minispec itself does it: "minispec.verify.residual"
    shows: str  # said of a right answer
    hints: list[str]  # three: each says more than the one before; the last is nearly the answer


def sets(number: str = "") -> list[Path]:
    """The folder of the set with this number, or those of all sets, in the order of the course."""
    return [page.parent for page in sorted(FOLDER.glob(f"set_{number}*/page.py"))]


@cache
def everything() -> dict[str, Facts]:
    """All exercises, in the order of the course."""
    loader, known = getattr(yaml, "CSafeLoader", yaml.SafeLoader), {}
    for folder in sets():
        known |= yaml.load((folder / "texts.yaml").read_text(encoding="utf-8"), loader)
    return {id: Facts(**{"id": id, "shows": ""} | facts) for id, facts in known.items()}


def find(id: str) -> Facts:
    if id not in (known := everything()):
        near = [name for name in known if name.split(".")[0] == id.split(".")[0]] or known
        raise ValueError(f"id={id!r} is no exercise; there are {', '.join(near)}")
    return known[id]
