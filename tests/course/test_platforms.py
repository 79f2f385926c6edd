"""What schools use: grades as platforms take them, pseudonyms, late submissions, answers that resemble each other."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from graders import HONEST, notebook, solutions

from minispec.cli import main
from minispec_course.check import late, platforms, similarity
from minispec_course.check.anonymous import pseudonyms, without_names
from minispec_course.check.check import RIGHT, WRONG
from minispec_course.check.gradebook import UNGRADED, Result
from minispec_course.check.submission import Submission

PARTS = {"edges": {"passed": True, "points": 0.5}, "ties": {"passed": False, "points": 1.5}}
CLASS = [
    Result("Alice Ng #11", "06.accept", RIGHT, 1, 1, "06.accept: right"),
    Result("Alice Ng #11", "06.residual", WRONG, 0.5, 2, "06.residual: wrong", "p_itself", properties=PARTS),
    Result("Alice Ng #12", "06.accept", WRONG, 0, 1, "06.accept: wrong"),
    Result("Alice Ng #12", "06.residual", RIGHT, 2, 2, "06.residual: right"),
    Result("=bob", "06.accept", UNGRADED, 0, 1, "06.accept: not graded"),
    Result("=bob", "06.residual", RIGHT, 2, 2, "06.residual: right"),
]


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


# ---- Canvas, Moodle, Gradescope -------------------------------------------------------------------------------------


def test_canvas_gets_its_columns_and_finds_students_by_number(tmp_path):
    assert platforms.write_canvas(tmp_path / "c.csv", CLASS, "Set 06") == []
    found = rows(tmp_path / "c.csv")
    assert list(found[0]) == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "Set 06"]
    assert "Points Possible" in found[0]["Student"] and found[0]["Set 06"] == "3"
    assert [(r["Student"], r["ID"], r["Set 06"]) for r in found[1:]] == [
        ("Alice Ng", "11", "1.5"),
        ("Alice Ng", "12", "2"),
        ("'=bob", "", ""),  # not all of it is graded, so there is no mark
    ]


def test_moodle_gets_its_worksheet(tmp_path):
    assert platforms.write_moodle(tmp_path / "m.csv", CLASS) == []
    found = rows(tmp_path / "m.csv")
    assert {"Identifier", "Grade", "Last modified (grade)"} <= {*found[0]}  # without these Moodle refuses the file
    assert [(r["Identifier"], r["Grade"], r["Maximum grade"]) for r in found] == [
        ("Participant 11", "1.5", "3"),
        ("Participant 12", "2", "3"),
        ("", "", "3"),
    ]
    assert "edges 0.5 of 0.5, ties 0 of 1.5" in found[0]["Feedback comments"]


ROSTER = """Student,ID,SIS User ID,SIS Login ID,Section,Old one (77)
    Points Possible,,,,,10
