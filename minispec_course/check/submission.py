"""What a class has handed in: whose it is, sorted by student, and read without being believed.

    minispec collect downloads.zip --out submissions/      whatever a learning platform packs, one folder per student

A notebook is a file that somebody else wrote. It is measured before it is read, and the only things taken from it are
the texts of code cells whose nbgrader metadata name an exercise. Outputs, tags, other cells and all other metadata are
never looked at. Whatever is wrong with a file becomes a plain sentence, never an error, so that no student's file is in
the way of another's. Of several files with the same exercise the newest counts, so times are kept.
"""

from __future__ import annotations

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from minispec.load.write import write_whole

from ..build import builder
from ..build.cells import cell_id
from ..exercises.exercise import everything

# Moodle: Alice Ng_12345_assignsubmission_file_/06.ipynb, or the same without a folder
MOODLE = re.compile(r"^(?P<name>.+?)_(?P<number>\d+)_assignsubmission_[a-z]+_(?P<file>.*)$", re.DOTALL)
# Canvas: ngalice_12345_67890_06.ipynb, or ngalice_LATE_12345_67890_06.ipynb; another attempt ends in -1, -2, …
CANVAS = re.compile(r"^(?P<name>[^_]+)_(?:LATE_)?(?P<number>\d+)_\d+_(?P<file>.+)$", re.DOTALL)
NUMBERED = re.compile(r"^(?P<name>.*\S) #(?P<number>\d+)$", re.DOTALL)
LONGEST = 120  # characters of a name
NO_NAME = "/\\:\0"

MOST_BYTES = 16 * 2**20  # of a notebook: with pictures in its outputs one has a few hundred thousand
MOST_PARTS = 2_000_000  # brackets and commas in it: so many objects at most
MOST_SOURCE = 200_000  # characters of one answer
MOST_FILES = 100  # of one student
MOST_ZIPPED = 5000  # notebooks in an archive
DEEPEST = 6  # folders inside of a student's folder
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


def owner(parts: Sequence[str]) -> str | None:
    """Whose file it is. The platform's own mark comes first; then the outermost folder; then the name NAME_SET.ipynb.

    A file alone says whose it is only if the rest of its name is that of a set: a notebook that somebody calls
    alice_x.ipynb is not Alice's.
    """
    if found := MOODLE.match(parts[0]) or (CANVAS.match(parts[0]) if len(parts) == 1 else None):
        name = f"{shown(found['name'])} #{found['number']}"
    elif len(parts) > 1:
        name = shown(parts[0])
    else:
        jobs = [job.name for job in builder.jobs([]) if job.kind == "exercise"]
        sets = "|".join(map(re.escape, [*jobs, *(job.partition("_")[0] for job in jobs)]))
        found = re.match(rf"^(?P<name>.+?)_(?:{sets})(?:-\d+)?\.ipynb$", parts[0])
        name = shown(found["name"]) if found else ""
    return None if not name or name.isdigit() or name.startswith(".") or set(name) & set(NO_NAME) else name


def is_rubbish(name: str) -> bool:
    """What tools leave beside a student's files: copies of Jupyter's own, and what macOS packs beside a file."""
    return name.startswith(".") or name == "__MACOSX"


# ---- collect --------------------------------------------------------------------------------------------------------


class HandedIn(NamedTuple):
    name: str  # the path inside of the folder or archive, with slashes
    data: bytes
    time: float  # when it was last changed, in seconds; 0: nobody knows


def collect(source: Path, to: Path) -> tuple[list[Path], list[str]]:
    """Sort what was handed in by student: to/STUDENT/NAME.ipynb. Returns what was written, and what was left out.

    source is a folder or a zip archive: NAME/….ipynb, Moodle's or Canvas's own names, or NAME_SET.ipynb. Several files
    of one name are all kept, numbered, with their times: the grader takes the newest.
    """
    if not source.exists():
        raise ValueError(f"source={str(source)!r}: there is no such folder or archive")
    if to.exists() and not to.is_dir():
        raise ValueError(f"{to}: a file is there where a folder is needed")
    written, left_out = [], []
    for found in in_folder(source, left_out) if source.is_dir() else in_archive(source, left_out):
        parts = PurePosixPath(found.name).parts
        if (whose := owner(parts)) is None:
            left_out.append(f"{shown(found.name)}: does not say whose it is; put it into a folder with their name")
            continue
        try:
            written.append(keep(found, to / whose, file_name(parts[-1])))
        except OSError as error:  # a name that is too long, or that this file system does not take
            left_out.append(f"{shown(found.name)}: cannot be written ({error.strerror})")
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


