"""The processor, the code compiled for it, where that is kept between processes, and the team of threads that runs it.

Threads wait in the operating system, not in a loop: a team of two costs nothing while nothing is computed, and beside a
busy program it is about as fast as one thread (see gemm.py). How many to use is measured: trials.py.
"""

import hashlib
import os
import sys
import tempfile
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from ..require import require
from . import invariant
from .processor import has_dot_product


def home() -> Path:
    """The cache folder: MINISPEC_HOME, else XDG_CACHE_HOME/minispec, else ~/.cache/minispec."""
    if chosen := os.environ.get("MINISPEC_HOME"):
        return Path(chosen).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "minispec"


# ---- the compiled code ----

# Loading numba takes about half a second. A model that owns a matrix this large (64 MB: an LM head, or any layer of a
# large model) repays that at once.
REPAYS_LOADING = 2**24


def wish() -> str:
    """Whose products MINISPEC_LINEAR asks for: torch, numba (ours) or auto."""
    wish = os.environ.get("MINISPEC_LINEAR", "auto")
    require(wish in ("auto", "torch", "numba"), "torch, numba or auto", MINISPEC_LINEAR=wish)
    return wish


def decided() -> bool | None:
    """Whether the environment asks for our code, and it is there; None: whatever is faster."""
    if not invariant.wanted() and wish() == "auto":
        return None
    return (invariant.wanted() or wish() == "numba") and compiled() is not None


_importing = threading.RLock()


def compiled() -> ModuleType | None:
    """`product` and `run` of gemm.py; None where there is no numba."""
    with _importing:
        return _compiled()


@lru_cache(maxsize=1)
def _compiled() -> ModuleType | None:
    try:
        import numba
    except ImportError as error:  # not there, or made for another numpy
        said = f"numba cannot be imported here ({error}), so torch computes passes of few tokens, which takes longer"
        warnings.warn(f'{said}: run pip install -c constraints.txt -e ".[cpu]"', stacklevel=2)
        return None
    before, folder = numba.config.CACHE_DIR, compiled_folder()
    try:  # compiling takes ten seconds: every later process finds the result here
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        numba.config.CACHE_DIR = str(folder)
    except OSError:
        pass  # numba looks for another folder
    if not was_compiled():
        print("compiling the CPU pass once for this machine …", file=sys.stderr, flush=True)
    try:
        from . import gemm
    finally:
        numba.config.CACHE_DIR = before
    return gemm


def compiled_folder() -> Path:
    """Where compiled code is kept: another folder for other sources and for another layout of int8 weights."""
    source = (Path(__file__).parent / "gemm.py").read_bytes() + str(has_dot_product()).encode()
    return home() / "numba" / hashlib.sha256(source).hexdigest()[:12]


def is_loaded() -> bool:
    return _compiled.cache_info().currsize > 0 and _compiled() is not None


def was_compiled() -> bool:
    """Whether a process on this machine has compiled the pass before: loading is quick then."""
    return any(compiled_folder().glob("**/gemm.run-*.nbi"))


# ---- the team ----


class Team:
    """Threads that call one function together. The caller is one of them; the others wait for work."""

    def __init__(self):
        self.alone = threading.RLock()  # one pass at a time: two would only take turns
        self.helpers = ThreadPoolExecutor(1024, "minispec")  # at most so many: it starts one when none is idle

    def run(self, function, shared: tuple, own: list[tuple]) -> None:
        """function(*shared, *mine) in as many threads as there are in `own`. A helper that comes late finds nothing
        left to do; the work is done when the caller's own call returns."""
        for mine in own[1:]:
            self.helpers.submit(function, *shared, *mine)
        function(*shared, *own[0])


team = Team()
if hasattr(os, "register_at_fork"):  # a child inherits the books of the threads but not the threads
    os.register_at_fork(after_in_child=team.__init__)
