"""A model's memory on the device is lent to one call at a time.

Another thread's call waits for it; a call from within (a stream's callback), or beside a stream that nobody reads on,
decodes eagerly instead, in memory of its own.
"""

from __future__ import annotations

import threading

PATIENCE = 0.5  # seconds without a sign of life after which a holder of the memory counts as asleep


class Lease:
    """Who may use a model's memory: one call at a time."""

    def __init__(self):
        self.lock, self.holder, self.signs = threading.Lock(), None, 0

    def take(self) -> bool:
        """False where waiting would be in vain: this thread has it already, or its holder does nothing."""
        while self.holder != threading.get_ident():
            signs = self.signs
            if self.lock.acquire(timeout=PATIENCE):
                self.holder = threading.get_ident()
                return True
            if signs == self.signs:
                return False
        return False

    def sign(self) -> None:
        self.signs += 1

    def give_back(self) -> None:
        self.holder = None
        self.lock.release()


class giving_back:
    """Give the leases back if something goes wrong before somebody else looks after them."""

    def __init__(self, *leases: Lease):
        self.leases = leases

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind, *rest) -> None:
        if kind is not None:
            for lease in self.leases:
                lease.give_back()
