"""Grade a class: minispec grade SUBMISSIONS/ --out grades.csv

Every answer is judged by the same `judge` that the student's own check calls, with the same words, but here: the
student's function runs in a process of its own (sandbox.py), and only plain data come back from it. Of a submission
nothing is used but the sources of its answer cells (submission.py); all other cells come from the course.

Results go into a journal beside the CSV as they come (journal.py): after Ctrl-C the same command goes on where it
stopped. Processes of the grader's own do the judging (crew.py). What is hidden from students follows from a secret in a
file of the teacher's (secret.py).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from time import monotonic

import jupytext
from tqdm import tqdm

from ..build import builder
from ..exercises.exercise import Exercise, everything
from . import late, similarity
from .anonymous import pseudonyms, without_names
from .bridge import Failed, Gone, printable
from .check import NOT_ATTEMPTED, WRONG, earned, judge, report
from .crew import judged
from .gradebook import UNGRADED, Result, write_csv, write_details
from .guard import TimeUp
from .journal import Journal
from .pupil.process import unreadable
from .sandbox import Limits, Nursery, Surroundings, surroundings
from .secret import read_secret
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
    secret: bytes | None = field(default=None, repr=False)  # for cases that no student has seen
    partial: bool = False  # a wrong answer gets the points of the properties that it has

    @property
    def exercise(self) -> Exercise:
        return graded(self.id, self.seed, self.student if self.own else None, self.secret)


@dataclass(frozen=True)
class Options:
    workers: int = 1
    limits: Limits = field(default_factory=Limits)
    require_sandbox: bool = False
    seed: int | None = None
    per_student: bool = False
    secret: bytes | None = field(default=None, repr=False)  # None: the one in the file beside the CSV
    partial: bool = True
    again: tuple[str, ...] = ()  # students and exercises that are judged again, whatever the journal says
    anonymous: bool = False
    policy: late.Policy | None = None  # for late submissions
    times: dict[str, float] = field(default_factory=dict)  # student → when it was handed in, if the files do not know
    similar: float | None = None  # list pairs of answers that share at least so much of them


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
    seconds = round(monotonic() - start, 3)
    facts = mutant, seconds, nursery.level, properties
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
                kind = options.seed, options.per_student, options.secret, options.partial
                tasks.append(Task(submission.student, id, tuple(sources), problem, *kind))
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
    submissions = read_folder(folder)
    if options.secret is None:
        options = replace(options, secret=read_secret(out.with_suffix(".secret")))
    tasks = tasks_of(submissions, sets, options)
    again = chosen(tasks, options.again)
    out.parent.mkdir(parents=True, exist_ok=True)
    journal = Journal(out.with_suffix(".journal.jsonl"), options)
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
    return finished(tasks, done, submissions, out, options)


def finished(tasks, done: dict, submissions: Sequence[Submission], out: Path, options: Options) -> list[Result]:
    """The results with all that is not the judge's business: notes, deductions, pseudonyms; and the files of them."""
    notes = {(s.student, id): note for s in submissions for id, note in s.notes.items()}
    results = [replace(done[task], note=notes.get((task.student, task.id), "")) for task in tasks]
    if options.policy is not None:
        files = {(s.student, id): time for s in submissions for id, time in s.times.items()}
        results = late.apply(results, options.policy, files, options.times)
    if options.similar is not None:
        found = similarity.pairs(submissions, dict.fromkeys(task.id for task in tasks), options.similar)
        if options.anonymous:
            names = pseudonyms([s.student for s in submissions], options.secret)
            found = [replace(pair, one=names[pair.one], other=names[pair.other]) for pair in found]
        similarity.write_pairs(out.with_name(f"{out.stem}.similar.csv"), found)
    if options.anonymous:
        results = without_names(results, options.secret, out.with_name(f"{out.stem}.key.csv"))
    write_csv(out, results)
    write_details(out.with_name(f"{out.stem}.details.csv"), results)
    return results


def chosen(tasks: Sequence[Task], names: Sequence[str]) -> set[Task]:
    """The tasks of these students and exercises; of both, where both are named."""
    students, exercises = {task.student for task in tasks}, {task.id for task in tasks}
    for name in names:
        if name not in students | exercises:
            raise ValueError(f"again={name!r} is neither a student nor an exercise of this class")
    of, only = students & {*names} or students, exercises & {*names} or exercises
    return {task for task in tasks if task.student in of and task.id in only} if names else set()
