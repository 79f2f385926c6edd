"""Grade a class: minispec grade SUBMISSIONS/ --out grades.csv

Every answer is judged by the same `judge` that the student's own check calls, with the same words, but here: the
student's function runs in a process of its own (sandbox.py), and only plain data come back from it. Of a submission
nothing is used but the sources of its answer cells (submission.py); all other cells come from the course.

Results go into a journal beside the CSV as they come: after Ctrl-C the same command goes on where it stopped. Processes
of the grader's own do the judging. The cases that no student has seen follow from a secret in a file of the teacher's.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import signal
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from multiprocessing import connection, get_context
from pathlib import Path
from time import monotonic

import jupytext
from tqdm import tqdm

from ..build import builder
from ..exercises.exercise import everything, find
from .attempt import OutOfPatience, TimeUp, patience
from .check import NOT_ATTEMPTED, RIGHT, WRONG, earned, judge, report
from .pupil.process import address_space, make_unreadable, unreadable
from .report import UNGRADED, Result, write_csv
from .sandbox import Failed, Gone, Limits, Nursery, Surroundings, printable, surroundings
from .submission import Submission, read_folder

MAGIC = re.compile(r"^[%!].*$", re.MULTILINE)  # IPython's own commands, which are no Python
SHORTEST = 32  # characters of a secret
TRIES = 2  # of a task whose worker ends


@dataclass(frozen=True)
class Task:
    """One student, one exercise."""

    student: str
    id: str
    answers: tuple[str, ...]  # the source asked for; before it, where the exercise joins them, the earlier ones
    problem: str | None = None  # why there is no source
    secret: bytes | None = field(default=None, repr=False)  # for cases that no student has seen
    partial: bool = False  # a wrong answer gets the points of the properties that it has


@dataclass(frozen=True)
class Options:
    workers: int = 1
    limits: Limits = field(default_factory=Limits)
    require_sandbox: bool = False
    secret: bytes | None = field(default=None, repr=False)  # None: the one in the file beside the CSV
    partial: bool = True
    again: tuple[str, ...] = ()  # students and exercises that are judged again, whatever the journal says


def read_secret(file: Path) -> bytes:
    """The secret in a file; where there is none, one is made that its owner alone can read.

    A small seed could be guessed, by trying all of them until the cases of a known mark come out; 256 bits cannot.
    """
    with suppress(FileExistsError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
            stream.write(secrets.token_hex(32) + "\n")
    found = file.read_bytes().strip()
    if len(found) < SHORTEST:
        raise ValueError(f"secret={str(file)!r} holds {len(found)} characters: give ≥ {SHORTEST}, or delete the file")
    return found


# ---- one answer -----------------------------------------------------------------------------------------------------


@cache
def course(number: str) -> Surroundings:
    """The course's own cells of a set."""
    [job] = [job for job in builder.jobs([number]) if job.kind == "exercise"]
    notebook = jupytext.reads(job.source.read_text(encoding="utf-8"), fmt="py:percent")
    return surroundings([(c.metadata.get("exercise"), c.source) for c in notebook.cells if c.cell_type == "code"])


def grade_one(nursery: Nursery, task: Task) -> Result:
    """Judge one answer. Never raises on account of the student."""
    start, exercise = monotonic(), find(task.id)
    exercise = replace(exercise, seconds=nursery.limits.seconds or exercise.seconds)
    if task.problem is not None:
        return Result(task.student, task.id, NOT_ATTEMPTED, 0, exercise.points, f"{task.id}: {task.problem}.")
    outcome, mutant, properties, points = WRONG, None, {}, 0
    try:
        around = course(task.id.split(".")[0])
        with nursery.pupil(exercise, around, [without_magic(source) for source in task.answers]) as answer:
            judgement = judge(exercise, answer, task.secret)
        outcome, text, mutant = judgement.outcome, judgement.text, judgement.mutant
        properties, points = judgement.properties, earned(exercise, judgement, task.partial)
    except (Failed, Gone) as error:
        text = report(exercise, str(error))
    except TimeUp:
        text = report(exercise, f"Your cell was stopped after {exercise.seconds:g} seconds, before it was finished.")
    text = "\n".join(printable(line, 2000) for line in text.splitlines()[:60])
    facts = mutant, round(monotonic() - start, 3), nursery.level, properties
    return Result(task.student, task.id, outcome, points, exercise.points, text, *facts)


