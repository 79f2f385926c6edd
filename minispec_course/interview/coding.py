"""The coding round: ten functions (exercises/17_interview_day), and what an interviewer asks once they work."""

import re
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path

from .question import LEVELS
from .questions import FOLDER, read_yaml
from .session import FOLLOW_UP, SAID, Box, Marks, lowered

CODE_RULE = "A right function reaches L4; each follow-up to it that was answered adds a level, a wrong one costs one."


@cache
def tasks() -> dict[str, list[dict]]:
    """Exercise → follow-ups, each with a question and what a good answer contains."""
    return read_yaml(FOLDER / "coding.yaml")


@dataclass
class Code:
    """A function to write in a fresh notebook, then what it costs and how it would grow."""

    exercise: str
    seed: int = 0
    folder: Path | None = None  # where the notebook goes
    file: Path | None = None
    outcome: str = "not attempted"
    key, question, facts, topic, levels, goal = None, None, (), "coding", LEVELS, len(LEVELS)

    @property
    def task(self) -> str:
        """What to do; the notebook is written when it is first asked for."""
        from ..check import exam
        from ..exercises.exercise import find

        exercise, folder = find(self.exercise), self.folder or exam.FOLDER
        if self.file is None:  # this one exercise, without hints, as mock-N.ipynb
            folder.mkdir(parents=True, exist_ok=True)
            names = (folder / f"mock-{number}.ipynb" for number in count(1))
            file = next(name for name in names if not name.exists())
            self.file = exam.start(exercise.minutes, self.seed, [self.exercise], out=file)
        return (
            f"Please write this function: {exercise.title}. Open {self.file}, say what you try before you type it, "
            f"fill it in and save the notebook. Take up to {exercise.minutes} minutes."
        )

    def check(self) -> str:
        """Run the notebook as it was last saved. Keeps the outcome, returns what the check said."""
        from ..check.terminal import check_notebook

        try:
            found = {result.id: result for result in check_notebook(self.file)}
            self.outcome, text = found[self.exercise].outcome, found[self.exercise].text
        except (OSError, ValueError) as error:  # gone, not a notebook any more, a loop that never ends, a dead kernel
            self.outcome, text = "wrong", str(error)
        except KeyError:
            self.outcome, text = "not attempted", f"{self.exercise}: its check is missing"
        return re.sub(r"\s*Stuck\? hint\([^)]*\)", "", text)  # an interview has no hints

    @property
    def asks(self) -> list[str]:
        return [each["question"] for each in tasks()[self.exercise]]

    @property
    def rubric(self) -> list[Box]:
        return [Box(FOLLOW_UP, f"{each['question']} → {each['short']}") for each in tasks()[self.exercise]]

    def reached(self, marks: Marks) -> int:
        """See CODE_RULE."""
        said = sum(mark.verdict == SAID for mark in marks.values())
        return lowered(min(len(LEVELS), 1 + said), self.rubric, marks) if self.outcome == "right" else 0
