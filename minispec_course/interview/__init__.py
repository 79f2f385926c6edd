"""Interview practice: a bank of questions with levels, a drill, a mock interview, two sheets and cards to print.

interview.drill(topics=["speed"], levels=["L4", "L5"], minutes=20)      # in a notebook; `minispec drill` elsewhere
interview.mock(level="L5", format="design")                             # one round; `minispec mock`

You tick what you said; the program checks numbers and code. Nothing here judges prose.
"""

from collections.abc import Sequence
from pathlib import Path

from .. import require_extra

require_extra()

from .question import LEVELS, BankError
from .questions import card, load, problems, topics, topics_table

__all__ = ["LEVELS", "BankError", "card", "daily", "drill", "load", "mock", "problems", "topics", "topics_table"]
Bank = str | Path | None  # a file or a folder


def drill(
    topics: Sequence[str] = (),
    levels: Sequence[str] = LEVELS,
    minutes: float = 20,
    bank: Bank = None,
    seed: int | None = None,
):
    """A drill, in a notebook. No topics: all of them. `bank` is a folder of a teacher's own questions, asked too."""
    from .schedule import Schedule
    from .session import choose, start
    from .widget import Begin

    asked = load(bank)
    choose(asked, Schedule(None), minutes, 0, topics, levels)  # complains now, if it has to
    says = f"{minutes:g} minutes on {', '.join(topics) or 'all topics'}, for {', '.join(levels)}."
    return Begin(lambda: start(asked, topics, levels, minutes, seed), says)


def daily(seed: int | None = None, bank: Bank = None):
    """Ten minutes of numbers in a notebook: those that are due, and others that are new every time."""
    from .fresh import daily
    from .widget import Begin

    return Begin(lambda: daily(load(bank), seed), "Ten minutes of numbers.")


def mock(level: str = "L5", format: str = "concept", seed: int | None = None, bank: Bank = None, out: Bank = None):
    """A mock interview in a notebook. Nothing is timed before begin.

    Formats: concept (45 minutes), design (60), coding (60) and experience (45). It ends with a page of what you ticked,
    which is kept as `out`, or as exams/mock-N.md.
    """
    from .mock_interview import Interview
    from .schedule import Schedule, place
    from .widget import Begin

    def begin():
        return Interview(load(bank), level, format, seed, Schedule(place()))

    return Begin(begin, begin().opening, out and Path(out))
