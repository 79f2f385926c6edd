"""Helpers for tests of the grader: submissions made to order, and a nursery that judges them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import nbformat

from minispec_course.check.grade import Result, Task, grade_one, tasks_of
from minispec_course.check.sandbox import Nursery
from minispec_course.check.submission import read_folder

ROOT = Path(__file__).resolve().parents[3]
HONEST = "def accept(p, q, token):\n    return min(1.0, float(p[token] / q[token]))\n"


def set_file(number: str, folder: str = "exercises") -> Path:
    [file] = [f for f in (ROOT / folder).glob(f"{number}_*.ipynb") if "attempt" not in f.name]
    return file


def solutions(number: str) -> dict[str, str]:
    """exercise → the published answer."""
    return answers_in(json.loads(set_file(number, "solutions").read_text(encoding="utf-8")))


def answers_in(notebook: dict) -> dict[str, str]:
    own = [(cell["metadata"].get("minispec", {}), cell) for cell in notebook["cells"]]
    return {o["exercise"]: "".join(c["source"]) for o, c in own if o.get("role") == "answer"}


def notebook(number: str, answers: dict[str, str]) -> dict:
    """An exercise notebook with these answers in it, as a dict of JSON."""
    made = json.loads(nbformat.writes(nbformat.read(set_file(number), as_version=4)))
    for cell in made["cells"]:
        own = cell["metadata"].get("minispec", {})
        if own.get("role") == "answer" and own["exercise"] in answers:
            cell["source"] = answers[own["exercise"]]
    return made


def cell_of(notebook: dict, id: str, role: str = "answer") -> dict:
    own = [(cell["metadata"].get("minispec", {}), cell) for cell in notebook["cells"]]
    [found] = [cell for o, cell in own if (o.get("exercise"), o.get("role")) == (id, role)]
    return found


def judge_source(nursery: Nursery, source: str, id: str = "06.accept") -> Result:
    return grade_one(nursery, Task("somebody", id, (source,)))


def judge_file(nursery: Nursery, file: Path, ids: Sequence[str] = ("06.accept",)) -> dict[str, Result]:
    """exercise → result, of a file that somebody handed in."""
    [own] = [found for found in read_folder(file.parent) if found.student == file.stem]
    tasks = tasks_of([own], [id.split(".")[0] for id in ids])
    return {task.id: grade_one(nursery, task) for task in tasks if task.id in ids}
