"""The other side of the grader: a process that runs one student's code and hands back plain data.

    python worker.py FD

It is run as a script and imports nothing of minispec: what a student's process does not hold, nobody can find there.
One such process, the nursery, imports torch and waits. For every answer it forks two processes: a keeper, which is ours
and holds the leash, and the pupil, which shuts itself in (confine.py) and then runs the student's code.
"""

import builtins
import json
import linecache
import os
import random
import signal
import socket
import struct
import sys
import time
import types
from contextlib import suppress
from importlib.machinery import ModuleSpec

import numpy as np
import torch
from confine import shut_in, unshare
from plain import CALL, DEVICE, LATER, MODEL, NUMBER, TILES, decode, encode, receive, send
from process import make_unreadable

sys.path.pop(0)  # the folder of this file: nothing in it is for students


# ---- what the student's code sees of objects that stay with the grader ----------------------------------------------
class Channel:
    """The pupil's end: asks, and waits for the answer."""

    def __init__(self, link: socket.socket):
        self.link = link

    def ask(self, number: int, what: str, *args):
        send(self.link, {"ask": what, "of": number, "args": [encode(arg, _only_remotes) for arg in args]})
        reply = receive(self.link)
        if "error" in reply:
            raise _exception(reply["error"], reply["text"], reply["number"])
        return decode(reply["value"], self.remote)

    def remote(self, content):
        return KINDS[content["kind"]](self, content["remote"])


class Remote:
    """An object that stays with the grader. Its methods ask for each use."""

    def __init__(self, channel: Channel, number: int):
        self._channel, self._number = channel, number

    def _ask(self, what, *args):
        return self._channel.ask(self._number, what, *args)

    def _refuse(self, *_):
        return self._ask("refuse")


def _only_remotes(value):
    if isinstance(value, Remote):
        return {"remote": value._number}
    raise TypeError(f"{type(value).__name__} cannot be handed to a function of minispec in the grader: give plain data")


def asks(what: str, *names: str):
    """A method that asks for this use of its object. Its arguments have names, as in the object itself."""

    def method(self, *args, **named):
        return self._ask(what, *args, *(named[name] for name in names[len(args) :]))

    return method


class RemoteFunction(Remote):
    def __call__(self, *args, **named):
        return self._ask("call", list(args), named)


class RemoteModel(Remote):
    length, rewind = property(asks("length")), asks("rewind", "length")

    def read(self, tokens):
        return self._ask("read", tokens if isinstance(tokens, torch.Tensor) else list(tokens))


class RemoteNumber(Remote):
    """A random number: it may be compared."""

    __lt__ = __le__ = asks("less")

    def __gt__(self, x):
        return not self._ask("less", x)

    __ge__ = __gt__
    __float__ = __int__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = Remote._refuse


class RemoteTiles(Remote):
    """Tiles come in one buffer, which the next tile overwrites."""

    def __iter__(self):
        buffer = None
        while (tile := self._ask("next", buffer is None)) is not None:
            if buffer is None:
                buffer = tile
            parts = tuple(whole[: len(part)] for whole, part in zip(buffer, tile, strict=True))
            for part, new in zip(parts, tile, strict=True):
                part.copy_(new)
            yield parts


class RemoteDevice(Remote):
    """A device that captures a graph: every kernel is noted there."""

    count, look, token = property(asks("count")), asks("look", "number"), asks("token", "position")
    next, write = asks("next", "token", "position"), asks("write", "position", "token")

    def advance(self, number=1):
        return self._ask("advance", number)


class RemoteLater(Remote):
    """A number that the device will have: a whole number may be added, and nothing else is known of it."""

    __add__, __sub__ = asks("add"), asks("subtract")
    __bool__ = __int__ = __index__ = __float__ = __lt__ = __gt__ = __le__ = __ge__ = __eq__ = Remote._refuse
    __hash__ = None


KINDS = {CALL: RemoteFunction, MODEL: RemoteModel, NUMBER: RemoteNumber}
KINDS |= {TILES: RemoteTiles, DEVICE: RemoteDevice, LATER: RemoteLater}


def _exception(name: str, text: str, number: int) -> Exception:
    base = getattr(builtins, name, None)
    base = base if isinstance(base, type) and issubclass(base, Exception) else Exception
    error = type(name, (base,), {"__str__": lambda self: text})()
    error.remote = number  # so that the grader knows its own error when it comes back
    return error


class WriteItYourself(ImportError):
    """minispec is not here."""


class Shelf:
    """An import hook: of our packages there are only the names that the course's own cells import."""

    def __init__(self, names: dict):
        self.names = names  # module → {name: object}

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in ("minispec", "minispec_course"):
            return None
        if not any(f"{known}.".startswith(f"{name}.") for known in self.names):
            raise WriteItYourself(f"there is no {name} in the grader: write it yourself")
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.__dict__.update(self.names.get(module.__name__, {}))

        def missing(name):
            if name.startswith("__"):
                raise AttributeError(name)
            raise WriteItYourself(f"there is no {module.__name__}.{name} in the grader: write it yourself")

        module.__getattr__ = missing


