"""The compiled code, the team of threads that runs it, and what is remembered about this machine between processes.

Threads wait in the operating system, not in a loop: a team of two costs nothing while nothing is computed, and beside a
busy program it is about as fast as one thread (see code.py). How many to use is measured once, see `fastest`.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
import threading
import time
from functools import lru_cache
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace

import torch
import torch.nn.functional as F

LARGE = 2**24  # bytes of weights; below that, to wake a second thread and wait for it takes longer than it saves
TRIES = 7  # of everything that is timed, in turn
SCRATCH = (2**15, 576)  # weights to try on, 75 MB: more than most caches hold


def home() -> Path:
    """The cache folder: MINISPEC_HOME, else XDG_CACHE_HOME/minispec, else ~/.cache/minispec."""
    if chosen := os.environ.get("MINISPEC_HOME"):
        return Path(chosen).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "minispec"


# ---- the compiled code ----

_importing = threading.RLock()


def compiled() -> SimpleNamespace | None:
    """`product` of code.py and `run` of layers.py; None where there is no numba."""
    with _importing:
        return _compiled()


@lru_cache(maxsize=1)
def _compiled() -> SimpleNamespace | None:
    try:
        import numba
    except ImportError:  # not there, or made for another numpy
        return None
    before, folder = numba.config.CACHE_DIR, compiled_folder()
    try:  # compiling takes ten seconds: every later process finds the result here
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        numba.config.CACHE_DIR = str(folder)
    except OSError:
        pass  # numba looks for another folder
    try:
        from . import code, layers
    finally:
        numba.config.CACHE_DIR = before
    return SimpleNamespace(product=code.product, run=layers.run, PHASES=layers.PHASES, QUERIES=layers.QUERIES)


def compiled_folder() -> Path:
    """Where compiled code is kept: another folder for other sources, because numba looks at one file at a time, and
    would not notice that layers.py was compiled with an older code.py inside."""
    sources = [(Path(__file__).parent / name).read_bytes() for name in ("code.py", "layers.py")]
    return home() / "numba" / hashlib.sha256(b"".join(sources)).hexdigest()[:12]


def is_loaded() -> bool:
    return _compiled.cache_info().currsize > 0 and _compiled() is not None


def was_compiled() -> bool:
    """Whether a process on this machine has compiled the pass before: loading is quick then."""
    return any(compiled_folder().glob("**/layers.run-*.nbi"))


# ---- the team ----


class Team:
    """Threads that call one function together. The caller is one of them; the others wait for work."""

    def __init__(self):
        self.alone = threading.RLock()  # one pass at a time: two would only take turns
        self.work: SimpleQueue = SimpleQueue()
        self.helpers = 0

    def run(self, function, shared: tuple, own: list[tuple]) -> None:
        """function(*shared, *mine) in as many threads as there are in `own`. A helper that comes late finds nothing
        left to do; the work is done when the caller's own call returns."""
        while self.helpers < len(own) - 1:
            threading.Thread(target=self._help, daemon=True, name="minispec").start()
            self.helpers += 1
        for mine in own[1:]:
            self.work.put((function, (*shared, *mine)))
        function(*shared, *own[0])

    def _help(self) -> None:
        while True:
            function, arguments = self.work.get()
            function(*arguments)
            del function, arguments  # hold no memory while waiting


team = Team()
if hasattr(os, "register_at_fork"):  # a child inherits the books of the threads but not the threads
    os.register_at_fork(after_in_child=team.__init__)


# ---- how many threads ----


def threads_for(weight_bytes: int) -> int:
    """As many as torch may use, but not more than were fastest on this machine; one where there is little to read."""
    allowed = torch.get_num_threads()
    return 1 if allowed == 1 or weight_bytes < LARGE else min(allowed, fastest())


def fastest() -> int:
    """The number of threads that read weights fastest when it was measured."""
    seconds = trials()["seconds"]
    return int(min(seconds, key=seconds.get))


@lru_cache(maxsize=1)
def trials() -> dict:
    """What was measured on this machine, now or in an earlier process: seconds for a product of one token by numbers of
    threads, and for one of five tokens by torch and by ours."""
    file, key = home() / "cpu.json", f"{platform.node()}, {_cores()} cores, torch {torch.__version__}"
    try:
        return json.loads(file.read_text(encoding="utf-8"))[key]
    except (OSError, ValueError, KeyError):
        return remember(try_out(), key)


def remember(found: dict, key: str | None = None) -> dict:
    """Keep what `try_out` found for later processes."""
    file = home() / "cpu.json"
    key = key or f"{platform.node()}, {_cores()} cores, torch {torch.__version__}"
    try:
        known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except (OSError, ValueError):
        known = {}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False, encoding="utf-8") as new:
            json.dump(known | {key: found}, new, indent=1)
        os.replace(new.name, file)
    except OSError:
        pass  # nowhere to keep it: every process measures for itself, which takes a fifth of a second
    return found


def try_out() -> dict:
    """Time the products on weights that come from memory. The best of several tries: other programs run, too."""
    from .panels import multiply, pack

    weight, cores = torch.full(SCRATCH, 0.01), _cores()
    panels = pack(weight)
    sizes = [n for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64) if n <= cores]
    one, five = torch.ones(1, SCRATCH[1]), torch.ones(5, SCRATCH[1])
    calls = {str(n): lambda n=n: multiply(one, panels, n) for n in sizes}
    calls |= {"torch": lambda: F.linear(five, weight), "ours": lambda: multiply(five, panels, max(sizes))}
    best = dict.fromkeys(calls, float("inf"))
    with torch.inference_mode():
        for _ in range(TRIES):
            for name, call in calls.items():
                start = time.perf_counter()
                call()
                best[name] = min(best[name], time.perf_counter() - start)
    return {"seconds": {str(n): best[str(n)] for n in sizes}, "torch": best["torch"], "ours": best["ours"]}


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
