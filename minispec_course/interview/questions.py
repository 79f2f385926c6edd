"""The question bank: what a question holds, which level an answer reaches, and the loader.

    - id: expected-tokens            # unique; letters, digits, hyphens
      topic: speed
      kind: derivation               # concept (the default), or another of KINDS
      question: How many tokens …?
      spoken: I would sum the tails. A cycle emits …     # 40 to 90 words, as a strong candidate says it
      L4: [three or four points that a candidate of this level makes, to be ticked]     # L5 and L6: what comes on top
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

`load` refuses a bank with a mistake in it and names every one by file, entry and field (bank_file.py reads the files).
A teacher's own files follow the same rules.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from .bank_file import read_file
from .question import LEVELS, BankError, Question, unexplained

FOLDER = Path(__file__).parent


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
        found += [
            f"{where}, numbers: {value:g} is in the answer without an expression or a fact"
            for value in unexplained(question)
        ]
    return found
