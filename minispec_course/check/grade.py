"""Grade a class: minispec grade SUBMISSIONS/ --out grades.csv

Every answer is judged by the same `judge` that the student's own check calls, but the student's function runs in a
process of its own (sandbox.py), from the sources of answer cells alone (submission.py). Results go into a journal as
they come. The cases that no student has seen follow from a secret in a file of the teacher's.
"""

import hashlib
import json
import os
import re
import secrets
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from multiprocessing import get_context
from multiprocessing.pool import ThreadPool
from pathlib import Path
from time import monotonic

from tqdm import tqdm

from minispec.load.write import write_whole

from ..build import builder, cells
from ..exercises.exercise import everything, find
from .attempt import SLACK, TimeUp
from .check import NOT_ATTEMPTED, WRONG, earned, judge, report
from .pupil.process import address_space, make_unreadable
from .report import UNGRADED, Result, write_csv
from .sandbox import Failed, Gone, Limits, Nursery, Surroundings, printable, remove, surroundings
from .submission import Submission, read_folder

MAGIC = re.compile(r"^[%!].*$", re.MULTILINE)  # IPython's own commands, which are no Python
SHORTEST = 32  # characters of a secret
MOST_SECONDS = 3600  # for one answer


@dataclass(frozen=True)
class Task:
    """One student, one exercise."""

    student: str
    id: str
    answers: tuple[str, ...]  # the source asked for; before it, where the exercise joins them, the earlier ones
    problem: str | None = None  # why there is no source
    secret: bytes | None = field(default=None, repr=False)  # for cases that no student has seen


@dataclass(frozen=True)
class Options:
    workers: int = 1  # at most: as many as there are processors, and gigabytes of memory
    limits: Limits = field(default_factory=Limits)
    require_sandbox: bool = False
    hidden: tuple[Path, ...] = ()  # from students' code: what the class handed in, and what comes of it


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
    notebook, _ = cells.read_set(job.source)
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
        with nursery.pupil(exercise, around, [plain_python(source) for source in task.answers]) as answer:
            judgement = judge(exercise, answer, task.secret)
        outcome, text, mutant = judgement.outcome, judgement.text, judgement.mutant
        properties, points = judgement.properties, earned(exercise, judgement)
    except (Failed, Gone) as error:
        text = report(exercise, str(error))
    except TimeUp:
        text = report(exercise, f"Your cell was stopped after {exercise.seconds:g} seconds, before it was finished.")
    text = "\n".join(printable(line, 2000) for line in text.splitlines()[:60])
    facts = mutant, round(monotonic() - start, 3), nursery.level, properties
    return Result(task.student, task.id, outcome, points, exercise.points, text, *facts)