def refusal(name: str):
    def write_it_yourself(*args, **named):
        raise WriteItYourself(f"{name} is what is asked for: write it yourself")

    return write_it_yourself


# ---- the pupil ------------------------------------------------------------------------------------------------------
def pupil(channel: Channel) -> None:
    """Run the cells, then answer calls until the grader hangs up."""
    job = receive(channel.link)
    functions = {name: channel.remote(content) for name, content in job["functions"].items()}
    names: dict = {}
    for place in job["shelf"]:
        module, _, name = place.rpartition(".")
        names.setdefault(module, {})[name] = functions.get(place) or refusal(place)
    checks = {name: lambda *args, **named: None for name in ("check", "draw", "hint", "progress_table")}
    checks["reference"] = checks["mine"] = lambda id: functions.get(id) or refusal(f'reference("{id}")')
    names["minispec_course.check"] = checks
    sys.meta_path[:] = [Shelf(names), *(f for f in sys.meta_path if "editable" not in str(getattr(f, "__module__", f)))]

    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    space = main.__dict__
    file = ""
    try:
        for number, source in enumerate(job["cells"]):
            file = f"<cell {number}>"
            linecache.cache[file] = (len(source), None, source.splitlines(True), file)
            exec(compile(source, file, "exec"), space)
        answer = space.get(job["function"])
        done = {"ready": callable(answer), "kind": type(answer).__name__}
    except BaseException as error:
        done = failure(error, file)
    send(channel.link, done)
    while True:
        call = receive(channel.link)
        random.seed(call["seed"])
        np.random.seed(call["seed"])
        torch.default_generator.manual_seed(call["seed"])
        before = random.getstate(), torch.get_rng_state()
        args = [decode(arg, channel.remote) for arg in call["call"]]
        given = [encode(arg, _only_remotes) for arg in args]
        try:
            found = answer(*args)
            after = [encode(arg, lambda value: {"remote": -1}) for arg in args]
            pairs = enumerate(zip(given, after, strict=True))
            done = {
                "value": encode(found),
                "changed": [i for i, (a, b) in pairs if a != b and not (isinstance(a, dict) and "remote" in a)],
                "drew": before[0] != random.getstate() or not torch.equal(before[1], torch.get_rng_state()),
            }
        except BaseException as error:
            done = failure(error, file)
        send(channel.link, done)


def failure(error: BaseException, file: str) -> dict:
    """An error as plain data: its name, its words, the last line of the student's cell that it came through."""
    line, frame = None, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == file:
            line = frame.tb_lineno
        frame = frame.tb_next
    if isinstance(error, SyntaxError) and error.filename == file:
        line = error.lineno
    try:
        text = str(error)
    except BaseException:
        text = ""
    source = linecache.getline(file, line).strip() if line else ""
    found = {"error": type(error).__name__, "text": text[:1000], "line": line, "source": source[:200]}
    if isinstance(getattr(error, "remote", None), int):
        found["number"] = error.remote
    return found


# ---- the nursery ----------------------------------------------------------------------------------------------------
def nursery(control: socket.socket) -> None:
    """Wait for orders, each with two sockets: the channel of a pupil, and its leash."""
    make_unreadable()  # to students, who may run under the same user's name
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers end unattended
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    torch.zeros(2) @ torch.zeros(2)
    while True:
        data, fds, _, _ = socket.recv_fds(control, 2**16, 2)
        if not data:
            return
        order = json.loads(data)
        if os.fork() == 0:
            try:
                keeper(order, *fds)
            finally:
                os._exit(1)
        for fd in fds:
            os.close(fd)
        control.sendall(b"x")  # one at a time


def keeper(order: dict, link: int, leash: int) -> None:
    """Fork the pupil, and end it when the grader lets go of the leash, or is gone itself."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    _only(link, leash)
    if "namespaces" in order["level"]:
        unshare()
    child = os.fork()  # the first process of the new namespace: with it all others in there end
    if child == 0:
        try:
            os.setpgid(0, 0)
            _only(link)
            channel = Channel(socket.socket(fileno=link))
            shut_in(order)
            send(channel.link, {"shut in": order["level"]})
            pupil(channel)
        finally:
            os._exit(0)
    os.close(link)
    try:
        while os.read(leash, 1):  # nothing comes when the other end is closed; else the grader asks for the time
            os.write(leash, struct.pack("=d", used(child)))
    finally:
        for end in (os.kill, os.killpg):  # where there is no namespace: with the processes that it should not have made
            with suppress(ProcessLookupError):
                end(child, signal.SIGKILL)
        os.waitpid(child, 0)
    os._exit(0)


def used(child: int) -> float:
    """The processor time of a process in seconds; 0 where the system does not say."""
    try:
        return time.clock_gettime((~child << 3) | 2)  # Linux's clock of another process
    except (OSError, AttributeError):
        return 0.0


def _only(*kept: int) -> None:
    """Close every file but these; what is printed goes nowhere."""
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    first = 3
    for fd in sorted(kept):
        os.closerange(first, fd)
        first = fd + 1
    os.closerange(first, 65536)


if __name__ == "__main__":
    with suppress(ConnectionError):  # the grader was interrupted between an order and our answer to it
        nursery(socket.socket(fileno=int(sys.argv[1])))
