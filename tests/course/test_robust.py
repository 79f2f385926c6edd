"""One bad submission never stops another: odd files, odd names, damaged archives, and a grader whose workers end.

What a student's code cannot do to the grader: test_attacks.py and test_containment.py.
"""

from __future__ import annotations

import csv
import json
import os
import unicodedata
import zipfile
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from graders import HONEST, notebook

from minispec.cli import main
from minispec_course.check import classreport, crew
from minispec_course.check.check import RIGHT, WRONG
from minispec_course.check.collect import collect, owner
from minispec_course.check.grade import Options, Task, chosen, grade, grade_one
from minispec_course.check.gradebook import UNGRADED, Result, summary, write_csv, write_details
from minispec_course.check.identity import person, shown, student
from minispec_course.check.journal import Journal
from minispec_course.check.sandbox import Limits
from minispec_course.check.secret import generator, read_secret, seed
from minispec_course.check.submission import read_folder
from minispec_course.exercises.show import show

BOOK = json.dumps(notebook("06", {"06.accept": HONEST}))
OTHER = json.dumps(notebook("06", {"06.accept": HONEST.replace("1.0", "0.9")}))


def put(file: Path, text: str | bytes = BOOK, time: float | None = None) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    if time is not None:
        os.utime(file, (time, time))
    return file


def accepted(folder: Path) -> dict[str, str | None]:
    """student → the answer to 06.accept that counts."""
    return {s.student: s.answers.get("06.accept") for s in read_folder(folder)}


# ---- whose is it? ---------------------------------------------------------------------------------------------------

OWNERS = {
    "alice/06.ipynb": "alice",
    "alice/week 6/06.ipynb": "alice",
    "Alice Ng_123_assignsubmission_file_/06.ipynb": "Alice Ng #123",
    "Alice Ng_123_assignsubmission_file_06.ipynb": "Alice Ng #123",
    "Alice_van_Ng_123_assignsubmission_file_/06.ipynb": "Alice_van_Ng #123",
    "ngalice_4711_99_06.ipynb": "ngalice #4711",
    "ngalice_LATE_4711_99_06-2.ipynb": "ngalice #4711",
    "alice_06.ipynb": "alice",
    "alice_06_rejection_sampling.ipynb": "alice",
    "alice_06_rejection_sampling-1.ipynb": "alice",
    "Ann Mary_Lee_06.ipynb": "Ann Mary_Lee",
    "alice_x.ipynb": None,  # anybody can call a file that
    "alice_.ipynb": None,
    "06_rejection_sampling.ipynb": None,
    "06/06.ipynb": None,
    # a student's own name for a file does not make it somebody else's
    "Mal_9_assignsubmission_file_/Alice Ng_123_assignsubmission_file_.ipynb": "Mal #9",
    "Mal_9_assignsubmission_file_Alice Ng_123_assignsubmission_file_06.ipynb": "Mal #9",
    "mal_9_1_ngalice_4711_99_06.ipynb": "mal #9",
    "mal/alice_06.ipynb": "mal",
}


@pytest.mark.parametrize("name", OWNERS)
def test_a_file_belongs_to_whom_the_platform_says(name):
    assert owner(Path(name).parts) == OWNERS[name]


def test_a_student_keeps_the_number_of_the_school():
    assert person(student("Alice Ng", "123")) == ("Alice Ng", "123") and person("Alice Ng") == ("Alice Ng", "")
    assert student("Alice Ng", "1") != student("Alice Ng", "2")


def test_two_students_of_one_name_stay_two(tmp_path):
    for number, book in ((1, BOOK), (2, OTHER)):
        put(tmp_path / f"in/Alice Ng_{number}_assignsubmission_file_/06.ipynb", book)
    collect(tmp_path / "in", tmp_path / "out")
    found = accepted(tmp_path / "out")
    assert found.keys() == {"Alice Ng #1", "Alice Ng #2"} and None not in found.values() and len({*found.values()}) == 2


