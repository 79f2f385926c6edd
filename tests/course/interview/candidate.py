"""A candidate for the interview tests: replies from a list, and the boxes of a rubric that an answer earned."""

from __future__ import annotations

from collections.abc import Iterable

from minispec_course.interview.dialogue import Console
from minispec_course.interview.session import Mark, Said, Talk


class Script(Console):
    """A console that replies from a list and remembers what it was told; an exception in the list is raised."""

    def __init__(self, *replies):
        super().__init__(self.next_reply, (lines := []).append)
        self.replies, self.lines = list(replies), lines

    def next_reply(self, prompt: str) -> str:
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
        boxes = [i for i, box in enumerate(talk.rubric) if box.group == group]
        found |= set(boxes[: len(boxes) - all_but])
    return found


def said(talk: Talk, boxes: Iterable[int]) -> Said:
    return Said(talk, {i: Mark() for i in boxes})
