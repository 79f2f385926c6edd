"""What has been judged already, one line of JSON a result, so that an interrupted run goes on where it stopped.

What stands in it is not judged again, as long as neither the answer nor the exercise nor the secret has changed. Only
verdicts about students stand in it: where the grader itself has failed, nothing is written.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from functools import cache
from pathlib import Path

from ..build import builder
from .check import NOT_ATTEMPTED, RIGHT, WRONG
from .gradebook import Result


class Journal:
    """One line a result. A line that was cut off, or that is not what it should be, is no line."""

    def __init__(self, file: Path, options):
        self.file, self.options, self.known = file, options, {}
        if file.is_file():
            for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    entry = json.loads(line)
                    key = entry.pop("key")
                    if isinstance(key, str) and is_sound(result := Result(**entry)):
                        self.known[key] = result
                except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                    continue
            if not file.read_bytes().endswith(b"\n"):
                with file.open("a") as stream:  # the next one begins on a line of its own
                    stream.write("\n")

    def find(self, task) -> Result | None:
        """The result of this very answer, of this very student."""
        found = self.known.get(self.key(task))
        return found if found and (found.student, found.id) == (task.student, task.id) else None

    def key(self, task) -> str:
        """Everything that a mark depends on."""
        secret = hashlib.sha256(task.secret).hexdigest() if task.secret else None
        about = [task.student, task.id, task.answers, task.problem, task.seed, task.own, secret, task.partial]
        return hashlib.sha256(
            json.dumps([*about, asdict(self.options.limits), fingerprint(task.id)]).encode()
        ).hexdigest()

    def add(self, task, result: Result) -> None:
        with self.file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"key": self.key(task), **asdict(result)}) + "\n")
            stream.flush()
            os.fsync(stream.fileno())


def is_sound(result: Result) -> bool:
    """Whether every field holds what it should: a journal is a file, and files get edited and damaged."""
    texts = (result.student, result.id, result.text, result.level, result.note)
    numbers = (result.points, result.possible, result.seconds)
    return (
        all(type(text) is str for text in texts)
        and all(type(number) in (int, float) and 0 <= number < 1e9 for number in numbers)
        and result.points <= result.possible
        and result.outcome in (RIGHT, WRONG, NOT_ATTEMPTED)
        and (result.mutant is None or type(result.mutant) is str)
        and type(result.properties) is dict
        and all(
            type(name) is str and type(part["passed"]) is bool and type(part["points"]) in (int, float)
            for name, part in result.properties.items()
        )
    )


@cache
def fingerprint(id: str) -> str:
    """Of all that defines an exercise: where it changes, its marks are out of date."""
    number, here = id.split(".")[0], Path(__file__).parent
    sources = [job.source for job in builder.jobs([number]) if job.kind == "exercise"]
    rules = ("variants.py", "../exercises/fresh.py", "check.py", "diagnosis.py", "../exercises/show.py")
    definitions = (here.parent / "exercises").glob(f"set_{number}_*.py")
    files = [*(here / name for name in rules), *definitions, *sources]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
