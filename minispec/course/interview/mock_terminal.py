"""The mock interview in a terminal of 80 columns. Enter submits; s skips, p stops the clock, q ends with the debrief.

What was answered is kept after every line, so a closed window costs nothing: `minispec mock --resume` goes on.
"""

from __future__ import annotations

from pathlib import Path

from .coding import check_file, write_notebook
from .debrief import graded, keep_report, rating, report
from .drill import SINKS
from .evidence import refusal, suggest
from .mock_interview import Interview, keep
from .practice import Record
from .question import Question
from .rounds import CODE, GRADES, NOTHING, NUMBER
from .schedule import Schedule
from .terminal import TITLES, Console, Quit, Skip, read_ticks, shortest


def clock(interview: Interview) -> str:
    """12:05 of 45:00, and whether it runs."""
    minutes, seconds = divmod(int(interview.used), 60)
    return f"{minutes}:{seconds:02} of {interview.minutes}:00{'' if interview.running else ', clock stopped'}"


def hold(interview: Interview, console: Console | None = None, schedule: Schedule | None = None,
         out: Path | None = None, folder: Path | None = None) -> int:  # fmt: skip
    """Ask until the end, q, the end of the input (0) or Ctrl-C (130); then print the debrief and keep it."""
    console, code = console or Console(), 0
    console.say("Answer in writing, one line at a time; Enter submits. s skips, p stops the clock, q ends with the "
                "debrief.")  # fmt: skip
    if interview.transcript and interview.turn and interview.turn.expects not in (NOTHING, GRADES):
        console.say("This interview goes on where it stopped.")
        interview.do("go on")
    try:
        while interview.turn is not None:
            _turn(console, interview, schedule, folder)
            keep(interview)
    except Quit:
        pass
    except KeyboardInterrupt:
        console.say()
        code = 130
    interview.do("end")
    keep(interview)
    console.say()
    console.say_all(report(interview).splitlines())
    try:
        console.say(f"kept as {shortest(keep_report(interview, out))}")
    except OSError as error:
        console.say(f"the debrief is not kept: {error}")
    return code


def _turn(console: Console, interview: Interview, schedule: Schedule | None, folder: Path | None) -> None:
    turn = interview.turn
    console.say()
    console.say(f"── {turn.kind} · {clock(interview)} ──")
    console.say(turn.says)
    try:
        if turn.expects == GRADES:
            _grade(console, interview, schedule)
        elif turn.expects == CODE:
            _code(console, interview, folder)
        elif turn.expects == NOTHING:
            console.say("Press Enter to begin.")
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
    """A reply; p stops the clock until the next Enter."""
    while (reply := console.ask()).lower() == "p":
        interview.do("pause")
        keep(interview)
        console.say(f"The clock stands at {clock(interview)}. Press Enter to go on.")
        console.ask()
        interview.do("go on")
    return reply


def _grade(console: Console, interview: Interview, schedule: Schedule | None) -> None:
    """The rubric with suggestions; for every tick the words that earn it."""
    turn, group = interview.turn, None
    question: Question | None = interview.bank.get(turn.question)
    if question:
        console.say()
        console.say(question.spoken, "One good answer: ", "  ")
    matches = suggest(turn, interview.transcript)
    suggested = {i for i, match in enumerate(matches) if match.suggested}
    for i, (box, match) in enumerate(zip(turn.boxes, matches, strict=True)):
        if box.group != group:
            group = box.group
            console.say()
            console.say(TITLES.get(group, group))
        console.say(box.shown, f"{i + 1:4}{'?' if i in suggested else ' '}", " " * 5)
        if i in suggested or match.opposite:
            console.say(f"{'you said the opposite? ' * match.opposite}“{match.quote}” ({match.reason})", " " * 7)
    console.say()
    console.say("A ? is a suggestion from the words of your answer, and no verdict. Which did you say? Numbers such "
                "as 1 2 5-7, ? for the suggestions, Enter if none.")  # fmt: skip
    ticked = None
    while ticked is None:
        reply = console.ask()
        more = read_ticks(reply.replace("?", " "), len(turn.boxes))
        ticked = None if more is None else more | (suggested if "?" in reply else set())
        if ticked is None:
            console.say(f"Give numbers from 1 to {len(turn.boxes)}, ?, or just press Enter.")
    ticks = {}
    for i in sorted(ticked):
        if i in suggested or turn.boxes[i].group == SINKS:
            ticks[i] = matches[i].quote
        else:
            console.say(f"Which words of yours earn {i + 1}? {turn.boxes[i].text}")
            ticks[i] = console.ask()
            if problem := refusal(turn, i, ticks[i], interview.transcript):
                console.say(f"{problem} Once more, or Enter to leave it out.")
                ticks[i] = console.ask()
    interview.do("grade", ticks={i: words for i, words in ticks.items() if words or turn.boxes[i].group == SINKS})
    _, turn, reply, _ = interview.transcript[-1]
    shown = graded(turn, reply, interview.transcript)
    if question and schedule:
        schedule.review(question.id, rating(shown))
        Record().reach(question.id, shown.level())
    console.say(shown.tally())


def _code(console: Console, interview: Interview, folder: Path | None) -> None:
    turn = interview.turn
    file = write_notebook(turn.exercise, interview.seed, folder)
    console.say("Open this notebook (minispec lab), fill in the function, save, then press Enter here.")
    console.say(shortest(file), "  ")
    console.ask()
    console.say("Running it …")
    outcome, text = check_file(file, turn.exercise)
    for line in text.splitlines():
        console.say(line, "  ")
    interview.do("code", outcome=outcome, text=text[:2000])
