"""Interview practice: a bank of questions with levels, a drill, a mock interview, a cheat sheet. Loaded when asked for.

interview.drill(topics=["speed"], levels=["L4", "L5"], minutes=20)      # in a notebook; `minispec drill` elsewhere
interview.mock(level="L5", format="design")                             # an interview; `minispec mock`
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .. import require_extra

require_extra()

from .drill import (  # loads the module of that name, before the function below takes the name over
    MINUTES,
    Session,
    start,
)
from .expressions import evaluate
from .mock_interview import Interview, start_mock
from .question import LEVELS, BankError, FollowUp, Number, PushBack, Question
from .questions import levels, load, problems, topics

__all__ = [
    "LEVELS",
    "BankError",
    "FollowUp",
    "Interview",
    "Number",
    "PushBack",
    "Question",
    "Session",
    "daily",
    "drill",
    "evaluate",
    "levels",
    "load",
    "mock",
    "problems",
    "start",
    "start_mock",
    "topics",
]


def drill(
    topics: Sequence[str] = (),
    levels: Sequence[str] = LEVELS,
    minutes: float = MINUTES,
    bank: str | Path | None = None,
    seed: int | None = None,
):
    """A drill, in a notebook: what to ask can still be chosen there.

    No topics: all of them. `bank` is a folder of a teacher's own questions, asked beside ours.
    """
    from .widget import Drill

    return Drill(load(bank), topics, levels, minutes, seed)


def daily(seed: int | None = None, bank: str | Path | None = None):
    """Ten minutes of short items in a notebook: choices and numbers that are new every time. A button starts them."""
    from .widget import Daily

    return Daily(load(bank), seed)


def mock(level: str = "L5", format: str = "concept", seed: int | None = None, bank: str | Path | None = None):
    """A mock interview in a notebook: level and format can still be chosen there, and nothing is timed before begin.

    Formats: concept (45 minutes), design (60), coding (60), experience (45), and loop, all four. It ends with a
    debrief, which is also kept as a file.
    """
    from .mock_widget import Desk

    return Desk(load(bank), level, format, seed)
