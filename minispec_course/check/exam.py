"""An exam: exercises that fit so many minutes, in a fresh notebook with a clock, graded at the end.

    minispec exam 45                    picks exercises, those first that are not solved yet
    minispec exam --grade FILE          runs every check, and writes a report beside the notebook

The same seed picks the same exercises from the same ones to choose from. There are no hints in an exam.
"""

import random
import re
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import anywidget
import nbformat
import traitlets
from nbformat import NotebookNode

from minispec.load.write import write_whole

from .. import counted
from ..build import builder, cells
from ..exercises.exercise import LEVELS, Exercise, everything, find
from . import progress, terminal
from .check import NOT_ATTEMPTED, RIGHT, WRONG

FOLDER = builder.ROOT / "exams"


# ---- choosing -------------------------------------------------------------------------------------------------------
def pick(minutes: int, seed: int, topics: Sequence[str] = (), level: str | None = None, solved=None) -> list[Exercise]:
    """Exercises that fit into so many minutes, in the order of the course; first those that are not solved yet."""
    if level not in (None, *LEVELS):
        raise ValueError(f"level={level!r}: give one of {', '.join(LEVELS)}")
    exercises = everything()
    for topic in topics:
        if not any(is_about(id, topic) for id in exercises):
            sets = ", ".join(dict.fromkeys(id.split(".")[0] for id in exercises))
            raise ValueError(f"topics={topic!r} names no exercises: give sets ({sets}), or exercises, as 06.residual")
    possible = [e for e in exercises.values() if not e.joins and level in (None, e.level)]  # joined: no earlier answers
    if topics:
        possible = [e for e in possible if any(is_about(e.id, topic) for topic in topics)]
    if not any(exercise.minutes <= minutes for exercise in possible):
        shortest = min((exercise.minutes for exercise in possible), default=None)
        remedy = "choose other topics or another level" if shortest is None else f"the shortest takes {shortest}"
        raise ValueError(f"minutes={minutes}: no exercise fits, {remedy}")
    solved = {id for id, entry in progress.read().items() if entry["solved"]} if solved is None else solved
    random.Random(seed).shuffle(possible)
    chosen: list[str] = []
    for exercise in sorted(possible, key=lambda exercise: exercise.id in solved):  # stable: shuffled among equals
        if exercise.minutes <= minutes:
            chosen.append(exercise.id)
            minutes -= exercise.minutes
    return [exercise for id, exercise in exercises.items() if id in chosen]


def is_about(id: str, topic: str) -> bool:
    """Topics are sets, "06" or "06_rejection_sampling", or single exercises, "06.residual"."""
    return topic == id or topic.partition("_")[0] == id.split(".")[0]


# ---- the notebook ---------------------------------------------------------------------------------------------------
def start(minutes: int, seed: int, topics: Sequence[str] = (), level=None, out: Path | None = None, now=None) -> Path:
    """Write an exam; the clock runs from `now`, in seconds since 1970. Returns the notebook."""
    exercises, number = pick(minutes, seed, topics, level), 1
    while out is None and (FOLDER / f"exam-{number}.ipynb").exists():
        number += 1
    file = FOLDER / f"exam-{number}.ipynb" if out is None else out
    if file.suffix != ".ipynb" or file.exists():
        raise ValueError(f"out={str(file)!r}: give a new file that ends in .ipynb")
    notebook = compose(exercises, minutes, seed, time.time() if now is None else now)
    return write_whole(file, nbformat.writes(notebook) + "\n")


def compose(exercises: Sequence[Exercise], minutes: int, seed: int, started: float) -> NotebookNode:
    """The notebook of an exam: a clock, then of each set what its exercises need, and the exercises."""
    ids = [exercise.id for exercise in exercises]
    notebook = nbformat.v4.new_notebook()
    facts = {"minutes": minutes, "seed": seed, "exercises": ids, "started": round(started)}
    notebook.metadata = nbformat.from_dict({**builder.PYTHON, "minispec": {"exam": facts}})
    points = sum(exercise.points for exercise in exercises)
    title = f"# Exam: {counted(len(ids), 'exercise')}, {counted(points, 'point')}, {counted(minutes, 'minute')}\n\n"
    text = (
        "Fill in the functions and run the check below each, as often as you like: it says what is wrong. When the "
        "time is up, save the notebook and run `minispec exam --grade FILE` in a terminal."
    )
    source = f"from minispec_course.check.exam import clock\n\nclock({round(started) + 60 * minutes})"
    clock = nbformat.v4.new_code_cell(source)
    clock.metadata = nbformat.from_dict({"tags": ["nbval-ignore-output"]})
    notebook.cells = [nbformat.v4.new_markdown_cell(title + text), clock]
    for number in dict.fromkeys(id.split(".")[0] for id in ids):
        notebook.cells += chapter(number, ids)
    for place, cell in enumerate(notebook.cells):
        own = cell.metadata.get("minispec", {})
        cell.id = cells.cell_id(own["exercise"], own["role"]) if "role" in own else f"exam-{place}"
    return notebook


