"""What a class has handed in: whose it is, sorted by student, and read without being believed.

    minispec collect downloads.zip --out submissions/      whatever a learning platform packs, one folder per student

A notebook is measured before it is read, and all that is taken from it are the texts of code cells whose nbgrader
metadata name an exercise. Whatever is wrong with a file becomes a plain sentence, so that no student's file is in the
way of another's. Of several files with the same exercise the newest counts, so times are kept.
"""

import hashlib
import json
import lzma
import os
import re
import stat
import time
import unicodedata
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from minispec.load.write import write_whole

from ..build.cells import cell_id
from ..exercises.exercise import everything

# Moodle: Alice Ng_12345_assignsubmission_file_/06.ipynb, or the same without a folder
MOODLE = re.compile(r"(?<!^)_(\d+)_assignsubmission_[a-z]+(?=_)")
# Canvas: ngalice_12345_67890_06.ipynb, or ngalice_LATE_12345_67890_06.ipynb
CANVAS = re.compile(r"^([^_]+)_(?:LATE_)?(\d+)_\d+_.")
NUMBERED = re.compile(r"^(?P<name>.*\S) #(?P<number>\d+)$", re.DOTALL)
LONGEST = 120  # characters of a name
NO_NAME = "/\\:\0"

MOST_BYTES = 16 * 2**20  # of a notebook: with pictures in its outputs one has a few hundred thousand
MOST_PARTS = 2_000_000  # brackets and commas in it: so many objects at most
MOST_SOURCE = 50_000  # characters of one answer
MOST_ZIPPED = 5000  # notebooks in an archive
# An archive, or a part of one, that is damaged, encrypted, or packed in a way that Python does not know.
DAMAGED = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError)
UNREADABLE = (*DAMAGED, RuntimeError, NotImplementedError, OSError, ValueError)


# ---- who ------------------------------------------------------------------------------------------------------------
# A student is "Alice Ng #12345" where the platform gave a number, else "Alice Ng". Two students of one name are two
# students, because their numbers differ. One name in two Unicode spellings (é as one character, or as e and an
# accent, which is how macOS packs archives) is one student.


def shown(raw: str, most: int = LONGEST) -> str:
    """A name from a file system or an archive as printable text. Different names stay different."""
    text = raw.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")  # bytes that are no UTF-8: \xe9
    text = unicodedata.normalize("NFC", text)
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text).strip()
    if len(text) <= most:
        return text
    return f"{text[: most - 9]}~{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def person(student: str) -> tuple[str, str]:
    """The name of a student, and the school's number, "" where there is none: Alice Ng, 12345."""
    found = NUMBERED.match(student)
    return (found["name"], found["number"]) if found else (student, "")


def by_moodle(parts: Sequence[str]) -> set[str]:
    """Whose file it may be: a student's own name for it, or display name, may hold a second mark."""
    return {f"{shown(parts[0][: mark.start()])} #{mark[1]}" for mark in MOODLE.finditer(parts[0])}


def by_canvas(parts: Sequence[str]) -> set[str]:
    return {f"{shown(mark[1])} #{mark[2]}" for mark in CANVAS.finditer(parts[0]) if len(parts) == 1}


def owners(names: Iterable[str], known: Iterable[str] = ()) -> dict[str, set[str]]:
    """Whose each file may be, by the platform's mark, else by the outermost folder; any other name says nothing.

    A platform packs an archive and marks all of it, while students choose a part of each name: so the pattern counts
    that fits every mark. A number belongs to one name, also among the students `known` from before."""
    files = {name: PurePosixPath(name).parts for name in names}
    marked = [parts for parts in files.values() if by_moodle(parts) or by_canvas(parts)]
    fitting = [way for way in (by_moodle, by_canvas) if all(map(way, marked))] or [by_moodle, by_canvas]
    found = {}
    for name, parts in files.items():
        whose = set().union(*(way(parts) for way in fitting)) or {shown(folder) for folder in parts[:-1][:1]}
        found[name] = {s for s in whose if s and not s.isdigit() and s[0] != "." and not set(s) & set(NO_NAME)}
    numbered: dict = {}  # number, or name where there is none → everybody who has it
    for student in {*known}.union(*found.values()):
        numbered.setdefault(person(student)[1] or (student,), set()).add(student)
    return {name: set().union(*(numbered[person(s)[1] or (s,)] for s in whose)) for name, whose in found.items()}


def is_rubbish(name: str) -> bool:
    """What tools leave beside a student's files: copies of Jupyter's own, and what macOS packs beside a file."""
    return name.startswith(".") or name == "__MACOSX"


