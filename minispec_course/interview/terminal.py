"""The drill in a terminal: lines of at most 80 columns, and what was answered is never lost.

Works as well when the answers come from a file or a pipe: where they end, the sitting ends.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from textwrap import wrap

from .drill import FOLLOW_UP, PUSH_BACK, RAISES, SINKS, Figure, Said, Session, Talk
from .practice import Choice, Chosen, Fresh, Record, overview
from .question import Question
from .summary import count, explained, grade_of, summary

TITLES = {
    FOLLOW_UP: "follow-ups answered",
    PUSH_BACK: "push-backs answered",
    RAISES: "raises you",
    SINKS: "sinks you (tick what you did say)",
}
WIDEST = 80
LETTERS = "abcdef"


class Quit(Exception):
    """Enough for today."""


class Skip(Exception):
    """Not this one."""


class Console:
    """Lines out, replies in."""

    def __init__(self, read: Callable[[str], str] = input, write: Callable[[str], None] = print):
        self._read, self._write = read, write
        self._unseen = read is input and not sys.stdin.isatty()  # replies from a pipe are not on the screen
        self.height = shutil.get_terminal_size().lines if read is input and sys.stdin.isatty() else 0  # 0: any

    def wrapped(self, text: str, first: str = "", rest: str | None = None) -> list[str]:
        """The lines of a paragraph; `first` and `rest` stand before its first line and before the others."""
        width = max(min(WIDEST, shutil.get_terminal_size().columns), 20)
        rest = first if rest is None else rest
        return wrap(text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False) or [""]

    def say(self, text: str = "", first: str = "", rest: str | None = None) -> None:
        self.show(self.wrapped(text, first, rest))

    def show(self, lines: Iterable[str]) -> None:
        """Lines as they stand."""
        for line in lines:
            self._write(line)

    def say_all(self, lines: Iterable[str]) -> None:
        """Lines of Markdown: a list's continue under its text."""
        for line in lines:
            self.show(self.listed(line))

    def listed(self, line: str) -> list[str]:
        """A row of a table is an entry of a list: its first cell, and the others below it; a table's head is not
        shown."""
        if line.startswith("|---"):
            return []
        if line.startswith("| "):
            first, *rest = line.strip("| ").split(" | ")
            return [*self.wrapped(first, "- ", "  "), *self.wrapped(": ".join(rest), "  ")]
        lead = re.match(r"\s*(- |> )?", line)[0]
        return self.wrapped(line[len(lead) :], lead, " " * len(lead))

    def screens(self, blocks: Iterable[list[str]], left: int) -> list[list[str]]:
        """Blocks of lines, as many at a time as fit with so many lines left free; no block is split."""
        screens: list[list[str]] = [[]]
        for block in blocks:
            if self.height and screens[-1] and len(screens[-1]) + len(block) > self.height - left:
                screens.append([])
            screens[-1] += block
        return screens

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


def shortest(file: Path) -> str:
    """Relative to where we are, if it is below."""
    return os.path.relpath(file) if Path(file).absolute().is_relative_to(Path.cwd()) else str(file)


# ---- one item -------------------------------------------------------------------------------------------------------


def talk(console: Console, session: Session, item: Talk) -> None:
    texts = []
    for number, asked in enumerate(item.asks):
        console.say(asked, "Follow-up: " * bool(number), "")
        texts.append(console.ask())
    console.say()
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
    if session.schedule is None:
        return ""
    days = round((session.schedule.due(said.item.key) - session.schedule.now()) / timedelta(days=1))
    return f" It comes back in {count(days, 'day') if days else 'your next sitting'}."


def figure(console: Console, session: Session, item: Figure) -> None:
    console.say(item.asks[0])
    reply = console.ask()
    while again := session.asks_again(reply):
        console.say(f"{again} A sum such as 2*80*8*128 will do; just Enter if you do not know.")
        reply = console.ask()
    result = session.computed(reply)
    console.say(grade_of(result))
    for line in explained(item.number):
        console.say(line, "  ", "    ")


def pick(console: Console, session: Session, item: Choice) -> None:
    console.say(item.prompt)
    for letter, option in zip(LETTERS, item.options, strict=False):
        console.say(f"{letter}) {option}", "  ")
    reply = console.ask().lower().strip(" ().")
    while reply not in (*LETTERS[: len(item.options)], ""):
        console.say(f"Give a letter from a to {LETTERS[len(item.options) - 1]}; just Enter if you do not know.")
        reply = console.ask().lower().strip(" ().")
    chosen = session.note(Chosen(item, LETTERS.index(reply) if reply else None))
    if chosen.right:
        console.say("Right.")
        return
    console.say(f"It is {LETTERS[item.right]}) {item.options[item.right]}.")
    if chosen.given is not None:
        console.say(item.why[chosen.given], "  ")


# ---- a sitting ------------------------------------------------------------------------------------------------------


def run(console: Console, session: Session) -> int:
    """Ask until the end, the time, q, the end of input (0) or Ctrl-C (130)."""
    if session.schedule and session.schedule.notice:
        console.say(f"Note: {session.schedule.notice}.")
    console.say("Answer aloud or in writing, then press Enter. s skips, q ends.")
    try:
        while (item := session.current) is not None:
            head = f"{session.place + 1} of {len(session.items)}"
            subject = f" · {item.question.topic}" if item.question else ""
            console.say()
            console.say(f"── {head}{subject} · {session.elapsed:.0f} of {session.minutes:g} minutes ──")
            try:
                {Talk: talk, Figure: figure, Fresh: figure, Choice: pick}[type(item)](console, session, item)
            except Skip:
                session.skip()
    except Quit:
        return 0
    except KeyboardInterrupt:
        console.say()
        return 130
    return 0


def drill(session: Session, console: Console | None = None, bank: dict[str, Question] | None = None) -> int:
    """A drill; with the `bank`, also where one stands: streak, weakest topics, readiness."""
    console = console or Console()
    code = run(console, session)
    console.say()
    console.say_all(summary(session))
    if bank:
        record = Record()
        record.note(session.results)
        console.say()
        console.say_all(overview(record, session.schedule, bank))
    return code
