"""Late submissions: what they lose, by a rule that the teacher gives.

    --due 2026-11-20T23:59 --late 10          10 % of the points for every day begun after that

When something was handed in is the time of its file, which collect keeps (of an archive: the time in the archive, to
two seconds), or what a table says: student,submitted, one line each. Platforms know better than files: where the
platform has a late policy, use that one and none here.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from .gradebook import UNGRADED, Result, number
from .identity import person, shown

DAY = 24 * 60 * 60


@dataclass(frozen=True)
class Policy:
    due: datetime  # without a zone: this machine's
    percent: float  # of the points, for every day begun
    grace: float = 0.0  # minutes that do not count

    def __post_init__(self):
        if not 0 <= self.percent <= 100:
            raise ValueError(f"late={self.percent:g}: give a percentage from 0 to 100")

    def lost(self, submitted: float) -> float:
        """The share of the points that is lost, 0 to 1, for something handed in at that second."""
        late = submitted - self.due.timestamp() - 60 * self.grace
        return min(1.0, math.ceil(late / DAY) * self.percent / 100) if late > 0 else 0.0


def moment(text: str) -> datetime:
    """A time as it is typed: 2026-11-20, 2026-11-20T23:59, with +01:00 or without."""
    try:
        return datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    except ValueError:
        raise ValueError(f"due={text!r}: give a time such as 2026-11-20T23:59") from None


def read_times(file: Path) -> dict[str, float]:
    """student → second, of a table with the columns student and submitted."""
    rows = list(csv.DictReader(io.StringIO(file.read_text(encoding="utf-8-sig"), newline="")))
    if not rows or not {"student", "submitted"} <= {*rows[0]}:
        raise ValueError(f"times={str(file)!r}: give a CSV with the columns student and submitted")
    return {shown(row["student"]): moment(row["submitted"]).timestamp() for row in rows}


def apply(
    results: Sequence[Result], policy: Policy, files: dict[tuple[str, str], float], table: dict[str, float]
) -> list[Result]:
    """The results after deductions. files: (student, exercise) → second; table: student → second, which comes first."""
    changed = []
    for r in results:
        submitted = table.get(r.student, table.get(person(r.student).name, files.get((r.student, r.id))))
        share = policy.lost(submitted) if submitted is not None and r.outcome != UNGRADED else 0.0
        if share and r.points:
            points = round(r.points * (1 - share), 2)
            note = f"late: {number(100 * share)} % less than {number(r.points)} points"
            r = replace(r, points=points, note="; ".join(filter(None, [r.note, note])))
        changed.append(r)
    return changed
