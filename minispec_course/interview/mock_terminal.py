"""The mock interview in a terminal of 80 columns. Enter submits; s skips, p stops the clock, q ends with the debrief.

What was answered is kept after every line, so a closed window or Ctrl-C costs nothing: `minispec mock --resume`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from .coding import check_file, is_untouched, write_notebook
from .debrief import graded, keep_report, rating, report
from .drill import SINKS
from .evidence import Entry, heard, refusal, suggest, unshown
from .matcher import Match, sentences
from .mock_interview import Interview, keep, let_go
from .practice import Record
from .question import Question
from .reactions import shortened
from .rounds import CODE, GRADES, NOTHING, NUMBER, UNTOUCHED, Turn
from .schedule import Schedule
from .terminal import TITLES, Console, Quit, Skip, read_ticks, shortest

QUOTED = 140  # characters of an answer beside a point
LEFT = 11  # lines of a screen below a rubric: what to type, and what was typed
SUBMITS = "An empty line, or done, has it checked."
DONE, YES = ("", "done"), ("y", "yes", "submit")


def clock(interview: Interview) -> str:
    """12:05 of 45:00, and whether it runs."""
    minutes, seconds = divmod(int(interview.used), 60)
    return f"{minutes}:{seconds:02} of {interview.minutes}:00{'' if interview.running else ', clock stopped'}"


def hold(
    interview: Interview,
    console: Console | None = None,
    schedule: Schedule | None = None,
    out: Path | None = None,
    folder: Path | None = None,
) -> int:
    """Ask until the end, q or the end of the input (0); then print the debrief and keep it. Ctrl-C (130) interrupts."""
    console = console or Console()
    if out is not None:
        interview.out = str(out.absolute())
    console.say(
        "Answer in writing, one line at a time; Enter submits. s skips, p stops the clock, q ends with the debrief."
    )
    if interview.events:
        console.say(f"This is the {interview.named}. It goes on where it stopped.")
        interview.do("go on")
        if interview.notebook and interview.turn and interview.turn.expects == CODE != interview.turn.kind:
            _task(console, interview)
    try:
        while interview.turn is not None:
            _turn(console, interview, schedule, folder)
            keep(interview)
    except Quit:
        pass
    except KeyboardInterrupt:
        interview.do("pause")
        kept = keep(interview)
        let_go(interview)
        console.say()
        console.say("Interrupted; `minispec mock --resume` goes on." if kept else "Interrupted; nothing is kept here.")
        return 130
    interview.do("end")
    keep(interview)
    console.say()
    _read_out(console, report(interview).splitlines())
    try:
        console.say(f"kept as {shortest(keep_report(interview, interview.out and Path(interview.out)))}")
    except OSError as error:
        console.say(f"the debrief is not kept: {error}")
    return 0


def _read_out(console: Console, lines: Sequence[str]) -> None:
    """Markdown, screen by screen; a heading is not left at the end of one."""
    blocks: list[list[str]] = [[]]
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        blocks[-1] += [] if after.startswith("|---") else console.listed(line)
        if line and not line.startswith("#"):
            blocks.append([])
    screens = console.screens(blocks, left=5)
    for number, screen in enumerate(screens, start=1):
        console.show(screen)
        if number < len(screens):
            console.say(f"── {number} of {len(screens)}: Enter for more ──")
            try:
                console.ask()
            except (Quit, Skip, KeyboardInterrupt):
                return


def _turn(console: Console, interview: Interview, schedule: Schedule | None, folder: Path | None) -> None:
    turn = interview.turn
    console.say()
    console.say(f"── {CODE if turn.expects == CODE else turn.kind} · {clock(interview)} ──")
    console.say(turn.says)
    try:
        if turn.expects == GRADES:
            _grade(console, interview, schedule)
        elif turn.expects == CODE:
            _code(console, interview, folder)
        elif turn.expects == NOTHING:
            console.say("Press Enter for the debrief." if turn.kind == "close" else "Press Enter to begin.")
            console.ask()
            interview.do("begin")
        else:
            problem = interview.do("say", text=_words(console, interview))
            if problem:
                console.say(problem)
            elif turn.expects == NUMBER and interview.turn and interview.turn.kind != "correction":
                console.say("Right.")
    except Skip:
        interview.do("skip")


def _words(console: Console, interview: Interview) -> str:
    """A reply; p stops the clock until the next Enter, and then the question is asked again."""
    while (reply := console.ask()).lower() == "p":
        interview.do("pause")
        keep(interview)
        console.say(f"── {clock(interview)}: Press Enter to go on ──")
        console.ask()
        interview.do("go on")
        console.say(interview.turn.says)
    return reply


# ---- the rubric ------------------------------------------------------------------------------------------------------


def _grade(console: Console, interview: Interview, schedule: Schedule | None) -> None:
    """The rubric with suggestions, screen by screen; for every tick the words that earn it."""
    turn = interview.turn
    question: Question | None = interview.bank.get(turn.question)
    matches = suggest(turn, interview.transcript)
    suggested = {i for i, match in enumerate(matches) if match.suggested}
    firm = {i for i in suggested if matches[i].firm}
    blocks = [(-1, ["", *console.wrapped(question.spoken, "One good answer: ", "  ")])] if question else []
    blocks += _rubric(console, turn, matches)
    screens = console.screens([lines for _, lines in blocks], LEFT)
    ticked, other, place = set(), set(), 0
    for number, screen in enumerate(screens, start=1):
        console.show(screen)
        here, lines = set(), 0
        while lines < len(screen):
            here, lines, place = here | {blocks[place][0]}, lines + len(blocks[place][1]), place + 1
        more, others = _ticks(console, len(turn.boxes), firm & here, number, len(screens))
        ticked, other = ticked | more, other | others
    ticks = {i: matches[i].quote for i in ticked if i in suggested - other or turn.boxes[i].group == SINKS}
    own = Own(console, heard(turn, interview.transcript))
    try:
        for i in sorted(ticked):
            if i not in ticks:
                ticks[i] = own.ask(i, f"Which words of yours earn {i + 1}? {turn.boxes[i].text}")
            _until_shown(own, turn, i, ticks, interview.transcript)
    except Quit:
        _submit(console, interview, schedule, ticks)  # what was ticked so far is not lost
        raise
    _submit(console, interview, schedule, ticks)


def _submit(console: Console, interview: Interview, schedule: Schedule | None, ticks: dict[int, str]) -> None:
    """Grade with the ticks that have words, and say what became of them."""
    boxes = interview.turn.boxes
    interview.do("grade", ticks={i: words for i, words in ticks.items() if words or boxes[i].group == SINKS})
    _, turn, reply, _ = interview.transcript[-1]
    shown = graded(turn, reply, interview.transcript)
    if turn.question and schedule:
        schedule.review(turn.question, rating(shown))
        Record().reach(turn.question, shown.level())
    console.say(shown.tally())


class Own:
    """Asks for words of the candidate, whose sentences are listed once: the number of one is enough."""

    def __init__(self, console: Console, texts: Sequence[str]):
        self.console, self.texts, self.listed = console, texts, ""

    def ask(self, box: int, why: str) -> str:
        said, console = sentences(self.texts[box]), self.console
        if self.texts[box] != self.listed:
            console.say("Your sentences; type the number of one, or some words of it:")
            for number, sentence in enumerate(said, start=1):
                console.say(shortened(sentence, QUOTED), f"{number:4}  ", " " * 6)
            self.listed = self.texts[box]
        console.say(why)
        reply = console.ask()
        if reply.isdecimal() and 1 <= int(reply) <= len(said):
            reply = said[int(reply) - 1]
            console.say(f"“{shortened(reply, QUOTED)}”", "  ")
        return reply


def _until_shown(own: Own, turn: Turn, box: int, ticks: dict[int, str], transcript: Sequence[Entry]) -> None:
    """What of a tick's words does not count is said at once, and why: other words are quoted, or it is left so."""
    while ticks[box] and turn.boxes[box].group != SINKS:
        problem, after = refusal(turn, box, ticks[box], transcript), "leave it out"
        if not problem:
            problem, after = unshown(turn, ticks, transcript).get(box, ""), "leave it so"
        if not problem:
            return
        reply = own.ask(box, f"{box + 1}: {problem} Another one, or Enter to {after}.")
        if not reply and after != "leave it out":
            return
        ticks[box] = reply


