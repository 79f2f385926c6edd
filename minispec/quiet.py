"""When a benchmark has to say that its timings are not to be trusted; and a busy neighbour, where one is wanted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from .cpu.others import NOTICEABLE, Watch

__all__ = ["Watch", "busy_core", "warning"]

# Busy until whoever started it is gone, however that happened: a benchmark may be killed, too.
NEIGHBOUR = """
import os
parent = {parent}
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""
WIDE = 0.5  # distance of the quartiles from each other, relative to the median


def warning(others: float | None, spreads: dict[str, float]) -> str | None:
    """Why these timings are not to be trusted; None: nothing speaks against them. `spreads`: (q₃ − q₁) / median."""
    reasons = []
    if others is not None and others > NOTICEABLE:
        reasons.append(f"other programs kept {others:.1f} cores busy meanwhile")
    wide = [name for name, spread in spreads.items() if spread > WIDE]
    if wide:
        reasons.append(f"the quartiles of {', '.join(wide)} are far apart")
    if not reasons:
        return None
    return f"This machine is not quiet: {' and '.join(reasons)}. Close what is busy and measure again."


@contextmanager
def busy_core() -> Iterator[None]:
    """Meanwhile another process keeps one core busy, as a browser tab may."""
    neighbour = subprocess.Popen([sys.executable, "-c", NEIGHBOUR.format(parent=os.getpid())])
    try:
        yield
    finally:
        neighbour.kill()
        neighbour.wait()
