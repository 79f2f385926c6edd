"""The question bank: YAML files with one list of questions each, read, checked and computed.

    - id: expected-tokens            # unique; letters, digits, hyphens
      topic: speed
      kind: derivation               # concept (the default), derivation, design or debug
      question: How many tokens …?
      short: Accepted drafts plus one: …
      L4: [a point that a candidate of this level makes, another]    # L5 and L6: what comes on top of it
      raises: [what makes an interviewer write "strong hire"]
      sinks: [what makes one write "no"]
      follow_ups: [{question: And if …?, short: Then …}]
      numbers:                       # every number in the answer, as a formula of theory.py
        - {name: "tokens a cycle at α = 0.7, K = 4", expression: "expected_tokens(0.7, 4)", value: 2.77}
      facts: [{values: [4], note: where a number comes from that no formula gives}]
      lesson: "07"
      function: minispec.theory.expected_tokens
      source: [C.k-formula]          # items of coverage.yaml; none for a question of our own

`load` refuses a bank with a mistake in it and names every one by file, entry and field. A teacher's own files follow
the same rules.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path

import yaml

from .expressions import evaluate, last_digit, literals, quantities

FOLDER = Path(__file__).parent
LEVELS = ("L4", "L5", "L6")
KINDS = ("concept", "derivation", "design", "debug")
LESSONS = (*(f"{n:02}" for n in (*range(15), 16, 17)), "appendix")  # as the files of course/lessons begin


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


@dataclass(frozen=True)
class FollowUp:
    question: str
    short: str


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
    short: str
    L4: tuple[str, ...]
    L5: tuple[str, ...]
    L6: tuple[str, ...]
    raises: tuple[str, ...]
    sinks: tuple[str, ...]
    lesson: str
    function: str
    kind: str = "concept"
    follow_ups: tuple[FollowUp, ...] = ()
    numbers: tuple[Number, ...] = ()
    facts: tuple[Fact, ...] = ()
    source: tuple[str, ...] = ()
    file: str = ""

    def level(self, name: str) -> tuple[str, ...]:
        """The points of one level, to be ticked. A level also expects those below it."""
        if name not in LEVELS:
            raise ValueError(f"level={name!r}: give one of {', '.join(LEVELS)}")
        return getattr(self, name)

    def answers(self) -> Iterator[str]:
        """Every text in which a number needs a reason."""
        yield self.short
        for points in (self.L4, self.L5, self.L6, self.raises, self.sinks):
            yield from points
        yield from (follow_up.short for follow_up in self.follow_ups)


# ---- numbers in the text --------------------------------------------------------------------------------------------


def unexplained(question: Question) -> list[float]:
    """Numbers of the answer that are neither computed, nor given, nor a fact with a note."""
    asked = [question.question, *(follow_up.question for follow_up in question.follow_ups)]
    known = {value for text in asked for value in quantities(text)}
    for number in question.numbers:
        known |= {float(number.value)} | literals(number.expression)
    known |= {value for fact in question.facts for value in fact.values}
    said = [value for text in question.answers() for value in quantities(text)]
    return sorted({value for value in said if value not in known and value / 100 not in known})


# ---- reading --------------------------------------------------------------------------------------------------------


def _text(value) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f": {value!r} should be a text (put it in quotes if it looks like something else)")
    return value.strip()


def _slug(value) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", value):
        raise ValueError(f": {value!r} should be small letters and digits, joined by hyphens")
    return value


def _real(value) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f": {value!r} should be a number")
    return value


def _flag(value) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f": {value!r} should be true or false")
    return value


def _one_of(*allowed: str):
    def read(value) -> str:
        if value not in allowed:
            raise ValueError(f": {value!r} should be one of {', '.join(allowed)} (a text, in quotes)")
        return value

    return read


def _dotted(value) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"minispec(\.\w+)+", value):
        raise ValueError(f": {value!r} should be a name in the package, as in minispec.theory.speedup")
    return value


def _list_of(read, least: int = 1):
    def read_all(value) -> tuple:
        if not isinstance(value, list) or len(value) < least:
            raise ValueError(f": {value!r} should be a list with at least {least} entries")
        return tuple(_indexed(read, item, i) for i, item in enumerate(value))

    return read_all


def _indexed(read, item, i: int):
    try:
        return read(item)
    except ValueError as error:
        raise ValueError("\n".join(f"[{i}]{line}" for line in str(error).splitlines())) from None


def _record(cls, rules: dict):
    """A reader for a mapping with the fields of a dataclass."""
    required = {field.name for field in fields(cls) if field.default is MISSING}

    def read(value):
        if not isinstance(value, dict):
            raise ValueError(f": {value!r} should be a mapping with {', '.join(rules)}")
        mistakes, values = [], {}
        for name in value.keys() - rules.keys():
            mistakes.append(f".{name}: unknown field; there are {', '.join(rules)}")
        for name, rule in rules.items():
            if name not in value:
                if name in required:
                    mistakes.append(f".{name}: missing")
                continue
            try:
                values[name] = rule(value[name])
            except ValueError as error:
                mistakes += [f".{name}{line}" for line in str(error).splitlines()]
        if mistakes:
            raise ValueError("\n".join(mistakes))
        return cls(**values)

    return read


NUMBER = _record(
    Number,
    {"name": _text, "expression": _text, "value": _real, "tolerance": _real, "remember": _flag, "unit": _text},
)
POINTS = _list_of(_text)


def _checked_number(value) -> Number:
    number = NUMBER(value)
    try:
        computed = number.computed
    except ValueError as error:
        raise ValueError(f".expression: {error}") from None
    if not abs(computed - number.value) <= number.within:
        raise ValueError(f".value: {number.value}, but {number.expression} is {computed:.6g}")
    return number


QUESTION = _record(
    Question,
    {
        "id": _slug,
        "topic": _slug,
        "kind": _one_of(*KINDS),
        "question": _text,
        "short": _text,
        **dict.fromkeys(LEVELS, POINTS),
        "raises": POINTS,
        "sinks": POINTS,
        "follow_ups": _list_of(_record(FollowUp, {"question": _text, "short": _text}), least=0),
        "numbers": _list_of(_checked_number, least=0),
        "facts": _list_of(_record(Fact, {"values": _list_of(_real), "note": _text}), least=0),
        "lesson": _one_of(*LESSONS),
        "function": _dotted,
        "source": _list_of(_text, least=0),
    },
)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """YAML that refuses a key given twice, where the standard one silently keeps the last."""

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_yaml(file: Path):
    try:
        return yaml.load(file.read_text(encoding="utf-8"), _Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BankError(f"{file}: not valid YAML: {' '.join(str(error).split())}") from None


def read_file(file: Path) -> list[Question]:
    """The questions of one file. Raises BankError with all its mistakes."""
    entries = read_yaml(file)
    if not isinstance(entries, list) or not entries:
        raise BankError(f"{file}: should be a list of questions, each beginning with '- id:'")
    questions, mistakes = [], []
    for i, entry in enumerate(entries):
        name = entry.get("id", f"number {i + 1}") if isinstance(entry, dict) else f"number {i + 1}"
        try:
            questions.append(QUESTION(entry))
        except ValueError as error:
            mistakes += [f"{file}: entry {name}, {line.lstrip('.: ')}" for line in str(error).splitlines()]
    if mistakes:
        raise BankError("\n".join(mistakes))
    return [Question(**{**vars(question), "file": str(file)}) for question in questions]


def load(extra: str | Path | None = None) -> dict[str, Question]:
    """All questions by id, in the order of the files; `extra` is a folder (or one file) of a teacher's own."""
    if extra is None:
        return dict(_shipped())
    extra = Path(extra)
    files = [extra] if extra.is_file() else sorted([*extra.glob("*.yaml"), *extra.glob("*.yml")])
    if not files:
        raise ValueError(f"bank={str(extra)!r}: give a folder with .yaml files, or one such file")
    return _join(dict(_shipped()), files)


