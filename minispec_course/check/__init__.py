"""Checks that say what went wrong, hints, progress and exams; and for teachers: release, collect, grade.

In a set of exercises: from minispec_course.check import check, draw, hint, progress_table, reference
In a lesson, whose functions the learner writes: from minispec_course.check import mine, yours
"""

from .. import require_extra

require_extra()

from .check import check, draw, reference
from .hints import hint
from .progress import progress_table
from .yours import mine, yours

__all__ = ["check", "draw", "hint", "mine", "progress_table", "reference", "yours"]
