"""Run a student's function where it can do no harm, and call it as if it were here.

    with Nursery() as nursery:
        with nursery.pupil(exercise, surroundings, [source]) as answer:
            judgement = judge(exercise, answer)

`answer` is called by the check like any function. Each call travels to a process of its own (pupil/worker.py) and comes
back as plain data (bridge.py).

There are three levels, and the best that works is taken. `namespaces` (Linux): its own file system with Python and
nothing else in it, no network, no other process to be seen, and the rights of nobody. `landlock` (Linux, where those
are switched off): all files but Python's are closed, and so is TCP. `rlimits` (everywhere else): limits on time,
memory, files and processes, but the code can read what the teacher can read. Each is joined by `seccomp` where the
kernel has it, as in "namespaces+seccomp": a filter for system calls. docs/teaching.md says what each of them holds.
"""

from __future__ import annotations

import ast
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path

from ..exercises.exercise import Exercise, find
from .bridge import START_SECONDS, Pupil
from .guard import OutOfPatience, TimeUp, time_limit

NAMESPACES, LANDLOCK, RLIMITS, SECCOMP = "namespaces", "landlock", "rlimits", "seccomp"
LEVELS = (NAMESPACES, LANDLOCK, RLIMITS)  # the best first
STRANGER = 1_000_000_000  # root takes user ids from here on for students: nobody's, and no two students' the same
SYSTEM = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache")
ROOT = Path(__file__).resolve().parents[2]
WORKER = Path(__file__).resolve().parent / "pupil/worker.py"
OURS = ("minispec", "course", "exercises", "solutions", "notebooks", "mine", "tests")


@dataclass(frozen=True)
class Limits:
    """For one student and one exercise. There is no limit on processes and threads to choose: one of each."""

    memory_bytes: int = 2 * 2**30  # beyond what Python and torch take
    file_bytes: int = 16 * 2**20
    open_files: int = 64
    seconds: float | None = None  # for all code of one exercise; None: what the exercise allows
    grader_bytes: int = 3 * 2**30  # of the process that judges, beyond what it starts with


# ---- what a set offers to the code in it ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Surroundings:
    """What the course's own cells of a set give to an answer: from our copy, never from the submission."""

    cells: list[str]  # imports, and our versions of earlier answers
    shelf: list[str]  # what they import of minispec: "minispec.verify.pick"
    references: list[str]  # the exercises whose answers they ask for
    functions: dict[str, str] = field(default_factory=dict)  # id → the name of the function that its check checks


def surroundings(sources: Sequence[tuple[str | None, str]]) -> Surroundings:
    """Read the code cells of a set: (exercise or None, source) each."""
    cells, shelf, references, functions = [], [], [], {}
    for id, source in sources:
        tree = ast.parse(source)
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
        if id is not None:
            functions.update((id, call.args[1].id) for call in calls if call.func.id == "check")
            continue
        if any(call.func.id == "draw" for call in calls):
            continue
        cells.append(source)
        references += [call.args[0].value for call in calls if call.func.id == "reference"]
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "minispec":
                shelf += [f"{node.module}.{alias.name}" for alias in node.names]
    return Surroundings(cells, [name for name in shelf if "classroom" not in name], references, functions)


def allowed(exercise: Exercise, around: Surroundings) -> dict[str, Callable]:
    """What an answer may use of minispec: all that the set's own cells import, except what is asked for."""
    found = {name: getattr(import_module(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in around.shelf}
    found |= {id: find(id).reference for id in around.references}
    return {
        name: function
        for name, function in found.items()
        if name not in (exercise.code, exercise.id) and function is not exercise.reference
    }


# ---- the process that forks the others ------------------------------------------------------------------------------


class Nursery:
    """A process that has imported torch once and forks a fresh one for every answer."""

    def __init__(
        self,
        limits: Limits | None = None,
        require_sandbox: bool = False,
        folder: str | None = None,
        most: str = NAMESPACES,
    ):
        if not hasattr(os, "fork"):
            raise ValueError("minispec grade needs Linux or macOS; on Windows, run it in WSL")
        self.limits, self.pupils = limits or Limits(), 0
        self.folder = tempfile.mkdtemp(prefix="minispec-grade-", dir=folder)
        os.chmod(self.folder, 0o755)
        self.control, theirs = socket.socketpair()
        environment = {"PYTHONHASHSEED": "0", "PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1"}
        environment |= {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}
        self.process = subprocess.Popen(
            [sys.executable, "-s", str(WORKER), str(theirs.fileno())],
            env=environment,
            cwd=self.folder,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the grader alone
        )
        theirs.close()
        try:
            self.level = self._find_level(most, require_sandbox)
        except BaseException:
            self.close()
            raise

    def _find_level(self, most: str, require_sandbox: bool) -> str:
        """The best level that works, tried out: a pupil that is shut in and runs a line. Never with root's rights."""
        levels = [level + filter for level in LEVELS[LEVELS.index(most) :] for filter in (f"+{SECCOMP}", "")]
        for level in [f"{NAMESPACES}+{SECCOMP}"] * (most == NAMESPACES) if require_sandbox else levels:
            pupil = None
            try:
                pupil = Pupil(self, level, self.stranger(), START_SECONDS)
                pupil.load(["import torch, colorsys\ndef f(): return 1"], "f", {}, [])
                if pupil() == 1:
                    return level
            except (Exception, TimeUp, OutOfPatience):
                if self.process.poll() is not None:
                    raise ValueError("the grader's worker does not start: try python -c 'import torch'") from None
            finally:
                if pupil:
                    pupil.close()
        if require_sandbox:
            raise ValueError(
                "require_sandbox=True: this machine has no namespaces and seccomp for us (Linux with user namespaces, "
                "or root with CAP_SYS_ADMIN, is needed); grade there, or without --require-sandbox"
            )
        raise ValueError(
            "the grader cannot run code with fewer rights than root's: without namespaces, grade as an ordinary user"
        )

    def stranger(self) -> int | None:
        """Another user's number for every student, so that none finds what the last one left; None: we are not root."""
        self.pupils += 1
        return STRANGER + os.getpid() % 10**6 * 1000 + self.pupils % 1000 if os.getuid() == 0 else None

    def order(self, level: str, user: int | None, home: str, seconds: float) -> dict:
        limits = {**asdict(self.limits), "cpu_seconds": int(seconds) + 5}
        prefixes = [at(p) for p in (sys.base_prefix, sys.prefix) for at in (os.path.abspath, os.path.realpath)]
        visible = [*(p for p in SYSTEM if os.path.exists(p)), *dict.fromkeys(prefixes)]
        return {
            "level": level,
            "user": user,
            "home": home,
            "limits": limits,
            "visible": [p for p in visible if not any(p != q and Path(p).is_relative_to(q) for q in visible)],
            "hidden": [str(ROOT / name) for name in OURS],  # in case they lie inside of what is shown
        }

    @contextmanager
    def pupil(self, exercise: Exercise, around: Surroundings, answers: Sequence[str]):
        """A student's function in a process of its own. `answers`: the student's cells, the one asked for last."""
        pupil = Pupil(self, self.level, self.stranger(), self.limits.seconds or exercise.seconds)
        try:
            function = around.functions[exercise.id]
            shelf = [*around.shelf, exercise.code]
            with time_limit(pupil.seconds, pupil.spent):  # what the cells ask of us meanwhile takes our time
                pupil.load([*around.cells, *answers], function, allowed(exercise, around), shelf)
            pupil.source = answers[-1]
            yield pupil
        finally:
            pupil.close()

    def close(self) -> None:
        self.control.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_) -> None:
        self.close()
