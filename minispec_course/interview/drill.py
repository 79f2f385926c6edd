"""A drill: what to ask, what an answer is worth, and what to read next. No reading, no printing: see terminal, widget.

    session = start(load(), topics=["speed"], levels=["L4", "L5"], minutes=20, seed=0)
    while (item := session.current) is not None:
        session.ticked({0, 2}) if isinstance(item, Talk) else session.computed("2.77")

A Talk is a question with follow-ups and push-backs: the candidate speaks, then sees the rubric and ticks what was said.
A Figure is a number of its answer and is graded by itself.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fsrs import Rating

from .question import LEVELS, Number, Question, reached
from .questions import topics
from .schedule import Schedule, place
from .stated import Judged, asks_again, judge

MINUTES = 20  # of a drill, unless you want others
FOLLOW_UP, PUSH_BACK, RAISES, SINKS = "follow-up", "push-back", "raises", "sinks"


@dataclass(frozen=True)
class Box:
    """One line of a rubric, to be ticked."""

    group: str  # a level, FOLLOW_UP, PUSH_BACK, RAISES or SINKS
    text: str
    must: bool = False  # without it, its level is closed

    @property
    def shown(self) -> str:
        return f"{self.text} (must-have)" if self.must else self.text


@dataclass(frozen=True)
class Talk:
    """A question, asked and followed up as an interviewer would."""

    question: Question
    levels: tuple[str, ...] = LEVELS
    minutes = 4

    @property
    def key(self) -> str:
        return self.question.id

    @property
    def asks(self) -> list[str]:
        question = self.question
        asked = [question.question, *(follow_up.question for follow_up in question.follow_ups)]
        return asked + [push_back.says for push_back in question.push_backs]

    @property
    def rubric(self) -> list[Box]:
        """What can be ticked. The levels come first, so that they can be counted off."""
        question, must = self.question, self.question.must_haves
        boxes = [Box(level, point, point in must) for level in self.levels for point in question.level(level)]
        boxes += [Box(FOLLOW_UP, f"{asked.question} → {asked.short}") for asked in question.follow_ups]
        boxes += [Box(PUSH_BACK, f"{push_back.says} → {push_back.reply}") for push_back in question.push_backs]
        boxes += [Box(RAISES, tell) for tell in question.raises]
        return boxes + [Box(SINKS, tell) for tell in question.sinks]


@dataclass(frozen=True)
class Figure:
    """A number to compute. One that belongs to no question does not come back."""

    number: Number
    question: Question | None = None
    minutes = 1

    @property
    def key(self) -> str | None:
        return self.question and f"{self.question.id}: {self.number.expression}"

    @property
    def asks(self) -> list[str]:
        return [f"Give a number: {self.number.name}."]


Item = Talk | Figure


# ---- answers --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Said:
    """A Talk, and which boxes of its rubric were ticked."""

    item: Talk
    ticked: frozenset[int]
    texts: tuple[str, ...] = ()  # what was typed

    def boxes(self, *groups: str, ticked: bool = True) -> list[str]:
        """The lines of these groups that were said, or that were not."""
        boxes = enumerate(self.item.rubric)
        return [box.text for i, box in boxes if box.group in groups and (i in self.ticked) == ticked]

    @property
    def reached(self) -> int:
        """How many levels, from the lowest asked for (see question.reached); each sinking tell costs one."""
        said = {level: len(self.boxes(level)) for level in self.item.levels}
        points = {level: len(self.item.question.level(level)) for level in self.item.levels}
        lacking = {box.group for i, box in enumerate(self.item.rubric) if box.must and i not in self.ticked}
        return max(0, reached(said, points, lacking) - len(self.boxes(SINKS)))

    @property
    def level(self) -> str:
        return self.item.levels[self.reached - 1] if self.reached else f"below {self.item.levels[0]}"

    @property
    def rating(self) -> Rating:
        if self.reached == 0:
            return Rating.Again
        if self.reached < len(self.item.levels):
            return Rating.Hard
        complete = not self.boxes(*self.item.levels, FOLLOW_UP, PUSH_BACK, ticked=False) and self.boxes(RAISES)
        return Rating.Easy if complete else Rating.Good


@dataclass(frozen=True)
class Computed:
    """A Figure, and what was made of the reply."""

    item: Figure
    judged: Judged

    @property
    def right(self) -> bool:
        return self.judged.right

    @property
    def rating(self) -> Rating:
        return Rating.Good if self.right else Rating.Again


# ---- choosing -------------------------------------------------------------------------------------------------------


def choose(
    bank: dict[str, Question],
    schedule: Schedule,
    minutes: float,
    seed: int,
    wanted: Sequence[str] = (),
    levels: Sequence[str] = LEVELS,
) -> list[Item]:
    """What is due, the shakiest first; then what is new, hard topics first; then what would be due next.

    A question that is new brings one of its numbers along. The seed shuffles what is new.
    """
    levels = _known_levels(levels)
    if isinstance(minutes, bool) or not isinstance(minutes, (int, float)) or not 0 < minutes < math.inf:
        raise ValueError(f"minutes={minutes!r}: give a number > 0")
    for topic in wanted:
        if topic not in topics(bank):
            raise ValueError(f"topics={topic!r} is not in the bank: give some of {', '.join(topics(bank))}")
    asked = [question for question in bank.values() if not wanted or question.topic in wanted]
    talks = [Talk(question, levels) for question in asked]
    figures = [Figure(number, question) for question in asked for number in question.numbers]
    seen = [item for item in (*talks, *figures) if schedule.seen(item.key)]
    due = sorted((item for item in seen if schedule.is_due(item.key)), key=lambda item: schedule.urgency(item.key))
    later = sorted((item for item in seen if item not in due), key=lambda item: schedule.due(item.key))

    keys = {topic: [i.key for i in (*talks, *figures) if i.question.topic == topic] for topic in topics(bank)}
    dice = random.Random(seed)
    dice.shuffle(talks)
    new: list[Item] = []
    for talk in sorted(talks, key=lambda talk: -schedule.difficulty(keys[talk.question.topic])):  # stable: shuffled
        numbers = [f for f in figures if f.question is talk.question and not schedule.seen(f.key)]
        new += [talk] * (not schedule.seen(talk.key)) + ([dice.choice(numbers)] if numbers else [])
    return _fill(minutes, [*due, *new, *later])


def _fill(minutes: float, items: Iterable[Item]) -> list[Item]:
    """As many as fit, and at least one."""
    chosen: list[Item] = []
    for item in items:
        if chosen and item.minutes > minutes:
            break
        chosen.append(item)
        minutes -= item.minutes
    return chosen


def _known_levels(levels: Sequence[str]) -> tuple[str, ...]:
    for level in levels:
        if level not in LEVELS:
            raise ValueError(f"levels={level!r}: give some of {', '.join(LEVELS)}")
    if not levels:
        raise ValueError(f"levels={levels!r}: give at least one of {', '.join(LEVELS)}")
    return tuple(level for level in LEVELS if level in levels)


# ---- a sitting ------------------------------------------------------------------------------------------------------


class Session:
    """Items in order, answers as they come. Each answer is kept at once; the time is looked at between two items."""

    def __init__(
        self,
        items: Sequence[Item],
        minutes: float,
        schedule: Schedule | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.items, self.minutes, self.schedule = list(items), minutes, schedule
        self.results: list[Said | Computed] = []
        self.times: list[float] = []  # minutes from the start to each answer
        self.place, self.over = 0, False
        self._clock, self._began = clock, clock()

    @property
    def elapsed(self) -> float:
        """Minutes."""
        return (self._clock() - self._began) / 60

    @property
    def current(self) -> Item | None:
        """What to ask now; None at the end, or when the time is up."""
        return self.items[self.place] if self.place < len(self.items) and not self.over else None

    def ticked(self, boxes: Iterable[int], texts: Iterable[str] = ()) -> Said:
        """The rubric of the current Talk was ticked."""
        return self.note(Said(self.current, frozenset(boxes), tuple(text for text in texts if text.strip())))

    def computed(self, text: str) -> Computed:
        """The current Figure was answered."""
        return self.note(Computed(self.current, judge(self.current.number, text)))

    def asks_again(self, text: str) -> str:
        """What to say to a reply in which no number can be read, or more than one; "" if there is one or no reply."""
        return asks_again(judge(self.current.number, text)) if text.strip() else ""

    def skip(self) -> None:
        """On to the next. What has no result comes again as if it had not been asked."""
        self.place += 1
        self.over = self.elapsed >= self.minutes  # never in the middle of an answer

    def note(self, result):
        """An answer to the current item."""
        self.results.append(result)
        self.times.append(self.elapsed)
        self.skip()
        if self.schedule and result.item.key:
            self.schedule.review(result.item.key, result.rating)
        return result

    def all(self, kind: type) -> list:
        return [result for result in self.results if isinstance(result, kind)]


def start(
    bank: dict[str, Question],
    topics: Sequence[str] = (),
    levels: Sequence[str] = LEVELS,
    minutes: float = MINUTES,
    seed: int | None = None,
    schedule: Schedule | None = None,
) -> Session:
    """Begin a drill. Without a seed every sitting shuffles anew."""
    schedule = Schedule(place()) if schedule is None else schedule
    seed = random.SystemRandom().randrange(10_000) if seed is None else seed
    return Session(choose(bank, schedule, minutes, seed, topics, levels), minutes, schedule)
