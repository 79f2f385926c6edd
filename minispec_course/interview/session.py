"""A drill: what to ask, what an answer is worth, and what to read next. It is held by dialogue.py.

A Talk is a question with follow-ups and push-backs: the candidate speaks, then sees the rubric and marks what was said.
A Figure is a number of its answer, and the program checks it.
"""

import ast
import inspect
import math
import random
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from fsrs import Rating

from .. import formulas
from .question import LEVELS, Number, Question
from .questions import lesson, topics
from .schedule import Schedule

Bank = dict[str, Question]  # by id
MINUTES = 20  # of a drill, unless you want others
FOLLOW_UP, PUSH_BACK, RAISES, SINKS = "follow-up", "push-back", "raises", "sinks"
HEADS = {
    FOLLOW_UP: "follow-ups, → what a good reply contains",
    PUSH_BACK: "push-backs, → what a good reply contains",
    RAISES: "what raises an answer",
    SINKS: "what sinks it, if it was said",
}
VERDICTS = SAID, HALF, MISSED, WRONG = "said", "half", "missed", "wrong"
LINES = 6  # of a reading list: more is not read


@dataclass(frozen=True)
class Box:
    """One line of a rubric, to be marked."""

    group: str  # a level, FOLLOW_UP, PUSH_BACK, RAISES or SINKS
    text: str
    must: bool = False  # without it, its level is closed

    @property
    def shown(self) -> str:
        return f"{self.text} (must-have)" if self.must else self.text


@dataclass(frozen=True)
class Mark:
    """What became of one line of a rubric, and in which words."""

    verdict: str = SAID
    quote: str = ""


MISS = Mark(MISSED)
Marks = Mapping[int, Mark]  # line of the rubric → its mark; one without a mark was missed


@dataclass(frozen=True)
class Talk:
    """A question, asked and followed up as an interviewer would."""

    question: Question
    levels: tuple[str, ...] = LEVELS
    minutes, facts = 4, ()

    @property
    def key(self) -> str:
        return self.question.id

    @property
    def topic(self) -> str:
        return self.question.topic

    @property
    def goal(self) -> int:
        """How many levels an answer should reach."""
        return len(self.levels)

    @property
    def turns(self) -> list[tuple[str, str, str]]:
        """What comes after the question: (group, what is said, what a good reply contains)."""
        turns = [(FOLLOW_UP, each.question, each.short) for each in self.question.follow_ups]
        return turns + [(PUSH_BACK, each.says, each.reply) for each in self.question.push_backs]

    @property
    def asks(self) -> list[str]:
        return [self.question.question, *(says for _, says, _ in self.turns)]

    @property
    def rubric(self) -> list[Box]:
        """What can be marked."""
        question, must = self.question, self.question.must_haves
        boxes = [Box(level, point, point in must) for level in self.levels for point in question.level(level)]
        boxes += [Box(group, f"{says} → {reply}") for group, says, reply in self.turns if reply]
        boxes += [Box(RAISES, tell) for tell in question.raises]
        return boxes + [Box(SINKS, tell) for tell in question.sinks]

    def made(self, marks: Marks) -> dict[str, float]:
        """How many points of each level."""
        groups, worth = [box.group for box in self.rubric], {SAID: 1, HALF: 0.5}
        points = [(groups[i], worth.get(mark.verdict, 0)) for i, mark in marks.items()]
        return {level: sum(n for group, n in points if group == level) for level in self.levels}

    def reached(self, marks: Marks) -> int:
        """How many levels, from the lowest asked for: see question.RULE."""
        closed = {box.group for i, box in enumerate(self.rubric) if box.must and marks.get(i, MISS).verdict != SAID}
        enough = [level for level, n in self.made(marks).items() if 3 * n >= 2 * len(self.question.level(level))]
        count = len(list(takewhile(lambda level: level in enough and level not in closed, self.levels)))
        return lowered(count, self.rubric, marks, self.levels)


@dataclass(frozen=True)
class Figure:
    """A number to compute. One that belongs to no question does not come back."""

    number: Number
    question: Question | None = None
    about: str = ""  # the topic, where there is no question
    given: str = ""  # said before it is asked for
    begin: str = ""  # how we would begin, shown with the solution
    minutes, facts, rubric = 1, (), ()

    @property
    def key(self) -> str | None:
        return self.question and f"{self.question.id}: {self.number.expression}"

    @property
    def topic(self) -> str:
        return self.question.topic if self.question else self.about

    @property
    def asks(self) -> list[str]:
        return [f"{self.given} Give a number: {self.number.name}.".strip()]


Item = Talk | Figure


def sentences(texts: Iterable[str]) -> list[str]:
    """An answer in pieces that a mark can point at."""
    pieces = (" ".join(piece.split()) for text in texts for piece in re.split(r"(?<=[.!?;])\s+|\n", text))
    return list(filter(None, pieces))