"Ng, Alice",12,s12,alice2,Lab 2,3
"Ng, Alice",11,s11,alice1,Lab 1,
"Ode, Bob",14,s14,bob,Lab 1,
"""


def test_a_roster_gives_names_and_numbers(tmp_path):
    (tmp_path / "r.csv").write_bytes(b"\xef\xbb\xbf" + ROSTER.encode())
    roster = platforms.read_roster(tmp_path / "r.csv")
    assert [row["ID"] for row in roster] == ["12", "11", "14"]
    known = {"Alice Ng #11": "11", "ngalice #12": "12", "bob": "14", "Bob Ode": "14", "odebob": "14"}
    for student, number in known.items():
        assert platforms.find_in(roster, student)["ID"] == number
    for stranger in ("Alice Ng", "eve", "Bob Ode #99"):  # two of that name; nobody; somebody else's number
        assert platforms.find_in(roster, stranger) is None
    missing = platforms.write_canvas(tmp_path / "c.csv", CLASS, "Set 06", roster)
    assert missing == ["=bob"]
    assert [(r["ID"], r["Section"], r["Set 06"]) for r in rows(tmp_path / "c.csv")[1:]] == [
        ("11", "Lab 1", "1.5"),
        ("12", "Lab 2", "2"),
    ]
    (tmp_path / "r.csv").write_text(ROSTER.replace(",", ";"))
    assert len(platforms.read_roster(tmp_path / "r.csv")) == 3
    (tmp_path / "r.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="Canvas or Moodle"):
        platforms.read_roster(tmp_path / "r.csv")


FIELDS = {
    "score",
    "execution_time",
    "output",
    "output_format",
    "test_output_format",
    "test_name_format",
    "visibility",
    "stdout_visibility",
    "extra_data",
    "tests",
    "leaderboard",
}
TEST_FIELDS = {
    "score",
    "max_score",
    "status",
    "name",
    "name_format",
    "number",
    "output",
    "output_format",
    "tags",
    "visibility",
    "extra_data",
}


def test_gradescope_gets_the_fields_of_its_specification(tmp_path):
    files = platforms.write_gradescope(tmp_path, CLASS)
    assert [file.relative_to(tmp_path).as_posix() for file in files][:2] == [
        "Alice Ng #11/results.json",
        "Alice Ng #12/results.json",
    ]
    found = json.loads(files[0].read_text(encoding="utf-8"))
    assert {*found} <= FIELDS and all({*test} <= TEST_FIELDS for test in found["tests"])
    assert found["score"] == 1.5 == sum(test["score"] for test in found["tests"])
    assert [(t["score"], t["max_score"], t["status"]) for t in found["tests"]] == [(1, 1, "passed"), (0.5, 2, "failed")]
    assert found["visibility"] in ("visible", "hidden", "after_due_date", "after_published")
    assert "06.accept" in json.loads(files[2].read_text(encoding="utf-8"))["output"]  # which could not be graded


# ---- without names --------------------------------------------------------------------------------------------------


def test_pseudonyms_hide_names_and_come_back_with_the_secret(tmp_path):
    named = [
        replace(r, text=f"{r.text} in line 11 ({r.student}.ipynb, {r.student[:8].upper()})", note=r.student)
        for r in CLASS
    ]
    found = without_names(named, b"s" * 32, tmp_path / "key.csv")
    assert not [r for r in found if "alice" in f"{r}".lower() or "bob" in f"{r}"]
    assert all("line 11 " in r.text for r in found)  # a number is no name
    who = {row["pseudonym"]: row["student"] for row in rows(tmp_path / "key.csv")}
    assert {who[r.student] for r in found} == {"Alice Ng #11", "Alice Ng #12", "'=bob"}
    assert sorted(r.points for r in found) == sorted(r.points for r in CLASS)
    assert [r.student for r in found] == sorted(r.student for r in found)
    students = [f"s{i}" for i in range(300)]
    assert len({*pseudonyms(students, b"s" * 32).values()}) == 300
    assert pseudonyms(students, b"s" * 32) != pseudonyms(students, b"t" * 32)


# ---- late -----------------------------------------------------------------------------------------------------------

DUE = datetime(2026, 11, 20, 23, 59)


@pytest.mark.parametrize(
    ("after", "share"),
    [(-5, 0), (0, 0), (1, 0.1), (24 * 60, 0.1), (24 * 60 + 1, 0.2), (9 * 24 * 60 + 1, 1), (99 * 24 * 60, 1)],
)
def test_every_day_begun_costs_its_share(after, share):
    submitted = (DUE + timedelta(minutes=after)).timestamp()
    assert late.Policy(DUE, 10).lost(submitted) == pytest.approx(share)
    assert late.Policy(DUE, 10, grace=after + 1).lost(submitted) == 0


def test_deductions_are_made_once_and_said(tmp_path):
    policy, second = late.Policy(DUE, 50), DUE.timestamp()
    files = {("Alice Ng #11", "06.accept"): second + 60, ("Alice Ng #11", "06.residual"): second - 60}
    found = late.apply(CLASS, policy, files, {})
    assert [r.points for r in found] == [0.5, 0.5, 0, 2, 0, 2] and "50 %" in found[0].note and not found[1].note
    (tmp_path / "t.csv").write_text("student,submitted\nAlice Ng #12,2026-11-21T10:00\n=bob,2026-11-19\n")
    table = late.read_times(tmp_path / "t.csv")
    assert [r.points for r in late.apply(CLASS, policy, {}, table)] == [1, 0.5, 0, 1, 0, 2]
    for wrong in ("tomorrow", ""):
        with pytest.raises(ValueError, match="give a time"):
            late.moment(wrong)
    with pytest.raises(ValueError, match="percentage"):
        late.Policy(DUE, 101)


# ---- alike ----------------------------------------------------------------------------------------------------------

OWN_WAY = """
def my_residual(p, q):
    left = []
    for i in range(len(p)):
        missing = float(p[i]) - float(q[i])
        left.append(missing if missing > 0 else 0.0)
    whole = sum(left)
    if whole == 0:
        return p
    return torch.tensor([x / whole for x in left])
