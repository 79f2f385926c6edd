"""The family tree of drafters that use the target's hidden states: who comes from whom, and what each is given."""

from __future__ import annotations

from ..labs.family import FAMILY, LINES, Member
from .drawing import SOFT, Canvas, Drawing, wrapped
from .style import GREY, KINDS, PALETTE

STEPS, BLOCK = PALETTE[5], KINDS["accepted"]
WIDE, TALL, GAP = 168, 104, 19


def family_tree(k: int = 4) -> Drawing:
    """A branch per line, a box per drafter: what it is given, what is new, and its runs in sequence for k tokens."""
    top = 18
    c = Canvas(height=top + len(LINES) * (TALL + 36) + 22)
    place = {}
    for row, line in enumerate(LINES):
        y = top + row * (TALL + 36)
        c.text(14, y + 8, line, 13, bold=True)
        for column, one in enumerate(member for member in FAMILY if member.line == line):
            place[one.name] = 14 + column * (WIDE + GAP), y + 18
            if column and one.name != "P-EAGLE":  # which comes from EAGLE-3, drawn above it
                c.arrow(
                    14 + column * (WIDE + GAP) - GAP + 2,
                    y + 18 + TALL / 2,
                    12 + column * (WIDE + GAP),
                    y + 18 + TALL / 2,
                )
            _member(c, one, *place[one.name], k)
    (x1, y1), (x2, y2) = place["EAGLE-1"], place["MTP"]
    c.arrow(x1 + 30, y1 + TALL + 1, x2 + 30, y2 - 22, SOFT, 1.5, "4 3")  # the same pair as EAGLE-1's
    (x1, y1), (x2, y2) = place["EAGLE-3"], place["P-EAGLE"]
    c.arrow(x1 + 60, y1 + TALL + 2, x2 + 60, y2 - 2, SOFT, 1.2)
    c.key(14, c.height - 10, [(STEPS, "runs wait for one another"), (BLOCK, "one run for all positions")], 12)
    said = "; ".join(f"{m.name} ({m.year}): given {m.given}; {m.new}; {m.runs(k)} in sequence" for m in FAMILY)
    return c.drawing(f"A family tree of drafters, with the runs in sequence that {k} draft tokens take. {said}.")


def _member(c: Canvas, one: Member, x: float, y: float, k: int) -> None:
    colour = BLOCK if one.runs(k) == 1 else STEPS
    c.rect(x, y, WIDE, TALL, colour, colour, 0.16, 6, dash="" if one.make else "4 3")
    c.text(x + 10, y + 19, one.name, 14, bold=True)
    c.text(x + WIDE - 10, y + 19, str(one.year), 12, "end", colour=SOFT)
    at = y + 37
    for words, bright in ((f"given: {one.given}", False), (f"new: {one.new}", True)):
        for line in wrapped(words, WIDE - 16, 11.5):
            c.text(x + 10, at, line, 11.5, colour=SOFT if not bright else "ink")
            at += 14
    runs = one.runs(k)
    for i in range(k):  # filled: a run; those of one block are joined
        on = i < runs
        c.rect(
            x + 10 + i * 14,
            y + TALL - 15,
            11,
            8,
            colour if on else None,
            colour if on else GREY,
            0.8,
            2,
            "" if on else "2 2",
        )
    c.text(x + WIDE - 10, y + TALL - 7, f"{runs} run{'s' if runs > 1 else ''}", 11.5, "end", bold=True)