def plain_python(source: str) -> str:
    """Without the lesson's decorator. IPython's commands become empty lines where they make the source no Python."""
    source = cells.YOURS.sub("\n", source)
    try:
        compile(source, "", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return MAGIC.sub("", source)
    return source


# ---- a class --------------------------------------------------------------------------------------------------------
def tasks_of(submissions: Sequence[Submission], names: Sequence[str], secret: bytes | None = None) -> list[Task]:
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
                tasks.append(Task(submission.student, id, tuple(sources), problem, secret))
    return tasks


def missing(submission: Submission, id: str) -> str:
    if id in submission.problems:
        return submission.problems[id]
    why = f" ({'; '.join(printable(remark, 300) for remark in submission.remarks)})" if submission.remarks else ""
    return f"not handed in: there is no answer cell with its name{why}"


def grade(folder: Path, out: Path, sets: Sequence[str] = (), options: Options | None = None) -> list[Result]:
    """Grade all submissions of a folder; write the CSV. Goes on from the journal of an earlier run."""
    if out.suffix != ".csv" or out.is_dir():
        raise ValueError(f"out={str(out)!r}: give a file that ends in .csv")
    if options and not (options.limits.seconds or 1) <= MOST_SECONDS:
        raise ValueError(f"seconds={options.limits.seconds:g}: give at most {MOST_SECONDS}")
    beside = [out.with_suffix(suffix) for suffix in (".secret", ".journal.jsonl")]
    options = replace(options or Options(), hidden=(folder, out, *beside))
    make_unreadable()  # this process knows the secret
    tasks = tasks_of(read_folder(folder), sets, read_secret(beside[0]))
    out.parent.mkdir(parents=True, exist_ok=True)
    journal = Journal(beside[1], options.limits)
    done = {task: found for task in tasks if (found := journal.find(task))}
    left = [task for task in tasks if task not in done]
    try:
        bar = tqdm(total=len(tasks), initial=len(done), unit="answer", disable=None, file=sys.stderr)
        with bar, closing(judged(left, options, grade_one)) as found:
            for task, result in found:
                if result.outcome != UNGRADED:
                    journal.add(task, result)
                done[task] = result
                bar.update()
    except KeyboardInterrupt:
        print(f"{len(done)} of {len(tasks)} answers are graded: the same command goes on from there", file=sys.stderr)
        raise
    results = [done[task] for task in tasks]
    write_csv(out, results)
    return results


# ---- what has been judged already -----------------------------------------------------------------------------------
class Journal:
    """One line of JSON a result, so that an interrupted run goes on where it stopped.

    What stands in it is not judged again, as long as neither the answer nor the exercise nor the secret has changed.
    Only verdicts about students stand in it. A line that was cut off is no line.
    """

    def __init__(self, file: Path, limits: Limits):
        self.file, self.limits, self.known = file, limits, {}
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        if text and not text.endswith("\n"):
            write_whole(file, text + "\n")  # the next one begins on a line of its own
        for line in text.splitlines():
            with suppress(ValueError, TypeError, KeyError):
                entry = json.loads(line)
                key = entry.pop("key")
                self.known[key] = Result(**entry)

    def find(self, task: Task) -> Result | None:
        """The result of this very answer, of this very student."""
        return self.known.get(self.key(task))

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
    files = [job.source for job in builder.jobs([id.split(".")[0]]) if job.kind == "exercise"]
    for ours in ("check/*.py", "exercises/*.py", "exercises/set_*/cases.py"):
        files += sorted(Path(__file__).parents[1].glob(ours))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


# ---- the processes that judge ---------------------------------------------------------------------------------------
def judged(tasks: Sequence[Task], options: Options, grade_one: Callable) -> Iterator[tuple[Task, Result]]:
    """(task, result), as they come, from so many workers, each with a thread that waits for it.

    A worker runs no student's code itself, but it compares what students' code returns, so it can be brought down. Then
    the answer is *not graded*, which is no verdict about the student, and the next one gets a fresh worker.
    """
    own, crew, folder = threading.local(), [], tempfile.mkdtemp(prefix="minispec-grade-")
    os.chmod(folder, 0o755)

    def one(task: Task) -> tuple[Task, Result]:
        if not hasattr(own, "worker") or not own.worker.process.is_alive():
            own.worker = Worker(options, folder, grade_one)
            crew.append(own.worker)
        return task, own.worker.judge(task)

    def deaf() -> None:  # Ctrl-C is for the main thread, and not for the processes that this one starts
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

    gigabytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**30
    pool = ThreadPool(max(1, min(options.workers, len(tasks), os.cpu_count() or 1, gigabytes)), initializer=deaf)
    try:
        yield from pool.imap_unordered(one, tasks)
    finally:
        pool.terminate()
        for worker in crew:
            worker.stop()
        remove(folder)


def not_graded(task: Task, why: str) -> Result:
    text = f"{task.id}: not graded, because {why}. Grade this answer again, or look at it yourself."
    return Result(task.student, task.id, UNGRADED, 0, find(task.id).points, text)


class Worker:
    """A process of the grader's own, with a nursery."""

    def __init__(self, options: Options, folder: str, grade_one: Callable):
        context, self.seconds = get_context("spawn"), options.limits.seconds
        self.link, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, options, folder, grade_one), daemon=True)
        self.process.start()
        theirs.close()

    def judge(self, task: Task) -> Result:
        limit = 4 * SLACK * (self.seconds or find(task.id).seconds) + 240  # most is ours: a model has to be loaded
        kind, found = "failed", "the grader gave up waiting"
        try:
            self.link.send(task)
            if self.link.poll(limit):
                kind, found = self.link.recv()
        except (EOFError, OSError):
            found = "the grader's own process ended"
        if kind == "cannot":  # it cannot work at all, and says why
            raise ValueError(found)
        if kind == "failed":
            self.stop()  # whatever it was, the next task gets a fresh worker
        return found if isinstance(found, Result) else not_graded(task, found)

    def stop(self) -> None:
        self.process.kill()  # its nursery ends with it, and takes its pupils along
        self.process.join()


def serve(link, options: Options, folder: str, grade_one: Callable) -> None:
    """The life of a worker."""
    make_unreadable()  # students' code may run under the same user's name
    try:
        nursery = Nursery(options.limits, options.require_sandbox, folder, hidden=options.hidden)
    except ValueError as error:
        link.send(("cannot", str(error)))
        return
    with nursery, suppress(EOFError, OSError):  # nobody is there any more
        limit_memory(options.limits.grader_bytes)
        while True:
            task = link.recv()
            try:
                found = "result", grade_one(nursery, task)
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
