"""Answers to the exercises by people who saw the notebooks and nothing else, in course/data/wrong_answers.json.xz.
The files answers_*.json beside it have the same form; those answers were written by the authors of the exercises.

Each is a record: exercise, right (true or false), what it does, source, and diagnosis, the mistake that `check` named
when all of them were read one by one and it fitted (null: none). Those with `named` were written independently for a
mistake that minispec_course/exercises names: a diagnosis has to be earned by doing the same, not by being the same
code.
"""

import json
import lzma
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).resolve().parent / "course/data"


class Answer(NamedTuple):
    exercise: str
    right: bool
    what: str
    diagnosis: str | None
    source: str
    named: bool = False


RECORDS = json.loads(lzma.decompress((FOLDER / "wrong_answers.json.xz").read_bytes()))
for file in sorted(FOLDER.glob("answers_*.json")):
    RECORDS += json.loads(file.read_text(encoding="utf-8"))
ANSWERS = [Answer(**{name: record[name] for name in Answer._fields if name in record}) for record in RECORDS]
WRONG_ANSWERS = [answer for answer in ANSWERS if answer.named and answer.diagnosis]
