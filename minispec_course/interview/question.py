"""One question of the bank, and the rule by which an answer to it reaches a level."""

from dataclasses import dataclass

from .expressions import evaluate, last_digit, readings

LEVELS = ("L4", "L5", "L6")
RULE = (
    "A level is reached if the one below it is and two thirds of its points were made, every must-have among them. "
    "A half counts half. Each wrong sentence costs a level, but one about a deeper point never costs a level below it. "
    "Replies to follow-ups and push-backs do not raise a level; a wrong one costs one."
)


class BankError(ValueError):
    """One line for every mistake: file, entry, field, what would do."""


@dataclass(frozen=True)
class Number:
    """A number of the answer. `name` holds all that is given, so "Give a number: {name}" can be asked alone."""

    name: str
    expression: str
    value: float  # as the text quotes it
    tolerance: float | None = None  # None: half a unit of the last digit quoted
    remember: bool = False  # worth knowing by heart: it goes on the cheat sheet
    unit: str = ""

    @property
    def within(self) -> float:
        return last_digit(self.value) / 2 * (1 + 1e-9) if self.tolerance is None else self.tolerance

    @property
    def computed(self) -> float:
        return evaluate(self.expression)

    def matches(self, answer: float, relative: float = 0.05) -> bool:
        """Whether an answer from the head is good enough: as near as the text, or within 5 %."""
        return abs(answer - self.computed) <= max(self.within, relative * abs(self.computed))

    def is_stated_by(self, text: str) -> bool:
        return any(map(self.matches, readings(text, self.unit)))


@dataclass(frozen=True)
class FollowUp:
    question: str
    short: str


@dataclass(frozen=True)
class PushBack:
    """What an interviewer objects or changes half-way, and what a good reply contains."""

    says: str
    reply: str


@dataclass(frozen=True)
class Case:
    """A design to be worked out aloud: the question's numbers are those to produce, its points are the rubric."""

    minutes: int
    requirements: tuple[str, ...]
    whiteboard: tuple[str, ...]  # boxes for the candidate to fill
    changes: tuple[PushBack, ...]  # requirements that the interviewer changes half-way


@dataclass(frozen=True)
class Fact:
    """Numbers that no formula gives, and where they come from."""

    values: tuple[float, ...]
    note: str


@dataclass(frozen=True)
class Question:
    id: str
    topic: str
    question: str
    spoken: str
    L4: tuple[str, ...]
    L5: tuple[str, ...]
    L6: tuple[str, ...]
    raises: tuple[str, ...]
    sinks: tuple[str, ...]
    push_backs: tuple[PushBack, ...]
    lesson: str
    function: str
    kind: str = "concept"
    follow_ups: tuple[FollowUp, ...] = ()
    numbers: tuple[Number, ...] = ()
    facts: tuple[Fact, ...] = ()
    case: Case | None = None
    must: tuple[str, ...] = ()  # L5.2: the second point of L5 is a must-have, see RULE
    read: tuple[str, ...] = ()  # papers, where no lesson goes into it
    file: str = ""

    @property
    def must_haves(self) -> frozenset[str]:
        """The points that `must` names."""
        named = [name.split(".") for name in self.must]
        return frozenset(self.level(level)[int(number) - 1] for level, number in named)

    def level(self, name: str) -> tuple[str, ...]:
        """The points of one level, to be ticked. A level also expects those below it."""
        if name not in LEVELS:
            raise ValueError(f"level={name!r}: give one of {', '.join(LEVELS)}")
        return getattr(self, name)
