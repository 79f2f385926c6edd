"""Who handed something in: a name that can be shown anywhere, and the school's own number, which is never lost.

A student is "Alice Ng #12345" where the learning platform gave a number, else "Alice Ng". Two students of one name are
two students, because their numbers differ. One name in two Unicode spellings (é as one character, or as e and an
accent, which is how macOS packs archives) is one student.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from typing import NamedTuple

NUMBERED = re.compile(r"^(?P<name>.*\S) #(?P<number>\d+)$", re.DOTALL)
# Moodle: Alice Ng_12345_assignsubmission_file_/06.ipynb, or the same without a folder
MOODLE = re.compile(r"^(?P<name>.+?)_(?P<number>\d+)_assignsubmission_[a-z]+_(?P<file>.*)$", re.DOTALL)
# Canvas: ngalice_12345_67890_06.ipynb, or ngalice_LATE_12345_67890_06.ipynb; another attempt ends in -1, -2, …
CANVAS = re.compile(r"^(?P<name>[^_]+)_(?:LATE_)?(?P<number>\d+)_\d+_(?P<file>.+)$", re.DOTALL)
LONGEST = 120  # characters of a name


class Person(NamedTuple):
    name: str
    number: str  # the school's; "" where there is none


def shown(raw: str, most: int = LONGEST) -> str:
    """A name from a file system or an archive as printable text. Different names stay different."""
    text = raw.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")  # bytes that are no UTF-8: \xe9
    text = unicodedata.normalize("NFC", text)
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text).strip()
    if len(text) <= most:
        return text
    return f"{text[: most - 9]}~{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def student(name: str, number: str = "") -> str:
    return f"{shown(name)} #{number}" if number else shown(name)


def person(student: str) -> Person:
    """The two parts of a student: Alice Ng, 12345."""
    found = NUMBERED.match(student)
    return Person(found["name"], found["number"]) if found else Person(student, "")
