"""Is anybody else using this machine? A timing beside a busy program is a fact about both."""

from __future__ import annotations

import os
import time
from pathlib import Path

NOTICEABLE = 0.25  # cores that others kept busy; a core in four is a quarter of two threads' time


class Watch:
    """What other programs took of the processors since it was made."""

    def __init__(self):
        self.start, self.own, self.all = time.perf_counter(), _own_seconds(), _all_seconds()

    def others(self) -> float | None:
        """Cores that others kept busy, on average; None where the system does not tell."""
        if self.all is None:
            return None
        elapsed = max(time.perf_counter() - self.start, 0.05)  # the kernel counts in hundredths of a second
        return max(0.0, (_all_seconds() - self.all) - (_own_seconds() - self.own)) / elapsed


def _own_seconds() -> float:
    times = os.times()
    return times.user + times.system


def _all_seconds() -> float | None:
    """Processor time of all programs since the machine was started, where Linux tells."""
    try:
        user, nice, system = map(int, Path("/proc/stat").read_text(encoding="utf-8").split()[1:4])
        return (user + nice + system) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None
