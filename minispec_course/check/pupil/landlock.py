"""Landlock: a process tells the kernel which folders it will ever need, and all other files are closed to it.

It needs no rights at all, so it works for ordinary users where namespaces are switched off (Linux 5.13 and later; TCP
since 6.7, signals and abstract sockets since 6.12). What was open before stays open.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Sequence

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the same numbers on every architecture
PATH_BENEATH, ASK_VERSION = 1, 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE, IOCTL_DEV = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14, 1 << 15
ON_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV  # the others are about folders
READ = EXECUTE | READ_FILE | READ_DIR


class Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32)]


def call(number: int, *args) -> int:
    found = ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *args)
    if found < 0:
        raise OSError(ctypes.get_errno(), "landlock: " + os.strerror(ctypes.get_errno()))
    return found


def everything(version: int) -> tuple[Ruleset, int]:
    """All that this version can forbid, and the size of what it understands."""
    files = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)) - 1  # one bit for each kind of access
    network, scoped = (3 if version >= 4 else 0), (3 if version >= 6 else 0)  # bind, connect; sockets, signals
    return Ruleset(files, network, scoped), 8 if version < 4 else 16 if version < 6 else 24


def restrict(readable: Sequence[str], writable: Sequence[str], devices: Sequence[str]) -> None:
    """From here on: read these, write there, use those devices, and nothing else. Needs no_new_privs."""
    forbidden, size = everything(call(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(ASK_VERSION)))
    rules = call(CREATE_RULESET, ctypes.byref(forbidden), ctypes.c_size_t(size), ctypes.c_uint32(0))
    for places, access in ((readable, READ), (writable, forbidden.files), (devices, READ_FILE | WRITE_FILE)):
        for place in places:
            handle = os.open(place, os.O_PATH | os.O_CLOEXEC)
            is_folder = stat.S_ISDIR(os.fstat(handle).st_mode)
            rule = PathBeneath(access & forbidden.files & (-1 if is_folder else ON_FILES), handle)
            call(ADD_RULE, rules, ctypes.c_int(PATH_BENEATH), ctypes.byref(rule), ctypes.c_uint32(0))
            os.close(handle)
    call(RESTRICT_SELF, rules, ctypes.c_uint32(0))
    os.close(rules)