# ---- files ----------------------------------------------------------------------------------------------------------
class HandedIn(NamedTuple):
    """A notebook, or why it is not taken."""

    name: str  # the path inside of the folder or archive, with slashes
    data: bytes = b""
    time: float = 0.0  # when it was last changed, in seconds; 0: nobody knows
    problem: str | None = None


def in_folder(source: Path) -> Iterator[HandedIn]:
    """Every notebook below a folder. Links to folders are not followed."""
    unread: list[OSError] = []
    for folder, inner, names in os.walk(source, onerror=unread.append):
        inner[:] = sorted(name for name in inner if not is_rubbish(name))
        for name in sorted(names):
            if name.endswith((".ipynb", ".zip")) and not is_rubbish(name):
                file = Path(folder, name)
                yield in_file(file, file.relative_to(source).as_posix())
    for error in unread:
        path = Path(error.filename).relative_to(source).as_posix()
        yield HandedIn(path, problem=f"cannot be opened ({error.strerror})")


def in_file(file: Path, path: str) -> HandedIn:
    """A link is not followed, because it could lead anywhere, and a pipe is not waited for."""
    extra = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        with open(file, "rb", opener=lambda name, flags: os.open(name, flags | extra)) as stream:
            facts = os.fstat(stream.fileno())
            problem = unfit(path, facts.st_size, stat.S_ISREG(facts.st_mode))
            return HandedIn(path, b"" if problem else stream.read(MOST_BYTES), facts.st_mtime, problem)
    except OSError as error:
        return HandedIn(path, problem=f"is a link, or cannot be read ({error.strerror}): hand in the file itself")


def in_archive(source: Path) -> Iterator[HandedIn]:
    """Every notebook in a zip archive. Names that lead out of it are not taken."""
    try:
        archive = zipfile.ZipFile(source)
    except UNREADABLE as error:
        said = f"source={str(source)!r} cannot be unpacked ({error}): give a folder, or a zip archive"
        raise ValueError(said) from None
    with archive:
        entries = [e for e in archive.infolist() if not e.is_dir() and e.filename.endswith((".ipynb", ".zip"))]
        if len(entries) > MOST_ZIPPED:
            raise ValueError(f"source={str(source)!r} holds {len(entries)} notebooks: unpack it yourself")
        for entry in sorted(entries, key=lambda e: e.filename):
            name = entry.filename.replace("\\", "/")  # as some Windows programs write them
            if any(is_rubbish(part) for part in PurePosixPath(name).parts if part != ".."):
                continue
            problem, data = unfit(name, entry.file_size), b""
            if not problem:
                try:
                    with archive.open(entry) as stream:  # what the archive says about its size may be a lie
                        data = stream.read(MOST_BYTES + 1)
                    problem = unfit(name, len(data))
                except UNREADABLE as error:
                    problem = f"cannot be unpacked ({shown(str(error))})"
            yield HandedIn(name, data, moment(entry), problem)


def unfit(name: str, size: int, is_file: bool = True) -> str | None:
    """Why a file is not taken."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        return "its name leads out of the folder"
    if path.suffix == ".zip":
        return "is an archive inside; unpack it first, into a folder with the student's name"
    if not is_file or size > MOST_BYTES:
        return f"is not a file, or larger than {MOST_BYTES // 2**20} MiB: clear its outputs"
    return None


def moment(entry: zipfile.ZipInfo) -> float:
    """When a packed file was last changed, by the clock of whoever packed it."""
    try:
        return time.mktime((*entry.date_time, 0, 0, -1))
    except (ValueError, OverflowError):
        return 0.0


# ---- collect --------------------------------------------------------------------------------------------------------
def collect(source: Path, to: Path) -> tuple[list[Path], list[str]]:
    """Sort what was handed in by student: to/STUDENT/NAME.ipynb. Returns what was written, and what was left out.

    source is a folder or a zip archive: NAME/….ipynb, or Moodle's or Canvas's own names. Several files of one name are
    all kept, numbered, with their times: the grader takes the newest.
    """
    if not source.exists():
        raise ValueError(f"source={str(source)!r}: there is no such folder or archive")
    if to.exists() and not to.is_dir():
        raise ValueError(f"{to}: a file is there where a folder is needed")
    read, written, left_out = in_folder if source.is_dir() else in_archive, [], []
    known = [shown(folder.name) for folder in to.iterdir()] if to.exists() else []
    students = owners((found.name for found in read(source)), known)
    for found in read(source):
        problem, whose = found.problem, sorted(students.get(found.name, ()))
        if not problem and len(whose) != 1:
            could = f" (it could be {' or '.join(whose)})" if whose else ""
            problem = f"does not say whose it is{could}; put it into a folder with their name"
        if not problem:
            try:
                name = PurePosixPath(found.name).name.removesuffix(".ipynb")
                written.append(keep(found, to / whose[0], shown(name)))
            except OSError as error:  # a name that is too long, or that this file system does not take
                problem = f"cannot be written ({error.strerror})"
        if problem:
            left_out.append(f"{shown(found.name)}: {problem}")
    return written, left_out


def keep(found: HandedIn, folder: Path, name: str) -> Path:
    """Write a notebook beside the student's others, under the first name that is free or already holds the same."""
    place, number = folder / f"{name}.ipynb", 2
    while place.exists() and place.read_bytes() != found.data:
        place, number = folder / f"{name}-{number}.ipynb", number + 1
    time = max(found.time, place.stat().st_mtime if place.exists() else 0)
    write_whole(place, found.data)
    os.utime(place, (time, time))
    return place


