"""Shut this process in, for good: a file system with nothing in it but Python, no network, nobody's rights, limits.

`namespaces` are Linux's. Root makes them at once; other users make a user namespace with them, where that is allowed.
Without them there remain the kernel's limits on memory, time, files and processes.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, REC, PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
DETACH = 2
HOME = "/home/student"


def libc(name: str, *args) -> None:
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    if function(*(arg.encode() if isinstance(arg, str) else arg for arg in args)) != 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    libc("mount", source, target, kind, ctypes.c_ulong(flags), options)


def unshare() -> None:
    """Namespaces of its own: for root at once, for others together with a user namespace, in which they may do this."""
    flags, user, group = NEWNS | NEWUTS | NEWIPC | NEWPID | NEWNET, os.getuid(), os.getgid()
    libc("unshare", flags | (0 if user == 0 else NEWUSER))
    if user != 0:
        for file, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{file}", "w") as stream:
                stream.write(text)


def show_only(root: str, visible: list[str], hidden: list[str]) -> None:
    """A file system of its own: the Python that runs, read-only, and an empty home. Nothing else."""
    mount("none", "/", None, REC | PRIVATE)
    mount("tmpfs", root, "tmpfs", NOSUID | NODEV, "size=1m,mode=755")
    for place in visible:
        if os.path.islink(place):
            os.makedirs(os.path.dirname(root + place), exist_ok=True)
            os.symlink(os.readlink(place), root + place)
            continue
        _show(place, root + place)
    for place in hidden:
        if os.path.isdir(root + place):
            mount("tmpfs", root + place, "tmpfs", RDONLY | NOSUID | NODEV, "size=4k,mode=755")
    for place in ("/dev/null", "/dev/zero", "/dev/urandom"):
        os.makedirs(root + "/dev", exist_ok=True)
        open(root + place, "w").close()
        mount(place, root + place, None, BIND)
    os.makedirs(root + HOME)
    mount("tmpfs", root + HOME, "tmpfs", NOSUID | NODEV, "size=32m,mode=777")
    os.makedirs(root + "/proc")
    try:
        mount("proc", root + "/proc", "proc", NOSUID | NODEV | NOEXEC)
    except OSError:
        pass  # some containers do not allow it, and nothing here needs it
    os.chdir(root)
    libc("pivot_root", ".", ".")
    libc("umount2", ".", DETACH)
    mount("none", "/", None, REMOUNT | RDONLY | NOSUID | NODEV)


def _show(place: str, target: str) -> None:
    if os.path.isdir(place):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        open(target, "w").close()
    mount(place, target, None, BIND | REC)
    kept = os.statvfs(target).f_flag & (NOSUID | NODEV | NOEXEC)  # what the mount has may not be taken from it
    mount("none", target, None, BIND | REMOUNT | RDONLY | NOSUID | kept)


def give_up_rights(user: int | None) -> None:
    """No user's rights but a stranger's, no capabilities, and no way to get any."""
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    if sys.platform == "linux":
        libc("prctl", 38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
        header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        libc("capset", header, none)


def set_limits(limits: dict, held: int) -> None:
    """Of the kernel's limits, those that no honest answer comes near; `held` bytes of memory are there already."""

    def limit(name: str, value: int) -> None:
        which = getattr(resource, f"RLIMIT_{name}", None)
        if which is not None:
            _, most = resource.getrlimit(which)
            value = value if most == resource.RLIM_INFINITY else min(value, most)
            resource.setrlimit(which, (value, value))

    limit("CORE", 0)
    limit("AS", held + limits["memory_bytes"])
    limit("CPU", limits["cpu_seconds"])
    limit("FSIZE", limits["file_bytes"])
    limit("NOFILE", limits["open_files"])
    limit("NPROC", 0)  # neither processes nor threads


def address_space() -> int:
    """The bytes of memory that this process has mapped."""
    try:
        with open("/proc/self/statm") as stream:
            return int(stream.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 2**40  # no /proc, no limit worth the name


def shut_in(order: dict) -> None:
    """The pupil's own first steps. From here on it can only talk to the grader."""
    held, home = address_space(), order["home"]
    if order["level"] == "namespaces":
        show_only(order["home"], order["visible"], order["hidden"])
        home = HOME
    os.chdir(home)
    os.environ.clear()
    os.environ["HOME"] = home
    sys.argv[:] = [""]
    set_limits(order["limits"], held)
    give_up_rights(order["user"])
