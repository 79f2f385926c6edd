"""A mock interview: which questions a round asks, and the page that is kept of it.

    interview = start_mock(load(), level="L5", format="concept", seed=3)      # a Session, see session.py
    interview.start_clock()                                                   # it stands still until somebody begins
    … interview.ticked({0, 2}, texts) for every item …
    keep(interview)                                                           # writes exams/mock-1.md

It is held like a drill: question, answer, rubric, ticks. The candidate ticks, the program checks numbers and code, and
nothing here reads prose. The terminal and the notebook (terminal.py, widget.py) show `current` and note the replies.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from minispec.load.write import write_whole

from .coding import Code, Coded, tasks
from .fresh import derivation
from .question import LEVELS, Question
from .questions import ROOT
from .schedule import Schedule
from .session import FOLLOW_UP, PUSH_BACK, SINKS, Computed, Figure, Item, Said, Session, Talk, reading, topic_levels

FOLDER = ROOT / "exams"  # as in check/exam.py, which takes seconds to load
ROUNDS = {"concept": 45, "design": 60, "coding": 60, "experience": 45}  # minutes
KINDS = {  # which questions of the bank a round asks: one of each tuple
    "concept": (("concept",), ("debugging",), ("estimation", "derivation")),
    "design": (("design",),),
    "coding": (("coding",),),
    "experience": (("behavioural",), ("debugging", "design")),
}
SCOPING = "What would you like to know before you begin?"
DRAW = "The whiteboard is yours: which parts, which numbers, which decisions?"
NUMBERS = 3  # of a design's numbers are asked for


@dataclass(frozen=True)
class Asked(Talk):
    """A question as a round asks it: fewer turns than in a drill, and a design has its requirements and a change."""

    position: str = "L5"  # the level that the interview is for

    @property
    def minutes(self) -> int:
        return self.question.case.minutes if self.question.case else 8

    @property
    def turns(self) -> list[tuple[str, str, str]]:
        question, turns = self.question, []
        if case := question.case:
            turns.append(("", f"Let us take this as given. {'. '.join(case.requirements)}. {DRAW}", ""))
            change = next((each for each in case.changes if each.reply), case.changes[0])
            changed = f"One thing has changed since this morning. {change.says}. What do you do differently?"
            turns.append((PUSH_BACK, changed, change.reply))
        turns += [(FOLLOW_UP, each.question, each.short) for each in question.follow_ups[:1]]
        pushed = question.push_backs[: 1 if self.position == LEVELS[0] else 2]
        return turns + [(PUSH_BACK, each.says, each.reply) for each in pushed]

    @property
    def asks(self) -> list[str]:
        first, *rest = super().asks
        return [f"{first} {SCOPING}" if self.question.case else first, *rest]


class Interview(Session):
    """One round. `now` gives seconds; the clock stands still until `start_clock`, and while a rubric is ticked."""

    def __init__(
        self,
        bank: Mapping[str, Question],
        level: str = "L5",
        format: str = "concept",
        seed: int = 0,
        schedule: Schedule | None = None,
        now: Callable[[], float] = time.monotonic,
    ):
        if level not in LEVELS:
            raise ValueError(f"level={level!r}: give one of {', '.join(LEVELS)}")
        if format not in ROUNDS:
            raise ValueError(f"format={format!r}: give one of {', '.join(ROUNDS)}")
        self.level, self.format, self.seed, self.begun = level, format, seed, datetime.now()
        super().__init__(items_of(bank, level, format, seed), ROUNDS[format], schedule, now)
        self.stop_clock()

    @property
    def opening(self) -> str:
        return (
            f"This is the {self.format} round for an {self.level} position, and you have {self.minutes} minutes. "
            "Answer aloud, as you would on the day, and type notes of what you said. After each question the clock stops and "
            "you tick what you said. The clock starts when you begin."
        )


def items_of(bank: Mapping[str, Question], level: str, format: str, seed: int) -> list[Item | Code]:
    """A round, item by item."""
    dice = random.Random(seed)
    pools = [[q for q in bank.values() if q.kind in kinds] for kinds in KINDS[format]]
    if format == "design":  # a whole case, and a smaller question
        pools = [[q for q in pools[0] if q.case], [q for q in pools[0] if not q.case]]
    items: list[Item | Code] = []
    if format == "coding" and (ROOT / "course/exercises").is_dir():  # an installed package has no exercises
        items.append(Code(dice.choice(sorted(tasks())), seed))
    for pool in filter(None, pools):
        question = dice.choice(pool)
        items.append(Asked(question, position=level))
        items += [Figure(number, question) for number in question.numbers[:NUMBERS] if question.case]
    return items + (derivation(dice, level) if format == "concept" else [])


def start_mock(
    bank: Mapping[str, Question],
    level: str = "L5",
    format: str = "concept",
    seed: int | None = None,
    schedule: Schedule | None = None,
    now: Callable[[], float] = time.monotonic,
) -> Interview:
    """A new interview. Without a seed every one asks something else."""
    seed = random.SystemRandom().randrange(10_000) if seed is None else seed
    return Interview(bank, level, format, seed, schedule, now)


# ---- the page that is kept ------------------------------------------------------------------------------------------


def report(interview: Interview) -> str:
    """What was ticked by level and topic, what to drill, and every answer beside its rubric. Markdown."""
    used = f"{interview.elapsed:.0f} of {interview.minutes} minutes on the clock"
    when = f"{interview.begun:%d %B %Y, %H:%M} · seed {interview.seed} · {used}."
    lines = [f"# Mock interview: {interview.level} {interview.format} round", "", when, ""]
    if not interview.results:
        return "\n".join([*lines, "Nothing was answered.", ""])
    lines += ["You ticked the points yourself; the program checked only numbers and code.", ""]
    talks, figures = interview.all(Said), interview.all(Computed)
    if talks:
        lines += ["| question | topic | L4 | L5 | L6 | level |", "|---|---|---|---|---|---|"]
        lines += [row(said) for said in talks] + [""]
    if figures:
        lines += [f"Numbers: {sum(figure.right for figure in figures)} of {len(figures)} right.", ""]
    lines += [f"{coded.item.exercise}: {coded.level}.\n" for coded in interview.all(Coded)]
    lines += ["## What to drill", "", *to_drill(interview), "", "## Your answers", ""]
    for result in interview.results:
        lines += [f"- {result.item.number.name}: {result.verdict}"] if isinstance(result, Computed) else record(result)
    return "\n".join(lines) + "\n"


def row(said: Said) -> str:
    made = [(len(said.boxes(level)), len(said.item.question.level(level))) for level in LEVELS]
    cells = [said.item.question.question.replace("|", "\\|"), said.item.topic, *(f"{a} of {b}" for a, b in made)]
    return f"| {' | '.join(cells)} | {said.level} |"


def to_drill(interview: Interview) -> list[str]:
    """The topics below the level of the interview, as a command, and what to read."""
    goal = LEVELS[LEVELS.index(interview.level) :]
    short = [topic for topic, level in topic_levels(interview).items() if level not in goal]
    wrong = [figure.item.topic for figure in interview.all(Computed) if not figure.right and figure.item.question]
    topics = list(dict.fromkeys([*short, *wrong]))
    lines = [f"- `minispec drill --topics {' '.join(topics)}`"] if topics else []
    lines += [f"- {line}" for line in reading(interview)]
    return lines or [f"- Nothing: every question reached {interview.level}. Take another round, or raise the level."]


def record(result: Said | Coded) -> list[str]:
    """One question: what was asked and typed, what was ticked, what was not."""
    item = result.item
    lines = ["", f"### {item.asks[0] if isinstance(result, Said) else item.exercise}", ""]
    for i, (asked, text) in enumerate(zip(item.asks, result.texts, strict=False)):
        lines += [f"**{asked}**", ""] if i or isinstance(result, Coded) else []
        lines += [f"> {line}" for line in text.splitlines() or ["(aloud)"]] + [""]
    groups = {"Ticked": True, "Not ticked": False}
    for title, wanted in groups.items():
        boxes = [box for i, box in enumerate(item.rubric) if (i in result.ticked) == wanted]
        boxes = [box for box in boxes if wanted or box.group != SINKS]  # what sinks is better not said
        lines += [f"{title}:", "", *(f"- {box.group}: {box.shown}" for box in boxes), ""] if boxes else []
    return lines


def keep(interview: Interview, out: Path | None = None) -> Path:
    """Write the report: to `out`, or to exams/mock-N.md with the next free N."""
    number = 1
    while out is None and (FOLDER / f"mock-{number}.md").exists():
        number += 1
    return write_whole(out or FOLDER / f"mock-{number}.md", report(interview))
