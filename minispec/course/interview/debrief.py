"""The debrief of a mock interview, like an interviewer's scorecard: a recommendation, strengths, risks, evidence.

What a tick is worth is decided in evidence.py. The level of a round follows from its table by the rule that is printed
below it; a round that was too short has none.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ...files.write import write_whole
from .arithmetic import worked
from .coding import title_of
from .drill import FOLLOW_UP, PUSH_BACK, RAISES, SINKS
from .evidence import Graded, graded, rating
from .matcher import MOST_WEIGHT, excerpt, terms, weight
from .mock_interview import Interview
from .question import LEVELS, Number
from .reactions import asks_back, gives_up
from .rounds import CODE, GRADES, NOT_SUBMITTED, NUMBER, ROUNDS, TITLES, WORDS, Reply, Turn
from .stated import RIGHT, UNCLEAR, UNREAD, WRONG, Judged, judge
from .summary import ROOT, count, digits, lesson

__all__ = ["AXES", "Debrief", "Graded", "graded", "keep_report", "rating", "report"]

AXES = {
    "correctness": "L4 points shown, twice the code that passes, less two for each statement that sinks",
    "depth": "L5 points and answers to follow-ups shown",
    "numbers": "right at once, or after the interviewer asked again",
    "trade-offs": "L6 points and answers to push-backs shown",
    "communication": "replies of 10 to 250 words that share three terms with what was asked or with its rubric",
}
FOLDER = ROOT / "exams"  # as in classroom/exam.py, which takes seconds to load
TALKED = (10, 250)  # words of an answer
ENOUGH, ONE_QUESTION = 4, 10  # replies that a level takes: in a round of two questions or tasks, and in one of one
WORTH = 4  # replies: a function that was written
FIRST = 3  # strengths and concerns on the first page; the rest goes into the record
CUT, CUT_RECORD = 200, 110  # characters of a quote, there and in the record
SAID = 40  # characters of a reply that is quoted for a number
FORM = {1: "Strong hire", 0: "Hire", -1: "Lean no hire", -2: "No hire"}
RULE = (
    "The level of the round is the middle of these lines, the lower one of two. A question reaches L4, L5 or L6 with "
    "two thirds as many points as that level has, and points of a higher level count for a lower one; L6 also takes "
    "two thirds of the L5 points and half of all. A missing must-have closes its level, and each statement that sinks "
    "costs one. Code whose tests pass is worth L4, and each follow-up shown beside it one more. The derivation and its "
    "numbers are not in the table."
)
HOW = (
    "A point counts if you ticked it and quoted words of your typed answer in which its terms were found, and not "
    "denied, or a sentence about the question that has earned nothing else. It is called a strength if the "
    "quote by itself holds most of the point. That is counting and not understanding: where it is wrong, you "
    "are right, and a false statement that no line of a rubric names goes unnoticed."
)


@dataclass(frozen=True)
class Figure:
    """A number that was asked for, and every reply to it until it was settled."""

    number: Number
    tries: tuple[tuple[Turn, Reply], ...]

    @property
    def judged(self) -> list[Judged]:
        """The replies that count: those from before the arithmetic was shown."""
        return [judge(self.number, reply.text) for turn, reply in self.tries
                if turn.expects == NUMBER and not reply.skipped]  # fmt: skip

    @property
    def unknown(self) -> bool:
        """The reply was "I don't know"."""
        return self.verdict == UNREAD and any(gives_up(reply.text) for _, reply in self.tries)

    @property
    def verdicts(self) -> list[str]:
        return [judged.verdict for judged in self.judged]

    @property
    def verdict(self) -> str:
        """Right if any reply was; wrong only if a wrong number was stated; "" if it was skipped."""
        for wanted in (RIGHT, WRONG, UNCLEAR, UNREAD):
            if wanted in self.verdicts:
                return wanted
        return ""

    @property
    def said(self) -> str:
        """What was taken for the answer: the reply, if it is short, and otherwise the number in it."""
        replies = [reply.text for turn, reply in self.tries if turn.expects == NUMBER and not reply.skipped]
        text, judged = next((text, each) for text, each in zip(replies, self.judged, strict=True)
                            if each.verdict == self.verdict)  # fmt: skip
        return f"“{text}”" if len(text) <= SAID else f"{digits(judged.value)} {self.number.unit}".strip()

    def line(self) -> str:
        mark = {RIGHT: "✓", WRONG: "✗"}.get(self.verdict, "–")
        said = "skipped" if not self.verdicts else "I could not read which number you meant"
        said = "you did not know" if self.unknown else said
        if self.verdict in (RIGHT, WRONG):
            said = f"you said {self.said}"
            if self.verdict == RIGHT and self.verdicts[0] != RIGHT:
                first = self.judged[0].value
                wrong = f" (first {digits(first)})" if self.verdicts[0] == WRONG else ""
                said += f" after being asked again{wrong}"
        return f"- {mark} {self.number.name}: {said}; {worked(self.number)}"


def figures(turns: list[tuple[Turn, Reply]]) -> Iterator[Figure]:
    """The numbers of a round: a turn that asks for one, and those after it that are about the same one."""
    tries: list[tuple[Turn, Reply]] = []
    for turn, reply in [*turns, (None, None)]:
        if tries and (turn is None or turn.number is not tries[0][0].number):
            yield Figure(tries[0][0].number, tuple(tries))
            tries = []
        if turn is not None and turn.number is not None and (tries or turn.expects == NUMBER):
            tries.append((turn, reply))


def named(levels: int) -> str:
    return LEVELS[levels - 1] if levels else f"below {LEVELS[0]}"


class Debrief:
    """What one round showed."""

    def __init__(self, interview: Interview, name: str) -> None:
        self.interview, self.name = interview, name
        self.turns = [(turn, reply, at) for round, turn, reply, at in interview.transcript if round == name]
        before = [entry for entry in interview.transcript if entry[0] == name]
        self.gradings = [graded(turn, reply, before) for turn, reply, _ in self.turns if turn.expects == GRADES]
        self.talks = [g for g in self.gradings if g.turn.question]
        self.figures = list(figures([(turn, reply) for turn, reply, _ in self.turns]))
        self.code = [(turn, reply) for turn, reply, _ in self.turns
                     if turn.expects == CODE and reply.outcome not in NOT_SUBMITTED]  # fmt: skip
        self.words = [(turn, reply) for turn, reply, _ in self.turns if turn.expects == WORDS and turn.number is None
                      and turn.kind != "close" and not asks_back(reply.text)]  # fmt: skip

    # ---- counted

    def counts(self) -> dict[str, tuple[int, int]]:
        """Axis → (shown, possible)."""

        def boxes(*groups: str) -> tuple[int, int]:
            found = [(len(g.texts(*groups, among=g.shown)), len(g.texts(*groups))) for g in self.gradings]
            return sum(a for a, _ in found), sum(b for _, b in found)

        sunk = sum(len(g.texts(SINKS, among=g.shown)) for g in self.gradings)
        basics, passed = boxes("L4"), sum(reply.outcome == "right" for _, reply in self.code)
        read = [figure for figure in self.figures if figure.unknown or figure.verdict not in (UNREAD, UNCLEAR)]
        fluent = sum(self.is_fluent(turn, reply) for turn, reply in self.words)
        return {
            "correctness": (max(0, basics[0] + 2 * passed - 2 * sunk), basics[1] + 2 * len(self.code)),
            "depth": boxes("L5", FOLLOW_UP),
            "numbers": (sum(figure.verdict == RIGHT for figure in read), len(read)),
            "trade-offs": boxes("L6", PUSH_BACK),
            "communication": (fluent, len(self.words)),
        }

    def is_fluent(self, turn: Turn, reply: Reply) -> bool:
        """Neither a shrug nor a lecture, and about the thing."""
        return TALKED[0] <= len(reply.text.split()) <= TALKED[1] and self.is_about(turn, reply)

    def is_about(self, turn: Turn, reply: Reply) -> bool:
        """Three terms of what was asked or of its rubric, with the weight of one good one. Of the rubric, a follow-up
        or push-back has one line, and there any three will do."""
        of = (turn.question, turn.exercise)
        boxes = [box for g in self.gradings if (g.turn.question, g.turn.exercise) == of for box in g.turn.boxes]
        own = [box for box in boxes if " → " in box.text and box.text.rpartition(" → ")[0] in turn.says]
        about = " ".join([turn.says, *(box.text for box in own or boxes)])
        shared = terms(reply.text).keys() & terms(about).keys()
        return len(shared) >= 3 and (bool(own) or sum(map(weight, shared)) >= MOST_WEIGHT)

    # ---- the level

    def rows(self, claims: bool = False) -> list[tuple[str, int, str]]:
        """What the level of the round follows from: (question or task, level, what it rests on)."""
        rows = []
        for g in self.talks:
            shown = [f"{len(g.texts(level, among=g.shown))} of {len(g.texts(level))} {level}" for level in LEVELS]
            shown += [f"a must-have of {level} is missing" for level in sorted(g.lacking())]
            shown += [f"{count(sunk, 'statement')} that sinks"] if (sunk := len(g.texts(SINKS, among=g.shown))) else []
            rows.append((self.interview.bank[g.turn.question].question, g.level(claims), ", ".join(shown)))
        for turn, reply in self.written:
            asked = [g for g in self.gradings if g.turn.exercise == turn.exercise]
            ticked = sum(len(g.shown) + len(g.claimed) * claims for g in asked)
            level = (1 + min(2, ticked)) * (reply.outcome == "right")
            rows.append((title_of(turn.exercise), level, f"tests: {reply.outcome}, {ticked} follow-ups"))
        return rows

    @property
    def written(self) -> list[tuple[Turn, Reply]]:
        """Code that was submitted; what was not attempted is no evidence."""
        return [(turn, reply) for turn, reply in self.code if reply.outcome not in ("", "not attempted")]

    @property
    def signal(self) -> int:
        return self._signal(False)

    def _signal(self, claims: bool) -> int:
        levels = sorted(level for _, level, _ in self.rows(claims))
        return levels[(len(levels) - 1) // 2] if levels else 0

    @property
    def replies(self) -> int:
        """How much was asked and not skipped."""
        words = sum(not reply.skipped for _, reply in self.words)
        numbers = sum(bool(figure.verdicts) for figure in self.figures)
        return words + numbers + WORTH * len(self.written)

    @property
    def is_enough(self) -> bool:
        """Whether there is evidence for a level: a round that came to its close, with enough replies."""
        closed = any(turn.kind == "close" for turn, *_ in self.turns)
        return closed and bool(self.rows()) and self.replies >= self.least

    @property
    def least(self) -> int:
        return ENOUGH if len(self.rows()) > 1 else ONE_QUESTION

    # ---- in words

    def headline(self) -> str:
        signal, wanted = self.signal, LEVELS.index(self.interview.level) + 1
        if not self.is_enough:
            found = f"; what there is reached {named(signal)}" if self.rows() else ""
            return (f"**Not enough evidence for a level at {TITLES[self.interview.level]}.** "
                    f"Replies: {self.replies}; a level takes {self.least}, in a round that came to its "
                    f"end{found}.")  # fmt: skip
        form = FORM[max(-2, min(1, signal - wanted))]
        return f"**{form} at {TITLES[self.interview.level]}.** The table signals {named(signal)}."

    def lines(self) -> list[str]:
        """A page to decide from, and below it the record."""
        used, claims = self.turns[-1][2] if self.turns else 0.0, self._signal(True)
        over = f", {count(round(used - self.minutes), 'minute')} over" if used > self.minutes + 0.5 else ""
        lines = [f"## The {self.name} round", "",
                 f"{self.headline()} {count(round(used), 'minute')} of {self.minutes}{over}.", ""]  # fmt: skip
        if claims > self.signal:
            lines += [f"With the points that you claim below it would be {named(claims)}.", ""]
        strengths, concerns = self.strengths(), self.concerns()
        lines += ["### Strengths", "", *([f"- {each.line(CUT)}" for each in strengths[:FIRST]] or ["- none shown"])]
        lines += ["", "### Concerns", "", *([f"- {line}" for line in concerns[:FIRST]] or ["- none in this record"])]
        if rows := self.rows():
            lines += ["", "### How the level comes about", "", "| question | level | evidence |", "|---|---|---|"]
            lines += [f"| {short(asked, 72).replace('|', '/')} | {named(level)} | {found} |"
                      for asked, level, found in rows]  # fmt: skip
        axes = [f"{axis} {f'{got} of {most}' if most else 'not asked'}" for axis, (got, most) in self.counts().items()]
        lines += ["", f"Axes, from which the level does not follow: {', '.join(axes)}."]
        record: list[str] = []
        for title, found in (
            ("Further strengths", [f"- {each.line(CUT_RECORD)}" for each in strengths[FIRST:]]),
            ("Further concerns", [f"- {line}" for line in concerns[FIRST:]]),
            ("Counted on your tick", self.weak()), ("Claimed, not yet shown", self.claims()),
            ("Not found in your answers", self.refused()), ("A fuller answer would also hold", self.unsaid()),
            ("Numbers", self.numbers()), *self.interview.asides(self.name), ("Read next", self.reading()),
        ):  # fmt: skip
            if found:
                record += ["", f"#### {title}", "", *found]
        return [*lines, "", "### The record", *record] if record else lines

    @property
    def minutes(self) -> int:
        return ROUNDS[self.name]

    def strengths(self) -> list[Strength]:
        """What was shown in words that a reader will accept, each quote once: the highest level first, there one of
        each question before the second of any, and the plainest of these."""
        found: dict[tuple[str, str], Strength] = {}
        for g in self.gradings:
            for i, quote in g.shown.items():
                box, of = g.turn.boxes[i], g.turn.question or g.turn.exercise
                if box.group != SINKS and g.is_plain(i):
                    rank = {"L4": 1, "L5": 2, FOLLOW_UP: 2, RAISES: 2}.get(box.group, 3)
                    each = found.setdefault((of, quote), Strength(of, quote))
                    each.rank, each.plain = max(each.rank, rank), max(each.plain, g.plain[i])
                    each.points.append(box.text)
        for turn, reply in self.code:
            if reply.outcome == "right":
                tests = Strength(turn.exercise, "", 3, 1.0, [f"{title_of(turn.exercise)}: all tests pass"])
                found[turn.exercise, ""] = tests
        seen, order = Counter(), []
        for each in sorted(found.values(), key=lambda each: (-each.rank, -each.plain)):
            seen[each.rank, each.question] += 1
            order.append((-each.rank, seen[each.rank, each.question], -each.plain, len(order), each))
        return [each for *_, each in sorted(order)]

    def weak(self) -> list[str]:
        """Shown, but in words from which a reader could not tell."""
        return [f"- {told(g.turn.boxes[i].text, quote, CUT_RECORD)}" for g in self.gradings
                for i, quote in g.shown.items() if g.turn.boxes[i].group != SINKS and not g.is_plain(i)]  # fmt: skip

    def concerns(self) -> list[str]:
        """What speaks against the candidate: first what is certain, the gravest before the rest; then what the words
        suggest; then what was left out. What was not asked for is not among it."""
        lines = [f"said what sinks an answer: {text}" for g in self.gradings for text in g.texts(SINKS, among=g.shown)]
        for turn, reply in self.code:
            if reply.outcome != "right":
                lines.append(f"{title_of(turn.exercise)}: {reply.outcome or 'not tried'}")
        wrong = sum(figure.verdict == WRONG for figure in self.figures)
        lines += [f"{wrong} of {self.counts()['numbers'][1]} numbers wrong"] * bool(wrong)
        unticked = [(g, box) for g in self.gradings for i, box in enumerate(g.turn.boxes)
                    if i not in {**g.shown, **g.claimed, **g.empty, **g.opposite()}]  # fmt: skip
        lines += [f"a must-have was not said ({box.group}): {short(box.text)}" for _, box in unticked if box.must]
        lines += [f"said the opposite? {told(g.turn.boxes[i].text, quote)}"
                  for g in self.gradings for i, quote in g.opposite().items()]  # fmt: skip
        lines += [f"may have said what sinks an answer: {told(g.turn.boxes[i].text, quote)}"
                  for g in self.gradings for i, quote in g.suspected().items()]  # fmt: skip
        shown = {box.text.rpartition(" → ")[0] for g in self.gradings for i, box in enumerate(g.turn.boxes)
                 if " → " in box.text and i in {**g.shown, **g.claimed}}  # fmt: skip
        rubrics = {(g.turn.question, g.turn.exercise) for g in self.gradings}
        for turn, reply in self.words:
            if not turn.model and (turn.question, turn.exercise) not in rubrics:
                continue  # the round ended before it, so there is little to compare with
            answered = any(asked in turn.says for asked in shown)
            if len(reply.text.split()) >= TALKED[0] and not answered and not self.is_about(turn, reply):
                says = re.sub(r"^You said: “.*”\. ", "", turn.says)
                lines.append(f"replied with something else? {told(says + ' → ', reply.text)}")
        levels = [level for _, level, _ in self.rows()]
        below = sum(level <= LEVELS.index(self.interview.level) for level in levels)
        lines += [f"below {self.interview.level} in {below} of {count(len(levels), 'question')}"] * bool(below)
        for _, box in unticked:
            asked = box.text.rpartition(" → ")[0]
            if box.group in (PUSH_BACK, FOLLOW_UP) and not any(short(asked) in line for line in lines):
                unknown = any(asked in turn.says and reply.given_up for turn, reply in self.words)
                lines.append(
                    f"{'not known' if unknown else 'asked, and not ticked by you'} ({box.group}): {short(asked)}"
                )
        silent = sum(not reply.text for _, reply in self.words)
        return lines + [f"{count(silent, 'turn')} without written words"] * bool(silent)

    def unsaid(self) -> list[str]:
        """Points up to the level asked for that were neither said nor asked for."""
        wanted, lines = LEVELS[: LEVELS.index(self.interview.level) + 1], []
        for g in self.gradings:
            ticked = {**g.shown, **g.claimed, **g.empty, **g.refused, **g.opposite()}
            lines += [f"- {box.group}: {short(box.text)}" for i, box in enumerate(g.turn.boxes)
                      if i not in ticked and box.group in wanted and not box.must]  # fmt: skip
        return lines

    def claims(self) -> list[str]:
        lines = [f"- {told(g.turn.boxes[i].text, quote)}" for g in self.gradings for i, quote in g.claimed.items()]
        for g in self.gradings:
            for i, quote in g.empty.items():
                spent = f"{told(g.turn.boxes[i].text, quote)}, words that have earned other points"
                lines.append(f"- {spent if quote else f'{short(g.turn.boxes[i].text)}: no words given'}")
        return lines

    def refused(self) -> list[str]:
        """Ticked with words that are not in the answer: they count for nothing."""
        return [f"- {told(g.turn.boxes[i].text, quote)}" for g in self.gradings for i, quote in g.refused.items()]

    def numbers(self) -> list[str]:
        return [figure.line() for figure in self.figures]

    def reading(self) -> list[str]:
        """A line for each lesson whose question stayed below the level, or had a follow-up that was not answered."""
        wanted, found = LEVELS.index(self.interview.level) + 1, {}
        for g in self.talks:
            question = self.interview.bank[g.turn.question]
            asked = {i for i, box in enumerate(g.turn.boxes) if box.group in (FOLLOW_UP, PUSH_BACK)}
            if g.level() < wanted or g.opposite() or asked - {*g.shown, *g.claimed}:
                found.setdefault(question.lesson, []).append(question.function)
        return [f"- lesson {lesson(number)}: {', '.join(dict.fromkeys(names))}" for number, names in found.items()]


def short(text: str, most: int = 140) -> str:
    """A rubric's line without its end, where it is long."""
    return text if len(text) <= most else text[: text.rfind(" ", 0, most)] + " …"


