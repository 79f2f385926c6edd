"""Lines of a debrief: what a quote shows, what became of the questions half-way, what the next level takes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .evidence import HALF_WAY, Graded, level_of, lowered, reply_to
from .matcher import excerpt
from .question import LEVELS, needed, total
from .rounds import Reply, Turn

CUT, CUT_RECORD = 200, 160  # characters of a quote, on the first page and in the record
AFTER = "after a prompt"


def named(levels: int) -> str:
    return LEVELS[levels - 1] if levels else f"below {LEVELS[0]}"


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
    after: list[str] = field(default_factory=list)  # those that were made after a prompt

    def line(self, most: int) -> str:
        said = excerpt(" ".join(point.rpartition(" → ")[2] for point in self.points), self.quote, most)
        points = [heading(point) + f" ({AFTER})" * (point in self.after) for point in self.points]
        return "; ".join(points) + (f": “{said}”" if said else "")


# ---- asked half-way -------------------------------------------------------------------------------------------------


def half_way(said: Sequence[tuple[Turn, Reply]], gradings: Sequence[Graded]) -> Iterator[str]:
    """Every follow-up, change, push-back and doubt: the reply, what became of it, and what a good one holds."""
    for i, (turn, _) in enumerate(said):
        if turn.kind not in HALF_WAY and not turn.doubts:
            continue
        of = [g for g in gradings if (g.turn.question, g.turn.exercise) == (turn.question, turn.exercise)]
        asked, verdict, good = turn.says, "not graded", ""
        for g in of:
            verdict = "not in the rubric, so you judge it" if turn.kind == "change" else verdict
            for number, box in enumerate(g.turn.boxes):
                question, _, answer = box.text.rpartition(" → ")
                if question and question in turn.says:
                    asked, good, verdict = question, answer, became(g, number)
                elif turn.doubts == box.text:
                    verdict = "taken back" if g.doubted.get(number) == "" else "not taken back"
        replied = reply_to(turn.says, said[i:]).strip()
        words = f"you: “{excerpt(good, one_line(replied), CUT)}”" if replied else "no words"
        yield f"- {turn.kind} “{short(asked)}” {words} ({verdict}){f' A good reply: {good}' if good else ''}"


def became(g: Graded, box: int) -> str:
    """What became of a line of the rubric."""
    ticked = {
        "counted": g.shown,
        "in words that are not found in it": g.claimed,
        "not counted": {**g.empty, **g.refused},
    }
    return next((f"ticked, {name}" for name, boxes in ticked.items() if box in boxes), "not ticked")


def one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text)


# ---- what the next level takes --------------------------------------------------------------------------------------


def next_level(g: Graded) -> str:
    """What the level above the one that was reached would have taken, and what there was."""
    level, points = g.level(), g.points
    alone, after = g.counts(g.shown)
    if (without := level_of(alone, after, points, g.lacking())) > level:
        return f"{named(without)} without what sinks an answer: {short(g.sunk[0])}"
    name = LEVELS[level]
    if name == "L6":
        most = points["L6"], points["L5"], total(points)
        takes = needed(most[0]), needed(most[1]), -(-most[2] // 2)
        got = alone["L6"], alone["L5"], total(alone)
        found = (
            f"L6 takes {takes[0]} of its {most[0]} points, {takes[1]} of the {most[1]} of L5 and {takes[2]} of "
            f"all {most[2]}; {got[0]}, {got[1]} and {got[2]} counted"
        )
    else:
        most, got = (sum(counts[each] for each in LEVELS[level:]) for counts in (points, lowered(alone, after)))
        of = f"the {most} points" + f" of {' and '.join(LEVELS[level:])}" * bool(level)
        found = f"{name} takes {needed(points[name])} of {of}; {got} counted"
    found += f"; points made {AFTER} count a level lower: {total(after)}" * bool(total(after))
    missing = [box.text for i, box in enumerate(g.turn.boxes) if box.must and box.group == name and i not in g.shown]
    return found + "".join(f"; a must-have is missing: {short(text)}" for text in missing)