def wrongs(rubric: Sequence[Box], marks: Marks) -> list[int]:
    """The lines with a wrong statement: points that were got wrong, and whatever sinks."""
    return [i for i, m in marks.items() if m.verdict == WRONG or (rubric[i].group == SINKS and m.verdict != MISSED)]


def lowered(count: int, rubric: Sequence[Box], marks: Marks, levels: Sequence[str] = ()) -> int:
    """Of so many levels, those left after the wrong statements. Several marks on one sentence cost once."""
    where = [(levels.index(g) if (g := rubric[i].group) in levels else 0, i) for i in wrongs(rubric, marks)]
    floors = {marks[i].quote or i: floor for floor, i in sorted(where, reverse=True)}  # the lowest of a sentence stays
    for floor in sorted(floors.values(), reverse=True):
        count -= count > floor
    return count


@dataclass(frozen=True)
class Said:
    """A Talk or a Code, and how its rubric was marked."""

    item: Talk
    marks: Marks
    texts: tuple[str, ...] = ()  # what was typed, one for each of the item's asks

    def lines(self, *verdicts: str) -> list[tuple[Box, Mark]]:
        """The lines of the rubric that were marked so."""
        marked = [(box, self.marks.get(i, MISS)) for i, box in enumerate(self.item.rubric)]
        return [(box, mark) for box, mark in marked if mark.verdict in verdicts]

    @property
    def reached(self) -> int:
        return self.item.reached(self.marks)

    @property
    def level(self) -> str:
        return self.item.levels[self.reached - 1] if self.reached else f"below {self.item.levels[0]}"

    @property
    def tally(self) -> str:
        """How many points of each level were made: the rule, in figures."""
        if not (question := self.item.question):
            return ""
        made = [f"{n:g} of {len(question.level(level))} {level}" for level, n in self.item.made(self.marks).items()]
        return f" ({', '.join(made)} points)"

    @property
    def rating(self) -> Rating:
        if self.reached == 0:
            return Rating.Again
        if self.reached < len(self.item.levels):
            return Rating.Hard
        raised = any(box.group == RAISES for box, _ in self.lines(SAID))
        complete = all(box.group in (RAISES, SINKS) for box, _ in self.lines(HALF, MISSED))
        return Rating.Easy if raised and complete else Rating.Good


@dataclass(frozen=True)
class Computed:
    """A Figure, and what was typed."""

    item: Figure
    text: str

    @property
    def right(self) -> bool:
        return self.item.number.is_stated_by(self.text)

    @property
    def rating(self) -> Rating:
        return Rating.Good if self.right else Rating.Again

    @property
    def verdict(self) -> str:
        """One line: right or wrong, and what it is."""
        number, said = self.item.number, self.text.strip() or "no number"
        unit = f" {number.unit}" if number.unit else ""
        return f"{'right' if self.right else 'wrong'}: {digits(number.computed)}{unit} (you said {said})"

    @property
    def solution(self) -> list[str]:
        """How we would begin, the expression, and the formulas in it."""
        number = self.item.number
        names = [node.id for node in ast.walk(ast.parse(number.expression)) if isinstance(node, ast.Name)]
        known = [name for name in dict.fromkeys(names) if inspect.isfunction(getattr(formulas, name))]
        lines = [self.item.begin] if self.item.begin else []
        lines += [f"{number.expression} = {digits(number.computed)} {number.unit}".rstrip()]
        return lines + [f"{name}: {formula(name)}" for name in known]


def digits(value: float) -> str:
    """Three figures, never in powers of ten: 0.05, 2.77, 1,840."""
    shown = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:.10f}".rstrip("0").rstrip(".") if "e" in shown else shown


def formula(name: str) -> str:
    """What the docstring of a formula begins with."""
    return inspect.getdoc(getattr(formulas, name)).split("\n\n")[0].replace("\n", " ").rstrip(".")


def choose(bank: Bank, schedule: Schedule, minutes: float, seed: int, wanted=(), levels=LEVELS) -> list[Item]:
    """What is due, the shakiest first; then what is new, shuffled, a number with each; then what would be due next."""
    if not levels or not set(levels) <= set(LEVELS):
        raise ValueError(f"levels={levels!r}: give some of {', '.join(LEVELS)}")
    if isinstance(minutes, bool) or not isinstance(minutes, (int, float)) or not 0 < minutes < math.inf:
        raise ValueError(f"minutes={minutes!r}: give a number > 0")
    if unknown := [topic for topic in wanted if topic not in topics(bank)]:
        raise ValueError(f"topics={unknown[0]!r} is not in the bank: give some of {', '.join(topics(bank))}")
    levels = tuple(level for level in LEVELS if level in levels)
    asked = [question for question in bank.values() if not wanted or question.topic in wanted]
    talks = [Talk(question, levels) for question in asked]
    figures = [Figure(number, question) for question in asked for number in question.numbers]
    seen = [item for item in (*talks, *figures) if schedule.seen(item.key)]
    due = sorted((item for item in seen if schedule.is_due(item.key)), key=lambda item: schedule.urgency(item.key))
    later = sorted((item for item in seen if item not in due), key=lambda item: schedule.due(item.key))
    dice, new = random.Random(seed), []
    dice.shuffle(talks)
    for talk in talks:
        numbers = [f for f in figures if f.question is talk.question and not schedule.seen(f.key)]
        new += [talk] * (not schedule.seen(talk.key)) + ([dice.choice(numbers)] if numbers else [])
    chosen: list[Item] = []  # as many as fit, and at least one
    for item in (*due, *new, *later):
        if chosen and item.minutes > minutes:
            break
        chosen.append(item)
        minutes -= item.minutes
    return chosen