# ---- handed in again ------------------------------------------------------------------------------------------------


def test_the_newest_file_counts_and_the_report_says_so(tmp_path):
    put(tmp_path / "alice/a.ipynb", BOOK, 2_000_000)
    put(tmp_path / "alice/b.ipynb", OTHER, 1_000_000)
    [found] = read_folder(tmp_path)
    assert found.answers["06.accept"] == HONEST and not found.problems
    assert "newest of 2 files" in found.notes["06.accept"] and "a.ipynb" in found.notes["06.accept"]
    assert found.times["06.accept"] == 2_000_000


def test_of_equal_times_the_number_in_the_name_decides(tmp_path):
    for name, book in (("06.ipynb", OTHER), ("06-2.ipynb", OTHER), ("06-10.ipynb", BOOK)):
        put(tmp_path / "alice" / name, book, 1_000_000)
    assert accepted(tmp_path) == {"alice": HONEST}


def test_what_cannot_be_decided_is_said_and_not_guessed(tmp_path):
    for name, book in (("a.ipynb", OTHER), ("b.ipynb", BOOK)):
        put(tmp_path / "alice" / name, book, 1_000_000)
    [found] = read_folder(tmp_path)
    assert "06.accept" in found.problems and "06.accept" not in found.answers


def test_collecting_again_after_a_resubmission_gives_the_newest(tmp_path):
    name = "Alice Ng_123_assignsubmission_file_/06.ipynb"
    put(tmp_path / "monday" / name, OTHER, 1_000_000)
    put(tmp_path / "friday" / name, BOOK, 2_000_000)
    for download in ("monday", "friday", "monday"):  # in whatever order
        collect(tmp_path / download, tmp_path / "out")
    assert accepted(tmp_path / "out") == {"Alice Ng #123": HONEST}
    assert len(list((tmp_path / "out").rglob("*.ipynb"))) == 2


def test_the_times_of_an_archive_are_kept(tmp_path):
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for day, book in ((9, BOOK), (3, OTHER)):
            archive.writestr(zipfile.ZipInfo(f"alice/{day}.ipynb", (2026, 11, day, 12, 0, 0)), book)
        archive.writestr(zipfile.ZipInfo("bob/06.ipynb", (1980, 0, 0, 0, 0, 0)), BOOK)  # no date at all
    _, left_out = collect(tmp_path / "all.zip", tmp_path / "out")
    assert not left_out and accepted(tmp_path / "out") == {"alice": HONEST, "bob": HONEST}


def test_leftovers_of_jupyter_and_macos_are_nobody_s(tmp_path):
    rubbish = [
        "alice/.ipynb_checkpoints/06-checkpoint.ipynb",
        "__MACOSX/alice/._06.ipynb",
        "alice/__MACOSX/06.ipynb",
        "alice/._06.ipynb",
    ]
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("alice/06.ipynb", BOOK)
        for name in rubbish:
            archive.writestr(name, OTHER)
            put(tmp_path / "in" / name, OTHER, 3_000_000_000)
    put(tmp_path / "in/alice/06.ipynb", BOOK)
    for source in (tmp_path / "all.zip", tmp_path / "in"):
        written, left_out = collect(source, tmp_path / f"out of {source.name}")
        assert len(written) == 1 and not left_out
        assert accepted(tmp_path / f"out of {source.name}") == {"alice": HONEST}
    assert accepted(tmp_path / "in") == {"alice": HONEST}


# ---- files that are none --------------------------------------------------------------------------------------------


def damaged(data: bytes) -> bytes:
    """The content of the second of three entries, changed: its checksum is wrong then."""
    where = data.index(b"SECOND") + 6
    return data[:where] + bytes([data[where] ^ 0xFF]) + data[where + 1 :]


