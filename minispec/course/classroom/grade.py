"""Grade a class: minispec grade SUBMISSIONS/ --out grades.csv

Every answer is judged by the same `judge` that the student's own check calls, with the same words, but here: the
student's function runs in a process of its own (sandbox.py), and only plain data come back from it. Of a submission
nothing is used but the sources of its answer cells (submission.py); all other cells come from the course.

Results go into a journal beside the CSV as they come. What stands in it is not graded again, as long as neither the
answer nor the exercise has changed: after Ctrl-C the same command goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from multiprocessing import connection, get_context
from pathlib import Path
from time import monotonic

import jupytext
from tqdm import tqdm

from . import builder
from .bridge import Failed, Gone, printable
from .check import NOT_ATTEMPTED, RIGHT, WRONG, judge, report
from .exercise import Exercise, everything, find
from .gradebook import Result, write_csv, write_details
from .guard import TimeUp
from .sandbox import Limits, Nursery, Surroundings, surroundings
from .submission import Submission, read_folder
from .variants import graded

MAGIC = re.compile(r"^[%!].*$", re.MULTILINE)  # IPython's own commands, which are no Python


@dataclass(frozen=True)
class Task:
    """One student, one exercise."""

    student: str
    id: str
    answers: tuple[str, ...]  # the source asked for; before it, where the exercise joins them, the earlier ones
    problem: str | None = None  # why there is no source
    seed: int | None = None
    own: bool = False  # a variant of the student's own, not of the class

    @property
    def exercise(self) -> Exercise:
        return graded(self.id, self.seed, self.student if self.own else None)


@dataclass(frozen=True)
class Options:
    workers: int = 1
    limits: Limits = field(default_factory=Limits)
    require_sandbox: bool = False
    seed: int | None = None
    per_student: bool = False


# ---- one answer -----------------------------------------------------------------------------------------------------


@cache
def course(number: str) -> Surroundings:
    """The course's own cells of a set."""
    [job] = [job for job in builder.jobs([number]) if job.kind == "exercise"]
    notebook = jupytext.reads(job.source.read_text(encoding="utf-8"), fmt="py:percent")
    return surroundings([(c.metadata.get("exercise"), c.source) for c in notebook.cells if c.cell_type == "code"])


def grade_one(nursery: Nursery, task: Task) -> Result:
    """Judge one answer. Never raises on account of the student."""
    start, exercise = monotonic(), task.exercise
    exercise = replace(exercise, seconds=nursery.limits.seconds or exercise.seconds)
    if task.problem is not None:
        return Result(task.student, task.id, NOT_ATTEMPTED, 0, exercise.points, f"{task.id}: {task.problem}.")
    outcome, mutant = WRONG, None
    try:
        around = course(task.id.split(".")[0])
        with nursery.pupil(exercise, around, [without_magic(source) for source in task.answers]) as answer:
            judgement = judge(exercise, answer)
        outcome, text, mutant = judgement.outcome, judgement.text, judgement.mutant
    except (Failed, Gone) as error:
        text = report(exercise, str(error))
    except TimeUp:
        text = report(exercise, f"Your cell was stopped after {exercise.seconds:g} seconds, before it was finished.")
    points = exercise.points if outcome == RIGHT else 0
    text = "\n".join(printable(line, 2000) for line in text.splitlines()[:60])
    seconds = round(monotonic() - start, 3)
    return Result(task.student, task.id, outcome, points, exercise.points, text, mutant, seconds, nursery.level)


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
                tasks.append(Task(submission.student, id, tuple(sources), problem, options.seed, options.per_student))
    return tasks


def missing(submission: Submission, id: str) -> str:
    if id in submission.problems:
        return submission.problems[id]
    why = f" ({'; '.join(printable(remark, 300) for remark in submission.remarks)})" if submission.remarks else ""
    return f"not handed in: there is no answer cell with its name{why}"


def grade(folder: Path, out: Path, sets: Sequence[str] = (), options: Options | None = None) -> list[Result]:
    """Grade all submissions of a folder; write the CSV. Goes on from the journal of an earlier run."""
    options = options or Options()
    if out.suffix != ".csv":
        raise ValueError(f"out={str(out)!r}: give a file that ends in .csv")
    if options.workers < 1:
        raise ValueError(f"workers={options.workers}: give a whole number ≥ 1")
    tasks = tasks_of(read_folder(folder), sets, options)
    out.parent.mkdir(parents=True, exist_ok=True)
    journal = Journal(out.with_suffix(".journal.jsonl"), options)
    done = {task: journal.known[key] for task in tasks if (key := journal.key(task)) in journal.known}
    left = [task for task in tasks if task not in done]
    try:
        with tqdm(total=len(tasks), initial=len(done), unit="answer", disable=None, file=sys.stderr) as bar:
            for task, result in judged(left, options):
                journal.add(task, result)
                done[task] = result
                bar.update()
    except KeyboardInterrupt:
        print(f"{len(done)} of {len(tasks)} answers are graded: the same command goes on from there", file=sys.stderr)
        raise
    results = [done[task] for task in tasks]
    write_csv(out, results)
    write_details(out.with_name(f"{out.stem}.details.csv"), results)
    return results


