"""What comes of grading: a CSV for the gradebook, one with everything, and a class in a few lines."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ...files.write import write_whole
from .bridge import printable
from .check import RIGHT


@dataclass(frozen=True)
class Result:
    student: str
    id: str
    outcome: str
    points: int
    possible: int
    text: str  # what the student's own check says
    mutant: str | None = None
    seconds: float = 0.0
    level: str = ""  # of the sandbox; nothing ran where it is empty


def write_csv(file: Path, results: Sequence[Result]) -> None:
    """One line a student, one column an exercise: what a gradebook imports. The same results, the same bytes."""
    ids = list(dict.fromkeys(result.id for result in results))
    possible = {result.id: result.possible for result in results}
    rows = []
    for student, own in by_student(results).items():
        points = {result.id: result.points for result in own}
        rows.append([harmless(student), *(points[id] for id in ids), sum(points.values()), sum(possible.values())])
    _write_rows(file, [["student", *ids, "total", "possible"], *rows])


def write_details(file: Path, results: Sequence[Result]) -> None:
    """One line an answer, with all that is known about it."""
    heading = ["student", "exercise", "points", "possible", "outcome", "mistake", "seconds", "sandbox", "diagnosis"]
    rows = [
        [harmless(r.student), r.id, r.points, r.possible, r.outcome, r.mutant or "", r.seconds, r.level, r.text]
        for r in results
    ]
    _write_rows(file, [heading, *rows])


def harmless(name: str) -> str:
    """A name that no spreadsheet takes for a formula."""
    name = printable(name, 200)
    return f"'{name}" if name.startswith(("=", "+", "-", "@", "\t")) else name


def _write_rows(file: Path, rows: Sequence[Sequence]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    write_whole(file, text.getvalue())


def by_student(results: Sequence[Result]) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(result.student, []).append(result)
    return found


def summary(results: Sequence[Result]) -> str:
    """A class in a few lines, for the terminal."""
    students = by_student(results)
    reached = [sum(result.points for result in own) for own in students.values()]
    seconds = [sum(result.seconds for result in own) for own in students.values()]
    levels = sorted({result.level for result in results if result.level})
    lines = [
        f"{len(students)} students, {len(results)} answers, {sum(r.outcome == RIGHT for r in results)} of them right",
        f"median {median(reached):g} of {sum(r.possible for r in next(iter(students.values())))} points; "
        f"median {median(seconds):.1f} s per submission",
        f"sandbox: {', '.join(levels) or 'nothing had to run'}",
    ]
    for (id, name), count in mistakes(results)[:5]:
        lines.append(f"{count:4} × {id} {name}")
    return "\n".join(lines)


def mistakes(results: Sequence[Result]) -> list[tuple[tuple[str, str], int]]:
    """((exercise, known mistake), how many made it), the commonest first."""
    counts: dict[tuple[str, str], int] = {}
    for result in results:
        if result.mutant:
            counts[result.id, result.mutant] = counts.get((result.id, result.mutant), 0) + 1
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
