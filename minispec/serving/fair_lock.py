"""A lock for an engine that one thread steps without pause while others add requests."""

from __future__ import annotations

from threading import Lock, RLock


class FairLock:
    """A lock that its holder may take again, and that a thread in a loop cannot keep from the others.

    A plain lock would do for safety, but a thread that releases it and takes it again at once nearly always wins. Here
    all wait in `line` first, so the looping thread queues up behind the one that is waiting already.
    """

    def __init__(self):
        self.line, self.lock = Lock(), RLock()

    @property
    def mine(self) -> bool:
        return self.lock._is_owned()  # as threading.Condition asks it

    def __enter__(self):
        if self.mine:
            self.lock.acquire()
        else:
            with self.line:
                self.lock.acquire()

    def __exit__(self, *exception):
        self.lock.release()
