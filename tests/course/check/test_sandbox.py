"""What each level of the sandbox holds: the same attempts at every level, all of them in one process.

An attempt is code that gets through, or raises. `namespaces` and `landlock` must hold all of them; `rlimits` holds
those against the kernel and other processes, and not those against files: docs/teaching.md says so.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from exercise_notebooks import ROOT

from minispec_course.check import sandbox
from minispec_course.check.sandbox import LANDLOCK, NAMESPACES, RLIMITS, SECCOMP, Limits, Nursery, Pupil

sys.path.insert(0, str(sandbox.WORKER.parent))
import seccomp

sys.path.pop(0)
pytestmark = pytest.mark.slow

# Root's Python may lie in root's own folder, where the students' user may not pass. The nursery then gets a view of the
# files in which that folder is empty but for the Python, and open.
PASSABLE = """
mount --bind "$1" "$2" && mount -t tmpfs -o mode=755 tmpfs /root && mkdir -p "$1" &&
mount --bind "$2" "$1" && shift 2 && exec "$@"
"""


def reachable(monkeypatch, tmp_path: Path) -> None:
    python = Path(os.path.realpath(sys.base_prefix))
    if os.getuid() != 0 or not python.is_relative_to("/root") or not shutil.which("unshare"):
        return
    start = subprocess.Popen

    def popen(command, **named):
        return start(["unshare", "-m", "sh", "-c", PASSABLE, "sh", str(python), str(tmp_path), *command], **named)

    monkeypatch.setattr(sandbox.subprocess, "Popen", popen)


@pytest.fixture(scope="module", params=[NAMESPACES, LANDLOCK, RLIMITS])
def nursery(request, tmp_path_factory):
    with pytest.MonkeyPatch.context() as monkeypatch:
        if request.param != NAMESPACES:
            reachable(monkeypatch, tmp_path_factory.mktemp("python"))
        try:
            made = Nursery(Limits(seconds=4.0), most=request.param)
        except ValueError as error:
            pytest.skip(str(error))
    with made:
        if not made.level.startswith(request.param):
            pytest.skip(f"this machine has no {request.param}")
        yield made


BEFORE = """
import ctypes, errno, os, platform, resource, signal, socket, sys
libc = ctypes.CDLL(None, use_errno=True)

