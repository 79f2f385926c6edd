"""Pages from the templates beside this file: the end of a drill, a debrief, and the sheet of an interviewer."""

import re
from itertools import groupby
from pathlib import Path

from minispec.load.write import write_whole

from . import session
from .coding import CODE_RULE, Code
from .mock_interview import ROUND_RULE, Interview, next_file
from .question import LEVELS, RULE
from .session import HALF, MISSED, RAISES, SAID, SINKS, WRONG, Box, Computed, Figure, Item, Said
from .sheets import TEMPLATES, printable

REPLIES = (session.PUSH_BACK, session.FOLLOW_UP)
BEST = (RAISES, *reversed(LEVELS), *REPLIES)  # which strengths an interviewer names first, and which gaps
WORST = (SINKS, *LEVELS, *REPLIES, RAISES)
NAMED = 3  # strengths, and gaps
SIZE = 9.0  # of the letters of a sheet that is printed, in points


def title(item: Item | Code) -> str:
    return item.question.question if item.question else f"Write a function: {item.exercise}."


def groups(item: Item | Code) -> list[tuple[str, list[tuple[int, Box]]]]:
    """A rubric by its groups, with the numbers under which its lines are marked."""
    return [(name, list(some)) for name, some in groupby(enumerate(item.rubric, 1), lambda pair: pair[1].group)]


def summary(drill: session.Session) -> str:
    """The end of a drill."""
    return _fill("drill_summary.md", session=drill, reading=session.reading(drill))


def sheet(interview: Interview) -> str:
    """What the interviewer has in hand."""
    return _fill("mock_sheet.md", session=interview, groups=groups, digits=session.digits, heads=session.HEADS)


def recommendation(interview: Interview) -> str:
    reached, wanted = interview.reached, 1 + LEVELS.index(interview.level)
    reads = f"The round reads as {LEVELS[reached - 1] if reached else f'below {LEVELS[0]}'}."
    return f"Recommendation: {'hire' if reached >= wanted else 'no hire'} at {interview.level}. {reads}"


def debrief(interview: Interview, answers: bool = True) -> str:
    """One page; and with `answers`, below it, everything that was said and how it was marked."""
    talks = interview.all(Said)
    lines = [line for said in talks for line in said.lines(*session.VERDICTS)]
    strengths = [(box, mark) for box, mark in lines if mark.verdict == SAID and box.group != SINKS]
    gaps = [(box, mark) for box, mark in lines if (mark.verdict != SAID) != (box.group == SINKS)]
    strengths.sort(key=lambda line: BEST.index(line[0].group))
    gaps.sort(key=lambda line: (line[1].verdict != WRONG, not line[0].must, WORST.index(line[0].group)))
    levels = LEVELS[: interview.reached + 1]  # the next level, and those below it
    needed = {title(said.item): _needed(said, levels) for said in talks if said.reached < interview.reached + 1}
    told = {fact for _, fact in interview.facts}
    facts = [fact for item in interview.items for i, fact in enumerate(item.facts) if i not in told]
    talked = [i for i in sorted(interview.texts) if answers and not isinstance(interview.items[i], Figure)]
    return _fill(
        "mock_debrief.md",
        session=interview,
        recommendation=recommendation(interview),
        named={"Strengths": strengths[:NAMED], "Gaps": gaps[:NAMED]},
        needed=needed if interview.reached < len(LEVELS) else {},
        next_level=levels[-1],
        repeat=repeat(interview),
        unasked=facts,
        answers=[(interview.items[i], interview.texts[i], interview.noted.get(i)) for i in talked],
    )


def _needed(said: Said, levels: tuple[str, ...]) -> list[str]:
    """What kept an answer from the last of these levels."""
    sunk = [said.item.rubric[i] for i in session.wrongs(said.item.rubric, said.marks)]
    sunk = [box for box in sunk if box.group in levels or box.group not in LEVELS]
    wrong = [f"{'without' if box.group == SINKS else 'right, not wrong'}: {box.text}" for box in sunk]
    if isinstance(said.item, Code):
        wrong += [] if said.item.outcome == "right" else [f"code that is right (it was {said.item.outcome})"]
        levels = REPLIES
    return wrong + [f"{box.group}: {box.shown}" for box, _ in said.lines(HALF, MISSED) if box.group in levels]


def repeat(interview: Interview) -> list[str]:
    """The topics below the level of the interview, as a command, and what to read."""
    topics = dict.fromkeys(question.topic for question in session.weak(interview))
    lines = [f"`minispec drill --topics {' '.join(topics)}`"] if topics else []
    lines += session.reading(interview)
    codes = [said.item for said in interview.all(Said) if isinstance(said.item, Code)]
    lines += [f"{code.exercise}, in exercises/17_interview_day.ipynb" for code in codes if code.outcome != "right"]
    return lines or [f"Nothing: every question reached {interview.level}. Take another round, or raise the level."]


def keep(interview: Interview, out: Path | None = None) -> Path:
    """Write the debrief: to `out`, or beside the record, as exams/mock-N.md."""
    return write_whole(out or (interview.file or next_file()).with_suffix(".md"), debrief(interview))


def keep_sheet(interview: Interview, out: Path) -> Path:
    text = sheet(interview)
    return write_whole(out, printable(text, SIZE) if out.suffix == ".html" else text)


def _fill(name: str, session, **values) -> str:
    rules = [CODE_RULE] * (getattr(session, "format", "") == "coding") + [RULE, ROUND_RULE]
    values |= {"title": title, "zip": zip, "rule": " ".join(rules)}
    values |= {"talks": session.all(Said), "numbers": session.all(Computed)}
    text = TEMPLATES.get_template(name).render(session=session, **values)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