class Journal:
    """One line a result. A line that was cut off is no line."""

    def __init__(self, file: Path, options: Options):
        self.file, self.options, self.known = file, options, {}
        if file.is_file():
            for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    entry = json.loads(line)
                    key = entry.pop("key")
                    self.known[key] = Result(**entry)
                except (ValueError, TypeError, KeyError, AttributeError):
                    continue
            if not file.read_bytes().endswith(b"\n"):
                with file.open("a") as stream:  # the next one begins on a line of its own
                    stream.write("\n")

    def key(self, task: Task) -> str:
        """Everything that a mark depends on."""
        about = [task.student, task.id, task.answers, task.problem, task.seed, task.own, asdict(self.options.limits)]
        return hashlib.sha256(json.dumps([*about, fingerprint(task.id)]).encode()).hexdigest()

    def add(self, task: Task, result: Result) -> None:
        with self.file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"key": self.key(task), **asdict(result)}) + "\n")
            stream.flush()
            os.fsync(stream.fileno())


@cache
def fingerprint(id: str) -> str:
    """Of all that defines an exercise: where it changes, its marks are out of date."""
    number, here = id.split(".")[0], Path(__file__).parent
    sources = [job.source for job in builder.jobs([number]) if job.kind == "exercise"]
    files = [here / f"sets/e{number}.py", here / "variants.py", *sources]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


# ---- workers --------------------------------------------------------------------------------------------------------


def judged(tasks: Sequence[Task], options: Options) -> Iterator[tuple[Task, Result]]:
    """Results, as they come, from so many processes. One that gets stuck is replaced; its task has failed."""
    waiting, context = list(reversed(tasks)), get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="minispec-grade-") as folder:
        os.chmod(folder, 0o755)
        crew = [Worker(context, options, folder) for _ in range(min(options.workers, len(tasks)))]
        try:
            while waiting or any(worker.task for worker in crew):
                for worker in crew:
                    if waiting and worker.task is None:
                        worker.give(waiting.pop())
                connection.wait([worker.link for worker in crew], timeout=1.0)
                for i, worker in enumerate(crew):
                    if worker.task is not None and (result := worker.look()) is not None:
                        yield worker.task, result
                        worker.task = None
                        if not worker.is_well():
                            worker.end()
                            crew[i] = Worker(context, options, folder)
        finally:
            for worker in crew:
                worker.end()


class Worker:
    """A process of the grader's own, with a nursery: it judges, and runs no student's code itself."""

    def __init__(self, context, options: Options, folder: str):
        self.task: Task | None = None
        self.link, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, options, folder), daemon=True)
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started them all
        try:
            self.process.start()
        finally:
            signal.signal(signal.SIGINT, handler)
        theirs.close()

    def give(self, task: Task) -> None:
        limit = 4 * task.exercise.seconds + 240  # ours is the most: a model may have to be loaded
        self.task, self.end_of_patience = task, monotonic() + limit
        self.link.send(task)

    def look(self) -> Result | None:
        """The result, if there is one; a failure, if there will be none."""
        try:
            while self.link.poll():
                found = self.link.recv()
                if isinstance(found, str):  # it cannot work at all, and says why
                    raise ValueError(found)
                return found
        except (EOFError, OSError):
            return self._failure("the grader's own process ended")
        if monotonic() > self.end_of_patience:
            self.process.kill()
            return self._failure("the grader gave up waiting")
        return None

    def _failure(self, why: str) -> Result:
        points, text = find(self.task.id).points, f"{self.task.id}: {why}. Look at this answer yourself."
        return Result(self.task.student, self.task.id, WRONG, 0, points, text)

    def is_well(self) -> bool:
        return self.process.is_alive()

    def end(self) -> None:
        self.link.close()
        self.process.kill()  # its nursery ends with it, and takes its pupils along
        self.process.join()


def serve(link, options: Options, folder: str) -> None:
    """The life of a worker."""
    try:
        with Nursery(options.limits, options.require_sandbox, folder=folder) as nursery:
            while True:
                link.send(grade_one(nursery, link.recv()))
    except ValueError as error:
        link.send(str(error))
    except (EOFError, OSError):
        pass  # nobody is there any more
