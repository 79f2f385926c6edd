"""Checks that say what went wrong, hints, progress and exams; and for teachers: release, collect, grade.

In a notebook: from minispec_course.check import check, draw, hint, progress_table, reference
"""

from .. import require_extra

require_extra()

from .check import check, draw, reference
from .hints import hint
from .progress import progress_table

__all__ = ["check", "draw", "hint", "progress_table", "reference"]