def call(x86, arm, *args):
    number = x86 if platform.machine() == "x86_64" else arm
    found = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in args))
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found
"""
# One attempt of each kind; every single call of the filter's table is tried at night, below.
PARENT = "os.getppid() or 1 << 22"  # in a namespace of its own a process has no parent to be seen
KERNEL = {
    "ptrace attach": f"call(101, 117, 16, {PARENT}, 0, 0)",
    "memory of the grader": f"open(f'/proc/{{{PARENT}}}/mem', 'r+b')",
    "environment of the grader": f"open(f'/proc/{{{PARENT}}}/environ', 'rb').read()",
    "out-of-memory score": f"open(f'/proc/{{{PARENT}}}/oom_score_adj', 'w').write('1000')",
    "bpf": "call(321, 280, 0, ctypes.create_string_buffer(128), 128)",
    "user namespace": "libc.unshare(0x10000000) and 1 / 0",
    "mount": "libc.mount(b'tmpfs', b'/home', b'tmpfs', 0, None) and 1 / 0",
    "TCP": "socket.socket()",
    "Unix socket": "socket.socket(socket.AF_UNIX)",
    "fork": "os.fork()",
    "clone with a user namespace": "call(56, 220, 0x10000000 | 17, 0, 0, 0, 0)",
    "posix_spawn": "os.posix_spawn(sys.executable, [sys.executable, '-c', ''], {})",
    "thread": "__import__('_thread').start_new_thread(print, ())",
    "another program": "os.execv(sys.executable, [sys.executable, '-c', ''])",
    "signal to the parent": f"os.kill({PARENT}, 0)",
    "signal to everybody": "os.kill(-1, 0)",
    "signal to its group": "os.kill(0, 0)",
    "limits of the grader": f"resource.prlimit({PARENT}, resource.RLIMIT_CPU, (1, 1))",
    "priority of the grader": f"os.setpriority(os.PRIO_PROCESS, {PARENT}, 19)",
    "processors of the grader": f"os.sched_setaffinity({PARENT}, {{0}})",
    "more memory": "resource.setrlimit(resource.RLIMIT_AS, (1 << 50, 1 << 50))",
    "more processes": "resource.setrlimit(resource.RLIMIT_NPROC, (100, 100))",
    "root": "os.setuid(0) or os.getuid() and 1 / 0",
    "another group": "os.setgroups([0])",
    "capabilities": "libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(*[1] * 6)) and 1 / 0",
    "filter taken off": "libc.prctl(22, 0, 0, 0, 0) and 1 / 0",
    "privileges regained": "libc.prctl(38, 0, 0, 0, 0) and 1 / 0",
    "a call from the future": "call(9999, 9999)",
    "a terminal": "open('/dev/tty', 'w')",
    "core pattern": "open('/proc/sys/kernel/core_pattern', 'w')",
    "a device": "os.mknod('disk', 0o60600, os.makedev(8, 0))",
}
SOLUTIONS, TEACHER = str(ROOT / "solutions/06_rejection_sampling.ipynb"), "{teacher}"
# The folders that lead to the Python that runs may be listed, for it has to be found: in a clone it lies in .venv.
PYTHONS = [at(prefix) for prefix in (sys.prefix, sys.base_prefix) for at in (os.path.abspath, os.path.realpath)]
WAY = sorted({name for python in PYTHONS for name in Path(python).parts})
FILES = {
    "solutions": f"open({SOLUTIONS!r}).read()",
    "minispec": f"open({str(ROOT / 'minispec/verify.py')!r}).read()",
    "the course's folder": f"[n for n in os.listdir({str(ROOT)!r}) if n not in {WAY!r}][0]",
    "the teacher's file": f"open('{TEACHER}/grades.csv').read()",
    "the teacher's file by a link": f"os.symlink('{TEACHER}/grades.csv', 'l1') or open('l1').read()",
    "the teacher's file by a hard link": f"os.link('{TEACHER}/grades.csv', 'l2') or open('l2').read()",
    "the teacher's file by its process": f"open('/proc/self/root{TEACHER}/grades.csv').read()",
    "the teacher's folder": f"os.listdir('{TEACHER}')",
    "a mark": f"open('{TEACHER}/grades.csv', 'w').write('100')",
    "a mark, cut off": f"os.truncate('{TEACHER}/grades.csv', 0)",
    "a mark, removed": f"os.remove('{TEACHER}/grades.csv')",
    "a mark, replaced": f"open('y', 'w').close() or os.rename('y', '{TEACHER}/grades.csv')",
    "a file of its own there": f"open('{TEACHER}/new', 'w')",
    "a nameless file there": f"os.open('{TEACHER}', os.O_TMPFILE | os.O_WRONLY)",
    "rights": f"os.chmod('{TEACHER}/grades.csv', 0o777)",
    "owner": f"os.chown('{TEACHER}/grades.csv', os.getuid(), os.getgid())",
    "times": f"os.utime('{TEACHER}/grades.csv', (0, 0))",
    "temporary files": "open('/tmp/minispec-attack', 'w')",
    "shared memory": "open('/dev/shm/minispec-attack', 'w')",
    "what is in /tmp": f"[n for n in os.listdir('/tmp') if n not in {WAY!r}][0]",
    "processes": "[n for n in os.listdir('/proc') if n.isdigit() and int(n) != os.getpid()][0]",
    "devices": "[n for n in os.listdir('/dev') if n not in ('null', 'zero', 'urandom')][0]",
    "Python itself": "open(os.__file__, 'a')",
    "a module for the next": "open(os.path.dirname(os.__file__) + '/minispec_attack.py', 'w')",
    "system's libraries": "open('/usr/lib/minispec-attack', 'w')",
}


def tried(nursery: Nursery, attempts: dict[str, str]) -> dict[str, str]:
    """attempt → what stopped it, or "got through". All in one process of a student's."""
    lines = [BEFORE, "def attempts():", "    found = {}"]
    for name, code in attempts.items():
        lines += ["    try:", f"        {code}", f"        found[{name!r}] = 'got through'"]
        lines += ["    except BaseException as e:", f"        found[{name!r}] = type(e).__name__ + ': ' + str(e)[:80]"]
    pupil = Pupil(nursery, nursery.level, nursery.stranger(), 60.0)
    try:
        pupil.load(["\n".join([*lines, "    return found"])], "attempts", {}, [])
        return pupil()
    finally:
        pupil.close()


