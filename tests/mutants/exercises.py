"""Answers to the exercises by people who saw the notebooks and nothing else, in course/data/wrong_answers.json.xz.
The files answers_*.json beside it have the same form; those answers were written by the authors of the exercises.

A list of records: exercise, right (true or false), what it does, source, and diagnosis, the mistake that `check` named
when all of them were read one by one and it fitted (null: none). Those with `named` were written independently for a
mistake that minispec_course/exercises names: a diagnosis has to be earned by doing the same, not by being the same
code. To add some: save(load() + [...]).
"""

import json
import lzma
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).resolve().parents[1] / "course/data/wrong_answers.json.xz"


class Answer(NamedTuple):
    exercise: str
    right: bool
    what: str
    mutant: str | None  # the diagnosis
    source: str
    named: bool


def load() -> list[dict]:
    with lzma.open(FILE, "rt", encoding="utf-8") as stream:
        return json.load(stream)


def save(records: list[dict]) -> None:
    with lzma.open(FILE, "wt", encoding="utf-8") as stream:
        json.dump(records, stream, ensure_ascii=False)


FIELDS = ("exercise", "right", "what", "diagnosis", "source")
LATER = [
    record for file in sorted(FILE.parent.glob("answers_*.json")) for record in json.loads(file.read_text("utf-8"))
]
ANSWERS = [Answer(*(record[name] for name in FIELDS), record.get("named", False)) for record in load() + LATER]
WRONG_ANSWERS = [answer for answer in ANSWERS if answer.named and answer.mutant]
