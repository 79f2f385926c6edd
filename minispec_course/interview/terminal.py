"""The drill and the mock interview in a terminal: lines of at most 80 columns, and what was answered is never lost.

Works as well when the answers come from a file or a pipe: where they end, the sitting ends.
"""

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from textwrap import wrap

from ..labs.presets import counted
from .coding import Code
from .mock_interview import Interview, keep, overview, report
from .session import FOLLOW_UP, PUSH_BACK, RAISES, SINKS, Figure, Said, Session, Talk, summary

TITLES = {
    FOLLOW_UP: "follow-ups answered",
    PUSH_BACK: "push-backs answered",
    RAISES: "raises you",
    SINKS: "sinks you (tick what you did say)",
}
WIDEST = 80


class Quit(Exception):
    """Enough for today."""


class Skip(Exception):
    """Not this one."""


class Console:
    """Lines out, replies in."""

    def __init__(self, read: Callable[[str], str] = input, write: Callable[[str], None] = print):
        self._read, self._write = read, write
        self._unseen = read is input and not sys.stdin.isatty()  # replies from a pipe are not on the screen

    def say(self, text: str = "", first: str = "", rest: str | None = None) -> None:
        """A paragraph; `first` and `rest` stand before its first line and before the others."""
        width = max(min(WIDEST, shutil.get_terminal_size().columns), 20)
        rest = first if rest is None else rest
        lines = wrap(text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
        for line in lines or [""]:
            self._write(line)

    def say_all(self, lines: Iterable[str]) -> None:
        """Lines of Markdown: a list's continue under its text."""
        for line in lines:
            lead = re.match(r"\s*(- |> )?", line)[0]
            self.say(line[len(lead) :], lead, " " * len(lead))

    def ask(self) -> str:
        """A reply. s skips, q ends, and so does the end of the input."""
        try:
            reply = self._read("> ").strip()
            if self._unseen:
                self._write("")
        except EOFError:
            self._write("")
            raise Quit from None
        if reply.lower() == "q":
            raise Quit
        if reply.lower() == "s":
            raise Skip
        return reply


def read_ticks(text: str, boxes: int) -> set[int] | None:
    """ "1 3 5-7" as places from 0; None if there is no such box."""
    ticked: set[int] = set()
    for part in filter(None, re.split(r"[\s,]+", text)):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 1 <= first <= last <= boxes:
            return None
        ticked |= set(range(first - 1, last))
    return ticked


# ---- one item -------------------------------------------------------------------------------------------------------


def talk(console: Console, session: Session, item: Talk | Code) -> None:
    if isinstance(item, Code):
        write_code(console, item)
    texts = []
    for number, asked in enumerate(item.asks):
        console.say(asked, "Follow-up: " * (number > 0 and not isinstance(session, Interview)), "")
        texts.append(console.ask())
    if isinstance(session, Interview):
        session.stop_clock()
    console.say()
    if item.question:
        console.say(item.question.spoken, "In short: ", "  ")
    boxes, group = item.rubric, None
    for number, box in enumerate(boxes, start=1):
        if box.group != group:
            group = box.group
            console.say()
            console.say(TITLES.get(group, group))
        console.say(box.shown, f"{number:4} ", " " * 5)
    console.say()
    console.say("What did you say? Numbers, such as 1 2 5-7; Enter if none of it.")
    while (ticked := read_ticks(console.ask(), len(boxes))) is None:
        console.say(f"Give numbers from 1 to {len(boxes)}, or just press Enter.")
    said = session.ticked(ticked, texts)
    console.say(f"{said.level}.{when(session, said)}")


def when(session: Session, said: Said) -> str:
    """When a question comes back."""
    if session.schedule is None or not said.item.key:
        return ""
    days = round((session.schedule.due(said.item.key) - session.schedule.now()) / timedelta(days=1))
    return f" It comes back in {counted(days, 'day') if days else 'your next sitting'}."


def write_code(console: Console, item: Code) -> None:
    console.say(item.task)
    console.say("Enter checks the notebook as it was last saved; done goes on without.")
    while item.outcome != "right" and console.ask().lower() != "done":
        console.say(item.check())


def figure(console: Console, session: Session, item: Figure) -> None:
    console.say(item.asks[0])
    while not session.can_read(reply := console.ask()):
        console.say("That is no number. Give only the number, or a sum such as 2*80*8*128; Enter if you do not know.")
    result = session.computed(reply)
    console.say(result.verdict)
    for line in result.solution:
        console.say(line, "  ", "    ")


# ---- a sitting ------------------------------------------------------------------------------------------------------


def run(console: Console, session: Session) -> int:
    """Ask until the end, the time, q, the end of input (0) or Ctrl-C (130)."""
    if session.schedule and session.schedule.notice:
        console.say(f"Note: {session.schedule.notice}.")
    console.say("Answer aloud or in writing, then press Enter. s skips, q ends.")
    try:
        if isinstance(session, Interview):
            console.say(session.opening)
            console.say("Press Enter to begin.")
            console.ask()
        while (item := session.current) is not None:
            session.start_clock()
            head = f"{session.place + 1} of {len(session.items)} · {item.topic}"
            console.say()
            console.say(f"── {head} · {session.elapsed:.0f} of {session.minutes:g} minutes ──")
            try:
                (figure if isinstance(item, Figure) else talk)(console, session, item)
            except Skip:
                session.skip()
    except (Quit, Skip):
        return 0
    except KeyboardInterrupt:
        console.say()
        return 130
    return 0


def drill(session: Session, console: Console | None = None) -> int:
    console = console or Console()
    code = run(console, session)
    console.say()
    console.say_all(summary(session))
    return code


def mock(interview: Interview, console: Console | None = None, out: Path | None = None) -> int:
    """An interview; whatever ends it, what was answered is kept as a page."""
    console = console or Console()
    code = run(console, interview)
    interview.stop_clock()
    console.say()
    console.say_all(overview(interview))
    if not interview.results:
        return code
    console.say()
    try:
        file = keep(interview, out)
    except OSError as error:
        console.say_all(report(interview).splitlines())
        console.say(f"This page is not kept: {error}.")
        return code or 1
    below = file.absolute().is_relative_to(Path.cwd())
    console.say(f"Kept with your answers as {os.path.relpath(file) if below else file}.")
    return code
