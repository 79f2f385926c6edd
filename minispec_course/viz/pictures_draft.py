"""Diagrams of drafters: a tree beside its mask, and what EAGLE-1, EAGLE-3, DFlash and MTP are given and give."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minispec import tree

from .drawing import INK, SOFT, Canvas, Drawing, shorten, visible
from .style import GREY, KINDS, PALETTE

TARGET, DRAFT, TOKEN, STATE = PALETTE[0], PALETTE[5], KINDS["accepted"], PALETTE[4]


def tree_and_mask(
    tokens: Sequence[int],
    parents: Sequence[int],
    decode: Callable[[list[int]], str] | None = None,
    node: int | None = None,
) -> Drawing:
    """A draft tree, and beside it the mask of its verify pass, line by line. `node` has its path marked in both."""
    parents = list(parents)
    node = len(parents) - 1 if node is None else node
    mask = tree.verify_mask(parents)  # [n + 1, n + 1]: the last token, then the nodes
    depth = [0] * (len(parents) + 1)
    for i, parent in enumerate(parents):
        depth[i + 1] = depth[parent + 1] + 1
    path = {i for i, seen in enumerate(mask[node + 1].tolist()) if seen}
    levels = [[i for i, d in enumerate(depth) if d == level] for level in range(max(depth) + 1)]
    show = lambda i: "last token" if i == 0 else visible(decode([tokens[i - 1]]) if decode else str(tokens[i - 1]))  # noqa: E731
    cell = min(34, 290 / len(mask))
    tall = max(cell * len(mask) + 92, 70 * len(levels) + 60)
    c = Canvas(height=tall + 28)
    c.text(14, 24, "The tree: each path is a possible continuation", 14, bold=True)
    place = {}
    for level, members in enumerate(levels):
        for n, i in enumerate(members):
            place[i] = (14 + 380 * (n + 0.5) / len(members), 60 + level * (tall - 110) / max(1, len(levels) - 1))
    for i, parent in enumerate(parents):
        (x1, y1), (x2, y2) = place[parent + 1], place[i + 1]
        on = i + 1 in path
        c.line(x1, y1 + 13, x2, y2 - 13, KINDS["accepted"] if on else GREY, 3 if on else 1.5)
    for i, (x, y) in place.items():
        wide = min(92, 370 / len(levels[depth[i]]) - 6)
        name = show(i) if i == 0 else f"{i - 1}: {show(i)}"
        c.box(
            x - wide / 2,
            y - 13,
            wide,
            26,
            shorten(name, wide - 6, 12),
            KINDS["accepted"] if i in path else GREY,
            0.3 if i in path else 0.12,
            12,
            line=KINDS["accepted"] if i in path else GREY,
        )
    left, top = 746 - cell * len(mask), 62
    c.text(left - 58, 24, "The mask: what attends to what", 14, bold=True)
    for i in range(len(mask)):
        name = "last" if i == 0 else str(i - 1)
        c.text(left - 8, top + (i + 0.65) * cell, name, 12, "end", bold=i == node + 1)
        c.text(left + (i + 0.5) * cell, top - 6, name, 12, "middle")
        for j in range(len(mask)):
            seen = bool(mask[i, j])
            mine = seen and i == node + 1
            c.rect(
                left + j * cell + 1,
                top + i * cell + 1,
                cell - 2,
                cell - 2,
                KINDS["accepted"] if mine else TARGET if seen else None,
                GREY,
                0.85 if mine else 0.55,
                2,
                "" if seen else "2 2",
            )
    marked = ", ".join("the last token" if i == 0 else f"node {i - 1}" for i in sorted(path))
    c.paragraph(14, tall + 14, f"Green: node {node} attends to {marked}, and to nothing on another branch.", 730, 12)
    return c.drawing(
        f"A tree of {len(parents)} nodes with parents {parents}, and its mask of {len(mask)} × {len(mask)}, with "
        f"{int(mask.sum())} filled cells. Node {node} attends to {marked}."
    )


def four_drafters(k: int = 4) -> Drawing:
    """EAGLE-1, EAGLE-3, DFlash and MTP in one style: what each is given, and how many runs in sequence it takes."""
    c = Canvas(height=492)
    panels = [
        ("EAGLE-1", ["state before the LM head"], k, False, f"{k} runs of 1 layer, one after another"),
        ("EAGLE-3", ["low", "middle", "high"], k, False, f"{k} runs of 1 layer, one after another"),
        ("DFlash", ["streams of several layers"], 1, True, "1 run of a few layers, all positions at once"),
        ("MTP", ["last hidden state"], k, False, f"trained with the model; {k} runs if used {k} times"),
    ]
    for n, (name, states, runs, block, note) in enumerate(panels):
        x, y = 14 + n % 2 * 376, 14 + n // 2 * 224
        c.rect(x, y, 360, 212, None, round=6)
        c.text(x + 12, y + 22, name, 15, bold=True)
        c.text(x + 348, y + 22, f"sequential runs for {k} tokens: {runs}", 12, "end", colour=SOFT)
        _one(c, x, y, states, k, block, name)
        c.text(x + 12, y + 202, note, 12, colour=SOFT)
    c.key(
        14, 476, [(TARGET, "target"), (STATE, "hidden state"), (DRAFT, "draft layer"), (TOKEN, "token in or out")], 12
    )
    said = "; ".join(f"{name} is given {', '.join(states)}: {note}" for name, states, _, _, note in panels)
    return c.drawing(f"Four drafters that use the target's hidden states, for {k} draft tokens. {said}.")


def _one(c: Canvas, x: float, y: float, states: list[str], k: int, block: bool, name: str) -> None:
    """One of the four: the target below left, its states, and the draft layer's runs to the right."""
    c.rect(x + 12, y + 40, 60, 112, TARGET, TARGET, 0.2)
    c.text(x + 42, y + 100, "target", 12.5, "middle")
    heights = {"low": 138, "middle": 100, "high": 62}
    for state in states:
        level = y + (heights.get(state, 62 if name != "DFlash" else 100))
        c.circle(x + 84, level, 6, STATE, STATE)
        c.line(x + 72, level, x + 78, level, INK)
        c.line(x + 90, level, x + 104, y + 84, SOFT, 1.2)
    if name == "DFlash":
        for level in (138, 62):
            c.circle(x + 84, y + level, 6, STATE, STATE)
            c.line(x + 90, y + level, x + 104, y + 84, SOFT, 1.2)
    label = {"EAGLE-1": "state + token", "EAGLE-3": "fc(3 states) + token", "DFlash": "context", "MTP": "norms + token"}
    c.text(x + 84, y + 168, label[name], 12, "start")
    step = 240 / k
    if block:
        c.box(x + 108, y + 70, 238, 30, "draft layers, once, bidirectional", DRAFT, 0.45, 12, line=DRAFT)
        wide = 238 / (k + 1)
        for i in range(k + 1):
            left = x + 108 + i * wide
            c.box(
                left + 1,
                y + 118,
                wide - 2,
                24,
                "xₙ" if i == 0 else "blank",
                TOKEN if i == 0 else None,
                0.3,
                11,
                line=TOKEN if i == 0 else GREY,
                dash="" if i == 0 else "2 2",
            )
            c.arrow(left + wide / 2, y + 117, left + wide / 2, y + 102)
            if i:
                c.arrow(left + wide / 2, y + 69, left + wide / 2, y + 60)
                c.box(left + 1, y + 36, wide - 2, 23, f"d{i}", TOKEN, 0.3, 12, line=TOKEN)
        return
    for i in range(k):
        left, given = x + 108 + i * step, "xₙ" if i == 0 else f"d{i}"
        c.box(left, y + 70, step - 18, 30, f"run {i + 1}", DRAFT, 0.45, 12, line=DRAFT)
        c.box(left, y + 118, step - 18, 24, given, TOKEN, 0.3, 12, line=TOKEN)
        c.arrow(left + (step - 18) / 2, y + 117, left + (step - 18) / 2, y + 102)
        c.arrow(left + (step - 18) / 2, y + 69, left + (step - 18) / 2, y + 60)
        c.box(left, y + 36, step - 18, 23, f"d{i + 1}", TOKEN, 0.3, 12, line=TOKEN)
        if i < k - 1:  # its own output stands in for the state that only the target could compute
            c.arrow(left + step - 18, y + 85, left + step, y + 85, STATE, 2.5)
            c.line(left + step - 18, y + 48, left + step - 9, y + 48, SOFT, 1, "2 2")
            c.line(left + step - 9, y + 48, left + step - 9, y + 130, SOFT, 1, "2 2")
            c.line(left + step - 9, y + 130, left + step, y + 130, SOFT, 1, "2 2")
