"""A file of the question bank, read with errors that name the file, the entry, the field and what would do."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path

import yaml

from .question import (
    KINDS,
    LESSONS,
    LEVELS,
    POINTS,
    PUSH_BACKS,
    WORDS,
    BankError,
    Case,
    Fact,
    FollowUp,
    Number,
    PushBack,
    Question,
)


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


def _spoken(value) -> str:
    text = _text(value)
    words, (fewest, most) = len(text.split()), WORDS
    if not fewest <= words <= most:
        raise ValueError(f": {words} words; an answer that is spoken has {fewest} to {most}")
    return text


def _minutes(value) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f": {value!r} should be a whole number of minutes")
    return value


def _list_of(read, least: int = 1, most: int | None = None):
    size = f"{least} to {most}" if most else f"at least {least}"

    def read_all(value) -> tuple:
        if not isinstance(value, list) or not least <= len(value) <= (most or len(value)):
            raise ValueError(f": {value!r} should be a list with {size} entries")
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
    Number, {"name": _text, "expression": _text, "value": _real, "tolerance": _real, "remember": _flag, "unit": _text}
)
TELLS = _list_of(_text)
OBJECTION = _record(PushBack, {"says": _text, "reply": _text})


def _change(value) -> PushBack:
    """With the reply that we would give, or, as a text, without."""
    return PushBack(_text(value), "") if isinstance(value, str) else OBJECTION(value)


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
        "spoken": _spoken,
        **dict.fromkeys(LEVELS, _list_of(_text, *POINTS)),
        "raises": TELLS,
        "sinks": TELLS,
        "push_backs": _list_of(OBJECTION, least=PUSH_BACKS),
        "follow_ups": _list_of(_record(FollowUp, {"question": _text, "short": _text}), least=0),
        "numbers": _list_of(_checked_number, least=0),
        "facts": _list_of(_record(Fact, {"values": _list_of(_real), "note": _text}), least=0),
        "case": _record(
            Case, {"minutes": _minutes, "requirements": TELLS, "whiteboard": TELLS, "changes": _list_of(_change)}
        ),
        "lesson": _one_of(*LESSONS),
        "function": _dotted,
        "must": _list_of(_text, least=0),
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