def encrypted(data: bytes) -> bytes:
    """The flag of the second entry that says: encrypted."""
    places = [i for mark, at in ((b"PK\3\4", 6), (b"PK\1\2", 8)) for i in [_nth(data, mark, 2) + at]]
    return bytes(byte | 1 if i in places else byte for i, byte in enumerate(data))


def unknown_method(data: bytes) -> bytes:
    places = [i for mark, at in ((b"PK\3\4", 8), (b"PK\1\2", 10)) for i in [_nth(data, mark, 2) + at]]
    return bytes(99 if i in places else byte for i, byte in enumerate(data))


def lying_size(data: bytes) -> bytes:
    """The second entry says that it has many bytes more than there are."""
    at = _nth(data, b"PK\1\2", 2) + 20
    return data[:at] + b"\xff\xff\x0f\x00" * 2 + data[at + 8 :]


def _nth(data: bytes, mark: bytes, n: int) -> int:
    where = -1
    for _ in range(n):
        where = data.index(mark, where + 1)
    return where


@pytest.mark.parametrize("harm", [damaged, encrypted, unknown_method, lying_size])
def test_one_bad_entry_of_an_archive_is_left_out_alone(tmp_path, harm):
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("alice/06.ipynb", BOOK)
        archive.writestr("bob/06.ipynb", '"SECOND ' + "x" * 500 + '"')
        archive.writestr("carol/06.ipynb", BOOK)
    (tmp_path / "all.zip").write_bytes(harm((tmp_path / "all.zip").read_bytes()))
    written, left_out = collect(tmp_path / "all.zip", tmp_path / "out")
    assert [file.parent.name for file in written] == ["alice", "carol"]
    assert len(left_out) == 1 and left_out[0].startswith("bob/06.ipynb")


@pytest.mark.parametrize("content", [b"", b"PK", b"no archive", b"PK\3\4" + b"\0" * 100])
def test_what_is_no_archive_is_refused_in_words(tmp_path, content):
    with pytest.raises(ValueError, match="cannot be unpacked"):
        collect(put(tmp_path / "all.zip", content), tmp_path / "out")


