"""Predict → run → reveal. A guess you have committed to is one you learn from."""

import math
import os
import re
from collections.abc import Callable
from numbers import Real
from pathlib import Path

import anywidget
import ipywidgets
import traitlets
from IPython import get_ipython
from IPython.display import display

from ..build.spoilers import SPOILER
from ..check import progress
from ..stored import LAB, keep, text_output

FOLDER = Path(__file__).parent
ESM = (FOLDER / "prediction_view.js").read_text(encoding="utf-8")
CSS = (FOLDER / "prediction_view.css").read_text(encoding="utf-8")
COVERED = "The answer is covered until you commit a guess above."
LATER = text_output(plain=f"{COVERED} Then run this cell again.")
ASKED: list["Prediction"] = []  # in this kernel
GROUPS = re.compile(r"\d{1,3}([ .,]\d{3})+")


class Prediction(anywidget.AnyWidget):
    """A question, an empty field for your number, and two buttons: *commit* fixes the guess, *skip* goes without.

    Without a browser it works as well: `guess.commit(5)`. A lesson never depends on the guess, and running the cell
    again keeps it. In `minispec lab` the answer waits until there is a guess, or none is wanted; everywhere else
    `reveal` shows it at once.
    """

    _esm, _css = ESM, CSS
    question = traitlets.Unicode().tag(sync=True)
    unit = traitlets.Unicode().tag(sync=True)
    shown = traitlets.Unicode().tag(sync=True)  # the guess, as it is written
    said = traitlets.Unicode().tag(sync=True)
    closed = traitlets.Bool(False).tag(sync=True)
    told = traitlets.Dict().tag(sync=True)  # by the browser: {"commit": text} or {"skip": True}
    guess = traitlets.Float(None, allow_none=True)

    def __init__(self, question: str, unit: str = "") -> None:
        super().__init__(question=question, unit=unit)
        self.add_class("minispec-predict")
        self.observe(self._hear, names="told")
        self.observe(self._tell, names="closed")
        self.key = f"{question} {unit}".strip()
        if get_ipython() and (kept := progress.read().get(self.key, {}).get("guess")) is not None:
            self.commit(kept)
        self._tell()
        if not ASKED and in_lab():
            get_ipython().events.register("pre_run_cell", cover)
        ASKED.append(self)

    def commit(self, guess: float) -> None:
        if isinstance(guess, bool) or not isinstance(guess, Real) or not math.isfinite(guess):
            raise ValueError(f"guess={guess!r} is not a number to compare with: commit a finite one")
        if self.closed:
            return  # the first guess counts
        self.shown = number(float(guess))
        self.said = f"Your guess is {self.shown} {self.unit}".rstrip() + ". Run on."
        if get_ipython():
            progress.keep(self.key, guess=float(guess))
        self.guess, self.closed = float(guess), True

    def skip(self) -> None:
        """Go on without a guess."""
        if not self.closed:
            self.said, self.closed = "Skipped. Run on.", True

    def reveal(self, answer: float) -> None:
        """Print the answer beside the guess; to a reader who has not decided yet, show it when they have."""
        if self.closed or not in_lab():
            print(self.verdict(answer))
        else:
            display(Answer(self, lambda: self.verdict(answer)))

    def verdict(self, answer: float) -> str:
        """What `reveal` says."""
        unit = f" {self.unit}" if self.unit else ""
        told = f"the answer: {number(answer)}{unit}"
        if self.guess is None:
            return f"your guess: none (commit one next time: it makes the answer stick)\n{told}"
        return f"your guess: {number(self.guess)}{unit}\n{told}\n{_verdict(self.guess, answer)}"

    def __repr__(self) -> str:
        return f"{self.question} {self.said if self.closed else 'Run this cell to guess.'}"

    def _tell(self, _change: object = None) -> None:
        keep(self, text_output(plain=repr(self)))

    def _hear(self, change: dict) -> None:
        """What the browser tells: the text of the field, or that it is to stay empty."""
        message = change["new"]
        if message.get("skip"):
            self.skip()
        elif "commit" in message:
            try:
                self.commit(read_number(str(message["commit"]), self.unit))
            except ValueError as problem:
                self.said = str(problem)


class Answer(anywidget.AnyWidget):
    """What `tell` says, once its prediction is decided."""

    _esm, _css = ESM, CSS
    text = traitlets.Unicode(COVERED).tag(sync=True)
    covered = traitlets.Bool(True).tag(sync=True)
    told = traitlets.Dict().tag(sync=True)  # by the browser: {"skip": True}

    def __init__(self, prediction: Prediction, tell: Callable[[], str]) -> None:
        super().__init__()
        self.add_class("minispec-answer")
        keep(self, LATER)

        def uncover(_change: object = None) -> None:
            self.text, self.covered = tell(), False
            keep(self, text_output(plain=self.text))

        prediction.observe(uncover, names="closed")
        self.observe(lambda change: change["new"].get("skip") and prediction.skip(), names="told")

    def __repr__(self) -> str:
        return self.text


