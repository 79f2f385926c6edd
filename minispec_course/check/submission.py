"""Read what a student handed in: the sources of the answer cells, and nothing else.

A notebook is a file that somebody else wrote. It is measured before it is read, and read without being believed: the
only things taken from it are the texts of code cells whose nbgrader metadata name an exercise. Outputs, tags, other
cells and all other metadata are never looked at. Whatever is wrong with it becomes a plain sentence, never an error, so
that no student's file stands in the way of another's. Of several files with the same exercise the newest counts.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ..build.cells import cell_id
from ..exercises.exercise import everything
from .identity import shown

MOST_BYTES = 16 * 2**20  # of a notebook: with pictures in its outputs one has a few hundred thousand
MOST_PARTS = 2_000_000  # brackets and commas in it: so many objects at most
MOST_SOURCE = 200_000  # characters of one answer
MOST_FILES = 100  # of one student
DEEPEST = 6  # folders inside of a student's folder


@dataclass(frozen=True)
class Submission:
    """What one student handed in."""

    student: str
    answers: dict[str, str] = field(default_factory=dict)  # exercise → the source of its cell
    problems: dict[str, str] = field(default_factory=dict)  # exercise → why there is no answer to it
    remarks: tuple[str, ...] = ()  # about whole files
    notes: dict[str, str] = field(default_factory=dict)  # exercise → what the report says about its file
    times: dict[str, float] = field(default_factory=dict)  # exercise → when its file was last changed


def read_folder(folder: Path) -> list[Submission]:
    """All submissions, by student: NAME.ipynb, or a folder NAME with notebooks anywhere inside."""
    if not folder.is_dir():
        raise ValueError(f"folder={str(folder)!r} is no folder: give the one that holds the submissions")
    files: dict[str, list[Path]] = {}
    unread: dict[str, list[str]] = {}
    for entry in sorted(folder.iterdir()):
        if is_rubbish(entry.name):
            continue
        if entry.is_dir():
            student = shown(entry.name.removesuffix(".ipynb"))
            files.setdefault(student, []).extend(notebooks_in(entry, unread.setdefault(student, [])))
        elif entry.suffix == ".ipynb":
            files.setdefault(shown(entry.stem), []).append(entry)
    if not files:
        raise ValueError(f"folder={str(folder)!r} holds neither notebooks nor folders of them")
    return [read(student, files[student], unread.get(student, ())) for student in sorted(files)]


def is_rubbish(name: str) -> bool:
    """Copies of Jupyter's own, and what macOS packs beside a file."""
    return name.startswith(".") or name == "__MACOSX"


def notebooks_in(folder: Path, unread: list[str], depth: int = DEEPEST) -> list[Path]:
    """The notebooks of a folder, in order. Links to folders are not followed; what cannot be opened is noted."""
    if folder.is_symlink() or depth == 0:
        return []
    found: list[Path] = []
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        unread.append(f"{shown(folder.name)}: cannot be opened ({error.strerror})")
        return []
    for entry in entries:
        if is_rubbish(entry.name):
            continue
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
        try:
            time, cells = answer_cells(file)
        except ValueError as error:
            remarks.append(f"{shown(file.name)}: {error}")
            continue
        for id, source in cells:
            claims.setdefault(id, []).append(Claim((time, attempt(file)), shown(file.name), source))
    found = Submission(student, remarks=tuple(remarks))
    for id, all_of_it in claims.items():
        newest = max(claim.age for claim in all_of_it)
        counts = [claim for claim in all_of_it if claim.age == newest]
        found.times[id] = newest[0]
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


def attempt(file: Path) -> int:
    """The number that a platform, a browser or collect adds to a name for another attempt: 06-2, 06 (2)."""
    found = re.search(r"(?:-| \()(\d{1,4})\)?$", file.stem)
    return int(found[1]) if found else 0


def answer_cells(file: Path) -> tuple[float, list[tuple[str, str]]]:
    """When the file was changed, and (exercise, source) of every answer cell; ValueError for what is no notebook."""
    known = {cell_id(id, "answer"): id for id in everything()}
    text, time = content(file)
    notebook = parse(text)
    if not isinstance(notebook, dict) or notebook.get("nbformat") != 4:
        version = notebook.get("nbformat") if isinstance(notebook, dict) else None
        raise ValueError(
            f"is a notebook of format {version}, and 4 is wanted: open and save it in JupyterLab"
            if type(version) is int
            else "is no notebook"
        )
    cells = notebook.get("cells")
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
            raise ValueError(
                f"has {facts.st_size / 2**20:.0f} MiB, and {MOST_BYTES // 2**20} are allowed: clear its outputs"
            )
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
