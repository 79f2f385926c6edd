"""Interview practice: a bank of questions with levels, a drill, a mock interview, a cheat sheet. Loaded when asked for.

ms.interview.drill(topics=["speed"], levels=["L4", "L5"], minutes=20)      # in a notebook; `minispec drill` elsewhere
ms.interview.mock()                                                        # 45 minutes; `minispec mock`
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
from .mock_interview import Mock, start_mock
from .question import LEVELS, BankError, FollowUp, Number, PushBack, Question
from .questions import levels, load, problems, topics

__all__ = [
    "LEVELS",
    "BankError",
    "FollowUp",
    "Mock",
    "Number",
    "PushBack",
    "Question",
    "Session",
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


def mock(seed: int | None = None, bank: str | Path | None = None):
    """A mock interview of 45 minutes, in a notebook; at its end the report, which is also kept as a file."""
    from .widget import Sitting

    return Sitting(start_mock(load(bank), seed))