def told(line: str, quote: str, most: int = CUT) -> str:
    """A line of a rubric with the words for it; of what was asked, the question and not the answer that we expect."""
    return f"{heading(line)}: “{excerpt(line.rpartition(' → ')[2], quote, most)}”"


def heading(line: str) -> str:
    asked, _, point = line.rpartition(" → ")
    return f"asked “{short(asked)}”" if asked else short(point)


@dataclass
class Strength:
    """A quote and the lines that it shows."""

    question: str
    quote: str
    rank: int = 0
    plain: float = 0.0
    points: list[str] = field(default_factory=list)

    def line(self, most: int) -> str:
        said = excerpt(" ".join(point.rpartition(" → ")[2] for point in self.points), self.quote, most)
        return "; ".join(map(heading, self.points)) + (f": “{said}”" if said else "")


def report(interview: Interview) -> str:
    """The whole debrief, as Markdown."""
    rounds = list(dict.fromkeys(name for name, turn, *_ in interview.transcript if turn.kind != "open"))
    debriefs = [Debrief(interview, name) for name in rounds]
    command = f"minispec mock --format {interview.format} --level {interview.level} --seed {interview.seed}"
    lines = ["# Debrief", "", f"`{command}` asks the same questions again.", ""]
    if not debriefs:
        return "\n".join([*lines, "Nothing was answered, so there is nothing to say."]) + "\n"
    if len(debriefs) > 1:
        levels = sorted(debrief.signal for debrief in debriefs if debrief.is_enough)
        verdict = f"Not enough evidence for a level at {TITLES[interview.level]}"
        if levels:
            overall = levels[(len(levels) - 1) // 2]
            form = FORM[max(-2, min(1, overall - LEVELS.index(interview.level) - 1))]
            verdict = f"{form} at {TITLES[interview.level]}"
        signals = [f"{d.name} {named(d.signal) if d.is_enough else 'not enough evidence'}" for d in debriefs]
        lines += [f"**Committee: {verdict}.** The middle of the rounds with enough evidence, the lower one of two: "
                  f"{', '.join(signals)}.", ""]  # fmt: skip
    for debrief in debriefs:
        lines += [*debrief.lines(), ""]
    axes = [f"- {axis}: {counted}" for axis, counted in AXES.items()]
    return "\n".join([*lines, "## How this is counted", "", RULE, "", *axes, "", HOW]) + "\n"


def keep_report(interview: Interview, file: Path | None = None) -> Path:
    """Write the debrief: to `file`, or under the next free name of the folder exams."""
    number = 1
    while file is None:
        name = FOLDER / f"mock-{number}.md"
        file, number = None if name.exists() else name, number + 1
    return write_whole(file, report(interview))
