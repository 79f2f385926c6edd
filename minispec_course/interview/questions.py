"""The loader of the question bank. schema.yaml says what a file holds.

`load` refuses a bank with a mistake in it and names every one by file, entry and field. A teacher's own files follow
the same rules.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import yaml

from .question import BankError, Case, Fact, FollowUp, Number, PushBack, Question

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
SPOKEN = (40, 90)  # words of an answer


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


@cache
def _validator():
    from jsonschema import Draft202012Validator  # a fifth of a second

    return Draft202012Validator(read_yaml(FOLDER / "schema.yaml"))


def _mistakes(entry: object) -> Iterator[str]:
    """What is wrong with an entry, each with its field."""
    found = sorted(_validator().iter_errors(entry), key=lambda error: error.json_path)
    yield from (f"{error.json_path.removeprefix('$.')}: {error.message}" for error in found)
    if found:
        return
    words, (fewest, most) = len(entry["spoken"].split()), SPOKEN
    if not fewest <= words <= most:
        yield f"spoken: {words} words; an answer that is spoken has {fewest} to {most}"
    for i, number in enumerate(Number(**given) for given in entry.get("numbers", ())):
        try:
            if not abs(number.computed - number.value) <= number.within:
                yield f"numbers[{i}].value: {number.value}, but {number.expression} is {number.computed:.6g}"
        except ValueError as error:
            yield f"numbers[{i}].expression: {error}"
    for level, place in (name.split(".") for name in entry.get("must", ())):
        if int(place) > len(entry[level]):
            yield f"must: {level}.{place} is no point; the second one of {level} is {level}.2"


def _question(entry: dict, file: Path) -> Question:
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}
    for name, kind in (("push_backs", PushBack), ("follow_ups", FollowUp), ("numbers", Number)):
        values[name] = tuple(kind(**each) for each in entry.get(name, ()))
    values["facts"] = tuple(Fact(tuple(each["values"]), each["note"]) for each in entry.get("facts", ()))
    if case := entry.get("case"):
        changes = tuple(PushBack(**each) for each in case["changes"])
        values["case"] = Case(case["minutes"], tuple(case["requirements"]), tuple(case["whiteboard"]), changes)
    return Question(**values, file=str(file))


def read_file(file: Path, checked: bool = True) -> list[Question]:
    """The questions of one file. Raises BankError with all its mistakes."""
    entries = read_yaml(file)
    if not isinstance(entries, list) or not entries:
        raise BankError(f"{file}: should be a list of questions, each beginning with '- id:'")
    found = []
    for i, entry in enumerate(entries, start=1):
        name = (isinstance(entry, dict) and entry.get("id")) or f"number {i}"
        found += [f"{file}: entry {name}, {mistake}" for mistake in (_mistakes(entry) if checked else ())]
    if found:
        raise BankError("\n".join(found))
    return [_question(entry, file) for entry in entries]


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
    return _join({}, sorted((FOLDER / "bank").glob("*.yaml")), checked=False)  # a test has checked them


def _join(bank: dict[str, Question], files: Iterable[Path], checked: bool = True) -> dict[str, Question]:
    mistakes = []
    for file in files:
        try:
            questions = read_file(file, checked)
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


def topics(bank: dict[str, Question]) -> list[str]:
    """The topics, in the order in which they first come up."""
    return list(dict.fromkeys(question.topic for question in bank.values()))


def lesson(number: str) -> str:
    """ "02 kv cache", as its file is called."""
    files = sorted((ROOT / "minispec_course/lessons").glob(f"{number}_*.py"))
    return files[0].stem.replace("_", " ") if files else number
