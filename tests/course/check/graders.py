"""Helpers for tests of the grader: submissions made to order, and a nursery that judges them."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat

from minispec_course.build import builder
from minispec_course.check.grade import Result, Task, grade_one, tasks_of
from minispec_course.check.sandbox import Nursery
from minispec_course.check.submission import read_folder

ROOT = Path(__file__).resolve().parents[3]
HONEST = "def accept_probability(p, q, token):\n    return min(1.0, float(p[token] / q[token]))\n"


def composed(number: str, kind: str = "exercise") -> dict:
    """A set as a class gets it, or its solution, as a dict of JSON."""
    [job] = [job for job in builder.jobs([number]) if job.kind == kind]
    return json.loads(nbformat.writes(builder.compose(job, whole=True)))


def solutions(number: str) -> dict[str, str]:
    """exercise → our answer."""
    return answers_in(composed(number, "solution"))


def answers_in(notebook: dict) -> dict[str, str]:
    own = [(cell["metadata"].get("minispec", {}), cell) for cell in notebook["cells"]]
    return {o["exercise"]: "".join(c["source"]) for o, c in own if o.get("role") == "answer"}


def notebook(number: str, answers: dict[str, str]) -> dict:
    """An exercise notebook with these answers in it, as a dict of JSON."""
    made = composed(number)
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


def judge_book(nursery: Nursery, book: dict, folder: Path) -> list[Result]:
    """The results of a notebook that somebody handed in."""
    (folder / "ann.ipynb").write_text(json.dumps(book), encoding="utf-8")
    return [grade_one(nursery, task) for task in tasks_of(read_folder(folder), [])]
