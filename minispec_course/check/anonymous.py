"""Results without names: every student gets a pseudonym that follows from the teacher's secret.

The same secret gives the same pseudonyms, so two gradings can be compared. Who is who stands in a file of its own,
which stays with the teacher; the journal holds names, too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from .gradebook import Result, harmless, write_rows
from .identity import person
from .secret import seed


def pseudonyms(students: Sequence[str], secret: bytes) -> dict[str, str]:
    """student → pseudonym. Longer ones, should two ever be the same."""
    digits = 8
    while True:
        found = {student: f"student-{seed(secret, 'pseudonym', student).hex()[:digits]}" for student in students}
        if len({*found.values()}) == len(found):
            return found
        digits += 4


def without_names(results: Sequence[Result], secret: bytes, key: Path) -> list[Result]:
    """The results under pseudonyms, in their order, so that the order says nothing either. Writes who is who."""
    names = pseudonyms(list(dict.fromkeys(r.student for r in results)), secret)
    write_rows(key, [["pseudonym", "student"], *sorted([new, harmless(old)] for old, new in names.items())])

    def clean(text: str, student: str) -> str:
        """Names of files often hold the student's own."""
        for name in sorted({student, person(student).name}, key=len, reverse=True):
            text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", names[student], text, flags=re.IGNORECASE)
        return text

    def renamed(r: Result) -> Result:
        return replace(r, student=names[r.student], text=clean(r.text, r.student), note=clean(r.note, r.student))

    return sorted(map(renamed, results), key=lambda r: r.student)  # stable: the exercises stay in their order
