"""A candidate for the interview tests: replies from a list, and remembers what it was told."""

from __future__ import annotations

from minispec_course.interview.session import Talk
from minispec_course.interview.terminal import Console


class Script:
    """A console that replies from a list; an exception in it is raised."""

    def __init__(self, *replies):
        self.replies, self.lines = list(replies), []
        self.console = Console(self.read, self.lines.append)

    def read(self, prompt: str) -> str:
        if not self.replies:
            raise EOFError
        reply = self.replies.pop(0)
        if not isinstance(reply, str):
            raise reply
        return reply

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.lines).split())


def ticks(talk: Talk, *groups: str, all_but: int = 0) -> set[int]:
    """The boxes of these groups; of each group all but the last so many."""
    found = set()
    for group in groups:
        places = [i for i, box in enumerate(talk.rubric) if box.group == group]
        found |= set(places[: len(places) - all_but])
    return found
