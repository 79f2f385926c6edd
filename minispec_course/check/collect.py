"""Take in what a class has handed in: minispec collect downloads.zip --out submissions/

Whatever a learning platform packs becomes one folder per student, ready for minispec grade. One bad file stops nothing:
it is left out, and named. Contents are neither believed nor changed; times are kept, because the newest file counts.
"""

from __future__ import annotations

import io
import lzma
import os
import re
import shutil
import stat
import time
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from minispec.load.write import write_whole

from ..build import builder
from . import submission
from .identity import CANVAS, MOODLE, shown, student

MOST_ZIPPED = 5000  # notebooks in an archive
NO_NAME = "/\\:\0"
UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    RuntimeError,
    NotImplementedError,
    OSError,
    ValueError,
)  # damaged, encrypted, or packed in a way that Python does not know


class HandedIn(NamedTuple):
    name: str  # the path inside of the folder or archive, with slashes
    data: bytes
    time: float  # when it was last changed, in seconds; 0: nobody knows


def collect(source: Path, to: Path) -> tuple[list[Path], list[str]]:
    """Sort what was handed in by student: to/STUDENT/NAME.ipynb. Returns what was written, and what was left out.

    source is a folder or a zip archive: NAME/….ipynb, Moodle's or Canvas's own names (identity.py), or NAME_SET.ipynb.
    Several files of one name are all kept, numbered, with their times: the grader takes the newest.
    """
    if not source.exists():
        raise ValueError(f"source={str(source)!r}: there is no such folder or archive")
    if to.exists() and not to.is_dir():
        raise ValueError(f"{to}: a file is there where a folder is needed")
    written, left_out = [], []
    for found in handed_in(source, left_out):
        parts = PurePosixPath(found.name).parts
        whose = owner(parts)
        if whose is None:
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


def owner(parts: Sequence[str]) -> str | None:
    """Whose file it is. The platform's own mark comes first; then the outermost folder; then the name NAME_SET.ipynb.

    A file alone says whose it is only if the rest of its name is that of a set: a notebook that somebody calls
    alice_x.ipynb is not Alice's.
    """
    if found := MOODLE.match(parts[0]) or (CANVAS.match(parts[0]) if len(parts) == 1 else None):
        name = student(found["name"], found["number"])
    elif len(parts) > 1:
        name = student(parts[0])
    else:
        found = re.match(rf"^(?P<name>.+?)_(?:{'|'.join(map(re.escape, sets()))})(?:-\d+)?\.ipynb$", parts[0])
        name = student(found["name"]) if found else ""
    return None if not name or name.isdigit() or name.startswith(".") or set(name) & set(NO_NAME) else name


def sets() -> list[str]:
    """The names that a set goes by: 06_rejection_sampling, 06."""
    names = [job.name for job in builder.jobs([]) if job.kind == "exercise"]
    return [*names, *(name.partition("_")[0] for name in names)]


def is_rubbish(name: str) -> bool:
    """What tools leave beside a student's files: copies of Jupyter's own, notes of macOS."""
    return any(submission.is_rubbish(part) for part in PurePosixPath(name).parts if part != "..")


# ---- folders and archives -------------------------------------------------------------------------------------------


def handed_in(source: Path, left_out: list[str]) -> Iterator[HandedIn]:
    """Every notebook that can be read and is not too large."""
    if source.is_dir():
        yield from in_folder(source, left_out)
        return
    try:
        archive = zipfile.ZipFile(source)
    except UNREADABLE as error:
        raise ValueError(
            f"source={str(source)!r} cannot be unpacked ({error}): give a folder, or a zip archive"
        ) from None
    with archive:
        yield from in_archive(archive, left_out)


def in_folder(source: Path, left_out: list[str]) -> Iterator[HandedIn]:
    unread: list[OSError] = []
    for folder, inner, names in os.walk(source, onerror=unread.append):
        inner.sort()
        for name in sorted(names):
            file = Path(folder, name)
            path = file.relative_to(source).as_posix()
            if is_rubbish(path) or file.suffix not in (".ipynb", ".zip"):
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


def in_archive(archive: zipfile.ZipFile, left_out: list[str]) -> Iterator[HandedIn]:
    entries = [e for e in archive.infolist() if not e.is_dir() and e.filename.endswith((".ipynb", ".zip"))]
    if len(entries) > MOST_ZIPPED:
        raise ValueError(f"source={archive.filename!r} holds {len(entries)} notebooks: unpack it yourself")
    for entry in sorted(entries, key=lambda e: e.filename):
        name = entry.filename.replace("\\", "/")  # as some Windows programs write them
        if is_rubbish(name):
            continue
        if problem := unfit(name, entry.file_size):
            left_out.append(problem)
            continue
        content = io.BytesIO()
        try:
            with archive.open(entry) as stream:  # what the archive says about its size may be a lie
                shutil.copyfileobj(_AtMost(stream, submission.MOST_BYTES + 1), content)
        except UNREADABLE as error:
            left_out.append(f"{shown(name)}: cannot be unpacked ({shown(str(error))})")
            continue
        if problem := unfit(name, content.tell()):
            left_out.append(problem)
        else:
            yield HandedIn(name, content.getvalue(), moment(entry))


def unfit(name: str, size: int, is_file: bool = True) -> str | None:
    """Why a file is not taken."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        return f"{shown(name)}: its name leads out of the folder"
    if path.suffix == ".zip":
        return f"{shown(name)}: an archive inside; unpack it first, into a folder with the student's name"
    if not is_file or size > submission.MOST_BYTES:
        return f"{shown(name)}: a link, or larger than {submission.MOST_BYTES // 2**20} MiB"
    return None


def moment(entry: zipfile.ZipInfo) -> float:
    """When a packed file was last changed, by the clock of whoever packed it."""
    try:
        return time.mktime((*entry.date_time, 0, 0, -1))
    except (ValueError, OverflowError):
        return 0.0


class _AtMost:
    """A stream that ends after so many bytes."""

    def __init__(self, stream, left: int):
        self.stream, self.left = stream, left

    def read(self, size: int) -> bytes:
        data = self.stream.read(min(size, self.left))
        self.left -= len(data)
        return data
