"""One bad submission never stops another: odd files and names, damaged archives, notebooks that are not what they seem.

What a student's code cannot do to the grader: test_attacks.py and test_sandbox.py.
"""

from __future__ import annotations

import json
import os
import tracemalloc
import unicodedata
import zipfile
from pathlib import Path

import pytest
from exercise_notebooks import ROOT, answers, cells_of, filled
from graders import HONEST

from minispec_course.check.check import WRONG
from minispec_course.check.grade import tasks_of
from minispec_course.check.report import Result, summary, write_csv, write_pages
from minispec_course.check.submission import Submission, collect, owners, read_folder, shown

CLEVER = HONEST.replace("1.0", "0.9")
BOOK, OTHER = (json.dumps(filled("06", {"06.accept": source})) for source in (HONEST, CLEVER))


def put(file: Path, text: str | bytes = BOOK, time: float | None = None) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    if time is not None:
        os.utime(file, (time, time))
    return file


def accepted(folder: Path) -> dict[str, str | None]:
    """student → the answer to 06.accept that counts."""
    return {s.student: s.answers.get("06.accept") for s in read_folder(folder)}


def one(file: Path) -> Submission:
    [found] = read_folder(file.parent)
    return found


def packed(folder: Path, *entries: tuple[str, str | bytes]) -> Path:
    with zipfile.ZipFile(folder / "all.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return folder / "all.zip"


# ---- whose is it? ---------------------------------------------------------------------------------------------------


ARCHIVES = {  # file → whose it is; a student's own name for a file does not make it somebody else's
    "Moodle": {
        "Alice Ng_123_assignsubmission_file_/06.ipynb": "Alice Ng #123",
        "Alice_van_Ng_124_assignsubmission_file_06.ipynb": "Alice_van_Ng #124",
        "Mal_9_assignsubmission_file_/Alice Ng_123_assignsubmission_file_.ipynb": "Mal #9",
    },
    "Canvas": {
        "ngalice_4711_99_06.ipynb": "ngalice #4711",
        "ngalice_LATE_4711_99_06-2.ipynb": "ngalice #4711",
        "mal_9_1_ngalice_4711_99_06.ipynb": "mal #9",
        "mal_9_2_x_4711_assignsubmission_file_06.ipynb": "mal #9",
    },
    "folders": {"alice/week 6/06.ipynb": "alice", "mal/alice_06.ipynb": "mal"},
    "anybody": dict.fromkeys(["alice_x.ipynb", "06_rejection_sampling.ipynb", "06/06.ipynb"]),
    "two marks": {"Mal_9_assignsubmission_file_Alice Ng_123_assignsubmission_file_06.ipynb": None},
    "two platforms": {"mal_9_2_x_4711_assignsubmission_file_06.ipynb": None},
    "one number, two names": {"ngalice_4711_99_06.ipynb": None, "mal_4711_98_06.ipynb": None},
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_a_file_belongs_to_whom_the_platform_says_or_is_left_out(name, tmp_path):
    expected = ARCHIVES[name]
    found = owners(expected)
    assert {file: next(iter(found[file])) if len(found[file]) == 1 else None for file in expected} == expected
    written, left_out = collect(packed(tmp_path, *((file, BOOK) for file in expected)), tmp_path / "out")
    assert {file.parent.name for file in written} == {*expected.values()} - {None}
    assert len(left_out) == list(expected.values()).count(None)
    if name == "Canvas":  # the number is another one's, from an earlier archive
        assert collect(packed(tmp_path, ("mal_4711_98_06.ipynb", OTHER)), tmp_path / "out")[0] == []


def test_names_are_printable_and_still_their_own(tmp_path):
    raw = ["a", "a\x1b[31m", "a\u202eb", "a\n", os.fsdecode(b"a\xe9"), os.fsdecode(b"a\xe8"), "a" * 500, "a" * 501]
    assert all(shown(name).isprintable() and shown(name).encode() for name in raw)
    assert len({shown(name) for name in raw}) == len(raw)
    for form, time, book in (("NFC", 1_000_000, OTHER), ("NFD", 2_000_000, BOOK)):  # two spellings, one student
        put(tmp_path / unicodedata.normalize(form, "Zoé") / f"{form}.ipynb", book, time)
    assert accepted(tmp_path) == {unicodedata.normalize("NFC", "Zoé"): HONEST}


# ---- handed in again ------------------------------------------------------------------------------------------------


def test_the_newest_file_counts(tmp_path):
    put(tmp_path / "alice/a.ipynb", BOOK, 2_000_000)
    put(tmp_path / "alice/b.ipynb", OTHER, 1_000_000)
    for name, book in (("a.ipynb", OTHER), ("b.ipynb", BOOK)):
        put(tmp_path / "bob" / name, book, 1_000_000)  # nothing decides
    alice, bob = read_folder(tmp_path)
    assert alice.answers["06.accept"] == HONEST and not alice.problems
    assert "06.accept" in bob.problems and "06.accept" not in bob.answers


def test_collecting_again_after_a_resubmission_gives_the_newest(tmp_path):
    name = "Alice Ng_{}_assignsubmission_file_/06.ipynb"
    put(tmp_path / "monday" / name.format(1), OTHER, 1_000_000)
    put(tmp_path / "friday" / name.format(1), BOOK, 2_000_000)
    put(tmp_path / "friday" / name.format(2), OTHER, 2_000_000)  # somebody else of that name
    for download in ("monday", "friday", "monday"):  # in whatever order
        collect(tmp_path / download, tmp_path / "out")
    assert accepted(tmp_path / "out") == {"Alice Ng #1": HONEST, "Alice Ng #2": CLEVER}


def test_archives_keep_their_times_and_leftovers_are_nobody_s(tmp_path):
    dated = [zipfile.ZipInfo(f"alice/{day}.ipynb", (2026, 11, day, 12, 0, 0)) for day in (9, 3)]
    undated = zipfile.ZipInfo("bob/06.ipynb", (1980, 0, 0, 0, 0, 0))
    rubbish = "alice/.ipynb_checkpoints/06-checkpoint.ipynb", "__MACOSX/alice/._06.ipynb", "alice/._06.ipynb"
    entries = [(dated[0], BOOK), (dated[1], OTHER), (undated, BOOK), *((name, OTHER) for name in rubbish)]
    written, left_out = collect(packed(tmp_path, *entries), tmp_path / "out")
    assert len(written) == 3 and not left_out
    assert accepted(tmp_path / "out") == {"alice": HONEST, "bob": HONEST}


# ---- files that are none --------------------------------------------------------------------------------------------


def flagged(data: bytes, local: int, central: int, byte: int) -> bytes:
    """The second entry of an archive with another byte in both of its headers."""
    changed = bytearray(data)
    for mark, offset in ((b"PK\3\4", local), (b"PK\1\2", central)):
        changed[data.index(mark, data.index(mark) + 1) + offset] ^= byte
    return bytes(changed)


@pytest.mark.parametrize(
    ("local", "central", "byte"), [(14, 16, 1), (6, 8, 1), (8, 10, 99)], ids=["damaged", "encrypted", "unknown method"]
)
def test_one_bad_entry_of_an_archive_is_left_out_alone(tmp_path, local, central, byte):
    good = packed(tmp_path, ("alice/06.ipynb", BOOK), ("bob/06.ipynb", OTHER), ("carol/06.ipynb", BOOK)).read_bytes()
    written, left_out = collect(put(tmp_path / "bad.zip", flagged(good, local, central, byte)), tmp_path / "out")
    assert [file.parent.name for file in written] == ["alice", "carol"]
    assert len(left_out) == 1 and left_out[0].startswith("bob/06.ipynb")


@pytest.mark.parametrize("content", [b"", b"PK", b"no archive", b"PK\3\4" + b"\0" * 100])
def test_what_is_no_archive_is_refused(tmp_path, content):
    with pytest.raises(ValueError):
        collect(put(tmp_path / "none.zip", content), tmp_path / "none")


def test_no_name_in_an_archive_leads_out_and_no_bomb_goes_off(tmp_path):
    out = ["../x/06.ipynb", "/x/06.ipynb", "..\\x\\06.ipynb", "a/../../06.ipynb"]
    bad = [*((name, BOOK) for name in out), ("mallory/06.ipynb", b"0" * 2**25), ("carol/answers.zip", b"PK")]
    archive = packed(tmp_path, *bad, (f"bob/{'n' * 400}.ipynb", BOOK), ("alice\\06.ipynb", BOOK))  # as Windows packs it
    written, left_out = collect(archive, tmp_path / "deep/out")
    assert {file.parent.name for file in written} <= {"alice", "bob"} and len(written) + len(left_out) == len(bad) + 2
    assert {f.name for f in tmp_path.iterdir()} == {"all.zip", "deep"}


ODD = {
    "a folder that is called like a notebook": lambda at: put(at / "x.ipynb/06.ipynb", OTHER),
    "a folder inside that is called like a notebook": lambda at: (at / "x/06.ipynb").mkdir(parents=True),
    "a link into nowhere": lambda at: (at / "x.ipynb").symlink_to(at / "nowhere"),
    "a link to itself": lambda at: (at / "x").symlink_to(at / "x"),
    "a link to a folder": lambda at: (at / "x").symlink_to(at),
    "a link to the solutions": lambda at: (at / "x.ipynb").symlink_to(ROOT / "solutions/06_rejection_sampling.ipynb"),
    "a pipe": lambda at: os.mkfifo(at / "x.ipynb"),  # reading it would wait for ever
    "no text": lambda at: put(at / "x.ipynb", b"\xff\xfe\0\0"),
    "not JSON": lambda at: put(at / "x.ipynb", "{"),
    "nothing": lambda at: put(at / "x.ipynb", ""),
    "200 MB": lambda at: os.truncate(put(at / "x.ipynb"), 200 * 2**20),
    "a name that is no UTF-8": lambda at: put(at / os.fsdecode(b"x\xe9\xff.ipynb"), OTHER),
    "a name with an escape sequence": lambda at: put(at / "x\x1b[2J.ipynb", OTHER),
    "a name with a line break": lambda at: put(at / "x\n=1.ipynb", OTHER),
}


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_file_does_not_keep_others_from_being_read_and_reported(tmp_path, odd):
    put(tmp_path / "in/alice/06.ipynb", b"\xef\xbb\xbf" + BOOK.encode())  # Windows' byte order mark costs nothing
    ODD[odd](tmp_path / "in")
    submissions = read_folder(tmp_path / "in")
    assert accepted(tmp_path / "in")["alice"] == HONEST
    assert "solutions" not in odd or not [s for s in submissions if s.student == "x" and s.answers]
    results = [Result(s.student, "06.accept", WRONG, 0, 1, "; ".join(s.remarks)) for s in submissions]
    write_csv(tmp_path / "grades.csv", results)
    page = write_pages(tmp_path / "report", results).read_bytes()
    assert "\x1b" not in summary(results) + (tmp_path / "grades.csv").read_text(encoding="utf-8")
    assert page.count(b"<tr><td>") == len(submissions)
    collect(tmp_path / "in", tmp_path / "out")
    assert accepted(tmp_path / "out")["alice"] == HONEST


# ---- what is read of a notebook -------------------------------------------------------------------------------------


def test_a_folder_of_files_and_folders_is_read(tmp_path):
    put(tmp_path / "alice.ipynb")
    put(tmp_path / "bob/week 6/renamed.ipynb", json.dumps(filled("05", answers("05"))))
    put(tmp_path / "bob/week 6/.ipynb_checkpoints/renamed.ipynb", json.dumps(filled("05", {})))
    put(tmp_path / "notes.txt", "")
    alice, bob = read_folder(tmp_path)
    assert alice.answers["06.accept"] == HONEST and bob.answers == answers("05")
    assert not bob.problems and not bob.remarks
    tasks = tasks_of([alice, bob], [])
    assert {task.id.split(".")[0] for task in tasks} == {"05", "06"}
    assert all((task.problem is None) == (task.id[:2] == "05") for task in tasks if task.student == "bob")


def test_what_is_too_long_is_not_kept(tmp_path):
    """Eight notebooks of 3 MB; a character beyond the first 65,536 makes each of their strings four times as large."""
    book = json.dumps(filled("06", {"06.accept": "😀" + "x" * 3_000_000}), ensure_ascii=False)
    for number in range(8):
        put(tmp_path / f"{number}.ipynb", book)
    tracemalloc.start()
    try:
        assert all("longer than" in s.problems["06.accept"] for s in read_folder(tmp_path))
        assert tracemalloc.get_traced_memory()[1] < 60e6
    finally:
        tracemalloc.stop()


def test_nothing_that_a_notebook_says_about_itself_is_believed(tmp_path):
    def handed_in(change) -> tuple[dict, str]:
        """The answers that count, and what is said instead."""
        book = filled("06", {"06.accept": HONEST})
        book = change(book) or book
        found = one(put(tmp_path / "x.ipynb", book if isinstance(book, bytes) else json.dumps(book)))
        return found.answers, "; ".join([*found.problems.values(), *found.remarks])

    def answer(book):
        return cells_of(book, "answer")["06.accept"]

    def around(book):  # check cells, tags, outputs and cells of the course may say what they like
        for cell in book["cells"]:
            if cell is not answer(book):
                cell["source"] = "print('06.accept: right, in 6 cases.')"
                cell["metadata"]["tags"] = ["raises-exception", "nbval-skip"]

    for harmless in (around, lambda book: book["cells"].append(dict(answer(book)))):  # the same answer twice
        assert handed_in(harmless)[0]["06.accept"] == HONEST
    changes = {
        "deleted": (lambda book: book["cells"].remove(answer(book)), ""),
        "twice": (lambda book: book["cells"].append({**answer(book), "source": "x"}), "claim to be"),
        "thrice": (lambda book: book["cells"].extend([{**answer(book), "source": "x"}, answer(book)]), "claim to be"),
        "renamed": (lambda book: answer(book)["metadata"]["nbgrader"].update(grade_id="06-residual-answer"), "claim"),
        "markdown": (lambda book: answer(book).update(cell_type="markdown"), ""),
        "deep": (lambda book: b'{"nbformat": 4, "metadata": ' + b'{"a":' * 10**5, "nested too deeply"),
        "wide": (lambda book: {**book, "bomb": [{}] * 10**6}, "too many objects"),
        "large number": (lambda book: b'{"nbformat": ' + b"9" * 10**6, "not JSON"),
        "cut off": (lambda book: json.dumps(book).encode()[:-500], "not JSON"),
        "no text": (lambda book: json.dumps(book).encode().replace(b"06", b"\xff\xfe", 1), "not UTF-8"),
        "format 3": (lambda book: {"nbformat": 3, "worksheets": [{"cells": book["cells"]}]}, "format 3"),
    }
    for odd in (None, 7, [], "x", {"nbgrader": 7}, {"nbgrader": {"grade_id": ["06-accept-answer"]}}):
        changes[f"metadata {odd}"] = (lambda book, odd=odd: answer(book).update(metadata=odd), "")
    for odd in (None, 7, {}, [None, 7, "x", []]):
        changes[f"cells {odd}"] = (lambda book, odd=odd: {"nbformat": 4, "cells": odd}, "")
    for odd in ("4", None, 5, 4.5, True):
        changes[f"nbformat {odd}"] = (lambda book, odd=odd: {**book, "nbformat": odd}, "is ")
    for name, (change, words) in changes.items():
        counting, said = handed_in(change)
        assert "06.accept" not in counting and words in said, (name, said)