def _rubric(console: Console, turn: Turn, matches: Sequence[Match]) -> Iterator[tuple]:
    """(number of the box, its lines): the point; the words that suggest it; the reason, if the suggestion is weak."""
    group, quoted = None, {}
    for i, (box, match) in enumerate(zip(turn.boxes, matches, strict=True)):
        lines = ["", TITLES.get(box.group, box.group)] if box.group != group else []
        group = box.group
        lines += console.wrapped(box.shown, f"{i + 1:4}{'? ' if match.firm else '  '}", " " * 6)
        if match.suggested or match.opposite:
            first = quoted.setdefault(match.quote, i)
            words = f"“{shortened(match.quote, QUOTED)}”" if first == i else f"the words under {first + 1}"
            asks = "you said the opposite? " if match.opposite else "" if match.firm else "perhaps "
            why = "" if match.firm else f" ({match.reason})"
            lines += console.wrapped(f"{asks}{words}{why}", " " * 8)
        yield i, lines


def _ticks(console: Console, boxes: int, suggested: set[int], number: int, screens: int) -> tuple[set[int], set[int]]:
    """The boxes that are ticked below one screen of a rubric, and those of them for which other words are quoted."""
    console.say()
    if number == 1:
        console.say(
            "A ? is a suggestion from the words of your answer, and no verdict; “perhaps” is a weaker one. "
            "Where another sentence of yours earns point 5, type 5!: you are asked for it next."
        )
    last = number == screens
    where = "" if screens == 1 else f"── {number} of {screens}: "
    console.say(
        f"{where}Which did you say? Numbers such as 1 2 5-7, ? for the suggestions"
        f"{' of this screen' * (screens > 1)}, Enter {'if none' if last else 'for more'}."
    )
    while True:
        reply = console.ask()
        more = read_ticks(re.sub("[?!]", " ", reply), boxes)
        if more is not None:
            other = {int(box) - 1 for box in re.findall(r"(\d+)!", reply)}
            return more | (suggested if "?" in reply else set()), other
        console.say(f"Give numbers from 1 to {boxes}, ?, or just press Enter.")


