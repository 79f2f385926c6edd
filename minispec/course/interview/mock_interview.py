"""A mock interview: two questions with follow-ups, a derivation step by step, an exercise; 45 minutes, then a report.

The same seed asks the same, as long as the same exercises are solved: those that are not come first. The time is
counted, not enforced: an interviewer lets you end your sentence, and writes down that you were late.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from ...files.write import write_whole
from .derivations import DERIVATIONS, Derivation
from .drill import FOLLOW_UP, PUSH_BACK, RAISES, SINKS, Coded, Computed, Figure, Item, Said, Session, Talk, Task
from .question import LEVELS, Question
from .schedule import Schedule, place
from .summary import ROOT, count, digits, explained, reading, with_unit

MINUTES = 45
CODING = 15  # of them, at most
POINTS = 3  # for each of the four parts: in a conversation, one a level


class Mock(Session):
    """A mock interview in progress. Its coding exercise is a notebook that `begin` writes and `check` judges."""

    def __init__(self, bank: dict[str, Question], seed: int, schedule: Schedule | None = None,
                 folder: Path | None = None, clock: Callable[[], float] = time.monotonic):  # fmt: skip
        dice = random.Random(seed)
        self.seed, self.folder = seed, folder
        self.talks = _talks(bank, dice)
        self.derivation: Derivation = dice.choice(DERIVATIONS)(dice)
        self.figures = [Figure(number) for number in self.derivation.steps]
        self.task = _task(seed, dice)
        self.notebook: Path | None = None
        items: list[Item] = [*self.talks, *self.figures, *([self.task] if self.task else [])]
        schedule = Schedule(place()) if schedule is None else schedule
        super().__init__(items, MINUTES, schedule, clock, strict=False)

    def begin(self) -> Path:
        """Write the notebook of the coding exercise."""
        from ..classroom import exam

        if self.notebook is None:
            self.notebook = _free_name(self.folder or exam.FOLDER, ".ipynb")
            exam.start(self.task.minutes, self.seed, [self.task.exercise], out=self.notebook)
        return self.notebook

    def check(self) -> Coded:
        """Run the notebook as it was last saved."""
        from ..classroom.terminal import check_notebook

        try:
            found = {result.id: result for result in check_notebook(self.notebook)}
        except ValueError as error:  # not a notebook any more, a loop that never ends, a kernel that died
            return self.coded("wrong", str(error))
        if self.task.exercise not in found:
            return self.coded("not attempted", f"{self.task.exercise}: its check is missing")
        return self.coded(found[self.task.exercise].outcome, found[self.task.exercise].text)

    # ---- the report

    @property
    def points(self) -> dict[str, float]:
        """Part → points reached, of POINTS each."""
        said = {id(result.item): result.reached for result in self.all(Said)}
        right = sum(result.right for result in self.all(Computed))
        parts: dict[str, float] = {talk.key: said.get(id(talk), 0) for talk in self.talks}
        parts[f"derivation: {self.derivation.name}"] = round(POINTS * right / len(self.figures), 1)
        if self.task:
            parts[f"coding: {self.task.exercise}"] = POINTS * any(result.right for result in self.all(Coded))
        return parts

    def report(self) -> str:
        """Everything that was asked, what came, and what an interviewer would have written down. Markdown."""
        points, used = self.points, self.times[-1] if self.times else 0.0
        most = POINTS * len(points)
        lines = [
            f"# Mock interview: {sum(points.values()):g} of {most} points",
            "",
            f"{count(round(used), 'minute')} used of {MINUTES}{', **over time**' * (used > MINUTES)}. "
            f"Seed {self.seed}: `minispec mock --seed {self.seed}`.",
            "",
            *(f"- {part}: {reached:g} of {POINTS}" for part, reached in points.items()),
        ]
        said = {id(result.item): result for result in self.all(Said)}
        for talk in self.talks:
            lines += ["", *_about_talk(talk, said.get(id(talk)))]
        lines += ["", f"## Derivation: {self.derivation.name}", "", self.derivation.given, ""]
        computed = {id(result.item): result for result in self.all(Computed)}
        for figure in self.figures:
            lines.append(_about_step(figure, computed.get(id(figure))))
        lines += ["", *self._about_coding()]
        if again := reading(self):
            lines += ["", "## Read next", "", *(f"- {line}" for line in again)]
        return "\n".join(lines) + "\n"

    def _about_coding(self) -> list[str]:
        if self.task is None:
            return ["## Coding", "", "Left out: the exercises are in the repository, run minispec from a clone."]
        lines = [f"## Coding: {self.task.exercise}", ""]
        for result in self.all(Coded):
            return [*lines, f"{result.outcome}.", *(["", "```text", result.text, "```"] if not result.right else [])]
        return [*lines, f"Not tried. `minispec hint {self.task.exercise}` helps to begin."]

    def keep(self, file: Path | None = None) -> Path:
        """Write the report: to `file`, or beside the notebook, or under the next free name of the folder exams."""
        if file is None:
            from ..classroom.exam import FOLDER

            file = self.notebook.with_suffix(".md") if self.notebook else _free_name(self.folder or FOLDER, ".md")
        return write_whole(file, self.report())


def _talks(bank: dict[str, Question], dice: random.Random) -> list[Talk]:
    """Two conceptual questions of different topics, with something to ask on."""
    first, second = None, None
    possible = [question for question in bank.values() if question.kind == "concept"]
    while second is None or first.topic == second.topic:
        first, second = dice.sample(possible, 2)
    return [Talk(first, LEVELS), Talk(second, LEVELS)]


def _task(seed: int, dice: random.Random) -> Task | None:
    """An exercise that fits, one that is not solved yet if there is any; None where there are only installed files."""
    if not (ROOT / "course/exercises").is_dir():
        return None
    from ..classroom import exam

    exercise = dice.choice(exam.pick(CODING, seed))
    return Task(exercise.id, exercise.minutes)


def _free_name(folder: Path, suffix: str) -> Path:
    number = 1
    while any((folder / f"mock-{number}{kind}").exists() for kind in (".ipynb", ".md")):
        number += 1
    return folder / f"mock-{number}{suffix}"


def _about_talk(talk: Talk, said: Said | None) -> list[str]:
    lines = [f"## {talk.question.question}", ""]
    if said is None:
        return [*lines, "Not answered."]
    lines += [f"Level reached: **{said.level}**."]
    if said.texts:
        lines += ["", *(f"> {' '.join(text.split())}" for text in said.texts)]
    for title, tells in (
        ("Tells seen", said.boxes(RAISES)),
        ("Tells missed", said.boxes(RAISES, ticked=False)),
        ("Sinking tells", said.boxes(SINKS)),
        ("Said", said.boxes(*talk.levels)),
        ("Not said", said.boxes(*talk.levels, ticked=False)),
        ("Follow-ups missed", said.boxes(FOLLOW_UP, ticked=False)),
        ("Push-backs missed", said.boxes(PUSH_BACK, ticked=False)),
    ):
        lines += ["", f"{title}:", "", *(f"- {tell}" for tell in tells)] if tells else []
    return lines


def _about_step(figure: Figure, computed: Computed | None) -> str:
    given = "not answered" if computed is None or computed.given is None else digits(computed.given)
    mark = "✓" if computed and computed.right else "✗"
    number = figure.number
    return f"- {mark} {number.name}: {given}; it is {with_unit(number)}, `{explained(number)[0]}`"


def start_mock(bank: dict[str, Question], seed: int | None = None, **options) -> Mock:
    """Begin a mock interview. Without a seed every one asks something else."""
    return Mock(bank, random.SystemRandom().randrange(10_000) if seed is None else seed, **options)
