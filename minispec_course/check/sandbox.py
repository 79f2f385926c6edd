"""Run a student's function where it can do no harm, and call it as if it were here.

    with Nursery() as nursery:
        with nursery.pupil(exercise, surroundings, [source]) as answer:
            judgement = judge(exercise, answer)

`answer` is called by the check like any function. Each call travels to a process of its own (pupil/worker.py) and comes
back as plain data, which is decoded here. What the check hands over and cannot be copied, a scripted model, a device
that captures or a random number, stays here: the other side asks for every use of it, and `use` does what may be done.
The best level that works is taken (pupil/confine.py); docs/teaching.md says what each of them holds.
"""

from __future__ import annotations

import ast
import json
import operator
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path

import torch

from ..exercises.exercise import Complaint, Exercise, Number, find
from ..exercises.fakes import Device, Later
from .attempt import Stopwatch, TimeUp, time_limit
from .pupil import plain

NAMESPACES, LANDLOCK, RLIMITS, SECCOMP = "namespaces", "landlock", "rlimits", "seccomp"
LEVELS = (NAMESPACES, LANDLOCK, RLIMITS)  # the best first
STRANGER = 1_000_000_000  # root takes user ids from here on for students: nobody's, and no two students' the same
SYSTEM = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib", "/lib64", "/etc/ld.so.cache")
ROOT = Path(__file__).resolve().parents[2]
WORKER = Path(__file__).resolve().parent / "pupil/worker.py"
OURS = "minispec minispec_course minispec_tools exercises solutions notebooks mine tests docs".split()

START_SECONDS = 120.0  # until torch is imported, on a busy machine
MOST_BYTES = 4 * 2**20  # of one message from a student's process
MOST_QUESTIONS, MOST_KEPT = 5_000, 5_000  # in one call: what is asked, and what is remembered for it; honest: 203, 7
MOST_ELEMENTS, MOST_PAIRS = 10**6, 10**8  # of the arguments to something that stays here
# Errors that a check may look out for. One of any other name comes back as a plain Exception of that name.
KNOWN = (NotImplementedError, RuntimeError, ZeroDivisionError, OverflowError, ValueError, TypeError)
ERRORS = {error.__name__: error for error in KNOWN}
NO_SANDBOX = "require_sandbox=True: no namespaces and seccomp here; grade on a Linux that has them, or as root there"
ONLY_ROOT = "the grader cannot run code with fewer rights than root's: without namespaces, grade as an ordinary user"
ENDED = "Your function ended the process that it ran in: it exited, or ran out of memory."
NONSENSE = "Your function's process does not respond as it should."


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

    cells: list[str] = field(default_factory=list)  # imports, and our versions of earlier answers
    shelf: list[str] = field(default_factory=list)  # what they import of minispec: "minispec.verify.pick"
    references: list[str] = field(default_factory=list)  # the exercises whose answers they ask for
    functions: dict[str, str] = field(default_factory=dict)  # id → the name of the function that its check checks


