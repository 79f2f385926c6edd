"""Grades as learning platforms take them: Canvas and Moodle as CSV, Gradescope as results.json.

    Canvas      the gradebook's own CSV: Student, ID, SIS User ID, SIS Login ID, Section, then a column for each
                assignment; a second line, "Points Possible", gives the maximum of each. Canvas finds a student by ID.
    Moodle      the grading worksheet of an assignment: Identifier ("Participant 12345"), Full name, Grade, Maximum
                grade, Last modified (grade), Feedback comments. Moodle finds a student by Identifier.
    Gradescope  results.json of one submission: score, execution_time, output, tests with score, max_score, status,
                name, number, output and visibility.

With a roster, which is the same CSV as the platform exports it, names and numbers come from there: a student is found
by number, else by a name that no other has. A student of the roster who has handed in nothing keeps an empty field.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

from minispec.load.write import write_whole

from ..exercises.exercise import find
from .check import RIGHT
from .gradebook import UNGRADED, Result, by_student, harmless, number, parts, write_rows
from .identity import person, shown

CANVAS_COLUMNS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
MOODLE_COLUMNS = ("Identifier", "Full name", "Grade", "Maximum grade", "Last modified (grade)", "Feedback comments")
MOODLE_PREFIX = "Participant "
LONGEST_COMMENT = 4000
NAME_COLUMNS = ("Student", "Full name", "Name")
ID_COLUMNS = ("ID", "Identifier", "SIS User ID", "SIS Login ID", "Email address", "ID number", "Username")


# ---- rosters --------------------------------------------------------------------------------------------------------


def read_roster(file: Path) -> list[dict[str, str]]:
    """The lines of a class list that a platform has exported, one dict each."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"roster={str(file)!r} is not UTF-8 text: export it again as CSV (UTF-8)") from None
    heading = text.partition("\n")[0]
    separator = ";" if heading.count(";") > heading.count(",") else ","
    rows = list(csv.DictReader(io.StringIO(text, newline=""), delimiter=separator))
    if not rows or not {*NAME_COLUMNS, *ID_COLUMNS} & {*rows[0]}:
        raise ValueError(f"roster={str(file)!r}: give the CSV that Canvas or Moodle exports, with a line of headings")
    rows = [{key.strip(): (value or "").strip() for key, value in row.items() if key} for row in rows]
    return [row for row in rows if not row.get("Student", "").startswith("Points Possible")]


def find_in(roster: Sequence[dict[str, str]], student: str) -> dict[str, str] | None:
    """A student's line: by the school's number, else by a name or login that only one line has."""
    name, own = person(student)
    numbers = [{row.get(column, "").removeprefix(MOODLE_PREFIX) for column in ID_COLUMNS} - {""} for row in roster]
    for wanted in filter(None, (own, name)):
        found = [row for row, known in zip(roster, numbers, strict=True) if wanted in known]
        if len(found) == 1:
            return found[0]
    same = [row for row in roster for column in NAME_COLUMNS if column in row and is_name(row[column], name)]
    return same[0] if len(same) == 1 and not own else None  # a number that the roster does not have is somebody else's


def is_name(listed: str, name: str) -> bool:
    """Alice Ng, "Ng, Alice", or ngalice as Canvas calls her files."""
    last, _, first = listed.partition(",")
    ways = {shown(listed), shown(f"{first.strip()} {last.strip()}")}
    squeezed = "".join(c for c in listed.casefold() if c.isalnum())
    return name in ways or name == squeezed


# ---- Canvas and Moodle ----------------------------------------------------------------------------------------------


def total(own: Sequence[Result]) -> float:
    return sum(result.points for result in own if result.outcome != UNGRADED)


def is_complete(own: Sequence[Result]) -> bool:
    return all(result.outcome != UNGRADED for result in own)


Lines = list[tuple[str, list[Result], dict[str, str]]]


def lines_of(results: Sequence[Result], roster: Sequence[dict] | None) -> tuple[Lines, list[str]]:
    """(student, results, line of the roster) each; and the students whom the roster does not have."""
    lines, missing, used = [], [], []
    for student, own in by_student(results).items():
        row = find_in(roster, student) if roster else None
        if roster and (row is None or row in used):
            missing.append(student)
            continue
        used.append(row)
        lines.append((student, own, row or {}))
    return lines, missing


