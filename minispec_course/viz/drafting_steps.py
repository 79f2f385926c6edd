"""Which hidden state meets which token: EAGLE step by step, MTP alike, and DFlash filling a block at once.

The tokens are those that real drafters proposed; the arrows are how each of them is built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minispec.drafters import Drafter
from minispec.load.handle import Model
from minispec.speculate import speculate

from .drawing import SOFT, Canvas, shorten, visible
from .panel import Panel, choice, player
from .style import GREY, KINDS, PALETTE

STATE, OWN, TOKEN, BLANK = PALETTE[4], PALETTE[5], KINDS["accepted"], GREY
SHOWN = 3  # tokens of the prompt that are shown, with their features
BLOCK, STEPS = "DFlash", "EAGLE"


def first_draft(target: Model, drafter: Drafter, prompt, k: int) -> list[int]:
    """The chain that a drafter proposes first after a prompt: of a tree, the path through the first children."""
    cycle = speculate(target, prompt, drafter, k, k + 2, temperature=0, ignore_eos=True).trace.cycles[0]
    if cycle.parents is None:
        return cycle.drafted
    path, at = [], -1
    while at in cycle.parents:
        at = cycle.parents.index(at)
        path.append(cycle.drafted[at])
    return path


def drafting_steps_svg(way: str, words: Sequence[str], drafted: Sequence[str], step: int) -> tuple[str, str]:
    """`words` are the last tokens that the target has emitted, `drafted` what is proposed after them. As SVG, in words.

    Step 0 shows what the target left; EAGLE then has a step per draft token, DFlash a single one.
    """
    words, drafted = list(words)[-SHOWN:], list(drafted)
    last = len(drafted) if way == STEPS else 1
    if way not in (STEPS, BLOCK) or not 0 <= step <= last:
        known = f"{STEPS!r} with steps 0 … {len(drafted)} or {BLOCK!r} with 0 or 1"
        raise ValueError(f"way={way!r}, step={step}: give {known}")
    columns = len(words) + len(drafted)
    wide = 640 / columns
    at = lambda i: 100 + (i + 0.5) * wide  # noqa: E731
    c = Canvas(height=330)
    c.text(14, 24, f"{way}: step {step} of {last}", 15, bold=True)
    for y, name in ((62, "position"), (98, "token"), (166, "state"), (238, "given"), (296, "predicts")):
        c.text(14, y + 5, name, 13, bold=True)
    for i in range(columns):
        c.text(at(i), 66, f"t{i - len(words) + 1:+d}" if i - len(words) + 1 else "t", 12, "middle", colour=SOFT)
    for i, word in enumerate(words):
        c.box(at(i) - wide / 2 + 3, 82, wide - 6, 30, shorten(visible(word), wide - 12, 12.5), TOKEN, 0.3, line=TOKEN)
        if i < len(words) - 1:  # the last token was emitted, but the target has not processed it
            c.box(at(i) - wide / 2 + 3, 150, wide - 6, 30, f"g{_low(i - len(words) + 1)}", STATE, 0.4, line=STATE)
            c.arrow(at(i), 113, at(i), 148)
    c.text(at(len(words) - 1), 170, "not yet", 11.5, "middle", colour=SOFT)
    told = _eagle(c, at, wide, words, drafted, step) if way == STEPS else _dflash(c, at, wide, words, drafted, step)
    return c.svg(told), told


def drafting_steps(target: Model, prompt: str, drafters: Mapping[str, Drafter], k: int = 5) -> Panel:
    """Step through the first draft of each drafter; those named DFlash fill a block, all others step as EAGLE does."""
    if not drafters:
        raise ValueError('drafters is empty: give for example {"EAGLE": D.Eagle(target, tree=False)}')
    words = [target.decode([token]) for token in target.encode(prompt)[-SHOWN:]]
    drafts = {
        name: [target.decode([token]) for token in first_draft(target, drafter, prompt, k)]
        for name, drafter in drafters.items()
    }
    play, step = player("step", k, interval=1200)
    step.value = 1

    def draw(step: int, drafter: str) -> tuple[str, str]:
        way = BLOCK if BLOCK in drafter else STEPS
        most = len(drafts[drafter]) if way == STEPS else 1
        return drafting_steps_svg(way, words, drafts[drafter], min(step, most))

    return Panel(draw, {"drafter": choice("drafter", list(drafters)), "step": step, "play": play})


def _eagle(c: Canvas, at, wide: float, words: list[str], drafted: list[str], step: int) -> str:
    """Each step pairs a state with the token after it; from the second on, the state is the drafter's own output."""
    n = len(words)
    for s in range(1, step + 1):
        i, new = n - 2 + s, s == step  # the column of the given token
        state = "g₋₁" if s == 1 else f"f{_low(s - 1)}"
        token = words[-1] if s == 1 else drafted[s - 2]
        colour = STATE if s == 1 else OWN
        c.box(
            at(i) - wide / 2 + 3,
            222,
            wide - 6,
            34,
            shorten(f"{state} + {visible(token)}", wide - 8, 11.5),
            colour,
            0.45 if new else 0.2,
            11.5,
            line=colour,
            thick=2 if new else 1,
        )
        if s == 1:
            c.arrow(at(n - 2), 181, at(i) - 8, 220, STATE, 2)
        else:
            c.box(at(i) - wide / 2 + 3, 150, wide - 6, 30, f"f{_low(s - 1)}", OWN, 0.3, line=OWN)
            c.arrow(at(i - 1) + wide * 0.3, 221, at(i) - wide * 0.2, 182, OWN, 2)
            c.arrow(at(i), 181, at(i), 220, OWN, 2)
        column = n - 1 + s
        c.arrow(at(i), 257, at(column) - wide * 0.2, 284, TOKEN, 2)
        word = shorten(visible(drafted[s - 1]), wide - 12, 12.5)
        c.box(at(column) - wide / 2 + 3, 284, wide - 6, 30, word, TOKEN, 0.35 if new else 0.15, line=TOKEN)
        if not new:  # it is the next step's token
            c.box(at(column) - wide / 2 + 3, 82, wide - 6, 30, word, TOKEN, 0.12, line=TOKEN, dash="3 2")
    if step == 0:
        return f"The target has left features up to the position before the last token {visible(words[-1])}."
    given = "the target's own feature" if step == 1 else f"its own output of step {step - 1} in place of a feature"
    token = words[-1] if step == 1 else drafted[step - 2]
    return (
        f"EAGLE, step {step} of {len(drafted)}: {given} meets the token after it, {visible(token)}, and predicts "
        f"{visible(drafted[step - 1])}. One run of the layer per token, one after another."
    )


