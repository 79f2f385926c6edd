"""Checks that say what went wrong, hints, progress and exams; and for teachers: release, collect, grade.

Sets of exercises import check, draw, hint, progress_table and reference; lessons import mine and yours.
"""

import sys
from typing import TYPE_CHECKING

from minispec.lazy import Lazy

from .. import require_extra

require_extra()

if TYPE_CHECKING:
    from .check import check, draw, reference
    from .hints import hint
    from .progress import progress_table
    from .yours import mine, yours

__all__ = ["check", "draw", "hint", "mine", "progress_table", "reference", "yours"]
HOMES = {"hint": ".hints", "progress_table": ".progress", "mine": ".yours", "yours": ".yours"}
HOMES |= dict.fromkeys(("check", "draw", "reference"), ".check")

sys.modules[__name__].__class__ = Lazy
