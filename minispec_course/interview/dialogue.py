"""Drills and mock interviews as a dialogue, the same in a terminal and in a notebook (widget.py).

    play(drill(console := Console(), session), console)          # in a terminal; from a file or a pipe, too

A dialogue is a generator: it says things to a console, and at every `yield` it waits for a reply.
"""

import os
import re
import shutil
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import count
from pathlib import Path
from textwrap import wrap

from .. import counted
from .coding import Code
from .expressions import readings
from .mock_interview import Asked, Interview
from .pages import debrief, groups, keep, sheet, summary
from .session import HALF, HEADS, MISSED, SAID, WRONG, Figure, Mark, Session, Talk, sentences

WIDEST = 80
ASK, OWN, HEAD = "drill-ask", "drill-own", "drill-head"  # styles, which a terminal does without
SIGNS = {"=": SAID, "~": HALF, "!": WRONG, "-": MISSED}
MARKING = (
    "Mark what was said, with its sentence: 1=3 is point 1, said in sentence 3; 2~3 is half of point 2, 4!3 a wrong "
    "one, 1- takes a mark back. Several on a line, or one in words: 1=I said so. A deep sentence may show a basic "
    "point, too. A point without a sentence does not count. An empty line ends."
)
Flow = Generator[None, str, int | None]


class Quit(Exception):
    """Enough for today."""


class Skip(Exception):
    """Not this one."""


class Console:
    """Lines out, replies in."""

    whole = False  # whether a reply may have several lines; if not, an empty line ends an answer

    def __init__(self, read: Callable[[str], str] = input, write: Callable[[str], None] = print):
        self._read, self._write = read, write
        self._unseen = read is input and not sys.stdin.isatty()  # replies from a pipe are not on the screen

    def say(self, text: str = "", first: str = "", style: str = "") -> None:
        """A paragraph; `first` stands before its first line, and the others are indented by as much."""
        width = max(min(WIDEST, shutil.get_terminal_size().columns), 20)
        lines = wrap(text, width, initial_indent=first, subsequent_indent=" " * len(first), break_on_hyphens=False)
        for line in lines or [""]:
            self._write(line)

    def show(self, markdown: str) -> None:
        for line in markdown.splitlines():
            lead = re.match(r"\s*(- |> )?", line)[0]
            self.say(line[len(lead) :], lead)

    def new_page(self) -> None:
        self.say()

    def read(self) -> str:
        text = self._read("> ")
        if self._unseen:
            self._write("")
        return text


def play(flow: Flow, console: Console) -> int:
    """A dialogue in a terminal. Returns the exit code. The end of the input is a q."""
    try:
        next(flow)
        while True:
            try:
                text = console.read()
            except EOFError:
                flow.send("q")
            except KeyboardInterrupt as stop:
                flow.throw(stop)
            else:
                flow.send(text)
    except StopIteration as end:
        return end.value or 0


def reply() -> Generator[None, str, str]:
    """What is typed. s skips, q ends."""
    text = (yield).strip().encode(errors="replace").decode()
    if text.lower() in ("s", "q"):
        raise Skip if text.lower() == "s" else Quit
    return text


def read_ticks(text: str, boxes: int) -> set[int] | None:
    """ "1 3 5-7" as places from 0; None if there is no such box."""
    found = [re.fullmatch(r"([0-9]{1,3})(?:-([0-9]{1,3}))?", part) for part in re.findall(r"[^\s,]+", text)]
    if not all(found):
        return None
    ticked = {i - 1 for part in found for i in range(int(part[1]), int(part[2] or part[1]) + 1)}
    return ticked if ticked <= set(range(boxes)) else None


def read_marks(text: str, own: Sequence[str], boxes: int) -> dict[int, Mark] | None:
    """ "1=3 2~4", or "1=my words", as marks with the words they point at; None if it makes no sense."""
    pointed = re.fullmatch(r"([0-9]+[=~!-][0-9]*[\s,]*)+", text)
    if not pointed and re.search(r"[\s,][0-9]+[=~!][0-9]", text):
        return None  # both at once: the words would swallow the marks after them
    found = re.findall(r"([0-9]+)([=~!-])([0-9]*)" if pointed else r"^([0-9]+)\s*([=~!])\s*(.*)$", text, re.DOTALL)
    marks = {}
    for point, sign, words in found:
        quote = words if not pointed else dict(enumerate(own, 1)).get(int(words or 0), "")
        if len(point) > 3 or not 1 <= int(point) <= boxes or (sign in "=~" and not quote):
            return None
        marks[int(point) - 1] = Mark(SIGNS[sign], quote)
    return marks or None