def file_name(name: str) -> str:
    """A student's name for a file, without its ending, as one that every file system takes."""
    platform = MOODLE.match(name) or CANVAS.match(name)
    name = shown((platform["file"] if platform and platform["file"] else name).removesuffix(".ipynb"))
    return "".join("_" if c in NO_NAME else c for c in name).lstrip(".") or "notebook"


def in_folder(source: Path, left_out: list[str]) -> Iterator[HandedIn]:
    """Every notebook below a folder that can be read and is not too large."""
    unread: list[OSError] = []
    for folder, inner, names in os.walk(source, onerror=unread.append):
        inner.sort()
        for name in sorted(names):
            file = Path(folder, name)
            path = file.relative_to(source).as_posix()
            if file.suffix not in (".ipynb", ".zip") or any(map(is_rubbish, PurePosixPath(path).parts)):
                continue
            try:
                facts = os.lstat(file)
                if problem := unfit(path, facts.st_size, stat.S_ISREG(facts.st_mode)):
                    left_out.append(problem)
                else:
                    yield HandedIn(path, file.read_bytes(), facts.st_mtime)
            except OSError as error:
                left_out.append(f"{shown(path)}: cannot be read ({error.strerror})")
    left_out += [f"{shown(str(error.filename))}: cannot be read ({error.strerror})" for error in unread]


def in_archive(source: Path, left_out: list[str]) -> Iterator[HandedIn]:
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
                    problem = f"{shown(name)}: cannot be unpacked ({shown(str(error))})"
            if problem:
                left_out.append(problem)
            else:
                yield HandedIn(name, data, moment(entry))


