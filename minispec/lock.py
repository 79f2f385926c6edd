"""A lock between processes, as a file: one works, the others wait and then find the work done."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

STALE_AFTER = 20  # seconds without a sign of life from whoever made the lock file


@contextlib.contextmanager
def lock(file: Path, waiting: str) -> Iterator[None]:
    """One process at a time; the others say `waiting` once (nothing, if it is empty), and wait."""
    take = _lock_by_kernel if fcntl else _lock_by_name
    said = False
    while (release := take(file)) is None:
        if waiting and not said:
            print(waiting, file=sys.stderr, flush=True)
        said = True
        time.sleep(0.1)
    try:
        yield
    finally:
        release()


def _lock_by_kernel(file: Path) -> Callable[[], None] | None:
    """flock: the kernel lets go when its process dies, so it is never stale. Returns how to release it, if taken."""
    handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Its last holder deleted the file on leaving, perhaps after we opened it: such a lock excludes nobody.
        if not os.path.samestat(os.fstat(handle), os.stat(file)):
            raise FileNotFoundError
    except (BlockingIOError, FileNotFoundError):
        os.close(handle)
        return None
    except BaseException:
        os.close(handle)
        raise

    def release() -> None:
        file.unlink(missing_ok=True)
        os.close(handle)

    return release


def _lock_by_name(file: Path) -> Callable[[], None] | None:
    """The file exists: somebody holds it, and touches it every few seconds; one that went silent is stale."""
    try:
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        with contextlib.suppress(OSError):  # released meanwhile
            if time.time() - file.stat().st_mtime > STALE_AFTER:
                file.unlink()
        return None
    done = threading.Event()

    def sign_of_life() -> None:
        while not done.wait(STALE_AFTER / 4):
            with contextlib.suppress(OSError):
                os.utime(file)

    threading.Thread(target=sign_of_life, daemon=True).start()

    def release() -> None:
        done.set()
        file.unlink(missing_ok=True)

    return release