def answers(console: Console, session: Session, item: Talk | Code) -> Flow:
    """The question, its follow-ups and its push-backs, one at a time."""
    answered = len(session.texts.get(session.place, ()))
    if answered and item.question:  # resumed in the middle of it
        console.say(item.asks[0], style=ASK)
    for asked in item.asks[answered:]:
        console.say(asked, style=ASK)
        if item.facts and asked == item.asks[0]:
            console.say("Your own order. What begins with ? asks me for a fact, at any time; ?2 for the second one.")
        lines: list[str] = []
        try:
            while not (console.whole and lines) and (line := (yield from reply())):
                while item.facts and line.startswith("?"):
                    line = yield from ask_fact(console, session, item, line)
                lines += [line] if line else []
        except (Quit, Skip, KeyboardInterrupt):
            if lines:
                session.say("\n".join(lines))  # what was typed is not lost
            raise
        session.say("\n".join(lines))


def ticks(console: Console, session: Session, item: Talk) -> Flow:
    """The rubric of a drill."""
    say_rubric(console, item)
    console.say("What did you say? Numbers, such as 1 2 5-7; Enter if none of it.")
    while (ticked := read_ticks((yield from reply()), len(item.rubric))) is None:
        console.say(f"Give numbers from 1 to {len(item.rubric)}, or just press Enter.")
    said, back = session.ticked(ticked), ""
    if session.schedule:
        days = round((session.schedule.due(item.key) - session.schedule.now()) / timedelta(days=1))
        back = f" It comes back in {counted(days, 'day') if days else 'your next sitting'}."
    console.say(f"{said.level}.{back}")


def say_rubric(console: Console, item: Talk | Code) -> None:
    console.say()
    if item.question:
        console.say(f"In short: {item.question.spoken}", style="drill-short")
    for group, boxes in groups(item):
        console.say()
        console.say(HEADS.get(group, group), style=HEAD)
        for number, box in boxes:
            console.say(box.shown, f"{number:4} ")
    console.say()


def figure(console: Console, session: Session, item: Figure) -> Flow:
    console.say(item.asks[0], style=ASK)
    while (text := (yield from reply())) and not readings(text, item.number.unit):
        console.say("That is no number. Give only the number, or a sum such as 2*80*8*128; Enter if you do not know.")
    result = session.computed(text)
    console.say(result.verdict, style="drill-right" if result.right else "drill-wrong")
    for line in result.solution:
        console.say(line, "  ")


def code(console: Console, item: Code) -> Flow:
    console.say(item.task, style=ASK)
    console.say("Enter checks the notebook as it was last saved; done goes on without.")
    while item.outcome != "right" and (yield from reply()).lower() != "done":
        console.say(item.check())


def ask_fact(console: Console, interview: Interview, item: Asked, line: str) -> Generator[None, str, str]:
    """Which fact was asked for? The candidate says it, by number; words instead are returned, as part of the answer."""
    told, most = {fact for _, fact in interview.facts}, len(item.facts)
    question, found, line = line.lstrip("? "), read_ticks(line[1:], most), ""
    if not found or len(found) > 1:
        for i, fact in enumerate(item.facts):
            if i not in told:
                console.say(f"{' '.join(fact.split()[:2])} …", f"{i + 1:4} ")  # what it is about, not what it is
        console.say("Which of these did you ask for? A number; Enter if none of them.")
        while (found := read_ticks(line := (yield from reply()), most)) is None or len(found) > 1:
            if re.search(r"[^-\d\s,]", line):
                break
            console.say(f"One number from 1 to {most}, or just press Enter.")
    fact = min(found or (), default=None)
    interview.facts.append((question, fact))
    interview.keep()
    console.say("Make an assumption, and say it. Go on." if fact is None else f"{item.facts[fact]}. Go on.")
    return line if found is None else ""