"""
RENAMED = """
def my_residual(p, q):  # all mine
    '''My own work.'''
    rest = []
    for k in range(len(p)):
        gap = float(p[k]) - float(q[k])

        rest.append(gap if gap > 0 else 0.0)
    total = sum(rest)
    if total == 0:
        return p
    return torch.tensor([y / total for y in rest])
"""
OTHERWISE = """
def my_residual(p, q):
    import numpy as np
    a, b = np.asarray(p), np.asarray(q)
    positive = np.where(a > b, a - b, 0.0)
    norm = positive.sum()
    return torch.from_numpy(positive / norm) if norm > 0 else torch.from_numpy(a)
"""


def class_of(**answers: str) -> list[Submission]:
    return [Submission(student, {"06.residual": source}) for student, source in answers.items()]


def test_a_renamed_copy_is_found_with_its_lines_and_another_way_is_not():
    [pair] = similarity.pairs(class_of(ann=OWN_WAY, bob=RENAMED, cid=OTHERWISE), ["06.residual"], 0.6)
    assert {pair.one, pair.other} == {"ann", "bob"} and pair.score == 1.0
    assert "missing = float(p[i]) - float(q[i])" in pair.lines


def test_what_everybody_has_does_not_count():
    published = solutions("06")["06.residual"]
    stub = 'def my_residual(p, q):\n    # your code here\n    raise NotImplementedError("06.residual")'
    for source in (published, stub, "def my_residual(p, q):\n    return p"):
        assert similarity.pairs(class_of(ann=source, bob=source), ["06.residual"], 0.1) == []
    assert similarity.pairs(class_of(ann="(" * 50, bob="x y"), ["06.residual"], 0.1) == []  # no Python, no error
    with pytest.raises(ValueError, match="above 0"):
        similarity.pairs([], [], 0)


# ---- all together ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_writes_all_of_it(tmp_path):
    for name, answer in (("Ann #1", OWN_WAY), ("Bob #2", RENAMED)):
        file = tmp_path / f"in/{name}/06.ipynb"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(notebook("06", {"06.accept": HONEST, "06.residual": answer})))
    at = lambda name: str(tmp_path / name)  # noqa: E731
    line = ["grade", at("in"), "--out", at("g.csv"), "--sets", "06", "--seconds", "20"]
    more = ["--canvas", at("c.csv"), "--moodle", at("m.csv"), "--gradescope", at("gs"), "--similar", "0.8"]
    assert main([*line, *more, "--due", "2001-01-01", "--late", "50"]) == 0
    assert [r["total"] for r in rows(tmp_path / "g.csv")] == ["0", "0"]  # years too late
    assert main([*line, *more, "--due", "2101-01-01", "--late", "50"]) == 0
    assert [r["total"] for r in rows(tmp_path / "g.csv")] == ["3", "3"]
    assert [r["minispec"] for r in rows(tmp_path / "c.csv")[1:]] == ["3", "3"]
    assert [r["Identifier"] for r in rows(tmp_path / "m.csv")] == ["Participant 1", "Participant 2"]
    assert [r["exercise"] for r in rows(tmp_path / "g.similar.csv")] == ["06.residual"]
    assert len(list((tmp_path / "gs").glob("*/results.json"))) == 2
    assert main([*line, "--anonymous", "--similar", "0.8", "--html", at("report")]) == 0
    named = {"g.key.csv", "c.csv", "m.csv"}
    written = [f for f in tmp_path.rglob("*") if f.suffix in (".csv", ".html") and f.name not in named]
    assert len(written) > 4 and not [f for f in written if "Ann" in f.read_text() or "Bob" in f.read_text()]
    assert main([*line, "--anonymous", "--canvas", at("c.csv")]) == 2
