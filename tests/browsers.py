"""Which browser the tests drive, and which lessons they open in it. nbval runs the others: every lesson runs once."""

from __future__ import annotations

import shutil
from importlib.util import find_spec

# A stepper with its play button, the editor that is JavaScript of our own, pages of HTML and plotly figures.
DRIVEN = ("00_start_here.ipynb", "06_rejection_sampling.ipynb", "11_speculation_in_a_server.ipynb")


def find_chromium() -> str | None:
    """The path of a Chromium that playwright can drive."""
    if find_spec("playwright") is None:
        return None
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