def without_magic(source: str) -> str:
    """IPython's commands become empty lines where the source is no Python because of them."""
    try:
        compile(source, "", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return MAGIC.sub("", source)
    return source


# ---- a class --------------------------------------------------------------------------------------------------------


def tasks_of(submissions: Sequence[Submission], names: Sequence[str], options: Options) -> list[Task]:
    """What is to be judged: all exercises of these sets (or of all sets that anybody handed in), of every student."""
    known = everything()
    handed_in = {id.split(".")[0] for s in submissions for id in (*s.answers, *s.problems)}
    sets = {name.partition("_")[0] for name in names} or handed_in
    for name in sets - {id.split(".")[0] for id in known}:
        raise ValueError(f"sets={name!r}: there is no such set of exercises; give a number such as 06")
    tasks = []
    for submission in submissions:
        for id, exercise in known.items():
            if id.split(".")[0] in sets:
                before = [o for o in known if o.split(".")[0] == id.split(".")[0] and o != id] if exercise.joins else []
                sources = [submission.answers[o] for o in (*before, id) if o in submission.answers]
                problem = None if id in submission.answers else missing(submission, id)
                tasks.append(Task(submission.student, id, tuple(sources), problem, options.secret, options.partial))
    return tasks


def missing(submission: Submission, id: str) -> str:
    if id in submission.problems:
        return submission.problems[id]
    why = f" ({'; '.join(printable(remark, 300) for remark in submission.remarks)})" if submission.remarks else ""
    return f"not handed in: there is no answer cell with its name{why}"


def chosen(tasks: Sequence[Task], names: Sequence[str]) -> set[Task]:
    """The tasks of these students and exercises; of both, where both are named."""
    students, exercises = {task.student for task in tasks}, {task.id for task in tasks}
    for name in names:
        if name not in students | exercises:
            raise ValueError(f"again={name!r} is neither a student nor an exercise of this class")
    of, only = students & {*names} or students, exercises & {*names} or exercises
    return {task for task in tasks if task.student in of and task.id in only} if names else set()


def grade(folder: Path, out: Path, sets: Sequence[str] = (), options: Options | None = None) -> list[Result]:
    """Grade all submissions of a folder; write the CSV. Goes on from the journal of an earlier run."""
    options = options or Options()
    if out.suffix != ".csv":
        raise ValueError(f"out={str(out)!r}: give a file that ends in .csv")
    if options.workers < 1:
        raise ValueError(f"workers={options.workers}: give a whole number ≥ 1")
    submissions = read_folder(folder)
    if options.secret is None:
        options = replace(options, secret=read_secret(out.with_suffix(".secret")))
    tasks = tasks_of(submissions, sets, options)
    again = chosen(tasks, options.again)
    out.parent.mkdir(parents=True, exist_ok=True)
    journal = Journal(out.with_suffix(".journal.jsonl"), options.limits)
    done = {task: found for task in tasks if task not in again and (found := journal.find(task))}
    left = [task for task in tasks if task not in done]
    try:
        bar = tqdm(total=len(tasks), initial=len(done), unit="answer", disable=None, file=sys.stderr)
        with bar, unreadable():  # this process knows the secret
            for task, result in judged(left, options, grade_one):
                if result.outcome != UNGRADED:
                    journal.add(task, result)
                done[task] = result
                bar.update()
    except KeyboardInterrupt:
        print(f"{len(done)} of {len(tasks)} answers are graded: the same command goes on from there", file=sys.stderr)
        raise
    notes = {(s.student, id): note for s in submissions for id, note in s.notes.items()}
    results = [replace(done[task], note=notes.get((task.student, task.id), "")) for task in tasks]
    write_csv(out, results)
    return results


# ---- what has been judged already -----------------------------------------------------------------------------------


class Journal:
    """One line of JSON a result, so that an interrupted run goes on where it stopped.

    What stands in it is not judged again, as long as neither the answer nor the exercise nor the secret has changed.
    Only verdicts about students stand in it. A line that was cut off, or that is not what it should be, is no line.
    """

    def __init__(self, file: Path, limits: Limits):
        self.file, self.limits, self.known = file, limits, {}
        if file.is_file():
            for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
                with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
                    entry = json.loads(line)
                    key = entry.pop("key")
                    result = Result(**entry)
                    if 0 <= result.points <= result.possible and result.outcome in (RIGHT, WRONG, NOT_ATTEMPTED):
                        self.known[key] = result
            if not file.read_bytes().endswith(b"\n"):
                with file.open("a") as stream:  # the next one begins on a line of its own
                    stream.write("\n")

    def find(self, task: Task) -> Result | None:
        """The result of this very answer, of this very student."""
        found = self.known.get(self.key(task))
        return found if found and (found.student, found.id) == (task.student, task.id) else None

    def key(self, task: Task) -> str:
        """Everything that a mark depends on."""
        about = {**asdict(task), "secret": task.secret and hashlib.sha256(task.secret).hexdigest()}
        everything = json.dumps([about, asdict(self.limits), fingerprint(task.id)])
        return hashlib.sha256(everything.encode()).hexdigest()

    def add(self, task: Task, result: Result) -> None:
        with self.file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"key": self.key(task), **asdict(result)}) + "\n")
            stream.flush()
            os.fsync(stream.fileno())


@cache
def fingerprint(id: str) -> str:
    """Of all that defines an exercise: where it changes, its marks are out of date."""
    number, here, content = id.split(".")[0], Path(__file__).parent, Path(__file__).parents[1] / "exercises"
    files = [here / "check.py", here / "diagnosis.py", content / "fresh.py", content / "show.py"]
    files += sorted(content.glob(f"*{number}*.py"))
    files += [job.source for job in builder.jobs([number]) if job.kind == "exercise"]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


# ---- the processes that judge ---------------------------------------------------------------------------------------


def judged(tasks: Sequence[Task], options: Options, grade_one: Callable) -> Iterator[tuple[Task, Result]]:
    """(task, result), as they come, from so many processes.

    A worker runs no student's code itself, but it compares what students' code returns, so it can be brought down. Then
    its task goes to a fresh worker. If that one ends too, the answer is *not graded*: the grader's own failure, which
    is no verdict about the student.
    """
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


def not_graded(task: Task, why: str) -> Result:
    text = f"{task.id}: not graded, because {why}, {TRIES} times. Grade this answer again, or look at it yourself."
    return Result(task.student, task.id, UNGRADED, 0, find(task.id).points, text)


class Worker:
    """A process of the grader's own, with a nursery."""

    def __init__(self, context, options: Options, folder: str, grade_one: Callable):
        self.task, self.tries = None, 0
        self.link, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, options, folder, grade_one), daemon=True)
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started them all
        try:
            self.process.start()
        finally:
            signal.signal(signal.SIGINT, handler)
        theirs.close()

    def give(self, task: Task, tries: int) -> None:
        limit = 4 * patience(find(task.id).seconds) + 240  # ours is the most: a model may have to be loaded
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


def serve(link, options: Options, folder: str, grade_one: Callable) -> None:
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
