"""What the course's tests share."""

import pytest

from minispec_course.check import progress


@pytest.fixture(autouse=True)
def no_hint_seen(monkeypatch):
    """A process remembers which hints it has shown, and its tests are different learners."""
    monkeypatch.setattr(progress, "_hints_of_this_process", {})
