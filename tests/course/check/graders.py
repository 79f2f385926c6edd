"""What tests of the grader share: an honest answer, and a nursery that judges one."""

from __future__ import annotations

from minispec_course.check.grade import Result, Task, grade_one
from minispec_course.check.sandbox import Nursery

HONEST = "def accept_probability(p, q, token):\n    return min(1.0, float(p[token] / q[token]))\n"


def judge_source(nursery: Nursery, source: str, id: str = "06.accept") -> Result:
    return grade_one(nursery, Task("somebody", id, (source,)))
