"""Predict → run → reveal. A guess you have committed to is one you learn from."""

from __future__ import annotations

import math
from html import escape
from numbers import Real

import ipywidgets


class Prediction(ipywidgets.VBox):
    """A question, a field for your number, and a button that fixes it.

    Without a browser it works as well: `guess.commit(5)`. A lesson never depends on the guess: `reveal` shows the
    answer whether or not there is one, and says so.
    """

    def __init__(self, question: str, unit: str = "") -> None:
        self.question, self.unit = question, unit
        self.guess: float | None = None
        self._field = ipywidgets.FloatText(
            description="my guess", style={"description_width": "auto"}, layout=ipywidgets.Layout(width="220px")
        )
        self._button = ipywidgets.Button(description="commit", tooltip="after this the guess stays as it is")
        self._said = ipywidgets.HTML()
        self._button.on_click(lambda _: self.commit(self._field.value))
        row = ipywidgets.HBox([self._field, ipywidgets.Label(unit), self._button])
        super().__init__([ipywidgets.HTML(f"<b>{escape(question)}</b>"), row, self._said])
        self.add_class("minispec-predict")

    def commit(self, guess: float) -> None:
        if isinstance(guess, bool) or not isinstance(guess, Real) or not math.isfinite(guess):
            raise ValueError(f"guess={guess!r} is not a number to compare with: commit a finite one")
        if self.guess is not None:
            return  # the first guess counts
        self.guess = float(guess)
        self._field.value, self._field.disabled, self._button.disabled = self.guess, True, True
        said = f"Your guess is {_number(self.guess)} {self.unit}".rstrip()
        self._said.value = f"<span role='status'>{escape(said)}. Run on.</span>"

    def reveal(self, answer: float) -> None:
        """Print the answer beside the guess."""
        unit = f" {self.unit}" if self.unit else ""
        if self.guess is None:
            print("your guess: none (commit one next time: it makes the answer stick)")
        else:
            print(f"your guess: {_number(self.guess)}{unit}")
        print(f"the answer: {_number(answer)}{unit}")
        if self.guess is not None:
            print(_verdict(self.guess, answer))


def predict(question: str, unit: str = "") -> Prediction:
    """Ask for a number before the cell that finds it: `guess = predict("…", "ms")`, later `guess.reveal(measured)`."""
    return Prediction(question, unit)


def _number(x: float) -> str:
    """Three figures, never in powers of ten: 0.05, 2.77, 1,840."""
    if x == 0 or not math.isfinite(x):
        return f"{x:g}"
    return f"{round(x, 2 - math.floor(math.log10(abs(x)))):,.10f}".rstrip("0").rstrip(".")


def _verdict(guess: float, answer: float) -> str:
    if guess == answer or (answer and abs(guess / answer - 1) <= 0.1):
        return "within 10 %: you could have skipped the measurement"
    side = "too high" if guess > answer else "too low"
    if guess * answer < 0:
        return f"{side}, not even the same sign: go on, because this is where there is most to learn"
    if guess == 0 or answer == 0:
        return side
    return f"{side} by a factor of {_number(max(guess / answer, answer / guess))}"