@pytest.mark.parametrize("name", ["../x/06.ipynb", "/x/06.ipynb", "..\\x\\06.ipynb", "a/../../06.ipynb"])
def test_no_name_in_an_archive_leads_out(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr(name, BOOK)
        archive.writestr("alice\\06.ipynb", BOOK)  # as Windows packs it
    written, left_out = collect(tmp_path / "all.zip", tmp_path / "deep/out")
    assert [file.parent.name for file in written] == ["alice"] and len(left_out) == 1
    assert {f.name for f in tmp_path.iterdir()} == {"all.zip", "deep"}


def test_a_name_that_no_file_system_takes_is_left_out(tmp_path):
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for name in ("é" * 200, "alice"):
            archive.writestr(f"{name}/06.ipynb", BOOK)
        archive.writestr(f"bob/{'n' * 400}.ipynb", BOOK)
        archive.writestr("carol/answers.zip", b"PK")
    written, left_out = collect(tmp_path / "all.zip", tmp_path / "out")
    assert "alice" in [file.parent.name for file in written] and any("archive inside" in line for line in left_out)
    assert len(written) + len(left_out) == 4


ODD = {
    "a folder that is called like a notebook": lambda at: put(at / "x.ipynb/06.ipynb", OTHER),
    "an empty folder that is called like a notebook": lambda at: (at / "x.ipynb").mkdir(),
    "a folder inside that is called like a notebook": lambda at: (at / "x/06.ipynb").mkdir(parents=True),
    "a link into nowhere": lambda at: (at / "x.ipynb").symlink_to(at / "nowhere"),
    "a link to itself": lambda at: (at / "x").symlink_to(at / "x"),
    "a link to a folder": lambda at: (at / "x").symlink_to(at),
    "a pipe": lambda at: os.mkfifo(at / "x.ipynb"),
    "no text": lambda at: put(at / "x.ipynb", b"\xff\xfe\0\0"),
    "no JSON": lambda at: put(at / "x.ipynb", "{"),
    "nothing": lambda at: put(at / "x.ipynb", ""),
    "a name that is no UTF-8": lambda at: put(at / os.fsdecode(b"x\xe9\xff.ipynb"), OTHER),
    "a name with an escape sequence": lambda at: put(at / "x\x1b[2J.ipynb", OTHER),
    "a name with a line break": lambda at: put(at / "x\n=1.ipynb", OTHER),
}


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_file_does_not_keep_others_from_being_read_and_reported(tmp_path, odd):
    at = tmp_path / "in"
    put(at / "alice/06.ipynb")
    ODD[odd](at)
    submissions = read_folder(at)
    assert accepted(at)["alice"] == HONEST
    results = [Result(s.student, "06.accept", WRONG, 0, 1, "; ".join(s.remarks), note="") for s in submissions]
    write_csv(tmp_path / "grades.csv", results)
    write_details(tmp_path / "details.csv", results)
    classreport.write(tmp_path / "report", results)
    said = summary(results) + (tmp_path / "grades.csv").read_text(encoding="utf-8")
    assert "\x1b" not in said and (tmp_path / "report/index.html").read_bytes().count(b"<tr>") == len(submissions) + 1
    collect(at, tmp_path / "out")
    assert accepted(tmp_path / "out")["alice"] == HONEST


def test_a_folder_that_cannot_be_opened_is_a_remark(tmp_path, monkeypatch):
    put(tmp_path / "alice/06.ipynb")
    put(tmp_path / "bob/06.ipynb")
    iterdir = Path.iterdir

    def refuse(folder):
        if folder.name == "bob":
            raise PermissionError(13, "Permission denied")
        return iterdir(folder)

    monkeypatch.setattr(Path, "iterdir", refuse)
    alice, bob = read_folder(tmp_path)
    assert alice.answers["06.accept"] == HONEST and "cannot be opened" in bob.remarks[0]


def test_a_mark_of_the_byte_order_costs_nothing(tmp_path):
    put(tmp_path / "alice.ipynb", b"\xef\xbb\xbf" + BOOK.encode())
    assert accepted(tmp_path) == {"alice": HONEST}


def test_two_spellings_of_a_name_are_one_student(tmp_path):
    for form, time, book in (("NFC", 1_000_000, OTHER), ("NFD", 2_000_000, BOOK)):
        put(tmp_path / unicodedata.normalize(form, "Zoé") / f"{form}.ipynb", book, time)
    assert accepted(tmp_path) == {unicodedata.normalize("NFC", "Zoé"): HONEST}


def test_a_shown_name_is_printable_and_still_its_own():
    raw = ["a", "a\x1b[31m", "a\u202eb", "a\n", os.fsdecode(b"a\xe9"), os.fsdecode(b"a\xe8"), "a" * 500, "a" * 501]
    assert all(shown(name).isprintable() and shown(name).encode() for name in raw)
    assert len({shown(name) for name in raw}) == len(raw)


# ---- tables ---------------------------------------------------------------------------------------------------------

FORMULAS = ["=1+1", "+1", "-1", "@SUM(1)", "a;=HYPERLINK(1)", "a\t=1", "a,=1", "a|=1", ";;-1", '"=1', "a\n=1", "a\r=1"]


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("name", FORMULAS)
def test_no_name_becomes_a_formula_wherever_a_spreadsheet_splits(tmp_path, name, separator):
    results = [Result(name, "06.accept", RIGHT, 1, 1, "", note=name)]
    for write in (write_csv, write_details):
        write(tmp_path / "x.csv", results)
        with (tmp_path / "x.csv").open(newline="", encoding="utf-8") as stream:
            cells = [cell for row in csv.reader(stream, delimiter=separator) for cell in row]
        assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@"))]


def test_an_answer_that_was_not_graded_has_no_mark(tmp_path):
    results = [Result("ann", "06.accept", RIGHT, 1, 1, ""), Result("ann", "06.residual", UNGRADED, 0, 2, "why")]
    write_csv(tmp_path / "x.csv", results)
    assert (tmp_path / "x.csv").read_text().splitlines()[1] == "ann,1,,1,3"
    assert "NOT GRADED" in summary(results) and "NOT GRADED" not in summary(results[:1])


GOOD = Result("ann", "06.accept", RIGHT, 1, 1, "06.accept: right")
BAD_FIELDS = [
    {"points": 9},
    {"points": "1"},
    {"points": True},
    {"points": -1},
    {"points": float("nan")},
    {"possible": None},
    {"outcome": "full marks"},
    {"outcome": UNGRADED},
    {"student": 7},
    {"text": None},
    {"mutant": 3},
    {"seconds": "x"},
    {"level": []},
    {"more": 1},
    {"note": None},
    {"id": ["06.accept"]},
]


@pytest.mark.parametrize("change", BAD_FIELDS, ids=str)
def test_a_line_of_the_journal_that_is_not_sound_does_not_count(tmp_path, change):
    task = Task("ann", "06.accept", (HONEST,))
    key = Journal(tmp_path / "j", Options()).key(task)
    (tmp_path / "j").write_text(json.dumps({"key": key, **asdict(GOOD)}) + "\n")
    assert Journal(tmp_path / "j", Options()).find(task) == GOOD
    (tmp_path / "j").write_text(json.dumps({"key": key, **asdict(GOOD), **change}) + "\n")
    assert Journal(tmp_path / "j", Options()).find(task) is None


def test_a_line_of_somebody_else_s_does_not_count(tmp_path):
    task = Task("bob", "06.accept", (HONEST,))
    key = Journal(tmp_path / "j", Options()).key(task)
    (tmp_path / "j").write_text(json.dumps({"key": key, **asdict(GOOD)}) + "\n")
    assert Journal(tmp_path / "j", Options()).find(task) is None


# ---- the secret -----------------------------------------------------------------------------------------------------


def test_the_secret_is_long_random_kept_and_nobody_else_s_to_read(tmp_path):
    one, other = read_secret(tmp_path / "a/x.secret"), read_secret(tmp_path / "y.secret")
    assert len(one) == 64 and one != other and read_secret(tmp_path / "a/x.secret") == one
    assert (tmp_path / "a/x.secret").stat().st_mode & 0o077 == 0
    with pytest.raises(ValueError, match="delete the file"):
        read_secret(put(tmp_path / "short", "12345"))


def test_what_follows_from_the_secret_depends_on_every_label():
    labels = [("a",), ("b",), ("a", "b"), ("ab",), ("a", ""), ()]
    assert len({seed(b"s" * 32, *label) for label in labels} | {seed(b"t" * 32, "a")}) == len(labels) + 1
    assert generator(b"s" * 32, "a").random() == generator(b"s" * 32, "a").random()
    task = Task("ann", "07.speedup", ("",), seed=1, secret=b"s" * 32)
    assert task.exercise.cases == task.exercise.cases != replace(task, secret=b"t" * 32).exercise.cases
    assert "s" * 32 not in repr(task) + repr(Options(secret=b"s" * 32))


# ---- workers that end -----------------------------------------------------------------------------------------------


def grade_or_end(nursery, task: Task) -> Result:
    """A grader with a weakness: an answer that says so ends its process, always or the first time."""
    [source] = task.answers or ("",)
    if "END ALWAYS" in source:
        os._exit(1)
    if "END ONCE" in source:
        mark = Path(source.split("'")[1])
        if not mark.exists():
            mark.touch()
            os._exit(1)
    if "RAISE" in source:
        raise ValueError("a bug of the grader's")
    return grade_one(nursery, task)


@pytest.mark.slow
def test_a_worker_that_ends_costs_nobody_a_point(tmp_path):
    """Eight answers and one worker: two that always bring it down, one that does once; the others get their marks."""
    sources = [HONEST, "# END ALWAYS", HONEST, f"# END ONCE '{tmp_path / 'mark'}'\n{HONEST}", HONEST, "# RAISE", HONEST]
    tasks = [Task(f"s{i}", "06.accept", (source,)) for i, source in enumerate(sources)]
    found = {task.student: result for task, result in crew.judged(tasks, Options(), grade_or_end)}
    assert {name for name, result in found.items() if result.outcome == UNGRADED} == {"s1", "s5"}
    assert [found[f"s{i}"].points for i in (0, 2, 3, 4, 6)] == [1] * 5
    assert "process ended" in found["s1"].text and "a bug of the grader's" in found["s5"].text


@pytest.mark.slow
def test_what_was_not_graded_stands_in_no_journal_and_the_exit_says_so(tmp_path, monkeypatch, capsys):
    for name in ("ann", "bob"):
        put(tmp_path / f"in/{name}.ipynb")

    def broken(tasks, options, grade_one):
        for task in tasks:
            wrong = Result(task.student, task.id, WRONG, 0, 1, "")
            yield task, crew.not_graded(task, "it was killed") if task.student == "bob" else wrong

    monkeypatch.setattr("minispec_course.check.grade.judged", broken)
    line = ["grade", str(tmp_path / "in"), "--out", str(tmp_path / "g.csv"), "--sets", "06"]
    assert main(line) == 1 and "NOT GRADED" in capsys.readouterr().out
    journal = (tmp_path / "g.journal.jsonl").read_text()
    assert '"ann"' in journal and '"bob"' not in journal


@pytest.mark.slow
def test_a_class_survives_what_once_ended_it(tmp_path):
    """An empty array of shape (2**40, 0), twice, among honest students; and one student again, alone."""
    empty = "def accept(p, q, token):\n    return torch.zeros(2**40, 0)\n"
    for name, source in (("ann", HONEST), ("bob", empty), ("cid", empty), ("dan", HONEST)):
        put(tmp_path / f"in/{name}.ipynb", json.dumps(notebook("06", {"06.accept": source})))
    (tmp_path / "in/x.ipynb").mkdir()
    options = Options(workers=1, limits=Limits(seconds=4.0))
    results = grade(tmp_path / "in", tmp_path / "g.csv", ["06"], options)
    points = {r.student: r.points for r in results if r.id == "06.accept"}
    assert points == {"ann": 1, "bob": 0, "cid": 0, "dan": 1, "x": 0}
    assert not [r for r in results if r.outcome == UNGRADED]
    lines = len((tmp_path / "g.journal.jsonl").read_text().splitlines())
    grade(tmp_path / "in", tmp_path / "g.csv", ["06"], replace(options, again=("ann", "06.accept")))
    assert len((tmp_path / "g.journal.jsonl").read_text().splitlines()) == lines + 1


def test_who_is_judged_again_is_who_was_named():
    tasks = [Task(s, id, ()) for s in ("ann", "bob") for id in ("06.accept", "06.residual")]
    assert chosen(tasks, ()) == set() and chosen(tasks, ("ann",)) == {*tasks[:2]}
    assert chosen(tasks, ("06.accept",)) == {tasks[0], tasks[2]} and chosen(tasks, ("bob", "06.accept")) == {tasks[2]}
    with pytest.raises(ValueError, match="neither a student"):
        chosen(tasks, ("eve",))


def test_arrays_are_looked_at_by_shape_before_by_value():
    import torch

    assert "shape" in show(torch.zeros(2**30, 0)) and "shape" in show(torch.zeros(7, 0, 7, 7))
    assert show(torch.zeros(0)) == "[]" and show(torch.zeros(2, 0)) == "[[], []]"
