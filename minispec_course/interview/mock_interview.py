"""A mock interview: which questions a round asks, and the page that is kept of it.

    interview = Interview(load(), level="L5", format="concept", seed=3)       # a Session, see session.py
    interview.start_clock()                                                   # it stands still until somebody begins
    … interview.ticked({0, 2}, texts) for every item …
    keep(interview)                                                           # writes exams/mock-1.md

It is held like a drill: question, answer, rubric, ticks. The candidate ticks, the program checks numbers and code, and
nothing here reads prose. The terminal and the notebook (terminal.py, widget.py) show `current` and note the replies.
"""

import random
import re
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from minispec.load.write import write_whole

from .coding import Code, Coded, tasks
from .fresh import derivation
from .question import LEVELS
from .questions import ROOT
from .session import FOLLOW_UP, PUSH_BACK, SINKS, Bank, Computed, Item, Said, Session, Talk, reading, weak

FOLDER = ROOT / "exams"  # as in check/exam.py, which takes seconds to load
ROUNDS = {"concept": 45, "design": 60, "coding": 60, "experience": 45}  # minutes
KINDS = {  # which questions of the bank a round asks: one of each tuple
    "concept": (("concept",), ("debugging",), ("estimation", "derivation")),
    "design": (("design",),),  # a whole case, and a smaller question
    "coding": (("coding",),),
    "experience": (("behavioural",), ("debugging", "design")),
}
SCOPING = "What would you like to know before you begin?"
DRAW = "The whiteboard is yours: which parts, which numbers, which decisions?"


@dataclass(frozen=True)
class Asked(Talk):
    """A question as a round asks it: fewer turns than in a drill, and a design has its requirements and a change."""

    position: str = "L5"  # the level that the interview is for

    @property
    def goal(self) -> int:
        return 1 + LEVELS.index(self.position)

    @property
    def turns(self) -> list[tuple[str, str, str]]:
        question, turns = self.question, []
        if case := question.case:
            turns.append(("", f"Let us take this as given. {'. '.join(case.requirements)}. {DRAW}", ""))
            change = case.changes[0]
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
    """One round. The clock stands still until `start_clock`, and while a rubric is ticked."""

    def __init__(
        self, bank: Bank, level="L5", format="concept", seed: int | None = None, schedule=None, clock=time.monotonic
    ):
        if level not in LEVELS:
            raise ValueError(f"level={level!r}: give one of {', '.join(LEVELS)}")
        if format not in ROUNDS:
            raise ValueError(f"format={format!r}: give one of {', '.join(ROUNDS)}")
        self.level, self.format, self.begun = level, format, datetime.now()
        self.seed = random.SystemRandom().randrange(10_000) if seed is None else seed
        super().__init__(items_of(bank, level, format, self.seed), ROUNDS[format], schedule, clock)
        self.stop_clock()

    @property
    def opening(self) -> str:
        return (
            f"This is the {self.format} round for an {self.level} position, and you have {self.minutes} minutes. "
            "Answer aloud, as you would on the day, and type notes of what you said. After each question the clock "
            "stops and you tick what you said. It starts when you begin."
        )


def items_of(bank: Bank, level: str, format: str, seed: int) -> list[Item | Code]:
    """A round, item by item."""
    dice = random.Random(seed)
    pools = [[q for q in bank.values() if q.kind in kinds] for kinds in KINDS[format]]
    if format == "design":
        pools = [[q for q in pools[0] if q.case], [q for q in pools[0] if not q.case]]
    items: list[Item | Code] = []
    if format == "coding" and (ROOT / "course/exercises").is_dir():  # an installed package has no exercises
        items.append(Code(dice.choice(sorted(tasks())), seed))
    items += [Asked(dice.choice(pool), position=level) for pool in pools if pool]
    return items + (derivation(dice, level) if format == "concept" else [])


# ---- the page that is kept ------------------------------------------------------------------------------------------


def overview(interview: Interview) -> list[str]:
    """What was ticked by level and topic, and what to drill. Lines of Markdown."""
    used = f"{interview.elapsed:.0f} of {interview.minutes} minutes on the clock"
    when = f"{interview.begun:%d %B %Y, %H:%M} · seed {interview.seed} · {used}."
    lines = [f"# Mock interview: {interview.level} {interview.format} round", "", when, ""]
    if not interview.results:
        return [*lines, "Nothing was answered."]
    lines += ["You ticked the points yourself; the program checked only numbers and code.", ""]
    for said in interview.all(Said):
        made = [f"{level} {len(said.boxes(level))} of {len(said.item.question.level(level))}" for level in LEVELS]
        lines.append(f"- {said.level}: {said.item.question.question} ({said.item.topic}; {', '.join(made)})")
    lines += [f"- {coded.level}: {coded.item.exercise}" for coded in interview.all(Coded)]
    if figures := interview.all(Computed):
        lines.append(f"- Numbers: {sum(figure.right for figure in figures)} of {len(figures)} right")
    return [*lines, "", "## What to drill", "", *to_drill(interview)]


def to_drill(interview: Interview) -> list[str]:
    """The topics below the level of the interview, as a command, and what to read."""
    topics = dict.fromkeys(question.topic for question in weak(interview))
    lines = [f"- `minispec drill --topics {' '.join(topics)}`"] if topics else []
    lines += [f"- {line}" for line in reading(interview)]
    again = [coded.item.exercise for coded in interview.all(Coded) if coded.item.outcome != "right"]
    lines += [f"- {exercise}, in exercises/17_interview_day.ipynb" for exercise in again]
    return lines or [f"- Nothing: every question reached {interview.level}. Take another round, or raise the level."]


def report(interview: Interview) -> str:
    """The overview, and every answer beside its rubric."""
    lines = [*overview(interview), "", "## Your answers", ""]
    for result in interview.results:
        lines += [f"- {result.item.number.name}: {result.verdict}"] if isinstance(result, Computed) else record(result)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"


def record(result: Said | Coded) -> list[str]:
    """One question: what was asked and typed, what was ticked, what was not."""
    item = result.item
    lines = ["", f"### {item.asks[0] if isinstance(result, Said) else item.exercise}", ""]
    for i, (asked, text) in enumerate(zip(item.asks, result.texts, strict=False)):
        lines += [f"**{asked}**", ""] if i or isinstance(result, Coded) else []
        lines += [f"> {line}" for line in text.splitlines() or ["(aloud)"]] + [""]
    for title, wanted in {"Ticked": True, "Not ticked": False}.items():
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
