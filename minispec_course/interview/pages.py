"""The two pages of a mock interview, from the templates beside this file: the interviewer's sheet, and the debrief."""

import re
from itertools import groupby
from pathlib import Path

from minispec.load.write import write_whole

from .coding import Code
from .mock_interview import ROUND_RULE, Interview, next_file
from .question import LEVELS, RULE
from .session import (
    FOLLOW_UP,
    HALF,
    HEADS,
    MISSED,
    PUSH_BACK,
    RAISES,
    SAID,
    SINKS,
    VERDICTS,
    WRONG,
    Box,
    Computed,
    Figure,
    Item,
    Said,
    digits,
    is_wrong,
    reading,
    weak,
)
from .sheets import TEMPLATES, printable

BEST = (RAISES, *reversed(LEVELS), PUSH_BACK, FOLLOW_UP)  # which strengths and which gaps an interviewer names first
WORST = (SINKS, *LEVELS, PUSH_BACK, FOLLOW_UP, RAISES)
SIZE = 9.0  # points, of a sheet that is printed
NAMED = 3  # strengths, and gaps


def title(item: Item | Code) -> str:
    return item.question.question if item.question else f"Write a function: {item.exercise}."


def sheet(interview: Interview) -> str:
    """What the interviewer has in hand. The lines have the numbers under which they are marked."""

    def groups(item: Item | Code) -> list[tuple[str, list[tuple[int, Box]]]]:
        return [(name, list(some)) for name, some in groupby(enumerate(item.rubric, 1), lambda pair: pair[1].group)]

    return _fill(
        "mock_sheet.md",
        interview,
        groups=groups,
        digits=digits,
        heads=HEADS,
        is_figure=lambda item: isinstance(item, Figure),
    )


def recommendation(interview: Interview) -> str:
    reached, wanted = interview.reached, 1 + LEVELS.index(interview.level)
    reads = LEVELS[reached - 1] if reached else f"below {LEVELS[0]}"
    if reached >= wanted:
        return f"Recommendation: hire at {interview.level}." + f" The round reads as {reads}." * (reached > wanted)
    return f"Recommendation: no hire at {interview.level}. The round reads as {reads}."


def debrief(interview: Interview, answers: bool = True) -> str:
    """One page; and with `answers`, below it, everything that was said and how it was marked."""
    talks = interview.all(Said)
    lines = [(box, mark) for said in talks for box, mark in said.lines(*VERDICTS)]
    strengths = [(box, mark) for box, mark in lines if mark.verdict == SAID and box.group != SINKS]
    gaps = [(box, mark) for box, mark in lines if (mark.verdict != SAID) != (box.group == SINKS)]
    strengths.sort(key=lambda line: BEST.index(line[0].group))
    gaps.sort(key=lambda line: (line[1].verdict != WRONG, not line[0].must, WORST.index(line[0].group)))
    above = LEVELS[: interview.reached + 1]  # the levels that the next one needs
    needed = {title(said.item): _needed(said, above) for said in talks if said.reached < len(above)}
    case = next((item for item in interview.items if item.facts), None)
    told = {fact for _, fact in interview.facts}
    return _fill(
        "mock_debrief.md",
        interview,
        talks=talks,
        recommendation=recommendation(interview),
        strengths=strengths[:NAMED],
        gaps=gaps[:NAMED],
        needed=needed if interview.reached < len(LEVELS) else {},
        next_level=above[-1],
        numbers=interview.all(Computed),
        repeat=repeat(interview),
        unasked=[fact for i, fact in enumerate(case.facts) if i not in told] if case else [],
        answers=[
            (interview.items[place], texts, interview.noted.get(place))
            for place, texts in sorted(interview.texts.items())
            if answers and not isinstance(interview.items[place], Figure)
        ],
    )


def _needed(said: Said, levels: tuple[str, ...]) -> list[str]:
    """What kept an answer from the last of these levels."""
    if isinstance(said.item, Code):
        code = [] if said.item.outcome == "right" else [f"code that is right, and not {said.item.outcome}"]
        return code + [box.text for box, _ in said.lines(HALF, MISSED, WRONG)]
    wrong = [f"without: {box.text}" for box, mark in said.lines(*VERDICTS) if is_wrong(box, mark)]
    missing = [(box, mark) for box, mark in said.lines(HALF, MISSED) if box.group in levels]
    return wrong + [f"{box.group}: {box.shown}" for box, _ in missing]


def repeat(interview: Interview) -> list[str]:
    """The topics below the level of the interview, as a command, and what to read."""
    topics = dict.fromkeys(question.topic for question in weak(interview))
    lines = [f"`minispec drill --topics {' '.join(topics)}`"] if topics else []
    lines += reading(interview)
    codes = [said.item for said in interview.all(Said) if isinstance(said.item, Code)]
    lines += [f"{code.exercise}, in exercises/17_interview_day.ipynb" for code in codes if code.outcome != "right"]
    return lines or [f"Nothing: every question reached {interview.level}. Take another round, or raise the level."]


def keep(interview: Interview, out: Path | None = None) -> Path:
    """Write the debrief: to `out`, or beside the record, as exams/mock-N.md."""
    return write_whole(out or (interview.file or next_file()).with_suffix(".md"), debrief(interview))


def keep_sheet(interview: Interview, out: Path) -> Path:
    text = sheet(interview)
    return write_whole(out, printable(text, SIZE) if out.suffix == ".html" else text)


def _fill(name: str, interview: Interview, **values) -> str:
    rule = f"{RULE} {ROUND_RULE}"
    text = TEMPLATES.get_template(name).render(interview=interview, rule=rule, title=title, zip=zip, **values)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
