"""Processes that judge. One that ends, or gets stuck, is replaced, and its task is tried once more.

A worker runs no student's code itself, but it compares what students' code returns, so it can be brought down. Then its
task goes to a fresh worker. If that one ends too, the answer is *not graded*: the grader's own failure, which is no
verdict about the student.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing import connection, get_context
from time import monotonic

from ..exercises.exercise import find
from .gradebook import UNGRADED, Result
from .guard import OutOfPatience, patience
from .pupil.process import address_space, make_unreadable
from .sandbox import Nursery

TRIES = 2  # of a task whose worker ends


def judged(tasks: Sequence, options, grade_one: Callable) -> Iterator[tuple]:
    """(task, result), as they come, from so many processes."""
    waiting, context = deque((task, 1) for task in tasks), get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="minispec-grade-") as folder:
        os.chmod(folder, 0o755)

        def hire() -> Worker:
            return Worker(context, options, folder, grade_one)

        crew = [hire() for _ in range(min(options.workers, len(tasks)))]
        try:
            while waiting or any(worker.task for worker in crew):
                for i, worker in enumerate(crew):
                    if waiting and worker.task is None:
                        if not worker.process.is_alive():
                            worker.end()
                            crew[i] = worker = hire()
                        worker.give(*waiting.popleft())
                connection.wait([worker.link for worker in crew if worker.task], timeout=1.0)
                for worker in crew:
                    if worker.task is None or (found := worker.look()) is None:
                        continue
                    task, tries, worker.task = worker.task, worker.tries, None
                    if isinstance(found, Result):
                        yield task, found
                    elif tries < TRIES:
                        waiting.append((task, tries + 1))
                    else:
                        yield task, not_graded(task, found)
        finally:
            for worker in crew:
                worker.end()


def not_graded(task, why: str) -> Result:
    text = f"{task.id}: not graded, because {why}, {TRIES} times. Grade this answer again, or look at it yourself."
    return Result(task.student, task.id, UNGRADED, 0, find(task.id).points, text)


class Worker:
    """A process of the grader's own, with a nursery."""

    def __init__(self, context, options, folder: str, grade_one: Callable):
        self.task, self.tries = None, 0
        self.link, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, options, folder, grade_one), daemon=True)
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started them all
        try:
            self.process.start()
        finally:
            signal.signal(signal.SIGINT, handler)
        theirs.close()

    def give(self, task, tries: int) -> None:
        limit = 4 * patience(task.exercise.seconds) + 240  # ours is the most: a model may have to be loaded
        self.task, self.tries, self.end_of_patience = task, tries, monotonic() + limit
        with suppress(OSError):  # it has just ended: look() will find that out
            self.link.send(task)

    def look(self) -> Result | str | None:
        """The result, if there is one; why there will be none; None: it is still at work."""
        try:
            if self.link.poll():
                kind, found = self.link.recv()
                if kind == "cannot":  # it cannot work at all, and says why
                    raise ValueError(found)
                if kind == "failed":
                    self.stop()  # whatever it was, the next task gets a fresh worker
                return found
        except (EOFError, OSError):
            self.stop()
            return "the grader's own process ended"
        if monotonic() > self.end_of_patience:
            self.stop()
            return "the grader gave up waiting"
        return None

    def stop(self) -> None:
        self.process.kill()  # its nursery ends with it, and takes its pupils along
        self.process.join()

    def end(self) -> None:
        self.link.close()
        self.stop()


def serve(link, options, folder: str, grade_one: Callable) -> None:
    """The life of a worker."""
    make_unreadable()  # students' code may run under the same user's name
    try:
        nursery = Nursery(options.limits, options.require_sandbox, folder=folder)
    except ValueError as error:
        link.send(("cannot", str(error)))
        return
    with nursery, suppress(EOFError, OSError):  # nobody is there any more
        limit_memory(options.limits.grader_bytes)
        while True:
            task = link.recv()
            try:
                found = "result", grade_one(nursery, task)
            except OutOfPatience:
                found = "failed", "the machine is so busy that it did not get the time that it may use"
            except Exception as error:  # the student's part has been caught where it ran: this is our own
                found = "failed", f"the grader raised {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            link.send(found)


def limit_memory(more: int) -> None:
    """Of this process: what it has, and so many bytes more. Questions of students' code are answered here."""
    import resource  # which Windows does not have

    with suppress(ValueError, OSError):  # macOS knows no such limit
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        limit = address_space() + more
        resource.setrlimit(resource.RLIMIT_AS, (limit if most == resource.RLIM_INFINITY else min(limit, most), most))