def _dflash(c: Canvas, at, wide: float, words: list[str], drafted: list[str], step: int) -> str:
    """The last token and blanks go in together; every blank gets its token in the same run."""
    n = len(words)
    left, right = at(n - 1) - wide / 2 + 3, at(n + len(drafted) - 1) + wide / 2 - 3
    for i in range(len(drafted) + 1):
        x = at(n - 1 + i)
        word = shorten(visible(words[-1]), wide - 12, 12) if i == 0 else "blank"
        colour, dash = (TOKEN, "") if i == 0 else (BLANK, "2 2")
        c.box(x - wide / 2 + 3, 222, wide - 6, 34, word, TOKEN if i == 0 else None, 0.3, 12, line=colour, dash=dash)
    if step == 0:
        return f"The block: the last token {visible(words[-1])} and {len(drafted)} blanks. Nothing is predicted yet."
    c.rect(left - 3, 214, right - left + 6, 50, None, OWN, thick=2, round=6)
    for i in range(n - 1):
        c.arrow(at(i), 181, left - 6, 232, STATE, 1.5)
    for i, word in enumerate(drafted):
        x = at(n + i)
        c.arrow(x, 265, x, 283, TOKEN, 2)
        c.box(x - wide / 2 + 3, 284, wide - 6, 30, shorten(visible(word), wide - 12, 12.5), TOKEN, 0.35, line=TOKEN)
    return (
        f"DFlash, one step: the last token and {len(drafted)} blanks attend to one another and to the features of the "
        f"context, and all blanks are filled at once: {', '.join(map(visible, drafted))}."
    )


def _low(i: int) -> str:
    """A small index below the line: −1 is ₋₁."""
    return "".join({"-": "₋"}.get(c, chr(0x2080 + int(c)) if c.isdigit() else c) for c in str(i))
