"""The debrief of a mock interview, like an interviewer's scorecard: a recommendation, strengths, concerns, evidence.

A point counts as shown if the candidate ticked it and quoted words of the answer in which the matcher finds its terms.
A point that was ticked with other words, or with words that were not in the answer, is listed as claimed, with what the
signal would be if the claims hold: the matcher knows words, not meanings, and whoever reads the debrief decides. One
quote earns at most two points.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fsrs import Rating

from ...files.write import write_whole
from .arithmetic import worked
from .coding import title_of
from .drill import FOLLOW_UP, PUSH_BACK, SINKS, read_number
from .matcher import MOST_WEIGHT, supports, terms, was_said, weight
from .mock_interview import Interview
from .question import LEVELS, reached
from .reactions import asks_back
from .rounds import CODE, GRADES, NOT_SUBMITTED, NUMBER, ROUNDS, TITLES, WORDS, Reply, Turn
from .summary import ROOT, count, digits, lesson

AXES = ("correctness", "depth", "numbers", "trade-offs", "communication")
BARS = (0.25, 0.5, 0.75)  # of an axis' evidence, for L4, L5 and L6
PER_QUOTE = 2  # points
FOLDER = ROOT / "exams"  # as in classroom/exam.py, which takes seconds to load
TALKED = (10, 250)  # words of an answer
FORM = {1: "Strong hire", 0: "Hire", -1: "Lean no hire", -2: "No hire"}
HOW = (
    "An axis signals L4 from a quarter of its evidence, L5 from a half, L6 from three quarters, and at most one level "
    "more than the round: basics alone show no depth. A point counts if you ticked it and quoted words of your typed "
    "answer that contain its terms. That is counting and not understanding: where it is wrong, you are right."
)


@dataclass(frozen=True)
class Graded:
    """One grading: every box, whether it was shown, claimed or neither, and the words."""

    turn: Turn
    shown: dict[int, str]  # box → quote
    claimed: dict[int, str]
    empty: dict[int, str]  # ticked without words, or with words that have earned other points already

    def texts(self, *groups: str, among: Sequence[int] | dict | None = None) -> list[str]:
        found = [(i, box.text) for i, box in enumerate(self.turn.boxes) if box.group in groups]
        return [text for i, text in found if among is None or i in among]

    def level(self, with_claims: bool = False) -> int:
        """How many levels are reached; each sinking tell costs one. Of a coding task: none, its tests speak."""
        ticked = {**self.shown, **(self.claimed if with_claims else {})}
        said = {name: len(self.texts(name, among=ticked)) for name in LEVELS}
        points = {name: len(self.texts(name)) for name in LEVELS}
        lacking = {box.group for i, box in enumerate(self.turn.boxes) if box.must and i not in ticked}
        return max(0, reached(said, points, lacking) - len(self.texts(SINKS, among=self.shown)))


def graded(turn: Turn, reply: Reply) -> Graded:
    shown, claimed, empty, quoted = {}, {}, {}, Counter()
    for i, phrase in sorted(reply.ticks.items()):
        quote = " ".join(phrase.lower().split())
        if turn.boxes[i].group == SINKS:
            shown[i] = phrase  # whoever ticks this is believed
            continue
        quoted[quote] += 1
        if len(quote.split()) < 3 or quoted[quote] > PER_QUOTE:
            empty[i] = phrase
        elif supports(turn.boxes[i].text.rpartition(" → ")[2], phrase) and was_said(phrase, turn.heard):
            shown[i] = phrase
        else:
            claimed[i] = phrase
    return Graded(turn, shown, claimed, empty)


def named(levels: int) -> str:
    return LEVELS[levels - 1] if levels else f"below {LEVELS[0]}"


class Debrief:
    """What one round showed."""

    def __init__(self, interview: Interview, name: str) -> None:
        self.interview, self.name = interview, name
        self.turns = [(turn, reply, at) for round, turn, reply, at in interview.transcript if round == name]
        self.gradings = [graded(turn, reply) for turn, reply, _ in self.turns if turn.expects == GRADES]
        self.talks = [g for g in self.gradings if g.turn.question]
        self.figures = [(turn, reply) for turn, reply, _ in self.turns if turn.expects == NUMBER]
        self.code = [(turn, reply) for turn, reply, _ in self.turns
                     if turn.expects == CODE and reply.outcome not in NOT_SUBMITTED]  # fmt: skip
        self.words = [(turn, reply) for turn, reply, _ in self.turns
                      if turn.expects == WORDS and turn.kind != "close" and not asks_back(reply.text)]  # fmt: skip

    # ---- axes

    def counts(self) -> dict[str, tuple[int, int]]:
        """Axis → (shown, possible)."""

        def boxes(*groups: str) -> tuple[int, int]:
            found = [(len(g.texts(*groups, among=g.shown)), len(g.texts(*groups))) for g in self.gradings]
            return sum(a for a, _ in found), sum(b for _, b in found)

        sunk = sum(len(g.texts(SINKS, among=g.shown)) for g in self.gradings)
        basics, passed = boxes("L4"), sum(reply.outcome == "right" for _, reply in self.code)
        right = sum(is_right(turn, reply) for turn, reply in self.figures)
        fluent = sum(self.on_topic(turn, reply) for turn, reply in self.words)
        return {
            "correctness": (max(0, basics[0] + 2 * passed - 2 * sunk), basics[1] + 2 * len(self.code)),
            "depth": boxes("L5", FOLLOW_UP),
            "numbers": (right, len(self.figures)),
            "trade-offs": boxes("L6", PUSH_BACK),
            "communication": (fluent, len(self.words)),
        }

    def on_topic(self, turn: Turn, reply: Reply) -> bool:
        """Neither a shrug nor a lecture, and about the thing: three terms of what was asked or of its rubric, with the
        weight of one good one."""
        of = (turn.question, turn.exercise)
        rubrics = [g.turn.boxes for g in self.gradings if (g.turn.question, g.turn.exercise) == of]
        about = " ".join([turn.says, *(box.text for boxes in rubrics for box in boxes)])
        length, shared = len(reply.text.split()), terms(reply.text).keys() & terms(about).keys()
        return TALKED[0] <= length <= TALKED[1] and len(shared) >= 3 and sum(map(weight, shared)) >= MOST_WEIGHT

    @property
    def signal(self) -> int:
        return self._signal(False)

    def _signal(self, claims: bool) -> int:
        """The middle of the questions' levels, the lower one of two; code that passes shows one more of follow-ups."""
        levels = [g.level(claims) for g in self.talks]
        for turn, reply in self.code:
            asked = [g for g in self.gradings if g.turn.exercise == turn.exercise]
            ticked = sum(len(g.shown) + len(g.claimed) * claims for g in asked)
            levels.append((1 + min(2, ticked)) * (reply.outcome == "right"))
        return sorted(levels)[(len(levels) - 1) // 2] if levels else 0

    # ---- in words

    def lines(self) -> list[str]:
        interview, used = self.interview, self.turns[-1][2] if self.turns else 0.0
        signal, claims = self.signal, self._signal(True)
        wanted = LEVELS.index(interview.level) + 1
        form = FORM[max(-2, min(1, signal - wanted))]
        over = f", {count(round(used - self.minutes), 'minute')} over" if used > self.minutes + 0.5 else ""
        lines = [
            f"## The {self.name} round", "",
            f"**{form} at {TITLES[interview.level]}.** The evidence signals {named(signal)}. "
            f"{count(round(used), 'minute')} of {self.minutes}{over}.", "",
        ]  # fmt: skip
        if claims > signal:
            lines += [f"With the points that you claim below it would be {named(claims)}.", ""]
        lines += ["| axis | signal | evidence |", "|---|---|---|"]
        for axis, (got, most) in self.counts().items():
            level = named(min(signal + 1, sum(got >= bar * most for bar in BARS))) if most else "not asked"
            lines.append(f"| {axis} | {level} | {f'{got} of {most}' if most else '–'} |")
        for title, found in (
            ("Strengths", self.strengths()), ("Concerns", self.concerns()), ("Claimed, not yet shown", self.claims()),
            ("Numbers", self.numbers()), *interview.asides(self.name), ("Read next", self.reading()),
        ):  # fmt: skip
            if found:
                lines += ["", f"### {title}", "", *found]
        return lines

    @property
    def minutes(self) -> int:
        return ROUNDS[self.name]

    def strengths(self) -> list[str]:
        found = []
        for g in self.gradings:
            for i, quote in g.shown.items():
                if g.turn.boxes[i].group != SINKS:
                    found.append((LEVELS.index(box) if (box := g.turn.boxes[i].group) in LEVELS else 3,
                                  f"- {short(g.turn.boxes[i].text)}: “{quote}”"))  # fmt: skip
        found = [line for _, line in sorted(found, key=lambda pair: -pair[0])]
        return found + [f"- {title_of(t.exercise)}: all tests pass" for t, r in self.code if r.outcome == "right"]

    def concerns(self) -> list[str]:
        wanted = LEVELS[: LEVELS.index(self.interview.level) + 1]
        lines = [f"- sinks: {text}" for g in self.gradings for text in g.texts(SINKS, among=g.shown)]
        for g in self.gradings:
            ticked = {**g.shown, **g.claimed, **g.empty}
            for i, box in enumerate(g.turn.boxes):
                if i not in ticked and box.group in (*wanted, PUSH_BACK, FOLLOW_UP):
                    lines.append(f"- not said ({box.group}{', must-have' * box.must}): {short(box.text)}")
        for turn, reply in self.code:
            if reply.outcome != "right":
                lines.append(f"- {title_of(turn.exercise)}: {reply.outcome or 'not tried'}")
        silent = sum(not reply.text for _, reply in self.words)
        return lines + [f"- {count(silent, 'turn')} without written words"] * bool(silent)

    def claims(self) -> list[str]:
        boxes = [(g.turn.boxes[i].text, quote) for g in self.gradings for i, quote in (g.claimed | g.empty).items()]
        return [f"- {short(text)}: {f'“{quote}”' if quote else 'no words given'}" for text, quote in boxes]

    def numbers(self) -> list[str]:
        lines = []
        for turn, reply in self.figures:
            given = read_number(reply.text, turn.number.unit)
            said = "no number" if given is None else digits(given)
            mark = "✓" if is_right(turn, reply) else "✗"
            lines.append(f"- {mark} {turn.number.name}: you said {said}; {worked(turn.number)}")
        return lines

    def reading(self) -> list[str]:
        """A line for each lesson whose question stayed below the level asked for."""
        wanted, found = LEVELS.index(self.interview.level) + 1, {}
        for g in self.talks:
            question = self.interview.bank[g.turn.question]
            if g.level() < wanted:
                found.setdefault(question.lesson, []).append(question.function)
        return [f"- lesson {lesson(number)}: {', '.join(dict.fromkeys(names))}" for number, names in found.items()]


def is_right(turn: Turn, reply: Reply) -> bool:
    given = read_number(reply.text, turn.number.unit)
    return not reply.skipped and given is not None and turn.number.matches(given)


def short(text: str, most: int = 140) -> str:
    """A rubric's line without its end, where it is long."""
    return text if len(text) <= most else text[: text.rfind(" ", 0, most)] + " …"


def rating(grading: Graded) -> Rating:
    """What the drill's schedule is told about a conversation."""
    return (Rating.Again, Rating.Hard, Rating.Good, Rating.Easy)[grading.level()]


def report(interview: Interview) -> str:
    """The whole debrief, as Markdown."""
    rounds = list(dict.fromkeys(name for name, turn, *_ in interview.transcript if turn.kind != "open"))
    debriefs = [Debrief(interview, name) for name in rounds]
    command = f"minispec mock --format {interview.format} --level {interview.level} --seed {interview.seed}"
    lines = ["# Debrief", "", f"`{command}` asks the same questions again.", ""]
    if not debriefs:
        return "\n".join([*lines, "Nothing was answered, so there is nothing to say."]) + "\n"
    if len(debriefs) > 1:
        levels = sorted(debrief.signal for debrief in debriefs)
        overall = levels[(len(levels) - 1) // 2]
        form = FORM[max(-2, min(1, overall - LEVELS.index(interview.level) - 1))]
        lines += [f"**Committee: {form} at {TITLES[interview.level]}.** Rounds: "
                  f"{', '.join(f'{d.name} {named(d.signal)}' for d in debriefs)}.", ""]  # fmt: skip
    for debrief in debriefs:
        lines += [*debrief.lines(), ""]
    return "\n".join([*lines, HOW]) + "\n"


def keep_report(interview: Interview, file: Path | None = None) -> Path:
    """Write the debrief: to `file`, or under the next free name of the folder exams."""
    number = 1
    while file is None:
        name = FOLDER / f"mock-{number}.md"
        file, number = None if name.exists() else name, number + 1
    return write_whole(file, report(interview))
