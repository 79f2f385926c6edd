"""The classroom: exercises with checks that say what went wrong, hints, progress, and the builder of all notebooks.

In a notebook: from minispec.classroom import check, draw, hint, reference
"""

from .check import check, draw, hint, reference

__all__ = ["check", "draw", "hint", "reference"]
