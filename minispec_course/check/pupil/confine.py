"""Shut this process in, for good: a file system with nothing in it but Python, no network, nobody's rights, limits.

`namespaces` are Linux's. Root makes them at once; other users make a user namespace with them, where that is allowed.
Where it is not, `landlock` closes all files but Python's, and all TCP. `seccomp` refuses the system calls that no
answer needs, on top of either. Without all of these there remain the kernel's limits on memory, time, files and
processes.
"""

import ctypes
import errno
import os
import platform
import resource
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress

import seccomp
from process import address_space, make_unreadable

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, REC, PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
DETACH = 2
MOUNT_SETATTR, AT_RECURSIVE = 442, 0x8000
KEYCTL = {"x86_64": 250, "aarch64": 219}
JOIN_SESSION_KEYRING = 1
HOME = "/home/student"
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")


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
        make_unreadable(False)  # /proc/self/uid_map could not be written otherwise
        for file, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{file}", "w") as stream:
                stream.write(text)
        make_unreadable()


def parts(place: str, hidden: Sequence[str]) -> list[str]:
    """A folder; or, where something hidden lies inside of it, all that is beside that, on the whole way down."""
    if place in hidden:
        return []
    if os.path.islink(place) or not any(inner.startswith(f"{place}/") for inner in hidden):
        return [place]
    return [part for name in os.listdir(place) for part in parts(f"{place}/{name}", hidden)]


def show_only(root: str, visible: Sequence[str]) -> None:
    """A file system of its own: the Python that runs, read-only, and an empty home. Nothing else."""
    mount("none", "/", None, REC | PRIVATE)
    mount("tmpfs", root, "tmpfs", NOSUID | NODEV, "size=1m,mode=755")
    for place in visible:
        os.makedirs(os.path.dirname(root + place), exist_ok=True)
        if os.path.islink(place):
            os.symlink(os.readlink(place), root + place)
            continue
        if os.path.isdir(place):
            os.makedirs(root + place, exist_ok=True)
        else:
            open(root + place, "w").close()
        mount(place, root + place, None, BIND | REC)
        make_read_only(root + place)
    for place in DEVICES:
        os.makedirs(root + "/dev", exist_ok=True)
        open(root + place, "w").close()
        mount(place, root + place, None, BIND)
    os.makedirs(root + HOME)
    mount("tmpfs", root + HOME, "tmpfs", NOSUID | NODEV, "size=32m,mode=777")
    os.makedirs(root + "/proc")
    with suppress(OSError):  # some containers do not allow it, and nothing here needs it
        mount("proc", root + "/proc", "proc", NOSUID | NODEV | NOEXEC)
    os.chdir(root)
    libc("pivot_root", ".", ".")
    libc("umount2", ".", DETACH)
    mount("none", "/", None, REMOUNT | RDONLY | NOSUID | NODEV)


class Attributes(ctypes.Structure):
    """The kernel's struct mount_attr."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "user_namespace")]


def make_read_only(target: str) -> None:
    """A mount and all mounts below it: a remount alone would leave those as they are."""
    wanted = Attributes(RDONLY | NOSUID)
    try:
        size = ctypes.c_size_t(ctypes.sizeof(wanted))
        libc("syscall", MOUNT_SETATTR, -1, target, AT_RECURSIVE, ctypes.byref(wanted), size)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        for place in mounts_below(target):  # a kernel before 5.12
            kept = os.statvfs(place).f_flag & (NOSUID | NODEV | NOEXEC)  # what a mount has may not be taken from it
            mount("none", place, None, BIND | REMOUNT | RDONLY | NOSUID | kept)


def mounts_below(target: str) -> list[str]:
    """Where something is mounted: there, and in folders inside."""
    with open("/proc/self/mountinfo", "rb") as stream:
        raw = [line.split()[4] for line in stream]
    places = [os.fsdecode(place.decode("unicode_escape").encode("latin-1")) for place in raw]  # a blank is \\040
    return [place for place in dict.fromkeys(places) if place == target or place.startswith(f"{target}/")]


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


def forget_keys() -> None:
    """A session keyring of its own, and empty: the one that it was born with is the teacher's."""
    if platform.machine() in KEYCTL:  # without one of its own, if the kernel or a container has no key rings
        ctypes.CDLL(None).syscall(ctypes.c_long(KEYCTL[platform.machine()]), JOIN_SESSION_KEYRING, None)


def set_limits(limits: dict, held: int) -> None:
    """Of the kernel's limits, those that no honest answer comes near; `held` bytes of memory are there already."""
    wanted = {"CORE": 0, "MEMLOCK": 0, "MSGQUEUE": 0, "NPROC": 0}  # NPROC: neither processes nor threads
    wanted |= {"AS": held + limits["memory_bytes"], "CPU": limits["cpu_seconds"]}
    wanted |= {"FSIZE": limits["file_bytes"], "NOFILE": limits["open_files"]}
    for name, value in wanted.items():
        which = getattr(resource, f"RLIMIT_{name}", None)
        if which is not None:
            _, most = resource.getrlimit(which)
            value = value if most == resource.RLIM_INFINITY else min(value, most)
            resource.setrlimit(which, (value, value))


# ---- landlock -------------------------------------------------------------------------------------------------------
# A process tells the kernel which folders it will ever need, and all other files are closed to it. That needs no
# rights at all, so it works for ordinary users where namespaces are switched off (Linux 5.13 and later; TCP since 6.7,
# signals and abstract sockets since 6.12). What was open before stays open.

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


def restrict(listed: Sequence[str], readable: Sequence[str], writable: Sequence[str], devices: Sequence[str]) -> None:
    """From here on: names in these, read those, write there, use devices, and nothing else. Needs no_new_privs."""
    forbidden, size = everything(call(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(ASK_VERSION)))
    rules = call(CREATE_RULESET, ctypes.byref(forbidden), ctypes.c_size_t(size), ctypes.c_uint32(0))
    access_to = (listed, READ_DIR), (readable, READ), (writable, forbidden.files), (devices, READ_FILE | WRITE_FILE)
    for places, access in access_to:
        for place in places:
            handle = os.open(place, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)  # a link gives no right to where it leads
            is_folder = stat.S_ISDIR(os.fstat(handle).st_mode)
            rule = PathBeneath(access & forbidden.files & (-1 if is_folder else ON_FILES), handle)
            call(ADD_RULE, rules, ctypes.c_int(PATH_BENEATH), ctypes.byref(rule), ctypes.c_uint32(0))
            os.close(handle)
    call(RESTRICT_SELF, rules, ctypes.c_uint32(0))
    os.close(rules)


# ---- all of it ------------------------------------------------------------------------------------------------------
def shut_in(order: dict) -> None:
    """The pupil's own first steps. From here on it can only talk to the grader. OSError: this level cannot be had."""
    level, held, home = order["level"].split("+"), address_space(), order["home"]
    shown = [part for place in order["visible"] for part in parts(place, order["hidden"])]
    if "namespaces" in level:
        show_only(home, shown)
        home = HOME
    os.chdir(home)
    os.environ.clear()
    os.environ["HOME"] = home
    sys.argv[:] = [""]
    set_limits(order["limits"], held)
    give_up_rights(order["user"])
    forget_keys()
    if "landlock" in level:
        folders = [place for place in order["visible"] if os.path.isdir(place) and not os.path.islink(place)]
        restrict(folders, shown, [home], [place for place in DEVICES if os.path.exists(place)])
    if "seccomp" in level:
        seccomp.install()