# ---- the code --------------------------------------------------------------------------------------------------------


def _task(console: Console, interview: Interview) -> None:
    for line in interview.turn.shows.splitlines():
        indent = " " * (2 + len(line) - len(line.lstrip()))
        console.say(line.strip(), indent, indent + "    ")
    console.say(
        f"Fill in the function in this notebook (minispec lab) and save it. What you type here is talk. {SUBMITS}"
    )
    console.say(shortest(Path(interview.notebook)), "  ")


def _code(console: Console, interview: Interview, folder: Path | None) -> None:
    """What is typed is talk; only an empty line or "done" has the notebook checked."""
    turn = interview.turn
    if interview.notebook is None:
        interview.notebook = str(write_notebook(turn.exercise, interview.seed, folder).absolute())
        keep(interview)
    file = Path(interview.notebook)
    if turn.kind == CODE:
        _task(console, interview)
    else:
        submits = "yes submits; anything else goes on." if turn.kind == UNTOUCHED else SUBMITS
        console.say(submits)
    reply = _words(console, interview)
    if reply.lower() not in (YES if turn.kind == UNTOUCHED else DONE):
        interview.do("say", text=reply)
    elif turn.kind != UNTOUCHED and is_untouched(file, turn.exercise):
        interview.do("code", outcome=UNTOUCHED)
    else:
        console.say("Running it …")
        outcome, text = check_file(file, turn.exercise)
        for part in text.split("\n\n"):
            lines = part.splitlines()
            for line in lines if any(line.startswith(" ") for line in lines) else [" ".join(lines)]:
                console.say(line.strip(), " " * (2 + len(line) - len(line.lstrip())))
            console.say()
        interview.do("code", outcome=outcome, text=text[:2000])