class Session:
    """Items in order, answers as they come. Each answer is kept at once; the time is looked at between two items."""

    def __init__(self, items: Sequence, minutes: float, schedule: Schedule | None = None, clock=time.monotonic):
        self.items, self.minutes, self.schedule = list(items), minutes, schedule
        self.noted: dict[int, Said | Computed] = {}  # place → result
        self.texts: dict[int, list[str]] = {}  # place → what was answered, turn by turn
        self.place, self.over = 0, False
        self._clock, self._used, self._since = clock, 0.0, None  # it stands still until `start_clock`
        self.opening = f"{minutes:g} minutes. Answer aloud or in writing; an empty line ends an answer."

    @property
    def running(self) -> bool:
        return self._since is not None

    @property
    def elapsed(self) -> float:
        """Minutes that the clock has counted."""
        return (self._used + (self._clock() - self._since if self.running else 0.0)) / 60

    def stop_clock(self) -> None:
        self._used, self._since = 60 * self.elapsed, None

    def start_clock(self) -> None:
        self._since = self._clock() if self._since is None else self._since

    @property
    def current(self) -> Item | None:
        """What to ask now; None at the end, or when the time is up."""
        return self.items[self.place] if self.place < len(self.items) and not self.over else None

    @property
    def asked(self) -> str | None:
        """What to ask next about the current item; None when all of it was answered."""
        turn = len(self.texts.get(self.place, ()))
        return self.current.asks[turn] if turn < len(self.current.asks) else None

    def say(self, text: str) -> None:
        """The answer to `asked`."""
        self.texts.setdefault(self.place, []).append(text)

    def ticked(self, boxes: Iterable[int]) -> Said:
        """The rubric of the current Talk was ticked."""
        said = Said(self.current, {i: Mark() for i in boxes}, tuple(self.texts.get(self.place, ())))
        self.advance()
        return self.note(self.place - 1, said)

    def computed(self, text: str) -> Computed:
        """The current Figure was answered."""
        result = Computed(self.current, text)
        self.advance()
        return self.note(self.place - 1, result)

    def advance(self) -> None:
        """On to the next. What has no result comes again as if it had not been asked."""
        self.place += 1
        self.over = self.elapsed >= self.minutes  # never in the middle of an answer

    skip = advance

    def note(self, place: int, result):
        """The result of an item; of one that comes back, the schedule hears too."""
        self.noted[place] = result
        if self.schedule and result.item.key:
            self.schedule.review(result.item.key, result.rating)
        return result

    @property
    def results(self) -> list:
        return [self.noted[place] for place in sorted(self.noted)]

    def all(self, kind: type) -> list:
        return [result for result in self.results if isinstance(result, kind)]


def start(bank: Bank, topics=(), levels=LEVELS, minutes: float = MINUTES, seed: int | None = None) -> Session:
    """Begin a drill (see `choose`). Without a seed every sitting shuffles anew."""
    schedule, seed = Schedule.here(), random.SystemRandom().randrange(10_000) if seed is None else seed
    return Session(choose(bank, schedule, minutes, seed, topics, levels), minutes, schedule)


def weak(session: Session) -> list[Question]:
    """The questions to read up on: sunk or short of the goal, or with a wrong number; the worst first."""
    short = [(r.reached, r.item.question) for r in session.all(Said) if r.reached < r.item.goal and r.item.question]
    wrong = [(1, r.item.question) for r in session.all(Computed) if not r.right and r.item.question]
    ranked = sorted(short + wrong, key=lambda pair: pair[0])
    return list({question.id: question for _, question in ranked}.values())


def reading(session: Session) -> list[str]:
    """What to read next, a line for each lesson with the functions to look at."""
    found = weak(session)
    functions = {q.lesson: dict.fromkeys(each.function for each in found if each.lesson == q.lesson) for q in found}
    return [f"lesson {lesson(number)}: {', '.join(names)}" for number, names in functions.items()][:LINES]