def chapter(number: str, ids: Collection[str]) -> list[NotebookNode]:
    """What an exam takes of a set: its introduction, what its exercises import, and these exercises, without hints."""
    [job] = [job for job in builder.jobs([number]) if job.kind == "exercise"]
    notebook, _ = cells.read_set(job.source)
    marks = [cell.metadata.get("exercise") for cell in notebook.cells]
    first = next(i for i, mark in enumerate(marks) if mark)
    last = max(i for i, mark in enumerate(marks) if mark in ids)
    notebook.cells = [
        cell
        for i, (mark, cell) in enumerate(zip(marks, notebook.cells, strict=True))
        if i <= last and (mark in ids or i < first or (mark is None and is_preparation(cell)))
    ]
    cells.dress(notebook, solved=False)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = re.sub(r"\A(#+) (?:Exercises (?=\d)|\d+\. )?", r"\1# ", cell.source)  # the exam's are on top
    return [cell for cell in notebook.cells if cell.metadata.get("minispec", {}).get("role") != "hint"]


def is_preparation(cell: NotebookNode) -> bool:
    """Imports, and our versions of earlier answers; not a picture of an answer that is not there."""
    return cell.cell_type == "code" and not cell.source.startswith("draw(") and "tags" not in cell.metadata


class Clock(anywidget.AnyWidget):
    """The time that is left until `deadline`, in seconds since 1970, in a corner of the window, where it stays in sight
    while the notebook scrolls. It goes on without a kernel."""

    _esm = Path(__file__).parent / "clock.js"
    deadline = traitlets.Float().tag(sync=True)


def clock(deadline: float) -> Clock:
    """The time that is left: said in words, and counted down."""
    print(remaining(deadline, time.time()))
    return Clock(deadline=float(deadline))


def remaining(deadline: float, now: float) -> str:
    ends = time.strftime("%H:%M", time.localtime(deadline))
    left = round((deadline - now) / 60)
    return f"ends at {ends}: {counted(left, 'minute')} left" if deadline > now else f"ended at {ends}: the time is up"


def announcement(file: Path) -> str:
    """What a terminal says of an exam that has begun."""
    own = nbformat.read(file, as_version=4).metadata["minispec"]["exam"]
    ends = remaining(own["started"] + 60 * own["minutes"], own["started"])
    lines = ", ".join(own["exercises"]), f"{ends} (seed {own['seed']})", f"open {file}, and when you are done:"
    return "\n".join([*lines, f"minispec exam --grade {file}"])


# ---- the report -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Report:
    minutes: int
    seed: int
    seconds: float  # from the start to the last time the notebook was saved
    results: list[terminal.Result]
    reached = property(lambda self: sum(find(r.id).points for r in self.results if r.outcome == RIGHT))
    possible = property(lambda self: sum(find(r.id).points for r in self.results))

    def markdown(self) -> str:
        late = ", **over time**" * (self.seconds > 60 * self.minutes)
        share = round(100 * self.reached / self.possible)
        lines = [
            f"# Exam: {self.reached} of {counted(self.possible, 'point')} ({share} %)\n",
            f"{counted(round(self.seconds / 60), 'minute')} used of {self.minutes}{late}. Seed {self.seed}.\n",
            "| exercise | level | minutes | outcome | points |",
            "|---|---|---|---|---|",
        ]
        for result in self.results:
            e = find(result.id)
            points = f"{e.points * (result.outcome == RIGHT)} of {e.points}"
            lines.append(f"| {e.id} {e.title} | {LEVELS[e.level]} | {e.minutes} | {result.outcome} | {points} |")
        for result in self.results:
            if result.outcome == WRONG:
                lines.append(f"\n## {result.id}\n\nSee `{find(result.id).code}`.\n\n```text\n{result.text}\n```")
        return "\n".join(lines) + "\n"


def grade(file: Path) -> tuple[Report, Path]:
    """Run an exam's checks; the report, and where it was written. An exercise without its check counts as not tried."""
    try:
        own = nbformat.read(file, as_version=4).metadata["minispec"]["exam"]
        minutes, seed, ids, started = (own[key] for key in ("minutes", "seed", "exercises", "started"))
        exercises = [find(id) for id in ids]
        seconds = max(0.0, file.stat().st_mtime - started)
    except FileNotFoundError:
        raise ValueError(f"file={str(file)!r}: there is no such file") from None
    except Exception as error:  # somebody else's notebook, or none at all
        if isinstance(error, OSError):
            raise  # it may not be read
        raise ValueError(f"file={str(file)!r} is no exam: give a notebook that minispec exam has written") from None
    found = {result.id: result for result in terminal.check_notebook(file)}
    missing = {e.id: terminal.Result(e.id, NOT_ATTEMPTED, f"{e.id}: its check is missing") for e in exercises}
    report = Report(minutes, seed, seconds, [found.get(id, missing[id]) for id in ids])
    return report, write_whole(file.with_suffix(".report.md"), report.markdown())
