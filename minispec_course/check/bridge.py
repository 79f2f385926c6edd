"""Call a student's function as if it were here, though it is in another process.

The check calls a `Pupil` like any function. What it hands over and cannot be copied, a scripted model, a device that
captures or a random number, stays here: the other side asks for every use of it, and `use` does what may be done to it.
What comes back is decoded here. So all that is compared, and all that it is compared with, lives in this process.
"""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import socket
import struct
import tempfile
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, thread_time

import torch

from ..exercises.exercise import Complaint, Number
from ..exercises.fakes import Device, Later
from .guard import POLL, OutOfPatience, patience
from .pupil import plain
from .uses import use

MOST_BYTES = 4 * 2**20  # of one message from a student's process
MOST_QUESTIONS, MOST_KEPT = 5_000, 5_000  # in one call: what is asked, and what is remembered for it; honest: 203, 7
USED = "=dc"  # what the keeper says of a process: seconds of processor time, and its state as in /proc
START_SECONDS = 120.0  # until torch is imported, on a busy machine
# Errors that a check may look out for. One of any other name comes back as a plain Exception of that name.
ERRORS = {
    error.__name__: error
    for error in (NotImplementedError, RuntimeError, ZeroDivisionError, OverflowError, ValueError, TypeError)
}


class Gone(Complaint):
    """The student's process is not there any more, or speaks nonsense."""


class Failed(Exception):
    """The cells do not run: there is no function to check."""


class Pupil:
    """Called like the student's function. Whatever the process says is decoded here, and believed in nothing else."""

    def __init__(self, nursery, level: str, user: int | None, seconds: float):
        self.seconds, self.end = seconds, monotonic() + patience(seconds)
        self.looked, self.slept, self.used, self.listening = monotonic(), 0.0, 0.0, False  # for the clock of its time
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
        self.end = monotonic() + 3 * patience(self.seconds)  # the check has its own clock, and its own words
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
            raise self._lost("Your function's process does not answer as it should.")
        if done.get("stale"):
            raise Complaint(
                "a later call of your function changes what an earlier one returned. Make a new result each time."
            )
        self.changed += [args[i] for i in changed if type(i) is int and 0 <= i < len(args)]
        if drew:
            random.random()  # as the function would have done here: a check that watches for it sees it
        return self._decode(done["value"])

    # -- its time

    def spent(self) -> float:
        """Seconds that this answer has had: processor time, its own and ours in its service, and what it slept.

        The time in which it, or this process, waits for a processor is not counted: on a busy machine that may be most.
        """
        now = monotonic()
        try:
            self.leash.settimeout(START_SECONDS)
            self.leash.sendall(b"t")
            self.used, state = struct.unpack(USED, self.leash.recv(struct.calcsize(USED), socket.MSG_WAITALL))
        except (OSError, struct.error):
            state = b"?"  # the keeper is gone, and so is the answer
        if self.used < 0:
            return now  # a system that does not say: then the wall clock has to do
        if self.listening and state not in b"RD" and not select.select([self.link], [], [], 0)[0]:
            self.slept += min(now - self.looked, 2 * POLL)  # it is neither at work nor done
        self.looked = now
        return self.used + self.slept + thread_time()

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
            self.link.settimeout(max(0.001, self.end - monotonic()))
            plain.send(self.link, message)
        except TimeoutError:
            raise OutOfPatience from None
        except OSError:
            raise self._lost("Your function ended the process that it ran in.") from None

    def _receive(self) -> dict:
        try:
            self.link.settimeout(max(0.001, self.end - monotonic()))
            self.listening = True
            message = plain.receive(self.link, MOST_BYTES)
        except TimeoutError:
            raise OutOfPatience from None
        except (EOFError, OSError):
            raise self._lost(
                "Your function ended the process that it ran in: by an exit, or for want of memory."
            ) from None
        except plain.NoPlainData as error:
            raise self._lost(f"Your function's result cannot be read: {error}.") from None
        finally:
            self.listening = False
        if type(message) is not dict:
            raise self._lost("Your function's process does not answer as it should.")
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
        number = done.get("number")
        if type(number) is int and 0 <= number < len(self.objects) and isinstance(self.objects[number], Exception):
            error = self.objects[number]
            error.where = self._place(done)
            return error
        name, text = done.get("error"), printable(done.get("text"))
        name = name[:60] if type(name) is str and name.isidentifier() else "Exception"
        error = type(name, (ERRORS.get(name, Exception),), {"__str__": lambda self: text})()
        error.where = self._place(done)
        return error

    def _place(self, done: dict) -> str:
        line, source = done.get("line"), printable(done.get("source"), 200)
        return f", in line {line} of its cell" + f": {source}" * bool(source) if type(line) is int else ""

    # -- what stays here

    def _forget(self) -> None:
        """What an earlier call was handed is out of reach for the next."""
        self.objects, self.numbers, self.questions = list(self.functions), {}, 0

    def _offer(self, value) -> dict:
        """A number for an object that does not travel, and what can be done with it."""
        if isinstance(value, Number):
            kind = plain.NUMBER
        elif isinstance(value, Device):
            kind = plain.DEVICE
        elif isinstance(value, Later):
            kind = plain.LATER
        elif hasattr(value, "rewind"):
            kind = plain.MODEL
        elif hasattr(value, "__iter__"):
            kind = plain.TILES
        elif callable(value):
            kind = plain.CALL
        else:
            raise TypeError(f"{type(value).__name__} cannot be handed to a student's process")
        return {"remote": self._keep(value), "kind": kind}

    def _keep(self, value) -> int:
        if id(value) not in self.numbers:
            self.numbers[id(value)] = len(self.objects)
            self.objects.append(value)
        return self.numbers[id(value)]

    def _resolve(self, number):
        if type(number) is not int or not 0 <= number < len(self.objects):
            raise plain.NoPlainData("an unknown object in a message")
        return self.objects[number]

    def _serve(self, request: dict) -> dict:
        """One use of an object that stays here. There are few, and each object has its own."""
        self.questions += 1
        if self.questions > MOST_QUESTIONS or len(self.objects) > MOST_KEPT:
            raise self._lost(f"Your function asked for more than {MOST_QUESTIONS} things. Is there a loop without end?")
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
        shutil.rmtree(self.home, ignore_errors=True)

    def __enter__(self) -> Pupil:
        return self

    def __exit__(self, *_) -> None:
        self.close()


def printable(text, most: int = 1000) -> str:
    """Words of a student's process: no control characters, and not too many."""
    return "".join(c if c.isprintable() else " " for c in text[:most]) if type(text) is str else ""
