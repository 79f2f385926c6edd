"""What comes of grading: a CSV for the gradebook, a class in a few lines, and pages that need no network."""

import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from statistics import median

from minispec.load.write import write_whole

from ..exercises.exercise import find
from .check import RIGHT, WRONG
from .sandbox import printable
from .submission import person

UNGRADED = "not graded"  # an outcome that is no verdict: the grader itself has failed
FORMULA = re.compile(r"(^|[,;\t|])(?=\s*[=+\-@＝＋－＠])")  # what a spreadsheet computes, wherever it splits a line
MOST_MISTAKES = 15
COLOURS = {RIGHT: "right", WRONG: "wrong"}
STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse } td, th { padding: .2em .6em; border-bottom: 1px solid #8884; text-align: left }
td.n { text-align: right } .right { color: #009e73 } .wrong { color: #d55e00 }
pre { white-space: pre-wrap; border-left: 3px solid #8884; padding-left: 1em }
"""


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

    @property
    def mark(self) -> str:
        return "" if self.outcome == UNGRADED else number(self.points)  # an empty field is no mark


def number(points: float) -> str:
    """2, not 2.0; 1.33, not 1.3333333."""
    return f"{points:.2f}".rstrip("0").rstrip(".")


def by_student(results: Sequence[Result]) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(result.student, []).append(result)
    return found


def mistakes(results: Sequence[Result]) -> list[tuple[tuple[str, str], int]]:
    """((exercise, known mistake), how many made it), the commonest first."""
    counts = Counter((result.id, result.mutant) for result in results if result.mutant)
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


# ---- the table, and the terminal ------------------------------------------------------------------------------------
def write_csv(file: Path, results: Sequence[Result]) -> None:
    """One line a student, one column an exercise: what a gradebook imports. The same results, the same bytes."""
    possible = {result.id: result.possible for result in results}
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(["student", "number", *possible, "total", "possible"])
    for student, own in by_student(results).items():
        name, school_number = person(student)
        name = FORMULA.sub(r"\1'", printable(name, 200))
        total = number(sum(result.points for result in own))
        table.writerow([name, school_number, *(r.mark for r in own), total, sum(possible.values())])
    write_whole(file, text.getvalue())


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
        lines.append(f"NOT GRADED, the grader failed: {len(failed)} answers; run the same command to try them again")
        lines += [f"     {printable(r.student, 60)}: {r.text}" for r in failed[:5]]
    return "\n".join([*lines, *(f"{count:4} × {id} {name}" for (id, name), count in mistakes(results)[:5])])


# ---- the pages ------------------------------------------------------------------------------------------------------
def write_pages(folder: Path, results: Sequence[Result]) -> Path:
    """index.html, and a page for each student beside it. Returns the index."""
    students = by_student(results)
    pages = {student: f"student-{i:03}.html" for i, student in enumerate(students, start=1)}
    for student, own in students.items():
        write_whole(folder / pages[student], page(student, student_body(student, own)))
    return write_whole(folder / "index.html", page("The class", class_body(students, pages, results)))


def page(title: str, body: str) -> str:
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    return f"<!doctype html><html lang=en><head>{head}</head><body>{body}</body></html>\n"


def class_body(students: dict[str, list[Result]], pages: dict[str, str], results: Sequence[Result]) -> str:
    ids = dict.fromkeys(result.id for result in results)
    lines = [f"<h1>The class</h1><pre>{escape(summary(results))}</pre>"]
    lines.append("<h2>The most common misconceptions</h2><table><tr><th>students<th>exercise<th>what they do</tr>")
    for (id, name), count in mistakes(results)[:MOST_MISTAKES]:
        lines.append(f'<tr><td class="n">{count}<td>{id}<td>{escape(find(id).mutants[name].diagnosis)}</tr>')
    head = "".join(f"<th>{id}" for id in ids)
    lines.append(f"</table><h2>The marks</h2><table><tr><th>student{head}<th>total</tr>")
    for student, own in students.items():
        marks = "".join(f'<td class="n {COLOURS.get(r.outcome, "none")}">{r.mark or "–"}' for r in own)
        total = number(sum(result.points for result in own))
        name = f'<a href="{pages[student]}">{escape(student)}</a>'
        lines.append(f'<tr><td>{name}{marks}<td class="n">{total}</tr>')
    return "\n".join([*lines, "</table>"])


def student_body(student: str, own: Sequence[Result]) -> str:
    reached, possible = sum(r.points for r in own), sum(r.possible for r in own)
    lines = [f"<h1>{escape(student)}: {number(reached)} of {possible} points</h1>"]
    for r in own:
        facts = f"{r.mark or '–'} of {r.possible} points, {r.seconds:.1f} s, sandbox: {r.level or 'nothing ran'}"
        lines.append(f"<h2>{r.id} {escape(find(r.id).title)}</h2>")
        lines.append(f'<p><span class="{COLOURS.get(r.outcome, "none")}">{r.outcome}</span> · {facts}</p><table>')
        for name, part in r.properties.items():  # what the answer has, and what it has not
            sign = '<td class="right">✓' if part["passed"] else '<td class="wrong">✗'
            lines.append(f'<tr>{sign}<td>{escape(name)}<td class="n">{number(part["points"])}</tr>')
        lines.append(f"</table><pre>{escape(r.text)}</pre>")
    return "\n".join(lines)
