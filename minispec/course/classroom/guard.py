"""A time limit for code that somebody else wrote."""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class TimeUp(BaseException):
    """Raised inside code that ran too long. No Exception, so that an `except Exception` does not swallow it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Stop the code inside after so many seconds: by a signal where there are signals, else by another thread."""
    with (_alarm if can_alarm() else _watcher)(seconds):
        yield


def can_alarm() -> bool:
    return hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    def ring(number, frame):
        raise TimeUp

    handler = signal.signal(signal.SIGALRM, ring)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *timer)  # somebody else's, as pytest's own limit


@contextmanager
def _watcher(seconds: float) -> Iterator[None]:
    """Windows, or a thread of its own. It reaches Python code between two instructions, not a call that sleeps."""
    thread = ctypes.c_ulong(threading.get_ident())
    lock, over = threading.Lock(), False

    def ring():
        with lock:
            if not over:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(TimeUp))

    timer = threading.Timer(seconds, ring)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            over = True
        timer.cancel()