def test_no_level_lets_through_what_is_asked_of_the_kernel(nursery):
    if SECCOMP not in nursery.level:
        pytest.skip("this kernel has no seccomp")
    assert [name for name, said in tried(nursery, KERNEL).items() if said == "got through"] == []


def test_no_level_but_rlimits_lets_through_to_files(nursery, tmp_path_factory):
    if nursery.level.startswith(RLIMITS):
        pytest.skip("rlimits does not guard files, and does not claim to")
    teacher = tmp_path_factory.mktemp("teacher")
    for folder in (teacher, *list(teacher.parents)[:2]):
        folder.chmod(0o777)  # whoever is guarded by rights alone is not guarded here
    (teacher / "grades.csv").write_text("alice,0\n")
    (teacher / "grades.csv").chmod(0o666)
    found = tried(nursery, {name: code.replace(TEACHER, str(teacher)) for name, code in FILES.items()})
    assert [name for name, said in found.items() if said == "got through"] == []
    left = {file.name: (file.read_text(), file.stat().st_mode & 0o777) for file in teacher.iterdir()}
    assert left == {"grades.csv": ("alice,0\n", 0o666)}


def test_of_python_s_folder_the_libraries_are_shown_and_no_minispec(nursery, tmp_path, monkeypatch):
    if nursery.level.startswith(RLIMITS):
        pytest.skip("rlimits does not guard files, and does not claim to")
    packages = "lib/python3/site-packages"
    files = f"{packages}/numbers.py", f"{packages}/minispec/verify.py", "class/ann.ipynb", "lib/class/bob.ipynb"
    for folder in (tmp_path, *(parent for parent in tmp_path.parents if "pytest-of-" in str(parent))):
        folder.chmod(0o777)
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    monkeypatch.setattr(sandbox, "SYSTEM", (*sandbox.SYSTEM, f"{os.path.realpath(sys.prefix)}/lib"))  # the real one's
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(nursery, "hidden", (tmp_path / "lib/class",))
    attempts = {file: f"open({str(tmp_path / file)!r})" for file in files}
    attempts["folder"] = f"os.listdir({str(tmp_path / packages)!r})"  # without which nothing is imported from it
    found = tried(nursery, attempts)
    assert [name for name, said in found.items() if said == "got through"] == [files[0], "folder"], found


def test_what_a_student_leaves_is_removed_however_deep(nursery):
    found = tried(nursery, {"deep": "[(os.mkdir('d' * 255, 0o300), os.chdir('d' * 255)) for _ in range(1200)]"})
    assert found == {"deep": "got through"} and os.listdir(nursery.folder) == []


# ---- the filter -----------------------------------------------------------------------------------------------------

TABLES = seccomp.DENIED, seccomp.NEW_PROCESS, seccomp.OWN
FACTS = json.loads(Path(__file__).with_name("syscalls.json").read_text(encoding="utf-8"))
NUMBERS = {
    "x86_64": {name: number for number, name in enumerate(FACTS["x86_64"])} | FACTS["both"],
    "aarch64": FACTS["aarch64"] | FACTS["both"],
}
NEEDED = """read write close mmap munmap mprotect mremap madvise brk futex exit_group rt_sigaction rt_sigprocmask
rt_sigreturn sendto recvfrom sendmsg recvmsg getrandom clock_gettime clock_nanosleep getpid gettid openat lseek getcwd
getdents64 setitimer sched_yield sigaltstack""".split()  # by Python, torch and the grader's own end of the channel


