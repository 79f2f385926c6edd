"""The debrief of a mock interview, like an interviewer's scorecard: a recommendation, strengths, risks, evidence.

What a tick is worth is decided in evidence.py. The level of a round follows from its table by the rule that is printed
below it; a round that was too short has none.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from minispec.load.write import write_whole

from .coding import title_of
from .drill import FOLLOW_UP, PUSH_BACK, RAISES, SINKS
from .evidence import Graded, graded, rating
from .figures import figures
from .matcher import MOST_WEIGHT, terms, weight
from .mock_interview import Interview
from .question import LEVELS
from .reactions import asks_back
from .record import AFTER, CUT, CUT_RECORD, Strength, half_way, named, next_level, short, told
from .rounds import BEGIN, CODE, ELSE, GRADES, NOT_SUBMITTED, ROUNDS, SCOPE, SCOPED, SCOPING, TITLES, WORDS, Reply, Turn
from .stated import RIGHT, UNCLEAR, UNREAD, WRONG
from .summary import ROOT, count, lesson

__all__ = ["AXES", "Debrief", "Graded", "graded", "keep_report", "rating", "report"]

AXES = {
    "basics": "L4 points shown, two more for each task whose tests pass, two less for each statement that sinks",
    "depth": "L5 points and answers to follow-ups shown",
    "numbers": "right at once, or after the interviewer asked again",
    "trade-offs": "L6 points and answers to push-backs shown",
    "communication": "replies of 10 to 250 words (at the whiteboard up to 750) that share three terms with what was "
    "asked or with its rubric",
}
FOLDER = ROOT / "exams"  # as in classroom/exam.py, which takes seconds to load
TALKED, DRAWN = (10, 250), 750  # words of an answer; the most that a drawing takes
ENOUGH, ONE_QUESTION = 4, 10  # replies that a level takes: in a round of two questions or tasks, and in one of one
WORTH = 4  # replies: a function that was written
FIRST = 3  # strengths and concerns on the first page; the rest goes into the record
NONE = "none that a rubric names; a false statement that no rubric names goes unnoticed"
FORM = {1: "Strong hire", 0: "Hire", -1: "Lean no hire", -2: "No hire"}
RULE = (
    "The level of a round is the middle one of its table; of two, the lower one. The level of a question follows from "
    "the points that you showed. L4 takes two thirds as many points as its rubric has for L4, and points of L5 and L6 "
    "count as well. L5 takes two thirds as many as there are for L5, and points of L6 count as well. L6 takes two "
    "thirds of its own points, two thirds of those of L5, and half of all. If a must-have is missing, its level is not "
    "reached, nor any above it. In a design, a point that you made only after the interviewer had named it counts one "
    "level lower, and not for L6. Each rubric lists statements that sink an answer: one that you ticked, and did not "
    "take back when you were asked how sure you are, lowers the level of its question by one. Code whose tests pass is "
    "L4, and each of its follow-ups that you showed adds a level. The derivation and its numbers are not in the table."
)
HOW = (
    "You ticked a point and quoted words that you had typed. It counts as shown if the key terms of the point stand in "
    "these words and are not denied. With other words of yours it is a claim: it is listed, and whoever reads this "
    "decides. In a design, a sentence that only repeats the interviewer earns nothing. A point is called a strength if "
    "the quote alone holds most of it. All of this counts words and understands nothing. Where it is wrong, you are "
    "right; and a false statement that no rubric lists goes unnoticed."
)


class Debrief:
    """What one round showed."""

    def __init__(self, interview: Interview, name: str) -> None:
        self.interview, self.name = interview, name
        self.turns = [(turn, reply, at) for round, turn, reply, at in interview.transcript if round == name]
        before = [entry for entry in interview.transcript if entry[0] == name]
        self.gradings = [graded(turn, reply, before) for turn, reply, _ in self.turns if turn.expects == GRADES]
        self.talks = [g for g in self.gradings if g.turn.question]
        self.figures = list(figures([(turn, reply) for turn, reply, _ in self.turns]))
        self.code = [
            (turn, reply)
            for turn, reply, _ in self.turns
            if turn.expects == CODE and reply.outcome not in NOT_SUBMITTED
        ]
        self.words = [(turn, reply) for turn, reply, _ in self.turns if is_answer(turn, reply)]

    # ---- counted

    def counts(self) -> dict[str, tuple[int, int]]:
        """Axis → (shown, possible)."""

        def boxes(*groups: str) -> tuple[int, int]:
            found = [(len(g.texts(*groups, among=g.shown)), len(g.texts(*groups))) for g in self.gradings]
            return sum(a for a, _ in found), sum(b for _, b in found)

        sunk = sum(len(g.sunk) for g in self.gradings)
        basics, passed = boxes("L4"), sum(reply.outcome == "right" for _, reply in self.code)
        read = [figure for figure in self.figures if figure.unknown or figure.verdict not in (UNREAD, UNCLEAR)]
        fluent = sum(self.is_fluent(turn, reply) for turn, reply in self.words)
        return {
            "basics": (max(0, basics[0] + 2 * passed - 2 * sunk), basics[1] + 2 * len(self.code)),
            "depth": boxes("L5", FOLLOW_UP),
            "numbers": (sum(figure.verdict == RIGHT for figure in read), len(read)),
            "trade-offs": boxes("L6", PUSH_BACK),
            "communication": (fluent, len(self.words)),
        }

    def is_fluent(self, turn: Turn, reply: Reply) -> bool:
        """Neither a shrug nor a lecture, and about the thing."""
        most = DRAWN if turn.kind == "draw" else TALKED[1]
        return TALKED[0] <= len(reply.text.split()) <= most and self.is_about(turn, reply)

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
            shown += [f"{after} of these {AFTER}"] if (after := sum(g.counts(g.shown)[1].values())) else []
            weak = sum(box.group in LEVELS and i in g.shown and not g.is_plain(i) for i, box in enumerate(g.turn.boxes))
            shown += [f"{weak} of these on your tick"] * bool(weak)
            shown += [f"a must-have of {level} is missing" for level in sorted(g.lacking())]
            shown += [f"{count(len(g.sunk), 'statement')} that sinks"] * bool(g.sunk)
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
            return (
                f"**Not enough evidence for a level at {TITLES[self.interview.level]}.** "
                f"Replies: {self.replies}; a level takes {self.least}, in a round that came to its "
                f"end{found}."
            )
        form = FORM[max(-2, min(1, signal - wanted))]
        return f"**{form} at {TITLES[self.interview.level]}.** The table signals {named(signal)}."

    def why(self) -> list[str]:
        """Below a level that is too low: what each question that holds it down would have needed for the next one."""
        if not self.is_enough or self.signal > LEVELS.index(self.interview.level):
            return []
        rows = self.rows()
        takes = [next_level(g) if g.level() <= self.signal else "" for g in self.talks]
        for (_, reply), (_, level, _) in zip(self.written, rows[len(takes) :], strict=True):
            more = "another follow-up" if reply.outcome == "right" else "code whose tests pass"
            takes.append(f"{LEVELS[level]} takes {more}" if level <= self.signal else "")
        return [
            f"- {named(level)} in “{short(asked, 72)}”: {each}."
            for (asked, level, _), each in zip(rows, takes, strict=True)
            if each
        ]

    def lines(self) -> list[str]:
        """A page to decide from, and below it the record."""
        used, claims = self.turns[-1][2] if self.turns else 0.0, self._signal(True)
        over = f", {count(round(used - self.minutes), 'minute')} over" if used > self.minutes + 0.5 else ""
        lines = [
            f"## The {self.name} round",
            "",
            f"{self.headline()} {count(round(used), 'minute')} of {self.minutes}{over}.",
            "",
        ]
        if why := self.why():
            lines += [*why, ""]
        if claims > self.signal:
            lines += [f"With the points that you claim below it would be {named(claims)}.", ""]
        strengths, concerns = self.strengths(), self.concerns()
        lines += ["### Strengths", "", *([f"- {each.line(CUT)}" for each in strengths[:FIRST]] or ["- none shown"])]
        lines += ["", "### Concerns", "", *([f"- {line}" for line in concerns[:FIRST]] or [f"- {NONE}"])]
        if rows := self.rows():
            lines += ["", "### How the level comes about", "", "| question | level | evidence |", "|---|---|---|"]
            lines += [
                f"| {short(asked, 72).replace('|', '/')} | {named(level)} | {found} |" for asked, level, found in rows
            ]
        axes = [f"{axis} {f'{got} of {most}' if most else 'not asked'}" for axis, (got, most) in self.counts().items()]
        lines += ["", f"Axes, from which the level does not follow: {', '.join(axes)}."]
        record: list[str] = []
        for title, found in (
            ("Further strengths", [f"- {each.line(CUT_RECORD)}" for each in strengths[FIRST:]]),
            ("Further concerns", [f"- {line}" for line in concerns[FIRST:]]),
            ("Counted on your tick", self.weak()),
            ("Claimed, not yet shown", self.claims()),
            ("Not found in your answers", self.refused()),
            ("Asked half-way", self.half_way()),
            ("A fuller answer would also hold", self.unsaid()),
            ("Numbers", self.numbers()),
            *self.interview.asides(self.name),
            ("Read next", self.reading()),
        ):
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
                    rank = {"L4": 1, "L5": 2, FOLLOW_UP: 2, RAISES: 2}.get(box.group, 3) - (i in g.prompted)
                    each = found.setdefault((of, quote), Strength(of, quote))
                    each.rank, each.plain = max(each.rank, rank), max(each.plain, g.plain[i])
                    each.points.append(box.text)
                    each.after += [box.text] * (i in g.prompted)
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
        return [
            f"- {told(g.turn.boxes[i].text, quote, CUT_RECORD)}{f' ({AFTER})' * (i in g.prompted)}"
            for g in self.gradings
            for i, quote in g.shown.items()
            if g.turn.boxes[i].group != SINKS and not g.is_plain(i)
        ]

    def concerns(self) -> list[str]:
        """What speaks against the candidate: first what is certain, the gravest before the rest; then what the words
        suggest; then what was left out. What was not asked for is not among it."""
        lines = [f"said what sinks an answer: {text}" for g in self.gradings for text in g.sunk]
        for turn, reply in self.code:
            if reply.outcome != "right":
                lines.append(f"{title_of(turn.exercise)}: {reply.outcome or 'not tried'}")
        wrong = sum(figure.verdict == WRONG for figure in self.figures)
        lines += [f"{wrong} of {self.counts()['numbers'][1]} numbers wrong"] * bool(wrong)
        unticked = [
            (g, box)
            for g in self.gradings
            for i, box in enumerate(g.turn.boxes)
            if i not in {**g.shown, **g.claimed, **g.empty, **g.opposite()}
        ]
        lines += [f"a must-have was not said ({box.group}): {short(box.text)}" for _, box in unticked if box.must]
        stood = [(g.turn.boxes[i].text, g.doubted[i]) for g in self.gradings for i in g.suspected() if i in g.doubted]
        lines += [f"said what sinks an answer, and stood by it when asked: {told(*each)}" for each in stood]
        lines += [
            f"said the opposite? {told(g.turn.boxes[i].text, quote)}"
            for g in self.gradings
            for i, quote in g.opposite().items()
        ]
        lines += [
            f"may have said what sinks an answer: {told(g.turn.boxes[i].text, quote)}"
            for g in self.gradings
            for i, quote in g.suspected().items()
            if i not in g.doubted
        ]
        shown = {
            box.text.rpartition(" → ")[0]
            for g in self.gradings
            for i, box in enumerate(g.turn.boxes)
            if " → " in box.text and i in {**g.shown, **g.claimed}
        }
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
        for g, box in unticked:
            asked = box.text.rpartition(" → ")[0]
            if box == SCOPE:
                if not g.matches[g.turn.boxes.index(box)].suggested:
                    lines.append(
                        f"began “{short(self.interview.bank[g.turn.question].question, 60)}” without asking "
                        f"for, or assuming, {SCOPED} of the traffic, the targets and the like"
                    )
            elif box.group in (PUSH_BACK, FOLLOW_UP) and not any(short(asked) in line for line in lines):
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
            lines += [
                f"- {box.group}: {short(box.text)}"
                for i, box in enumerate(g.turn.boxes)
                if i not in ticked and box.group in wanted and not box.must
            ]
        return lines

    def half_way(self) -> list[str]:
        return list(half_way([(turn, reply) for turn, reply, _ in self.turns], self.gradings))

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


def is_answer(turn: Turn, reply: Reply) -> bool:
    """Whether a reply is one that can be fluent or not: no question back, no scoping, no "nothing else"."""
    declined = turn.says.endswith(ELSE) and len(reply.text.split()) < TALKED[0]
    return (
        turn.expects == WORDS
        and turn.number is None
        and turn.kind != "close"
        and not asks_back(reply.text)
        and not turn.says.endswith((SCOPING, BEGIN))
        and not declined
    )


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
        lines += [
            f"**Committee: {verdict}.** The middle of the rounds with enough evidence, the lower one of two: "
            f"{', '.join(signals)}.",
            "",
        ]
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
