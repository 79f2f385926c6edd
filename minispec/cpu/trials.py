"""How many threads, and whose product: measured once on every machine, and remembered in the cache folder.

A timing beside a busy program is a fact about both, so `Watch` tells whether anybody else uses the machine.
"""

import json
import os
import platform
import tempfile
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F

from .machine import home
from .panels import Panels, multiply

LARGE = 2**24  # bytes of weights; below that, to wake a second thread and wait for it takes longer than it saves
TRIES = 7  # of everything that is timed, in turn
SCRATCH = (2**15, 576)  # weights to try on, 75 MB: more than most caches hold


def threads_for(weight_bytes: int) -> int:
    """As many as torch may use, but not more than were fastest on this machine; one where there is little to read."""
    if (allowed := torch.get_num_threads()) == 1 or weight_bytes < LARGE:
        return 1
    seconds = trials()["seconds"]
    return min(allowed, int(min(seconds, key=seconds.get)))


@lru_cache(maxsize=1)
def trials() -> dict:
    """What was measured on this machine, now or in an earlier process: seconds for a product of one token by numbers of
    threads, and for one of five tokens by torch and by ours; and how many cores others kept busy meanwhile. Where that
    was noticeable nothing is kept, so every process measures again, until one finds the machine quiet."""
    file, known = home() / "cpu.json", {}
    with suppress(OSError, ValueError):
        known = json.loads(file.read_text(encoding="utf-8"))
    if _key() in known:
        return known[_key()]
    found = try_out()
    if (found["others"] or 0.0) <= NOTICEABLE:  # None: this system does not tell
        with suppress(OSError):  # nowhere to keep it: every process measures for itself, in a fifth of a second
            file.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False, encoding="utf-8") as new:
                json.dump(known | {_key(): found}, new, indent=1)
            os.replace(new.name, file)
    return found


def try_out() -> dict:
    """Time the products on weights that come from memory. The best of several tries: other programs run, too."""
    weight, cores = torch.full(SCRATCH, 0.01), _cores()
    panels = Panels(weight)
    sizes = [n for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64) if n <= cores]
    one, five = torch.ones(1, SCRATCH[1]), torch.ones(5, SCRATCH[1])
    calls = {str(n): lambda n=n: multiply(one, panels, n) for n in sizes}
    calls |= {"torch": lambda: F.linear(five, weight), "ours": lambda: multiply(five, panels, max(sizes))}
    best, watch = dict.fromkeys(calls, float("inf")), Watch()
    with torch.inference_mode():
        for _ in range(TRIES):
            for name, call in calls.items():
                start = time.perf_counter()
                call()
                best[name] = min(best[name], time.perf_counter() - start)
    seconds = {str(n): best[str(n)] for n in sizes}
    return {"seconds": seconds, "torch": best["torch"], "ours": best["ours"], "others": watch.others()}


def _key() -> str:
    return f"{platform.node()}, {_cores()} cores, torch {torch.__version__}"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ---- who else is busy ----

NOTICEABLE = 0.25  # cores that others kept busy; a core in four is a quarter of two threads' time


class Watch:
    """What other programs took of the processors since it was made."""

    def __init__(self):
        self.start, self.own, self.all = time.perf_counter(), time.process_time(), _all_seconds()

    def others(self) -> float | None:
        """Cores that others kept busy, on average; None where the system does not tell."""
        if self.all is None:
            return None
        elapsed = max(time.perf_counter() - self.start, 0.4)  # the kernel counts in hundredths: few of them say little
        return max(0.0, (_all_seconds() - self.all) - (time.process_time() - self.own)) / elapsed


def _all_seconds() -> float | None:
    """Processor time of all programs since the machine was started, where Linux tells."""
    try:
        user, nice, system = map(int, Path("/proc/stat").read_text(encoding="utf-8").split()[1:4])
        return (user + nice + system) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None
