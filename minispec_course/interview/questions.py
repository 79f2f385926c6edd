"""The question bank: what a file holds, and the loader.

    - id: expected-tokens            # unique; letters, digits, hyphens
      topic: speed
      kind: derivation               # concept (the default), or another of KINDS
      question: How many tokens …?
      spoken: I would sum the tails. A cycle emits …     # 40 to 90 words, as a strong candidate says it
      L4: [three or four points that a candidate of this level makes, to be ticked]     # L5 and L6: what comes on top
      must: [L5.2]                   # points without which their level is not reached
      raises: [what makes an interviewer write "strong hire"]
      sinks: [what makes one write "no"]
      push_backs: [{says: We measured the opposite., reply: what a good reply contains}]     # at least two
      follow_ups: [{question: And if …?, short: Then …}]
      numbers:                       # every number in the answer, as a formula of theory.py
        - {name: "tokens per cycle at α = 0.7, k = 4", expression: "expected_tokens(0.7, 4)", value: 2.77}
      facts: [{values: [4], note: where a number comes from that no formula gives}]
      case: {minutes: 35, requirements: […], whiteboard: […], changes: […]}     # a design to work out, see Case
      lesson: "07"
      function: minispec.theory.expected_tokens
      source: [C.k-formula]          # items of coverage.yaml; none for a question of our own

`load` refuses a bank with a mistake in it and names every one by file, entry and field. A teacher's own files follow
the same rules.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields, replace
from functools import cache
from pathlib import Path

import yaml

from .question import KINDS, LESSONS, LEVELS, BankError, Case, Fact, FollowUp, Number, PushBack, Question, unexplained

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
POINTS, SPOKEN, PUSH_BACKS = (3, 4), (40, 90), 2  # points of a level, words of a spoken answer, the fewest push-backs

# ---- the rules for one field: what a value becomes, or a ValueError that says what would do -------------------------


def _rule(should: str, fits: Callable[[object], bool]):
    def read(value):
        if not fits(value):
            raise ValueError(f": {value!r} should be {should}")
        return value.strip() if isinstance(value, str) else value

    return read


def _one_of(*allowed: str):
    return _rule(f"one of {', '.join(allowed)} (a text, in quotes)", lambda value: value in allowed)


def _matching(pattern: str, should: str):
    return _rule(should, lambda value: isinstance(value, str) and bool(re.fullmatch(pattern, value)))


def _is_number(value, kinds=(int, float)) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


TEXT = _rule(
    "a text (put it in quotes if it looks like something else)", lambda value: isinstance(value, str) and value.strip()
)
NAME = _matching(r"[a-z0-9]+(-[a-z0-9]+)*", "small letters and digits, joined by hyphens")
DOTTED = _matching(r"minispec(\.\w+)+", "a name in the package, as in minispec.theory.speedup")
REAL = _rule("a number", _is_number)
FLAG = _rule("true or false", lambda value: isinstance(value, bool))
MINUTES = _rule("a whole number of minutes", lambda value: _is_number(value, int) and value >= 1)


def _spoken(value) -> str:
    words, (fewest, most) = len(TEXT(value).split()), SPOKEN
    if not fewest <= words <= most:
        raise ValueError(f": {words} words; an answer that is spoken has {fewest} to {most}")
    return TEXT(value)


def _list_of(read, least: int = 1, most: int | None = None):
    size = f"{least} to {most}" if most else f"at least {least}"

    def read_all(value) -> tuple:
        if not isinstance(value, list) or not least <= len(value) <= (most or len(value)):
            raise ValueError(f": {value!r} should be a list with {size} entries")
        return tuple(_within(f"[{i}]", read, item) for i, item in enumerate(value))

    return read_all


def _within(where: str, read, value):
    """Read a part; its mistakes say where they are."""
    try:
        return read(value)
    except ValueError as error:
        raise ValueError("\n".join(where + line for line in str(error).splitlines())) from None


def _record(cls, rules: dict):
    """A mapping with the fields of a dataclass."""
    required = {field.name for field in fields(cls) if field.default is MISSING}

    def read(value):
        if not isinstance(value, dict):
            raise ValueError(f": {value!r} should be a mapping with {', '.join(rules)}")
        mistakes = [f".{name}: unknown field; there are {', '.join(rules)}" for name in value.keys() - rules.keys()]
        mistakes += [f".{name}: missing" for name in rules if name in required and name not in value]
        values = {}
        for name in rules.keys() & value.keys():
            try:
                values[name] = _within(f".{name}", rules[name], value[name])
            except ValueError as error:
                mistakes.append(str(error))
        if mistakes:
            raise ValueError("\n".join(mistakes))
        return cls(**values)

    return read


OBJECTION = _record(PushBack, {"says": TEXT, "reply": TEXT})
NUMBER = _record(
    Number, {"name": TEXT, "expression": TEXT, "value": REAL, "tolerance": REAL, "remember": FLAG, "unit": TEXT}
)


def _change(value) -> PushBack:
    """With the reply that we would give, or, as a text, without."""
    return PushBack(TEXT(value), "") if isinstance(value, str) else OBJECTION(value)


def _number(value) -> Number:
    number = NUMBER(value)
    try:
        computed = number.computed
    except ValueError as error:
        raise ValueError(f".expression: {error}") from None
    if not abs(computed - number.value) <= number.within:
        raise ValueError(f".value: {number.value}, but {number.expression} is {computed:.6g}")
    return number


TEXTS = _list_of(TEXT)
CASE = {"minutes": MINUTES, "requirements": TEXTS, "whiteboard": TEXTS, "changes": _list_of(_change)}
QUESTION = _record(
    Question,
    {
        "id": NAME,
        "topic": NAME,
        "kind": _one_of(*KINDS),
        "question": TEXT,
        "spoken": _spoken,
        **dict.fromkeys(LEVELS, _list_of(TEXT, *POINTS)),
        "raises": TEXTS,
        "sinks": TEXTS,
        "push_backs": _list_of(OBJECTION, least=PUSH_BACKS),
        "follow_ups": _list_of(_record(FollowUp, {"question": TEXT, "short": TEXT}), least=0),
        "numbers": _list_of(_number, least=0),
        "facts": _list_of(_record(Fact, {"values": _list_of(REAL), "note": TEXT}), least=0),
        "case": _record(Case, CASE),
        "lesson": _one_of(*LESSONS),
        "function": DOTTED,
        "must": _list_of(TEXT, least=0),
        "source": _list_of(TEXT, least=0),
    },
)

# ---- files ----------------------------------------------------------------------------------------------------------


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
    for i, entry in enumerate(entries, start=1):
        name = entry.get("id", f"number {i}") if isinstance(entry, dict) else f"number {i}"
        try:
            questions.append(replace(QUESTION(entry), file=str(file)))
        except ValueError as error:
            mistakes += [f"{file}: entry {name}, {line.lstrip('.: ')}" for line in str(error).splitlines()]
    if mistakes:
        raise BankError("\n".join(mistakes))
    return questions


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


# ---- what a bank holds ----------------------------------------------------------------------------------------------


def topics(bank: dict[str, Question]) -> list[str]:
    """The topics, in the order in which they first come up."""
    return list(dict.fromkeys(question.topic for question in bank.values()))


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
        found += [
            f"{where}, numbers: {value:g} is in the answer without an expression or a fact"
            for value in unexplained(question)
        ]
    return found


# ---- a bank as Markdown ---------------------------------------------------------------------------------------------


def lesson(number: str) -> str:
    """ "02 kv cache", as its file is called."""
    for file in sorted((ROOT / "course/lessons").glob(f"{number}_*.py")):
        return file.stem.replace("_", " ")
    return number


def topics_table(bank: dict[str, Question]) -> str:
    """Every topic with its lessons and questions, for a page beside the lessons."""
    lines = ["| topic | lessons | questions |", "|---|---|---|"]
    for topic in topics(bank):
        some = [question for question in bank.values() if question.topic == topic]
        names = [lesson(number) for number in sorted({question.lesson for question in some})]
        links = ", ".join(f"[{name}]({name.replace(' ', '_')}.ipynb)" for name in names)
        asked = "<br>".join(f"{question.question} `{question.id}`" for question in some)
        lines.append(f"| {topic} | {links} | {asked} |")
    return "\n".join(lines)


def card(question: Question) -> str:
    """One question; an answer to say, the points that are ticked and the objections are folded away."""
    lines = [f"**{question.question}**", "", "<details><summary>an answer</summary>", "", question.spoken, ""]
    for level in LEVELS:
        for point in question.level(level):
            lines.append(f"- {level}: {point}{' (must-have)' * (point in question.must_haves)}")
    pushed = [f"- *{push_back.says}* {push_back.reply}" for push_back in question.push_backs]
    return "\n".join([*lines, "", "An interviewer may object:", "", *pushed, "", "</details>"])