def unfit(name: str, size: int, is_file: bool = True) -> str | None:
    """Why a file is not taken."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        return f"{shown(name)}: its name leads out of the folder"
    if path.suffix == ".zip":
        return f"{shown(name)}: an archive inside; unpack it first, into a folder with the student's name"
    if not is_file or size > MOST_BYTES:
        return f"{shown(name)}: a link, or larger than {MOST_BYTES // 2**20} MiB"
    return None


def moment(entry: zipfile.ZipInfo) -> float:
    """When a packed file was last changed, by the clock of whoever packed it."""
    try:
        return time.mktime((*entry.date_time, 0, 0, -1))
    except (ValueError, OverflowError):
        return 0.0


# ---- read -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Submission:
    """What one student handed in."""

    student: str
    answers: dict[str, str] = field(default_factory=dict)  # exercise → the source of its cell
    problems: dict[str, str] = field(default_factory=dict)  # exercise → why there is no answer to it
    remarks: tuple[str, ...] = ()  # about whole files
    notes: dict[str, str] = field(default_factory=dict)  # exercise → what the report says about its file


def read_folder(folder: Path) -> list[Submission]:
    """All submissions, by student: NAME.ipynb, or a folder NAME with notebooks anywhere inside."""
    if not folder.is_dir():
        raise ValueError(f"folder={str(folder)!r} is no folder: give the one that holds the submissions")
    files: dict[str, list[Path]] = {}
    unread: dict[str, list[str]] = {}
    for entry in sorted(folder.iterdir()):
        if not is_rubbish(entry.name) and (entry.is_dir() or entry.suffix == ".ipynb"):
            student = shown(entry.name.removesuffix(".ipynb"))
            found = notebooks_in(entry, unread.setdefault(student, [])) if entry.is_dir() else [entry]
            files.setdefault(student, []).extend(found)
    if not files:
        raise ValueError(f"folder={str(folder)!r} holds neither notebooks nor folders of them")
    return [read(student, files[student], unread.get(student, ())) for student in sorted(files)]


def notebooks_in(folder: Path, unread: list[str], depth: int = DEEPEST) -> list[Path]:
    """The notebooks of a folder, in order. Links to folders are not followed; what cannot be opened is noted."""
    found: list[Path] = []
    if folder.is_symlink() or depth == 0:
        return found
    try:
        entries = sorted(entry for entry in folder.iterdir() if not is_rubbish(entry.name))
    except OSError as error:
        unread.append(f"{shown(folder.name)}: cannot be opened ({error.strerror})")
        return found
    for entry in entries:
        if entry.is_dir():
            found += notebooks_in(entry, unread, depth - 1)
        elif entry.suffix == ".ipynb":
            found.append(entry)
        if len(found) > MOST_FILES:
            break
    return found


class Claim(NamedTuple):
    """An answer cell in a file."""

    age: tuple[float, int]  # when the file was last changed; of equal times, the number at the end of its name decides
    file: str
    source: str


def read(student: str, files: Sequence[Path], unread: Sequence[str] = ()) -> Submission:
    """The answers of one student, out of all notebooks."""
    claims: dict[str, list[Claim]] = {}
    remarks = [*unread, *[f"there are more than {MOST_FILES} notebooks"] * (len(files) > MOST_FILES)]
    for file in files[:MOST_FILES]:
        # what a platform, a browser or collect adds to a name for another attempt: 06-2, 06 (2)
        attempt = re.search(r"(?:-| \()(\d{1,4})\)?$", file.stem)
        try:
            time, cells = answer_cells(file)
        except ValueError as error:
            remarks.append(f"{shown(file.name)}: {error}")
            continue
        for id, source in cells:
            age = time, int(attempt[1]) if attempt else 0
            claims.setdefault(id, []).append(Claim(age, shown(file.name), source))
    found = Submission(student, remarks=tuple(remarks))
    for id, all_of_it in claims.items():
        newest = max(claim.age for claim in all_of_it)
        counts = [claim for claim in all_of_it if claim.age == newest]
        if len({claim.source for claim in counts}) > 1:
            found.problems[id] = f"{len(counts)} cells claim to be the answer, and differ: keep one, and hand in again"
        elif len(counts[0].source) > MOST_SOURCE:
            found.problems[id] = f"the answer is longer than {MOST_SOURCE} characters"
        else:
            found.answers[id] = counts[0].source
            if len({claim.source for claim in all_of_it}) > 1:
                handed_in = len({claim.file for claim in all_of_it})
                found.notes[id] = f"the newest of {handed_in} files counts: {counts[0].file}"
    return found


def answer_cells(file: Path) -> tuple[float, list[tuple[str, str]]]:
    """When the file was changed, and (exercise, source) of every answer cell; ValueError for what is no notebook."""
    known = {cell_id(id, "answer"): id for id in everything()}
    text, time = content(file)
    notebook = parse(text)
    version, cells = inside(notebook, "nbformat"), inside(notebook, "cells")
    if version != 4:
        wrong = f"is a notebook of format {version}, and 4 is wanted: open and save it in JupyterLab"
        raise ValueError(wrong if type(version) is int else "is no notebook")
    found = []
    for cell in cells if isinstance(cells, list) else []:
        name = inside(inside(inside(cell, "metadata"), "nbgrader"), "grade_id")
        if not isinstance(name, str) or name not in known or inside(cell, "cell_type") != "code":
            continue
        source = cell.get("source")
        if isinstance(source, list) and all(isinstance(line, str) for line in source):
            source = "".join(source)
        if isinstance(source, str):
            found.append((known[name], source))
    return time, found


def inside(value, key: str):
    return value.get(key) if isinstance(value, dict) else None


def content(file: Path) -> tuple[str, float]:
    """The text of a plain file that is not too long, and its time. A link is not followed: it could lead anywhere."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        raise ValueError("is a link, or cannot be opened: hand in the file itself") from None
    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            raise ValueError("is no file")
        if facts.st_size > MOST_BYTES:
            size = f"{facts.st_size / 2**20:.0f} MiB, and {MOST_BYTES // 2**20} are allowed"
            raise ValueError(f"has {size}: clear its outputs")
        with open(handle, "rb", closefd=False) as stream:
            data = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"cannot be read ({error.strerror})") from None
    finally:
        os.close(handle)
    if sum(map(data.count, (b"{", b"[", b","))) > MOST_PARTS:
        raise ValueError("holds too many objects: clear its outputs")
    try:
        return data.decode("utf-8-sig"), facts.st_mtime  # a mark of the byte order, as Windows likes it, is no fault
    except UnicodeDecodeError:
        raise ValueError("is no UTF-8 text") from None


def parse(text: str):
    def whole(digits: str) -> int:
        return int(digits) if len(digits) < 20 else 0  # nothing that is read here is a large number

    try:
        return json.loads(text, parse_int=whole)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except ValueError:
        raise ValueError("is no JSON: was it cut off?") from None
