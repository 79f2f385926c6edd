"""Interview practice: a bank of questions with levels, a drill, a mock interview, two sheets and cards to print.

interview.drill(topics=["speed"], levels=["L4", "L5"], minutes=20)      # in a notebook; `minispec drill` elsewhere
interview.mock(level="L5", format="design")                             # one round; `minispec mock`

You mark what you said; the program checks numbers and code. Nothing here judges prose.
"""

from collections.abc import Sequence
from pathlib import Path

from .. import require_extra

require_extra()

from .question import LEVELS, BankError
from .questions import load, topics

__all__ = ["LEVELS", "BankError", "daily", "drill", "load", "mock", "topics"]
Bank = str | Path | None  # a file or a folder


def drill(topics: Sequence[str] = (), levels=LEVELS, minutes: float = 20, bank: Bank = None, seed: int | None = None):
    """A drill, in a notebook. No topics: all of them. `bank` is a folder of a teacher's own questions, asked too."""
    from . import dialogue, session, widget

    return widget.Sitting(session.start(load(bank), topics, levels, minutes, seed), dialogue.drill)


def daily(seed: int | None = None, bank: Bank = None):
    """Ten minutes of numbers in a notebook: those that are due, and others that are new every time."""
    from . import dialogue, fresh, widget

    return widget.Sitting(fresh.daily(load(bank), seed), dialogue.drill)


def mock(level="L5", format="concept", seed: int | None = None, bank: Bank = None, out: Bank = None, **options):
    """A mock interview in a notebook. Nothing is timed before you begin.

    Formats: concept (45 minutes), design (60), coding (60) and experience (45). It ends with a debrief, which is kept
    as `out`, or as exams/mock-N.md. Options: resume=True, or judge=URL and model=NAME (see mock_interview.begin).
    """
    from . import dialogue, mock_interview, widget

    interview = mock_interview.begin(load(bank), level, format, seed, **options)
    return widget.Sitting(interview, lambda page, held: dialogue.mock(page, held, out and Path(out)))