def write_canvas(
    file: Path, results: Sequence[Result], assignment: str, roster: Sequence[dict] | None = None
) -> list[str]:
    """One column, the total. Returns students who are not in the roster, and so not in the file."""
    lines, missing = lines_of(results, roster)
    possible = possible_points(results)
    rows: list[list] = [[*CANVAS_COLUMNS, assignment], ["    Points Possible", *[""] * 4, possible]]
    for student, own, row in lines:
        known = (
            dict(zip(CANVAS_COLUMNS, person(student), strict=False)) | row
        )  # name and number, or as the roster has them
        rows.append(
            [
                *(harmless(known.get(column, "")) for column in CANVAS_COLUMNS),
                number(total(own)) if is_complete(own) else "",
            ]
        )
    write_rows(file, rows)
    return missing


def write_moodle(file: Path, results: Sequence[Result], roster: Sequence[dict] | None = None) -> list[str]:
    """The grading worksheet. Returns students who are not in the roster, and so not in the file."""
    lines, missing = lines_of(results, roster)
    rows: list[list] = [list(MOODLE_COLUMNS)]
    for student, own, row in lines:
        name, participant = person(student)
        identifier = f"{MOODLE_PREFIX}{participant}" if participant else ""
        known = {"Identifier": identifier, "Full name": name, "Last modified (grade)": "-"} | row
        known |= {"Grade": number(total(own)) if is_complete(own) else "", "Maximum grade": possible_points(results)}
        known |= {"Feedback comments": comment(own)}
        rows.append(
            [known[c] if c in ("Grade", "Last modified (grade)") else harmless(str(known[c])) for c in MOODLE_COLUMNS]
        )
    write_rows(file, rows)
    return missing


def safe(value) -> str:
    return harmless(str(value), LONGEST_COMMENT)


def possible_points(results: Sequence[Result]) -> int:
    return sum({result.id: result.possible for result in results}.values())


def comment(own: Sequence[Result]) -> str:
    """A few words for the student: a line an exercise."""
    lines = []
    for r in own:
        why = f" ({parts(r)})" if r.properties and r.outcome != RIGHT else ""
        lines.append(f"{r.id}: {r.outcome}, {number(r.points)} of {r.possible}{why}{f'; {r.note}' if r.note else ''}")
    return "; ".join(lines)


# ---- Gradescope -----------------------------------------------------------------------------------------------------


def gradescope(own: Sequence[Result]) -> dict:
    """The results of one submission, as Gradescope's autograder specification wants them."""
    tests = []
    for i, r in enumerate(own, start=1):
        inner = r.properties if r.properties and r.outcome != UNGRADED else {}
        tests.append(
            {
                "score": round(r.points, 2),
                "max_score": float(r.possible),
                "status": "passed" if r.outcome == RIGHT else "failed",
                "name": f"{r.id} {find(r.id).title}",
                "number": str(i),
                "output": "\n".join(filter(None, [r.note, parts(r) if inner else "", r.text])),
                "output_format": "text",
                "visibility": "visible",
                "extra_data": {"mistake": r.mutant, "properties": inner, "sandbox": r.level},
            }
        )
    failed = [r.id for r in own if r.outcome == UNGRADED]
    said = f"Not graded, by the grader's own fault: {', '.join(failed)}. " if failed else ""
    return {
        "score": round(total(own), 2),
        "execution_time": round(sum(r.seconds for r in own)),
        "output": f"{said}{number(total(own))} of {sum(r.possible for r in own)} points",
        "output_format": "text",
        "test_output_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": tests,
    }


def write_gradescope(folder: Path, results: Sequence[Result]) -> list[Path]:
    """FOLDER/STUDENT/results.json for every student; names that cannot be folders become numbers."""
    written = []
    for i, (student, own) in enumerate(by_student(results).items(), start=1):
        usable = not set(student) & set("/\\:\0") and not student.startswith(".")
        place = folder / (student if usable else f"student-{i:03}") / "results.json"
        written.append(write_whole(place, json.dumps(gradescope(own), indent=2, ensure_ascii=False) + "\n"))
    return written
