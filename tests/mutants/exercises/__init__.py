"""Wrong answers as learners write them, one file a set: cells that say which mistake the check must name.

    # %% 06.residual: p_itself
    def my_residual(p, q): …

minispec_course/exercises/eNN.py holds the same mistakes as short functions: the check compares behaviours, and needs them
at hand in every classroom. These here are written independently and in full, to be put into a notebook in place of the
stub. So a diagnosis has to be earned: by doing the same, not by being the same code.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

HEADER = re.compile(r"^# %% (\S+): (\S+)$", re.MULTILINE)


class WrongAnswer(NamedTuple):
    exercise: str
    mutant: str
    source: str


def load() -> list[WrongAnswer]:
    found = []
    for file in sorted(Path(__file__).parent.glob("[!_]*.py")):
        _, *parts = HEADER.split(file.read_text(encoding="utf-8"))
        found += [WrongAnswer(*parts[i : i + 2], parts[i + 2].strip()) for i in range(0, len(parts), 3)]
    return found


WRONG_ANSWERS = load()