@cache
def _shipped() -> dict[str, Question]:
    return _join({}, sorted((FOLDER / "bank").glob("*.yaml")))


def _join(bank: dict[str, Question], files: Iterable[Path]) -> dict[str, Question]:
    mistakes = []
    for file in files:
        try:
            questions = read_file(file)
        except BankError as error:
            mistakes.append(str(error))
            continue
        for question in questions:
            if question.id in bank:
                mistakes.append(f"{file}: entry {question.id}, id: already used in {bank[question.id].file}")
            bank.setdefault(question.id, question)
    if mistakes:
        raise BankError("\n".join(mistakes))
    return bank


# ---- what a bank holds -----------------------------------------------------------------------------------------------


def topics(bank: dict[str, Question]) -> list[str]:
    """The topics, in the order in which they first come up."""
    return list(dict.fromkeys(question.topic for question in bank.values()))


def levels() -> tuple[str, ...]:
    return LEVELS


def resolve(name: str):
    """What a dotted name of the package stands for, such as minispec.serving.scheduler.Scheduler.update."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)  # AttributeError: no such name
        return found
    raise AttributeError(f"{name}: no such module")


def problems(questions: Iterable[Question]) -> list[str]:
    """What a file can get wrong beyond its form: names that lead nowhere, numbers without a reason."""
    found = []
    for question in questions:
        where = f"{question.file}: entry {question.id}"
        try:
            resolve(question.function)
        except AttributeError:
            found.append(f"{where}, function: {question.function} is not in the package")
        found += [f"{where}, numbers: {value:g} is in the answer without an expression or a fact"
                  for value in unexplained(question)]  # fmt: skip
    return found
