"""A time limit for code that somebody else wrote.

By default the wall clock decides. A grader gives its own `clock`, of the time that an answer really had: on an
overloaded machine the wall clock runs out without the answer's doing, and that is no verdict about it.
"""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

POLL = 0.2  # seconds between two looks at a clock that is not the wall's


class TimeUp(BaseException):
    """Raised inside code that ran too long. No Exception, so that an `except Exception` does not swallow it."""


class OutOfPatience(BaseException):
    """The wall clock ran out before the code inside had the time that it was promised: the machine is overloaded."""


def patience(seconds: float) -> float:
    """How long to wait by the wall clock for what should take so many seconds at most."""
    return 8 * seconds + 30


@contextmanager
def time_limit(seconds: float, clock: Callable[[], float] = monotonic, most: float | None = None) -> Iterator[None]:
    """Stop the code inside after so many seconds: by a signal where there are signals, else by another thread.

    clock: what the seconds are counted by (where there are signals). most: seconds by the wall clock, with another one.
    """
    if can_alarm():
        with _alarm(seconds, clock, patience(seconds) if most is None else most):
            yield
    else:
        with _watcher(seconds):
            yield


def can_alarm() -> bool:
    return hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()


@contextmanager
def _alarm(seconds: float, clock: Callable[[], float], most: float) -> Iterator[None]:
    by_wall, start, last = clock is monotonic, clock(), monotonic() + most

    def ring(number, frame):
        if by_wall or (left := start + seconds - clock()) <= 0:
            raise TimeUp
        if monotonic() > last:
            raise OutOfPatience
        signal.setitimer(signal.ITIMER_REAL, min(max(left, 0.01), POLL))

    handler = signal.signal(signal.SIGALRM, ring)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds if by_wall else min(seconds, POLL))
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
