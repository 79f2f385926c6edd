"""The classroom: exercises with checks that say what went wrong, hints, progress, and the builder of all notebooks.

In a notebook: from minispec.course.classroom import check, draw, hint, progress_table, reference
"""

from .. import require_extra

require_extra()

from .board import progress_table
from .check import check, draw, hint, reference

__all__ = ["check", "draw", "hint", "progress_table", "reference"]