@pytest.mark.nightly
def test_every_call_of_the_table_is_refused(nursery):
    """With arguments of which the kernel would say something else, if it ever came to look at them."""
    if SECCOMP not in nursery.level:
        pytest.skip("this kernel has no seccomp")
    column = seccomp.ARCHITECTURES[os.uname().machine][0]
    numbers = {name: both[column] for name, both in seccomp.DENIED.items() if both[column] is not None}
    found = tried(nursery, {name: f"call({n}, {n}, -1, -1, -1, -1, -1, -1)" for name, n in numbers.items()})
    assert {name: said for name, said in found.items() if "Operation not permitted" not in said} == {}


def run_filter(machine: str, pid: int, number: int, architecture: int, first: int = 0) -> int:
    """What the kernel's machine would return, step by step."""
    data, at, register = {0: number, 4: architecture, 16: first}, 0, 0
    steps = seccomp.program(machine, pid)
    while True:
        code, if_true, if_false, k = steps[at]
        at += 1
        if code == seccomp.LOAD:
            register = data[k]
        elif code == seccomp.RETURN:
            return k
        else:
            holds = register == k if code == seccomp.JUMP_EQUAL else register > k
            at += if_true if holds else if_false


@pytest.mark.parametrize("machine", NUMBERS)
def test_the_filter_refuses_its_table_and_nothing_else_on_both_architectures(machine):
    """x86_64 cannot be tried on arm64, nor the reverse; numbers and program can be compared on both."""
    column, architecture = seccomp.ARCHITECTURES[machine]
    known = NUMBERS[machine]

    def run(number: int, first: int = 0, architecture: int = architecture) -> int:
        return run_filter(machine, 77, number, architecture, first)

    assert [name for table in TABLES for name, both in table.items() if both[column] != known.get(name)] == []
    assert max(known.values()) == seccomp.NEWEST
    refused = {name for name, number in known.items() if run(number) != seccomp.ALLOW}
    assert refused == {name for table in TABLES for name in table if name in known} - {"prlimit64"}
    assert not refused & {*NEEDED} and {*NEEDED} <= known.keys()
    assert run(known["clone"]) == seccomp.ERRNO | 11 and run(known["ptrace"]) == seccomp.ERRNO | 1
    kill, prlimit, write = known["kill"], known["prlimit64"], known["write"]
    assert run(kill, 77) == run(prlimit, 0) == run(prlimit, 77) == seccomp.ALLOW
    assert run(kill, 0) == run(kill, 78) == run(kill, 2**32 - 1) == run(prlimit, 78) == seccomp.ERRNO | 1
    assert run(write, architecture=0x40000003) == seccomp.KILL and run(0x40000001) == seccomp.ERRNO | 38


# ---- mounts ---------------------------------------------------------------------------------------------------------

BELOW = """
import os, sys
sys.path.insert(0, sys.argv[1])
import confine
confine.libc("unshare", confine.NEWNS)
confine.mount("none", "/", None, confine.REC | confine.PRIVATE)
shown, root = sys.argv[2], sys.argv[3]
os.makedirs(shown + "/inner folder")
confine.mount("tmpfs", shown + "/inner folder", "tmpfs", 0)
if sys.argv[4] == "old kernel":
    real = confine.libc
    def libc(name, *args):
        if name == "syscall":
            raise OSError(38, "no such call")
        real(name, *args)
    confine.libc = libc
confine.show_only(root, [shown])
for place in (shown, shown + "/inner folder"):
    try:
        open(place + "/x", "w")
    except OSError as error:
        assert error.errno == 30, error
    else:
        raise SystemExit(place + " can be written")
open("/home/student/x", "w")
"""


@pytest.mark.parametrize("kernel", ["this kernel", "old kernel"])
def test_a_mount_below_a_visible_folder_is_read_only_too(tmp_path, kernel):
    if os.getuid() != 0:
        pytest.skip("only root can mount")
    (tmp_path / "shown").mkdir()
    (tmp_path / "root").mkdir()
    command = [sys.executable, "-c", BELOW, str(sandbox.WORKER.parent), str(tmp_path / "shown"), str(tmp_path / "root")]
    done = subprocess.run([*command, kernel], capture_output=True, text=True)
    if "Operation not permitted" in done.stderr and "unshare" in done.stderr:
        pytest.skip("no namespaces here")
    assert done.returncode == 0, done.stderr
