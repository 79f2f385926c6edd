"""Grade answers before you see how we would: tick what each candidate said, then compare.

grades = Grading(bank["walk-me-through"])
grades                                        # in a notebook: one tab for each candidate, one box for each point
grades.tick("Ben", [0, 1, 2])                 # without a browser
grades.compare()                              # your levels beside ours, and the points we disagree on
print(bars(bank["walk-me-through"]))          # how many points each level wants
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import ipywidgets

from .drill import SINKS, Said, Talk
from .question import LEVELS, Question, needed
from .widget import STYLE, WIDE, html

# The candidates of lesson 17, and of how many levels, from the lowest, each makes all points.
OURS = {"walk-me-through": {"Ada": 1, "Ben": 2, "Cleo": 3}}


def bars(question: Question) -> str:
    """The rule of `question.reached` with this question's numbers, one line for each level."""
    low, middle, high = (len(question.level(level)) for level in LEVELS)
    bar = {
        "L4": f"{needed(low)} of all {low + middle + high} points",
        "L5": f"{needed(middle)} of the {middle + high} points of L5 and L6",
        "L6": f"{needed(high)} of the {high} points of L6, {needed(middle)} of the {middle} points of L5, "
        f"and {-(-(low + middle + high) // 2)} in all",
    }
    for level in LEVELS:
        bar[level] += ", with every must-have point" * bool(question.must_haves & {*question.level(level)})
    return "\n".join(f"{level}: {text}" for level, text in bar.items())


class Grading(ipywidgets.VBox):
    """The rubric of one question, once for each candidate."""

    def __init__(self, question: Question, ours: Mapping[str, int] | None = None) -> None:
        ours = OURS[question.id] if ours is None else ours
        self.talk, self.ours = Talk(question), dict(ours)
        self.boxes: dict[str, list[ipywidgets.Checkbox]] = {}
        self._levels = {name: html("", "drill-short", status=True) for name in ours}
        pages = [self._page(name) for name in ours]
        tabs = ipywidgets.Tab(pages, titles=tuple(ours))
        super().__init__([ipywidgets.HTML(STYLE), tabs])
        self.add_class("minispec-drill")

    def _page(self, name: str) -> ipywidgets.VBox:
        """What this candidate may have said, to be ticked, and the level that the ticks are worth."""
        parts, group, self.boxes[name] = [], None, []
        for box in self.talk.rubric:
            if box.group not in (*LEVELS, SINKS):
                continue  # follow-ups were not asked, and whether an answer raises is not counted
            if box.group != group:
                group = box.group
                parts.append(html("What sinks a candidate" if group == SINKS else group, "drill-head"))
            self.boxes[name].append(ipywidgets.Checkbox(description=box.shown, indent=False, layout=WIDE))
            self.boxes[name][-1].observe(lambda _: self._show(name), names="value")
            parts.append(self.boxes[name][-1])
        self._show(name)
        return ipywidgets.VBox([*parts, self._levels[name]], layout=WIDE)

    def _show(self, name: str) -> None:
        self._levels[name].value = html(f"Reached so far: {self.said(name).level}", status=True).value

    def tick(self, name: str, points: Iterable[int]) -> None:
        """Tick boxes of one candidate by their number, from the top."""
        if name not in self.boxes:
            raise ValueError(f"name={name!r} is no candidate; there are {', '.join(self.boxes)}")
        for i in points:
            self.boxes[name][i].value = True

    def said(self, name: str) -> Said:
        """Your grading of one candidate."""
        ticked = {box.description for box in self.boxes[name] if box.value}
        return Said(self.talk, frozenset(i for i, box in enumerate(self.talk.rubric) if box.shown in ticked))

    def our_grading(self, name: str) -> Said:
        levels = LEVELS[: self.ours[name]]
        return Said(self.talk, frozenset(i for i, box in enumerate(self.talk.rubric) if box.group in levels))

    def level_with(self, name: str, tell: str) -> str:
        """The level that we would have given, had the candidate also said this."""
        ours = self.our_grading(name)
        [box] = [i for i, box in enumerate(self.talk.rubric) if box.text == tell]
        return Said(ours.item, ours.ticked | {box}).level

    def compare(self) -> None:
        """Print your grades beside ours; where you have graded a candidate, also the points that we see differently."""
        for name in self.ours:
            yours, ours = self.said(name), self.our_grading(name)
            made = ours.boxes(*LEVELS)
            mine = f"{len(yours.boxes(*LEVELS))} points, {yours.level}" if yours.ticked else "not graded"
            print(f"{name:5} you: {mine:20} we: {len(made)} points, {ours.level}")
            if yours.ticked:
                said = set(yours.boxes(*LEVELS, SINKS))
                for point in [point for point in made if point not in said]:
                    print(f"      we also heard: {point}")
                for point in sorted(said - set(made)):
                    print(f"      we did not hear: {point}")
