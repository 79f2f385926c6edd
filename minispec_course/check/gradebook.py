"""What comes of grading: a CSV for the gradebook, one with everything, and a class in a few lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from minispec.load.write import write_whole

from .bridge import printable
from .check import RIGHT

UNGRADED = "not graded"  # an outcome that is no verdict: the grader itself has failed
FORMULA = re.compile(r"(^|[,;\t|])(?=[=+\-@])")  # what a spreadsheet would compute, wherever it splits a line
TO_QUOTE = re.compile(r'[,;\t|"\r\n]')


@dataclass(frozen=True)
class Result:
    student: str
    id: str
    outcome: str
    points: float
    possible: int
    text: str  # what the student's own check says
    mutant: str | None = None
    seconds: float = 0.0
    level: str = ""  # of the sandbox; nothing ran where it is empty
    properties: dict[str, dict] = field(default_factory=dict)  # name → {"passed": bool, "points": float}
    note: str = ""  # about how it was handed in


def write_csv(file: Path, results: Sequence[Result]) -> None:
    """One line a student, one column an exercise: what a gradebook imports. The same results, the same bytes."""
    ids = list(dict.fromkeys(result.id for result in results))
    possible = {result.id: result.possible for result in results}
    rows = []
    for student, own in by_student(results).items():
        points = {result.id: result.points for result in own if result.outcome != UNGRADED}
        marks = [number(points[id]) if id in points else "" for id in ids]  # an empty field is no mark
        rows.append([harmless(student), *marks, number(sum(points.values())), sum(possible.values())])
    write_rows(file, [["student", *ids, "total", "possible"], *rows])


def write_details(file: Path, results: Sequence[Result]) -> None:
    """One line an answer, with all that is known about it."""
    heading = "student exercise points possible outcome mistake properties seconds sandbox note diagnosis".split()
    rows = [
        [
            harmless(r.student),
            r.id,
            number(r.points) if r.outcome != UNGRADED else "",
            r.possible,
            r.outcome,
            r.mutant or "",
            parts(r),
            r.seconds,
            r.level,
            harmless(r.note),
            r.text,
        ]
        for r in results
    ]
    write_rows(file, [heading, *rows])


def parts(result: Result) -> str:
    """What the points of an answer are made of: "edge cases 0 of 0.5, one token 0.5 of 0.5"."""
    said = [(name, number(part["points"]), part["passed"]) for name, part in result.properties.items()]
    return ", ".join(f"{name} {possible if passed else 0} of {possible}" for name, possible, passed in said)


def number(points: float) -> str:
    """2, not 2.0; 1.33, not 1.3333333."""
    return f"{points:.2f}".rstrip("0").rstrip(".")


def harmless(name: str, most: int = 200) -> str:
    """A name that no spreadsheet takes for a formula, whichever character it splits lines at."""
    return FORMULA.sub(r"\1'", printable(name, most))


def write_rows(file: Path, rows: Sequence[Sequence]) -> None:
    """A CSV as every spreadsheet reads it: quoted wherever any of them would split."""

    def cell(value) -> str:
        text = str(value)
        return f'"{text.replace(chr(34), chr(34) * 2)}"' if TO_QUOTE.search(text) else text

    write_whole(file, "".join(",".join(map(cell, row)) + "\r\n" for row in rows))


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
    failed = [result for result in results if result.outcome == UNGRADED]
    lines = [
        f"{len(students)} students, {len(results)} answers, {sum(r.outcome == RIGHT for r in results)} of them right",
        f"median {median(reached):g} of {sum(r.possible for r in next(iter(students.values())))} points; "
        f"median {median(seconds):.1f} s per submission",
        f"sandbox: {', '.join(levels) or 'nothing had to run'}",
    ]
    if failed:
        lines.append(f"NOT GRADED, by the grader's own fault: {len(failed)} answers; the same command tries them again")
        lines += [f"     {printable(r.student, 60)}: {r.text}" for r in failed[:5]]
    if resubmitted := len({result.student for result in results if result.note}):
        lines.append(f"{resubmitted} students handed in more than once: the newest file counts (see the details)")
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