def mark(console: Console, interview: Interview, place: int) -> Flow:
    """What was said, sentence by sentence, and beside it the rubric."""
    item, texts = interview.items[place], interview.texts[place]
    own, numbers = sentences(texts), count(1)
    console.new_page()
    for asked, text in zip(item.asks, texts, strict=False):
        console.say(asked, style=ASK)
        for sentence in sentences([text]):
            console.say(sentence, f"{next(numbers):4} | ", OWN)
    say_rubric(console, item)
    if interview.judge and place not in interview.marks:
        console.say("The judge is asked. What it proposes counts when you press Enter; your own marks overrule it.")
    say_marks(console, interview.proposed(place))
    if interview.notice:
        console.say(f"Note: {interview.notice}.")
    console.say(MARKING)
    while line := (yield from reply()):
        if (new := read_marks(line, own, len(item.rubric))) is None:
            console.say(f"Not marked: with {len(item.rubric)} points and {len(own)} sentences, say 1=3, or 1=my words.")
        say_marks(console, new or {})
        interview.mark(place, new or {})
    console.say("{0.level}{0.tally}.".format(interview.settle(place)))


def say_marks(console: Console, marks: dict[int, Mark]) -> None:
    for i, mark in sorted(marks.items()):
        console.say(f"{mark.verdict}: {mark.quote}".rstrip(": "), f"{i + 1:4} ")


def ask_all(console: Console, session: Session) -> Flow:
    """Ask until the end, the time or q. No clock runs before Enter."""
    if session.schedule and session.schedule.notice:
        console.say(f"Note: {session.schedule.notice}.")
    console.say(f"{session.opening} s skips, q ends. Press Enter to begin.")
    with suppress(Quit):
        with suppress(Skip):
            yield from reply()
        while (item := session.current) is not None:
            place = session.place
            session.start_clock()
            console.new_page()
            head = f"{session.place + 1} of {len(session.items)} · {item.topic}"
            console.say(f"── {head} · {session.elapsed:.0f} of {session.minutes:g} minutes ──", style=HEAD)
            try:
                if isinstance(item, Figure):
                    yield from figure(console, session, item)
                    continue
                if isinstance(item, Code) and item.outcome != "right":
                    yield from code(console, item)
                yield from answers(console, session, item)
                if not isinstance(session, Interview):
                    yield from ticks(console, session, item)
            except Skip:
                if session.place == place:
                    session.skip()


def drill(console: Console, session: Session) -> Flow:
    code = 0
    try:
        yield from ask_all(console, session)
    except KeyboardInterrupt:
        code = 130
    session.stop_clock()
    console.new_page()
    console.show(summary(session))
    return code


def mock(console: Console, interview: Interview, out: Path | None = None) -> Flow:
    """A round, then its marks and its debrief. Ctrl-C leaves it as it is, to be resumed."""
    try:
        yield from ask_all(console, interview)
        interview.over = True
        interview.stop_clock()
        return (yield from mark_all(console, interview, out))
    except KeyboardInterrupt:
        interview.stop_clock()
        console.say()
        if interview.texts:
            console.say(interview.notice or "Your answers are kept: minispec mock --resume goes on from here.")
        return 130


def interviewer(console: Console, interview: Interview, out: Path | None = None) -> Flow:
    """The sheet; and when the round is over, the marks of the one who held it."""
    console.show(sheet(interview))
    console.say()
    console.say("Press Enter when the round is over, to enter your marks; q ends.")
    with suppress(Quit, KeyboardInterrupt):
        yield from reply()
        return (yield from mark_all(console, interview.as_held(), out))


def mark_all(console: Console, interview: Interview, out: Path | None) -> Flow:
    """Everything that was answered is marked; then the debrief, shown and kept."""
    with suppress(Quit):
        for place in interview.to_mark:
            with suppress(Skip):
                yield from mark(console, interview, place)
    console.new_page()
    console.show(debrief(interview, answers=False))
    if not interview.texts:
        return 0
    console.say()
    try:
        file = keep(interview, out)
    except OSError as error:
        console.say(f"This page is not kept: {error}.")
        return 1
    console.say(f"Kept with your answers as {os.path.relpath(file)}.")
    if interview.to_mark:
        console.say("Something is not marked yet: minispec mock --resume goes on from here.")
    return 0
