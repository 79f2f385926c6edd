"""Read what a student handed in: the sources of the answer cells, and nothing else.

A notebook is a file that somebody else wrote. It is measured before it is read, and read without being believed: the
only things taken from it are the texts of code cells whose nbgrader metadata name an exercise. Outputs, tags, other
cells and all other metadata are never looked at. Whatever is wrong with it becomes a plain sentence, never an error.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .cells import cell_id
from .exercise import everything

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


def read_folder(folder: Path) -> list[Submission]:
    """All submissions, by student: NAME.ipynb, or a folder NAME with notebooks anywhere inside."""
    if not folder.is_dir():
        raise ValueError(f"folder={str(folder)!r} is no folder: give the one that holds the submissions")
    files: dict[str, list[Path]] = {}
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.suffix == ".ipynb":
            files.setdefault(entry.stem, []).append(entry)
        elif entry.is_dir():
            files.setdefault(entry.name, []).extend(notebooks_in(entry))
    if not files:
        raise ValueError(f"folder={str(folder)!r} holds neither notebooks nor folders of them")
    return [read(student, files[student]) for student in sorted(files)]


def notebooks_in(folder: Path, depth: int = DEEPEST) -> list[Path]:
    """The notebooks of a folder, in order. Links to folders are not followed, copies of Jupyter's own not taken."""
    if folder.is_symlink() or depth == 0:
        return []
    found: list[Path] = []
    for entry in sorted(folder.iterdir()):
        if entry.suffix == ".ipynb":
            found.append(entry)
        elif entry.is_dir() and not entry.name.startswith("."):
            found += notebooks_in(entry, depth - 1)
        if len(found) > MOST_FILES:
            break
    return found


def read(student: str, files: Sequence[Path]) -> Submission:
    """The answers of one student, out of all notebooks."""
    found: dict[str, list[str]] = {}
    remarks = [f"there are more than {MOST_FILES} notebooks"] * (len(files) > MOST_FILES)
    for file in files[:MOST_FILES]:
        try:
            for id, source in answer_cells(file):
                found.setdefault(id, []).append(source)
        except ValueError as error:
            remarks.append(f"{file.name}: {error}")
    answers, problems = {}, {}
    for id, sources in found.items():
        if len(set(sources)) > 1:
            problems[id] = f"{len(sources)} cells claim to be the answer, and differ: keep one, and hand in again"
        elif len(sources[0]) > MOST_SOURCE:
            problems[id] = f"the answer is longer than {MOST_SOURCE} characters"
        else:
            answers[id] = sources[0]
    return Submission(student, answers, problems, tuple(remarks))


def answer_cells(file: Path) -> list[tuple[str, str]]:
    """(exercise, source) of every answer cell; ValueError, in plain words, for what is no notebook of ours."""
    known = {cell_id(id, "answer"): id for id in everything()}
    notebook = parse(content(file))
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
    return found


def inside(value, key: str):
    return value.get(key) if isinstance(value, dict) else None


def content(file: Path) -> str:
    """The text of a plain file that is not too long. A link is not followed: it could lead anywhere."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        raise ValueError("is a link, or cannot be opened: hand in the file itself") from None
    with open(handle, "rb") as stream:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            raise ValueError("is no file")
        if facts.st_size > MOST_BYTES:
            raise ValueError(
                f"has {facts.st_size / 2**20:.0f} MiB, and {MOST_BYTES // 2**20} are allowed: clear its outputs"
            )
        data = stream.read(MOST_BYTES + 1)
    if sum(map(data.count, (b"{", b"[", b","))) > MOST_PARTS:
        raise ValueError("holds too many objects: clear its outputs")
    try:
        return data.decode("utf-8")
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
