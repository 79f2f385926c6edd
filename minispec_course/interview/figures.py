"""The numbers that a round asked for: what was replied until each was settled, and how a debrief tells it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .arithmetic import worked
from .question import Number
from .reactions import gives_up
from .rounds import NUMBER, Reply, Turn
from .stated import RIGHT, UNCLEAR, UNREAD, WRONG, Judged, judge
from .summary import digits

SAID = 40  # characters of a reply that is quoted for a number


@dataclass(frozen=True)
class Figure:
    """A number that was asked for, and every reply to it until it was settled."""

    number: Number
    tries: tuple[tuple[Turn, Reply], ...]

    @property
    def judged(self) -> list[Judged]:
        """The replies that count: those from before the arithmetic was shown."""
        return [
            judge(self.number, reply.text) for turn, reply in self.tries if turn.expects == NUMBER and not reply.skipped
        ]

    @property
    def unknown(self) -> bool:
        """The reply was "I don't know"."""
        return self.verdict == UNREAD and any(gives_up(reply.text) for _, reply in self.tries)

    @property
    def verdicts(self) -> list[str]:
        return [judged.verdict for judged in self.judged]

    @property
    def verdict(self) -> str:
        """Right if any reply was; wrong only if a wrong number was stated; "" if it was skipped."""
        for wanted in (RIGHT, WRONG, UNCLEAR, UNREAD):
            if wanted in self.verdicts:
                return wanted
        return ""

    @property
    def said(self) -> str:
        """What was taken for the answer: the reply, if it is short, and otherwise the number in it."""
        replies = [reply.text for turn, reply in self.tries if turn.expects == NUMBER and not reply.skipped]
        text, judged = next(
            (text, each) for text, each in zip(replies, self.judged, strict=True) if each.verdict == self.verdict
        )
        return f"“{text}”" if len(text) <= SAID else f"{digits(judged.value)} {self.number.unit}".strip()

    def line(self) -> str:
        mark = {RIGHT: "✓", WRONG: "✗"}.get(self.verdict, "–")
        said = "skipped" if not self.verdicts else "I could not read which number you meant"
        said = "you did not know" if self.unknown else said
        if self.verdict in (RIGHT, WRONG):
            said = f"you said {self.said}"
            if self.verdict == RIGHT and self.verdicts[0] != RIGHT:
                first = self.judged[0].value
                wrong = f" (first {digits(first)})" if self.verdicts[0] == WRONG else ""
                said += f" after being asked again{wrong}"
        return f"- {mark} {self.number.name}: {said}; {worked(self.number)}"


def figures(turns: list[tuple[Turn, Reply]]) -> Iterator[Figure]:
    """The numbers of a round: a turn that asks for one, and those after it that are about the same one."""
    tries: list[tuple[Turn, Reply]] = []
    for turn, reply in [*turns, (None, None)]:
        if tries and (turn is None or turn.number is not tries[0][0].number):
            yield Figure(tries[0][0].number, tuple(tries))
            tries = []
        if turn is not None and turn.number is not None and (tries or turn.expects == NUMBER):
            tries.append((turn, reply))
