"""What a process can say about itself: how much memory it has mapped, and that no other may look into it."""

import ctypes
import os
import sys

PR_SET_DUMPABLE = 4


def address_space() -> int:
    """The bytes of memory that this process has mapped."""
    try:
        with open("/proc/self/statm") as stream:
            return int(stream.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 2**40  # no /proc, no limit worth the name


def make_unreadable(wanted: bool = True) -> None:
    """Close /proc/PID/mem of this process, and ptrace, to other processes of the same user (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, int(not wanted), 0, 0, 0)