# ---- read -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Submission:
    """What one student handed in."""

    student: str
    answers: dict[str, str] = field(default_factory=dict)  # exercise → the source of its cell
    problems: dict[str, str] = field(default_factory=dict)  # exercise → why there is no answer to it
    remarks: list[str] = field(default_factory=list)  # about whole files


def read_folder(folder: Path) -> list[Submission]:
    """All submissions, by student: NAME.ipynb, or a folder NAME with notebooks anywhere inside."""
    if not folder.is_dir():
        raise ValueError(f"folder={str(folder)!r} is not a folder: give the one that holds the submissions")
    own = [file for file in folder.iterdir() if file.is_dir() or file.suffix == ".ipynb"]
    students = {whose(file.name): Submission(whose(file.name)) for file in own if not is_rubbish(file.name)}
    if not students:
        raise ValueError(f"folder={str(folder)!r} holds neither notebooks nor folders of them")
    claims: dict[tuple[str, str], tuple[float, set[str]]] = {}  # (student, exercise) → when, and what it says since
    for found in in_folder(folder):
        if (student := whose(PurePosixPath(found.name).parts[0])) in students:  # else a file that is no notebook
            try:
                for id, source in answer_cells(found):
                    when, said = claims.get((student, id), (found.time, set()))
                    said = said if found.time <= when else set()
                    if found.time >= when and len(said) < 2:  # two that differ are enough to know
                        claims[student, id] = found.time, said | {source[: MOST_SOURCE + 1]}
            except ValueError as error:
                students[student].remarks.append(f"{shown(PurePosixPath(found.name).name)}: {error}")
    for (student, id), (_, sources) in claims.items():
        if len(sources) > 1:
            students[student].problems[id] = "cells that differ claim to be the answer: keep one, and hand in again"
        elif len(source := sources.pop()) > MOST_SOURCE:
            students[student].problems[id] = f"the answer is longer than {MOST_SOURCE} characters"
        else:
            students[student].answers[id] = source
    return [students[student] for student in sorted(students)]


def whose(entry: str) -> str:
    return shown(entry.removesuffix(".ipynb"))


def answer_cells(found: HandedIn) -> list[tuple[str, str]]:
    """(exercise, source) of every answer cell; ValueError for what is no notebook."""
    if found.problem:
        raise ValueError(found.problem)
    known = {cell_id(id, "answer"): id for id in everything()}
    notebook = parse(found.data)
    version, cells = inside(notebook, "nbformat"), inside(notebook, "cells")
    if version != 4:
        wrong = f"is a notebook of format {version}, but 4 is expected: open and save it in JupyterLab"
        raise ValueError(wrong if type(version) is int else "is no notebook")
    answers = []
    for cell in cells if isinstance(cells, list) else []:
        name = inside(inside(inside(cell, "metadata"), "nbgrader"), "grade_id")
        if not isinstance(name, str) or name not in known or inside(cell, "cell_type") != "code":
            continue
        source = cell.get("source")
        if isinstance(source, list) and all(isinstance(line, str) for line in source):
            source = "".join(source)
        if isinstance(source, str):
            answers.append((known[name], source))
    return answers


def inside(value, key: str):
    return value.get(key) if isinstance(value, dict) else None


def parse(data: bytes):
    if sum(map(data.count, (b"{", b"[", b","))) > MOST_PARTS:
        raise ValueError("holds too many objects: clear its outputs")
    try:
        return json.loads(data.decode("utf-8-sig"))  # a mark of the byte order, as Windows likes it, is no fault
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8 text") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except ValueError:
        raise ValueError("is not JSON: was it cut off?") from None