class Cover(ipywidgets.VBox):
    """All that a cell shows, out of sight until a prediction is decided. An error is in sight at once."""

    def __init__(self, prediction: Prediction) -> None:
        self.answer, self.inside = Answer(prediction, str), ipywidgets.Output(layout={"display": "none"})
        super().__init__([self.answer, self.inside])
        self.add_class("minispec-cover")
        self.tell()
        self.inside.observe(self.tell, names="outputs")
        prediction.observe(self.uncover, names="closed")

    def uncover(self, _change: object = None) -> None:
        self.inside.layout.display, self.answer.layout.display = None, "none"
        self.tell()

    def tell(self, _change: object = None) -> None:
        hidden = self.inside.layout.display == "none"
        keep(self, *([LATER] if hidden else self.inside.outputs))


def cover(_info: object) -> None:
    """Before a cell of the lab runs: if it answers and the last prediction is open, cover what it will show."""
    shell = get_ipython()
    tags = shell.get_parent().get("metadata", {}).get("tags", ())
    if SPOILER not in tags or ASKED[-1].closed:
        return
    display(cover := Cover(ASKED[-1]))
    cover.inside.__enter__()

    def end(result) -> None:
        shell.events.unregister("post_run_cell", end)
        cover.inside.__exit__(None, None, None)
        if not result.success:
            cover.uncover()

    shell.events.register("post_run_cell", end)


def predict(question: str, unit: str = "") -> Prediction:
    """Ask for a number before the cell that finds it: `guess = predict("…", "ms")`, later `guess.reveal(measured)`."""
    return Prediction(question, unit)


def in_lab() -> bool:
    return get_ipython() is not None and bool(os.environ.get(LAB))


def _verdict(guess: float, answer: float) -> str:
    if guess == answer or (answer and abs(guess / answer - 1) <= 0.1):
        return "within 10 %: you could have skipped the measurement"
    side = "too high" if guess > answer else "too low"
    if guess * answer < 0:
        return f"{side}, not even the same sign: read on, because this is where you learn most"
    if guess == 0 or answer == 0:
        return side
    return f"{side} by a factor of {number(max(guess / answer, answer / guess))}"


def read_number(text: str, unit: str = "") -> float:
    """The number in a field: "1.5", "1,5", "1,234,567", "40 %". A ValueError says what to write instead.

    A comma is a decimal one where it can be nothing else. In "1,500" it can: then we ask.
    """
    written = re.sub(r"[\s\u00a0\u202f]+", " ", text).strip().replace("−", "-")
    if unit and written.endswith(unit):
        written = written.removesuffix(unit)
    written = written.strip(" %×").removeprefix("+")
    if not written:
        raise ValueError("Type a number first, or press skip.")
    sign, digits = ("-", written[1:].lstrip()) if written.startswith("-") else ("", written)
    marks = {mark for mark in ".," if mark in digits}
    if len(marks) == 2:  # the one that comes last is the decimal mark
        decimal = max(marks, key=digits.rindex)
        whole, _, rest = digits.rpartition(decimal)
        digits = f"{whole}.{rest}" if not GROUPS.fullmatch(whole) else f"{re.sub('[ .,]', '', whole)}.{rest}"
    elif re.fullmatch(r"[1-9]\d{0,2},\d{3}", digits):
        plain = digits.replace(",", "")
        point = f"{float(digits.replace(',', '.')):g}"
        raise ValueError(f"Is {digits} more than a thousand? Then write {plain}. If the comma is a point: {point}.")
    elif GROUPS.fullmatch(digits) and (digits.count(",") > 1 or digits.count(".") > 1 or " " in digits):
        digits = re.sub("[ .,]", "", digits)
    else:
        digits = digits.replace(",", ".")
    try:
        value = float(f"{sign}{digits}") if re.fullmatch(r"[\d.]+([eE][-+]?\d+)?", digits) else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"“{text.strip()[:30]}” is not a number: write one such as 2.5 or 1500.")
    return value


def number(x: float) -> str:
    """Three figures, never in powers of ten: 0.05, 2.77, 1,840."""
    if x == 0 or not math.isfinite(x):
        return f"{x:g}"
    return f"{round(x, 2 - math.floor(math.log10(abs(x)))):,.10f}".rstrip("0").rstrip(".")
