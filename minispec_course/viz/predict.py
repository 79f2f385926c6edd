"""Predict → run → reveal. A guess you have committed to is one you learn from."""

import math
import os
import re
from numbers import Real
from pathlib import Path

import anywidget
import traitlets
from IPython import get_ipython
from IPython.display import display

from ..stored import LAB

FOLDER = Path(__file__).parent
ESM = (FOLDER / "prediction_view.js").read_text(encoding="utf-8")
CSS = (FOLDER / "prediction_view.css").read_text(encoding="utf-8")
COVERED = "The answer is covered until you commit a guess above."
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
        if (kept := _guesses().get((question, unit))) is not None:
            self.commit(kept)

    def commit(self, guess: float) -> None:
        if isinstance(guess, bool) or not isinstance(guess, Real) or not math.isfinite(guess):
            raise ValueError(f"guess={guess!r} is not a number to compare with: commit a finite one")
        if self.closed:
            return  # the first guess counts
        self.shown = number(float(guess))
        self.said = f"Your guess is {self.shown} {self.unit}".rstrip() + ". Run on."
        _guesses()[self.question, self.unit] = float(guess)
        self.guess, self.closed = float(guess), True

    def skip(self) -> None:
        """Go on without a guess."""
        if not self.closed:
            self.said, self.closed = "Skipped. Run on.", True

    def reveal(self, answer: float) -> None:
        """Print the answer beside the guess; to a reader who has not decided yet, show it when they have."""
        if self.closed or not os.environ.get(LAB) or get_ipython() is None:
            print(self.verdict(answer))
        else:
            display(Answer(self, answer))

    def verdict(self, answer: float) -> str:
        """What `reveal` says."""
        unit = f" {self.unit}" if self.unit else ""
        told = f"the answer: {number(answer)}{unit}"
        if self.guess is None:
            return f"your guess: none (commit one next time: it makes the answer stick)\n{told}"
        return f"your guess: {number(self.guess)}{unit}\n{told}\n{_verdict(self.guess, answer)}"

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
    """An answer that waits for its prediction."""

    _esm, _css = ESM, CSS
    text = traitlets.Unicode(COVERED).tag(sync=True)
    covered = traitlets.Bool(True).tag(sync=True)
    told = traitlets.Dict().tag(sync=True)  # by the browser: {"skip": True}

    def __init__(self, prediction: Prediction, answer: float) -> None:
        super().__init__()
        self.add_class("minispec-answer")

        def uncover(_change: object = None) -> None:
            self.text, self.covered = prediction.verdict(answer), False

        prediction.observe(uncover, names="closed")
        self.observe(lambda change: change["new"].get("skip") and prediction.skip(), names="told")

    def _repr_mimebundle_(self, **kwargs) -> dict:
        """What is saved says that there is an answer, and not which."""
        bundle = super()._repr_mimebundle_(**kwargs) or {}
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        return {**data, "text/plain": f"{COVERED} Then run this cell again."}


def predict(question: str, unit: str = "") -> Prediction:
    """Ask for a number before the cell that finds it: `guess = predict("…", "ms")`, later `guess.reveal(measured)`."""
    return Prediction(question, unit)


def _guesses() -> dict[tuple[str, str], float]:
    """The guesses of this notebook's kernel, by question. Outside a notebook none are kept."""
    shell = get_ipython()
    return {} if shell is None else shell.user_ns.setdefault("_minispec_guesses", {})


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