def surroundings(sources: Sequence[tuple[str | None, str]]) -> Surroundings:
    """Read the code cells of a set: (exercise or None, source) each."""
    found = Surroundings()
    for id, source in sources:
        tree = ast.parse(source)
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
        if id is not None:
            found.functions.update((id, call.args[1].id) for call in calls if call.func.id == "check")
        elif not any(call.func.id == "draw" for call in calls):
            found.cells.append(source)
            found.references.extend(call.args[0].value for call in calls if call.func.id in ("reference", "mine"))
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "minispec":
                    found.shelf.extend(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def allowed(exercise: Exercise, around: Surroundings) -> dict[str, Callable]:
    """What an answer may use of minispec: all that the set's own cells import, except what is asked for."""
    found = {name: getattr(import_module(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in around.shelf}
    found |= {id: find(id).reference for id in around.references}
    asked_for = exercise.code, exercise.id
    return {name: f for name, f in found.items() if name not in asked_for and f is not exercise.reference}


# ---- the process that forks the others ------------------------------------------------------------------------------
class Nursery(AbstractContextManager):
    """A process that has imported torch once and forks a fresh one for every answer."""

    def __init__(self, limits=None, require_sandbox=False, folder: str | None = None, most=NAMESPACES, hidden=()):
        if not hasattr(os, "fork"):
            raise ValueError("minispec grade needs Linux or macOS; on Windows, run it in WSL")
        self.limits, self.hidden, self.pupils = limits or Limits(), hidden, 0
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
                with time_limit(START_SECONDS, pupil.spent):
                    pupil.load(["import torch, colorsys\ndef f(): return 1"], "f", {}, [])
                    if pupil() == 1:
                        return level
            except (Exception, TimeUp):
                if self.process.poll() is not None:
                    raise ValueError("the grader's worker does not start: try python -c 'import torch'") from None
            finally:
                if pupil:
                    pupil.close()
        raise ValueError(NO_SANDBOX if require_sandbox else ONLY_ROOT)

    def stranger(self) -> int | None:
        """Another user's number for every student, so that none finds what the last one left; None: we are not root."""
        self.pupils += 1
        return STRANGER + os.getpid() % 10**6 * 1000 + self.pupils % 1000 if os.getuid() == 0 else None

    def order(self, level: str, user: int | None, home: str, seconds: float) -> dict:
        python = [Path(prefix, name) for prefix in (sys.base_prefix, sys.prefix) for name in ("lib", "lib64")]
        places = [*SYSTEM, *(at(p) for p in python for at in (os.path.abspath, os.path.realpath))]
        visible = [p for p in dict.fromkeys(places) if os.path.exists(p)]
        visible = [p for p in visible if not any(p != q and Path(p).is_relative_to(q) for q in visible)]
        ours = [*(ROOT / name for name in OURS), *self.hidden]  # in case they lie inside of what is shown
        ours += [found for p in visible for found in Path(p).glob("python*/*-packages/minispec*")]
        hidden = [at(p) for p in ours for at in (os.path.abspath, os.path.realpath)]
        limits = {**asdict(self.limits), "cpu_seconds": int(seconds) + 5}
        return dict(level=level, user=user, home=home, limits=limits, visible=visible, hidden=hidden)

    @contextmanager
    def pupil(self, exercise: Exercise, around: Surroundings, answers: Sequence[str]):
        """A student's function in a process of its own. `answers`: the student's cells, the one asked for last."""
        pupil = Pupil(self, self.level, self.stranger(), self.limits.seconds or exercise.seconds)
        try:
            function, shelf = around.functions[exercise.id], [*around.shelf, exercise.code]
            with time_limit(pupil.seconds, pupil.spent):  # what the cells ask of us meanwhile takes our time
                pupil.load([*around.cells, *answers], function, allowed(exercise, around), shelf)
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
        remove(self.folder)

    def __exit__(self, *_) -> None:
        self.close()


# ---- a function in another process ----------------------------------------------------------------------------------
class Gone(Complaint):
    """The student's process is not there any more, or speaks nonsense."""


class Failed(Exception):
    """The cells do not run: there is no function to check."""


class Pupil:
    """Called like the student's function. Whatever the process says is decoded here, and believed in nothing else."""

    def __init__(self, nursery, level: str, user: int | None, seconds: float):
        self.seconds, self.used, self.ours = seconds, 0.0, Stopwatch()
        self.changed: list = []  # arguments that the function has changed: its copies, so ours are what they were
        self.functions: list[Callable] = []  # of minispec, that it may use
        self.objects: list = []  # all that it can ask for at this moment, by number
        self.numbers: dict[int, int] = {}
        self.gone: str | None = None
        self.home = tempfile.mkdtemp(dir=nursery.folder)
        if user is not None:
            os.chown(self.home, user, user)
        self.link, link = socket.socketpair()
        self.leash, leash = socket.socketpair()
        order = nursery.order(level, user, self.home, seconds)
        try:
            nursery.control.settimeout(START_SECONDS)
            socket.send_fds(nursery.control, [json.dumps(order).encode()], [link.fileno(), leash.fileno()])
            if nursery.control.recv(1) != b"x":
                raise OSError("the nursery is gone")
        except BaseException:
            self.close()
            raise
        finally:
            link.close()
            leash.close()

    def load(self, cells: list[str], function: str, functions: dict[str, Callable], shelf: list[str]) -> None:
        """Run the cells. Failed: in the student's own words, if there are any."""
        self._receive()  # it is shut in
        self.functions = list(functions.values())
        self._forget()
        offered = {name: {"remote": i, "kind": plain.CALL} for i, name in enumerate(functions)}
        done = self._converse({"cells": cells, "function": function, "functions": offered, "shelf": shelf})
        if "error" in done:
            error = self._error(done)
            said = " ".join(str(error).split())[:300]
            raise Failed(f"Your cell raised {type(error).__name__}{': ' * bool(said)}{said}{error.where}.")
        if done.get("ready") is not True:
            raise Failed(f"Your cell defines no function {function}: keep the name that the exercise gives it.")

    def __call__(self, *args, **named):
        if named:
            raise TypeError("an answer is called with its arguments in order")
        if self.gone:
            raise Gone(self.gone)
        self._forget()
        seed = torch.initial_seed() % 2**31  # a check that asks twice, with other random numbers, sees what they change
        done = self._converse({"call": [plain.encode(arg, self._offer) for arg in args], "seed": seed})
        if "error" in done:
            raise self._error(done)
        changed, drew = done.get("changed"), done.get("drew")
        if type(changed) is not list or type(drew) is not bool or "value" not in done:
            raise self._lost(NONSENSE)
        self.changed += [args[i] for i in changed if type(i) is int and 0 <= i < len(args)]
        if drew:
            random.random()  # as the function would have done here: a check that watches for it sees it
        return self._decode(done["value"])

    def spent(self) -> float:
        """Seconds that this answer has had: its processor time and ours in its service, as the keeper knows it."""
        with suppress(OSError, struct.error):  # the keeper is gone, and so is the answer
            self.leash.settimeout(START_SECONDS)
            self.leash.sendall(b"t")
            [self.used] = struct.unpack("=d", self.leash.recv(8, socket.MSG_WAITALL))
        return self.ours(self.used)

    # -- messages

    def _converse(self, message: dict) -> dict:
        """Send a request and serve what is asked meanwhile, until it is done."""
        try:
            self._send(message)
            while "ask" in (reply := self._receive()):
                self._send(self._serve(reply))
            return reply
        except BaseException:  # an alarm, for one: the next message would be the answer to an old question
            self.gone = self.gone or "Your function was stopped."
            raise

    def _send(self, message: dict) -> None:
        try:
            plain.send(self.link, message)
        except OSError:
            raise self._lost(ENDED) from None

    def _receive(self) -> dict:
        try:
            message = plain.receive(self.link, MOST_BYTES)
        except (EOFError, OSError):
            raise self._lost(ENDED) from None
        except plain.NoPlainData as error:
            raise self._lost(f"Your function's result cannot be read: {error}.") from None
        if type(message) is not dict:
            raise self._lost(NONSENSE)
        return message

    def _decode(self, message):
        try:
            return plain.decode(message, self._resolve)
        except (plain.NoPlainData, RecursionError) as error:
            raise self._lost(f"Your function's result cannot be read: {error}.") from None

    def _lost(self, text: str) -> Gone:
        self.gone = text
        return Gone(text)

    def _error(self, done: dict) -> Exception:
        """The error that the student's code ended with. One of ours comes back as itself."""
        number, line, source = done.get("number"), done.get("line"), printable(done.get("source"), 200)
        if type(number) is int and 0 <= number < len(self.objects) and isinstance(self.objects[number], Exception):
            error = self.objects[number]
        else:
            name, text = done.get("error"), printable(done.get("text"))
            name = name[:60] if type(name) is str and name.isidentifier() else "Exception"
            error = type(name, (ERRORS.get(name, Exception),), {"__str__": lambda self: text})()
        error.where = f", in line {line} of its cell" + f": {source}" * bool(source) if type(line) is int else ""
        return error

    # -- what stays here

    def _forget(self) -> None:
        """What an earlier call was handed is out of reach for the next."""
        self.objects, self.numbers, self.questions = list(self.functions), {}, 0

    def _offer(self, value) -> dict:
        """A number for an object that does not travel, and what can be done with it."""
        kind = kind_of(value)
        if kind is None:
            raise TypeError(f"{type(value).__name__} cannot be handed to a student's process")
        if id(value) not in self.numbers:
            self.numbers[id(value)] = len(self.objects)
            self.objects.append(value)
        return {"remote": self.numbers[id(value)], "kind": kind}

    def _resolve(self, number):
        if type(number) is not int or not 0 <= number < len(self.objects):
            raise plain.NoPlainData("an unknown object in a message")
        return self.objects[number]

    def _serve(self, request: dict) -> dict:
        """One use of an object that stays here. There are few, and each object has its own."""
        self.questions += 1
        if self.questions > MOST_QUESTIONS or len(self.objects) > MOST_KEPT:
            raise self._lost(f"Your function asked for more than {MOST_QUESTIONS} things. Is there an endless loop?")
        value, args = self._decode({"remote": request.get("of")}), self._decode(request.get("args"))
        try:
            return {"value": plain.encode(use(value, request.get("ask"), args), self._offer)}
        except Exception as error:
            self.objects.append(error)
            return {"error": type(error).__name__, "text": str(error), "number": len(self.objects) - 1}

    def close(self) -> None:
        """End the process and all that it started, and wait until it is gone."""
        self.link.close()
        with suppress(OSError):
            self.leash.shutdown(socket.SHUT_WR)
            self.leash.settimeout(10)
            self.leash.recv(1)
        self.leash.close()
        remove(self.home)


def remove(folder: str) -> None:
    """A folder with all that a student made in it. Never raises: rmtree would, where a thousand folders are nested."""
    for command in (["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
        with suppress(OSError):
            subprocess.run([*command, folder], stderr=subprocess.DEVNULL)


def printable(text, most: int = 1000) -> str:
    """Words of a student's process: no control characters, and not too many."""
    return "".join(c if c.isprintable() else " " for c in text[:most]) if type(text) is str else ""


# ---- what may be done with an object that stays here ----------------------------------------------------------------
def kind_of(value) -> str | None:
    """What sort of thing stays here; None for what nothing can be done with."""
    fits = {
        plain.NUMBER: isinstance(value, Number),
        plain.DEVICE: isinstance(value, Device),
        plain.LATER: isinstance(value, Later),
        plain.MODEL: hasattr(value, "rewind"),
        plain.TILES: hasattr(value, "__iter__"),
        plain.CALL: callable(value),
    }
    return None if isinstance(value, type) else next((kind for kind, does in fits.items() if does), None)


USES: dict[str | None, dict[str, Callable]] = {
    plain.CALL: {"call": lambda function, args, named: function(*args, **named)},
    plain.NUMBER: {"less": operator.lt, "refuse": lambda number: number.refuse()},
    plain.LATER: {"add": operator.add, "subtract": operator.sub, "refuse": bool},
    plain.TILES: {"next": lambda tiles, fresh: next(tiles_of(tiles, fresh is True), None)},
    plain.MODEL: {
        "length": lambda model: model.length,
        "read": lambda model, tokens: model.read(tokens),
        "rewind": lambda model, length: model.rewind(length),
    },
    plain.DEVICE: {
        "count": lambda device: device.count,
        "token": lambda device, position: device.token(position),
        "next": lambda device, token, position: device.next(token, position),
        "write": lambda device, position, token: device.write(position, token),
        "advance": lambda device, number: device.advance(number),
        "look": lambda device, number: device.look(number),
    },
}


def use(value, what, args):
    """Do to an object what may be done to it."""
    if type(args) is not list or not modest(args):
        raise TypeError("these arguments are too large")
    does = USES.get(kind_of(value), {}).get(what) if type(what) is str else None
    if does is None:
        raise TypeError("this cannot be done with it")
    return does(value, *args)


def modest(args: list) -> bool:
    """Whether arguments are so small that nothing large can come of them, not even when every one meets every other."""
    parts, elements, pairs = list(args), 0, 1
    while parts:
        part = parts.pop()
        if isinstance(part, torch.Tensor):
            elements, pairs = elements + part.numel(), pairs * max(1, part.numel())
        elif isinstance(part, (list, tuple, set)):
            elements += len(part)
            parts += [inner for inner in part if isinstance(inner, (list, tuple, set, dict, torch.Tensor))]
        elif isinstance(part, dict):
            parts += [list(part.values())]
        if elements > MOST_ELEMENTS or pairs > MOST_PAIRS:
            return False
    return True


def tiles_of(value, fresh: bool):
    """The one walk over the tiles that is under way, or a new one."""
    if fresh or not hasattr(value, "walk"):
        value.walk = iter(value)
    return value.walk
